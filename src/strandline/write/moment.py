"""The moment that a transaction reads, and its tables as others left them by then."""

from __future__ import annotations

import threading

from strandline.env import Deadline
from strandline.errors import AsOfTooOld
from strandline.shard.look import Look
from strandline.txn.handle import Handle
from strandline.txn.view import View, view_at
from strandline.write.ddl import SeenTables

__all__ = ["Moment"]


class Moment:
    """One moment of all tables. While nothing was read of it, it may become a later one."""

    def __init__(self, handle: Handle, known: Look) -> None:
        self.tables = SeenTables(handle, known)
        self.time = handle.store.txns.latest(known)
        """In µs; -1 in a database without a commit."""
        self._handle = handle
        self._views: dict[str, View] = {}
        self._has_read = False
        self._lock = threading.Lock()

    def view(self, table: str, deadline: Deadline) -> View:
        """The table with that id at this moment, or at a later one if it keeps this no more."""
        known = self._views.get(table)
        if known is not None:
            return known
        while True:
            with self._lock:
                look, time = self.tables.look(deadline), self.time
            try:
                view = self._looked(table, look, time, deadline)
            except AsOfTooOld:
                if not self._moves_on(time, deadline):
                    raise
                continue
            with self._lock:
                if self._has_read:
                    self._views[table] = view
            return view

    def gave(self, time: int) -> None:
        """A read of that time gives its first rows: from now on the transaction is there.

        SUBTLE: of several reads that begin at once one may have moved the time. What the others
        have found was not given to anybody yet, and they begin anew.
        """
        with self._lock:
            if max(0, self.time) != max(0, time):
                raise AsOfTooOld(
                    f"the transaction went on from {time}, which is not kept any more, to "
                    f"{self.time} before it had read anything; read again"
                )
            self._has_read = True

    def _looked(self, table: str, look: Look, time: int, deadline: Deadline) -> View:
        store, new = self._handle.store, self.tables.new(table)
        if new is not None:
            # Also in a database without a commit, whose time is -1.
            return view_at(store, look, new, max(0, time), deadline)
        version = store.txns.table_by_id(look, table)
        return view_at(store, look, version, time, deadline)

    def _moves_on(self, before: int, deadline: Deadline) -> bool:
        """Whether the time that is read is a later one than `before` now, as that is given up.

        It moves while nothing was read. What this handle knew may be long ago, and would stay so:
        nothing else looks for more.
        """
        txns = self._handle.store.txns
        look = txns.look(deadline)
        latest = txns.latest(look)
        with self._lock:
            if self._has_read or latest <= self.time:
                return self.time > before
            self.time = latest
            self.tables.move_on(look)
        return True
