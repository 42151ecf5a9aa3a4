"""Decides, seeded, which calls of a simulated process go wrong, and lets others run before each.

What can happen to a call that changes something, besides success:

- *refused*: it did not happen, and the caller is told so;
- *lost*: it did not happen, and the caller is told that it may have;
- *unheard*: it happened, and the caller is told that it may have;
- *late*: the caller is told that it may have happened, and it happens at some later step;
- *twice*: it is delivered twice, the caller gets the first answer or the second;
- *slow*: it takes long;
- the process dies before it, or after it.

A call that only reads is refused, slow, or the last thing that its process does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log10

from strandline.location import Consensus, Location, Record
from strandline.testing.faults import (
    FAIL_AFTER,
    FAIL_BEFORE,
    LATE,
    LOST,
    TWICE,
    TWICE_OTHER,
    Call,
    Fault,
    Faults,
    FaultyBlob,
    FaultyConsensus,
)
from strandline.testing.scheduler import Killed, Process, Scheduler
from strandline.testing.watch import LATEST_MICROS

__all__ = ["Weather", "stormy"]

_SLOW = "slow"
_CHANGES = {
    "refused": FAIL_BEFORE,
    "lost": LOST,
    "unheard": FAIL_AFTER,
    "late": LATE,
    "twice": TWICE,
    "twice, the second answer": TWICE_OTHER,
    _SLOW: Fault(),
}
_UPLOADS = {name: _CHANGES[name] for name in ("refused", "lost", "unheard", _SLOW)}
_READS = {name: _CHANGES[name] for name in ("refused", _SLOW)}


@dataclass(slots=True)
class Weather:
    """How often what goes wrong, as probabilities per call."""

    faults: float = 0.0
    crashes: float = 0.0

    def calm(self) -> None:
        """From here on nothing goes wrong; what is under way may still arrive."""
        self.faults = self.crashes = 0.0


def stormy(inner: Location, scheduler: Scheduler, process: Process, weather: Weather) -> Location:
    """The location as the process reaches it."""
    storm = _Storm(scheduler, process, weather)
    consensus = _Noticed(inner.consensus, scheduler)
    return replace(
        inner,
        blob=FaultyBlob(inner.blob, storm.faults),
        consensus=FaultyConsensus(consensus, storm.faults),
    )


class _Storm:
    """What goes wrong between one process and a location."""

    def __init__(self, scheduler: Scheduler, process: Process, weather: Weather) -> None:
        self._scheduler = scheduler
        self._process = process
        self._weather = weather
        self.faults = Faults(self._decide, self._wait)

    def _decide(self, call: Call) -> Fault | None:
        scheduler, weather = self._scheduler, self._weather
        if scheduler.task_here() is None:
            # A thread of some library, which works while the task that called the library waits.
            if not self._process.alive:
                raise Killed
            return None
        scheduler.switch(shown(call))
        chance = scheduler.random.random()
        if chance < weather.crashes:
            return self._crash(call)
        if chance < weather.crashes + weather.faults:
            return self._fault(call)
        return None

    def _crash(self, call: Call) -> Fault:
        if self._scheduler.random.random() < 0.5:
            self._scheduler.kill(self._process, f"before {shown(call)}")
            raise Killed

        def die(call: Call) -> BaseException:
            self._scheduler.kill(self._process, f"after {shown(call)}")
            return Killed()

        return Fault(after=die)

    def _fault(self, call: Call) -> Fault:
        scheduler = self._scheduler
        possible = _READS
        if call.changes:
            possible = _UPLOADS if call.kind == "upload" else _CHANGES
        name = scheduler.random.choice(list(possible))
        scheduler.note(f"{self._process.name}:     {name}")
        if name == _SLOW:
            return Fault(delay_seconds=10 ** scheduler.random.uniform(-2, 1.3))
        if name == "late":
            delay = int(10 ** scheduler.random.uniform(2, log10(LATEST_MICROS)))
            label = f"the network: {shown(call)} of {self._process.name} arrives"
            scheduler.later(delay, label, lambda: self._land(call.number))
        return possible[name]

    def _land(self, number: int) -> None:
        index = next(i for i, (call, _) in enumerate(self.faults.late) if call.number == number)
        self.faults.land(index)

    def _wait(self, call: Call, seconds: float) -> None:
        self._scheduler.switch(f"{shown(call)} takes long", seconds=seconds)


class _Noticed:
    """A Consensus of which others may see what happened before the caller goes on."""

    def __init__(self, inner: Consensus, scheduler: Scheduler) -> None:
        self._inner = inner
        self._scheduler = scheduler

    def compare_and_set(self, shard: str, expected: int, data: bytes, *, timeout: float) -> bool:
        answer = self._inner.compare_and_set(shard, expected, data, timeout=timeout)
        if self._scheduler.random.random() < 0.3:
            self._scheduler.switch(f"answered {answer}")
        return answer

    def head(self, shard: str, *, timeout: float) -> Record | None:
        return self._inner.head(shard, timeout=timeout)

    def scan(self, shard: str, from_seqno: int, limit: int, *, timeout: float) -> Sequence[Record]:
        return self._inner.scan(shard, from_seqno, limit, timeout=timeout)

    def truncate(self, shard: str, before_seqno: int, *, timeout: float) -> int:
        return self._inner.truncate(shard, before_seqno, timeout=timeout)

    def keys(self, *, timeout: float) -> Sequence[str]:
        return self._inner.keys(timeout=timeout)

    def close(self) -> None:
        """The inner one belongs to its maker."""


def shown(call: Call) -> str:
    """The call for a trace, its random ids cut down so that it can be read."""
    pieces = [piece[:6] if len(piece) > 12 else piece for piece in call.key.split("/")]
    seqno = "" if call.seqno is None else f" {call.seqno}"
    return f"{call.kind} {'/'.join(pieces)}{seqno}"
