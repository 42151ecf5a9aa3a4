"""In no time nothing is done, and every call that takes a timeout says so."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline.env import Deadline
from strandline.errors import UsageError
from strandline.shard.machine import Machine
from strandline.transaction import Transaction, TransactionTable
from tests.tables.helpers import QUIET

Call = Callable[["World", Any], Any]


class World:
    """A database with one of each that has calls with a timeout."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.db = sl.connect(url, settings=QUIET)
        self.table = self.db.create_table(
            "t", {"k": [1, 2], "v": [1, 2]}, row_keys="k", kind="keyed"
        )
        self.held = self.db.create_table("held", {"k": [1]}, row_keys="k")
        self.lease = self.held.attach("me")
        self.staged = self.db.stage({"t": {"k": [3], "v": [3]}})
        self.transaction = self.db.transaction()
        self.transaction["t"].append({"k": [4], "v": [4]})

    def contents(self) -> Any:
        location = self.db._handle.store.location
        logs = {key: location.consensus.head(key, timeout=5) for key in self.logs()}
        return logs, sorted(info.key for info in location.blob.list("", timeout=5))

    def logs(self) -> list[str]:
        return sorted(self.db._handle.store.location.consensus.keys(timeout=5))


ROW = {"k": [9], "v": [9]}
CALLS: dict[str, Call] = {
    "connect": lambda w, t: sl.connect(f"{w.url}-2", settings=QUIET, timeout=t),
    "open_location": lambda w, t: sl.open_location(f"{w.url}-3", timeout=t),
    "Database.create_table": lambda w, t: w.db.create_table("n", ROW, row_keys="k", timeout=t),
    "Database.drop_table": lambda w, t: w.db.drop_table("t", timeout=t),
    "Database.rename_table": lambda w, t: w.db.rename_table("t", "u", timeout=t),
    "Database.sql": lambda w, t: w.db.sql("select * from t", timeout=t).to_arrow(),
    "Database.subscribe": lambda w, t: next(iter(w.db.subscribe(["t"], start="now", timeout=t))),
    "Database.transaction": lambda w, t: w.db.transaction(timeout=t),
    "Database.transact": lambda w, t: w.db.transact(lambda tx: tx["t"].append(ROW), timeout=t),
    "Database.stage": lambda w, t: w.db.stage({"t": ROW}, timeout=t),
    "Database.history": lambda w, t: w.db.history(timeout=t),
    "Database.compact": lambda w, t: w.db.compact(timeout=t),
    "Database.plan_compaction": lambda w, t: w.db.plan_compaction(timeout=t),
    "Database.vacuum": lambda w, t: w.db.vacuum(timeout=t),
    "Database.prune": lambda w, t: w.db.prune(before="2000-01-01", timeout=t),
    "Database.split": lambda w, t: w.db.split(timeout=t),
    "Database.status": lambda w, t: w.db.status(timeout=t),
    "Database.usage": lambda w, t: w.db.usage(timeout=t),
    "Database.shards": lambda w, t: w.db.shards(timeout=t),
    "Database.inspect": lambda w, t: w.db.inspect("holds", table="t", timeout=t),
    "Database.confirm_clock": lambda w, t: w.db.confirm_clock(timeout=t),
    "Database.confirm_restore": lambda w, t: w.db.confirm_restore(timeout=t),
    "Database.sessions": lambda w, t: w.db.sessions(timeout=t),
    "Database.force_ack": lambda w, t: w.db.force_ack(session="w0123456789abcdef", timeout=t),
    "Database.close": lambda w, t: w.db.close(timeout=t),
    "Table.set": lambda w, t: w.table.set(timeout=t, retention="2 days"),
    "Table.history": lambda w, t: w.table.history(timeout=t),
    "Table.partitions": lambda w, t: w.table.partitions(timeout=t),
    "Table.parts": lambda w, t: w.table.parts(timeout=t),
    "Table.scan": lambda w, t: w.table.scan(timeout=t).to_arrow(),
    "Table.get": lambda w, t: w.table.get(1, timeout=t),
    "Table.get_one": lambda w, t: w.table.get_one(1, timeout=t),
    "Table.get_many": lambda w, t: w.table.get_many([1], timeout=t),
    "Table.head": lambda w, t: w.table.head(timeout=t),
    "Table.subscribe": lambda w, t: next(iter(w.table.subscribe(start="now", timeout=t))),
    "Table.drop_subscription": lambda w, t: w.table.drop_subscription("x", timeout=t),
    "Table.holds": lambda w, t: w.table.holds(timeout=t),
    "Table.export": lambda w, t: w.table.export(Path("none.parquet"), timeout=t),
    "Table.append": lambda w, t: w.table.append(ROW, timeout=t),
    "Table.upsert": lambda w, t: w.table.upsert(ROW, timeout=t),
    "Table.delete": lambda w, t: w.table.delete("k = 1", timeout=t),
    "Table.update": lambda w, t: w.table.update({"v": "v + 1"}, timeout=t),
    "Table.overwrite": lambda w, t: w.table.overwrite(ROW, timeout=t),
    "Table.attach": lambda w, t: w.table.attach("me", timeout=t),
    "Table.safe_to_prune": lambda w, t: w.held.safe_to_prune(timeout=t),
    "Lease.transaction": lambda w, t: w.lease.transaction(timeout=t),
    "Lease.check": lambda w, t: w.lease.check(timeout=t),
    "Lease.release": lambda w, t: w.lease.release(timeout=t),
    "Staged.to_bytes": lambda w, t: w.staged.to_bytes(timeout=t),
    "Transaction.sql": lambda w, t: w.transaction.sql("select 1", timeout=t),
    "Transaction.commit": lambda w, t: w.transaction.commit(timeout=t),
    "Transaction.stage": lambda w, t: w.transaction.stage(timeout=t),
    "TransactionTable.append": lambda w, t: w.transaction["t"].append(ROW, timeout=t),
    "TransactionTable.upsert": lambda w, t: w.transaction["t"].upsert(ROW, timeout=t),
    "TransactionTable.delete": lambda w, t: w.transaction["t"].delete("k = 1", timeout=t),
    "TransactionTable.update": lambda w, t: w.transaction["t"].update({"v": "1"}, timeout=t),
    "TransactionTable.overwrite": lambda w, t: w.transaction["t"].overwrite(ROW, timeout=t),
}


