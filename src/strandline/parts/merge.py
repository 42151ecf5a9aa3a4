"""Makes one table of several sorted sources: what a reader sees, and what compaction keeps.

The same kernels serve reads, compaction in-process and compaction on Spark. Rows pass through as
whole columns; none is looked at by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from strandline.errors import Corruption
from strandline.parts.adjacent import equal_to_next
from strandline.parts.duck import Passage, run, stream
from strandline.parts.schema import DIFF, TIME, TableSchema
from strandline.parts.sort import batches_of, sort_stream, sort_table

__all__ = ["Source", "last_rows", "merge_compact", "merge_read", "prepare_batch"]

_IN_MEMORY_BYTES = 32 << 20
"""Sources in memory that are no larger are merged there, without a stream through DuckDB."""

_FEW_ROWS = 10_000


@dataclass
class Source:
    """Sorted rows with user columns, `__time` and `__diff` where they have them."""

    data: pa.Table | Iterator[pa.RecordBatch]
    time: int
    """The commit time of all rows; where there is a `__time`, that counts."""
    distinct: bool
    """No two rows have the same full key, and none is a marker."""


def prepare_batch(table: pa.Table, schema: TableSchema) -> pa.Table:
    """A user's batch as it is stored: sorted by full key; keyed: the last row of each full key."""
    table = sort_table(table, schema.keys)
    return _last_of_each(table, schema.keys) if schema.kind == "keyed" else table


