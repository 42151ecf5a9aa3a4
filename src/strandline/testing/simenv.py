"""The world of a simulated process: its clock, its randomness, its threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from strandline.testing.scheduler import Process, Scheduler

__all__ = ["SimEnv", "SimWorker"]

A = TypeVar("A")
B = TypeVar("B")


class SimEnv:
    """An `Env` on simulated time, in which threads are tasks and everything random is seeded."""

    def __init__(self, scheduler: Scheduler, process: Process) -> None:
        self._scheduler = scheduler
        self._process = process

    def now_micros(self) -> int:
        return self._scheduler.now + self._process.clock_offset

    def monotonic(self) -> float:
        return self._scheduler.now / 1_000_000

    def sleep(self, seconds: float) -> None:
        self._scheduler.switch("sleeps", seconds=max(0.0, seconds))

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Waits for something that other threads of the process do. No `Env` has this."""
        self._scheduler.switch("waits for its threads", ready=ready, seconds=None)

    def random(self) -> float:
        return self._scheduler.random.random()

    def token_hex(self, nbytes: int) -> str:
        return self._scheduler.random.randbytes(nbytes).hex()

    def stream(self, function: Callable[[A], B], items: Iterable[A], *, ahead: int) -> Iterator[B]:
        """One after the other, as they are asked for."""
        for item in items:
            yield function(item)

    def parallel(self, function: Callable[[A], B], items: Sequence[A]) -> list[B]:
        """One after the other, in any order: as if the threads had got their turns like that."""
        order = list(range(len(items)))
        # A library's own threads may come in any order, and must not draw from what is seeded.
        if self._scheduler.task_here() is not None:
            self._scheduler.random.shuffle(order)
        results: dict[int, B] = {}
        errors: dict[int, Exception] = {}
        for index in order:
            try:
                results[index] = function(items[index])
            except Exception as error:  # noqa: BLE001  the first in item order is raised below
                errors[index] = error
        if errors:
            raise errors[min(errors)]
        return [results[index] for index in range(len(items))]

    def interruptible(
        self,
        function: Callable[[], B],
        stop: Callable[[], None],
        *,
        seconds: float,
    ) -> B:
        """The function's result."""
        return function()

    def start_worker(self, name: str, function: Callable[[], None]) -> SimWorker:
        return SimWorker(self._scheduler, self._process, name, function)

    def process_id(self) -> int:
        return self._process.number

    def boot_id(self) -> str:
        return "simulated"

    def cache_dir(self) -> None:
        """Nothing is kept: a run depends on its seed alone."""


class SimWorker:
    """A `Worker` whose thread is a task of its process."""

    def __init__(
        self, scheduler: Scheduler, process: Process, name: str, function: Callable[[], None]
    ) -> None:
        self._scheduler = scheduler
        self._function = function
        self._due: int | None = None
        self._called = False
        self._stopping = False
        self._task = scheduler.spawn(process, f"{process.name}/{name}", self._run)

    def wake(self, *, after: float = 0.0) -> None:
        due = self._scheduler.now + round(after * 1_000_000)
        if self._due is None or due < self._due:
            self._due = due
            self._called = True

    def stop(self) -> None:
        self._stopping = True
        if self._scheduler.task_here() is not self._task:
            self._scheduler.switch("waits for a worker", ready=self._has_ended, seconds=None)

    def _run(self) -> None:
        while True:
            self._scheduler.switch("idle", ready=self._is_called, seconds=self._seconds_left())
            self._called = False
            if self._stopping:
                return
            if self._due is not None and self._due <= self._scheduler.now:
                self._due = None
                self._function()

    def _seconds_left(self) -> float | None:
        return None if self._due is None else max(0, self._due - self._scheduler.now) / 1_000_000

    def _is_called(self) -> bool:
        return self._called or self._stopping

    def _has_ended(self) -> bool:
        return self._task.ended
