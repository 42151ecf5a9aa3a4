"""The world of the machine of transactions: clock, processes, and who looks on from outside."""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeVar, cast

import pyarrow as pa
from hypothesis import note
from hypothesis.stateful import RuleBasedStateMachine, invariant

import strandline as sl
from strandline.database import Database
from strandline.errors import (
    Fenced,
    LocationError,
    StrandlineError,
)
from strandline.ids import DatabaseId, ShardId, session_of
from strandline.location import Location
from strandline.location.memory import MemoryBlob, MemoryConsensus, MemoryStore
from strandline.state.model import Entry, Holder, Meta, TableVersion
from strandline.state.sessions import is_open
from strandline.testing.faults import (
    FAIL_AFTER,
    FAIL_BEFORE,
    LATE,
    LOST,
    Call,
    Fault,
    Faults,
    FaultyBlob,
    FaultyConsensus,
)
from strandline.testing.watch import Guarded, GuardedLogs, Seen, Watch
from strandline.txn.handle import Handle, Origin
from strandline.txn.store import Store
from strandline.upkeep.background import open_store
from tests.model.transactions_model import (
    Asked,
    Model,
    Row,
    Test,
    Wrong,
)

A = TypeVar("A")
B = TypeVar("B")

DATABASE, TXNS = DatabaseId("d" + "0" * 16), ShardId("s" + "0" * 16)
COLUMNS = pa.schema([pa.field(name, pa.int64(), nullable=name == "v") for name in ("k", "s", "v")])
MINUTE = 60_000_000
DELAY = 2 * MINUTE
RETENTIONS = {"1 hour": 60 * MINUTE, "5 minutes": 5 * MINUTE, "0 seconds": 0}
PROCESSES = 3
SMALL = sl.Settings(
    background=False,
    timeout_seconds=20.0,
    inline_bytes_max=1_000,
    rollup_every_records=9,
    page_items_max=4,
    apply_backlog_commits=6,
    small_parts_max=3,
    part_rows_target=12,
    row_group_rows=4,
)
SETTINGS = [SMALL, replace(SMALL, inline_bytes_max=0), replace(SMALL, inline_bytes_max=64 << 10)]
"""Of the processes: one stages large writes, one all of them, one none."""

CONDITIONS: dict[str, Test] = {
    "v > 2": lambda row: row[2] > 2,
    "k >= 1 and k < 3": lambda row: 1 <= row[0] < 3,
    "k = 2 or v = 1": lambda row: row[0] == 2 or row[2] == 1,
    "k = 9": lambda row: row[0] == 9,
}


class Died(BaseException):
    """The process is gone: what comes after this call is not done."""


def dying(_: Call) -> BaseException:
    return Died()


FAULTS = {
    "before": FAIL_BEFORE,
    "lost": LOST,
    "after": FAIL_AFTER,
    "late": LATE,
    "dies before": Fault(before=dying),
    "dies after": Fault(after=dying),
}


class World:
    """The one clock and the one source of randomness.

    Ids are in the same order each time; but no two worlds have one in common, because a process may
    keep what it knows of an id for ever.
    """

    made = 0

    def __init__(self) -> None:
        self.now = 1_763_632_800_000_000
        self.random = Random(7)
        World.made += 1
        self.mark = World.made.to_bytes(4, "big").hex()
        self.before_time_passes: Callable[[], None] = lambda: None

    def pass_by(self, seconds: float) -> None:
        """Time passes, and those who look from outside saw what was before."""
        self.before_time_passes()
        self.now += max(1, int(seconds * 1_000_000))


class StillEnv:
    """An `Env` in which nothing happens by itself: a sleep moves the clock."""

    def __init__(self, world: World, offset: int = 0) -> None:
        self._world = world
        self._offset = offset

    def now_micros(self) -> int:
        return self._world.now + self._offset

    def monotonic(self) -> float:
        return self._world.now / 1_000_000

    def sleep(self, seconds: float) -> None:
        self._world.pass_by(seconds)

    def random(self) -> float:
        return self._world.random.random()

    def token_hex(self, nbytes: int) -> str:
        assert nbytes > len(self._world.mark) // 2
        return (
            self._world.random.randbytes(nbytes).hex()[: -len(self._world.mark)] + self._world.mark
        )

    def parallel(self, function: Callable[[A], B], items: Sequence[A]) -> list[B]:
        return [function(item) for item in items]

    def stream(self, function: Callable[[A], B], items: Iterable[A], *, ahead: int) -> Iterator[B]:
        for item in items:
            yield function(item)

    def interruptible(
        self, function: Callable[[], B], stop: Callable[[], None], *, seconds: float
    ) -> B:
        return function()

    def start_worker(self, name: str, function: Callable[[], None]) -> Any:
        raise AssertionError(f"{name} would run beside the rules")

    def process_id(self) -> int:
        return 1

    def boot_id(self) -> str:
        return ""

    def cache_dir(self) -> None:
        return None


