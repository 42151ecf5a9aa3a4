"""A vacuum beside everything else: what may be needed stays, what cannot be needed goes."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from strandline.database import Database
from strandline.env import RealEnv
from strandline.errors import AsOfTooOld, LocationError, StrandlineError, UnknownTable, UsageError
from strandline.ids import DatabaseId, ObjectKey, ShardId
from strandline.location import Location
from strandline.location.memory import MemoryBlob, MemoryConsensus, MemoryStore
from strandline.read.reading import Reading
from strandline.settings import Settings
from strandline.shard.look import Look
from strandline.shard.machine import Machine
from strandline.shard.rollups import may_be_named
from strandline.state.codec import decode_receipt, decode_record, decode_rollup
from strandline.state.commands import Heartbeat
from strandline.state.garbage import touches_references
from strandline.state.invariants import broken
from strandline.state.pages import Page
from strandline.state.replay import State
from strandline.table import Table
from strandline.testing.faults import (
    FAIL_AFTER,
    FAIL_BEFORE,
    Call,
    Fault,
    Faults,
    FaultyBlob,
    FaultyConsensus,
)
from strandline.times import told
from strandline.txn.handle import Handle, Origin
from strandline.upkeep.background import open_store
from strandline.upkeep.vacuum import TXNS
from tests.support.deadlines import within
from tests.tables.helpers import apply

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
NOW = {"retention": "0 seconds", "deletion_delay": "0 seconds"}
HOUR = 3_600_000_000
TXNS_SHARD = ShardId("s00000000000000aa")
SMALL = Settings(
    background=False,
    inline_bytes_max=0,
    rollup_every_records=8,
    page_items_max=4,
    small_parts_max=1_000,
)


class ShiftedEnv(RealEnv):
    """A clock that a test sets ahead or back; sleeping takes no time, so that retries are quick."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = 0

    def now_micros(self) -> int:
        return super().now_micros() + self.ahead

    def sleep(self, seconds: float) -> None:
        super().sleep(min(seconds, 0.001))


@dataclass
class World:
    """One place in memory with a clock of its own, and the handles on it."""

    store: MemoryStore = field(default_factory=MemoryStore)
    clock: ShiftedEnv = field(default_factory=ShiftedEnv)
    opened: list[Database] = field(default_factory=list)

    def open(
        self,
        decide: Callable[[Call], Fault | None] = lambda _: None,
        *,
        read_only: bool = False,
        settings: Settings = SMALL,
        env: RealEnv | None = None,
    ) -> Database:
        faults = Faults(decide)
        location = Location(
            FaultyBlob(MemoryBlob(self.store, self.clock), faults),
            FaultyConsensus(MemoryConsensus(self.store), faults),
            "memory://vacuum",
            "memory://vacuum",
            read_only,
            TXNS_SHARD,
        )
        database = DatabaseId("d" + "0" * 32)
        inside = open_store(location, database, TXNS_SHARD, env or ShiftedEnv(), settings)
        origin = Origin("memory://vacuum", "r" if read_only else "rw", settings, _never, False)
        self.opened.append(Database(Handle(inside, origin)))
        return self.opened[-1]

    def pass_time(self, micros: int = HOUR) -> None:
        """The location's clock goes on; those of the machines do not."""
        self.clock.ahead += micros

    def objects(self) -> set[str]:
        """All but milestones, which no state names."""
        return {key for key in self.store.objects if not key.startswith("milestone/")}

    def records(self) -> int:
        return sum(map(len, self.store.logs.values()))

    def copy(self) -> World:
        """The same place once more, for another end of the story."""
        store = MemoryStore()
        store.objects = dict(self.store.objects)
        store.logs = {shard: list(log) for shard, log in self.store.logs.items()}
        clock = ShiftedEnv()
        clock.ahead = self.clock.ahead
        return World(store, clock)


def _never(_: Origin) -> Any:
    raise AssertionError("nothing is reopened here")


