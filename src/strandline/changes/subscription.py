"""Subscriptions: every change of some tables, in whole commit times, each exactly once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from strandline.changes.differences import Difference, Wanted
from strandline.changes.spans import Span, Spans, spans_after, too_old
from strandline.closing import Closing
from strandline.env import Deadline, given_seconds
from strandline.errors import AsOfInFuture, AsOfTooOld, Corruption, UsageError
from strandline.location import BlobMissing
from strandline.parts.rows.sort import sort_stream, sort_table
from strandline.parts.schema import TIME, with_times
from strandline.read.reading import Reading
from strandline.read.want import Want
from strandline.shard.missing import state_without
from strandline.times import Progress, parse_as_of, told
from strandline.txn.handle import Handle
from strandline.txn.holds import Place, hold_place
from strandline.txn.view import View, view_of

__all__ = [
    "Change",
    "Course",
    "Subscription",
    "TablesChange",
    "TablesSubscription",
    "seconds_of",
    "start_of",
    "subscribed",
    "subscribed_together",
]

C = TypeVar("C")

_CHANGE_BYTES = 32 << 20
"""Changes that take no more are delivered at once; more are sorted on disk and come in pieces."""

_CHANGE_ROWS = 262_144
"""Rows of a change at which the next one begins, where there are more than can be held."""

_WINDOW_ROWS = 4_000_000
"""Rows that are read and sorted at once, about: the work that is lost if it is interrupted."""

_WINDOW_ROWS_TOGETHER = 1_000_000
"""The same for several tables: if there are more than can be held, they are one change."""

_PAUSE_SECONDS = 0.001
_PAUSE_SHARE = 0.01
"""A wait looks again after a hundredth of the time that it has lasted, but at least after 1 ms."""

_MOVE_SECONDS = 30.0
"""How often the hold is moved along, at most: each time is a record in the table's shard."""

_PROGRESS_SECONDS = 1.0
"""How often a change without rows tells of progress, at most."""


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to a table, at one or several commit times."""

    rows: pa.Table
    """By `__time`, then key. A table of `rows`: the user's columns, `__time`, `__diff` (+n, -n).
    A `keyed` table: the user's columns, `__time`, `__op` ("upsert" or "delete"), and `__old` if it
    was asked for. May be empty: then only time has passed."""
    progress: Progress
    """Everything up to and including this time was delivered; `start=` takes it."""
    complete: bool = True
    """False: more follows of the time of the last rows, in the next change. `progress` stays where
    it was, so that a restart from there begins that time anew."""

    def to_pandas(self, *, times: bool = False, **options: Any) -> Any:
        """The rows as a pandas DataFrame; options are those of `pyarrow.Table.to_pandas`.

        `times`: with `__time` as timestamps, and not as the integers that it is.
        """
        return (with_times(self.rows) if times else self.rows).to_pandas(**options)


@dataclass(frozen=True, slots=True)
class TablesChange:
    """What happened to several tables, at one or several commit times, the same for all of them."""

    tables: Mapping[str, pa.Table]
    """Every table that was subscribed to, by the name that it was asked by, and its rows as in
    `Change.rows`; without rows where nothing happened to it."""
    progress: Progress
    """Everything up to and including this time was delivered, of all tables; `start=` takes it."""
    complete: bool = True
    """False: more follows that belongs with these rows, in the next changes. `progress` stays where
    it was, so that a restart from there begins anew with all of it."""


@dataclass(frozen=True, slots=True)
class _Start:
    after: int
    """Everything up to this time is known; of a snapshot, its time."""
    snapshot: bool
    moving: bool
    """Whether a later time would do as well: "snapshot" and "now" mean the latest."""


def start_of(value: Any) -> str | int:
    """What `start=` means: "snapshot", "now" or a time; `UsageError` shows the forms."""
    if isinstance(value, Progress):
        return "snapshot" if value.micros < 0 else value.micros
    if isinstance(value, str):
        if value in {"snapshot", "now"}:
            return value
        if value.startswith("p"):
            return Progress.parse(value).micros
    try:
        return parse_as_of(value)
    except UsageError as error:
        raise UsageError(
            f'start={value!r}: pass "snapshot", "now", the progress of an earlier change or its '
            f"text, or a time. {error}"
        ) from None


def seconds_of(value: Any, what: str) -> float | None:
    """A number of seconds above 0, or None."""
    return None if value is None else given_seconds(value, what)


class _Changes(Closing, Generic[C]):
    """The iterator over what a course brings."""

    def __init__(self, course: Course[C]) -> None:
        self._course = course
        self._changes: Iterator[C] | None = None
        self._ended = False

    @property
    def progress(self) -> Progress:
        """How far the subscription has come, also where that brought no change."""
        return self._course.progress

    def __iter__(self) -> Iterator[C]:
        return self

    def __next__(self) -> C:
        if self._ended:
            raise StopIteration
        if self._changes is None:
            self._changes = self._course.changes()
        try:
            return next(self._changes)
        except StopIteration:
            self.close()
            raise
        except BaseException:
            self._changes = None
            raise

    def close(self) -> None:
        """Ends the iteration, and what is held for it. A named subscription keeps its place."""
        self._ended = True
        self._changes = None
        self._course.close()

    def __del__(self) -> None:
        # Nothing that lives on refers to this object: a loop that is left lets go of it at once.
        self._course.leave()


class Subscription(_Changes[Change]):
    """An iterator over changes; it waits for those to come. For one thread at a time.

    Use it in a `for` loop, or in a `with` block that ends it. After an error the next call goes on
    from `progress`, unless it was within a change that is not complete.
    """

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows of its changes."""
        (schema,) = self._course.schemas.values()
        return schema


