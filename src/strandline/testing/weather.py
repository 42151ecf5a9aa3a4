"""A location behind a bad network: every call is a switch point, and any of them may go wrong.

What can happen to a call that changes something, besides success:

- *refused*: it did not happen, and the caller is told so;
- *lost*: it did not happen, and the caller is told that it may have;
- *unheard*: it happened, and the caller is told that it may have;
- *late*: the caller is told that it may have happened, and it happens at some later step;
- *twice*: it is delivered twice, and the caller gets the answer to the second delivery;
- *twice, late*: the caller gets the answer to the first, the second arrives at some later step;
- the process dies before it, or after it.

A call that only reads fails, takes long, or is the last thing that its process does.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

import pyarrow as pa

from strandline.errors import LocationError
from strandline.location import Blob, BlobInfo, Consensus, Record
from strandline.testing.scheduler import Killed, Process, Scheduler

__all__ = ["StormyBlob", "StormyConsensus", "Weather"]

A = TypeVar("A")

_CHANGES = ("refused", "lost", "unheard", "late", "twice", "twice late", "slow")
_READS = ("refused", "slow")


@dataclass(slots=True)
class Weather:
    """How often what goes wrong, as probabilities per call."""

    faults: float = 0.0
    crashes: float = 0.0

    def calm(self) -> None:
        """From here on nothing goes wrong; what is under way may still arrive."""
        self.faults = self.crashes = 0.0


class _Network:
    """Between one process and a location."""

    def __init__(self, scheduler: Scheduler, process: Process, weather: Weather) -> None:
        self._scheduler = scheduler
        self._process = process
        self._weather = weather

    def reading(self, label: str, call: Callable[[], A]) -> A:
        """A call that changes nothing."""
        fault = self._begin(label, _READS)
        if fault == "refused":
            raise LocationError(f"{label}: the connection broke", may_have_happened=False)
        result = call()
        self._end(label, fault)
        return result

    def changing(self, label: str, call: Callable[[], A]) -> A:
        """A call that changes something."""
        fault = self._begin(label, _CHANGES)
        if fault == "refused":
            raise LocationError(f"{label}: not connected", may_have_happened=False)
        if fault == "lost":
            raise LocationError(f"{label}: no answer", may_have_happened=True)
        if fault == "late":
            self._arrives_later(label, call)
            raise LocationError(f"{label}: no answer yet", may_have_happened=True)
        if fault == "unheard":
            self._quietly(call)
            raise LocationError(f"{label}: the answer was lost", may_have_happened=True)
        if fault == "twice":
            self._quietly(call)
        if fault == "twice late":
            self._arrives_later(label, call)
        try:
            return call()
        finally:
            self._end(label, fault)

    def _begin(self, label: str, faults: Sequence[str]) -> str:
        """Waits for its turn, and says what shall go wrong."""
        scheduler, weather = self._scheduler, self._weather
        if scheduler.task_here() is None:
            # A thread of some library, which works while the task that called the library waits.
            if not self._process.alive:
                raise Killed
            return ""
        scheduler.switch(label)
        chance = scheduler.random.random()
        if chance < weather.crashes:
            return self._crash_before_or_after(label)
        if chance < weather.crashes + weather.faults:
            fault = scheduler.random.choice(faults)
            scheduler.note(f"{self._process.name}: {label} -> {fault}")
            return fault
        return ""

    def _crash_before_or_after(self, label: str) -> str:
        if self._scheduler.random.random() < 0.5:
            self._scheduler.kill(self._process, f"before {label}")
            raise Killed
        return "crash"

    def _end(self, label: str, fault: str) -> None:
        scheduler = self._scheduler
        if fault == "crash":
            scheduler.kill(self._process, f"after {label}")
            raise Killed
        if fault == "slow":
            seconds = 10 ** scheduler.random.uniform(-2, 1.5)
            scheduler.switch(f"{label} takes long", seconds=seconds)
        elif scheduler.random.random() < 0.3:
            # Others see what happened before the caller goes on.
            scheduler.switch(f"{label} done")

    def _arrives_later(self, label: str, call: Callable[[], object]) -> None:
        delay = int(10 ** self._scheduler.random.uniform(2, 7))
        name = f"the network: {label} of {self._process.name} arrives"
        self._scheduler.later(delay, name, lambda: self._quietly(call))

    def _quietly(self, call: Callable[[], object]) -> None:
        try:
            call()
        except LocationError as error:
            self._scheduler.note(f"    {error}")


class StormyConsensus:
    """A `Consensus` reached through the weather."""

    def __init__(
        self, inner: Consensus, scheduler: Scheduler, process: Process, weather: Weather
    ) -> None:
        self._inner = inner
        self._network = _Network(scheduler, process, weather)

    def head(self, shard: str, *, timeout: float) -> Record | None:
        return self._network.reading(
            f"head {short(shard)}", lambda: self._inner.head(shard, timeout=timeout)
        )

    def compare_and_set(self, shard: str, expected: int, data: bytes, *, timeout: float) -> bool:
        return self._network.changing(
            f"put record {expected + 1} of {short(shard)}",
            lambda: self._inner.compare_and_set(shard, expected, data, timeout=timeout),
        )

    def scan(self, shard: str, from_seqno: int, limit: int, *, timeout: float) -> Sequence[Record]:
        return self._network.reading(
            f"scan {short(shard)} from {from_seqno}",
            lambda: self._inner.scan(shard, from_seqno, limit, timeout=timeout),
        )

    def truncate(self, shard: str, before_seqno: int, *, timeout: float) -> int:
        return self._network.changing(
            f"truncate {short(shard)} before {before_seqno}",
            lambda: self._inner.truncate(shard, before_seqno, timeout=timeout),
        )

    def keys(self, *, timeout: float) -> Sequence[str]:
        return self._network.reading("logs", lambda: self._inner.keys(timeout=timeout))

    def close(self) -> None:
        """The inner one belongs to its maker."""


class StormyBlob:
    """A `Blob` reached through the weather."""

    def __init__(
        self, inner: Blob, scheduler: Scheduler, process: Process, weather: Weather
    ) -> None:
        self._inner = inner
        self._network = _Network(scheduler, process, weather)

    def get(self, key: str, *, timeout: float) -> bytes:
        return self._network.reading(
            f"get {short(key)}", lambda: self._inner.get(key, timeout=timeout)
        )

    def get_range(self, key: str, start: int, length: int, *, timeout: float) -> bytes:
        return self._network.reading(
            f"get {short(key)} from {start}",
            lambda: self._inner.get_range(key, start, length, timeout=timeout),
        )

    def put(self, key: str, data: bytes, *, timeout: float) -> None:
        stored = bytes(data)
        self._network.changing(
            f"put {short(key)}", lambda: self._inner.put(key, stored, timeout=timeout)
        )

    @contextmanager
    def upload(self, key: str, *, timeout: float) -> Iterator[BinaryIO]:
        sink = _Sink()
        yield sink
        self.put(key, sink.getvalue(), timeout=timeout)

    def open(self, key: str, *, timeout: float) -> pa.NativeFile:
        return self._network.reading(
            f"open {short(key)}", lambda: self._inner.open(key, timeout=timeout)
        )

    def delete(self, key: str, *, timeout: float) -> bool:
        return self._network.changing(
            f"delete {short(key)}", lambda: self._inner.delete(key, timeout=timeout)
        )

    def list(
        self, prefix: str, *, start_after: str | None = None, timeout: float
    ) -> Iterator[BlobInfo]:
        yield from self._network.reading(
            f"list {short(prefix)}",
            lambda: list(self._inner.list(prefix, start_after=start_after, timeout=timeout)),
        )

    def close(self) -> None:
        """The inner one belongs to its maker."""


class _Sink(io.BytesIO):
    """Keeps what was written when a library closes it."""

    def close(self) -> None:
        """Leaves the buffer readable."""


def short(key: str) -> str:
    """The key with its random ids cut down, so that a trace can be read."""
    return "/".join(piece[:6] if len(piece) > 12 else piece for piece in key.split("/"))
