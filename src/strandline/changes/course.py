"""How a subscription goes on: where it begins, what it waits for, and what it holds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypedDict, TypeVar, Unpack

import pyarrow as pa

from strandline.changes.differences import Wanted
from strandline.changes.spans import Spans, spans_after, too_old
from strandline.changes.windows import in_tables, in_whole_times, read_whole
from strandline.env import Deadline
from strandline.errors import AsOfInFuture, AsOfTooOld, UsageError
from strandline.read.reading import Reading
from strandline.read.want import Want
from strandline.times import Progress, told
from strandline.txn.handle import Handle
from strandline.txn.holds import Place, hold_place
from strandline.txn.view import View, view_of

__all__ = ["Course", "Options"]

C = TypeVar("C")

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


class Options(TypedDict):
    """Where a subscription begins and ends, how it waits, and what its place is called."""

    start: str | int
    """Either "snapshot", "now", or the time up to which everything is known."""
    until: int | None
    timeout: float | None
    """Seconds without a change after which it ends; None: it waits for ever."""
    poll: float
    """Seconds between two looks, at most."""
    name: str | None


@dataclass(frozen=True, slots=True)
class _Start:
    after: int
    """Everything up to this time is known; of a snapshot, its time."""
    snapshot: bool
    moving: bool
    """Whether a later time would do as well: "snapshot" and "now" mean the latest."""


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
        **options: Unpack[Options],
    ) -> None:
        self._handle = handle
        self._wanted = dict(wanted)
        self._made = made
        self._until = options["until"]
        self._timeout = options["timeout"]
        self._poll = options["poll"]
        self._places: list[Place] = []
        self._whole = True  # nothing incomplete was delivered last
        self._moved = handle.store.env.monotonic()
        begun = self._begun(options["start"], options["name"])
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
            spans = self._spans()
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

    def _spans(self, applied: Collection[str] = ()) -> Spans:
        """The updates that come next; `applied` is as in `spans_after`."""
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
        found, spans = read_whole(self._handle, self._wanted, spans, self._spans)
        tables = {name: rows for name, rows in found.items() if isinstance(rows, pa.Table)}
        long = {name: rows for name, rows in found.items() if not isinstance(rows, pa.Table)}
        if len(self._wanted) == 1 and long:
            ((name, batches),) = long.items()
            arrow = self._wanted[name].arrow
            for table, through in in_whole_times(batches, arrow, spans.through):
                yield self._deliver({name: table}, through)
        elif long or any(table.num_rows for table in tables.values()):
            # Many changes of several tables are one change in pieces: what happened at one time
            # is spread over all of it.
            for name, batches in long.items():
                for table in in_tables(batches, self._wanted[name].arrow):
                    yield self._deliver({name: table}, None)
            yield self._deliver(tables, spans.through)
        self._after = spans.through