class TablesSubscription(_Changes[TablesChange]):
    """An iterator over the changes of several tables, as `Subscription` is of one."""

    @property
    def schemas(self) -> dict[str, pa.Schema]:
        """The Arrow schema of the rows of each table's changes, by its name."""
        return self._course.schemas


class Course(Generic[C]):
    """How a subscription goes on: where it is, what it waits for, and what it holds.

    `wanted` are its tables by name, and `made` makes a change of their rows, of the progress, and
    whether it is complete.
    """

    def __init__(
        self,
        handle: Handle,
        wanted: Mapping[str, Wanted],
        made: Callable[[Mapping[str, pa.Table], Progress, bool], C],
        *,
        start: str | int,
        until: int | None,
        timeout: float | None,
        poll: float,
        name: str | None,
    ) -> None:
        self._handle = handle
        self._wanted = dict(wanted)
        self._made = made
        self._until = until
        self._timeout = timeout
        self._poll = poll
        self._places: list[Place] = []
        self._whole = True  # nothing incomplete was delivered last
        self._moved = handle.store.env.monotonic()
        begun = self._begun(start, name)
        self._after = begun.after
        self._delivered = -1 if begun.snapshot else begun.after
        self._snapshot = begun.snapshot

    @property
    def progress(self) -> Progress:
        """How far it has come."""
        return Progress(-1 if self._snapshot else self._after)

    @property
    def schemas(self) -> dict[str, pa.Schema]:
        """The schemas of the rows of its changes."""
        return {name: wanted.arrow for name, wanted in self._wanted.items()}

    def close(self) -> None:
        """Ends what is held."""
        places, self._places = self._places, []
        for place in places if not self._handle.closed else ():
            place.close(self._handle.deadline(None))

    def leave(self) -> None:
        """Has what is held ended soon; makes no request.

        This may be called anywhere, also while this thread holds a lock of ours.
        """
        places, self._places = self._places, []
        for place in places:
            place.leave()

    # --- the beginning

    def _begun(self, start: str | int, name: str | None) -> _Start:
        """Finds out where to begin, and holds the history from there on."""
        store = self._handle.store
        deadline = self._handle.deadline(None)
        while True:
            begun = self._where(start, deadline)
            if store.read_only or self._hold(begun, name, deadline):
                return begun
            # SUBTLE: between the two, history up to what was the latest time was given up.
            deadline.check("beginning a subscription", may_have_happened=False)

    def _hold(self, begun: _Start, name: str | None, deadline: Deadline) -> bool:
        """Holds the history of every table; False if it is gone and a later start does as well."""
        store = self._handle.store
        for wanted in self._wanted.values():
            version = wanted.version
            try:
                place = hold_place(
                    store,
                    version.table,
                    max(0, begun.after, version.created - 1),
                    name=name,
                    note=version.name,
                    deadline=deadline,
                )
            except BaseException as error:
                self.close()
                if not isinstance(error, AsOfTooOld):
                    raise
                if begun.moving:
                    return False
                since = store.data(version.table).state.meta.since
                raise too_old(version.name, begun.after, since or 0) from None
            self._places.append(place)
        return True

    def _where(self, start: str | int, deadline: Deadline) -> _Start:
        store = self._handle.store
        look = store.txns.look(deadline)
        latest = store.txns.latest(look)
        tables = [wanted.version.table for wanted in self._wanted.values()]
        versions = [store.txns.table_by_id(look, table) for table in tables]
        if isinstance(start, str):
            if self._until is not None:
                latest = min(latest, self._until)
            return _Start(latest, snapshot=start == "snapshot", moving=True)
        if start > max(latest, store.env.now_micros()):
            raise AsOfInFuture(
                f"start {told(start)} lies in the future; the latest time is {told(latest)}"
            )
        # Before there was a table, nothing happened to it.
        created = min(version.created for version in versions)
        return _Start(max(start, created - 1), snapshot=False, moving=False)

    # --- all of it

    def changes(self) -> Iterator[C]:
        """All changes from here on, as long as they are wanted; it waits for them."""
        if not self._whole:
            raise UsageError(
                "an error ended this subscription within a change that is not complete; subscribe "
                f"again with start={str(self.progress)!r}"
            )
        if self._snapshot:
            yield from self._first()
        env = self._handle.store.env
        waited_from = told = env.monotonic()
        while self._until is None or self._after < self._until:
            spans = self._look()
            if spans.through > self._after:
                for change in self._window(spans):
                    yield change
                    waited_from = told = env.monotonic()
                    self._acknowledge()
                continue
            now = env.monotonic()
            if self._timeout is not None and now - waited_from >= self._timeout:
                break
            if self._after > self._delivered and now - told >= _PROGRESS_SECONDS:
                yield self._told()
                told = env.monotonic()
            self._acknowledge()
            if not self._is_definite():
                env.sleep(self._pause(env.monotonic() - waited_from))
        if self._after > self._delivered:
            yield self._told()

    def _told(self) -> C:
        """A change that only says how far time has come."""
        return self._deliver({}, self._after)

    def _pause(self, waited: float) -> float:
        pause = min(self._poll, max(_PAUSE_SECONDS, waited * _PAUSE_SHARE))
        if self._timeout is None:
            return pause
        return max(0.0, min(pause, self._timeout - waited))

    def _is_definite(self) -> bool:
        """Makes the time `until` definite if it has passed, nothing more was committed, and this
        handle may write; True if it did.
        """
        store, until = self._handle.store, self._until
        if until is None or store.read_only or until > store.env.now_micros():
            return False
        deadline = self._handle.deadline(None)
        store.txns.commit(at_least=until, operation="advance", deadline=deadline)
        return True

    def _acknowledge(self) -> None:
        """Tells now and then that what was delivered is not needed any more."""
        now = self._handle.store.env.monotonic()
        if not self._places or not self._whole or now - self._moved < _MOVE_SECONDS:
            return
        self._moved = now
        if self._after >= 0 and not self._snapshot:
            for place in self._places:
                place.move(self._after, self._handle.deadline(None))

    def _deliver(self, rows: Mapping[str, pa.Table], through: int | None) -> C:
        """The rows as a change. `through`: they complete everything up to that time."""
        self._whole = through is not None
        if through is not None:
            self._after = self._delivered = through
            self._snapshot = False
        tables = {
            name: rows[name] if name in rows else wanted.arrow.empty_table()
            for name, wanted in self._wanted.items()
        }
        return self._made(tables, self.progress, self._whole)

    # --- the snapshot

    def _first(self) -> Iterator[C]:
        """The rows as of the time at which the subscription begins; each change but the last is
        not complete.
        """
        handle = self._handle
        deadline = handle.deadline(None)
        views = self._snapshot_views(deadline)
        time = self._after
        last: dict[str, pa.Table] = {}
        for name, wanted in self._wanted.items():
            want = Want(wanted.columns, condition=wanted.condition)
            for rows in Reading.of(handle, views[name], want, deadline).tables():
                if last:
                    yield self._deliver(last, None)
                last = {name: wanted.as_changes(rows, time)}
        yield self._deliver(last, time)

    def _snapshot_views(self, deadline: Deadline) -> dict[str, View]:
        """The tables, all at the time at which the subscription begins."""
        store = self._handle.store
        while True:
            try:
                return {
                    name: view_of(store, wanted.version.table, self._after, deadline)
                    for name, wanted in self._wanted.items()
                }
            except AsOfTooOld:
                # SUBTLE: without a hold (a handle that only reads, or a lease that is over) what
                # was the latest time may be given up before it is read. A later one does as well,
                # as nothing was delivered yet.
                later = self._where("snapshot", deadline).after
                if later == self._after or not self._whole:
                    raise
                self._after = later
                deadline.check("beginning a subscription", may_have_happened=False)

    # --- what came after it

    def _look(self, *, applied: Collection[str] = ()) -> Spans:
        return spans_after(
            self._handle.store,
            [wanted.asked for wanted in self._wanted.values()],
            self._after,
            until=self._until,
            rows_max=_WINDOW_ROWS if len(self._wanted) == 1 else _WINDOW_ROWS_TOGETHER,
            applied=applied,
            deadline=self._handle.deadline(None),
        )

    def _window(self, spans: Spans) -> Iterator[C]:
        """The changes in the spans; none if there are none."""
        found, spans = self._read(spans)
        tables = {name: rows for name, rows in found.items() if isinstance(rows, pa.Table)}
        long = {name: rows for name, rows in found.items() if not isinstance(rows, pa.Table)}
        if len(self._wanted) == 1 and long:
            ((name, batches),) = long.items()
            arrow = self._wanted[name].arrow
            for table, through in _in_whole_times(batches, arrow, spans.through):
                yield self._deliver({name: table}, through)
        elif long or any(table.num_rows for table in tables.values()):
            # Many changes of several tables are one change in pieces: what happened at one time
            # is spread over all of it.
            for name, batches in long.items():
                for table in _in_tables(batches, self._wanted[name].arrow):
                    yield self._deliver({name: table}, None)
            yield self._deliver(tables, spans.through)
        self._after = spans.through

    def _read(self, spans: Spans) -> tuple[dict[str, pa.Table | Iterator[pa.RecordBatch]], Spans]:
        """All changes in the spans, of each table sorted by time and then key: a table, or a long
        stream.

        SUBTLE: nothing is delivered before everything was read (the streams are sorted). So where a
        part is gone, because its table was compacted and vacuumed meanwhile, all is read anew from
        what is stored now, which has the same updates; at times up to since it has not, and then
        `look` says so. Only of such tables: what is stored of one that is idle ends before that.
        """
        deadline = self._handle.deadline(None)
        applied: set[str] = set()
        while True:
            found: dict[str, pa.Table | Iterator[pa.RecordBatch]] = {}
            try:
                for name, span in zip(self._wanted, spans.spans, strict=True):
                    found[name] = self._sorted(name, spans, span)
            except BlobMissing as error:
                # Corruption if the table still needs it.
                state_without(span.machine, error, deadline)
                applied.add(span.version.table)
                spans = self._look(applied=applied)
                if spans.through <= spans.after:  # it belongs to a commit that is not applied
                    raise Corruption(
                        f"the part {error.key} of a commit to table {name!r} is missing; restore "
                        "it from a copy",
                        object=error.key,
                    ) from error
                deadline.check("reading changes", may_have_happened=False)
            else:
                return found, spans

    def _sorted(self, name: str, spans: Spans, span: Span) -> pa.Table | Iterator[pa.RecordBatch]:
        settings = self._handle.store.settings
        wanted = self._wanted[name]
        difference = Difference(self._handle, wanted, spans, span, self._handle.deadline(None))
        tables = (table for table in difference.tables() if table.num_rows)
        held: list[pa.Table] = []
        size = 0
        for table in tables:
            held.append(table)
            size += table.nbytes
            if size > _CHANGE_BYTES // len(self._wanted):
                break
        else:
            # Stable: by key within one time, as it was read.
            table = pa.concat_tables(held) if held else wanted.arrow.empty_table()
            return sort_table(table, [TIME])
        ordered = sort_stream(
            chain(held, tables),
            [TIME],
            stable=True,
            schema=wanted.arrow,
            memory_bytes=settings.sort_memory_bytes // len(self._wanted),
            threads=settings.threads,
        )
        first = next(iter(ordered))  # from here on everything was read
        return chain([first], ordered)


