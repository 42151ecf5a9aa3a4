"""The one door to clock, randomness, threads and sleep.

Everything else takes an `Env`, so that the simulator (`strandline.testing`) can run the same code
on a clock, a random source and a scheduler of its own. A lint rule bans the modules used here
everywhere else.
"""

from __future__ import annotations

import numbers
import os
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, Self, TypeVar

from strandline.errors import DeadlineExceeded, UsageError

__all__ = [
    "LONG_SECONDS",
    "Deadline",
    "Env",
    "RealEnv",
    "Worker",
    "away_from_signals",
    "given_seconds",
    "retry_delays",
]

A = TypeVar("A")
B = TypeVar("B")

LONG_SECONDS = 86_400.0
"""Deadline of upkeep that is given none: how much there is to do, nobody knows beforehand."""

_LONGEST_SECONDS = 1e9
"""Thirty years: what is asked to wait for longer waits so long. Clocks and locks take no more."""

_LOOK_SECONDS = 0.1
"""For how long a thread that waits does not look for Ctrl-C."""

_STOP_SECONDS = 0.02
"""Between two tries to stop what runs beside the caller."""


class Worker(Protocol):
    """A background loop that was started with `Env.start_worker`."""

    def wake(self, *, after: float = 0.0) -> None:
        """Asks the worker to run its function in so many seconds, or sooner if asked again.

        Wakes that fall together run it once.
        """

    def stop(self) -> None:
        """Lets the run under way end, then ends the worker. Returns when it has ended."""


class Env(Protocol):
    """What a process may ask of the world besides Blob and Consensus."""

    def now_micros(self) -> int:
        """Wall clock: microseconds since the Unix epoch, UTC. May jump."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; its zero means nothing."""

    def sleep(self, seconds: float) -> None:
        """Waits."""

    def random(self) -> float:
        """A float in [0, 1), for jitter."""

    def token_hex(self, nbytes: int) -> str:
        """`2 * nbytes` lower-case hex digits that no other process draws, for ids."""

    def parallel(self, function: Callable[[A], B], items: Sequence[A]) -> list[B]:
        """`[function(i) for i in items]`, run side by side; raises the first in item order."""

    def stream(self, function: Callable[[A], B], items: Iterable[A], *, ahead: int) -> Iterator[B]:
        """`function(i)` for each item, in order, while up to `ahead` more are being made.

        An error is raised in its item's place. An iterator that is closed begins nothing more.
        """

    def interruptible(
        self, function: Callable[[], B], stop: Callable[[], None], *, seconds: float
    ) -> B:
        """`function()`, for which the caller waits where Ctrl-C reaches it.

        After `seconds`, or Ctrl-C, calls `stop` until the function ends, which it then has to. What
        became of it is returned or raised; after Ctrl-C that is raised again. No thread is left at
        work; one may wait for the next call.
        """

    def start_worker(self, name: str, function: Callable[[], None]) -> Worker:
        """Runs `function` once per wake on a thread of its own. `function` handles its errors."""

    def process_id(self) -> int:
        """A number that differs in a fork of this process."""

    def boot_id(self) -> str:
        """Names what `monotonic` counts from: processes that agree on it share that clock.

        Empty where that cannot be told.
        """

    def cache_dir(self) -> Path | None:
        """Where this user's processes may keep what can be lost; None: nowhere."""


def given_seconds(given: Any, what: str) -> float:
    """What a caller gave as `what=`, a time to wait; where each of them comes in.

    UsageError, before anything happens, for what is no number above 0: in no time nothing is done.
    """
    good = isinstance(given, numbers.Real) and not isinstance(given, bool)
    if not good or not given > 0:  # NaN is none
        raise UsageError(f"{what}={given!r:.200}: pass seconds, a number above 0")
    return float(min(given, _LONGEST_SECONDS))