def test_every_call_refuses_to_do_something_in_no_time(tmp_path: Path) -> None:
    world = World(str(tmp_path / "lake"))
    before = world.contents()
    for name, call in CALLS.items():
        for timeout in (0, 0.0, -1, float("nan"), -float("inf"), True, "5"):
            with pytest.raises(UsageError, match=r"timeout=.*: pass seconds, a number above 0"):
                call(world, timeout)
        assert world.contents() == before, name
    assert [place.name for place in tmp_path.iterdir()] == ["lake"]
    # All of it goes on as if nothing had been asked.
    world.transaction.commit()
    world.lease.check()
    world.lease.release()
    assert sorted(world.table.scan().to_arrow()["k"].to_pylist()) == [1, 2, 4]
    world.db.close()


def test_those_are_all_the_calls_that_take_a_timeout() -> None:
    found = {
        f"{kind.__name__}.{name}"
        for kind in (sl.Database, sl.Table, sl.Lease, sl.Staged, Transaction, TransactionTable)
        for name, function in inspect.getmembers(kind, inspect.isfunction)
        if "timeout" in inspect.signature(function).parameters and not name.startswith("_")
    }
    assert found | {"connect", "open_location"} == set(CALLS)


def test_a_timeout_may_be_longer_than_any_clock_counts(tmp_path: Path) -> None:
    for name, timeout in {"a": float("inf"), "b": 10**400, "c": 1e300}.items():
        with sl.connect(tmp_path / "lake", settings=QUIET, timeout=timeout) as db:
            table = db.create_table(name, ROW, row_keys="k", timeout=timeout)
            table.append(ROW, timeout=timeout)
            assert table.get(9, timeout=timeout).num_rows == 2
            db.vacuum(timeout=timeout)
            db.close(timeout=timeout)


@pytest.mark.parametrize("seconds", [float("inf"), 1e300, 1e10])
def test_calls_that_are_given_no_time_may_take_any(seconds: float) -> None:
    settings = sl.Settings(timeout_seconds=seconds)
    with sl.connect("memory://", settings=settings) as db, ThreadPoolExecutor(8) as threads:
        table = db.create_table("t", ROW, row_keys="k")
        assert sum(c.rows or 0 for c in threads.map(table.append, [ROW] * 40)) == 40
        assert len(table) == 41


@pytest.mark.parametrize("rows", [1, 60_000])
def test_a_write_whose_rows_came_too_late_does_not_happen(tmp_path: Path, rows: int) -> None:
    schema = pa.schema([("k", pa.int64())])
    with sl.connect(tmp_path / "lake", settings=QUIET) as db:
        table = db.create_table("t", schema, row_keys="k")

        def late(seconds: float) -> Iterator[pa.RecordBatch]:
            yield pa.record_batch({"k": range(rows)}, schema)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                pass
            yield pa.record_batch({"k": [-1]}, schema)

        for write in (table.append, table.overwrite):
            for seconds in (0.02, 0.05):
                reader = pa.RecordBatchReader.from_batches(schema, late(seconds))
                with pytest.raises(sl.DeadlineExceeded) as caught:
                    write(reader, timeout=0.02)
                assert not caught.value.may_have_happened
                assert "within 0 s" not in str(caught.value)
        assert table.scan().count() == 0
        assert table.history().num_rows == 1


def test_a_close_that_waits_for_background_work_has_its_time_for_each_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def working() -> None:
        now = env.monotonic() + 100
        monkeypatch.setattr(env, "monotonic", lambda: now)

    def close(self: Machine, deadline: Deadline) -> None:
        left.append(deadline.remaining())
        closing(self, deadline)
        working()

    left: list[float] = []
    closing = Machine.close
    db = sl.connect("memory://", settings=QUIET)
    db.create_table("t", pa.schema([("k", pa.int64())]), row_keys="k").append({"k": [1]})
    store = db._handle.store
    env = store.env
    monkeypatch.setattr(store.background, "close", working)
    monkeypatch.setattr(Machine, "close", close)
    monkeypatch.setattr(env, "monotonic", lambda: 0.0)
    db.close(timeout=5)
    assert left == [5, 5]