@pytest.fixture(autouse=True)
def _paged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small states are kept in pages too, so that pages come and go."""
    monkeypatch.setattr("strandline.shard.rollup.INLINE_BYTES_MAX", 500)
    monkeypatch.setattr("strandline.upkeep.vacuum.HISTORY_RECORDS", 0)


@pytest.fixture(name="world")
def _world() -> Iterator[World]:
    world = World()
    yield world
    for database in world.opened:
        with suppress(LocationError):
            database.close()


def rows(*keys: int) -> pa.Table:
    return pa.table({"k": list(keys), "v": list(keys)}, schema=SCHEMA)


def keys(table: Table) -> list[int]:
    return sorted(table.scan().to_arrow()["k"].to_pylist())


def machine(db: Database, table: Table | str | None) -> Machine:
    store = db._handle.store
    if table is None:
        return store.txns.machine
    return store.data(table if isinstance(table, str) else table.id)


def shards(db: Database) -> list[Machine]:
    """Of the database and of every table that there is or was."""
    store = db._handle.store
    state = store.txns.look(within(60))
    tables = state.ask(lambda s: {k[0] for k, _ in s.tables.range()})
    return [store.txns.machine, *(store.data(table) for table in sorted(tables))]


def grown(db: Database, name: str = "t", rounds: int = 6, **properties: str) -> Table:
    """A table that was appended to and compacted, so that most of what was written is dead."""
    table = db.create_table(name, SCHEMA, row_keys="k", properties={**NOW, **properties})
    for number in range(rounds):
        table.append(rows(2 * number))
        table.append(rows(2 * number + 1))
        apply(table)
        db.compact(name, strategy="full")
    return table


def live_and_dead(db: Database, world: World) -> tuple[set[str], set[str]]:
    """What states name and what they call dead, with the rollups that wait to be named."""
    live: set[str] = set()
    dead: set[str] = set()
    for shard in shards(db):
        state = shard.look()
        if not state.seqno:
            continue
        found, waiting = state.ask(_named)
        rollups = state.ask(lambda s: [r.key for _, r in s.rollups.range()])
        for key in [*rollups, *_to_be_named(world, shard, state)]:
            live.add(key)
            manifest = decode_rollup(world.store.objects[key][0], key)
            for pages in manifest.pages.values():
                live |= set() if isinstance(pages, Page) else {ref.key for ref in pages}
        live |= found
        dead |= waiting
    return live, dead


def _to_be_named(world: World, shard: Machine, state: Look) -> Iterator[str]:
    """Rollups of that shard which were written and may be named by the next record."""
    for each in world.opened:
        for other in each._handle.store.machines() if not each._handle.closed else ():
            sealed = other._rollups.sealed
            if other.shard != shard.shard or sealed is None:
                continue
            if state.ask(partial(may_be_named, sealed)):
                yield sealed.rollup.key


def _named(state: State) -> tuple[set[str], set[str]]:
    found = {reference.part.key for _, reference in state.references.range()}
    found |= {part.key for _, entry in state.entries.range() for part in entry.batch.parts}
    found |= {receipt.key for _, receipt in state.receipts.range()}
    return found, {dead.key for _, dead in state.dead.range()}


def check(db: Database, world: World) -> set[str]:
    """Everything that is needed is there; what is there and not needed."""
    for shard in shards(db):
        state = shard.look()
        assert state.ask(broken) == []
    live, dead = live_and_dead(db, world)
    assert live <= world.objects()
    assert not live & dead
    return world.objects() - live


def vacuumed(db: Database, world: World, runs: int = 3) -> None:
    for _ in range(runs):
        db.vacuum()
        world.pass_time()


# --- what goes, and what stays


def test_everything_dead_goes_and_a_further_run_deletes_nothing(world: World) -> None:
    db = world.open()
    table = grown(db)
    before = len(world.objects())
    reports = db.vacuum()
    assert {report.table for report in reports} == {"t", TXNS}
    assert next(r for r in reports if r.table == "t").shard.objects > 10
    vacuumed(db, world)
    assert check(db, world) == set()
    assert len(world.objects()) < before / 2
    objects, records = world.objects(), world.records()
    again = db.vacuum()
    assert [(r.shard.objects, r.shard.rollups, r.shard.records) for r in again] == [(0, 0, 0)] * 2
    assert (world.objects(), world.records()) == (objects, records)
    assert keys(table) == list(range(12))


def test_nothing_goes_before_its_delay_has_passed_on_the_clock_of_the_location(
    world: World,
) -> None:
    db = world.open()
    table = grown(db, deletion_delay="10 minutes")
    machine(db, table).submit(Heartbeat())
    objects = world.objects()
    minute = 60_000_000
    (first,) = db.vacuum("t")
    assert first.shard.objects == 0
    world.pass_time(9 * minute)
    db.vacuum("t")
    assert objects <= world.objects()
    world.pass_time(minute)
    db.vacuum("t")
    assert not objects <= world.objects()


@pytest.mark.parametrize("ahead", [-1_000 * HOUR, 1_000 * HOUR])
def test_wrong_clocks_of_machines_count_for_nothing(world: World, ahead: int) -> None:
    db = world.open()
    table = grown(db, deletion_delay="10 minutes")
    wrong = ShiftedEnv()
    other = world.open(env=wrong)
    wrong.ahead = ahead
    objects = world.objects()
    for handle in (db, other, db, other):
        handle.vacuum("t")
    assert objects <= world.objects(), "deleted before the delay"
    world.pass_time(600_000_000)
    other.vacuum("t")
    assert not objects <= world.objects()
    assert keys(table) == keys(other["t"]) == list(range(12))


def test_what_dies_while_the_clock_is_asked_is_not_called_dead_by_then(world: World) -> None:
    db, other = world.open(), world.open()
    table = grown(db, deletion_delay="10 minutes")
    theirs = other["t"]
    asked: list[str] = []

    def meanwhile(call: Call) -> None:
        if call.kind == "list" and call.key.endswith(".probe") and not asked:
            asked.append(call.key)
            seqno.append(machine(other, theirs).look().seqno)
            theirs.append(rows(77))
            apply(theirs)
            other.compact("t", strategy="full")

    seqno: list[int] = []
    world.open(meanwhile).vacuum("t")
    shard = machine(db, table)
    ((key, _),) = shard.look().ask(lambda s: list(s.marks.range()))
    assert asked
    assert key[0] <= seqno[0]


def test_a_vacuum_goes_on_from_the_newest_state_where_pages_of_the_known_one_are_gone(
    world: World,
) -> None:
    names = [f"t{number}" for number in range(6)]
    wide = pa.schema(
        [pa.field("k", pa.int64()), *(pa.field("v" * n, pa.int64()) for n in range(1, 99))]
    )
    db = world.open()

    def stored(db: Database) -> set[str]:
        """The pages of the state in memory that tell of tables."""
        slots = db._handle.store.txns.look().state.tables.slots
        return {slot.ref.key for slot in slots if slot.ref is not None}

    for name in names:
        db.create_table(name, wide, row_keys="k")
    db._handle.store.txns.machine.roll_up()
    db["t0"].append({"k": [1]})
    idle = world.open()
    known = stored(idle)
    for name in names:
        db[name].set(retention="1 hour")
    db._handle.store.txns.machine.roll_up()
    db["t0"].append({"k": [2]})
    gone = known - stored(world.open())
    assert gone
    for key in gone:  # as by a vacuum, after the rollup that named them
        del world.store.objects[key]
    assert [report.table for report in idle.vacuum(dry_run=True)] == ["t0", TXNS]


def test_a_dry_run_of_a_reader_says_what_would_go_and_changes_nothing(world: World) -> None:
    db = world.open()
    grown(db)
    db.vacuum("t")
    db["t"].append(rows(99))
    apply(db["t"])
    db.compact("t", strategy="full")
    objects, records = world.objects(), world.records()
    reader = world.open(read_only=True)
    (report,) = reader.vacuum("t", dry_run=True)
    assert report.shard.objects + sum(report.shard.waiting.values()) > 0
    assert (world.objects(), world.records()) == (objects, records)
    with pytest.raises(UsageError):
        reader.vacuum()


def test_usage_counts_every_object_once_and_tells_what_is_unknown(world: World) -> None:
    db = world.open()
    grown(db, retention="7 days")
    db.drop_table("t")
    grown(db, "u")
    stray = ObjectKey.parse(next(k for k in world.objects() if "/part/" in k))
    world.store.objects[str(replace(stray, id="p" + "0" * 26))] = (b"12345", 0)
    used = db.usage().to_pylist()
    stored = [row for row in used if row["kind"] not in ("record", "inline")]
    assert sum(row["objects"] for row in stored) == len(world.store.objects)
    assert sum(row["bytes"] for row in stored) == sum(
        len(data) for data, _ in world.store.objects.values()
    )
    unknown = [r for r in used if r["use"] == "unknown" and r["kind"] == "part"]
    assert [(r["objects"], r["bytes"]) for r in unknown] == [(1, 5)]
    uses = {(row["table"], row["use"]) for row in used}
    assert {("t (dropped)", "live"), ("u", "live"), ("u", "dead"), (None, "state")} <= uses
    records = sum(row["objects"] for row in used if row["use"] == "log")
    assert records == world.records()
    vacuumed(db, world)
    assert not [r for r in db.usage().to_pylist() if r["use"] == "dead" and r["table"] == "u"]


def test_the_history_of_commits_stays_for_as_many_records_as_promised(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.upkeep.vacuum.HISTORY_RECORDS", 20)
    db = world.open()
    table = db.create_table("t", SCHEMA, row_keys="k", properties=NOW)
    for number in range(60):
        table.append(rows(number))
    vacuumed(db, world)
    log = world.store.logs[TXNS_SHARD]
    assert log[0].seqno > 1
    assert 20 <= len(log) <= 50
    assert 10 <= db.history().num_rows < 60


def test_a_log_that_begins_later_says_so(world: World) -> None:
    db = world.open()
    grown(db, rounds=8)
    vacuumed(db, world)
    told = db.inspect("log", table="t", limit=1_000).to_pylist()
    begin = world.store.logs[db["t"].id][0].seqno
    assert (told[-1]["seqno"], told[-1]["command"]) == (begin - 1, None)
    assert f"begins with record {begin}" in told[-1]["note"]
    rollups = db.inspect("rollups", table="t").to_pylist()
    assert sum(row["verified"] for row in rollups) >= 2
    held = db.inspect("holds", table="t").to_pylist()
    assert {row["kind"] for row in held} == {"hold: retention", "session"}


# --- deletes that are not answered


@pytest.mark.parametrize("fault", [FAIL_BEFORE, FAIL_AFTER])
def test_a_vacuum_tells_of_objects_that_no_answer_said_are_gone(world: World, fault: Fault) -> None:
    table = grown(world.open())
    refused: list[str] = []

    def refuse_two(call: Call) -> Fault | None:
        if call.kind == "delete" and "/part/" in call.key and len(refused) < 2:
            refused.append(call.key)
            return fault
        return None

    (report,) = world.open(refuse_two).vacuum("t")
    assert not report.shard.complete
    assert report.shard.left == len(refused) == 2
    assert report.shard.objects > 10, "the others go all the same"
    (again,) = world.open().vacuum("t")
    assert again.shard.complete
    assert not world.objects() & set(refused)
    assert keys(table) == list(range(12))


def test_a_location_that_deletes_nothing_is_not_asked_for_everything(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.shard.deleting._BITE", 4)
    monkeypatch.setattr("strandline.shard.deleting._UNANSWERED_MAX", 6)
    grown(world.open())
    asked: list[str] = []

    def refuse(call: Call) -> Fault | None:
        if call.kind == "delete" and "/part/" in call.key:
            asked.append(call.key)
            return FAIL_BEFORE
        return None

    (report,) = world.open(refuse).vacuum("t")
    assert report.shard.objects == 0
    assert len(asked) == 8 < report.shard.left
    assert set(asked) <= world.objects()


# --- prune


def test_prune_gives_up_history_before_a_time_and_nothing_after_it(world: World) -> None:
    db = world.open()
    table = grown(db, retention="7 days")
    db.table("t").delete("k < 6")
    moments = [row["commit"] for row in db.history(6).to_pylist()]
    assert len(moments) == 6
    table.append(rows(50))
    apply(table)
    late = db.history(1)["time"][0].as_py()
    early = db.history(2)["time"][1].as_py()
    assert keys(db.as_of(early)["t"]) == list(range(6, 12))
    (report,) = db.prune("t", before=late)
    assert report.held_by == ()
    assert keys(db.as_of(late)["t"]) == [*range(6, 12), 50]
    with pytest.raises(AsOfTooOld):
        keys(db.as_of(early)["t"])
    vacuumed(db, world)
    assert check(db, world) == set()
    (again,) = db.prune("t", before=late)
    assert again.since == report.since
    assert again.shard is not None
    assert again.shard.objects == 0


def test_prune_says_who_holds_what_it_could_not_drop(world: World) -> None:
    db = world.open()
    table = db.create_table("t", SCHEMA, row_keys="k", properties=NOW)
    table.append(rows(1))
    apply(table)
    first = db.history(1)["time"][0].as_py()
    changes = table.subscribe(name="mirror")
    for number in range(2, 6):
        table.append(rows(number))
    apply(table)
    (report,) = db.prune(before=db.history(1)["time"][0].as_py())
    assert report.held_by == ("subscription:mirror",)
    assert keys(db.as_of(first)["t"]) == [1]
    changes.close()
    table.drop_subscription("mirror")
    (report,) = db.prune(before=db.history(1)["time"][0].as_py())
    assert report.held_by == ()
    with pytest.raises(AsOfTooOld):
        keys(db.as_of(first)["t"])


def test_c4_after_all_before_a_rollup_is_gone_the_state_is_the_same(world: World) -> None:
    db = world.open()
    table = grown(db, rounds=10)
    early = db.history(100)["time"][-2].as_py()
    db.prune(before=db.history(1)["time"][0].as_py())
    shard = machine(db, table)
    before = shard.look().ask(lambda s: [ref for _, ref in s.references.range()])
    vacuumed(db, world)
    assert world.store.logs[table.id][0].seqno > 1
    fresh = world.open()
    other = machine(fresh, table)
    state = other.look()
    assert state.ask(lambda s: [ref for _, ref in s.references.range()]) == before
    earliest = fresh.status().to_pylist()[0]["since"]
    assert keys(fresh.as_of(earliest)["t"]) == list(range(20))
    since = state.meta.since
    assert since is not None
    with pytest.raises(AsOfTooOld, match=re.escape(told(since))):
        keys(fresh.as_of(early)["t"])


def test_what_has_not_happened_yet_cannot_be_pruned(world: World) -> None:
    db = world.open()
    grown(db)
    with pytest.raises(UsageError, match="latest time"):
        db.prune(before="2999-01-01T00:00:00Z")


# --- beside readers and writers


def test_readers_of_old_views_read_on_while_parts_go(world: World) -> None:
    db, other = world.open(), world.open()
    table = grown(db, retention="7 days")
    moment = db.history(1)["time"][0].as_py()
    past = other.as_of(moment)["t"]
    stale = other["t"]
    assert keys(stale) == list(range(12))
    for number in range(4):
        table.append(rows(100 + number))
        db.compact("t", strategy="full")
        vacuumed(db, world)
        assert keys(past) == list(range(12))
        assert keys(stale) == [*range(12), *range(100, 101 + number)]
        assert other.sql("select count(*) from t").fetchall() == [(13 + number,)]


def test_an_open_scan_goes_on_over_parts_that_are_gone(world: World) -> None:
    db, other = world.open(), world.open()
    table = db.create_table("t", SCHEMA, row_keys="k", properties={**NOW, "retention": "7 days"})
    for start in range(0, 4_000, 1_000):
        table.append(rows(*range(start, start + 1_000)))
    apply(table)
    batches = iter(other["t"].scan().to_batches())
    found = next(batches)["k"].to_pylist()
    table.append(rows(9_999))
    db.compact("t", strategy="full")
    vacuumed(db, world)
    for batch in batches:
        found += batch["k"].to_pylist()
    assert sorted(found) == list(range(4_000))


def test_a_subscription_misses_nothing_while_history_is_given_up(world: World) -> None:
    db, other = world.open(), world.open()
    table = db.create_table("t", SCHEMA, row_keys="k", properties=NOW)
    table.append(rows(0))
    seen: list[int] = []
    with other["t"].subscribe() as changes:
        seen += next(changes).rows["k"].to_pylist()
        for number in range(1, 9):
            table.append(rows(number))
            apply(table)
            db.compact("t", strategy="full")
            vacuumed(db, world, 2)
            # Always behind: what is to come was merged, and its parts are gone.
            while number % 3 == 0 and seen[-1] < number - 1:
                seen += next(changes).rows["k"].to_pylist()
    assert seen == list(range(len(seen)))
    assert len(seen) >= 6
    assert keys(table) == list(range(9))


def test_a_writer_that_slept_through_a_truncation_goes_on(world: World) -> None:
    db, other = world.open(), world.open()
    table = db.create_table("t", SCHEMA, row_keys="k", properties=NOW)
    theirs = other["t"]
    theirs.append(rows(1_000))
    assert keys(table) == [1_000]
    asleep = machine(other, theirs).state.seqno
    for number in range(40):
        table.append(rows(number))
        apply(table)
    db.compact("t", strategy="full")
    vacuumed(db, world)
    log = world.store.logs[table.id]
    assert log[0].seqno > asleep + 1, "S16: its slot was truncated"
    theirs.append(rows(1_001))
    apply(theirs)
    assert keys(theirs) == keys(table) == [*range(40), 1_000, 1_001]
    check(db, world)


def test_a_log_that_begins_later_opens_also_while_it_is_truncated(world: World) -> None:
    db = world.open()
    grown(db, rounds=12)
    vacuumed(db, world)
    before = dict(world.store.logs)
    assert all(log[0].seqno > 1 for log in before.values())
    assert keys(world.open()["t"]) == list(range(24))
    # Again, with another vacuum between any two requests of who opens it.
    table = db["t"]
    for number in range(3):
        for _ in range(10):
            table.append(rows(100 + number))
            apply(table)
        db.compact("t", strategy="full")

        def truncate(call: Call) -> None:
            if call.kind == "scan" and call.number % 2:
                db.vacuum()

        assert len(keys(world.open(truncate)["t"])) == 24 + 10 * (number + 1)


def test_two_vacuums_at_once_do_what_one_does(world: World) -> None:
    db, other = world.open(), world.open()
    grown(db)
    busy: list[bool] = []

    def both(call: Call) -> None:
        if not busy and call.changes:
            busy.append(True)
            other.vacuum()
            busy.clear()

    both_at_once = world.open(both)
    vacuumed(both_at_once, world)
    busy.append(True)
    vacuumed(db, world)
    assert check(db, world) == set()
    assert keys(db["t"]) == list(range(12))


def test_nobody_notices_a_vacuum_that_never_stops(world: World) -> None:
    writer = world.open()
    table = writer.create_table("t", SCHEMA, row_keys="k", properties=NOW)
    table.append(rows(0))
    over = threading.Event()
    failures: list[BaseException] = []

    def until_over(work: Callable[[], object]) -> None:
        try:
            while not over.is_set():
                work()
        except BaseException as error:  # noqa: BLE001  told to the test below
            failures.append(error)
            over.set()

    def look(reader: Table) -> None:
        found = keys(reader)
        assert found == list(range(len(found)))

    vacuum, merge, reader = world.open(), world.open(), world.open(read_only=True)["t"]
    works: list[Callable[[], object]] = [
        vacuum.vacuum,
        lambda: merge.compact("t", strategy="full"),
        lambda: look(reader),
    ]
    threads = [threading.Thread(target=until_over, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for number in range(1, 80):
        if over.is_set():
            break
        table.append(rows(number))
        look(table)
    over.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert keys(table) == list(range(80))
    vacuumed(writer, world)
    check(writer, world)


# --- receipts


def test_receipts_have_every_record_that_changed_references(world: World) -> None:
    db = world.open()
    table = grown(db, retention="7 days")
    log = world.store.logs[table.id]
    records = {record.seqno: record.data for record in log}
    vacuumed(db, world)
    assert log[0].seqno > 1
    shard = machine(db, table)
    receipts = shard.look().ask(lambda s: list(s.receipts.range()))
    copied = set()
    covered = 0
    for (first,), receipt in receipts:
        copies = decode_receipt(world.store.objects[receipt.key][0], receipt.key)
        assert (copies.first, copies.last) == (first, receipt.last)
        assert first == covered + 1
        covered = receipt.last
        copied |= set(copies.records)
    wanted = {
        data
        for seqno, data in records.items()
        if seqno <= covered and touches_references(decode_record(data, "record").diffs)
    }
    assert wanted
    assert copied == wanted
    assert covered >= log[0].seqno - 1


def test_receipts_go_when_nothing_of_what_they_tell_is_there(world: World) -> None:
    db = world.open()
    table = grown(db)
    sizes = []
    for number in range(6):
        table.append(rows(number))
        apply(table)
        db.compact("t", strategy="full")
        vacuumed(db, world)
        shard = machine(db, table)
        sizes.append(shard.look().ask(lambda s: s.receipts.count()))
    assert max(sizes) <= 4
    assert check(db, world) == set()


# --- damage


@pytest.mark.parametrize("harm", ["flip", "remove"])
@pytest.mark.parametrize("kind", ["rollup", "page"])
def test_nothing_rests_on_a_damaged_rollup_and_another_takes_its_place(
    world: World, harm: str, kind: str
) -> None:
    db = world.open()
    table = grown(db, rounds=12)
    vacuumed(db, world)
    db.compact("t", strategy="full")
    for number in range(60, 140):
        table.append(rows(number))
        apply(table)
    shard = machine(db, table)
    newest = shard.look().ask(lambda s: [r for _, r in s.rollups.range()][-1])
    assert not newest.verified
    victim = newest.key
    if kind == "page":
        manifest = decode_rollup(world.store.objects[newest.key][0], newest.key)
        refs = [
            r for pages in manifest.pages.values() if not isinstance(pages, Page) for r in pages
        ]
        victim = refs[-1].key
    data, at = world.store.objects.pop(victim)
    if harm == "flip":
        world.store.objects[victim] = (data[:-1] + bytes([data[-1] ^ 1]), at)
    expected = [*range(24), *range(60, 140)]
    fresh = world.open()
    assert keys(fresh["t"]) == expected
    reports = {r.table: r.shard for r in fresh.vacuum()}
    assert newest.key in reports["t"].damaged
    assert keys(world.open()["t"]) == expected
    fresh.compact("t", strategy="full")
    for _ in range(2):
        world.pass_time()
        fresh.vacuum()
        assert keys(world.open()["t"]) == expected
    shard.look()
    assert not shard.ask(lambda s: [d for _, d in s.dead.range() if "/part/" in d.key])


# --- dropped tables


def test_a_dropped_table_ends_as_a_small_tombstone_and_is_forgotten(world: World) -> None:
    db, other = world.open(), world.open()
    db.create_table("kept", SCHEMA, row_keys="k", properties=NOW)
    table = grown(db)
    theirs = other["t"]
    assert keys(theirs) == list(range(12))
    moment = db.history(1)["time"][0].as_py()
    dropped = db.drop_table("t")
    assert dropped is not None
    db.vacuum()
    with pytest.raises(StrandlineError, match="t'"):
        keys(db.as_of(moment)["t"])
    vacuumed(db, world, 5)
    assert db.tables() == ["kept"]
    log = world.store.logs[table.id]
    mine = [key for key in world.objects() if ObjectKey.parse(key).shard == table.id]
    assert check(db, world) <= set(mine), "nobody looks at the tombstone any more"
    assert not [key for key in mine if "/part/" in key]
    assert len([key for key in mine if "/page/" not in key]) <= 4
    assert sum(len(world.store.objects[key][0]) for key in mine) < 12_000
    assert len(log) <= 20
    with pytest.raises(UnknownTable):
        db["t"]
    with pytest.raises((UnknownTable, AsOfTooOld)):
        keys(other.as_of(moment)["t"])
    with pytest.raises(StrandlineError):
        theirs.append(rows(1))
    with pytest.raises(StrandlineError):
        keys(theirs)
    assert machine(db, None).ask(lambda s: {k[0] for k, _ in s.tables.range()}) == {db["kept"].id}
    grown(db)
    assert keys(db["t"]) == list(range(12))


def test_a_dropped_table_is_read_as_of_before_while_its_retention_lasts(world: World) -> None:
    db = world.open()
    grown(db, retention="7 days")
    moment = db.history(1)["time"][0].as_py()
    db.drop_table("t")
    vacuumed(db, world)
    assert keys(db.as_of(moment)["t"]) == list(range(12))
    assert check(db, world) == set()


def test_a_thousand_tables_that_came_and_went_leave_nothing(world: World) -> None:
    db = world.open(settings=replace(SMALL, rollup_every_records=128, page_items_max=1_000))
    db.create_table("kept", SCHEMA, row_keys="k", properties=NOW)
    vacuumed(db, world, 1)
    sizes = []
    for piece in range(4):
        for number in range(250):
            name = f"t{piece}_{number}"
            db.create_table(name, SCHEMA, row_keys="k", properties=NOW)
            db.drop_table(name)
        vacuumed(db, world, 3)
        sizes.append((len(world.objects()), world.records()))
    assert sizes[-1][0] <= 8
    assert sizes[-1][1] <= 300
    assert machine(db, None).ask(lambda s: s.tables.count()) == 1


def test_ten_thousand_empty_appends_leave_no_growth(world: World) -> None:
    db = world.open(settings=replace(SMALL, rollup_every_records=128, page_items_max=1_000))
    table = db.create_table("t", SCHEMA, row_keys="k", properties=NOW)
    none = rows()
    sizes = []
    for _ in range(4):
        for _ in range(2_500):
            table.append(none)
        vacuumed(db, world, 2)
        sizes.append((len(world.objects()), world.records()))
    assert sizes[-1][0] <= 8
    assert sizes[-1][1] <= 300


# --- failures


def situation() -> World:
    """A place with everything that a vacuum does: dead parts, old rollups, a table that is over."""
    world = World()
    db = world.open()
    grown(db, rounds=3)
    grown(db, "gone", rounds=1)
    db.vacuum()
    world.pass_time()
    table = db["t"]
    for number in range(6):
        table.append(rows(100 + number))
        apply(table)
    db.compact("t", strategy="full")
    db.drop_table("gone")
    db.close()
    return world


EXPECTED = [*range(6), *range(100, 106)]


class Dead(BaseException):
    """The process is gone: nothing after this call happens."""


def _calls() -> int:
    """How many calls a vacuum of the situation makes."""
    world = situation()
    calls: list[Call] = []
    world.open(calls.append).vacuum()
    return len(calls)


@pytest.mark.parametrize("how", ["before", "after", "hang", "dies before", "dies after"])
def test_whatever_call_fails_or_is_the_last_one_nothing_is_lost_and_the_next_run_ends_it(
    how: str,
) -> None:
    base = situation()
    count = _calls()
    assert count > 60
    for number in range(1, count + 1):
        world = base.copy()
        db = world.open(_failing(how, number))
        with suppress(LocationError, Dead):
            db.vacuum(timeout=5 if how == "hang" else None)
        world.opened.clear()  # what it had in memory died with it
        reader = world.open()
        check(reader, world)
        assert keys(reader["t"]) == EXPECTED, number
        world.pass_time()
        later = world.open()
        vacuumed(later, world, 4)
        left = {key for key in check(later, world) if not key.endswith(".probe")}
        # Of what was put and never entered nobody knows but the sweep of its session.
        assert len(left) <= 12, (number, left)
        assert not left & live_and_dead(later, world)[1]
        assert keys(world.open()["t"]) == EXPECTED, number


def _failing(how: str, number: int) -> Callable[[Call], Fault | None]:
    gone = False

    def dies(_: Call) -> BaseException:
        return Dead()

    def decide(call: Call) -> Fault | None:
        nonlocal gone
        if gone:
            return Fault(before=dies)
        if call.number != number:
            return None
        if how == "before":
            return FAIL_BEFORE
        if how == "after":
            return FAIL_AFTER
        if how == "hang":
            return Fault(before=lambda _: LocationError("no answer until the deadline"))
        gone = True
        return Fault(before=dies) if how == "dies before" else Fault(after=dies)

    return decide


# --- reads that a vacuum overtakes where no history is kept


class Overtaken:
    """A table of which a reader's next look into a part comes after another's compaction, and after
    what that replaced was deleted.
    """

    def __init__(self, world: World) -> None:
        self.writer = world.open()
        self.table = self.writer.create_table("t", SCHEMA, row_keys="k", properties=NOW)
        self.last = -1
        self.armed = 0
        self._world = world
        self.rewrite()
        self.reader = world.open(self._decide)

    def rewrite(self) -> None:
        """One more row, and everything stored anew."""
        self.last += 1
        self.table.append(rows(self.last))
        apply(self.table)
        self.writer.compact("t", strategy="full")
        vacuumed(self.writer, self._world)

    def _decide(self, call: Call) -> Fault | None:
        if self.armed and call.port == "blob" and call.kind in {"open", "get", "get_range"}:
            self.armed -= 1
            self.rewrite()
        return None

    @property
    def all(self) -> list[int]:
        """The keys that there are by now."""
        return list(range(self.last + 1))


READS: dict[str, Callable[[Any], list[int]]] = {
    "scan": lambda t: t.scan().to_arrow()["k"].to_pylist(),
    "limit": lambda t: t.scan(limit=100).to_arrow()["k"].to_pylist(),
    "stream": lambda t: t.scan().to_reader().read_all()["k"].to_pylist(),
    "batches": lambda t: [k for b in t.scan().to_batches() for k in b["k"].to_pylist()],
    "count": lambda t: list(range(t.scan(where="v >= 0").count())),
    "get": lambda t: t.get_many(range(100))["k"].to_pylist(),
}


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("read", READS)
def test_a_read_of_the_latest_time_that_has_given_nothing_begins_anew(
    world: World, read: str, times: int
) -> None:
    overtaken = Overtaken(world)
    table = overtaken.reader["t"]
    overtaken.armed = times
    assert READS[read](table) == overtaken.all
    assert not overtaken.armed
    assert overtaken.last == times


# A stream may have given the row that the transaction wrote by then.
@pytest.mark.parametrize(
    ("read", "write_first"),
    [*((read, False) for read in READS), *((read, True) for read in ("scan", "limit", "count"))],
)
def test_the_first_read_of_a_transaction_moves_it_on_where_its_time_is_given_up(
    world: World, read: str, write_first: bool
) -> None:
    overtaken = Overtaken(world)
    own = [-1] if write_first else []
    with overtaken.reader.transaction() as tx:
        if write_first:
            tx["t"].append(rows(-1))
        began = tx.read_time
        overtaken.rewrite()
        overtaken.armed = 1
        found = READS[read](tx["t"])
        # The others ask for keys, or with a condition that the row written here does not meet.
        assert found == (overtaken.all if read in {"count", "get"} else own + overtaken.all)
        assert began < tx.read_time
        assert overtaken.last == 2
        at = tx.read_time
        assert len(tx["t"]) == len(own + overtaken.all)
        assert tx.read_time == at
    assert keys(overtaken.table) == sorted(own + overtaken.all)


@pytest.mark.parametrize("opened_before", [False, True])
def test_a_transaction_that_has_read_stays_at_its_time_or_says_that_it_is_gone(
    world: World, opened_before: bool
) -> None:
    overtaken = Overtaken(world)
    overtaken.writer.create_table("other", SCHEMA, row_keys="k")
    with overtaken.reader.transaction() as tx:
        assert len(tx["other"]) == 0
        at = tx.read_time
        if opened_before:
            overtaken.rewrite()
            overtaken.reader["t"].get(0)
        overtaken.armed = 1
        with pytest.raises(AsOfTooOld):
            tx["t"].scan().to_arrow()
        assert tx.read_time == at


def test_sql_of_a_transaction_reads_all_tables_at_the_time_that_it_moved_on_to(
    world: World,
) -> None:
    overtaken = Overtaken(world)
    overtaken.writer.create_table("kept", SCHEMA, row_keys="k").append(rows(5))
    with overtaken.reader.transaction() as tx:
        began = tx.read_time
        overtaken.writer["kept"].append(rows(6))
        overtaken.rewrite()
        overtaken.reader["t"].get(0)  # its state of the table is one that gave the time up
        query = "select (select count(*) from kept), (select count(*) from t)"
        assert tx.sql(query).fetchall() == [(2, 2)]
        assert tx.read_time > began
        assert tx.sql("update t set v = (select count(*) from kept) where k = 1") in {1, 2}
    assert keys(overtaken.table) == overtaken.all


def test_a_write_of_a_transaction_begins_anew_if_its_first_read_is_overtaken(
    world: World,
) -> None:
    overtaken = Overtaken(world)
    with overtaken.reader.transaction() as tx:
        overtaken.armed = 1
        tx["t"].update({"v": "v + 1"})
        assert overtaken.last == 1
    assert overtaken.table.scan().to_arrow()["v"].to_pylist() == [1, 2]


def test_a_stream_that_has_given_rows_ends_with_an_error_and_gives_none_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = world.open().create_table("t", SCHEMA, row_keys="k", properties=NOW)
    table.append(rows(1, 2, 3))
    all_of_them = Reading._tables

    def given_up(self: Reading, limit: int | None) -> Iterator[pa.Table]:
        yield from all_of_them(self, limit)
        raise AsOfTooOld("that time is not kept any more")

    monkeypatch.setattr(Reading, "_tables", given_up)
    batches = table.scan().to_batches()
    assert next(batches)["k"].to_pylist() == [1, 2, 3]
    with pytest.raises(AsOfTooOld, match="any more"):
        next(batches)
