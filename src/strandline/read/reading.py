"""Runs the plan of a read: which pieces there are, what each needs, and the rows that come out.

A read is a sequence of *pieces*: disjoint key intervals, ascending, each small enough to be held in
memory. A piece is read whole: its sources (parts and entries) are cut to the interval, merged where
they have to be, and filtered. Pieces are independent, so several are read side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, TypeVar

import pyarrow as pa

from strandline.engine.conditions import Comparison, Condition, key_ranges
from strandline.env import Deadline
from strandline.errors import AsOfTooOld, Corruption, Fenced, LocationError
from strandline.ids import session_of
from strandline.location import BlobMissing
from strandline.parts.files.filters import Probes, probes_of
from strandline.parts.keys import KeyCodec, KeyRange, clip
from strandline.parts.rows.merge import Source, merge_read, newest_time, visible
from strandline.parts.rows.sort import sort_table
from strandline.parts.schema import DIFF, END, TIME, TableSchema
from strandline.parts.statistics import may_match
from strandline.shard.follower import StateRetired
from strandline.state.model import EVERYTHING, Entry, Interval, Part, TableKind, TableVersion
from strandline.state.plan import ReadTask, plan_read, united
from strandline.txn.handle import Handle
from strandline.txn.overlay import Block
from strandline.txn.view import View, view_of

__all__ = [
    "Piece",
    "Reading",
    "Want",
    "anew",
    "arrow_of",
    "cuts",
    "intervals_of",
    "parts_of",
    "typed",
    "united_tables",
]

A = TypeVar("A")

_PIECE_ROWS = 262_144
"""Rows in a piece, about: few enough to hold several, enough that a piece's overhead is small."""

_FEW_KEYS = 4
"""So few keys are looked for wherever they may be before anything is planned or handed out."""

_GATHER_FROM = 16
"""So many entries of a piece are read by blocks; fewer one by one."""


@dataclass(frozen=True, slots=True)
class Want:
    """What a read is to give."""

    columns: tuple[str, ...] | None = None
    """User columns, in order; None: all."""
    ranges: tuple[KeyRange, ...] | None = None
    """Only keys in any of these; None: all."""
    condition: Condition | None = None
    ordered: bool = True
    """Whether rows have to come out sorted by full key."""
    raw: bool = False
    """Whether to give all updates up to the time as they are stored, with `__time` and `__diff`."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a read that fits into memory."""

    task: ReadTask
    intervals: tuple[Interval, ...]
    load: Callable[[Deadline], pa.Table] | None = None
    """Instead of all that the task has in the intervals: some row groups of one of its parts. Takes
    a deadline."""
    rows_from: int | None = None
    """Of those row groups, rows at earlier times do not count."""


class _Wanted(NamedTuple):
    """What a piece needs of one part."""

    number: int
    """Of the entry that it belongs to; -1: of none."""
    part: Part
    intervals: list[Interval]
    time: int
    rows_from: int | None
    columns: list[str]

    @property
    def last(self) -> int:
        """No row is later."""
        return self.time if self.part.time_max is None else self.part.time_max


_typed: dict[tuple[str, int], tuple[TableSchema, KeyCodec]] = {}
_arrows: dict[tuple[str, int, tuple[str, ...] | None, bool], pa.Schema] = {}
_TYPED_MAX = 1_024
"""Versions of tables that a process remembers the types of, and as many selections of columns."""


def typed(version: TableVersion) -> tuple[TableSchema, KeyCodec]:
    """The schema of a version of a table and the codec of its keys, made once per process."""
    found = _typed.get((version.table, version.version))
    if found is None:
        schema = TableSchema.from_version(version)
        found = (schema, KeyCodec(schema))
        if len(_typed) >= _TYPED_MAX:
            _typed.clear()
        _typed[version.table, version.version] = found
    return found


