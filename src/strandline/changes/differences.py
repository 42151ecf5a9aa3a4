"""Reads what changed in one table in a span of times: in bounded memory, by key.

The difference of snapshots. In a table of `rows`: every row with how often it was added or
retracted at each time, net. In a `keyed` table: what each commit did to each key, an upsert or a
delete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.changes.spans import Asked, Span, Spans, too_old
from strandline.engine.conditions import Condition, compile_where
from strandline.env import Deadline
from strandline.errors import AsOfTooOld, UnknownTable, UsageError
from strandline.parts.keys import KeyCodec, KeyRange, clip
from strandline.parts.plain import bools, int64s, numbers_of
from strandline.parts.rows.merge import Source
from strandline.parts.rows.updates import OLD, OP, first_of_each, happened, netted, updates_in
from strandline.parts.schema import DIFF, TIME, TableSchema, own_columns
from strandline.parts.typed import typed
from strandline.read.pieces import cuts
from strandline.read.reading import Reading, united_tables
from strandline.read.want import Want, columns_of, implied_by, intervals_of
from strandline.state.model import Interval, Part, TableVersion
from strandline.state.updates import ChangeTask
from strandline.txn.handle import Handle
from strandline.txn.view import View, view_at

__all__ = ["Difference", "Wanted", "changes_wanted", "runs_of", "with_keys_of"]

_TASK_ROWS = 262_144
"""Updates that are read at once, about: as in reads, few enough to hold several."""

_LOOKUPS_MAX = 1_000
"""Keys that are looked up one by one; of more, neighbours are looked up together."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which changes of a table are wanted, and what of them."""

    version: TableVersion
    columns: tuple[str, ...]
    """User columns, in order; in a keyed table all keys are among them."""
    condition: Condition | None = None
    with_old: bool = False

    @property
    def schema(self) -> TableSchema:
        """The table's schema."""
        return typed(self.version)[0]

    @property
    def arrow(self) -> pa.Schema:
        """The schema of what comes out."""
        schema, keyed = self.schema, self.schema.kind == "keyed"
        user, keys = [], set(schema.keys)
        for name in self.columns:
            field = schema.arrow.field(name).remove_metadata()
            user.append(field.with_nullable(field.nullable or (keyed and name not in keys)))
        time = pa.field(TIME, pa.int64(), nullable=False)
        if not keyed:
            return pa.schema([*user, time, pa.field(DIFF, pa.int64(), nullable=False)])
        plain = [pa.field(field.name, field.type) for field in user]
        old = [pa.field(OLD, pa.struct(plain))] if self.with_old else []
        return pa.schema([*user, time, *old, pa.field(OP, pa.string(), nullable=False)])

    @property
    def asked(self) -> Asked:
        """What is to be planned for."""
        schema, codec = typed(self.version)
        found = intervals_of(None, implied_by(self.condition, schema), codec)
        return Asked(self.version.table, None if found is None else tuple(found))

    def as_changes(self, rows: pa.Table, time: int) -> pa.Table:
        """Rows of a snapshot as changes that made them, at its time."""
        count = rows.num_rows
        columns: list[Any] = [rows.column(name) for name in self.columns]
        columns.append(np.full(count, time, dtype=np.int64))
        arrow = self.arrow
        if self.schema.kind == "keyed":
            if self.with_old:
                columns.append(pa.nulls(count, arrow.field(OLD).type))
            columns.append(pa.repeat("upsert", count))
        else:
            columns.append(np.ones(count, dtype=np.int64))
        return pa.Table.from_arrays([_array(column) for column in columns], schema=arrow)


def _array(column: Any) -> Any:
    return int64s(column) if isinstance(column, np.ndarray) else column


def changes_wanted(
    version: TableVersion, columns: Sequence[str] | None, where: Any, *, with_old: bool
) -> Wanted:
    """Which changes of a table a user's arguments ask for; `UsageError` says what is wrong."""
    schema, name = typed(version)[0], version.name
    chosen = tuple(schema.arrow.names) if columns is None else columns_of(version, columns)
    if schema.kind == "keyed":
        missing = set(schema.keys).difference(chosen)
        chosen = (*(key for key in schema.keys if key in missing), *chosen)
    elif with_old:
        raise UsageError(
            f"table {name!r} is of kind 'rows', whose changes are whole rows: an "
            "old row comes with __diff -1; leave with_old out"
        )
    return Wanted(version, chosen, compile_where(where, schema, name), with_old)


