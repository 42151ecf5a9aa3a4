"""What ended sessions left goes, twice looked for; what anything needs stays, whatever fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
import strandline.txn.apply
from strandline.env import Deadline
from strandline.ids import ObjectKey
from strandline.location.retry import RetryingBlob
from strandline.shard.probe import location_time
from strandline.state.commands import Expire
from strandline.state.model import Session
from strandline.state.sessions import stage_of
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
from strandline.txn.store import Store
from strandline.upkeep.background import open_store
from strandline.upkeep.sweep import Sweep, sweep
from tests.support.deadlines import within
from tests.tables.helpers import QUIET, apply

Open = Callable[..., sl.Database]

PARTS = replace(QUIET, inline_bytes_max=0)
SCHEMA = pa.schema([("k", pa.int64())])
MINUTE = 60_000_000


@pytest.fixture(name="db")
def _db(open_database: Open) -> sl.Database:
    return open_database(settings=PARTS)


@pytest.fixture(name="table")
def _table(db: sl.Database) -> sl.Table:
    return db.create_table("t", SCHEMA, row_keys="k")


def keys(table: Any) -> list[int]:
    return sorted(table.scan().to_arrow()["k"].to_pylist())


def swept(db: sl.Database, delay: int = 0, **more: Any) -> Sweep:
    store = db._handle.store
    return sweep(store, delay_micros=delay, deadline=Deadline(store.env, 60), **more)


def objects(db: sl.Database, session: str) -> set[str]:
    blob = db._handle.store.location.blob
    return {info.key for info in blob.list(f"{session}/", timeout=60)}


def states(db: sl.Database) -> dict[str, str]:
    return {row["session"]: row["state"] for row in db.sessions().to_pylist()}


def stray(db: sl.Database, session: str, table: sl.Table) -> str:
    """Puts what a session uploaded and did not commit."""
    store = db._handle.store
    key = str(ObjectKey(session, table.id, "part", "p" + store.env.token_hex(13)))  # type: ignore[arg-type]
    store.location.blob.put(key, b"PAR1", timeout=60)
    return key


def ended(db: sl.Database, open_database: Open, keys_: list[int]) -> str:
    """The session of one that committed these keys, one at a time, and was then forced out."""
    gone = open_database(settings=PARTS)
    table = gone.table("t")
    for key in keys_:
        table.append({"k": [key]})
    session = gone._handle.store.session
    assert db.force_ack(session=session) == [session]
    return session


# --- what goes


@pytest.mark.parametrize("fault", [FAIL_BEFORE, LOST])
def test_a_look_at_the_clock_that_could_not_be_cleared_up_after_is_swept(
    open_database: Open, db: sl.Database, table: sl.Table, fault: Fault
) -> None:
    # The session that put the probe was closed as one that had left nothing, and forgotten.
    gone = open_database(settings=PARTS)
    store = gone._handle.store
    faults = Faults(lambda call: fault if call.kind == "delete" else None)
    location = replace(store.location, blob=FaultyBlob(store.location.blob, faults))
    location_time(location, store.txns.machine, store.env, Deadline(store.env, 60))
    session = store.session
    assert len(objects(db, session)) == 1
    gone.close()
    assert states(db)[session] == "acknowledged"
    assert swept(db).objects == 1
    assert objects(db, session) == set()


def test_a_put_that_arrives_behind_its_repetition_is_swept(
    open_database: Open, db: sl.Database, table: sl.Table
) -> None:
    # The clock was read at the second try, and that one was cleared up after.
    gone = open_database(settings=PARTS)
    store = gone._handle.store
    puts: list[int] = []

    def first(call: Call) -> Fault | None:
        if call.kind == "put":
            puts.append(call.number)
        return LATE if call.kind == "put" and len(puts) == 1 else None

    faults = Faults(first)
    blob = RetryingBlob(FaultyBlob(store.location.blob, faults), store.env)
    location = replace(store.location, blob=blob)
    location_time(location, store.txns.machine, store.env, Deadline(store.env, 60))
    session = store.session
    assert len(puts) == 2
    assert objects(db, session) == set()
    faults.land(0)
    assert len(objects(db, session)) == 1
    gone.close()
    assert states(db)[session] == "acknowledged"
    assert swept(db).objects == 1
    assert objects(db, session) == set()


def test_f3_an_object_that_comes_after_the_sweep_is_found_by_a_later_one(
    open_database: Open, db: sl.Database, table: sl.Table
) -> None:
    session = ended(db, open_database, [1])
    left = stray(db, session, table)
    first = swept(db)
    assert (first.objects, first.bytes, first.finished) == (1, 4, 0)
    assert left not in objects(db, session)
    late = stray(db, session, table)
    assert keys(table) == [1]
    second = swept(db)
    assert (second.objects, second.finished) == (1, 0), "its owner was still writing"
    assert late not in objects(db, session)
    assert states(db)[session] == "swept"
    assert swept(db).finished == 1
    assert session not in states(db)
    assert keys(table) == [1]
    assert swept(db) == Sweep()


def test_the_second_sweep_waits_for_the_deletion_delay(
    open_database: Open, db: sl.Database, table: sl.Table
) -> None:
    session = ended(db, open_database, [1])
    assert swept(db, delay=15 * MINUTE).sessions == 1
    assert swept(db, delay=15 * MINUTE) == Sweep(waiting={"delay": 1})
    assert states(db)[session] == "swept"
    (report,) = [each for each in db.vacuum() if each.table == "(ended sessions)"]
    assert report.shard.waiting == {"delay": 1}
    assert keys(table) == [1]


def test_a_mark_of_a_clock_that_was_set_back_does_not_keep_a_session_for_ever(
    open_database: Open, db: sl.Database, table: sl.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = ended(db, open_database, [1])
    with monkeypatch.context() as patched:
        patched.setattr("strandline.shard.sweeping.location_time", lambda *_: 1 << 60)
        swept(db, delay=MINUTE)
    assert swept(db, delay=MINUTE).sessions == 1
    assert swept(db, delay=MINUTE) == Sweep(waiting={"delay": 1})
    assert session in states(db)


def test_a_dry_run_tells_and_deletes_nothing(
    open_database: Open, db: sl.Database, table: sl.Table
) -> None:
    session = ended(db, open_database, [1])
    left = stray(db, session, table)
    before = db._handle.store.txns.machine.look().seqno
    assert swept(db, dry_run=True).objects == 1
    assert left in objects(db, session)
    assert db._handle.store.txns.machine.look().seqno == before


def test_what_is_not_the_key_of_an_object_is_left_alone(
    open_database: Open, db: sl.Database, table: sl.Table
) -> None:
    session = ended(db, open_database, [1])
    db._handle.store.location.blob.put(f"{session}/notes", b"mine", timeout=60)
    swept(db)
    swept(db)
    assert f"{session}/notes" in objects(db, session)


def test_an_open_or_unacknowledged_session_is_not_swept(db: sl.Database, table: sl.Table) -> None:
    table.append({"k": [1]})
    session = db._handle.store.session
    left = stray(db, session, table)
    assert swept(db) == Sweep()
    lease = table.attach("a")
    mine = stray(db, lease.session, table)
    other = table.attach("b")
    assert swept(db) == Sweep(waiting={"acknowledgement": 1})
    assert {left} <= objects(db, session)
    assert objects(db, lease.session) == {mine}
    lease.release()
    other.release()


# --- what ended by silence


def test_f2_a_silent_session_is_swept_after_its_lease_and_its_grace(
    open_database: Open, db: sl.Database, table: sl.Table
) -> None:
    lease = table.attach("a")
    lease.append({"k": [1]})
    session = lease.session
    left = stray(db, session, table)
    other = table.attach("b")
    # Looks credit what they see, at most a quarter of the lease each.
    patient = open_database(settings=replace(PARTS, lease_seconds=1e-6, grace_seconds=1e9))
    for _ in range(20):
        patient.vacuum()
    assert states(db)[session] == "ended"
    assert left in objects(db, session)
    hasty = open_database(settings=replace(PARTS, lease_seconds=1e-6, grace_seconds=1e-6))
    for _ in range(20):
        hasty.vacuum()
    assert states(db)[session] in {"acknowledged", "swept"}
    assert left not in objects(db, session)
    swept(db)
    swept(db)
    assert session not in states(db)
    assert keys(table) == [1]
    with pytest.raises(sl.Fenced):
        lease.append({"k": [2]})
    with table.attach("c") as third:
        third.append({"k": [3]})
    assert keys(table) == [1, 3]
    lease.release()
    other.release()


# --- what is closed cleanly


def test_who_closes_with_nothing_uncommitted_is_forgotten(
    open_database: Open, db: sl.Database, table: sl.Table
) -> None:
    other = open_database(settings=PARTS)
    mine = other.table("t")
    for key in range(3):
        mine.append({"k": [key]})
    apply(mine)
    other.compact("t", strategy="full")
    store = other._handle.store
    sessions = {machine.session for machine in store.machines()}
    other.close()
    assert not sessions & states(db).keys()


@pytest.mark.parametrize("how", ["rollback", "conflict", "apply"])
def test_who_closes_and_leaves_something_is_swept(
    open_database: Open,
    db: sl.Database,
    table: sl.Table,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = open_database(settings=QUIET if how == "apply" else PARTS)
    mine = other.table("t")
    machine = other._handle.store.txns.machine
    if how == "rollback":
        tx = other.transaction()
        tx["t"].append({"k": [1]})
        tx.rollback()
    elif how == "conflict":
        tx = other.transaction()
        tx["t"].overwrite({"k": [1]})
        table.append({"k": [2]})
        with pytest.raises(sl.TransactionConflict):
            tx.commit()
    else:
        mine.append({"k": [1]})
        machine = other._handle.store.data(mine.id)
        with monkeypatch.context() as patched:
            gather = strandline.txn.apply._gather

            def late(*given: Any) -> Any:
                part = gather(*given)
                with monkeypatch.context() as inner:
                    inner.setattr("strandline.txn.apply._gather", gather)
                    apply(table)
                return part

            patched.setattr("strandline.txn.apply._gather", late)
            apply(mine)
    session = machine.session
    left = objects(db, session)
    assert left
    before = keys(table)
    other.close()
    assert states(db)[session] == "acknowledged"
    swept(db)
    assert not objects(db, session)
    swept(db)
    assert session not in states(db)
    assert keys(table) == before


# --- what stays


def test_f6_what_a_rejected_commit_would_have_deleted_lives(
    db: sl.Database, table: sl.Table
) -> None:
    table.append({"k": list(range(100))})
    apply(table)
    a = table.attach("a")
    tx = a.transaction()
    tx["t"].delete("k >= 0")
    b = table.attach("b")
    with pytest.raises(sl.Fenced):
        tx.commit()
    tx.rollback()
    a.release()
    swept(db)
    swept(db)
    assert keys(b.table) == list(range(100))
    b.release()


@pytest.mark.parametrize("how", ["entries", "applied", "compacted", "rolled up"])
def test_what_an_ended_session_committed_stays(
    open_database: Open, db: sl.Database, table: sl.Table, how: str
) -> None:
    gone = open_database(settings=PARTS)
    mine = gone.table("t")
    for key in range(4):
        mine.append({"k": [key]})
    store = gone._handle.store
    if how != "entries":
        apply(mine)
    if how == "compacted":
        gone.compact("t", strategy="full")
    machines = store.machines()
    if how == "rolled up":
        for machine in machines:
            assert machine.roll_up()
            machine.submit(Expire("w" + "0" * 16, 1))
        mine.append({"k": [4]})
    found = [machine.session for machine in machines]
    known = states(db)
    for session in found:
        if session in known:
            db.force_ack(session=session)
    before = {session: objects(db, session) for session in found}
    expected = list(range(5 if how == "rolled up" else 4))
    for _ in range(2):
        swept(db)
    assert {session: objects(db, session) for session in found} == before
    fresh = open_database(settings=PARTS)
    assert keys(fresh.table("t")) == expected
    apply(fresh.table("t"))
    fresh.compact("t", strategy="full")
    assert keys(fresh.table("t")) == expected


def test_f13_a_part_that_was_compacted_away_stays_until_its_reader_is_done(
    open_database: Open, db: sl.Database, table: sl.Table
) -> None:
    """CASES F8 too: what is dead is the vacuum's business, which asks who holds it."""
    gone = open_database(settings=PARTS)
    mine = gone.table("t")
    for key in range(4):
        mine.append({"k": [key]})
    apply(table)
    session = gone._handle.store.session
    before = objects(db, session)
    assert len(before) == 4
    view = table._view(db._handle.deadline(None))
    db.compact("t", strategy="full")
    db.force_ack(session=session)
    for _ in range(3):
        swept(db)
    assert session not in states(db)
    assert objects(db, session) == before
    from strandline.read.reading import Reading
    from strandline.read.want import Want

    pinned = Reading.of(db._handle, view, Want(), db._handle.deadline(None))
    assert sorted(pinned.table()["k"].to_pylist()) == [0, 1, 2, 3]
    table.set(deletion_delay="0 seconds")
    for _ in range(4):
        db.vacuum("t")
    assert not objects(db, session), "and then it goes"
    assert keys(table) == [0, 1, 2, 3]


