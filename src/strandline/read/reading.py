"""Reads what is asked for: a plan is made, cut into pieces, and each piece's sources are merged.

A read is a sequence of *pieces*: disjoint key intervals, ascending, each small enough to be held in
memory. A piece is read whole: its sources (parts and entries) are cut to the interval, merged where
they have to be, and filtered. Pieces are independent, so several are read side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa

from strandline.env import Deadline
from strandline.errors import AsOfTooOld, Fenced, LocationError
from strandline.ids import session_of
from strandline.location import BlobMissing
from strandline.parts.rows.merge import Source, merge_read, visible
from strandline.parts.rows.sort import sort_table
from strandline.read.pieces import Piece, pieces_of
from strandline.read.question import Question
from strandline.read.sources import Sources
from strandline.read.want import Want
from strandline.shard.follower import StateRetired
from strandline.shard.missing import lost, state_without
from strandline.state.model import Entry, Interval
from strandline.state.plan import ReadTask, plan_read
from strandline.txn.handle import Handle
from strandline.txn.view import View, view_of

__all__ = ["Reading", "anew", "united_tables"]

A = TypeVar("A")


class Reading:
    """One read of one table as of one time, planned. Several threads may call its methods."""

    def __init__(self, handle: Handle, view: View, want: Want, deadline: Deadline) -> None:
        """`of` makes one that is planned."""
        self.view = view
        self.question = Question(view.version, want, view.as_of)
        self.tasks: list[ReadTask] = []
        self._handle = handle
        self._deadline = deadline
        self._by: Callable[[], Deadline] = lambda: deadline
        """By when the next step has to be done."""
        self._sources = Sources(self.question, view.version.table, view.entries, handle)

    @classmethod
    def of(cls, handle: Handle, view: View, want: Want, deadline: Deadline) -> Reading:
        """The read with its plan, for which pages of the table's state may be loaded."""
        reading = cls(handle, view, want, deadline)
        intervals = reading.question.intervals
        if view.seen is not None:
            view.seen(intervals)
        reading.tasks = reading._plan(view, intervals)
        return reading

    # --- the whole

    def table(self) -> pa.Table:
        """All rows, in memory."""
        found = self._table()
        self._give()
        return found

    def _table(self) -> pa.Table:
        pieces = [piece for task in self.tasks for piece in self._pieces(task)]
        if not pieces:
            return _empty(self.question.arrow)
        if len(pieces) == 1:
            return self.read(pieces[0], is_only=True)
        if self._reads_others():
            return pa.concat_tables(map(self.read, pieces))
        return pa.concat_tables(self._handle.store.env.parallel(self.read, pieces))

    def tables(self, limit: int | None = None) -> Iterator[pa.Table]:
        """All rows, or somewhat more than the first `limit`, in bounded memory. No table is empty.

        Whoever takes the rows may take any time: each read has the whole deadline for itself.
        """
        given = False
        for table in self._tables(limit):
            if table.num_rows:
                if not given:
                    self._give()
                given = True
                yield table
        if not given:
            self._give()

    def _tables(self, limit: int | None) -> Iterator[pa.Table]:
        self._by = self._deadline.again
        pieces = (piece for task in self.tasks for piece in self._pieces(task, limit))
        if limit is not None or self._reads_others():
            yield from map(self.read, pieces)
            return
        store = self._handle.store
        # As many at once as there are cores: they are what bounds the memory of a stream.
        yield from store.env.stream(self.read, pieces, ahead=store.settings.threads)

    def count(self) -> int:
        """How many rows there are; from metadata where that is exact."""
        known = 0
        unknown = []
        for task in self.tasks:
            rows = None if self.question.want.condition else self.question.rows_of(task)
            if rows is None:
                unknown.append(task)
            else:
                known += rows
        self.tasks = unknown
        counts: Iterator[int] = (table.num_rows for table in self.tables())
        return known + sum(counts)

    def _give(self) -> None:
        if self.view.given is not None:
            self.view.given()

    def _reads_others(self) -> bool:
        # SUBTLE: a condition with subqueries reads tables itself. On the threads that it would wait
        # for, enough of them at once would wait for ever.
        condition = self.question.want.condition
        return condition is not None and condition.reads_others

    # --- its plan

    def _plan(self, view: View, intervals: Sequence[Interval] | None) -> list[ReadTask]:
        probes = self.question.probes
        touching, shadowed = self._touching(view.entries, intervals)
        try:
            return view.data.by(self._by()).ask(
                lambda state: plan_read(
                    state,
                    touching,
                    intervals,
                    view.as_of,
                    raw=self.question.want.raw,
                    may_hold=None if probes is None else probes.may_be_in,
                    shadowed=shadowed,
                )
            )
        except StateRetired:
            # The view was made long ago. What it shows is the same in the state of now.
            return self._plan(self._fresh(), intervals)

    def _touching(
        self, entries: tuple[Entry, ...], intervals: Sequence[Interval] | None
    ) -> tuple[Sequence[Entry], bool]:
        """The entries that may have a row in an interval that counts; whether they have them all.

        SUBTLE: a version of a key that is in an entry hides all that the data shard has of it,
        because what is not applied yet is later than all that is. A marker that the key was deleted
        does so, too.
        """
        overlay, table, asked = self._handle.overlay, self.view.version.table, self.question
        if not asked.few_keys or not intervals:
            return overlay.touching(table, entries, intervals), False
        return overlay.holding(
            table, entries, intervals, asked.schema, asked.codec, newest=asked.one_row
        )

    def _fresh(self) -> View:
        """The same view of the table as it is stored now."""
        view = self.view
        fresh = view_of(self._handle.store, view.version.table, view.as_of, self._by())
        return replace(fresh, entries=(*fresh.entries, *view.own))

    # --- its pieces

    def _pieces(self, task: ReadTask, limit: int | None = None) -> list[Piece]:
        return pieces_of(self.question, task, self._handle.store.reader, self._by, limit)

    def read(self, piece: Piece, *, is_only: bool = False) -> pa.Table:
        """The piece's rows. `is_only`: there is no other."""
        try:
            return self._rows(piece, is_only=is_only)
        except BlobMissing as error:
            self.check_missing(error)
            if piece.load is not None:
                raise LocationError(
                    f"table {self.view.version.name!r} was compacted while it was being read; "
                    "read it again",
                    may_have_happened=False,
                ) from error
            return self._replanned(piece, is_only=is_only)

    def _rows(self, piece: Piece, *, is_only: bool) -> pa.Table:
        asked, want = self.question, self.question.want
        alone = asked.is_alone(piece.task)
        columns = asked.columns(piece.task, alone=alone)
        sources = self._sources.of(piece, columns, self._by, is_only=is_only)
        condition = want.condition
        if condition is not None and asked.schema.kind == "rows" and not alone:
            # SUBTLE: before the merge, because parts in which nothing matches were skipped: a
            # retraction in another source must not outlive the row that it takes away. Both are
            # equal, so both match or neither does.
            sources = [replace(s, data=condition.select(s.data)) for s in sources]
            condition = None
        if alone:
            table = self._added(sources, columns)
        else:
            table = merge_read(sources, asked.schema, as_of=asked.as_of, raw=want.raw)
        if condition is not None:
            table = condition.select(table)
        arrow = asked.arrow
        return pa.Table.from_arrays([table.column(name) for name in arrow.names], schema=arrow)

    def _added(self, sources: list[Source], columns: list[str]) -> pa.Table:
        asked = self.question
        tables = [visible(source, asked.as_of).select(columns) for source in sources]
        if len(tables) == 1:
            return tables[0]
        if not tables:
            return pa.schema([asked.schema.arrow.field(name) for name in columns]).empty_table()
        table = pa.concat_tables(tables)
        return sort_table(table, asked.schema.keys) if asked.want.ordered else table

    # --- parts that are gone

    def check_missing(self, missing: BlobMissing) -> None:
        """Corruption if the table as it is stored now needs the object that was not found.

        Else a compaction has put others in its place since the plan was made.
        """
        view, store = self.view, self._handle.store
        # Who holds the table and was replaced finds objects gone that the new holder did without.
        store.txns.learn_fate(self._by())
        own = any(part.key == missing.key for e in view.own for part in e.batch.parts)
        if own and not store.txns.is_open(session_of(missing.key), self._by()):
            raise Fenced(
                f"the session that wrote {missing.key} in this transaction was ended while its "
                "owner was silent, and what it had not committed was deleted; begin anew"
            ) from missing
        fresh, name = self._fresh(), f"table {view.version.name!r}"
        if any(part.key == missing.key for e in fresh.entries for part in e.batch.parts):
            raise lost(name, missing) from missing
        state_without(store.data(view.version.table), missing, self._by(), name)

    def _replanned(self, piece: Piece, *, is_only: bool) -> pa.Table:
        """Reads a piece as the table is stored now."""
        tasks = self._plan(self._fresh(), piece.task.own(piece.intervals))
        pieces = [p for task in tasks for p in self._pieces(task)]
        found = [self.read(p, is_only=is_only) for p in pieces]
        return united_tables(found, self.question.arrow)


