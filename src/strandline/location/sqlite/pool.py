"""SQLite connections that are shared by threads and do not cross a fork."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from strandline.errors import UsageError

__all__ = ["Pool"]

Rows = list[tuple[Any, ...]]


class _Connection:
    __slots__ = ("lock", "sqlite", "version")

    def __init__(self, connection: sqlite3.Connection, version: object) -> None:
        self.sqlite = connection
        self.version = version
        self.lock = threading.Lock()


class Pool:
    """As many connections as there are calls at one time, each with its prepared statements.

    SUBTLE: a process that was forked inherits, with a connection, what SQLite remembers of the
    locks that the parent holds on the file. The child does not hold them. Even a connection that
    the child opens afresh believes in them, as SQLite keeps them per file and not per connection;
    it would go on appending to a log that the parent, in all innocence, has removed: lost commits.
    So every inherited connection has to be closed in the child before one is opened. To close one
    in the middle of a transaction would reach into the memory that it shares with the parent, so
    a fork first waits until no call is under way; and waits for no longer than a call takes.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._opening = threading.Lock()
        self._all: list[_Connection] = []
        self._idle: deque[_Connection] = deque()
        self._held: list[_Connection] = []
        self._closed = False
        _POOLS.add(self)

    def execute(
        self, sql: str, parameters: tuple[object, ...], version: object = None
    ) -> tuple[Rows, int]:
        """The rows of a query and the number of rows that a change touched.

        A connection that was opened for another `version` of the file is not used.
        """
        connection = self._borrow(version)
        try:
            cursor = connection.sqlite.execute(sql, parameters)
            return cursor.fetchall(), cursor.rowcount
        except sqlite3.Error as error:
            # After a real failure nothing is expected of the connection any more.
            if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY:
                self._discard(connection)
            raise
        finally:
            connection.lock.release()
            self._idle.append(connection)

    def close(self) -> None:
        """Closes all connections, each when the call that it serves has ended."""
        self._closed = True
        with self._opening:
            for connection in list(self._all):
                with connection.lock, suppress(sqlite3.Error):
                    connection.sqlite.close()
            self._all.clear()
            self._idle.clear()

    def _borrow(self, version: object) -> _Connection:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self._open(version)
            connection.lock.acquire()
            if connection.version == version and not self._closed:
                return connection
            self._discard(connection)
            connection.lock.release()

    def _open(self, version: object) -> _Connection:
        with self._opening:
            if self._closed:
                raise UsageError("this log was closed; open another one")
            connection = _Connection(self._connect(), version)
            connection.lock.acquire()
            self._all.append(connection)
            return connection

    def _discard(self, connection: _Connection) -> None:
        """Closes a connection that this thread has locked. It may yet return to the idle ones."""
        connection.version = _DISCARDED
        with suppress(sqlite3.Error):
            connection.sqlite.close()
        # Not before it is closed, or a fork would not wait for that; and without `_opening`,
        # under which others wait for this connection.
        with suppress(ValueError):
            self._all.remove(connection)

    def before_fork(self) -> None:
        """Waits until no call is under way, and keeps it so."""
        self._opening.acquire()
        self._held = list(self._all)
        for connection in self._held:
            connection.lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Lets calls go on."""
        for connection in self._held:
            connection.lock.release()
        self._held = []
        self._opening.release()

    def after_fork_in_child(self) -> None:
        """Begins anew without the parent's connections."""
        for connection in self._held:
            with suppress(sqlite3.Error):
                connection.sqlite.close()
        self._held = []
        self._all.clear()
        self._idle.clear()
        self._opening = threading.Lock()


_DISCARDED = object()
_POOLS: weakref.WeakSet[Pool] = weakref.WeakSet()


class _Fork:
    """The pools that are held still while the process forks."""

    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._pools: list[Pool] = []

    def before(self) -> None:
        self._one_at_a_time.acquire()
        self._pools = list(_POOLS)
        for pool in self._pools:
            pool.before_fork()

    def after_in_parent(self) -> None:
        for pool in self._pools:
            pool.after_fork_in_parent()
        self._pools = []
        self._one_at_a_time.release()

    def after_in_child(self) -> None:
        for pool in self._pools:
            pool.after_fork_in_child()
        self._pools = []
        self._one_at_a_time = threading.Lock()


_FORK = _Fork()
os.register_at_fork(
    before=_FORK.before,
    after_in_parent=_FORK.after_in_parent,
    after_in_child=_FORK.after_in_child,
)