class Difference:
    """The changes of one table in a span of times. Its methods may be called from several threads.

    Raises `BlobMissing` where a part is gone because the table was compacted since it was planned.
    """

    def __init__(
        self, handle: Handle, wanted: Wanted, spans: Spans, span: Span, deadline: Deadline
    ) -> None:
        self._handle = handle
        self._wanted = wanted
        self._schema, self._codec = typed(wanted.version)
        self._look = spans.look
        self._after = spans.after
        self._through = spans.through
        self._span = span
        self._deadline = deadline
        self._columns = self._needed()

    def tables(self) -> Iterator[pa.Table]:
        """The changes, sorted by full key and then time over all tables, in bounded memory."""
        tasks = (small for task in self._span.tasks for small in self._divided(task))
        store = self._handle.store
        ahead = store.settings.threads
        yield from store.env.stream(self._read, tasks, ahead=ahead)

    def _needed(self) -> list[str]:
        """The user columns that are read."""
        names: list[str] = self._schema.arrow.names
        if self._schema.kind == "rows":
            return names  # what is equal in all of them is one row
        condition = self._wanted.condition
        looked_at = condition.columns if condition is not None else ()
        needed = {*self._wanted.columns, *self._schema.keys, *looked_at}
        return [name for name in names if name in needed]

    def _by(self) -> Deadline:
        """Whoever takes the changes may take any time: each task has the whole of the deadline."""
        return self._deadline.again()

    # --- tasks

    def _divided(self, task: ChangeTask) -> Iterator[ChangeTask]:
        """The task in several, by keys, of which each has few enough updates to be held."""
        steps: list[tuple[bytes, int]] = []
        sized = list(_parts_of(task))
        rows = sum(part.rows for part, _, _, _ in sized)
        rows += sum(e.batch.rows for e in task.entries if e.batch.inline)
        if rows <= _TASK_ROWS:
            yield task
            return
        for part, place, _, _ in sized:
            opened = self._handle.store.reader.opened(part, self._by())
            group = opened.rows_of([0])
            for wanted in _inside(task.intervals, place):
                steps += [(opened.separators[g], group) for g in opened.groups_in(wanted)]
        steps += [(e.batch.lower, e.batch.rows) for e in task.entries if e.batch.inline]
        bounds: list[bytes | None] = [b"", *cuts(steps, _TASK_ROWS), None]
        for lower, upper in pairwise(bounds):
            inside = _inside(task.intervals, Interval(lower or b"", upper))
            if inside:
                yield replace(task, intervals=inside)

    def _read(self, task: ChangeTask) -> pa.Table:
        sources = [*self._from_parts(task), *self._from_inline(task)]
        updates = updates_in(sources, self._schema, after=self._after, through=self._through)
        arrow = self._wanted.arrow
        if not updates.num_rows:
            return arrow.empty_table()
        made = self._netted if self._schema.kind == "rows" else self._happened
        changes = made(updates)
        columns = [changes.column(name) for name in arrow.names]
        return pa.Table.from_arrays(columns, schema=arrow)

    # --- reading

    def _from_parts(self, task: ChangeTask) -> Iterator[Source]:
        for part, place, time, rows_from in _parts_of(task):
            inside = _inside(task.intervals, place)
            if not inside:
                continue
            data = self._handle.store.reader.read(
                part,
                self._schema,
                columns=[*self._columns, *own_columns(part)],
                intervals=inside,
                deadline=self._by(),
            )
            yield Source(data, time, part.distinct, rows_from)

    def _from_inline(self, task: ChangeTask) -> Iterator[Source]:
        for entry in task.entries:
            if not entry.batch.inline:
                continue
            data = self._handle.overlay.rows(entry, self._schema)
            place = entry.place
            if _inside(task.intervals, place) != (place,):
                data = clip(data, task.intervals, self._codec)
            if data.num_rows:
                names = [*self._columns, *([DIFF] if entry.batch.has_diff else [])]
                yield Source(data.select(names), entry.time, entry.batch.distinct)

    def _netted(self, updates: pa.Table) -> pa.Table:
        condition = self._wanted.condition
        if condition is not None:
            # Before the diffs are added up: equal rows both match, or neither does.
            updates = condition.select(updates)
        return netted(updates, self._schema.keys)

    def _happened(self, updates: pa.Table) -> pa.Table:
        wanted = self._wanted
        condition = wanted.condition
        changes = happened(
            updates,
            self._before(updates),
            self._schema,
            after=self._after,
            select=None if condition is None else condition.select,
            with_old=wanted.with_old,
        )
        if wanted.with_old:
            old = changes.column(OLD).combine_chunks()
            changes = changes.drop_columns([OLD]).append_column(OLD, self._of_columns(old))
        return changes

    def _of_columns(self, old: Any) -> Any:
        """Of the old rows only the columns that are wanted."""
        kind = self._wanted.arrow.field(OLD).type
        chunks = old.chunks if isinstance(old, pa.ChunkedArray) else [old]
        narrowed = []
        for chunk in chunks:
            columns = [chunk.field(name) for name in self._wanted.columns]
            narrowed.append(
                pa.StructArray.from_arrays(columns, fields=list(kind), mask=chunk.is_null())
            )
        return pa.chunked_array(narrowed, kind)

    def _before(self, updates: pa.Table) -> pa.Table | None:
        """The rows as of `after` of those keys of which it matters what was there."""
        keys = self._schema.keys
        matters = first_of_each(updates, keys)
        if not self._wanted.with_old and self._wanted.condition is None:
            # Only of a key that is deleted: if it was not there, nothing happened.
            matters &= numbers_of(updates.column(DIFF).combine_chunks()) < 0
        if not matters.any():
            return None
        looked_up = updates.filter(bools(matters)).select(keys)
        view = self._view_before()
        if view is None:
            return None
        want = Want(tuple(self._columns), tuple(_ranges(looked_up)), ordered=False)
        reading = Reading.of(self._handle, view, want, self._by())
        if looked_up.num_rows <= _LOOKUPS_MAX:
            return reading.table()
        # What lies between the keys comes along; it is left out table by table.
        found = [with_keys_of(table, looked_up, keys) for table in reading.tables()]
        return united_tables(found, reading.question.arrow)

    def _view_before(self) -> View | None:
        """The table as of `after`; None if it was not there yet."""
        store, table = self._handle.store, self._wanted.version.table
        if self._after < 0:
            return None
        look = self._look.by(self._by())
        try:
            version = store.txns.table_by_id(look, table, self._after)
        except UnknownTable:
            return None
        try:
            return view_at(store, look, version, self._after, look.deadline)
        except AsOfTooOld:
            since = store.data(table).state.meta.since
            raise too_old(version.name, self._after, since or 0) from None


