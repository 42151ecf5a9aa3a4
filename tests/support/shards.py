"""Machines on a location in memory, on a clock that only sleeping moves, with planned failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from strandline.env import Worker
from strandline.errors import LocationError
from strandline.ids import SessionId, ShardId
from strandline.location import BlobMissing, Location, Record
from strandline.location.memory import MemoryBlob, MemoryConsensus, MemoryStore
from strandline.settings import Settings
from strandline.shard.machine import Machine
from strandline.state.commands import Commit, CommitResult, TableChange, Write
from strandline.state.model import Batch, TableVersion
from strandline.state.replay import State

A = TypeVar("A")
B = TypeVar("B")

SHARD = ShardId("s0123456789abcdef")
TABLE = "sfedcba9876543210"


class StillEnv:
    """Time stands still unless somebody sleeps; nothing is random; nothing runs side by side."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.slept: list[float] = []
        self.process = 1
        self._ids = 0

    def now_micros(self) -> int:
        return int(self.seconds * 1e6)

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        # A little more than asked, as real clocks do; so that no loop can wait for ever.
        self.seconds += seconds + 0.000_1

    def random(self) -> float:
        return 0.5

    def token_hex(self, nbytes: int) -> str:
        self._ids += 1
        return f"{self._ids:0{2 * nbytes}x}"

    def parallel(self, function: Callable[[A], B], items: Sequence[A]) -> list[B]:
        return [function(item) for item in items]

    def stream(self, function: Callable[[A], B], items: Iterable[A], *, ahead: int) -> Iterator[B]:
        return map(function, items)

    def interruptible(
        self, function: Callable[[], B], stop: Callable[[], None], *, seconds: float
    ) -> B:
        return function()

    def start_worker(self, name: str, function: Callable[[], None]) -> Worker:
        raise NotImplementedError

    def process_id(self) -> int:
        return self.process

    def boot_id(self) -> str:
        return "boot"

    def cache_dir(self) -> Path | None:
        return None


class PlannedConsensus:
    """What happens to the next compare-and-sets, one word each; "ok" when the plan has run out.

    ok; lost: nothing happens, and that is not known; done: it happens, and that is not known;
    late: nothing happens yet, until `land`; refused: nothing happens, and that is known; twice: it
    happens, and the answer is that of a second try; interrupt: it happens, and Ctrl-C comes.
    """

    def __init__(self, store: MemoryStore) -> None:
        self.inner = MemoryConsensus(store)
        self.plan: list[str] = []
        self.puts: list[tuple[int, bytes]] = []
        self.scans = 0
        self.late: list[tuple[str, int, bytes]] = []
        self.before_scan: list[Callable[[], object]] = []
        self.failing_scans = 0

    def land(self) -> bool:
        """Lets the oldest late request arrive; whether it got its slot."""
        shard, expected, data = self.late.pop(0)
        return self.inner.compare_and_set(shard, expected, data, timeout=1)

    def compare_and_set(self, shard: str, expected: int, data: bytes, *, timeout: float) -> bool:
        self.puts.append((expected, data))
        word = self.plan.pop(0) if self.plan else "ok"
        if word == "refused":
            raise LocationError("no connection", may_have_happened=False)
        if word == "late":
            self.late.append((shard, expected, data))
        if word in ("lost", "late"):
            raise LocationError("no answer")
        won = self.inner.compare_and_set(shard, expected, data, timeout=timeout)
        if word == "done":
            raise LocationError("no answer")
        if word == "interrupt":
            raise KeyboardInterrupt
        if word == "twice":
            return self.inner.compare_and_set(shard, expected, data, timeout=timeout)
        return won

    def head(self, shard: str, *, timeout: float) -> Record | None:
        return self.inner.head(shard, timeout=timeout)

    def scan(self, shard: str, from_seqno: int, limit: int, *, timeout: float) -> Sequence[Record]:
        self.scans += 1
        if self.failing_scans:
            self.failing_scans -= 1
            raise LocationError("no answer", may_have_happened=False)
        if self.before_scan:
            self.before_scan.pop(0)()
        return self.inner.scan(shard, from_seqno, limit, timeout=timeout)

    def truncate(self, shard: str, before_seqno: int, *, timeout: float) -> int:
        return self.inner.truncate(shard, before_seqno, timeout=timeout)

    def keys(self, *, timeout: float) -> Sequence[str]:
        return self.inner.keys(timeout=timeout)

    def close(self) -> None:
        self.inner.close()


class WatchedBlob(MemoryBlob):
    """Counts what is read and written, and fails from the nth put on while told so."""

    def __init__(self, store: MemoryStore, env: StillEnv) -> None:
        super().__init__(store, env)
        self.gets: list[str] = []
        self.puts: list[tuple[str, int]] = []
        self.fail_after: int | None = None
        self.before_put: list[Callable[[], object]] = []

    def get(self, key: str, *, timeout: float) -> bytes:
        self.gets.append(key)
        return super().get(key, timeout=timeout)

    def put(self, key: str, data: bytes, *, timeout: float) -> None:
        if self.before_put:
            self.before_put.pop(0)()
        if self.fail_after is not None:
            if self.fail_after == 0:
                raise LocationError("no space left", may_have_happened=False)
            self.fail_after -= 1
        super().put(key, data, timeout=timeout)
        self.puts.append((key, len(data)))


@dataclass
class Place:
    """One shard's place, and as many machines on it as a test wants."""

    settings: Settings = field(default_factory=lambda: Settings(background=False))
    store: MemoryStore = field(default_factory=MemoryStore)
    env: StillEnv = field(default_factory=StillEnv)
    sessions: int = 0

    def __post_init__(self) -> None:
        self.blob = WatchedBlob(self.store, self.env)
        self.consensus = PlannedConsensus(self.store)

    def machine(self, settings: Settings | None = None, **more: Any) -> Machine:
        """A machine with a session of its own; all share `blob`, `consensus` and `env`."""
        self.sessions += 1
        session = SessionId(f"wfeed{self.sessions:012x}")  # unlike those of `env`
        location = Location(self.blob, self.consensus, "memory://", "memory://")
        return Machine(location, SHARD, session, self.env, settings or self.settings, **more)

    @property
    def log(self) -> list[Record]:
        """The records that are in the log."""
        return self.store.logs.get(SHARD, [])

    def damage(self, key: str) -> None:
        """Flips one bit of a stored object."""
        data, modified = self.store.objects[key]
        changed = bytearray(data)
        changed[len(data) // 2] ^= 1
        self.store.objects[key] = (bytes(changed), modified)

    def remove(self, key: str) -> None:
        """Makes an object disappear."""
        if self.store.objects.pop(key, None) is None:
            raise BlobMissing(key)


def create(machine: Machine) -> None:
    """Registers the table that `write` writes to."""
    version = TableVersion(TABLE, 0, "t", 0, None, 0, "rows", b"schema", ("k",))
    machine.submit(Commit(0, changes=(TableChange(version, None),)))


def write(machine: Machine, text: bytes = b"rows", **more: Any) -> CommitResult:
    """One commit of one inline batch."""
    batch = Batch(inline=text, rows=1, lower=text[:8], upper=text[:8])
    result: CommitResult = machine.submit(Commit(0, (Write(TABLE, batch),), **more))
    return result


def texts(state: State) -> list[bytes]:
    """What the entries hold, in the order of their commits."""
    return [entry.batch.inline for _, entry in state.entries.range()]


def everything(machine: Machine) -> dict[str, dict[Any, Any]]:
    """Every item of every collection of the machine's newest state."""
    return machine.ask(lambda s: {name: dict(found.range()) for name, found in s.maps.items()})
