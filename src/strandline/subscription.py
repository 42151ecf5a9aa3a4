"""Subscriptions: every change of a table, in whole commit times, each exactly once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from strandline.differences import Difference, Wanted
from strandline.env import Deadline
from strandline.errors import AsOfInFuture, AsOfTooOld, Corruption, UsageError
from strandline.handle import Handle
from strandline.location import BlobMissing
from strandline.parts.schema import TIME
from strandline.parts.sort import sort_stream, sort_table
from strandline.reading import Reading, Want
from strandline.shard.missing import state_without
from strandline.times import Progress, parse_as_of
from strandline.txn.changes import Spans, look, too_old
from strandline.txn.holds import Place, hold_place
from strandline.txn.view import View, view_of

__all__ = ["Change", "Course", "Subscription", "start_of"]

_CHANGE_BYTES = 32 << 20
"""Changes that take no more are delivered at once; more are sorted on disk and come in pieces."""

_CHANGE_ROWS = 262_144
"""Rows of a change at which the next one begins, where there are more than can be held."""

_WINDOW_ROWS = 4_000_000
"""Rows that are read and sorted at once, about: the work that is lost if it is interrupted."""

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


class Subscription:
    """An iterator over changes; it waits for those to come. For one thread at a time.

    Use it in a `for` loop, or in a `with` block that ends it. After an error the next call goes on
    from `progress`, unless it was within a change that is not complete.
    """

    def __init__(self, course: Course) -> None:
        self._course = course
        self._changes: Iterator[Change] | None = None
        self._ended = False

    @property
    def progress(self) -> Progress:
        """How far the subscription has come, also where that brought no change."""
        return self._course.progress

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows of its changes."""
        return self._course.schema

    def __iter__(self) -> Iterator[Change]:
        return self

    def __next__(self) -> Change:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the iteration, and what is held for it. A named subscription keeps its place."""
        self._ended = True
        self._changes = None
        self._course.close()

    def __del__(self) -> None:
        # Nothing that lives on refers to this object: a loop that is left lets go of it at once.
        self._course.leave()


class Course:
    """How a subscription goes on: where it is, what it waits for, and what it holds."""

    def __init__(
        self,
        handle: Handle,
        wanted: Wanted,
        *,
        start: str | int,
        until: int | None,
        timeout: float | None,
        poll: float,
        name: str | None,
    ) -> None:
        self._handle = handle
        self._wanted = wanted
        self._until = until
        self._timeout = timeout
        self._poll = poll
        self._place: Place | None = None
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
    def schema(self) -> pa.Schema:
        """The schema of the rows of its changes."""
        return self._wanted.arrow

    def close(self) -> None:
        """Ends what is held."""
        place, self._place = self._place, None
        if place is not None and not self._handle.closed:
            place.close(timeout=self._handle.deadline(None).remaining())

    def leave(self) -> None:
        """Has what is held ended soon; makes no request.

        This may be called anywhere, also while this thread holds a lock of ours.
        """
        place, self._place = self._place, None
        if place is not None:
            place.leave()

    # --- the beginning

    def _begun(self, start: str | int, name: str | None) -> _Start:
        """Finds out where to begin, and holds the history from there on."""
        store = self._handle.store
        version = self._wanted.version
        deadline = self._handle.deadline(None)
        while True:
            begun = self._where(start, deadline.remaining())
            if store.read_only:
                return begun
            try:
                self._place = hold_place(
                    store,
                    version.table,
                    max(0, begun.after),
                    name=name,
                    note=version.name,
                    timeout=deadline.remaining(),
                )
            except AsOfTooOld:
                # SUBTLE: between the two, history up to what was the latest time was given up.
                if begun.moving:
                    deadline.check("beginning a subscription", may_have_happened=False)
                    continue
                since = store.data(version.table).state.meta.since
                raise too_old(version.name, begun.after, since or 0) from None
            return begun

    def _where(self, start: str | int, timeout: float) -> _Start:
        store = self._handle.store
        state = store.txns.refresh(timeout=timeout)
        latest = store.txns.latest(state)
        version = store.txns.table_by_id(state, self._wanted.version.table)
        if isinstance(start, str):
            if self._until is not None:
                latest = min(latest, self._until)
            return _Start(latest, snapshot=start == "snapshot", moving=True)
        if start > max(latest, store.env.now_micros()):
            raise AsOfInFuture(f"start {start} lies in the future; the latest time is {latest}")
        # Before there was the table, nothing happened to it.
        return _Start(max(start, version.created - 1), snapshot=False, moving=False)

    # --- all of it

    def changes(self) -> Iterator[Change]:
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

    def _told(self) -> Change:
        """A change that only says how far time has come."""
        self._delivered = self._after
        return Change(self._wanted.arrow.empty_table(), Progress(self._after))

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
        timeout = self._handle.deadline(None).remaining()
        store.txns.commit(at_least=until, operation="advance", timeout=timeout)
        return True

    def _acknowledge(self) -> None:
        """Tells now and then that what was delivered is not needed any more."""
        now = self._handle.store.env.monotonic()
        if self._place is None or not self._whole or now - self._moved < _MOVE_SECONDS:
            return
        self._moved = now
        if self._after >= 0 and not self._snapshot:
            self._place.move(self._after, timeout=self._handle.deadline(None).remaining())

    def _deliver(self, rows: pa.Table, through: int | None) -> Change:
        """The rows as a change. `through`: they complete everything up to that time."""
        self._whole = through is not None
        if through is not None:
            self._after = self._delivered = through
            self._snapshot = False
        return Change(rows, self.progress, complete=self._whole)

    # --- the snapshot

    def _first(self) -> Iterator[Change]:
        """The rows as of the time at which the subscription begins; each change but the last is
        not complete.
        """
        handle, wanted = self._handle, self._wanted
        deadline = handle.deadline(None)
        view = self._snapshot_view(deadline)
        time = view.as_of
        want = Want(wanted.columns, condition=wanted.condition)
        last: pa.Table | None = None
        for rows in Reading(handle, view, want, deadline).tables():
            if last is not None:
                yield self._deliver(last, None)
            last = wanted.as_changes(rows, time)
        yield self._deliver(wanted.arrow.empty_table() if last is None else last, time)

    def _snapshot_view(self, deadline: Deadline) -> View:
        store, table = self._handle.store, self._wanted.version.table
        while True:
            try:
                return view_of(store, table, self._after, timeout=deadline.remaining())
            except AsOfTooOld:
                # SUBTLE: without a hold (a handle that only reads, or a lease that is over) what
                # was the latest time may be given up before it is read. A later one does as well,
                # as nothing was delivered yet.
                later = self._where("snapshot", deadline.remaining()).after
                if later == self._after or not self._whole:
                    raise
                self._after = later
                deadline.check("beginning a subscription", may_have_happened=False)

    # --- what came after it

    def _look(self, *, applied: bool = False) -> Spans:
        return look(
            self._handle.store,
            [self._wanted.asked],
            self._after,
            until=self._until,
            rows_max=_WINDOW_ROWS,
            applied=applied,
            deadline=self._handle.deadline(None),
        )

    def _window(self, spans: Spans) -> Iterator[Change]:
        """The changes in the spans; none if there are none."""
        rows, spans = self._read(spans)
        if isinstance(rows, pa.Table):
            if rows.num_rows:
                yield self._deliver(rows, spans.through)
        else:
            for table, through in _in_whole_times(rows, self._wanted.arrow, spans.through):
                yield self._deliver(table, through)
        self._after = spans.through

    def _read(self, spans: Spans) -> tuple[pa.Table | Iterator[pa.RecordBatch], Spans]:
        """All changes in the spans, sorted by time and then key: a table, or a long stream.

        SUBTLE: nothing is delivered before everything was read (the stream is sorted). So where a
        part is gone, because the table was compacted and vacuumed meanwhile, all is read anew from
        what is stored now, which has the same updates; at times up to since it has not, and then
        `look` says so.
        """
        deadline = self._handle.deadline(None)
        while True:
            try:
                return self._sorted(spans), spans
            except BlobMissing as error:
                # Corruption if the table still needs it.
                state_without(spans.spans[0].machine, error, deadline)
                spans = self._look(applied=True)
                if spans.through <= spans.after:  # it belongs to a commit that is not applied
                    raise Corruption(
                        f"the part {error.key} of a commit to table "
                        f"{self._wanted.version.name!r} is missing; restore it from a copy",
                        object=error.key,
                    ) from error
                deadline.check("reading changes", may_have_happened=False)

    def _sorted(self, spans: Spans) -> pa.Table | Iterator[pa.RecordBatch]:
        settings = self._handle.store.settings
        tables = self._tables(spans)
        held: list[pa.Table] = []
        size = 0
        for table in tables:
            held.append(table)
            size += table.nbytes
            if size > _CHANGE_BYTES:
                break
        else:
            # Stable: by key within one time, as it was read.
            table = pa.concat_tables(held) if held else self._wanted.arrow.empty_table()
            return sort_table(table, [TIME])
        ordered = sort_stream(
            chain(held, tables),
            [TIME],
            stable=True,
            schema=self._wanted.arrow,
            memory_bytes=settings.sort_memory_bytes,
            threads=settings.threads,
        )
        first = next(iter(ordered))  # from here on everything was read
        return chain([first], ordered)

    def _tables(self, spans: Spans) -> Iterator[pa.Table]:
        for span in spans.spans:
            difference = Difference(self._handle, self._wanted, spans, span, None)
            yield from (table for table in difference.tables() if table.num_rows)


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
