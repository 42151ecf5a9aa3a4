"""One simulated history: processes around one location, bad weather, and a watch over it."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from strandline.engine.duck import on_one_thread
from strandline.location import Location
from strandline.location.memory import MemoryBlob, MemoryConsensus, MemoryStore
from strandline.location.retry import RetryingBlob, RetryingConsensus
from strandline.testing.scheduler import Process, Scheduler, cooperative_locks
from strandline.testing.simenv import SimEnv
from strandline.testing.watch import Guarded, GuardedLogs, Seen, Watch
from strandline.testing.weather import Weather, stormy

__all__ = ["Actor", "Simulation", "World"]

_CALM_STEPS_MAX = 30_000
"""Steps within which every actor has to end once nothing goes wrong any more."""


@dataclass(frozen=True, slots=True)
class World:
    """What a simulated process lives in."""

    process: Process
    env: SimEnv
    location: Location


@dataclass(eq=False)
class Actor:
    """Somebody who does something in a process, and does it again in a new one when killed."""

    name: str
    live: Callable[[World], None]
    """Ends when there is nothing left to do; is called again after a crash."""
    keeper: bool = False
    """Whether it goes on until the history closes, and has nothing to do of its own."""
    lives: int = 0
    process: Process | None = None
    finished: bool = False


class Simulation:
    """Everything in it depends on the seed alone."""

    def __init__(
        self,
        seed: int,
        *,
        on_record: Callable[[Seen], None] = lambda _: None,
        has_parts: bool = True,
    ) -> None:
        self.scheduler = Scheduler(seed)
        # What a seed stands for (how bad the weather is, who is slow) does not depend on how much
        # the run draws.
        self.character = random.Random(f"character of {seed}")
        self.store = MemoryStore()
        self.weather = Weather(
            faults=self.character.choice([0.0, 0.01, 0.05, 0.15]),
            crashes=self.character.choice([0.0, 0.002, 0.01]),
        )
        self.scheduler.stickiness = self.character.choice([0.0, 0.0, 0.5, 0.9])
        self._patient = self.character.random() < 0.5
        self.closing = False
        """Whether the storm is over, and actors should come to an end."""
        self.actors: list[Actor] = []
        outside = self.scheduler.process("outside")
        self._clock = outside
        env = SimEnv(self.scheduler, outside)
        self.watch = Watch(
            self.store,
            Location(
                MemoryBlob(self.store, env), MemoryConsensus(self.store), "memory://", "memory://"
            ),
            env,
            on_record=on_record,
            has_parts=has_parts,
        )
        self.outside = World(outside, env, self._inner())

    def act(self, name: str, live: Callable[[World], None], *, keeper: bool = False) -> None:
        """Adds an actor."""
        self.actors.append(Actor(name, live, keeper))

    def play(self, steps: int, *, at_end: Callable[[], None] = lambda: None) -> None:
        """A storm of at most `steps` steps, then calm until every actor has ended, then `at_end()`.

        The storm is over when nobody but the keepers has anything left to do. Raises the first
        thing that went wrong.
        """
        with cooperative_locks(self.scheduler), _collected_by_counting(), on_one_thread():
            try:
                for actor in self.actors:
                    self._begin(actor)
                end = self.scheduler.steps + steps
                self._run(
                    lambda: self.scheduler.steps >= end or self._all_finished(but_keepers=True),
                    steps,
                )
                self.scheduler.note("the storm is over")
                self.weather.calm()
                self.closing = True
                self._run(self._all_finished, _CALM_STEPS_MAX)
                self._run(lambda: False, _CALM_STEPS_MAX)  # what is still under way arrives
                self.watch.check_rollups()
                at_end()
            finally:
                self.scheduler.end()

    def _run(self, until: Callable[[], bool], steps_max: int) -> None:
        self.scheduler.run(until=until, after_step=self._after_step, steps_max=steps_max + 1)
        if self.scheduler.failure is not None:
            raise self.scheduler.failure[1]

    def _after_step(self) -> None:
        self.watch.look()
        for actor in self.actors:
            if not actor.finished and actor.process is not None and not actor.process.alive:
                actor.process = None
                delay = int(10 ** self.scheduler.random.uniform(2, 6.5))
                self.scheduler.later(
                    delay,
                    f"{actor.name} starts again",
                    partial(self._begin, actor),
                )

    def _all_finished(self, *, but_keepers: bool = False) -> bool:
        return all(a.finished or (but_keepers and a.keeper) for a in self.actors)

    def _begin(self, actor: Actor) -> None:
        actor.lives += 1
        process = self.scheduler.process(f"{actor.name}.{actor.lives}")
        process.clock_offset = int(self.character.uniform(-2, 2) * 1_000_000)
        actor.process = process
        env = SimEnv(self.scheduler, process)
        location = stormy(self._inner(), self.scheduler, process, self.weather)
        if self._patient:
            blob = RetryingBlob(location.blob, env)
            consensus = RetryingConsensus(location.consensus, env)
            location = replace(location, blob=blob, consensus=consensus)
        world = World(process, env, location)

        def live() -> None:
            actor.live(world)
            actor.finished = True
            # With its main thread a process ends, whatever its other threads are at.
            process.alive = False

        task = self.scheduler.spawn(process, process.name, live)
        task.weight = self.character.choice([1.0, 1.0, 0.3, 0.05])

    def _inner(self) -> Location:
        # The location has a clock of its own, whatever the process's says.
        blob = MemoryBlob(self.store, SimEnv(self.scheduler, self._clock))
        logs = GuardedLogs(self.store, self.watch)
        return Location(Guarded(blob, self.watch), logs, "memory://", "memory://")


@contextmanager
def _collected_by_counting() -> Iterator[None]:
    """Inside, what is in cycles is not collected: when that happens depends on the whole process.

    What a write keeps alive ends when the write is collected, and a seed replays one history.
    """
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