# --- who works


@dataclass
class Weather:
    """What goes wrong with the calls of a process."""

    fault: Fault | None = None
    skips: int = 0
    """Calls that are let through before."""
    commits: bool = False
    """Only a compare-and-set of the txns shard is meant."""
    lasts: bool = False
    """Whether every call after it is lost, too."""
    struck: bool = False

    def decide(self, call: Call) -> Fault | None:
        if self.struck:
            return LOST if self.lasts else None
        if self.fault is None:
            return None
        if self.commits and not (call.kind == "compare_and_set" and call.key == TXNS):
            return None
        if self.fault is LATE and call.kind != "compare_and_set":
            return None
        if self.skips:
            self.skips -= 1
            return None
        self.struck = True
        return self.fault


@dataclass
class Lease:
    """A table that a process attached."""

    lease: Any
    table: str

    @property
    def epoch(self) -> int:
        return cast("int", self.lease.epoch)


@dataclass
class Open:
    """A transaction that is under way, and what it is to the model."""

    tx: Any
    asked: Asked
    store: Store
    made: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Tables that it made: name and kind, by id."""
    names: dict[str, str] = field(default_factory=dict)
    """The tables that it sees, by id."""


class Process:
    """Everything that is gone when it dies."""

    def __init__(self, machine: Observed, number: int) -> None:
        self.machine = machine
        self.number = number
        self.weather = Weather()
        self.faults = Faults(self._decide)
        self.env = StillEnv(machine.world, (number - 1) * 700_000)
        self.settings = SETTINGS[number % len(SETTINGS)]
        origin = Origin("memory://", "rw", self.settings, self._store, leaves_process=False)
        self.db = Database(Handle(self._store(origin), origin))
        self.leases: list[Lease] = []
        self.open: list[Open] = []

    def _decide(self, call: Call) -> Fault | None:
        return self.weather.decide(call)

    @property
    def store(self) -> Store:
        return self.db._handle.store

    def stores(self) -> list[Store]:
        return [self.store, *(lease.lease._handle.store for lease in self.leases)]

    def _store(self, _: Origin) -> Store:
        inner = self.machine.inner
        place = replace(
            inner,
            blob=FaultyBlob(inner.blob, self.faults),
            consensus=FaultyConsensus(inner.consensus, self.faults),
        )
        return open_store(place, DATABASE, TXNS, self.env, self.settings)


@dataclass
class Subscriber:
    """Takes in each change of some tables once, over crashes."""

    tables: dict[str, str]
    """The names that it asks by, by id."""
    name: str | None
    process: int
    iterator: Any = None
    progress: str | None = None
    after: int = -1
    pieces: list[Any] = field(default_factory=list)
    """Changes that are not complete."""


def arrow(found: Iterable[Row]) -> pa.Table:
    columns = list(zip(*found, strict=True)) or [(), (), ()]
    return pa.table([pa.array(c, pa.int64()) for c in columns], schema=COLUMNS)


def rows_of(table: pa.Table) -> list[Row]:
    return list(zip(*(table.column(name).to_pylist() for name in COLUMNS.names), strict=True))


def same(found: Iterable[Row], wanted: Counter[Row], what: str) -> None:
    rows = Counter(found)
    assert rows == wanted, f"{what}: missing {wanted - rows}, too many {rows - wanted}"


def write(table: Any, kind: str, step: tuple[Any, ...], **options: Any) -> Any:
    """Makes a step's write."""
    match step:
        case ("append", found):
            return table.append(arrow(found), **options)
        case ("upsert", found):
            return (table.upsert if kind == "keyed" else table.append)(arrow(found), **options)
        case ("delete_keys", found):
            return table.delete(keys=found, **options)
        case ("delete_where", where):
            return table.delete(where, **options)
        case ("update", where):
            return table.update({"v": "v + 1"}, where, **options)
        case ("overwrite", where, found):
            return table.overwrite(arrow(found), where, **options)
    raise AssertionError(step)


