"""What a handle does beside its callers: apply, small merges, rollups; all in small bites."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Iterable

from strandline.env import Deadline, Env, Worker
from strandline.errors import DeadlineExceeded, StrandlineError
from strandline.ids import DatabaseId, ShardId
from strandline.location import Location
from strandline.settings import Settings
from strandline.txn.apply import apply_table
from strandline.txn.store import Store
from strandline.upkeep.compaction import shorten

__all__ = ["Background", "open_store"]

_log = logging.getLogger("strandline")


def open_store(
    location: Location, database: DatabaseId, txns_shard: ShardId, env: Env, settings: Settings
) -> Store:
    """A store with its background work; nothing is read or started before it is used."""
    store = Store(location, database, txns_shard, env, settings)
    store.background = Background(store)
    return store


class Background:
    """Keeps the backlog of the tables that this handle writes to bounded.

    Correctness needs none of it: a handle that dies in the middle leaves work for others. With
    `Settings.background` off, writers do the same work themselves when it is due.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._due: dict[str, None] = {}
        self._written: set[str] = set()
        """Tables with commits of this handle since the last look at sessions."""
        self._look_every = store.settings.lease_seconds / 4
        self._look_at = store.env.monotonic() + self._look_every
        self._bytes: dict[str, int] = {}
        self._applying: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        """Per table, held by the thread that applies: others of this handle have nothing to do."""
        self._leaves: dict[tuple[str, bytes | None], None] = {}
        """Leaves (None: L0) of tables that got parts and were not looked at since."""
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._closed = False

    def before_write(self, table: str, deadline: Deadline) -> None:
        """Applies first if the table's backlog is past its bound: who piles up pays."""
        if not self._is_full(table):
            return
        # SUBTLE: all threads that write come here at once, and each would gather the same commits,
        # of which one can be entered. So one does, and the others wait for it: that is their price.
        if not self._applying[table].acquire(timeout=deadline.remaining()):
            raise DeadlineExceeded(
                "earlier commits to the table could not be applied in time, and this one was not "
                "begun; pass a larger timeout= to wait longer",
                may_have_happened=False,
            )
        try:
            if self._is_full(table):
                self._apply(table, deadline)
        finally:
            self._applying[table].release()

    def after_commit(self, written: Iterable[tuple[str, int, bool]], deadline: Deadline) -> None:
        """Takes note of what was committed; starts what is due, or does it if nobody else will.

        Raises nothing: the commit stands, whatever comes of this, and its caller has to hear so.
        """
        try:
            self._after_commit(written, deadline)
        except StrandlineError as error:
            _log.warning("work after a commit failed and is left for later: %s", error)

    def _after_commit(self, written: Iterable[tuple[str, int, bool]], deadline: Deadline) -> None:
        self._store.milestones.passed(deadline)
        settings = self._store.settings
        due = []
        written = list(written)
        with self._lock:
            self._written.update(table for table, _, _ in written)
        for table, size, has_parts in written:
            total = self._bytes[table] = self._bytes.get(table, 0) + size
            if has_parts or total >= settings.backlog_bytes_max // 8 or self._is_responsible(table):
                due.append(table)
        rollup = self._store.txns.machine.rollup_due
        if not due and not rollup and not self._look_due:
            return
        if settings.background:
            with self._lock:
                self._due.update(dict.fromkeys(due))
            self._wake()
            return
        each = deadline.left()
        for table in due:
            self._apply(table, each.again())
        while self._shorten_next(each.again()):
            pass
        self._roll_up()
        self._look_out(each.again())

    def close(self) -> None:
        """Ends the worker; what it had not done is left for others."""
        with self._lock:
            self._closed = True
            worker = self._worker
        if worker is not None:
            worker.stop()

    def _is_full(self, table: str) -> bool:
        settings = self._store.settings
        return (
            self._backlog(table) >= settings.backlog_commits_max
            or self._bytes.get(table, 0) >= settings.backlog_bytes_max
        )

    def _is_responsible(self, table: str) -> bool:
        """Whether this handle's last commit to the table was the one that makes apply due.

        Where several processes write, each of them meets a backlog past its bound, and all but one
        would gather its rows in vain. So it is up to whose commit fills a bite; should that process
        be gone, or busy with another, it is up to one in some commits after twice as many.
        """
        every = self._store.settings.apply_backlog_commits
        backlog = self._backlog(table)
        if not self._store.settings.background:
            return backlog >= every
        step = every if backlog < 2 * every else max(1, every // 8)
        return backlog >= every and backlog % step == 0

    def _backlog(self, table: str) -> int:
        """Commits to the table that this handle knows of and does not know to be applied."""
        upper = self._store.data(table).state.meta.upper or 0
        return self._store.txns.backlog(table, upper)

    def _wake(self) -> None:
        with self._lock:
            if self._closed:
                return
            if self._worker is None:
                self._worker = self._store.env.start_worker("strandline-background", self._run)
            worker = self._worker
        worker.wake()

    def _run(self) -> None:
        """One run of the worker. Never raises: what failed is due again with the next commit."""
        while not self._closed:
            with self._lock:
                table = next(iter(self._due), None)
                if table is not None:
                    del self._due[table]
            try:
                self._roll_up()
                # From here on: rollups that take long, or fail, leave the rest its time.
                deadline = Deadline(self._store.env, self._store.settings.timeout_seconds)
                if table is not None:
                    self._apply_beside(table, deadline)
                elif not self._shorten_next(deadline):
                    self._look_out(deadline)
                    return
            except StrandlineError as error:
                _log.warning("background work on %s failed and is left for later: %s", table, error)
                return

    def _apply_beside(self, table: str, deadline: Deadline) -> None:
        if self._applying[table].acquire(blocking=False):
            try:
                self._apply(table, deadline)
            finally:
                self._applying[table].release()

    def _apply(self, table: str, deadline: Deadline) -> None:
        self._bytes[table] = 0
        applied = apply_table(self._store, table, deadline)
        with self._lock:
            self._leaves.update(dict.fromkeys((table, lower) for lower in applied.leaves))

    def _shorten_next(self, deadline: Deadline) -> bool:
        """Looks at the leaf that waits longest, and takes one bite there; False if none waits.

        Then what is to be applied goes first again: it waits for one bite at most.
        """
        with self._lock:
            table, lower = next(iter(self._leaves), ("", None))
            if not table:
                return False
            del self._leaves[table, lower]
        again = shorten(self._store, table, lower, deadline)
        with self._lock:
            self._leaves.update(dict.fromkeys((table, leaf) for leaf in again))
        return True

    @property
    def _look_due(self) -> bool:
        return self._store.env.monotonic() >= self._look_at

    def _look_out(self, deadline: Deadline) -> None:
        """Looks after the sessions of others, now and then while this handle is in use.

        A handle that nothing is written through looks at nothing.
        """
        with self._lock:
            if not self._look_due:
                return
            self._look_at = self._store.env.monotonic() + self._look_every
            tables, self._written = self._written, set()
        self._store.txns.clock.measure(deadline)
        self._store.look_out(sorted(tables), deadline)

    def _roll_up(self) -> None:
        for machine in self._store.machines():
            if machine.rollup_due:
                machine.maybe_rollup()
