"""Transactions: one moment to read, one time to commit, and what isolation promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline.connect import connect
from strandline.database import Database
from strandline.errors import TransactionConflict, UnknownTable, UsageError
from strandline.settings import Settings
from tests.support.deadlines import within
from tests.tables.helpers import QUIET, apply, rows

STOCK = pa.schema([("item", pa.int64()), ("count", pa.int64())])
ORDERS = pa.schema([("id", pa.int64()), ("item", pa.int64())])
TINY = Settings(background=False, inline_bytes_max=1)
"""Everything is staged as parts."""


@pytest.fixture(params=["inline", "parts", "mixed"])
def db(request: Any, tmp_path: Path) -> Iterator[Database]:
    settings = QUIET if request.param == "inline" else TINY
    with connect(tmp_path, settings=settings) as found:
        found.create_table("stock", STOCK, row_keys="item", kind="keyed")
        found.create_table("orders", ORDERS, row_keys="id")
        found["stock"].append({"item": [1, 2, 3], "count": [10, 20, 30]})
        if request.param == "mixed":
            apply(found["stock"])
        yield found


def counts(table: Any) -> dict[int, int]:
    return dict(rows(table.scan().to_arrow()))


def test_a_transaction_commits_all_of_it_at_one_time(db: Database) -> None:
    with db.transaction() as tx:
        tx.table("stock").update({"count": "count - 1"}, where="item = 1")
        tx.table("orders").append({"id": [1], "item": [1]})
        assert counts(db["stock"])[1] == 10, "nothing is visible before the commit"
    assert tx.committed is not None
    assert set(tx.committed.tables) == {"stock", "orders"}
    before, at = sl.Micros(tx.committed.micros - 1), tx.committed
    assert counts(db["stock"].as_of(before))[1] == 10
    assert len(db["orders"].as_of(before)) == 0
    assert counts(db["stock"].as_of(at))[1] == 9
    assert rows(db["orders"].as_of(at).scan().to_arrow()) == [(1, 1)]


def test_a_transaction_sees_its_own_writes_and_no_others(db: Database) -> None:
    with db.transaction(isolation="snapshot") as tx:
        stock = tx["stock"]
        stock.upsert({"item": [1, 4], "count": [11, 40]})
        db["stock"].upsert({"item": [2], "count": [99]})
        assert counts(stock) == {1: 11, 2: 20, 3: 30, 4: 40}
        stock.delete(keys=[3])
        stock.upsert({"item": [1], "count": [12]})
        assert stock.get_one(1) == {"item": 1, "count": 12}
        assert stock.get_one(3) is None
        stock.upsert({"item": [3], "count": [33]})
        assert counts(stock) == {1: 12, 2: 20, 3: 33, 4: 40}
    assert counts(db["stock"]) == {1: 12, 2: 99, 3: 33, 4: 40}


def test_what_was_written_last_counts_also_over_the_newest_commit(db: Database) -> None:
    db["stock"].upsert({"item": [1], "count": [50]})
    with db.transaction() as tx:
        tx["stock"].upsert({"item": [1], "count": [51]})
        assert tx["stock"].get_one(1) == {"item": 1, "count": 51}
        tx["stock"].delete(keys=[1])
        assert tx["stock"].get_one(1) is None
    apply(db["stock"])
    assert 1 not in counts(db["stock"])


def test_rows_are_retracted_once_within_a_transaction(db: Database) -> None:
    db["orders"].append({"id": [1, 2], "item": [1, 1]})
    with db.transaction() as tx:
        orders = tx["orders"]
        assert orders.update({"item": "item + 1"}, where="id = 1") == 1
        assert orders.update({"item": "item + 1"}, where="id = 1") == 1
        assert orders.delete("id = 2") == 1
        assert orders.delete("id = 2") == 0
        assert rows(orders.scan().to_arrow()) == [(1, 3)]
    apply(db["orders"])
    assert rows(db["orders"].scan().to_arrow()) == [(1, 3)]


def test_an_exception_discards_everything(db: Database) -> None:
    before = counts(db["stock"])
    tx = db.transaction()

    def fails() -> None:
        with tx:
            tx["stock"].upsert({"item": [1], "count": [0]})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert counts(db["stock"]) == before
    with pytest.raises(UsageError, match="rolled back"):
        tx.table("stock")


def test_a_transaction_is_over_once_it_is_committed(db: Database) -> None:
    with db.transaction() as tx:
        stock = tx["stock"]
        stock.upsert({"item": [9], "count": [1]})
    assert tx.commit() is tx.committed
    with pytest.raises(UsageError, match="committed"):
        stock.upsert({"item": [9], "count": [2]})
    with pytest.raises(UsageError, match="committed"):
        stock.get(9)


def test_two_that_read_and_write_one_key_cannot_both_commit(db: Database) -> None:
    """CASES T8."""
    first, second = db.transaction(), db.transaction()
    for tx in (first, second):
        tx["stock"].update({"count": "count + 1"}, where="item = 2")
    first.commit()
    with pytest.raises(TransactionConflict, match="stock"):
        second.commit()
    assert counts(db["stock"])[2] == 21
    db.transact(lambda tx: tx["stock"].update({"count": "count + 1"}, where="item = 2"))
    assert counts(db["stock"])[2] == 22


def test_two_that_work_on_different_keys_both_commit(db: Database) -> None:
    """CASES T8."""
    first, second = db.transaction(), db.transaction()
    for tx, item in ((first, 1), (second, 3)):
        tx["stock"].update({"count": "count + 1"}, where=f"item = {item}")
    first.commit()
    second.commit()
    assert counts(db["stock"]) == {1: 11, 2: 20, 3: 31}


@pytest.mark.parametrize("isolation", ["serializable", "strict serializable"])
def test_write_skew_is_a_conflict(db: Database, isolation: str) -> None:
    first, second = (db.transaction(isolation=isolation) for _ in range(2))
    for tx, reads, writes in ((first, 1, 2), (second, 2, 1)):
        found = tx["stock"].get_one(reads)
        assert found is not None
        tx["stock"].upsert({"item": [writes], "count": [found["count"] + 1]})
    first.commit()
    with pytest.raises(TransactionConflict):
        second.commit()


def test_snapshots_allow_write_skew_and_no_lost_update(db: Database) -> None:
    first, second, third = (db.transaction(isolation="snapshot") for _ in range(3))
    for tx, reads, writes in ((first, 1, 2), (second, 2, 1), (third, 2, 2)):
        found = tx["stock"].get_one(reads)
        assert found is not None
        tx["stock"].upsert({"item": [writes], "count": [found["count"] + 1]})
    first.commit()
    second.commit()
    with pytest.raises(TransactionConflict):
        third.commit()
    assert counts(db["stock"]) == {1: 21, 2: 11, 3: 30}


def test_a_row_that_appears_in_a_range_that_was_read_is_a_conflict(db: Database) -> None:
    tx = db.transaction()
    assert tx["stock"].scan(key_range=(5, 9)).count() == 0
    tx["orders"].append({"id": [1], "item": [5]})
    db["stock"].append({"item": [7], "count": [1]})
    with pytest.raises(TransactionConflict):
        tx.commit()


def test_a_row_beside_a_range_that_was_read_is_none(db: Database) -> None:
    tx = db.transaction()
    assert tx["stock"].scan(key_range=(5, 9)).count() == 0
    tx["orders"].append({"id": [1], "item": [5]})
    db["stock"].append({"item": [9], "count": [1]})
    tx.commit()
    assert len(db["orders"]) == 1


def test_reads_without_writes_never_conflict(db: Database) -> None:
    with db.transaction() as tx:
        before = counts(tx["stock"])
        db["stock"].upsert({"item": [1], "count": [0]})
        assert counts(tx["stock"]) == before
    assert tx.committed is not None
    assert tx.committed.micros == tx.read_time


def test_blind_writes_never_conflict(db: Database) -> None:
    first, second = db.transaction(), db.transaction()
    for number, tx in enumerate((first, second)):
        tx["stock"].upsert({"item": [1], "count": [number]})
        tx["orders"].append({"id": [1], "item": [number]})
    first.commit()
    second.commit()
    assert counts(db["stock"])[1] == 1
    assert len(db["orders"]) == 2


def test_two_that_delete_one_row_cannot_both_commit(db: Database) -> None:
    db["orders"].append({"id": [1], "item": [1]})
    first, second = (db.transaction(isolation="snapshot") for _ in range(2))
    for tx in (first, second):
        assert tx["orders"].delete("id = 1") == 1
    first.commit()
    with pytest.raises(TransactionConflict):
        second.commit()
    assert len(db["orders"]) == 0


def test_what_was_tidied_since_is_a_conflict_and_never_an_assumption(db: Database) -> None:
    """CASES T14."""
    tx = db.transaction()
    tx["stock"].update({"count": "count + 1"}, where="item = 1")
    db["stock"].upsert({"item": [1], "count": [77]})
    apply(db["stock"])
    db._handle.store.txns.tidy(deadline=within(60))
    with pytest.raises(TransactionConflict):
        tx.commit()
    assert counts(db["stock"])[1] == 77


def test_what_was_tidied_since_is_looked_up_and_is_none_if_nothing_changed(db: Database) -> None:
    """CASES T14."""
    tx = db.transaction()
    tx["stock"].update({"count": "count + 1"}, where="item = 2")
    db["stock"].upsert({"item": [1, 3], "count": [77, 78]})
    apply(db["stock"])
    db._handle.store.txns.tidy(deadline=within(60))
    tx.commit()
    assert counts(db["stock"]) == {1: 77, 2: 21, 3: 78}


def test_only_the_keys_of_a_wide_write_conflict(db: Database) -> None:
    first, second = db.transaction(), db.transaction()
    for tx, item in ((first, 2), (second, 3)):
        tx["stock"].update({"count": "count + 1"}, where=f"item = {item}")
    db["stock"].upsert({"item": [1, 3], "count": [77, 78]})
    first.commit()
    with pytest.raises(TransactionConflict):
        second.commit()
    assert counts(db["stock"]) == {1: 77, 2: 21, 3: 78}


def test_transact_tries_again_until_it_commits(db: Database) -> None:
    tries = []

    def once_disturbed(tx: Any) -> int:
        found = tx["stock"].get_one(1)
        tries.append(found["count"])
        if len(tries) == 1:
            db["stock"].upsert({"item": [1], "count": [100]})
        tx["stock"].upsert({"item": [1], "count": [found["count"] + 1]})
        return int(found["count"])

    assert db.transact(once_disturbed) == 100
    assert tries == [10, 100]
    assert counts(db["stock"])[1] == 101


def test_a_token_makes_a_transaction_happen_once(db: Database) -> None:
    for _ in range(2):
        with db.transaction(token=("import", 1)) as tx:
            tx["orders"].append({"id": [1], "item": [1]})
    assert len(db["orders"]) == 1
    assert tx.committed is not None
    assert tx.committed.rows == 1


def test_each_call_within_a_transaction_has_a_deadline_of_its_own(db: Database) -> None:
    with db.transaction() as tx:
        assert len(tx["stock"]) == 3
        table = db["stock"].id
        first, second = within(60), within(30)
        tx.view(table, first)
        assert tx.view(table, second).data.deadline is second


def test_sql_runs_within_a_transaction(db: Database) -> None:
    with db.transaction() as tx:
        assert tx.sql("INSERT INTO orders SELECT item + 10, item FROM stock") == 3
        assert tx.sql("UPDATE stock SET count = count - 1 WHERE item < 3") == 2
        found = tx.sql("SELECT sum(count), (SELECT count(*) FROM orders) FROM stock")
        assert found.fetchall() == [(58, 3)]
        assert db.sql("SELECT count(*) FROM orders").fetchall() == [(0,)]
        assert tx.sql("DELETE FROM orders WHERE id IN (SELECT item + 10 FROM stock)") == 3
    assert db.sql("SELECT sum(count), (SELECT count(*) FROM orders) FROM stock").fetchall() == [
        (58, 0)
    ]


def test_what_sql_reads_is_remembered_too(db: Database) -> None:
    tx = db.transaction()
    assert tx.sql("SELECT count FROM stock WHERE item = 1").fetchall() == [(10,)]
    tx["orders"].append({"id": [1], "item": [1]})
    db["stock"].upsert({"item": [1], "count": [0]})
    with pytest.raises(TransactionConflict):
        tx.commit()


def test_a_table_that_was_dropped_meanwhile_refuses_the_commit(db: Database) -> None:
    tx = db.transaction()
    tx["orders"].append({"id": [1], "item": [1]})
    db.drop_table("orders")
    with pytest.raises(UnknownTable):
        tx.commit()
    with pytest.raises(UnknownTable, match="did you mean 'stock'"):
        db.transaction().table("stok")


@pytest.mark.parametrize(
    ("options", "match"),
    [({"isolation": "chaos"}, "strict serializable"), ({"token": 7}, "scope, number")],
)
def test_wrong_options_say_which_are_right(
    db: Database, options: dict[str, Any], match: str
) -> None:
    with pytest.raises(UsageError, match=match):
        db.transaction(**options)


def test_a_transaction_that_only_reads_needs_no_permission_to_write(
    db: Database, tmp_path: Path
) -> None:
    def tally(tx: sl.Transaction) -> int:
        return int(tx.sql("select sum(count) from stock").fetchall()[0][0])

    commits = db.history().num_rows
    with connect(tmp_path, mode="r") as reader:
        for isolation in ("strict serializable", "serializable", "snapshot"):
            with reader.transaction(isolation=isolation) as tx:
                assert tx["stock"].get_one(1) == {"item": 1, "count": 10}
                assert tally(tx) == 60
            assert tx.committed == sl.Commit(tx.read_time, 0, ())
            assert reader.transact(tally, isolation=isolation) == 60
    assert db.history().num_rows == commits


@pytest.mark.parametrize(
    "write",
    [
        lambda tx: tx["stock"].append({"item": [9], "count": [9]}),
        lambda tx: tx["stock"].append({"item": [], "count": []}),
        lambda tx: tx["stock"].delete("count = 0"),
        lambda tx: tx.sql("update stock set count = 1 where item = 77"),
        lambda tx: tx.sql("insert into orders select * from orders"),
        lambda tx: tx.create_table("new", STOCK, row_keys="item"),
        lambda tx: tx.drop_table("stock"),
        lambda tx: tx.rename_table("stock", "new"),
        lambda tx: tx.stage(),
    ],
)
def test_a_write_in_a_transaction_says_that_the_handle_is_for_reading(
    db: Database, tmp_path: Path, write: Callable[[sl.Transaction], Any]
) -> None:
    with connect(tmp_path, mode="r") as reader:
        with reader.transaction() as tx, pytest.raises(UsageError, match="mode='r'"):
            write(tx)
        with (
            pytest.raises(UsageError, match="mode='r'"),
            reader.transaction(token=("a", 1)) as tx,
        ):
            assert len(tx["stock"]) == 3


def test_the_past_takes_no_transactions(db: Database) -> None:
    past = db.as_of(db["stock"].append({"item": [8], "count": [1]}))
    with pytest.raises(UsageError, match="cannot change"):
        past.transaction()


def in_threads(count: int, work: Callable[[int], None]) -> None:
    with ThreadPoolExecutor(count) as threads:
        for _ in threads.map(work, range(count)):  # raises what one of them raised
            pass


def test_appends_of_many_to_two_tables_agree_at_every_time(tmp_path: Path) -> None:
    """CASES T7."""
    with connect(tmp_path) as db:
        for name in ("left", "right"):
            db.create_table(name, ORDERS, row_keys="id")

        def work(number: int) -> None:
            for turn in range(8):
                with db.transaction() as tx:
                    for name in ("left", "right"):
                        tx[name].append({"id": [number * 100 + turn], "item": [turn]})

        in_threads(26, work)
        wanted = sorted((n * 100 + turn, turn) for n in range(26) for turn in range(8))
        for name in ("left", "right"):
            assert rows(db[name].scan().to_arrow()) == wanted
        times = [row["time"] for row in db.history().to_pylist() if row["operation"] != "create"]
        for time in times[::7]:
            moment = db.as_of(time)
            assert rows(moment["left"].scan().to_arrow()) == rows(moment["right"].scan().to_arrow())


def test_counters_that_many_raise_lose_no_step(tmp_path: Path) -> None:
    with connect(tmp_path) as db:
        db.create_table("stock", STOCK, row_keys="item", kind="keyed")
        db["stock"].append({"item": [1, 2], "count": [0, 0]})

        def work(number: int) -> None:
            for turn in range(6):
                item = 1 + (number + turn) % 2
                db.transact(
                    lambda tx, item=item: tx["stock"].update(  # type: ignore[misc]
                        {"count": "count + 1"}, where=f"item = {item}"
                    )
                )

        in_threads(8, work)
        assert counts(db["stock"]) == {1: 24, 2: 24}