class Observed(RuleBasedStateMachine):
    """Processes on one location, and what really happens there, as the logs tell it."""

    def __init__(self) -> None:
        super().__init__()
        # What is forgotten does not end by itself: when it is collected would depend on the whole
        # process, and an example has to be the same each time.
        gc.disable()
        self.outer = sys.exc_info()[1]
        self.world = World()
        self.memory = MemoryStore()
        env = StillEnv(self.world)
        outside = Location(
            MemoryBlob(self.memory, env), MemoryConsensus(self.memory), "memory://", "memory://"
        )
        self.watch = Watch(self.memory, outside, env, on_record=self.on_record)
        self.watch.deletion_delay = lambda shard: 15 * MINUTE if shard == TXNS else DELAY
        self.inner = replace(
            outside,
            blob=Guarded(outside.blob, self.watch),
            consensus=GuardedLogs(self.memory, self.watch),
            txns=TXNS,
        )
        self.world.before_time_passes = self.watch.look
        self.model = Model()
        self.moved: list[tuple[str, int | None]] = []
        """What since became of tables, not checked yet."""
        self.dead: list[Any] = []
        """What died is kept, so that nothing of it ends tidily."""
        self.processes = [Process(self, number) for number in range(PROCESSES)]
        self.subscribers: list[Subscriber] = []
        self.tokens: list[tuple[int, Asked, Any]] = []
        """(process, what was asked for, its transaction) of what may be asked for again."""
        self.staged: list[tuple[bytes, str, tuple[Row, ...]]] = []
        """(what was sent, table, rows) of what somebody may commit."""
        self.made = 0
        self.turn = 0

    # --- what the logs say

    def on_record(self, seen: Seen) -> None:
        if seen.shard != TXNS:
            self._on_data(seen)
            return
        record = seen.record
        said = json.loads(record.note) if record.command == "Commit" and record.note else {}
        for commit in said.get("commits", ()):
            op = commit.get("metadata", {}).get("op")
            if op is None:
                assert commit["operation"] == "advance", commit
                self.model.passed(commit["time"])
            else:
                self.model.committed(op, commit["time"])
        for diff in record.diffs:
            after = diff.after
            if isinstance(after, Entry):
                for part in after.batch.parts:
                    owner = session_of(part.key)
                    if owner != record.session and not is_open(
                        seen.before.sessions.get((str(owner),))
                    ):
                        raise Wrong(f"{part.key} was committed, and its session is not open")
                if not is_open(seen.after.sessions.get((record.session,))):
                    raise Wrong(f"the ended session {record.session} committed")
            elif isinstance(after, Holder):
                self._on_holder(seen, diff.key[0], after)
            elif diff.collection == "tables" and after is None:
                self._on_forgotten(seen, diff.key)

    def _on_holder(self, seen: Seen, table: str, after: Holder) -> None:
        before = seen.before.holders.get((table,)) or Holder(0, "", "")
        if seen.record.command == "Attach":
            self.model.attached(table, after.epoch)
            if before.session and is_open(seen.after.sessions.get((before.session,))):
                raise Wrong(f"the session of who held {table} before is open")
        elif seen.record.command == "Commit":
            told = json.loads(after.position) if after.position else None
            if after.epoch != before.epoch or told != self.model.positions.get(table):
                raise Wrong(f"a commit made {after} of the holder {before}")
        elif not after.session:
            self.model.released(table)

    def _on_forgotten(self, seen: Seen, key: tuple[Any, ...]) -> None:
        version = seen.before.tables.get(key)
        assert isinstance(version, TableVersion)
        table = self.model.tables[version.table]
        until = version.valid_until
        assert until is not None
        if self.model.latest - until < table.retention:
            raise Wrong(f"{version.name} until {until} is forgotten at {self.model.latest}")

    def _on_data(self, seen: Seen) -> None:
        for diff in seen.record.diffs:
            if not isinstance(diff.after, Meta) or seen.before.meta.since == diff.after.since:
                continue
            # Checked once the commits of all shards are known, in whatever order logs are read.
            self.moved.append((seen.shard, diff.after.since))

    def _check_since(self) -> None:
        """No history is given up that somebody was promised."""
        for shard, since in self.moved:
            table = self.model.tables[shard]
            if since is None:
                assert table.dropped is not None
                assert self.model.latest - table.dropped >= table.retention
            elif since > max(table.pruned, self.model.latest - table.retention, 0):
                raise Wrong(f"since of {shard} is {since}, the latest {self.model.latest}")
        self.moved.clear()

    def since(self, table: str) -> int:
        state = self.watch.states.get(table)
        if state is None:
            return 0
        return 1 << 62 if state.meta.since is None else state.meta.since

    @invariant()
    def look(self) -> None:
        """The states keep what they promise, and all objects that they name are there."""
        self.watch.look()
        self._check_since()
        self.turn += 1
        if self.turn % 4 == 0:
            self._check_objects()

    def _check_objects(self) -> None:
        for shard, state in self.watch.states.items():
            for _, entry in state.entries.range():
                data = self.watch.states.get(entry.table)
                upper = 0 if data is None else data.meta.upper
                if upper is not None and entry.time >= upper:
                    for part in entry.batch.parts:
                        self._there(part.key, shard)
            for key, _ in state.parts.range():
                self._there(key[0], shard)
            for _, rollup in state.rollups.range():
                self._there(rollup.key, shard)
                for page in self.watch._pages_of(rollup):
                    self._there(page, shard)
            for _, receipt in state.receipts.range():
                self._there(receipt.key, shard)

    def _there(self, key: str, shard: str) -> None:
        if key not in self.memory.objects:
            raise Wrong(f"{key}, which {shard} names, is gone")

    # --- how processes act

    def at(self, number: int) -> Process:
        return self.processes[number % PROCESSES]

    def acting(self, process: Process, act: Callable[[], A]) -> A | None:
        """What `act` returns; None if the process met the weather, of which it may die."""
        try:
            return act()
        except Died:
            self.kill(process)
            return None
        except LocationError:
            if not process.weather.struck:
                raise
            return None
        finally:
            process.weather = Weather()

    def kill(self, process: Process) -> None:
        """It is gone, and nothing of it was ended."""
        self.dead.append(process)
        for subscriber in self.subscribers:
            if subscriber.process == process.number and subscriber.iterator is not None:
                self.dead.append(subscriber.iterator)
                subscriber.iterator = None
        self.tokens = [
            (number, asked, None if number == process.number else tx)
            for number, asked, tx in self.tokens
        ]
        self.processes[process.number] = Process(self, process.number)

    def ask(self, **options: Any) -> Asked:
        self.made += 1
        return self.model.begin(Asked(f"op {self.made}", **options))

    def token(self) -> tuple[str, int]:
        """A new one: numbers of a scope grow."""
        return f"t{self.made % 3}", self.made

    def pick(self, number: int) -> str | None:
        """One of the tables that there are."""
        there = sorted(self.model.names, key=lambda t: (self.model.tables[t].created, t))
        return there[number % len(there)] if there else None

    def settled(
        self, process: Process, asked: Asked, commit: Callable[[], sl.Commit | None]
    ) -> sl.Commit | None:
        """Asks for a commit, and compares what the caller is told with what happened.

        None if it was not told that it is committed.
        """
        # What an earlier call left unsettled may land now, and then counts as well.
        self.watch.look()
        before = self.model.tokens.get(asked.token) if asked.token else None
        unsettled = any(m._settling.unsettled for s in process.stores() for m in s.machines())
        sure = not process.weather.fault and not unsettled
        must = self.model.refusals(asked)[0] if sure else set()
        asked.tries += 1
        try:
            done = commit()
        except Died:
            self.kill(process)
            return None
        except StrandlineError as error:
            self.watch.look()
            note(f"{asked.name} is refused: {type(error).__name__} {error}")
            self._not_done(process, asked, error, repeated=before is not None)
            return None
        finally:
            process.weather = Weather()
        assert done is not None
        self.watch.look()
        if before is not None:
            assert done.micros == before.time, "a token's second commit is its first"
            return done
        if asked.time is None:
            assert not asked.effects, "it is not in the log"
            assert not asked.ddl, "it is not in the log"
        elif asked.token is None or self.model.tokens[asked.token] is asked:
            assert done.micros == asked.time
        assert not must or asked.is_empty, f"{asked.name} had to be refused: {must}"
        return done

    def _not_done(
        self, process: Process, asked: Asked, error: StrandlineError, *, repeated: bool
    ) -> None:
        """The caller was told of an error: may it be so?"""
        if isinstance(error, LocationError):
            if not process.weather.struck:
                raise error
            if not error.may_have_happened and asked.tries == 1 and not repeated:
                self.model.refused(asked.name)
            return
        # An earlier try may have happened, or yet happen: of that this says nothing.
        if asked.tries == 1:
            self.model.refused(asked.name)
        must, may = self.model.refusals(asked)
        if repeated or error.kind not in must | may | self._excuses(process, asked, error):
            raise error

    def _excuses(self, process: Process, asked: Asked, error: StrandlineError) -> set[str]:
        """Kinds of errors that may come for what is not among the tables."""
        found: set[str] = set()
        if isinstance(error, Fenced):
            state = self.watch.states[TXNS]
            mine = [m for store in process.stores() for m in store.machines()]
            ended = {s for m in mine for s in m.own.ended}
            ended |= {m.session for m in mine if m.own.is_registered} | asked.sessions
            if any(not is_open(state.sessions.get((s,))) for s in ended):
                found.add("fenced")
        if any(self.since(look.table) > asked.read_time for look in asked.looks):
            # Whether it changed is not known any more.
            found |= {"transaction-conflict", "as-of-too-old"}
        return found
