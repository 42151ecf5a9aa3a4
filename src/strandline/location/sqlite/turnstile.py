"""One writer at a time, in turn: among the threads of a process and among processes."""

from __future__ import annotations

import fcntl
import os
import threading
from collections import deque

from strandline.env import Deadline, Env
from strandline.location.failures import failure

__all__ = ["FairLock", "Turnstile", "VisibleLock"]

# How long the process at the front looks away between two looks at the lock, in seconds, and how
# long those behind it look away from the front. With jitter, so that nobody is always late.
_FRONT_SECONDS = (0.000_02, 0.000_05)
_QUEUE_SECONDS = (0.001, 0.003)


class FairLock:
    """A lock that goes from thread to thread in the order in which they asked."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Lock] = deque()

    def acquire(self, timeout: float) -> bool:
        """Whether the lock was got within `timeout` seconds."""
        with self._guard:
            if not self._taken:
                self._taken = True
                return True
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        if turn.acquire(timeout=timeout):
            return True
        with self._guard:
            if turn in self._waiting:
                self._waiting.remove(turn)
                return False
        return True  # it was handed over just as the time was up

    def release(self) -> None:
        """Hands the lock to whoever waits longest."""
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False


class Turnstile:
    """Two locks on files, of which the first is the place at the front of the queue for the second.

    Who has the front waits for the lock, and gives up the front once it has the lock. So whoever
    has just had its turn finds the front taken, and cannot have another before the one who waits:
    with a single lock it is awake when the lock becomes free, and the others sleep.

    The kernel can queue waiters too (a blocking `flock`), but such a wait has no deadline. Measured
    with 8 processes over 3 s, each appending to a log of its own, with a commit slowed down to take
    0.2 ms; commits in all, slowest process in units of the mean, longest wait:

    - SQLite's busy handler: 2,300 to 3,800 a second, 0.00, 3,400 ms
    - looking every 0.2 ms: 2,900 to 3,600, 0.76 to 0.89, 160 to 210 ms
    - two locks, blocking: 2,500 to 3,500, 0.99 to 1.00, 8 to 36 ms
    - these two locks: 2,700 to 3,200, 0.91 to 0.98, 23 to 46 ms

    The locks go when their process dies, however it dies.
    """

    def __init__(self, path: str, env: Env) -> None:
        self._path = path
        self._env = env
        self._threads = FairLock()
        self._front = -1
        self._lock = -1

    def enter(self, deadline: Deadline, doing: str) -> None:
        """Waits for the turn; `DeadlineExceeded`, and nothing happened, if it does not come."""
        if not self._threads.acquire(deadline.remaining()):
            deadline.check(doing, may_have_happened=False)
        try:
            if self._lock < 0:
                self._open()
            self._wait(self._front, _QUEUE_SECONDS, deadline, doing)
            try:
                self._wait(self._lock, _FRONT_SECONDS, deadline, doing)
            finally:
                fcntl.flock(self._front, fcntl.LOCK_UN)
        except BaseException:
            self._threads.release()
            raise

    def leave(self) -> None:
        """Lets the next one in."""
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        self._threads.release()

    def abandon(self) -> None:
        """For a process that was just forked: forgets who in the parent was inside or waiting.

        The descriptors are the parent's, its locks with them; to close them here leaves those be.
        """
        self.close()
        self._threads = FairLock()

    def close(self) -> None:
        """Gives back the file descriptors. Nobody may be inside or waiting."""
        for descriptor in (self._front, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._front = self._lock = -1

    def __del__(self) -> None:
        self.close()

    def _open(self) -> None:
        try:
            # Only for reading: who may write to the log but did not make these files can lock them.
            flags = os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC
            if self._front < 0:
                self._front = os.open(f"{self._path}-front", flags, 0o666)
            self._lock = os.open(f"{self._path}-lock", flags, 0o666)
        except OSError as error:
            raise failure(
                error, f"opening the locks of {self._path}", may_have_happened=False
            ) from error

    def _wait(
        self, descriptor: int, between: tuple[float, float], deadline: Deadline, doing: str
    ) -> None:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                deadline.check(doing, may_have_happened=False)
                least, most = between
                self._env.sleep(least + (most - least) * self._env.random())
            except OSError as error:
                raise failure(error, f"locking {self._path}", may_have_happened=False) from error


class VisibleLock:
    """A lock on a file that one thread of one process has, and that all others can see.

    To look takes the lock, shared, for a moment, so that a claim may be refused to somebody because
    others look; who wants it asks again. The file is made by the first claim: where nobody ever
    claimed anything, there is none.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._guard = threading.Lock()
        self._descriptor = -1
        self._owner = 0

    def take(self) -> bool:
        """Whether this thread has it now."""
        with self._guard:
            if self._owner:
                return self._owner == threading.get_ident()
            if not self._opened(os.O_CREAT) or not self._locked(fcntl.LOCK_EX):
                return False
            self._owner = threading.get_ident()
            return True

    def give_back(self) -> None:
        """Nothing happens if this thread does not have it."""
        with self._guard:
            if self._owner == threading.get_ident():
                self._owner = 0
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def is_taken(self) -> bool:
        """Whether another thread has it, of this process or of another."""
        with self._guard:
            if self._owner:
                return self._owner != threading.get_ident()
            if not self._opened(0):
                return False
            if not self._locked(fcntl.LOCK_SH):
                return True
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            return False

    def abandon(self) -> None:
        """For a process that was just forked, as `Turnstile.abandon`."""
        self._guard = threading.Lock()
        self.close()

    def close(self) -> None:
        """Gives back the file descriptor, and the lock with it."""
        with self._guard:
            descriptor, self._descriptor, self._owner = self._descriptor, -1, 0
            if descriptor >= 0:
                os.close(descriptor)

    def __del__(self) -> None:
        self.close()

    def _opened(self, flags: int) -> bool:
        if self._descriptor < 0:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | flags, 0o666)
            except OSError:
                return False
        return True

    def _locked(self, how: int) -> bool:
        try:
            fcntl.flock(self._descriptor, how | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
