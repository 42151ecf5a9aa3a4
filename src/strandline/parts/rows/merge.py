"""Makes one table of several sorted sources: what a reader sees.

Rows pass through as whole columns; none is looked at by itself. What compaction keeps of several
sources is in `strandline.parts.rows.compact`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from strandline.errors import Corruption, UsageError
from strandline.parts.plain import int64s
from strandline.parts.rows.adjacent import equal_to_next
from strandline.parts.rows.duck import Passage, run
from strandline.parts.rows.sort import sort_table, sort_telling
from strandline.parts.schema import DIFF, END, TIME, TableSchema, adds_once

__all__ = [
    "Source",
    "constant",
    "exact",
    "last_rows",
    "merge_read",
    "newest_time",
    "prepare_batch",
    "sums",
    "total_of",
    "visible",
]

_FEW_ROWS = 10_000

_Rows = TypeVar("_Rows", pa.Table, pa.RecordBatch)


@dataclass
class Source:
    """Sorted rows with user columns, `__time`, `__diff` and `__end` where they have them."""

    data: pa.Table | Iterator[pa.RecordBatch]
    time: int
    """The commit time of all rows; where there is a `__time`, that counts."""
    distinct: bool
    """No two rows have the same full key, and none is a marker."""
    rows_from: int | None = None
    """Rows at times before this one do not count."""
    ours: frozenset[str] | None = None
    """Which columns of ours there are; None: the first rows tell."""


def prepare_batch(table: pa.Table, schema: TableSchema) -> tuple[pa.Table, bool]:
    """A user's batch as it is stored: sorted by full key; keyed: the last row of each full key.

    And whether no two of these rows have the same full key.
    """
    table, tied = sort_telling(table, schema.keys)
    if tied and schema.kind == "keyed":
        return _last_of_each(table, schema.keys), True
    return table, not tied


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
    source. Rows of history are live from their time to before their end. `raw`: all updates up to
    `as_of` instead, with `__time` and `__diff`.
    """
    if raw:
        return _raw(sources, schema, as_of)
    tables = [visible(source, as_of) for source in sources]
    kept = [(s, t) for s, t in zip(sources, tables, strict=True) if t.num_rows]
    names = _user_columns(tables, schema)
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


def newest_time(source: Source, as_of: int) -> int:
    """The time of the newest update up to `as_of`; -1: there is none, or it is history."""
    table = _until(source, as_of)
    if not table.num_rows or END in table.column_names:
        return -1
    newest: int = pc.max(table.column(TIME)).as_py() if TIME in table.column_names else source.time
    return newest


def visible(source: Source, as_of: int) -> pa.Table:
    """The updates at times up to `as_of` that count; of history, the rows that are live then."""
    table = _until(source, as_of)
    if END not in table.column_names:
        return table
    return table.filter(pc.greater(table.column(END), as_of)).drop_columns([END])


def _until(source: Source, as_of: int) -> pa.Table:
    """The rows at times up to `as_of` that count."""
    data = source.data
    table = data if isinstance(data, pa.Table) else pa.Table.from_batches(data)
    if TIME not in table.column_names:
        return table if source.time <= as_of else table.slice(0, 0)
    times = table.column(TIME)
    if table.num_rows and pc.max(times).as_py() > as_of:
        table = table.filter(pc.less_equal(times, as_of))
        times = table.column(TIME)
    if source.rows_from is not None:
        table = table.filter(pc.greater_equal(times, source.rows_from))
    return table


def _raw(sources: Sequence[Source], schema: TableSchema, as_of: int) -> pa.Table:
    """All updates up to `as_of`; the end of a row of history is one, too.

    In a keyed table the next version of its key ends a row, and a marker that may be gone by now:
    that is put back where there is no update of the key at that time.
    """
    tables = [_until(source, as_of) for source in sources]
    names = [*_user_columns(tables, schema), TIME, DIFF]
    stored = schema.stored(time=True, diff=True)
    updates = [_with_both(t, s.time) for s, t in zip(sources, tables, strict=True)]
    united = _united(updates, names, stored)
    ends = [_ends(table, schema, as_of) for table in tables if END in table.column_names]
    if not any(end.num_rows for end in ends):
        return sort_table(united, schema.keys, then=[TIME])
    if schema.kind == "rows":
        united = pa.concat_tables([united, _united(ends, names, stored)])
        return sort_table(united, schema.keys, then=[TIME])
    # Sorting is stable: what is no end comes after it, and makes it needless.
    flags = [_flagged(_united(ends, names, stored), 1), _flagged(united, 0)]
    both = sort_table(pa.concat_tables(flags), schema.keys, then=[TIME])
    again = np.append(_flags(equal_to_next(both, [*schema.keys, TIME])), False)
    needless = again & (both.column(_END_OF_ROW).to_numpy() > 0)
    return both.filter(pa.array(~needless)).drop_columns([_END_OF_ROW])


_END_OF_ROW = "__end_of_row"


def _flagged(table: pa.Table, flag: int) -> pa.Table:
    return table.append_column(_END_OF_ROW, constant(flag, table.num_rows))