def with_keys_of(table: pa.Table, keys: pa.Table, names: Sequence[str]) -> pa.Table:
    """The rows that have one of these keys."""
    joined = table.join(keys, keys=list(names), join_type="left semi", use_threads=False)
    return joined.select(table.column_names)


def _ranges(keys: pa.Table) -> Iterator[KeyRange]:
    """Ranges that have all of the keys, which are sorted: of each, or of runs of neighbours."""
    firsts, lasts = _ends_of_runs(keys.num_rows)
    for first, last in zip(_tuples(keys.take(firsts)), _tuples(keys.take(lasts)), strict=True):
        yield KeyRange(first, last, closed=True)


def runs_of(keys: pa.Table, codec: KeyCodec) -> Iterator[tuple[bytes, bytes]]:
    """The same as pairs of encoded keys, the last one included."""
    firsts, lasts = _ends_of_runs(keys.num_rows)
    first = codec.encode_rows(keys, firsts.to_pylist())
    yield from zip(first, codec.encode_rows(keys, lasts.to_pylist()), strict=True)


def _ends_of_runs(count: int) -> tuple[pa.Array, pa.Array]:
    """The first and the last rows of at most `_LOOKUPS_MAX` runs."""
    step = max(1, -(-count // _LOOKUPS_MAX))
    firsts = np.arange(0, count, step)
    return int64s(firsts), int64s(np.minimum(firsts + step - 1, count - 1))


def _tuples(keys: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in keys.columns), strict=True)


def _parts_of(task: ChangeTask) -> Iterator[tuple[Part, Interval, int, int | None]]:
    """The parts: each with the keys it is there for, its time, and from when on its rows count."""
    for r in task.references:
        yield r.part, r.place, r.time, r.rows_from
    for entry in task.entries:
        for part in entry.batch.parts:
            yield part, part.span, entry.time, None


def _inside(intervals: Sequence[Interval], place: Interval) -> tuple[Interval, ...]:
    return tuple(both for i in intervals if (both := i.intersect(place)))