class Deadline:
    """A point on the monotonic clock by which a call has to be done."""

    __slots__ = ("_env", "_seconds", "at")

    def __init__(self, env: Env, seconds: float) -> None:
        self._env = env
        self._seconds = seconds = min(seconds, _LONGEST_SECONDS)
        self.at = env.monotonic() + seconds

    @classmethod
    def of(cls, env: Env, timeout: Any, default: float) -> Self:
        """By when a call has to be done that was given `timeout=`; None: by the default."""
        return cls(env, default if timeout is None else given_seconds(timeout, "timeout"))

    @property
    def seconds(self) -> float:
        """The whole time."""
        return self._seconds

    def again(self) -> Deadline:
        """The same time once more, from now on."""
        return Deadline(self._env, self._seconds)

    def left(self) -> Deadline:
        """What is left now, as the whole time that each of several steps has: by its `again`."""
        return Deadline(self._env, self.remaining())

    def within(self, seconds: float) -> Deadline:
        """This one, or so many seconds from now if that is sooner."""
        return Deadline(self._env, min(seconds, self.remaining()))

    def not_before(self, seconds: float) -> Deadline:
        """This one, or so many seconds from now if that is later: what has to be tried at least."""
        return Deadline(self._env, max(seconds, self.remaining()))

    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at - self._env.monotonic())

    def check(self, doing: str, *, may_have_happened: bool) -> None:
        """Raises `DeadlineExceeded` when no time is left."""
        if self.remaining() <= 0.0:
            raise self.exceeded(doing, may_have_happened=may_have_happened)

    def exceeded(self, doing: str, *, may_have_happened: bool) -> DeadlineExceeded:
        """The error of what did not end in time."""
        how = f"did not end within {self._seconds:g} s"
        if self._seconds <= 0:  # it is a step of something, which has taken all of its time
            how = "did not begin, because the time was over"
        return DeadlineExceeded(
            f"{doing} {how}; pass a larger timeout= to wait longer",
            may_have_happened=may_have_happened,
        )

    def interruptible(self, function: Callable[[], B], stop: Callable[[], None]) -> B:
        """`Env.interruptible` for as long as is left."""
        return self._env.interruptible(function, stop, seconds=self.remaining())