def _last_of_each(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Of neighbours with equal keys, the last one."""
    if table.num_rows < 2:
        return table
    superseded = equal_to_next(table, keys)
    if not pc.any(superseded).as_py():
        return table
    return table.filter(_with_last(pc.invert(superseded), last=True))


def _with_last(mask: Any, *, last: bool) -> pa.ChunkedArray:
    """A mask over all rows but the last, made one over all rows."""
    chunks = mask.chunks if isinstance(mask, pa.ChunkedArray) else [mask]
    return pa.chunked_array([*chunks, pa.array([last])])


# --- reading


def merge_read(
    sources: Sequence[Source], schema: TableSchema, *, as_of: int, raw: bool = False
) -> pa.Table:
    """What is live at `as_of`, sorted by full key: the user columns that the sources have.

    rows: the diffs of equal rows at times up to `as_of` are added up; what is positive is repeated
    as often, what is negative is `Corruption`. For that the sources need all columns. keyed: the
    newest row of each full key, unless it is a marker; of rows of one time the one in the later
    source. `raw`: all updates up to `as_of` instead, with `__time` and `__diff`.
    """
    tables = [_until(source, as_of) for source in sources]
    kept = [(s, t) for s, t in zip(sources, tables, strict=True) if t.num_rows]
    names = _user_columns(tables, schema)
    if raw:
        stored = schema.stored(time=True, diff=True)
        united = _united([_with_both(t, s.time) for s, t in kept], [*names, TIME, DIFF], stored)
        return sort_table(united, schema.keys, then=[TIME])
    if len(kept) == 1 and kept[0][0].distinct:
        return kept[0][1].select(names)
    found = [t for _, t in kept]
    if schema.kind == "rows":
        if not any(DIFF in t.column_names for t in found):
            return sort_table(_united(found, names, schema.arrow), schema.keys)
        stored = schema.stored(diff=True)
        return _consolidated(_united(_with_diffs(found), [*names, DIFF], stored), schema.keys)
    timed = [_with_time(t, s.time) for s, t in kept]
    return _newest(timed, names, schema)


def _until(source: Source, as_of: int) -> pa.Table:
    """The rows at times up to `as_of`."""
    data = source.data
    table = data if isinstance(data, pa.Table) else pa.Table.from_batches(data)
    if TIME not in table.column_names:
        return table if source.time <= as_of else table.slice(0, 0)
    times = table.column(TIME)
    if table.num_rows and pc.max(times).as_py() > as_of:
        return table.filter(pc.less_equal(times, as_of))
    return table


def _user_columns(tables: Sequence[pa.Table], schema: TableSchema) -> list[str]:
    """The user columns that every source has, in the table's order."""
    names: list[str] = schema.arrow.names
    return [n for n in names if all(n in table.column_names for table in tables)]


def _united(tables: Sequence[pa.Table], names: Sequence[str], arrow: pa.Schema) -> pa.Table:
    wanted = pa.schema([arrow.field(name) for name in names])
    selected = [
        pa.Table.from_arrays([table.column(name) for name in names], schema=wanted)
        for table in tables
    ]
    return pa.concat_tables(selected) if selected else wanted.empty_table()


def _with_time(table: pa.Table, time: int) -> pa.Table:
    if TIME in table.column_names:
        return table
    return table.append_column(TIME, _constant(time, table.num_rows))


def _with_diff(table: pa.Table) -> pa.Table:
    if DIFF in table.column_names:
        return table
    return table.append_column(DIFF, _constant(1, table.num_rows))


def _with_diffs(tables: Sequence[pa.Table]) -> list[pa.Table]:
    return [_with_diff(table) for table in tables]


def _with_both(table: pa.Table, time: int) -> pa.Table:
    return _with_diff(_with_time(table, time))


def _constant(value: int, rows: int) -> pa.Array:
    return pa.array(np.full(rows, value, dtype=np.int64))


def _newest(tables: Sequence[pa.Table], names: list[str], schema: TableSchema) -> pa.Table:
    """The newest row of each full key that is no marker."""
    marked = any(DIFF in table.column_names for table in tables)
    columns = [*names, TIME, *([DIFF] if marked else [])]
    ready = _with_diffs(tables) if marked else tables
    united = _united(ready, columns, schema.stored(time=True, diff=True))
    # Sorting is stable: of one key at one time, the row of the later source comes last.
    newest = _last_of_each(sort_table(united, schema.keys, then=[TIME]), schema.keys)
    if marked:
        newest = newest.filter(pc.greater(newest.column(DIFF), 0))
    return newest.select(names)


def _consolidated(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The rows of a table with `__diff`, each as often as its diffs add up to, sorted by `keys`."""
    table = sort_table(table, keys)
    untouched, touched = _by_retraction(table, keys)
    rows = _repeated(untouched)
    if not touched.num_rows:
        return rows
    summed = _sums(touched)
    counts = summed.column(DIFF)
    if summed.num_rows and pc.min(counts).as_py() < 0:
        wrong = summed.filter(pc.less(counts, 0)).slice(0, 1).to_pylist()[0]
        raise Corruption(
            f"the row {wrong} was retracted more often than it was added; "
            "`strandline verify` finds out which commits disagree",
            object="history",
        )
    return sort_table(pa.concat_tables([rows, _repeated(summed)]), keys)


def _by_retraction(table: pa.Table, keys: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """The rows of a sorted table whose full keys no retraction has, and the others."""
    retracts = pc.less(table.column(DIFF), 0).to_numpy()
    if not retracts.any():
        return table, table.slice(0, 0)
    same = np.zeros(table.num_rows, dtype=bool)  # as the row before
    if table.num_rows > 1:
        same[1:] = _flags(equal_to_next(table, keys))
    starts = np.flatnonzero(~same)
    touched = np.repeat(
        np.logical_or.reduceat(retracts, starts), np.diff(starts, append=table.num_rows)
    )
    return table.filter(pa.array(~touched)), table.filter(pa.array(touched))


def _flags(mask: Any) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    if isinstance(mask, pa.ChunkedArray):
        return mask.to_numpy()  # type: ignore[no-any-return]
    return mask.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _sums(table: pa.Table) -> pa.Table:
    """Equal rows as one, with their diffs added up, without those that add up to nothing.

    Arrow is the faster one for few rows by far, and groups by everything that is not nested.
    """
    passage = Passage(table.schema)
    nested = any(types.is_nested(field.type) for field in table.schema)
    if nested or table.num_rows > _FEW_ROWS:
        return run(table, passage, _sum_query(passage, order=[]))
    inner = pa.Table.from_batches(map(passage.inwards, table.to_batches()), passage.schema)
    diff = passage.column(DIFF)
    others = [name for name in passage.names if name != diff]
    grouped = inner.group_by(others, use_threads=False).aggregate([(diff, "sum")])
    grouped = grouped.rename_columns([*others, diff]).select(passage.names)
    grouped = grouped.filter(pc.not_equal(grouped.column(diff), 0)).cast(passage.schema)
    return pa.Table.from_batches(map(passage.outwards, grouped.to_batches()), passage.arrow)


def _sum_query(passage: Passage, order: Sequence[str]) -> str:
    """The rows with their diffs added up, without those that add up to nothing."""
    diff = passage.column(DIFF)
    others = [name for name in passage.names if name != diff]
    clause = f" ORDER BY {', '.join(passage.columns(order))}" if order else ""
    return (
        f"SELECT {', '.join(others)}, CAST(sum({diff}) AS BIGINT) AS {diff} FROM source "  # noqa: S608
        f"GROUP BY {', '.join(others)} HAVING sum({diff}) <> 0{clause}"
    )


def _repeated(table: pa.Table) -> pa.Table:
    """Each row as often as its `__diff` says, and without that."""
    rows = table.drop_columns([DIFF])
    counts = table.column(DIFF)
    if pc.all(pc.equal(counts, 1)).as_py():
        return rows
    return rows.take(pa.array(np.repeat(np.arange(table.num_rows), counts.to_numpy())))


# --- compaction


def merge_compact(
    sources: Sequence[Source],
    schema: TableSchema,
    *,
    forward_to: int,
    whole: bool,
    memory_bytes: int,
    threads: int,
) -> pa.RecordBatchReader:
    """What has to be kept of the sources for every `as_of` from F = `forward_to` on.

    Sorted by full key, then `__time`; columns: the user's, `__time`, and `__diff` if a source has
    it. rows: times up to F become F; the diffs of equal rows of one time are added up, and what
    adds up to nothing vanishes; a row that was added several times comes several times. keyed:
    of the versions of a key at times up to F only the newest is kept, at its own time, because
    time is rank; if it is a marker, it goes only if `whole`: nothing older of its key can exist
    outside of the sources. Later versions are all kept. Memory is bounded if the sources are
    iterators.
    """
    marked = any(_has_diff(source) for source in sources)
    arrow = schema.stored(time=True, diff=marked)
    forward = forward_to if schema.kind == "rows" else None
    batches = [_updates(source, arrow, forward) for source in sources]
    if len(sources) == 1 and sources[0].distinct:
        return pa.RecordBatchReader.from_batches(arrow, batches[0])
    if schema.kind == "rows" and marked:
        return _summed(chain.from_iterable(batches), arrow, schema, memory_bytes, threads)
    # Of one key at one time the row of the later source comes last, as in reads.
    ordered = _ordered(sources, batches, arrow, schema, memory_bytes, threads)
    if schema.kind == "rows":
        return ordered
    kept = _kept_versions(ordered, schema.keys, forward_to, whole=whole)
    return pa.RecordBatchReader.from_batches(arrow, kept)


def _has_diff(source: Source) -> bool:
    """Whether a source has a `__diff`; looks at the first batch of an iterator, which stays."""
    if isinstance(source.data, pa.Table):
        return DIFF in source.data.column_names
    first = next(source.data, None)
    if first is None:
        source.data = iter(())
        return False
    source.data = chain([first], source.data)
    return DIFF in first.schema.names


def _updates(source: Source, arrow: pa.Schema, forward: int | None) -> Iterator[pa.RecordBatch]:
    """A source's rows with all columns of `arrow`, times before `forward` moved up to it."""
    for batch in batches_of(source.data):
        columns = []
        for field in arrow:
            if field.name in batch.schema.names:
                column = batch.column(field.name)
            else:
                column = _constant(source.time if field.name == TIME else 1, batch.num_rows)
            if field.name == TIME and forward is not None:
                column = pc.max_element_wise(column, pa.scalar(forward, pa.int64()))
            columns.append(column)
        yield pa.RecordBatch.from_arrays(columns, schema=arrow)


def _ordered(
    sources: Sequence[Source],
    batches: Sequence[Iterator[pa.RecordBatch]],
    arrow: pa.Schema,
    schema: TableSchema,
    memory_bytes: int,
    threads: int,
) -> pa.RecordBatchReader:
    """All rows by full key, then time, then source."""
    rows = chain.from_iterable(batches)
    sizes = [s.data.nbytes for s in sources if isinstance(s.data, pa.Table)]
    if len(sizes) == len(sources) and sum(sizes) <= min(_IN_MEMORY_BYTES, memory_bytes):
        table = pa.Table.from_batches(rows, arrow)
        return sort_table(table, schema.keys, then=[TIME]).to_reader()
    return sort_stream(
        rows,
        schema.keys,
        then=[TIME],
        stable=schema.kind != "rows",
        schema=arrow,
        memory_bytes=memory_bytes,
        threads=threads,
    )


def _summed(
    batches: Iterator[pa.RecordBatch],
    arrow: pa.Schema,
    schema: TableSchema,
    memory_bytes: int,
    threads: int,
) -> pa.RecordBatchReader:
    """Equal rows of one time with their diffs added up, each positive one as often as that."""
    passage = Passage(arrow)
    query = _sum_query(passage, order=[*schema.keys, TIME])
    summed = stream(batches, passage, query, memory_bytes=memory_bytes, threads=threads)

    def repeated() -> Iterator[pa.RecordBatch]:
        for batch in summed:
            counts = batch.column(len(arrow) - 1)
            if pc.max(counts).as_py() > 1:
                often = pc.max_element_wise(counts, 1).to_numpy()
                batch = batch.take(pa.array(np.repeat(np.arange(batch.num_rows), often)))  # noqa: PLW2901
                once = pc.min_element_wise(batch.column(len(arrow) - 1), 1)
                columns = [*batch.columns[:-1], once]
                batch = pa.RecordBatch.from_arrays(columns, schema=arrow)  # noqa: PLW2901
            yield batch

    return pa.RecordBatchReader.from_batches(arrow, repeated())


def last_rows(ordered: Iterable[pa.RecordBatch], keys: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Of neighbours with equal keys in a sorted stream, the last one."""
    return _without(ordered, lambda rows: equal_to_next(rows, keys), lambda _: False)


def _kept_versions(
    ordered: Iterable[pa.RecordBatch], keys: Sequence[str], forward_to: int, *, whole: bool
) -> Iterator[pa.RecordBatch]:
    """Drops versions that no read from `forward_to` on sees."""

    def gone(rows: pa.Table) -> Any:
        superseded = _superseded(rows, keys, forward_to)
        if not whole:
            return superseded
        return pc.or_(superseded, _old_markers(rows, forward_to).slice(0, rows.num_rows - 1))

    def last_gone(row: pa.Table) -> bool:
        return whole and bool(_old_markers(row, forward_to)[0].as_py())

    return _without(ordered, gone, last_gone)


def _without(
    ordered: Iterable[pa.RecordBatch],
    gone: Callable[[pa.Table], Any],
    last_gone: Callable[[pa.Table], bool],
) -> Iterator[pa.RecordBatch]:
    """A stream without some rows.

    `gone` tells for each row but the last of a table, from what follows it; so the last row of a
    batch is held back until the next batch is there. `last_gone` tells of the very last row.
    """
    held: pa.Table | None = None
    for batch in ordered:
        if not batch.num_rows:
            continue
        rows = pa.Table.from_batches([batch])
        if held is not None:
            rows = pa.concat_tables([held, rows]).combine_chunks()
        kept = rows.slice(0, rows.num_rows - 1)
        if kept.num_rows:
            yield from kept.filter(pc.invert(gone(rows))).to_batches()
        held = rows.slice(rows.num_rows - 1)
    if held is not None and not last_gone(held):
        yield from held.to_batches()


def _superseded(rows: pa.Table, keys: Sequence[str], forward_to: int) -> Any:
    """For each row but the last: whether the next is the same key's, and replaces it for good."""
    last = rows.num_rows - 1
    times = rows.column(TIME)
    here, following = times.slice(0, last), times.slice(1)
    # Both up to F: every read sees the later one. Both at one time: so does every read there is.
    for_good = pc.or_(pc.less_equal(following, forward_to), pc.equal(here, following))
    return pc.and_(equal_to_next(rows, keys), for_good)


def _old_markers(rows: pa.Table, forward_to: int) -> Any:
    if DIFF not in rows.column_names:
        return pa.chunked_array([np.zeros(rows.num_rows, dtype=bool)])
    marker = pc.less(rows.column(DIFF), 0)
    return pc.and_(marker, pc.less_equal(rows.column(TIME), forward_to))
