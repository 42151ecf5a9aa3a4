"""One worker holds a table: replaced alive, stopped or dead, without a wait and without a loss."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline.env import RealEnv
from strandline.testing.faults import FAIL_AFTER, Call, Fault, Faults, FaultyBlob, FaultyConsensus
from strandline.upkeep.background import open_store
from tests.tables.helpers import QUIET, apply

Open = Callable[..., sl.Database]

PARTS = replace(QUIET, inline_bytes_max=0)
SCHEMA = pa.schema([("k", pa.int64())])

WORKER = """
import sys
import strandline as sl

settings = sl.Settings(background=False, inline_bytes_max=0)
db = sl.connect(sys.argv[1], settings=settings)
lease = db.table("t").attach(sys.argv[2])
print("attached", lease.session, flush=True)
for line in sys.stdin:
    try:
        lease.append({"k": [int(line)]}, position=int(line))
        print("committed", flush=True)
    except sl.StrandlineError as error:
        print(f"{error.kind}: {error}", flush=True)
lease.release()
db.close()
"""

DIES = """
import sys
import strandline as sl
from strandline.testing.killing import Kill, Killer
from tests.crash.worker import intercept

killer = Killer()
intercept(killer)
settings = sl.Settings(background=False, inline_bytes_max=0)
db = sl.connect(sys.argv[1], settings=settings)
table = db.table("t")
killer.arm(Kill("upload commit", 1, after=True) if sys.argv[2] == "dies" else None)
print(table.append({"k": [7]}, token=("loader", 1)).micros)
db.close()
"""


@pytest.fixture(name="db")
def _db(open_database: Open) -> sl.Database:
    return open_database(settings=PARTS)


@pytest.fixture(name="table")
def _table(db: sl.Database) -> sl.Table:
    return db.create_table("t", SCHEMA, row_keys="k")


def keys(table: Any) -> list[int]:
    return sorted(table.scan().to_arrow()["k"].to_pylist())


def states(db: sl.Database) -> dict[str, str]:
    return {row["session"]: row["state"] for row in db.sessions().to_pylist()}


class Worker:
    """A process that holds the table and appends the numbers that it is told."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        _, self.session = self.hear().split()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, key: int) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{key}\n")
        self.process.stdin.flush()
        return self.hear()

    def send(self, signal_number: int) -> None:
        os.kill(self.process.pid, signal_number)


@contextmanager
def working(path: str, name: str) -> Iterator[Worker]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, path, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Worker(process)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[sl.Database]:
    """A database in a directory, which other processes reach, with an empty table."""
    with sl.connect(tmp_path / "lake", settings=PARTS) as db:
        db.create_table("t", SCHEMA, row_keys="k")
        yield db


# --- who may write


def test_f1_the_replaced_holder_is_fenced_and_its_objects_stay_until_it_acknowledged(
    db: sl.Database, table: sl.Table
) -> None:
    with table.attach("a") as a, a.transaction() as open_one:
        first = a.session
        open_one["t"].append({"k": [1]})  # staged
        b = table.attach("b")
        b.append({"k": [2]})
        assert states(db)[first] == "ended"
        blob = db._handle.store.location.blob
        staged = [info.key for info in blob.list(f"{first}/", timeout=60)]
        assert staged
        db.vacuum()
        assert [info.key for info in blob.list(f"{first}/", timeout=60)] == staged
        with pytest.raises(sl.Fenced, match="worker 'b' has it"):
            open_one.commit()
        open_one.rollback()
    assert states(db)[first] == "acknowledged"
    kept = {info.key for info in blob.list(f"{b.session}/", timeout=60)}
    db.vacuum()
    assert not list(blob.list(f"{first}/", timeout=60))
    assert kept == {info.key for info in blob.list(f"{b.session}/", timeout=60)}
    assert keys(table) == [2]
    b.release()


