"""Threads that run one at a time, in an order that a seed decides.

A `Task` is a thread that stops at every switch point until the `Scheduler` lets it go on. Between
two switch points it runs alone, so a run depends on nothing but the seed: which task goes next,
how much simulated time passes, and what `Scheduler.random` says to anybody who asks.

Tasks belong to a `Process`: what dies together. A process that was killed unwinds each of its
threads from the switch point where it stands with `Killed`, and never gets past another one.
"""

from __future__ import annotations

import hashlib
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

__all__ = ["Killed", "Lock", "Process", "Scheduler", "Stuck", "Task"]

_MICROS = 1_000_000
_NEVER = 1 << 62
_TRACE_KEPT = 60


class Killed(BaseException):
    """The process of this thread is dead. Not an Exception: no handler goes on after it."""


class Stuck(AssertionError):
    """Tasks are left that can never run again, or that never end."""


def closed_gate() -> threading.Lock:
    """A lock as a gate: one thread waits to acquire it, another opens it once by releasing it."""
    gate = threading.Lock()
    gate.acquire()
    return gate


class Process:
    """What dies together: the threads of one simulated process."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.alive = True
        self.clock_offset = 0
        """Microseconds by which its wall clock is wrong."""


class Task:
    """One thread of a process."""

    def __init__(
        self, scheduler: Scheduler, process: Process, name: str, body: Callable[[], None]
    ) -> None:
        self.name = name
        self.process = process
        self.ended = False
        self.weight = 1.0
        self.label = "begins"
        self.ready: Callable[[], bool] | None = None
        self.wake_at = 0
        """Simulated time from which it may run, whether or not it is ready."""
        self._scheduler = scheduler
        self._body = body
        self.gate = closed_gate()
        self.thread = threading.Thread(target=self._run, name=f"sim-{name}", daemon=True)

    def can_run(self, now: int) -> bool:
        """Whether what it waits for is there, or its time is up."""
        if not self.process.alive:
            return True  # to be unwound
        return self.wake_at <= now or (self.ready is not None and self.ready())

    def _run(self) -> None:
        self.gate.acquire()
        try:
            if self.process.alive:
                self._body()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001  whatever it is fails the run
            self._scheduler.failed(self, error)
        finally:
            self.ended = True
            self._scheduler.hand_back()


class Scheduler:
    """Runs tasks one at a time. Everything that is random in a run comes from `random`."""

    def __init__(self, seed: int, *, start_micros: int = 1_700_000_000 * _MICROS) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now = start_micros
        """Simulated time in microseconds."""
        self.steps = 0
        self.tasks: list[Task] = []
        self.recent: deque[str] = deque(maxlen=_TRACE_KEPT)
        self.listener: Callable[[str], None] | None = None
        """Is given each line of the trace."""
        self.failure: tuple[Task | None, BaseException] | None = None
        self.current: Task | None = None
        self.stickiness = 0.0
        """How likely the task that ran last goes on."""
        self._events: list[tuple[int, int, str, Callable[[], None]]] = []
        self._made = 0
        self._processes = 0
        self._by_thread: dict[int, Task] = {}
        self._handed_back = closed_gate()
        self._digest = hashlib.sha256()

    # --- what makes up a run

    def process(self, name: str) -> Process:
        """A new process without threads."""
        self._processes += 1
        return Process(name, self._processes)

    def spawn(self, process: Process, name: str, body: Callable[[], None]) -> Task:
        """A thread that begins at some later step."""
        task = Task(self, process, name, body)
        self.tasks.append(task)
        task.thread.start()
        assert task.thread.ident is not None
        self._by_thread[task.thread.ident] = task
        return task

    def later(self, delay: int, label: str, event: Callable[[], None]) -> None:
        """Runs `event` at some step that is at least `delay` microseconds away."""
        self._made += 1
        self._events.append((self.now + delay, self._made, label, event))

    def kill(self, process: Process, why: str) -> None:
        """The process gets not a step further."""
        if process.alive:
            process.alive = False
            self.note(f"{process.name} is killed {why}")

    def note(self, text: str) -> None:
        """Writes a line of the trace."""
        line = f"{self.steps:6d} {self.now / _MICROS:.6f} {text}"
        self.recent.append(line)
        if self.listener is not None:
            self.listener(line)
        self._digest.update(line.encode())
        self._digest.update(b"\n")

    def trace_hash(self) -> str:
        """SHA-256 over everything that was noted."""
        return self._digest.hexdigest()

    # --- called on a task's thread

    def task_here(self) -> Task | None:
        """The task whose thread this is; None on any other thread."""
        return self._by_thread.get(threading.get_ident())

    def switch(
        self, label: str, *, ready: Callable[[], bool] | None = None, seconds: float | None = 0.0
    ) -> None:
        """A switch point: returns when the task may go on, raises `Killed` when it may not.

        It may go on once `seconds` of simulated time passed (None: never) or once `ready()`.
        On a thread of no task (a library's own) nothing happens.
        """
        task = self.task_here()
        if task is None:
            return
        if not task.process.alive:
            raise Killed
        task.label = label
        task.ready = ready
        task.wake_at = _NEVER if seconds is None else self.now + round(seconds * _MICROS)
        self.hand_back()
        task.gate.acquire()
        if not task.process.alive:
            raise Killed

    def hand_back(self) -> None:
        """Lets the scheduler's own thread go on."""
        self._handed_back.release()

    def failed(self, task: Task, error: BaseException) -> None:
        """A task ended with an error: the run is over."""
        if self.failure is None:
            self.failure = (task, error)

    # --- called on the scheduler's own thread

    def run(
        self,
        *,
        until: Callable[[], bool],
        after_step: Callable[[], None] = lambda: None,
        steps_max: int = 1_000_000,
    ) -> None:
        """Steps until `until()`, until nothing is left to run, or until something failed."""
        end = self.steps + steps_max
        while self.failure is None and not until():
            if self.steps >= end:
                waiting = ", ".join(f"{t.name} ({t.label})" for t in self.tasks if not t.ended)
                raise Stuck(f"after {steps_max} steps these have not ended: {waiting}")
            if not self._step():
                return
            after_step()

    def end(self) -> None:
        """Unwinds every task that is left."""
        for task in self.tasks:
            task.process.alive = False
        for task in self.tasks:
            while not task.ended:
                task.gate.release()
                self._handed_back.acquire()
            task.thread.join()
        self._by_thread.clear()

    def _step(self) -> bool:
        alive = [task for task in self.tasks if not task.ended]
        able: list[Task | int] = [task for task in alive if task.can_run(self.now)]
        able += [i for i, event in enumerate(self._events) if event[0] <= self.now]
        if not able:
            times = [task.wake_at for task in alive] + [event[0] for event in self._events]
            soonest = min(times, default=_NEVER)
            if soonest == _NEVER:
                if alive:
                    waiting = ", ".join(f"{t.name} ({t.label})" for t in alive)
                    raise Stuck(f"nobody can go on: {waiting}")
                return False
            self.now = max(self.now, soonest)
            return True
        self.steps += 1
        self.now += self.random.randrange(1, 400)
        chosen = self._choose(able)
        if isinstance(chosen, Task):
            self.note(f"{chosen.name}: {chosen.label}")
            self.current = chosen
            chosen.gate.release()
            self._handed_back.acquire()
            if chosen.ended:
                self.tasks.remove(chosen)
                chosen.thread.join()
                self._by_thread.pop(chosen.thread.ident or 0, None)
        else:
            _, _, label, event = self._events.pop(chosen)
            self.note(label)
            event()
        return True

    def _choose(self, able: list[Task | int]) -> Task | int:
        last = self.current
        if last in able and self.stickiness and self.random.random() < self.stickiness:
            assert last is not None
            return last
        weights = [item.weight if isinstance(item, Task) else 1.0 for item in able]
        return self.random.choices(able, weights)[0]


class Lock:
    """A `threading.Lock` for tasks: whoever waits for it waits at a switch point."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._held = False

    def acquire(
        self,
        blocking: bool = True,  # noqa: FBT001, FBT002  as the one that it stands for
        timeout: float = -1,
    ) -> bool:
        """As `threading.Lock.acquire`, with simulated seconds."""
        scheduler = self._scheduler
        task = scheduler.task_here()
        if task is not None and not task.process.alive:
            raise Killed
        if self._held and blocking and task is not None:
            seconds = None if timeout < 0 else timeout
            scheduler.switch("waits for a lock", ready=self._free, seconds=seconds)
        if self._held:
            if blocking and task is None:
                raise Stuck("a thread of no task waits for a lock that a task holds")
            return False
        self._held = True
        return True

    def release(self) -> None:
        """As `threading.Lock.release`."""
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False

    def locked(self) -> bool:
        """As `threading.Lock.locked`."""
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def _free(self) -> bool:
        return not self._held


class _Threading:
    """Stands in for the module `threading` in the modules under test."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def __getattr__(self, name: str) -> Any:
        if name == "Lock":
            return lambda: Lock(self._scheduler)
        if name in {"RLock", "Condition", "Event", "Semaphore", "Barrier", "Thread", "Timer"}:
            raise AssertionError(f"the simulator does not know threading.{name} yet")
        return getattr(threading, name)


@contextmanager
def cooperative_locks(scheduler: Scheduler) -> Iterator[None]:
    """Inside, the modules of this package make locks that the scheduler knows.

    A real lock would be held across a switch point, and whoever waits for it would stop the run.
    """
    stand_in = _Threading(scheduler)
    changed = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("strandline.")
        and not name.startswith("strandline.testing")
        and name != "strandline.env"
        and getattr(module, "threading", None) is threading
    ]
    for module in changed:
        module.threading = stand_in  # type: ignore[attr-defined]  # it has one, as seen
    try:
        yield
    finally:
        for module in changed:
            module.threading = threading  # type: ignore[attr-defined]  # as above