def subscribed(handle: Handle, wanted: Wanted, **options: Any) -> Subscription:
    """A subscription to one table; options as `Course` has them."""
    table = wanted.version.name

    def made(rows: Mapping[str, pa.Table], progress: Progress, complete: bool) -> Change:  # noqa: FBT001  as the course passes it
        return Change(rows[table], progress, complete)

    return Subscription(Course(handle, {table: wanted}, made, **options))


def subscribed_together(
    handle: Handle, wanted: Mapping[str, Wanted], **options: Any
) -> TablesSubscription:
    """A subscription to several tables; options as `Course` has them."""
    return TablesSubscription(Course(handle, wanted, TablesChange, **options))


def _in_tables(batches: Iterable[pa.RecordBatch], arrow: pa.Schema) -> Iterator[pa.Table]:
    """Tables of some rows each; nothing is told of which times are whole."""
    for batch in _short(batches):
        yield pa.Table.from_batches([batch], arrow)


def _in_whole_times(
    batches: Iterable[pa.RecordBatch], arrow: pa.Schema, through: int
) -> Iterator[tuple[pa.Table, int | None]]:
    """Rows sorted by time, cut between times where there are many, each with the time up to which
    they complete everything; None where they are a part of one time.
    """
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in _short(batches):
        held.append(batch)
        rows += batch.num_rows
        if rows < _CHANGE_ROWS:
            continue
        table = pa.Table.from_batches(held, arrow)
        times = table.column(TIME).to_numpy()
        last = int(times[-1])
        first_of_last = int(np.searchsorted(times, last))
        if first_of_last:
            yield table.slice(0, first_of_last), last - 1
            held = table.slice(first_of_last).to_batches()
        else:
            yield table, None
            held = []
        rows = sum(batch.num_rows for batch in held)
    yield pa.Table.from_batches(held, arrow), through


def _short(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, _CHANGE_ROWS):
            yield batch.slice(start, _CHANGE_ROWS)