def anew(first: View, again: Callable[[], View], read: Callable[[View], A]) -> A:
    """What `read`, which gives nothing to anybody before it returns, makes of a view; if the table
    has given up the view's time meanwhile, of the later one of `again`.

    SUBTLE: with a short retention the latest time is given up as soon as there is another, and a
    vacuum may take the objects of a read that is under way. Who planned anew from the newest state
    would do so at a time that is before its since. A view of a time that was asked for stays where
    it is, and so does one of a transaction that has read something: there the error is the answer.
    """
    view = first
    while True:
        try:
            if view.given is None:
                return read(view)
            found = read(replace(view, given=None))
            view.given()
        except AsOfTooOld:
            later = again()
            if later.as_of == view.as_of:
                raise
            view = later
        else:
            return found


_empties: dict[int, tuple[pa.Schema, pa.Table]] = {}
_EMPTIES_MAX = 1_024
"""Schemas of which a process remembers the table without rows."""


def _empty(schema: pa.Schema) -> pa.Table:
    """A table without rows. Making one takes Arrow longer than finding out that there are none."""
    found = _empties.get(id(schema))
    if found is None:
        if len(_empties) >= _EMPTIES_MAX:
            _empties.clear()
        # The schema is kept, so that no other gets its id.
        found = _empties[id(schema)] = (schema, schema.empty_table())
    return found[1]


def united_tables(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """The tables one after another; an empty one of that schema if there are none."""
    if len(tables) == 1:
        return tables[0]
    return pa.concat_tables(tables) if tables else schema.empty_table()
