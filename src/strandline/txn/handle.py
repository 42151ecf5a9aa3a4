"""What a database, its tables and its scans share in one process: the open store.

A handle may be used from many threads. It does not follow its process into a fork, and does not go
into a pickle: there, it opens the database again, with a session of its own.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from strandline.env import Deadline, given_seconds
from strandline.errors import UsageError
from strandline.settings import Settings
from strandline.times import whole
from strandline.txn.overlay import Overlay
from strandline.txn.store import Store

__all__ = ["Handle", "Origin", "limit_of"]


@dataclass(frozen=True, slots=True)
class Origin:
    """How the database was opened, and how it can be opened again."""

    url: str
    mode: str
    settings: Settings
    reopen: Callable[[Origin], Store]
    leaves_process: bool
    """Whether another process reaches the same database."""


class Handle:
    """The store of one open database. Thread-safe."""

    def __init__(self, store: Store, origin: Origin) -> None:
        self.origin = origin
        self.overlay = Overlay()
        self._store: Store | None = store
        self._closed = False
        self._lock = threading.Lock()
        _handles.add(self)

    @property
    def store(self) -> Store:
        """The open store; one of its own after a fork. UsageError once it is closed."""
        # A fork and a close leave None, so that this, on the path of every lookup, is one test.
        store = self._store
        return store if store is not None else self._reopened()

    def deadline(self, timeout: float | None) -> Deadline:
        """By when a call that was given `timeout=` (seconds; None: the default) has to be done."""
        store = self.store
        return Deadline.of(store.env, timeout, store.settings.timeout_seconds)

    def another(self) -> Handle:
        """Another handle on the same database, with a store and sessions of its own."""
        return Handle(self.origin.reopen(self.origin), self.origin)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self, *, timeout: float | None = None) -> None:
        """Ends background work and the session. Closing twice is harmless."""
        limit = None if timeout is None else given_seconds(timeout, "timeout")
        with self._lock:
            store, self._store, self._closed = self._store, None, True
        if store is not None:
            store.close(Deadline.of(store.env, limit, store.settings.timeout_seconds))

    def end_background(self) -> None:
        """Ends what runs beside the callers; for the end of the process."""
        if self._store is not None:
            self._store.background.close()

    def __reduce__(self) -> tuple[Callable[[Origin], Handle], tuple[Origin]]:
        if not self.origin.leaves_process:
            raise UsageError(
                f"the database {self.origin.url} lives in the memory of this process and cannot "
                "be pickled; use a directory to share one"
            )
        return _opened, (self.origin,)

    def _reopened(self) -> Store:
        with self._lock:
            if self._closed:
                raise UsageError(f"the database {self.origin.url} was closed; connect to it again")
            if self._store is None:
                if not self.origin.leaves_process:
                    raise UsageError(
                        f"the database {self.origin.url} lives in the memory of the process that "
                        "this one was forked from; use a directory to share one"
                    )
                self._store = self.origin.reopen(self.origin)
            return self._store

    def after_fork(self) -> None:
        """Forgets what belongs to the process that this one was forked from.

        SUBTLE: the parent's store is kept from being collected, so that nothing of it is closed
        here: its locks may be held by threads that exist in the parent only.
        """
        if self._store is not None:
            _inherited.append(self._store)
        self._store = None
        self._lock = threading.Lock()
        self.overlay = Overlay()


def _opened(origin: Origin) -> Handle:
    return Handle(origin.reopen(origin), origin)


_handles: weakref.WeakSet[Handle] = weakref.WeakSet()
_inherited: list[Store] = []


def _after_fork() -> None:
    for handle in list(_handles):
        handle.after_fork()


def _at_exit() -> None:
    """Lets background work end its bite before the interpreter goes.

    SUBTLE: a thread of ours that comes back out of Arrow while the interpreter is ending aborts
    the whole process. The work itself could be cut off anywhere; others would go on with it.
    """
    for handle in list(_handles):
        handle.end_background()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)


def limit_of(limit: Any) -> int | None:
    """How many rows a user wants at most; None: all. UsageError for what is no such number."""
    if limit is None:
        return None
    rows = whole(limit)
    if rows is None or rows < 0:
        raise UsageError(f"limit={limit!r}: pass a whole number of rows, 0 or more")
    return rows