class _ThreadWorker:
    def __init__(self, name: str, function: Callable[[], None]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._due: float | None = None
        self._called = threading.Event()
        self._stopping = False
        # A daemon: a process that forgets to close its database must still be able to end.
        # Whatever the worker was doing is then as if the process had been killed there.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self, *, after: float = 0.0) -> None:
        due = time.monotonic() + after
        with self._lock:
            if self._due is not None and self._due <= due:
                return
            self._due = due
        self._called.set()

    def stop(self) -> None:
        self._stopping = True
        self._called.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._called.wait(self._seconds_left())
            self._called.clear()
            if self._stopping:
                return
            if self._is_due():
                self._function()

    def _seconds_left(self) -> float | None:
        with self._lock:
            return None if self._due is None else max(0.0, self._due - time.monotonic())

    def _is_due(self) -> bool:
        with self._lock:
            if self._due is None or self._due > time.monotonic():
                return False
            self._due = None
            return True


_IDLE = "strandline-idle"
_IDLE_MAX = 16
"""Idle threads that a connection keeps: as many as it has for reading."""


class _Helper:
    """A thread that runs a function beside a caller, and then waits for the next."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], None], threading.Event] | None] = SimpleQueue()
        self._thread = threading.Thread(target=_help, args=(self._calls,), name=_IDLE, daemon=True)
        self._thread.start()

    @property
    def is_there(self) -> bool:
        """Whether it can run something: in a process that was forked it cannot."""
        return self._thread.is_alive()

    def begin(self, function: Callable[[], None], ended: threading.Event) -> None:
        """Has it run the function, which handles its errors; then nothing here refers to it."""
        self._calls.put((function, ended))

    def __del__(self) -> None:
        """Lets the thread end, once it has nothing to do."""
        self._calls.put(None)


def _help(calls: SimpleQueue[tuple[Callable[[], None], threading.Event] | None]) -> None:
    thread = threading.current_thread()
    while (call := calls.get()) is not None:
        function, ended = call
        thread.name = "strandline-query"
        function()
        thread.name = _IDLE
        del call, function
        ended.set()
        del ended


def _helper_of(idle: deque[_Helper]) -> _Helper:
    """One that waits, or a new one.

    They are used again because a thread is dear to DuckDB when it is new: `SELECT 1` took three
    times as long. The last one comes first, so that of a burst of them few stay awake.
    """
    while idle:
        try:
            helper = idle.pop()
        except IndexError:  # another thread had it
            break
        if helper.is_there:
            return helper
    return _Helper()


def _run_into(result: Future[B], function: Callable[[], B]) -> None:
    if not result.set_running_or_notify_cancel():
        return
    try:
        result.set_result(function())
    except BaseException as error:  # noqa: BLE001  for the one who waits
        result.set_exception(error)


def away_from_signals(function: Callable[[], B], stop: Callable[[], None]) -> B:
    """`function()`, on a thread that no signal reaches; `stop` ends it when Ctrl-C is pressed.

    For libraries that look for signals themselves, and then hold what they call back needs.
    """
    if threading.current_thread() is not threading.main_thread():
        return function()
    return _beside(function, stop, _LONGEST_SECONDS, deque())


def _beside(
    function: Callable[[], B], stop: Callable[[], None], seconds: float, idle: deque[_Helper]
) -> B:
    """`function()` on another thread, which the caller waits for: see `Env.interruptible`.

    `idle` are threads to choose from. It gets the one that was used, if that is to be kept.
    """
    result: Future[B] = Future()
    ended = threading.Event()
    run = partial(_run_into, result, partial(copy_context().run, function))
    try:
        helper = _helper_of(idle)
    except RuntimeError:  # the interpreter is ending and starts no threads any more
        run()
        return result.result()
    interrupt: BaseException | None = None
    try:
        helper.begin(run, ended)
        _wait(ended, seconds)
    except BaseException as error:  # Ctrl-C, or whatever the program makes of its signals
        interrupt = error
        if result.cancel():  # it has not begun, and will not
            raise
    while not ended.is_set():
        # SUBTLE: again and again. What is stopped may not have begun yet, and forget that it
        # was asked to when it does. And it is waited for, however often Ctrl-C is pressed: the
        # caller is about to let go of what the thread uses.
        try:
            stop()
            ended.wait(_STOP_SECONDS)
        except BaseException as error:  # noqa: BLE001  as above
            interrupt = error
    if len(idle) < _IDLE_MAX:
        idle.append(helper)
    if interrupt is not None:
        raise interrupt
    return result.result()


def _wait(ended: threading.Event, seconds: float) -> None:
    """Waits for the event, for so long at most."""
    until = time.monotonic() + seconds
    # SUBTLE: in small steps. A signal that comes right before the wait, or that another thread of
    # the process gets, does not end it: Python handles it when this thread wakes up.
    while not ended.wait(min(_LOOK_SECONDS, max(0.0, until - time.monotonic()))):
        if time.monotonic() >= until:
            return


class RealEnv:
    """The machine's own clocks, randomness and threads."""

    def __init__(self, *, threads: int = 16) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._here = threading.local()
        self._lock = threading.Lock()
        self._idle: deque[_Helper] = deque()
        """Threads that wait for something to do. One that nobody knows ends."""

    def now_micros(self) -> int:
        return time.time_ns() // 1_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def random(self) -> float:
        return random.random()

    def token_hex(self, nbytes: int) -> str:
        return secrets.token_hex(nbytes)

    def parallel(self, function: Callable[[A], B], items: Sequence[A]) -> list[B]:
        if len(items) <= 1 or self._inside():
            return [function(item) for item in items]
        try:
            results = self._executor().map(function, items)
        except RuntimeError:  # the interpreter is ending and starts no threads any more
            return [function(item) for item in items]
        return list(results)

    def stream(self, function: Callable[[A], B], items: Iterable[A], *, ahead: int) -> Iterator[B]:
        if self._inside():
            yield from map(function, items)
            return
        pending: deque[Future[B]] = deque()
        try:
            for item in items:
                pending.append(self._executor().submit(function, item))
                if len(pending) > ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def interruptible(
        self, function: Callable[[], B], stop: Callable[[], None], *, seconds: float
    ) -> B:
        return _beside(function, stop, seconds, self._idle)

    def start_worker(self, name: str, function: Callable[[], None]) -> Worker:
        return _ThreadWorker(name, function)

    def process_id(self) -> int:
        return os.getpid()

    def boot_id(self) -> str:
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
            # A container may have a clock of its own.
            return f"{boot} {Path('/proc/self/ns/time').readlink()}"
        except OSError:
            return ""

    def cache_dir(self) -> Path | None:
        given = os.environ.get("XDG_CACHE_HOME", "")
        try:
            # The specification has relative paths ignored.
            base = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
        except RuntimeError:  # a user without a home
            return None
        return base / "strandline"

    def _inside(self) -> bool:
        """Whether this is a thread of the pool.

        SUBTLE: what runs there does what it would run side by side one after the other. If it
        waited for threads of the pool, enough of them at once would wait for ever.
        """
        return getattr(self._here, "inside", False)

    def _executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                # SUBTLE: threads keep what they were begun with. If that led back here, the pool
                # would never be let go of, and each database that was opened would leave threads.
                self._pool = ThreadPoolExecutor(
                    self._threads,
                    thread_name_prefix="strandline-io",
                    initializer=partial(setattr, self._here, "inside", True),  # noqa: FBT003  a value
                )
            return self._pool


def retry_delays(env: Env, *, first_seconds: float, most_seconds: float) -> Iterable[float]:
    """Endless exponential delays with full jitter, in seconds."""
    ceiling = first_seconds
    while True:
        yield ceiling * env.random()
        ceiling = min(most_seconds, ceiling * 2)