def _ends(history: pa.Table, schema: TableSchema, as_of: int) -> pa.Table:
    """The ends up to `as_of` of rows of history, as retractions or markers."""
    ended = history.filter(pc.less_equal(history.column(END), as_of))
    keys = set(schema.keys)
    columns = {
        name: ended.column(name)
        if schema.kind == "rows" or name in keys
        else pa.nulls(ended.num_rows, schema.arrow.field(name).type)
        for name in ended.column_names
        if name not in {TIME, END}
    }
    columns[TIME] = ended.column(END)
    columns[DIFF] = constant(-1, ended.num_rows)
    return pa.table(columns)


def _user_columns(tables: Sequence[pa.Table], schema: TableSchema) -> list[str]:
    """The user columns that every source has, in the table's order."""
    every: list[str] = schema.arrow.names
    names = set(every).intersection(*(table.column_names for table in tables))
    return [name for name in every if name in names]


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
    return table.append_column(TIME, constant(time, table.num_rows))


def _with_diff(table: pa.Table) -> pa.Table:
    if DIFF in table.column_names:
        return table
    return table.append_column(DIFF, constant(1, table.num_rows))


def _with_diffs(tables: Sequence[pa.Table]) -> list[pa.Table]:
    return [_with_diff(table) for table in tables]


def _with_both(table: pa.Table, time: int) -> pa.Table:
    return _with_diff(_with_time(table, time))


def constant(value: int, rows: int) -> pa.Array:
    """A column of 64-bit integers that are all the same."""
    return int64s(np.full(rows, value, dtype=np.int64))


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
    summed = sums(touched)
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
        return mask.to_numpy()  # type: ignore[no-any-return]  # pyarrow has no types
    return mask.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]  # pyarrow has no types


def sums(table: pa.Table) -> pa.Table:
    """Equal rows as one, with their diffs added up, without those that add up to nothing.

    Arrow is the faster one for few rows by far, and groups by everything that is not nested; but
    its sums wrap. UsageError as `exact`.
    """
    passage = Passage(table.schema)
    nested = any(types.is_nested(field.type) for field in table.schema)
    if nested or table.num_rows > _FEW_ROWS or _may_wrap(table.column(DIFF)):
        return exact(run(table, passage, _sum_query(passage)))
    inner = pa.Table.from_batches(map(passage.inwards, table.to_batches()), passage.schema)
    diff = passage.column(DIFF)
    others = [name for name in passage.names if name != diff]
    grouped = inner.group_by(others, use_threads=False).aggregate([(diff, "sum")])
    grouped = grouped.rename_columns([*others, diff]).select(passage.names)
    grouped = grouped.filter(pc.not_equal(grouped.column(diff), 0)).cast(passage.schema)
    return pa.Table.from_batches(map(passage.outwards, grouped.to_batches()), passage.arrow)


def _may_wrap(diffs: pa.ChunkedArray) -> bool:
    """Whether a sum of some of the diffs may be more than 64 bits hold."""
    limits = pc.min_max(diffs)
    least, most = limits["min"].as_py() or 0, limits["max"].as_py() or 0
    return max(-least, most) * len(diffs) >= 1 << 63


def total_of(diff: str) -> str:
    """In SQL the sum of a column of diffs; null where 64 bits do not hold it: see `exact`."""
    # DuckDB adds up in 128 bits.
    return f"TRY_CAST(sum({diff}) AS BIGINT)"


def exact(rows: _Rows) -> _Rows:
    """The rows, if every `total_of` them is known; UsageError that names one that is not."""
    totals = rows.column(DIFF)
    if totals.null_count:
        row = rows.filter(pc.is_null(totals)).slice(0, 1).drop_columns([DIFF]).to_pylist()[0]
        raise UsageError(
            f"the diffs of the row {row} add up to less than -2**63 or more than 2**63 - 1, which "
            "cannot be told; nothing was changed: append diffs that are not so large, or read as "
            "of a time at which they balance"
        )
    return rows


def _sum_query(passage: Passage) -> str:
    """The rows with their diffs added up, without those that add up to nothing."""
    diff = passage.column(DIFF)
    others = [name for name in passage.names if name != diff]
    return (
        f"SELECT {', '.join(others)}, {total_of(diff)} AS {diff} FROM source "  # noqa: S608  names of ours
        f"GROUP BY {', '.join(others)} HAVING sum({diff}) <> 0"
    )


def _repeated(table: pa.Table) -> pa.Table:
    """Each row as often as its `__diff` says, and without that."""
    rows = table.drop_columns([DIFF])
    if adds_once(table):
        return rows
    counts = table.column(DIFF).to_numpy()
    return rows.take(pa.array(np.repeat(np.arange(table.num_rows), counts)))


def last_rows(ordered: Iterable[pa.RecordBatch], keys: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Of neighbours with equal keys in a sorted stream, the last one."""
    held: pa.Table | None = None
    for batch in ordered:
        if not batch.num_rows:
            continue
        rows = pa.Table.from_batches([batch])
        if held is not None:
            # What follows the last row of a batch tells if it stays, so that one is held back.
            rows = pa.concat_tables([held, rows]).combine_chunks()
        kept = rows.slice(0, rows.num_rows - 1)
        if kept.num_rows:
            yield from kept.filter(pc.invert(equal_to_next(rows, keys))).to_batches()
        held = rows.slice(rows.num_rows - 1)
    if held is not None:
        yield from held.to_batches()
