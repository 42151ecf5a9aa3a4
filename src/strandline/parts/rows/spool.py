"""Sorted rows that have to wait: in memory while they are few, then in a temporary file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pyarrow as pa

from strandline.closing import Closing
from strandline.errors import LocationError

__all__ = ["Spool"]

_MEMORY_BYTES = 16 << 20
"""Compressed bytes that wait in memory."""

_BATCH_ROWS = 16_384
"""Rows that are gathered before they are compressed: of small batches most would be overhead."""


class Spool(Closing):
    """Batches of one schema that are written first and read after, as often as it takes.

    A context manager.
    """

    def __init__(self, arrow: pa.Schema) -> None:
        self.arrow = arrow
        # It has no name from the start, so that nothing is left behind however this process ends.
        self._file = tempfile.SpooledTemporaryFile(max_size=_MEMORY_BYTES)  # noqa: SIM115  closed in `close`
        self._writer: pa.RecordBatchStreamWriter | None = None
        self._held: list[pa.RecordBatch] = []
        self._rows = 0
        self._sealed = False
        """Whether all rows are in the file, and its end."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes the next rows; none after they were read."""
        if batch.num_rows:
            self._held.append(batch)
            self._rows += batch.num_rows
            if self._rows >= _BATCH_ROWS:
                self._write()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, in the order in which they were added."""
        if self._writer is not None:
            if not self._sealed:
                self._write()
                self._seal()
            self._file.seek(0)
            try:
                yield from pa.ipc.open_stream(pa.PythonFile(self._file, mode="r"))
            except OSError as error:
                raise _failed(error) from error
        yield from self._gathered()

    def close(self) -> None:
        """Lets go of the rows. Harmless when repeated."""
        self._held = []
        self._file.close()

    def _gathered(self) -> list[pa.RecordBatch]:
        table = pa.Table.from_batches(self._held, self.arrow)
        return table.combine_chunks().to_batches()  # type: ignore[no-any-return]  # pyarrow has no types

    def _write(self) -> None:
        try:
            if self._writer is None:
                self._writer = pa.ipc.new_stream(
                    pa.PythonFile(self._file, mode="w"),
                    self.arrow,
                    options=pa.ipc.IpcWriteOptions(compression="lz4"),
                )
            for batch in self._gathered():
                self._writer.write_batch(batch)
            self._held, self._rows = [], 0
        except OSError as error:
            raise _failed(error) from error

    def _seal(self) -> None:
        try:
            if self._writer is not None:
                self._writer.close()
        except OSError as error:
            raise _failed(error) from error
        self._sealed = True


def _failed(error: OSError) -> LocationError:
    return LocationError(
        f"keeping rows aside failed ({error}); it needs room in {tempfile.gettempdir()}, which "
        "TMPDIR moves elsewhere",
        may_have_happened=False,
    )