def test_f2_a_holder_that_is_stopped_is_replaced_at_once(
    lake: sl.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.table("t")
    with working(lake.url, "a") as a:
        assert a.tell(1) == "committed"
        a.send(signal.SIGSTOP)
        # The lease of the one that is stopped is 15 minutes: nothing waits for it to pass.
        waited: list[float] = []
        with monkeypatch.context() as patched:
            patched.setattr(RealEnv, "sleep", lambda _, seconds: waited.append(seconds))
            b = table.attach("b")
            for key in range(2, 12):
                b.append({"k": [key]})
        assert waited == []
        lake.vacuum()
        assert states(lake)[a.session] == "ended"
        a.send(signal.SIGCONT)
        assert a.tell(12).startswith("fenced: table 't' is no longer held by this lease")
        assert states(lake)[a.session] == "acknowledged"
        assert b.position is None or b.position == 1
    assert keys(table) == list(range(1, 12))
    b.release()


def test_a_holder_that_was_killed_is_replaced_at_once(lake: sl.Database) -> None:
    table = lake.table("t")
    with working(lake.url, "a") as a:
        assert a.tell(1) == "committed"
        a.send(signal.SIGKILL)
    with pytest.raises(sl.Held, match="worker 'a'"):
        table.append({"k": [2]})
    with table.attach("b") as b:
        assert b.position == 1
        b.append({"k": [2]})
    table.append({"k": [3]})
    assert keys(table) == [1, 2, 3]


@pytest.mark.parametrize("inline", [True, False])
def test_f12_others_are_told_who_holds_the_table_and_may_write_elsewhere(
    open_database: Open, table: sl.Table, inline: bool
) -> None:
    other = open_database(settings=QUIET if inline else PARTS)
    free = other.create_table("free", SCHEMA, row_keys="k")
    mine = other.table("t")
    with table.attach("a"):
        for write in (
            lambda: mine.append({"k": [1]}),
            lambda: mine.overwrite({"k": [1]}),
            lambda: mine.set(retention="1 day"),
            lambda: other.drop_table("t"),
            lambda: other.rename_table("t", "u"),
            lambda: other.transact(lambda tx: tx["t"].append({"k": [1]})),
        ):
            with pytest.raises(sl.Held, match="held by worker 'a'"):
                write()
        blob = other._handle.store.location.blob
        session = other._handle.store.session
        assert not [i for i in blob.list(f"{session}/", timeout=60) if mine.id in i.key]
        free.append({"k": [1]})
        other.compact("t", strategy="full")
        assert keys(mine) == []
    mine.append({"k": [2]})
    assert keys(mine) == [2]


def test_all_that_a_lease_writes_is_written_under_it(db: sl.Database, table: sl.Table) -> None:
    db.create_table("free", SCHEMA, row_keys="k")
    keyed = db.create_table(
        "keyed", {"k": pa.array([1]), "v": pa.array([1])}, row_keys="k", kind="keyed"
    )
    with table.attach("a") as lease:
        lease.append({"k": [1, 2, 3, 4]})
        lease.delete("k = 1")
        lease.update({"k": "k + 10"}, "k = 2")
        lease.overwrite({"k": [30]}, "k = 3")
        lease.table.append({"k": [5]})
        lease.table.set(retention="1 day")
        with lease.transaction() as tx:
            tx["free"].append({"k": [1]})
            tx["t"].delete("k = 5")
        assert keys(lease.table) == [4, 12, 30]
        assert keys(db.table("free")) == [1]
    with keyed.attach("a") as lease:
        lease.upsert({"k": [1], "v": [2]})
    assert keyed.get_one(1) == {"k": 1, "v": 2}


def test_a_lease_that_is_attached_again_is_a_new_one(table: sl.Table) -> None:
    first = table.attach("a")
    second = table.attach("a")
    assert (first.epoch, second.epoch) == (1, 2)
    assert first.session != second.session
    with pytest.raises(sl.Fenced):
        first.append({"k": [1]})
    with pytest.raises(sl.Fenced):
        first.check()
    second.check()
    first.release()
    first.release()
    second.append({"k": [2]})
    second.release()
    with pytest.raises(sl.UsageError, match="closed"):
        second.append({"k": [3]})
    table.append({"k": [4]})
    assert keys(table) == [2, 4]


def test_only_one_of_many_that_attach_and_write_at_once_is_ever_the_holder(
    open_database: Open, table: sl.Table
) -> None:
    """Each commit is by the holder of its time: epochs in the order of commits never go back."""
    leases = [open_database(settings=PARTS).table("t").attach(f"w{n}") for n in range(5)]
    done = []
    for round_ in range(3):
        for number, lease in enumerate(leases):
            try:
                lease.append({"k": [10 * round_ + number]})
                done.append(number)
            except sl.Fenced:
                continue
    assert done == [4, 4, 4]
    assert keys(table) == [4, 14, 24]
    for lease in leases:
        lease.release()


def test_a_lease_needs_a_name_a_table_of_now_and_a_handle_that_writes(
    open_database: Open, table: sl.Table
) -> None:
    with pytest.raises(sl.UsageError, match="worker"):
        table.attach("")
    with pytest.raises(sl.UsageError, match="JSON"):
        table.attach("a", position=object())
    table.append({"k": [1]})
    moment = table.append({"k": [2]})
    with pytest.raises(sl.UsageError, match="as of"):
        table.as_of(moment).attach("a")
    with pytest.raises(sl.UsageError, match="mode"):
        open_database(mode="r").table("t").attach("a")


def test_a_dropped_table_cannot_be_attached(db: sl.Database, table: sl.Table) -> None:
    db.drop_table("t")
    with pytest.raises(sl.UnknownTable, match="dropped"):
        table.attach("a")


# --- once, whatever happens


def test_f4_a_loader_that_died_between_upload_and_commit_commits_once(lake: sl.Database) -> None:
    def run(how: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", DIES, lake.url, how], capture_output=True, text=True, check=False
        )

    assert run("dies").returncode == -signal.SIGKILL
    left = [row for row in lake.sessions().to_pylist() if row["uncommitted_objects"]]
    assert len(left) == 1, "a session is known before its first object is"
    assert keys(lake.table("t")) == []
    first, again = run("lives"), run("lives")
    assert first.stdout == again.stdout != ""
    assert keys(lake.table("t")) == [7]
    assert lake.force_ack(session=left[0]["session"]) == [left[0]["session"]]
    lake.vacuum()
    assert keys(lake.table("t")) == [7]
    assert not any(row["uncommitted_objects"] for row in lake.sessions().to_pylist())


def test_f5_a_commit_whose_reply_is_lost_is_granted_once(db: sl.Database, table: sl.Table) -> None:
    lease = table.attach("a")
    store = lease._handle.store
    lost: list[Call] = []

    def decide(call: Call) -> Fault | None:
        if call.kind != "compare_and_set" or lost or call.key != store.txns.machine.shard:
            return None
        lost.append(call)
        return FAIL_AFTER

    faults = Faults(decide)
    place = replace(
        store.location,
        blob=FaultyBlob(store.location.blob, faults),
        consensus=FaultyConsensus(store.location.consensus, faults),
    )
    faulty = open_store(place, store.database, store.txns.machine.shard, store.env, PARTS)
    faulty.txns.epochs.update(store.txns.epochs)
    lease._handle._store = faulty
    lease.append({"k": [1]}, token=("loader", 1), position=1)
    assert lost
    assert faults.counts["delete"] == 0
    assert lease.append({"k": [1]}, token=("loader", 1)).micros
    assert keys(table) == [1]
    assert table.safe_to_prune() == 1
    lease._handle._store = store
    lease.release()


# --- positions


def test_f10_only_what_was_committed_may_be_pruned_upstream(table: sl.Table) -> None:
    assert table.safe_to_prune() is None
    a = table.attach("a", position=50)
    assert a.position == 50
    assert table.safe_to_prune() is None, "where one begins is not what one has committed"
    a.append({"k": [1]}, position=70)
    b = table.attach("b", position=0)
    assert b.position == 70
    b.append({"k": [2]}, position=80)
    with pytest.raises(sl.Fenced):
        a.append({"k": [3]}, position=90)
    assert table.safe_to_prune() == 80
    with b.transaction(position={"shard": "x", "offset": 81}):
        pass  # nothing to write, and yet it was consumed
    assert table.safe_to_prune() == {"shard": "x", "offset": 81}
    b.append({"k": [4]})
    assert table.safe_to_prune() == {"shard": "x", "offset": 81}
    a.release()
    b.release()
    with pytest.raises(sl.UsageError, match="JSON"):
        b.append({"k": [5]}, position=float("nan"))


# --- reads of one that was replaced


def test_f7_a_replaced_holder_that_misses_an_object_learns_its_fate(
    db: sl.Database, table: sl.Table
) -> None:
    a = table.attach("a")
    a.append({"k": list(range(10))})
    apply(table)
    scan = a.table.scan()
    view = a.table._view(a._handle.deadline(None))
    old = [key[0] for key, _ in view.data.state.parts.range()]
    assert len(old) == 1
    b = table.attach("b")
    b.overwrite({"k": [1]})
    apply(table)
    db.compact("t", strategy="full")
    db._handle.store.location.blob.delete(old[0], timeout=60)
    with pytest.raises(sl.Fenced, match="worker 'b'"):
        _read(a, view)
    assert keys(b.table) == [1]
    assert scan is not None
    a.release()
    b.release()


def test_f7_the_same_in_a_live_session_is_an_alarm(db: sl.Database, table: sl.Table) -> None:
    with table.attach("a") as a:
        a.append({"k": list(range(10))})
        apply(table)
        view = a.table._view(a._handle.deadline(None))
        (part,) = [key[0] for key, _ in view.data.state.parts.range()]
        db._handle.store.location.blob.delete(part, timeout=60)
        with pytest.raises(sl.Corruption, match="missing"):
            _read(a, view)


def test_f7_a_transaction_whose_staged_parts_were_swept_is_fenced(
    db: sl.Database, table: sl.Table
) -> None:
    tx = db.transaction()
    tx["t"].append({"k": [1]})
    session = db._handle.store.session
    with sl.connect(db.url, settings=PARTS) as other:
        other.force_ack(session=session)
        other.vacuum()
    with pytest.raises(sl.Fenced, match="begin anew"):
        tx["t"].scan().to_arrow()
    tx.rollback()
    table.append({"k": [2]})
    assert keys(table) == [2]


def _read(lease: sl.Lease, view: Any) -> pa.Table:
    from strandline.read.reading import Reading
    from strandline.read.want import Want

    return Reading.of(lease._handle, view, Want(), lease._handle.deadline(None)).table()


# --- moving work on purpose


def test_f9_work_moves_without_a_failed_read_or_a_lost_row(
    open_database: Open, db: sl.Database, table: sl.Table
) -> None:
    """The target follows the log upstream as far as the source is, attaches, and goes on."""
    upstream = list(range(40))
    reader = open_database(settings=PARTS).table("t")
    source = table.attach("source")
    for number in upstream[:25]:
        source.append({"k": [number]}, position=number)
        assert keys(reader) == upstream[: number + 1]
    late = source.transaction(position=30)
    late["t"].append({"k": upstream[25:31]})
    target_db = open_database(settings=PARTS)
    warm = target_db.table("t")
    assert keys(warm) == upstream[:25]  # warms up while the source goes on
    source.append({"k": [25]}, position=25)
    target = warm.attach("target")
    assert keys(reader) == upstream[:26]
    with pytest.raises(sl.Fenced, match="'target'"):
        late.commit()
    assert keys(source.table) == upstream[:26], "the source still answers"
    for number in upstream[target.position + 1 :]:
        target.append({"k": [number]}, position=number)
        assert keys(reader) == upstream[: number + 1]
    late.rollback()
    source.release()
    db.vacuum()
    assert keys(reader) == keys(target.table) == upstream
    target.release()
