"""Writes sorted rows as parts: Parquet objects that say whose they are and where which key is."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strandline.env import Deadline, Env
from strandline.location import Blob
from strandline.parts.files.encoding import choose_encoding
from strandline.parts.files.filters import FILTER_KEYS_MAX, make_filter
from strandline.parts.files.footer import MAGIC, Footer, Identity, identity_fields
from strandline.parts.files.verified import ChunkRecorder
from strandline.parts.hashes import Hashes, key_hashes
from strandline.parts.keys import KeyCodec, at_least, at_most, locate, separator
from strandline.parts.rows.adjacent import order_of
from strandline.parts.schema import DIFF, END, TIME, TableSchema, adds_once
from strandline.parts.statistics import StatisticsBuilder
from strandline.settings import Settings
from strandline.state.model import Part

__all__ = ["Identity", "write_part", "write_parts"]

_BUFFER_ROWS = 65_536
"""Rows that are gathered before they are encoded, in whole row groups."""

_QUANTILES = 256
_SAMPLES = 2_048
"""Keys kept while the number of rows is not known; a quantile is off by a `_SAMPLES`-th at most."""

_QUANTILE_BYTES = 64 * 1024
"""Of long keys fewer quantiles are kept: a footer stays quick to read."""

_QUANTILES_MIN = 8
"""But so many are kept of the longest keys that there are: a leaf of them can still be split."""

_SINK_BYTES = 1 << 20


def write_part(
    blob: Blob,
    key: str,
    data: Iterable[pa.RecordBatch] | pa.Table,
    schema: TableSchema,
    *,
    identity: Identity,
    settings: Settings,
    deadline: Deadline,
) -> Part:
    """Writes rows, sorted by full key, as one part, in bounded memory.

    `data` has the columns of `schema.arrow`, then `__time`, `__diff` and `__end` if it has them,
    and at least one row; ValueError if it is not sorted. The object appears whole or not at all.
    """
    timeout = deadline.remaining()  # before the first rows are waited for
    stream = _Rows(data)
    if stream.schema is None:
        raise ValueError("a part has at least one row")
    with blob.upload(key, timeout=timeout) as sink:
        writer = _OnePart(key, sink, stream.schema, schema, identity, settings)
        step = _buffer_rows(settings)
        try:
            while (rows := stream.take(step)).num_rows:
                writer.add(rows)
            part = writer.finish()
        finally:
            writer.let_go()
    return part


def write_parts(  # noqa: PLR0913  each says something else about the parts
    blob: Blob,
    new_key: Callable[[], str],
    data: pa.RecordBatchReader | Iterable[pa.RecordBatch] | pa.Table,
    schema: TableSchema,
    *,
    identity: Identity,
    settings: Settings,
    deadline: Deadline,
    cuts: Sequence[bytes] = (),
    cut_rows_min: int = 1,
    env: Env | None = None,
    threads: int = 1,
) -> list[Part]:
    """Writes one sorted stream of rows as parts that do not overlap; none for no rows.

    A part ends before each of the encoded row keys `cuts` (ascending) if it has `cut_rows_min`
    rows by then, and once it has `settings.part_rows_target` rows, but never between rows of equal
    full key. `data` as in `write_part`. Memory is bounded however long the stream is. With an
    `env`, parts are encoded on up to `threads` - 1 threads while further rows are gathered, unless
    they are too large to wait in memory. How long the rows take to come is not the storage's fault:
    each part has all that is left of `deadline` now.
    """
    each = deadline.left()

    def write(key: str, pieces: Iterable[pa.Table]) -> Part:
        return write_part(
            blob, key, pieces, schema, identity=identity, settings=settings, deadline=each.again()
        )

    cutter = _Cutter(_Rows(data), KeyCodec(schema), cuts, cut_rows_min, settings)
    if env is None or threads < 2:
        return [write(new_key(), pieces) for pieces in cutter.parts()]

    def gathered() -> Iterator[Part | tuple[str, list[pa.Table]]]:
        """Each part's rows; of a part that is too large to wait in memory, the part, written."""
        bytes_max = settings.sort_memory_bytes * 3 // 8
        for pieces in cutter.parts():
            key, rows, size = new_key(), [], 0
            for piece in pieces:
                rows.append(piece)
                size += piece.nbytes
                if size > bytes_max:
                    break
            yield (key, rows) if size <= bytes_max else write(key, chain(rows, pieces))

    # One part's rows are gathered while those before it are encoded.
    return list(
        env.stream(
            lambda item: item if isinstance(item, Part) else write(*item),
            gathered(),
            ahead=max(1, threads - 2),
        )
    )


