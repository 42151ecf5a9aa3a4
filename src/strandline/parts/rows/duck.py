"""Arrow rows through DuckDB and back, unchanged to the bit.

DuckDB has types of its own: its floats compare -0.0 and 0.0 as equal, its timestamps have other
limits than Arrow's, its names know no case. Columns therefore pass through under names of ours
(`c0`, `c1`, …), and numbers that are not integers as the integers that are their bits.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types

from strandline.env import away_from_signals
from strandline.errors import LocationError

if TYPE_CHECKING:
    import duckdb

__all__ = ["Passage", "run", "stream"]

_BATCH_ROWS = 131_072
_MIB = 1 << 20
_THREAD_MIB = 48
"""Less than this for each thread makes sorting fail instead of spilling."""


class Passage:
    """How rows of one schema pass through DuckDB."""

    def __init__(self, arrow: pa.Schema) -> None:
        self.arrow = arrow
        self.names = [f"c{i}" for i in range(len(arrow))]
        self._inner = [_bits(field.type) for field in arrow]
        self.schema = pa.schema(list(zip(self.names, self._inner, strict=True)))

    def column(self, name: str) -> str:
        """DuckDB's name for a column."""
        at: int = self.arrow.get_field_index(name)
        return self.names[at]

    def columns(self, names: Iterable[str]) -> list[str]:
        """DuckDB's names for columns."""
        return [self.column(name) for name in names]

    def inwards(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch as DuckDB gets it; nothing is copied."""
        columns = [
            column if column.type == inner else column.view(inner)
            for column, inner in zip(batch.columns, self._inner, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def outwards(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch that DuckDB gave, as it was."""
        columns = [
            _as_type(column, inner, field.type)
            for column, inner, field in zip(batch.columns, self._inner, self.arrow, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)


def _bits(kind: pa.DataType) -> pa.DataType:
    if types.is_timestamp(kind) or types.is_time64(kind) or types.is_float64(kind):
        return pa.int64()
    if types.is_date32(kind) or types.is_float32(kind):
        return pa.int32()
    return kind


def _as_type(column: pa.Array, inner: pa.DataType, kind: pa.DataType) -> pa.Array:
    if column.type != inner:
        column = column.cast(inner)
    return column if inner == kind else column.view(kind)


def stream(
    batches: Iterable[pa.RecordBatch],
    passage: Passage,
    query: str,
    *,
    memory_bytes: int,
    threads: int,
) -> pa.RecordBatchReader:
    """What `query` gives for the rows of `batches`, which it calls `source`.

    Input and output are streams of any length; DuckDB keeps at most about `memory_bytes` and the
    rest in a temporary directory, which is gone when the stream has ended or is let go of. The
    columns of the result are those of the input. What reading `batches` raises is raised.
    """
    rows = _streamed(batches, passage, query, memory_bytes, threads)
    return pa.RecordBatchReader.from_batches(passage.arrow, rows)


def _streamed(
    batches: Iterable[pa.RecordBatch],
    passage: Passage,
    query: str,
    memory_bytes: int,
    threads: int,
) -> Iterator[pa.RecordBatch]:
    import duckdb

    failures: list[Exception] = []
    source = pa.RecordBatchReader.from_batches(passage.schema, _watched(batches, passage, failures))
    with tempfile.TemporaryDirectory(prefix="strandline-sort-") as directory:
        connection = duckdb.connect(
            ":memory:",
            config={
                "threads": threads,
                "memory_limit": f"{max(memory_bytes // _MIB, _THREAD_MIB * threads)}MiB",
                "temp_directory": directory,
                # Rows come out ordered by what the query says, and by nothing else.
                "preserve_insertion_order": False,
            },
        )
        try:
            # Where it takes a session for an interactive one, it would write to standard output.
            connection.execute("SET enable_progress_bar = false")
            connection.register("source", source)

            def begun() -> pa.RecordBatchReader:
                return connection.sql(query).to_arrow_reader(_BATCH_ROWS)

            # SUBTLE: on the main thread DuckDB looks for Ctrl-C itself. It then waits for its other
            # threads with Python's lock in hand, and they for that lock, to call `source`.
            reader = away_from_signals(begun, connection.interrupt)
            following = partial(next, reader, None)
            while (batch := away_from_signals(following, connection.interrupt)) is not None:
                yield passage.outwards(batch)
        # Arrow's reader makes an OSError of what DuckDB says.
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            if failures:
                raise failures[0] from None
            raise LocationError(
                f"sorting failed ({error}); it needs room in {tempfile.gettempdir()}, which TMPDIR "
                "moves elsewhere",
                may_have_happened=False,
            ) from error
        finally:
            connection.close()


def _watched(
    batches: Iterable[pa.RecordBatch], passage: Passage, failures: list[Exception]
) -> Iterator[pa.RecordBatch]:
    """The batches as DuckDB gets them; remembers what went wrong, which DuckDB makes a text of."""
    try:
        for batch in batches:
            yield passage.inwards(batch)
    except Exception as error:
        failures.append(error)
        raise


_connections: dict[int, duckdb.DuckDBPyConnection] = {}


def run(table: pa.Table, passage: Passage, query: str) -> pa.Table:
    """The same for a table in memory, at once."""
    inner = [passage.inwards(batch) for batch in table.to_batches()]
    cursor = _connection().cursor()
    try:
        cursor.register("source", pa.Table.from_batches(inner, passage.schema))
        batches: Sequence[Any] = cursor.sql(query).to_arrow_table().to_batches()
        return pa.Table.from_batches([passage.outwards(b) for b in batches], passage.arrow)
    except RuntimeError as error:
        if str(error) == "Query interrupted":  # DuckDB's word for Ctrl-C
            raise KeyboardInterrupt from None
        raise
    finally:
        cursor.close()


def _connection() -> duckdb.DuckDBPyConnection:
    """This process's connection: opening one takes 10 ms, and none survives a fork."""
    import duckdb

    process = os.getpid()
    found = _connections.get(process)
    if found is None:
        found = _connections.setdefault(process, duckdb.connect(":memory:"))
    return found