def test_f14_a_reader_of_long_ago_finds_the_newest_state_after_a_truncation(
    open_database: Open, db: sl.Database, table: sl.Table
) -> None:
    reader = open_database(settings=PARTS).table("t")
    table.append({"k": [0]})
    apply(table)
    assert keys(reader) == [0]
    busy = open_database(settings=replace(PARTS, rollup_every_records=4))
    mine = busy.table("t")
    for key in range(1, 30):
        mine.append({"k": [key]})
        apply(mine)
    busy.vacuum()
    busy.vacuum()
    first = busy._handle.store.data(mine.id).records()[0].seqno
    assert first > reader._handle.store.data(mine.id).state.seqno + 1, "it was truncated"
    assert keys(reader) == list(range(30))


def test_a_state_that_lost_records_ends_the_sweep(
    open_database: Open, db: sl.Database, table: sl.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = ended(db, open_database, [1, 2])
    apply(table)
    db._handle.store.txns.tidy(deadline=within(60))
    before = objects(db, session)
    fresh = open_database(settings=PARTS)
    store = fresh._handle.store
    empty = store.data("s" + "0" * 16)
    data = store.data
    monkeypatch.setattr(store, "data", lambda shard: empty if shard == table.id else data(shard))
    with pytest.raises(sl.Corruption, match=r"log of table 't' .*lost records"):
        swept(fresh)
    assert objects(db, session) == before


# --- whatever fails


@dataclass
class Scene:
    """A database with all kinds of objects of ended sessions, and what has to stay of them."""

    db: sl.Database
    table: sl.Table
    sessions: Sequence[str]
    needed: set[str]
    garbage: set[str]

    def sweeper(self, faults: Faults) -> Store:
        """A store of its own, all calls of which meet the faults."""
        store = self.db._handle.store
        place = replace(
            store.location,
            blob=FaultyBlob(store.location.blob, faults),
            consensus=FaultyConsensus(store.location.consensus, faults),
        )
        settings = replace(PARTS, timeout_seconds=60.0)
        return open_store(place, store.database, store.txns.machine.shard, store.env, settings)

    def there(self) -> set[str]:
        return {key for session in self.sessions for key in objects(self.db, session)}


def scene(name: str) -> Scene:
    db = sl.connect(f"memory://{name}", settings=PARTS)
    table = db.create_table("t", SCHEMA, row_keys="k")
    gone = sl.connect(f"memory://{name}", settings=PARTS)
    mine = gone.table("t")
    for key in range(3):
        mine.append({"k": [key]})
    apply(mine)
    gone.compact("t", strategy="full")
    for machine in gone._handle.store.machines():
        assert machine.roll_up()
        machine.submit(Expire("w" + "0" * 16, 1))
    for key in range(3, 5):
        mine.append({"k": [key]})
    sessions = [machine.session for machine in gone._handle.store.machines()]
    needed = {key for session in sessions for key in objects(db, session)}
    garbage = {stray(db, session, table) for session in sessions}
    for session in sessions:
        assert db.force_ack(session=session) == [session]
    return Scene(db, table, sessions, needed, garbage)


class Died(BaseException):
    """The process is gone: what comes after this call is not done."""


def dying(_: Call) -> BaseException:
    return Died()


FAULTS = {
    "fail before": FAIL_BEFORE,
    "lost": LOST,
    "fail after": FAIL_AFTER,
    "late": LATE,
    "dies before": Fault(before=dying),
    "dies after": Fault(after=dying),
}


def calls_of_a_sweep(name: str) -> int:
    whole = scene(name)
    faults = Faults()
    store = whole.sweeper(faults)
    done = sweep(store, delay_micros=0, deadline=Deadline(store.env, 60))
    assert done.objects == len(whole.garbage)
    assert whole.there() == whole.needed
    return sum(faults.counts.values())


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_at_any_call_of_a_sweep_deletes_nothing_that_is_needed(what: str) -> None:
    count = calls_of_a_sweep(f"{what} counted")
    assert count > 20
    for number in range(1, count + 1):
        one = scene(f"{what} {number}")
        fault = FAULTS[what]
        faults = Faults(lambda call, n=number, f=fault: f if call.number == n else None)  # type: ignore[misc]
        store = one.sweeper(faults)
        with suppress(sl.StrandlineError, Died):
            sweep(store, delay_micros=0, deadline=Deadline(store.env, 60))
        assert one.needed <= one.there(), (what, number)
        while faults.late:
            faults.land()
        assert one.needed <= one.there(), (what, number)
        for _ in range(3):
            swept(one.db)
        assert one.there() == one.needed, (what, number)
        assert not set(one.sessions) & states(one.db).keys()
        with sl.connect(f"memory://{what} {number}", settings=PARTS) as fresh:
            assert keys(fresh.table("t")) == list(range(5))


def test_sessions_tells_who_is_there_and_what_they_left(
    open_database: Open, db: sl.Database, table: sl.Table
) -> None:
    lease = table.attach("a")
    commit = lease.append({"k": [1]})
    stray(db, lease.session, table)
    (row,) = [row for row in db.sessions().to_pylist() if row["session"] == lease.session]
    assert (row["worker"], row["state"], row["holds"]) == ("a", "open", ["t"])
    assert (row["uncommitted_objects"], row["uncommitted_bytes"]) == (1, 4)
    assert row["last_commit"] == commit.time
    assert row["opened"] is not None
    assert row["records"] == 2
    other = table.attach("b")
    assert states(db)[lease.session] == "ended"
    assert db.force_ack(worker="a") == [lease.session]
    assert states(db)[lease.session] == "acknowledged"
    with pytest.raises(sl.UsageError, match="no session of worker 'c'"):
        db.force_ack(worker="c")
    with pytest.raises(sl.UsageError, match="pass session="):
        db.force_ack()
    with pytest.raises(sl.UsageError, match="no session 'w1'"):
        db.force_ack(session="w1")
    other.release()
    lease.release()
    reader = open_database(mode="r")
    assert reader.sessions().num_rows == db.sessions().num_rows


def test_a_handle_does_not_force_out_itself(db: sl.Database, table: sl.Table) -> None:
    table.append({"k": [1]})
    with pytest.raises(sl.UsageError, match="own"):
        db.force_ack(session=db._handle.store.session)


def test_one_that_was_forced_out_and_lives_goes_on(
    open_database: Open, db: sl.Database, table: sl.Table
) -> None:
    other = open_database(settings=PARTS)
    mine = other.table("t")
    mine.append({"k": [1]})
    session = other._handle.store.session
    assert db.force_ack(session=session) == [session]
    with pytest.raises(sl.Fenced, match="write the data again"):
        mine.append({"k": [2]})  # what it had staged may be gone
    mine.append({"k": [2]})
    assert other._handle.store.session != session
    for _ in range(2):
        swept(db)
    assert session not in states(db)
    mine.append({"k": [3]})
    assert keys(table) == [1, 2, 3]


def test_a_session_in_the_state_is_what_the_report_is_made_of() -> None:
    one = Session(1, 1)
    assert stage_of(one).value == "open"
    one = replace(one, expired=2)
    assert stage_of(one).value == "ended"
    one = replace(one, acknowledged=3)
    assert stage_of(one).value == "acknowledged"
    assert stage_of(replace(one, swept=9)).value == "swept"
