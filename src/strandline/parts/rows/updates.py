"""What changed in a span of times, made of stored updates: net rows, or what happened to keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.parts.plain import bools, int64, int64s, numbers_of
from strandline.parts.rows.adjacent import equal_to_next
from strandline.parts.rows.merge import Source, constant, merge_read, sums
from strandline.parts.rows.sort import sort_table
from strandline.parts.schema import DIFF, END, TIME, TableSchema

__all__ = ["OLD", "OP", "first_of_each", "happened", "netted", "updates_in"]

OP = "__op"
"""Of a change in a keyed table: "upsert" or "delete"."""

OLD = "__old"
"""Of a change in a keyed table: the row before it, null if there was none."""

_OPS = pa.Array.from_buffers(
    pa.string(),
    2,
    [None, pa.py_buffer(np.array([0, 6, 12], dtype=np.int32)), pa.py_buffer(b"upsertdelete")],
)

Select = Callable[[pa.Table], pa.Table]


def updates_in(
    sources: Sequence[Source], schema: TableSchema, *, after: int, through: int
) -> pa.Table:
    """All updates of the sources at times in (`after`, `through`], at their times.

    Sorted by full key, then time; with `__time` and `__diff`. The end of a row of history is an
    update, too: a retraction (rows), or a marker where its key got no new row (keyed).
    """
    narrowed = [
        Source(_since(source, after), source.time, source.distinct, source.rows_from)
        for source in sources
        if TIME in _columns(source) or source.time > after
    ]
    if not narrowed:
        return schema.stored(time=True, diff=True).empty_table()
    found = merge_read(narrowed, schema, as_of=through, raw=True)
    return found.filter(pc.greater(found.column(TIME), int64(after)))


def _columns(source: Source) -> list[str]:
    table: Any = source.data
    return table.column_names  # type: ignore[no-any-return]  # pyarrow has no types


def _since(source: Source, after: int) -> pa.Table:
    """Without the rows whose updates are all at times up to `after`."""
    table: Any = source.data
    if TIME not in table.column_names:
        return table
    last = table.column(END if END in table.column_names else TIME)
    return table.filter(pc.greater(last, int64(after)))


# --- tables of rows


def netted(updates: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Equal rows of one time as one with their diffs added up; what adds up to nothing is gone.

    `updates` are sorted by `keys`, then time. Of one key and time retractions come first.
    """
    same = _like_next(updates, [*keys, TIME])
    if not same.any():
        return updates
    touched = same.copy()  # has a neighbour of its key and time
    touched[1:] |= same[:-1]
    alone = updates.filter(bools(~touched))
    summed = sums(updates.filter(bools(touched))).select(updates.column_names)
    return sort_table(pa.concat_tables([alone, summed]), keys, then=[TIME, DIFF])


def _like_next(table: pa.Table, names: Sequence[str]) -> Any:
    """For each row, whether the next has the same values."""
    same = np.zeros(table.num_rows, dtype=bool)
    if table.num_rows > 1:
        equal = equal_to_next(table, names)
        if pc.any(equal).as_py():
            same[:-1] = np.asarray(equal)
    return same


def _numbers(table: pa.Table, name: str) -> Any:
    column = table.column(name)
    return numbers_of(column.chunk(0) if column.num_chunks == 1 else column.combine_chunks())


# --- keyed tables


def first_of_each(updates: pa.Table, keys: Sequence[str]) -> Any:
    """For each row of a table sorted by `keys`, whether it is the first of its key."""
    first = np.ones(updates.num_rows, dtype=bool)
    first[1:] = ~_like_next(updates, keys)[:-1]
    return first


def happened(
    updates: pa.Table,
    before: pa.Table | None,
    schema: TableSchema,
    *,
    after: int,
    select: Select | None,
    with_old: bool,
) -> pa.Table:
    """What `updates` did to their keys, each against the row that there was just before it.

    `updates` are sorted by full key, then time. `before`: the rows of those keys as of `after`
    where it matters what was there, None where it does not matter anywhere. A row that `select`
    does not give counts as none. Columns: those of `updates` but `__diff`, then `__old` (a struct
    of the user's columns among them, with `with_old`) and `__op`. Of what is deleted only the keys
    are given.
    """
    names = [name for name in updates.column_names if name not in {TIME, DIFF}]
    line = _last_at_each_time(updates, schema.keys)
    if before is not None and before.num_rows:
        old = _as_updates(before.select(names), after).select(line.column_names).cast(line.schema)
        line = sort_table(pa.concat_tables([old, line]), schema.keys, then=[TIME])
    there = _numbers(line, DIFF) > 0
    if select is not None:
        there &= _matching(line, select)
    was_there = np.zeros(line.num_rows, dtype=bool)
    was_there[1:] = _like_next(line, schema.keys)[:-1] & there[:-1]
    told = (_numbers(line, TIME) > after) & (there | was_there)
    places = np.flatnonzero(told)
    rows = line if len(places) == line.num_rows else line.take(int64s(places))
    gone = ~there[places]
    keys, some_gone = set(schema.keys), gone.any()
    columns = {
        name: _unless(gone, rows.column(name))
        if some_gone and name not in keys
        else rows.column(name)
        for name in names
    }
    columns[TIME] = rows.column(TIME)
    if with_old:
        columns[OLD] = _old(line.select(names), places, was_there[places])
    columns[OP] = _OPS.take(int64s(gone.astype(np.int64)))
    return pa.Table.from_arrays(list(columns.values()), names=list(columns))


def _last_at_each_time(updates: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Of the updates of one key at one time the one that counts, which is the last."""
    superseded = _like_next(updates, [*keys, TIME])
    return updates.filter(bools(~superseded)) if superseded.any() else updates


def _as_updates(rows: pa.Table, time: int) -> pa.Table:
    count = rows.num_rows
    return rows.append_column(TIME, constant(time, count)).append_column(DIFF, constant(1, count))


_ROW = "__row"


def _matching(table: pa.Table, select: Select) -> Any:
    """For each row whether `select` gives it."""
    numbered = table.append_column(_ROW, int64s(np.arange(table.num_rows, dtype=np.int64)))
    mask = np.zeros(table.num_rows, dtype=bool)
    mask[_numbers(select(numbered), _ROW)] = True
    return mask


def _unless(gone: Any, column: Any) -> Any:
    """A column that is no key, with null in the changes that are deletes."""
    # By indices, because conditional functions of Arrow do not take every nested type.
    return column.take(int64s(np.arange(len(column), dtype=np.int64), valid=~gone))


def _old(line: pa.Table, places: Any, was_there: Any) -> Any:
    """The rows before those at `places`, as structs."""
    indices = int64s(np.maximum(places - 1, 0), valid=was_there)
    columns = [line.column(name).combine_chunks().take(indices) for name in line.column_names]
    fields = [
        pa.field(name, column.type) for name, column in zip(line.column_names, columns, strict=True)
    ]
    return pa.StructArray.from_arrays(columns, fields=fields, mask=bools(~was_there))