def _buffer_rows(settings: Settings) -> int:
    group = settings.row_group_rows
    return max(1, _BUFFER_ROWS // group) * group


class _Rows:
    """A stream of batches or tables from which any number of rows can be taken."""

    def __init__(self, data: Iterable[Any] | pa.Table) -> None:
        self._items: Iterator[Any] = iter([data] if isinstance(data, pa.Table) else data)
        self._held: list[pa.Table] = []
        self._rows = 0
        self.schema: pa.Schema | None = None
        self.peek()

    def peek(self) -> bool:
        """Whether there is another row."""
        while not self._rows:
            item = next(self._items, None)
            if item is None:
                return False
            self._push(item)
        return True

    def take(self, rows: int) -> pa.Table:
        """The next `rows` rows, fewer only at the end."""
        while self._rows < rows:
            item = next(self._items, None)
            if item is None:
                break
            self._push(item)
        held = self._held[0] if len(self._held) == 1 else pa.concat_tables(self._held)
        rest = held.slice(rows)
        self._held, self._rows = [rest], rest.num_rows
        return held.slice(0, rows)

    def give_back(self, rows: pa.Table) -> None:
        """Puts rows that were taken before what comes next."""
        self._held.insert(0, rows)
        self._rows += rows.num_rows

    def _push(self, item: Any) -> None:
        table = pa.Table.from_batches([item]) if isinstance(item, pa.RecordBatch) else item
        if table.num_rows:
            if self.schema is None:
                self.schema = table.schema
                self._held = [table.slice(0, 0)]
            self._held.append(table)
            self._rows += table.num_rows


class _Cutter:
    """Gives the rows of one part after the other out of one stream."""

    def __init__(
        self,
        stream: _Rows,
        codec: KeyCodec,
        cuts: Sequence[bytes],
        cut_rows_min: int,
        settings: Settings,
    ) -> None:
        self._stream = stream
        self._codec = codec
        self._cuts = list(cuts)
        self._cut_rows_min = cut_rows_min
        self._target = settings.part_rows_target
        self._step = min(_buffer_rows(settings), self._target)

    def parts(self) -> Iterator[Iterator[pa.Table]]:
        """For each part its rows in pieces, to be exhausted before the next part is asked for."""
        while self._stream.peek():
            yield self._pieces()

    def _pieces(self) -> Iterator[pa.Table]:
        rows = 0
        last: pa.Table | None = None
        while self._stream.peek():
            left = self._target - rows
            piece = self._stream.take(min(self._step, left) if left > 0 else self._step)
            kept, full = piece, False
            if left <= 0 and last is not None:
                # Full: only what is equal to its last row still belongs to it.
                kept = piece.slice(0, self._equal_to(last, piece))
                full = kept.num_rows < piece.num_rows
            kept, cut = self._before_cut(kept, rows)
            if kept.num_rows < piece.num_rows:
                self._stream.give_back(piece.slice(kept.num_rows))
            if kept.num_rows:
                yield kept
                rows += kept.num_rows
                last = kept.slice(kept.num_rows - 1)
            if full or cut:
                return

    def _before_cut(self, piece: pa.Table, before: int) -> tuple[pa.Table, bool]:
        """The rows before the next cut, and whether there is one before the end of `piece`.

        `before` is the number of rows that the part has already.
        """
        while self._cuts:
            at = locate(piece, self._cuts[0], self._codec)
            if at == piece.num_rows:
                return piece, False
            self._cuts.pop(0)
            if before + at >= self._cut_rows_min:
                return piece.slice(0, at), True
        return piece, False

    def _equal_to(self, last: pa.Table, piece: pa.Table) -> int:
        """How many rows at the beginning of `piece` have the full key of the row `last`."""
        key = self._codec.encode_rows(last, [0])[0]
        return locate(piece, key + b"\0", self._codec)


class _OnePart:
    """Writes one part, row group by row group, and gathers what its footer and catalog say."""

    def __init__(
        self,
        key: str,
        sink: BinaryIO,
        arrow: pa.Schema,
        schema: TableSchema,
        identity: Identity,
        settings: Settings,
    ) -> None:
        self._key = key
        self._arrow = arrow
        self._schema = schema
        self._identity = identity
        self._group_rows = settings.row_group_rows
        self._codec = KeyCodec(schema)
        self._tail = _Tail(sink)
        # Unbuffered: so that no two chunks are written at once (see `ChunkRecorder`).
        self._sink = pa.PythonFile(self._tail, mode="w")
        self._writer: pq.ParquetWriter | None = None
        self._rows = 0
        self._distinct = True
        self._has_diff = False
        self._has_end = END in arrow.names
        if self._has_end and TIME not in arrow.names:
            raise ValueError("rows of history say when each was born")
        self._separators: list[bytes] = []
        self._lower = b""
        self._hashes: list[Hashes] = []
        self._samples = _Samples()
        self._last_row: pa.Table | None = None
        self._times: list[int] = []
        self._statistics = StatisticsBuilder(
            schema, settings.statistics_columns, texts_from_footer=True
        )

    def add(self, rows: pa.Table) -> None:
        """Encodes the next rows: whole row groups, except for the last ones of the part."""
        if self._writer is None:
            self._writer = choose_encoding(rows).writer(self._sink, self._arrow)
        self._separators += self._separated(rows)
        wanted = self._samples.wanted(self._rows, rows.num_rows)
        self._samples.add(wanted, self._codec.encode_rows(rows, [w - self._rows for w in wanted]))
        self._check_order(rows)
        self._statistics.add(rows)
        if TIME in self._arrow.names:
            found = pc.min_max(rows.column(TIME))
            self._times += [found["min"].as_py(), found["max"].as_py()]
        if DIFF in self._arrow.names and not self._has_diff:
            self._has_diff = not adds_once(rows)
        self._writer.write_table(rows, row_group_size=self._group_rows)
        self._rows += rows.num_rows
        if self._rows <= FILTER_KEYS_MAX:
            self._hashes.append(key_hashes(rows, self._schema.row_keys, self._schema))

    def finish(self) -> Part:
        """Writes the footer; what the catalog is to know of the part."""
        if self._writer is None or self._last_row is None:
            raise ValueError("a part has at least one row")
        upper = self._codec.encode_rows(self._last_row, [0])[0]
        footer = Footer(self._about(), self._separators, self._samples.quantiles(self._rows))
        self._writer.add_key_value_metadata(footer.to_metadata())
        # Pages are complete after each row group; everything from here on is the footer.
        pages_end = self._tail.size
        self._tail.hold()
        self._writer.close()
        metadata = pq.read_metadata(pa.BufferReader(self._tail.held))
        self._statistics.add_footer(metadata)
        tail = self._chunk_table(metadata, pages_end) + self._tail.held
        self._tail.release(tail)
        return Part(
            key=self._key,
            size=self._tail.size,
            rows=self._rows,
            lower=at_most(self._lower),
            upper=at_least(upper),
            time_min=min(self._times, default=None),
            time_max=max(self._times, default=None),
            has_diff=self._has_diff,
            has_end=self._has_end,
            distinct=self._distinct and not self._has_diff,
            footer_size=len(tail),
            footer_crc=zlib.crc32(tail),
            statistics=self._statistics.to_bytes(),
            schema_version=self._schema.version,
            filter=self._filter(),
        )

    def _filter(self) -> bytes:
        if self._rows > FILTER_KEYS_MAX:
            return b""
        return make_filter(np.concatenate(self._hashes))

    def _chunk_table(self, metadata: pq.FileMetaData, pages_end: int) -> bytes:
        """What goes before Parquet's footer: see `strandline.parts.files.verified`."""
        bounds = _chunk_bounds(metadata)
        if bounds[0] != len(MAGIC) or bounds[-1] != pages_end:
            raise RuntimeError(f"the part {self._key} has bytes that belong to no chunk")
        return self._tail.recorder.chunks(bounds).to_bytes()

    def let_go(self) -> None:
        """To be called in the end, also after an error: nothing is passed on any more."""
        # What Parquet's writer does when it is collected would go to a sink that is closed.
        self._tail.deaf = True
        if self._writer is not None:
            self._writer.close()

    def _about(self) -> dict[str, Any]:
        return {
            **identity_fields(self._identity),
            # With its key in it no two parts have the same footer, so that one put in the place
            # of another is noticed.
            "key": self._key,
            "kind": self._schema.kind,
            "schema_version": self._schema.version,
            "row_keys": self._schema.row_keys,
            "sort_keys": self._schema.sort_keys,
            "rows": self._rows,
            "group_rows": self._group_rows,
            "distinct": self._distinct and not self._has_diff,
            "time_min": min(self._times, default=None),
            "time_max": max(self._times, default=None),
            "history": self._has_end,
        }

    def _separated(self, rows: pa.Table) -> list[bytes]:
        """The separator of each row group that begins in `rows`: see `parts/files/footer.py`."""
        starts = range(0, rows.num_rows, self._group_rows)
        firsts = self._codec.encode_rows(rows, starts)
        lasts = self._codec.encode_rows(rows, [start - 1 for start in starts[1:]])
        if self._last_row is None:
            self._lower = firsts[0]
            lasts.insert(0, b"")
        else:
            lasts.insert(0, self._codec.encode_rows(self._last_row, [0])[0])
        return [separator(last, first) for last, first in zip(lasts, firsts, strict=True)]

    def _check_order(self, rows: pa.Table) -> None:
        keys = self._schema.keys
        seam = rows.slice(0, 1).select(keys)
        ordered, equal = order_of(rows, keys)
        if self._last_row is not None:
            over_seam = order_of(pa.concat_tables([self._last_row, seam]), keys)
            ordered, equal = ordered and over_seam[0], equal or over_seam[1]
        if not ordered:
            raise ValueError(f"rows for the part {self._key} are not sorted by {keys}")
        self._distinct = self._distinct and not equal
        self._last_row = rows.slice(rows.num_rows - 1).select(keys)


class _Samples:
    """Evenly spaced keys of a stream whose length is not known before its end."""

    def __init__(self) -> None:
        self._stride = 1
        self._kept: list[tuple[int, bytes]] = []

    def wanted(self, start: int, rows: int) -> Sequence[int]:
        """Which of the next rows, numbered from `start`, are to be kept."""
        # Before, not after: a stride that is about to grow would keep rows only to drop them.
        while (start + rows) // self._stride > _SAMPLES:
            self._stride *= 2
            self._kept = [sample for sample in self._kept if sample[0] % self._stride == 0]
        first = -(-start // self._stride) * self._stride
        return range(first, start + rows, self._stride)

    def add(self, positions: Sequence[int], keys: Sequence[bytes]) -> None:
        """Keeps the keys of the rows that were wanted."""
        self._kept += zip(positions, keys, strict=True)

    def quantiles(self, rows: int) -> list[tuple[bytes, int]]:
        """At most 256 keys with their positions, as evenly spaced as the samples allow."""
        count = min(_QUANTILES, len(self._kept))
        chosen = dict.fromkeys((i * rows // count + self._stride // 2) // self._stride
                               for i in range(count))  # fmt: skip
        picked = (self._kept[min(at, len(self._kept) - 1)] for at in chosen)
        found = list(dict.fromkeys((key, position) for position, key in picked))
        while (
            len(found) >= 2 * _QUANTILES_MIN and sum(len(key) for key, _ in found) > _QUANTILE_BYTES
        ):
            found = found[::2]
        return found


def _chunk_bounds(metadata: pq.FileMetaData) -> list[int]:
    """Where each chunk begins, and where the last one ends."""
    bounds: list[int] = []
    end = 0
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        for j in range(metadata.num_columns):
            column = group.column(j)
            start = column.data_page_offset
            if column.has_dictionary_page:
                start = min(start, column.dictionary_page_offset)
            if bounds and start != end:
                raise RuntimeError("there is a gap between two chunks")
            bounds.append(start)
            end = start + column.total_compressed_size
    return [*bounds, end]


class _Tail(io.RawIOBase):
    """Passes bytes on to a sink in large pieces, counts them, and can hold the last ones back."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._holding = False
        self.recorder = ChunkRecorder()
        self.size = 0
        self.deaf = False

    @property
    def held(self) -> bytes:
        """What was written since `hold`."""
        return b"".join(self._waiting)

    def hold(self) -> None:
        """From now on, keep what is written."""
        self._pass_on()
        self._holding = True

    def release(self, data: bytes) -> None:
        """Passes on `data` in place of what was held."""
        self.size += len(data) - self._waiting_bytes
        self._waiting, self._waiting_bytes = [data], len(data)
        self._pass_on()

    def write(self, data: Any) -> int:
        if not self.deaf:
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            self.size += len(data)
            self.recorder.wrote(data, self.size)
            if self._waiting_bytes >= _SINK_BYTES and not self._holding:
                self._pass_on()
        return len(data)

    def _pass_on(self) -> None:
        view = memoryview(b"".join(self._waiting))
        self._waiting, self._waiting_bytes = [], 0
        while view:  # a sink may take fewer bytes than it is given
            view = view[self._sink.write(view) :]

    def writable(self) -> bool:
        return True