class Reading:
    """One read of one table as of one time. Its methods may be called from several threads."""

    def __init__(
        self,
        handle: Handle,
        view: View,
        want: Want,
        deadline: Deadline,
    ) -> None:
        self.view = view
        self.want = want
        self.schema, self.codec = typed(view.version)
        self.intervals = intervals_of(want, self.schema, self.codec)
        self.arrow = arrow_of(want, view.version)
        """The schema of what comes out."""
        self._handle = handle
        self._deadline = deadline
        self._streaming = False
        self._alone = False
        """Whether one piece is all: then its parts are read side by side."""
        if view.seen is not None:
            view.seen(self.intervals)
        self._probes = _probes(want, self.schema, self.codec)
        keys = 0 if self._probes is None else len(self._probes)
        self._few = 0 < keys <= _FEW_KEYS
        versions = self.schema.kind == "keyed" and self.schema.keys == self.schema.row_keys
        self._one_row = keys == 1 and versions and not want.raw
        """Whether the newest version of one key is all that is asked for."""
        self.tasks = self._plan(view, view.entries, self.intervals)

    def table(self) -> pa.Table:
        """All rows, in memory."""
        found = self._table()
        self._give()
        return found

    def _table(self) -> pa.Table:
        pieces = [piece for task in self.tasks for piece in self._pieces(task, None)]
        if not pieces:
            return _empty(self.arrow)
        if len(pieces) == 1:
            self._alone = True
            return self.read(pieces[0])
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
        self._streaming = True
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
            rows = None if self.want.condition else self.rows_of(task)
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
        condition = self.want.condition
        return condition is not None and condition.reads_others

    def rows_of(self, task: ReadTask) -> int | None:
        """Exactly how many rows a task gives before the condition; None if only reading tells."""
        if not self.is_clean(task):
            return None
        rows = 0
        for part, place, _ in parts_of(task):
            if place != part.span or not _covered(place, task.intervals):
                return None
            rows += part.rows
        for entry in task.entries:
            if entry.batch.inline:
                place = Interval(entry.batch.lower, entry.batch.upper + b"\0")
                if not _covered(place, task.intervals):
                    return None
                rows += entry.batch.rows - sum(part.rows for part in entry.batch.parts)
        return rows

    def is_clean(self, task: ReadTask) -> bool:
        """Whether every stored row is a live row: nothing is to be merged or left out by time."""
        as_of = self.view.as_of
        if self.want.raw or any(
            r.time_max > as_of or r.part.has_end or r.is_cut for r in task.references
        ):
            return False
        if self.schema.kind == "rows":
            return not (
                any(r.part.has_diff for r in task.references)
                or any(e.batch.has_diff for e in task.entries)
            )
        if len(task.references) + len(task.entries) != 1:
            return False
        if task.references:
            return task.references[0].part.distinct
        return task.entries[0].batch.distinct

    def skips(self, part: Part, *, clean: bool) -> bool:
        """Whether the part's statistics show that the condition holds for none of its rows.

        SUBTLE: of a keyed table's row that is to be merged, an older version may match where the
        newest does not; leaving the newest out would bring the older one back. Keys are the same
        in all versions, so comparisons of keys are safe; all are in tables of `rows`, where a row
        and its retraction are equal.
        """
        condition = self.want.condition
        if condition is None or not part.statistics:
            return False
        usable: Sequence[Comparison] = condition.comparisons
        if not clean and self.schema.kind != "rows":
            keys = set(self.schema.keys)
            usable = [c for c in usable if c.column in keys]
        return bool(usable) and not may_match(part.statistics, usable, self.schema)

    def _by(self) -> Deadline:
        """By when the next step has to be done."""
        return self._deadline.again() if self._streaming else self._deadline

    def read(self, piece: Piece) -> pa.Table:
        """The piece's rows."""
        try:
            return self._read(piece)
        except BlobMissing as error:
            self.check_missing(error)
            if piece.load is not None:
                raise LocationError(
                    f"table {self.view.version.name!r} was compacted while it was being read; "
                    "read it again",
                    may_have_happened=False,
                ) from error
            return self._replanned(piece)

    # --- planning

    def _plan(
        self, view: View, entries: tuple[Entry, ...], intervals: Sequence[Interval] | None
    ) -> list[ReadTask]:
        may_hold = None if self._probes is None else self._probes.may_be_in
        touching, shadowed = self._touching(entries, intervals)
        try:
            return view.data.by(self._by()).ask(
                lambda state: plan_read(
                    state,
                    touching,
                    intervals,
                    view.as_of,
                    raw=self.want.raw,
                    may_hold=may_hold,
                    shadowed=shadowed,
                )
            )
        except StateRetired:
            # The view was made long ago. What it shows is the same in the state of now.
            table = view.version.table
            fresh = view_of(self._handle.store, table, view.as_of, self._by())
            known = (*fresh.entries, *view.own)
            view = replace(view, data=fresh.data, entries=known)
            return self._plan(view, known, intervals)

    def _touching(
        self, entries: tuple[Entry, ...], intervals: Sequence[Interval] | None
    ) -> tuple[Sequence[Entry], bool]:
        """The entries that may have a row in an interval that counts; whether they have them all.

        SUBTLE: a version of a key that is in an entry hides all that the data shard has of it,
        because what is not applied yet is later than all that is. A marker that the key was deleted
        does so, too.
        """
        overlay, table, schema = self._handle.overlay, self.view.version.table, self.schema
        if not self._few or not intervals:
            return overlay.touching(table, entries, intervals), False
        return overlay.holding(table, entries, intervals, schema, self.codec, newest=self._one_row)

    def _pieces(self, task: ReadTask, limit: int | None) -> list[Piece]:
        parts = list(parts_of(task))
        rows = sum(part.rows for part, _, _ in parts)
        size = sum(part.size for part, _, _ in parts)
        # Compressed bytes are all that is known; a piece of about 16 MiB of them stays below 200.
        most = min(_PIECE_ROWS, max(8_192, (16 << 20) * rows // max(size, 1)))
        if limit is not None:
            most = min(most, max(8_192, limit))
        steps = self._steps(task) if rows > most else []
        if sum(count for _, count in steps) <= most:
            return [Piece(task, task.intervals)]
        several = len(parts) + sum(bool(e.batch.inline) for e in task.entries) > 1
        if self._alone_in(task) and not (several and self.want.ordered):
            return self._chunks(task, most)
        bounds: list[bytes | None] = [b"", *cuts(steps, most), None]
        pieces = []
        for lower, upper in pairwise(bounds):
            span = Interval(lower or b"", upper)
            inside = tuple(both for i in task.intervals if (both := i.intersect(span)))
            if inside:
                pieces.append(Piece(task, inside))
        return pieces

    def _chunks(self, task: ReadTask, rows_max: int) -> list[Piece]:
        """Row groups of one part after the other, where no row has to meet another."""
        columns = self._needed(task, alone=True)
        clean = self.is_clean(task)
        timeless = self._timeless(task)
        pieces = []
        for _, part, place, _, rows_from in _stored_in(task):
            inside = [both for i in task.intervals if (both := i.intersect(place))]
            if inside and not self.skips(part, clean=clean):
                extra = [] if clean else _own_columns(part, timeless)
                loads = self._handle.store.reader.chunks(
                    part,
                    self.schema,
                    columns=[*columns, *extra],
                    intervals=[EVERYTHING] if part.span in inside else inside,
                    rows=rows_max,
                    deadline=self._by(),
                )
                pieces += [Piece(task, task.intervals, load, rows_from) for load in loads]
        inline = tuple(e for e in task.entries if e.batch.inline)
        if inline:
            rest = replace(task, references=(), entries=inline)
            pieces.append(Piece(rest, task.intervals))
        return pieces

    def _steps(self, task: ReadTask) -> list[tuple[bytes, int]]:
        """Where the row groups that the task has to read begin, and how many rows each has."""
        steps: list[tuple[bytes, int]] = []
        for part, place, _ in parts_of(task):
            opened = self._handle.store.reader.opened(part, self._by())
            separators, rows = opened.separators, opened.rows_of([0])
            for interval in task.intervals:
                inside = interval.intersect(place)
                if inside is not None:
                    steps += [(separators[group], rows) for group in opened.groups_in(inside)]
        return steps

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
        fresh = view_of(store, view.version.table, view.as_of, self._by())
        look = store.data(view.version.table).look(self._by())
        used = look.ask(lambda s: s.parts.get((missing.key,)))
        if (
            own
            or used
            or any(part.key == missing.key for e in fresh.entries for part in e.batch.parts)
        ):
            raise Corruption(
                f"the part {missing.key} of table {view.version.name!r} is missing; restore it "
                "from a copy",
                object=missing.key,
            ) from missing

    def _replanned(self, piece: Piece) -> pa.Table:
        """Reads a piece as the table is stored now."""
        version, as_of = self.view.version, self.view.as_of
        fresh = view_of(self._handle.store, version.table, as_of, self._by())
        known = (*fresh.entries, *self.view.own)
        intervals = piece.task.own(piece.intervals)
        tasks = self._plan(fresh, known, intervals)
        read = [self.read(p) for task in tasks for p in self._pieces(task, None)]
        return united_tables(read, self.arrow)

    # --- reading

    def _read(self, piece: Piece) -> pa.Table:
        want = self.want
        alone = self._alone_in(piece.task)
        columns = self._needed(piece.task, alone=alone)
        sources = self._sources(piece, columns)
        condition = want.condition
        if condition is not None and self.schema.kind == "rows" and not alone:
            # SUBTLE: before the merge, because parts in which nothing matches were skipped: a
            # retraction in another source must not outlive the row that it takes away. Both are
            # equal, so both match or neither does.
            sources = [replace(s, data=condition.select(s.data)) for s in sources]
            condition = None
        if alone:
            table = self._added(sources, columns)
        else:
            table = merge_read(sources, self.schema, as_of=self.view.as_of, raw=want.raw)
        if condition is not None:
            table = condition.select(table)
        return pa.Table.from_arrays(
            [table.column(name) for name in self.arrow.names], schema=self.arrow
        )

    def _alone_in(self, task: ReadTask) -> bool:
        """Whether each stored row tells by itself, and by its time, if it is live."""
        added = self.schema.kind == "rows" and not self.want.raw and not _has_diff(task)
        return added or self.is_clean(task)

    def _needed(self, task: ReadTask, *, alone: bool) -> list[str]:
        """The user columns that are read: what comes out, what is looked at, what is merged by."""
        names: list[str] = self.schema.arrow.names
        want = self.want
        if want.columns is None or want.raw or (not alone and self.schema.kind == "rows"):
            return names
        needed = {*want.columns, *(want.condition.columns if want.condition else ())}
        several = len(task.references) + len(task.entries) > 1
        if not alone or (want.ordered and several):
            needed.update(self.schema.keys)
        # A table without columns has no rows to count.
        return [n for n in names if n in needed] or [self.schema.keys[0]]

    def _timeless(self, task: ReadTask) -> set[str]:
        if self.want.raw:
            return set()
        return _timeless(task, self.view.as_of, self.schema.kind)

    def _added(self, sources: list[Source], columns: list[str]) -> pa.Table:
        tables = [visible(source, self.view.as_of).select(columns) for source in sources]
        if len(tables) == 1:
            return tables[0]
        if not tables:
            return pa.schema([self.schema.arrow.field(name) for name in columns]).empty_table()
        table = pa.concat_tables(tables)
        return sort_table(table, self.schema.keys) if self.want.ordered else table

    def _sources(self, piece: Piece, columns: list[str]) -> list[Source]:
        """The rows of each source: references, then entries one after another.

        SUBTLE: of two rows of one key at one time the one in the later source counts. A transaction
        reads what it wrote as if written at the time that it reads, after everything else.
        """
        if piece.load is not None:
            rows, time = piece.load(self._by()), self.view.as_of
            return [Source(rows, time, distinct=False, rows_from=piece.rows_from)]
        inline = list(self._from_inline(piece, columns))
        found = [*self._from_parts(piece, columns, [source for _, source in inline]), *inline]
        return [source for _, source in sorted(found, key=lambda item: item[0])]

    def _from_parts(
        self, piece: Piece, columns: list[str], inline: Sequence[Source]
    ) -> list[tuple[int, Source]]:
        """With the number of the entry that each belongs to; -1: of none.

        `inline`: the other sources of the piece.
        """
        clean = self.is_clean(piece.task)
        timeless = self._timeless(piece.task)
        wanted = []
        for number, part, place, time, rows_from in _stored_in(piece.task):
            inside = [both for i in piece.intervals if (both := i.intersect(place))]
            if inside and not self.skips(part, clean=clean):
                extra = [] if clean else _own_columns(part, timeless)
                wanted.append(_Wanted(number, part, inside, time, rows_from, [*columns, *extra]))

        def read(item: _Wanted) -> tuple[int, Source]:
            data = self._handle.store.reader.read(
                item.part,
                self.schema,
                columns=item.columns,
                intervals=item.intervals,
                deadline=self._by(),
            )
            return item.number, Source(data, item.time, item.part.distinct, item.rows_from)

        # A few keys that are near are found sooner than other threads would begin, above all where
        # others keep the cores busy.
        if self._alone and not (self._few and self._handle.store.location.blob.near):
            return self._handle.store.env.parallel(read, wanted)
        if self._one_row:
            return self._newest_first(wanted, read, inline)
        return [read(item) for item in wanted]

    def _newest_first(
        self,
        wanted: Sequence[_Wanted],
        read: Callable[[_Wanted], tuple[int, Source]],
        inline: Sequence[Source],
    ) -> list[tuple[int, Source]]:
        """What was read until a version of the key was found that is newer than all in the rest.

        A marker that the key was deleted is a version, too.
        """
        as_of = self.view.as_of
        newest = max((newest_time(source, as_of) for source in inline), default=-1)
        found = {}
        for at, item in sorted(enumerate(wanted), key=lambda each: each[1].last, reverse=True):
            if item.last < newest:
                break
            found[at] = read(item)
            newest = max(newest, newest_time(found[at][1], as_of))
        # Of versions of one time the one in the later source counts.
        return [found[at] for at in sorted(found)]

    def _from_inline(self, piece: Piece, columns: list[str]) -> Iterator[tuple[int, Source]]:
        entries = [(n, e) for n, e in enumerate(piece.task.entries) if e.batch.inline]
        cover = None
        if len(entries) >= _GATHER_FROM:
            table = self.view.version.table
            cover = self._handle.overlay.cover(table, self.view.entries, self.schema)
        blocks: dict[int, tuple[int, int, Block]] = {}
        for number, entry in entries:
            block = None if cover is None else cover.block_of(entry)
            if block is not None:
                least, first, _ = blocks.get(id(block), (number, entry.time, block))
                blocks[id(block)] = min(least, number), min(first, entry.time), block
                continue
            data = self._handle.overlay.rows(entry, self.schema)
            if not _covered(
                Interval(entry.batch.lower, entry.batch.upper + b"\0"), piece.intervals
            ):
                data = clip(data, piece.intervals, self.codec)
            if data.num_rows:
                extra = [DIFF] if entry.batch.has_diff else []
                rows = data.select([*columns, *extra])
                yield number, Source(rows, entry.time, entry.batch.distinct)
        # SUBTLE: a block has more than the task's entries. What else it has is applied in the state
        # that was read, so it is earlier than the first of them; or later than `as_of`; or has no
        # key in the task's intervals, if those are cut to where its sources are.
        inside = piece.task.own(piece.intervals) if blocks else ()
        for number, first, block in blocks.values():
            data = clip(block.data, inside, self.codec)
            if data.num_rows:
                names = [*columns, *(name for name in (TIME, DIFF) if name in data.column_names)]
                yield (
                    number,
                    Source(data.select(names), block.last, distinct=False, rows_from=first),
                )


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


def parts_of(task: ReadTask) -> Iterator[tuple[Part, Interval, int]]:
    """The parts of a task, each with the keys that it is there for and the time of its rows."""
    for reference in task.references:
        yield reference.part, reference.place, reference.time
    for entry in task.entries:
        for part in entry.batch.parts:
            yield part, part.span, entry.time


def _stored_in(task: ReadTask) -> Iterator[tuple[int, Part, Interval, int, int | None]]:
    """The same, each with the number of its entry (-1: none), and the time from which on its rows
    count, where others do not.
    """
    for ref in task.references:
        yield -1, ref.part, ref.place, ref.time, ref.rows_from if ref.is_cut else None
    for number, entry in enumerate(task.entries):
        for part in entry.batch.parts:
            yield number, part, part.span, entry.time, None


def _own_columns(part: Part, timeless: set[str]) -> list[str]:
    """Those columns of ours that the part has and a read needs."""
    timed = part.time_max is not None and part.key not in timeless
    known = ((TIME, timed), (DIFF, part.has_diff), (END, part.has_end))
    return [name for name, there in known if there]


def _timeless(task: ReadTask, as_of: int, kind: TableKind) -> set[str]:
    """Parts, by key, of which a read needs no `__time` though it merges them with others.

    All of their rows count. rows: then times say nothing more. keyed: they rank, but where no other
    source has a row between the first and the last time of a part, one time for all of its rows
    ranks them the same; if it is distinct, they need no ranks among themselves. So it is with what
    is current beside newer parts.
    """
    counting = {
        r.part.key
        for r in task.references
        if not (r.part.time_max is None or r.time_max > as_of or r.part.has_end or r.is_cut)
    }
    if kind == "rows" or not counting:
        return counting
    spans = [(r.time_min, r.time_max, r.part.key) for r in task.references]
    spans += [(e.time, e.time, "") for e in task.entries]
    met: set[str] = set()
    reach, holder = -1, ""
    for first, last, key in sorted(spans):
        if first <= reach:
            met.update((key, holder))
        if last >= reach:
            reach, holder = last, key
    distinct = {r.part.key for r in task.references if r.part.distinct}
    return (counting & distinct) - met


def cuts(steps: Sequence[tuple[bytes, int]], rows_max: int) -> list[bytes]:
    """Keys between which there are about `rows_max` rows."""
    cuts: list[bytes] = []
    gathered = 0
    for key, rows in sorted(steps):
        if gathered and gathered + rows > rows_max and (not cuts or key > cuts[-1]):
            cuts.append(key)
            gathered = 0
        gathered += rows
    return cuts


def _has_diff(task: ReadTask) -> bool:
    return any(r.part.has_diff for r in task.references) or any(
        e.batch.has_diff for e in task.entries
    )


def _covered(place: Interval, intervals: Sequence[Interval]) -> bool:
    """Whether one of the intervals has all of the place."""
    return any(interval.intersect(place) == place for interval in intervals)


def arrow_of(want: Want, version: TableVersion) -> pa.Schema:
    """The schema of what a read gives; made once per process."""
    key = (version.table, version.version, want.columns, want.raw)
    found = _arrows.get(key)
    if found is None:
        schema = typed(version)[0]
        stored = schema.stored(time=want.raw, diff=want.raw)
        names = schema.arrow.names if want.columns is None else want.columns
        names = [*names, TIME, DIFF] if want.raw else names
        found = pa.schema([stored.field(name).remove_metadata() for name in names])
        if len(_arrows) >= _TYPED_MAX:
            _arrows.clear()
        _arrows[key] = found
    return found


def intervals_of(want: Want, schema: TableSchema, codec: KeyCodec) -> list[Interval] | None:
    """The encoded keys that a read has to look at; None: all."""
    asked = None
    if want.ranges is not None:
        asked = united(r.interval(codec) for r in want.ranges)
    if want.condition is None:
        return asked
    ranges = key_ranges(want.condition.comparisons, schema)
    if ranges is None:
        return asked
    implied = united(r.interval(codec) for r in ranges)
    if asked is None:
        return implied
    return united(both for a in asked for i in implied if (both := a.intersect(i)))


def _probes(want: Want, schema: TableSchema, codec: KeyCodec) -> Probes | None:
    """The complete row keys that a read is for; None if it is for more than some of these."""
    probes = probes_of(want.ranges, codec)
    if probes is None and want.condition is not None:
        probes = probes_of(key_ranges(want.condition.comparisons, schema), codec)
    return probes


_empties: dict[int, tuple[pa.Schema, pa.Table]] = {}


def _empty(schema: pa.Schema) -> pa.Table:
    """A table without rows. Making one takes Arrow longer than finding out that there are none."""
    found = _empties.get(id(schema))
    if found is None:
        if len(_empties) >= _TYPED_MAX:
            _empties.clear()
        # The schema is kept, so that no other gets its id.
        found = _empties[id(schema)] = (schema, schema.empty_table())
    return found[1]


def united_tables(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """The tables one after another; an empty one of that schema if there are none."""
    if len(tables) == 1:
        return tables[0]
    return pa.concat_tables(tables) if tables else schema.empty_table()
