"""Tables that are created, dropped and renamed within transactions, while others commit."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline.database import Database
from strandline.table import Table
from strandline.transaction import Transaction
from tests.tables.helpers import READINGS, apply

KEYED = pa.schema([("item", pa.string()), ("count", pa.int64())])


def row(at: int) -> dict[str, list[Any]]:
    return {"sensor": [1], "at": [at], "name": [None], "value": [None]}


def test_a_table_and_its_rows_are_there_at_once(db: Database, readings: Table) -> None:
    with db.transaction() as tx:
        stock = tx.create_table("stock", KEYED, row_keys="item", kind="keyed")
        stock.upsert({"item": ["a", "b"], "count": [1, 2]})
        stock.upsert({"item": ["b"], "count": [3]})
        tx["readings"].append(row(1))
        assert tx["stock"].get_one("b") == {"item": "b", "count": 3}
        assert tx.sql("select sum(count) from stock").fetchall() == [(4,)]
        assert stock.delete("item = 'a'") == 1
        assert db.tables() == ["readings"]
    assert tx.committed is not None
    assert db.tables() == ["readings", "stock"]
    assert db["stock"].scan().to_arrow().to_pylist() == [{"item": "b", "count": 3}]
    commits = db.history(1).to_pylist()
    assert sorted(commits[0]["tables"]) == ["readings", "stock"]
    before = db.as_of(sl.Micros(tx.committed.micros - 1))
    assert before.tables() == ["readings"]
    assert len(before["readings"]) == 0
    apply(db["stock"])
    assert len(db["stock"]) == 1


def test_the_first_commit_of_a_database_may_create_tables(db: Database) -> None:
    with db.transaction() as tx:
        table = tx.create_table("stock", {"item": ["a"], "count": [1]}, row_keys="item")
        assert len(table) == 1
        other = tx.create_table("more", KEYED, row_keys="item", split_points=["g", "p"])
        assert len(other) == 0
    assert len(db["stock"]) == 1
    assert db["more"].partitions().num_rows == 3


def test_what_is_rolled_back_leaves_no_table(db: Database) -> None:
    tx = db.transaction()
    tx.create_table("stock", KEYED, row_keys="item").append({"item": ["a"], "count": [1]})
    tx.rollback()
    assert db.tables() == []


def test_a_drop_takes_along_what_was_written_here(db: Database, readings: Table) -> None:
    first = readings.append(row(1))
    with db.transaction() as tx:
        tx["readings"].append(row(2))
        tx.drop_table("readings")
        with pytest.raises(sl.UnknownTable):
            tx.table("readings")
        tx.create_table("readings", KEYED, row_keys="item").append({"item": ["a"], "count": [1]})
    assert db["readings"].scan().to_arrow().to_pylist() == [{"item": "a", "count": 1}]
    assert db.as_of(first)["readings"].scan().to_arrow().column("at").to_pylist() == [1]
    with pytest.raises(sl.UnknownTable):
        readings.append(row(3))


def test_names_are_swapped_at_one_time(db: Database, readings: Table) -> None:
    readings.append(row(1))
    db.create_table("other", READINGS, row_keys="sensor", sort_keys="at")
    with db.transaction() as tx:
        with pytest.raises(sl.UsageError, match="already"):
            tx.rename_table("readings", "Other")
        tx.rename_table("readings", "between")
        tx.rename_table("other", "readings")
        tx.rename_table("between", "other")
        tx["other"].append(row(2))
        assert len(tx["other"]) == 2
        assert len(tx["readings"]) == 0
    assert len(db["other"]) == 2
    assert len(db["readings"]) == 0
    assert tx.committed is not None
    assert len(db.as_of(sl.Micros(tx.committed.micros - 1))["readings"]) == 1


def test_a_table_that_was_made_renamed_and_dropped_here_was_never_there(db: Database) -> None:
    with db.transaction() as tx:
        tx.create_table("one", KEYED, row_keys="item").append({"item": ["a"], "count": [1]})
        tx.rename_table("one", "two")
        tx.create_table("one", KEYED, row_keys="item")
        tx.drop_table("two")
    assert db.tables() == ["one"]
    assert len(db["one"]) == 0


def test_of_two_that_alter_a_table_one_wins(db: Database, readings: Table) -> None:
    tx = db.transaction()
    tx.rename_table("readings", "mine")
    db.rename_table("readings", "theirs")
    with pytest.raises(sl.TransactionConflict):
        tx.commit()
    assert db.tables() == ["theirs"]

    def rename(again: Transaction) -> None:
        again.rename_table(again.tables()[0].name, "mine")

    db.transact(rename)
    assert db.tables() == ["mine"]


def test_a_name_that_was_taken_meanwhile_is_refused_and_nothing_is_written(
    db: Database, readings: Table
) -> None:
    tx = db.transaction()
    tx.create_table("stock", KEYED, row_keys="item")
    tx["readings"].append(row(1))
    db.create_table("Stock", KEYED, row_keys="item")
    with pytest.raises(sl.UsageError, match="already"):
        tx.commit()
    assert len(readings) == 0


def test_a_write_to_a_table_that_was_dropped_meanwhile_is_refused(
    db: Database, readings: Table, stock: Table
) -> None:
    tx = db.transaction()
    tx["readings"].append(row(1))
    tx["stock"].upsert({"item": ["a"], "size": [1], "count": [1]})
    db.drop_table("readings")
    with pytest.raises(sl.UnknownTable, match="dropped"):
        tx.commit()
    assert len(stock) == 0


def test_what_alters_tables_cannot_be_staged(db: Database, readings: Table) -> None:
    tx = db.transaction()
    tx.rename_table("readings", "others")
    with pytest.raises(sl.UsageError, match="staged"):
        tx.stage()


def test_others_commit_while_tables_come_and_go(
    open_database: Callable[..., Database], readings: Table
) -> None:
    rounds, writers = 12, 3
    ready = threading.Barrier(writers + 1)
    failures: list[BaseException] = []

    def guarded(work: Callable[[Database], None]) -> threading.Thread:
        def run() -> None:
            try:
                with open_database() as own:
                    work(own)
            except BaseException as error:
                failures.append(error)
                raise

        return threading.Thread(target=run)

    def append(own: Database) -> None:
        table = own["readings"]  # a handle goes on, whatever the table is called
        ready.wait(timeout=300)
        for number in range(rounds):
            table.append(row(number))

    def alter(own: Database) -> None:
        ready.wait(timeout=300)
        for number in range(rounds):
            with own.transaction() as tx:
                made = tx.create_table(f"t{number}", KEYED, row_keys="item")
                made.append({"item": ["a"], "count": [number]})
                if number:
                    tx.drop_table(f"t{number - 1}")
                # The name follows the number, so that every time has exactly one pair.
                tx.rename_table(f"r{number - 1}" if number else "readings", f"r{number}")

    threads = [guarded(append) for _ in range(writers)] + [guarded(alter)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    with open_database() as db:
        last = rounds - 1
        assert db.tables() == [f"r{last}", f"t{last}"]
        assert len(db[f"r{last}"]) == rounds * writers
        seen = set()
        for time in db.history().column("time").cast(pa.int64()).to_pylist():
            then = db.as_of(sl.Micros(time)).tables()
            seen.add(tuple(then))
            assert then == ["readings"] or then[0][1:] == then[1][1:]
        assert len(seen) == rounds + 1


# --- SQL, under the names that the transaction gave


def stocked(db: Database, name: str, *items: str) -> Table:
    table = db.create_table(name, KEYED, row_keys="item", kind="keyed")
    table.append({"item": list(items), "count": [1] * len(items)})
    return table


def items(tx: Transaction, name: str) -> list[str]:
    found = tx.sql(f'select item from "{name}" order by item').fetchall()
    return [item for (item,) in found]


def test_sql_knows_tables_by_the_names_that_they_have_in_the_transaction(
    db: Database, tmp_path: Path
) -> None:
    stocked(db, "stock", "old")
    stocked(db, "sink")
    with db.transaction() as tx:
        assert items(tx, "stock") == ["old"]
        tx.rename_table("stock", "archive")
        with pytest.raises(sl.UsageError, match="stock"):
            items(tx, "stock")
        new = {"item": ["new"], "place": [7]}
        tx.create_table("stock", new, row_keys="item", kind="keyed")
        assert items(tx, "ARCHIVE") == ["old"]
        assert tx.sql("select item, place from stock").fetchall() == [("new", 7)]
        assert tx.sql("insert into sink select item, place from stock") == 1
        assert tx.sql("update archive set count = 5 where item in (select 'old' from stock)") == 1
        assert tx.sql("update stock set place = (select count from archive)") == 1
        assert tx.sql("delete from sink where item in (select item from archive)") == 0
        tx.sql(f"copy stock to '{tmp_path / 'table.csv'}'")
        tx.sql(f"copy (select * from archive) to '{tmp_path / 'query.csv'}'")
        assert tx.sql(f"copy archive from '{tmp_path / 'query.csv'}' (header)") == 1
    assert (tmp_path / "table.csv").read_text().splitlines() == ["item,place", "new,5"]
    assert (tmp_path / "query.csv").read_text().splitlines() == ["item,count", "old,5"]
    assert db["sink"].scan().to_arrow().to_pylist() == [{"item": "new", "count": 7}]
    assert db["archive"].get_one("old") == {"item": "old", "count": 5}
    assert tx.committed is not None
    assert sorted(tx.committed.tables) == ["archive", "sink", "stock"]


@pytest.mark.parametrize("seen_before", [False, True])
def test_what_sql_writes_after_an_exchange_of_names_is_of_the_tables_as_named_now(
    db: Database, seen_before: bool
) -> None:
    stocked(db, "a", "of a")
    stocked(db, "b", "of b")
    stocked(db, "sink")
    with db.transaction() as tx:
        if seen_before:
            assert items(tx, "a") == ["of a"]
            assert len(tx["b"]) == 1
        for name, to in (("a", "between"), ("b", "a"), ("between", "b")):
            tx.rename_table(name, to)
        assert tx.sql("insert into sink select a.item, 1 from a") == 1
        tx["a"].append({"item": ["more of b"], "count": [1]})
        assert items(tx, "a") == ["more of b", "of b"]
        assert tx.sql("insert into sink select b.item || ', ' || a.item, 2 from a, b") == 2
        assert [version.name for version in tx.tables()] == ["a", "b", "sink"]
    sunk = ["of a, more of b", "of a, of b", "of b"]
    assert db["sink"].scan().to_arrow()["item"].to_pylist() == sunk
    assert len(db["a"]) == 2
    assert len(db["b"]) == 1


def test_a_name_comes_back_in_another_case_and_as_another_table(db: Database) -> None:
    stocked(db, "stock", "old")
    with db.transaction() as tx:
        tx.rename_table("stock", "Stock")
        assert items(tx, "stock") == items(tx, "STOCK") == ["old"]
        tx.rename_table("Stock", "stock")
        assert items(tx, "stock") == ["old"]
        tx.drop_table("stock")
        with pytest.raises(sl.UsageError, match="stock"):
            items(tx, "stock")
        tx.create_table("stock", {"place": [1], "item": ["new"]}, row_keys="place")
        assert items(tx, "stock") == ["new"]
        assert tx.sql("insert into stock values (2, 'more')") == 1
    assert db["stock"].scan().to_arrow()["item"].to_pylist() == ["new", "more"]


def test_what_is_staged_goes_into_a_table_by_whatever_name(db: Database) -> None:
    stocked(db, "stock", "old")
    staged = db.stage({"stock": {"item": ["staged"], "count": [1]}})
    with db.transaction() as tx:
        tx.rename_table("stock", "archive")
        stocked_now = tx.create_table("stock", KEYED, row_keys="item", kind="keyed")
        assert tx.merge(staged) == 1
        assert items(tx, "archive") == ["old", "staged"]
        assert items(tx, "stock") == []
        assert len(stocked_now) == 0
    assert len(db["archive"]) == 2


# --- what was dropped


WRITES: dict[str, Callable[[Transaction, Any], object]] = {
    "append": lambda _, table: table.append({"item": ["x"], "count": [1]}),
    "upsert": lambda _, table: table.upsert({"item": ["x"], "count": [1]}),
    "nothing": lambda _, table: table.append({"item": [], "count": []}),
    "delete": lambda _, table: table.delete("count = 1"),
    "delete keys": lambda _, table: table.delete(keys=["old"]),
    "delete all": lambda _, table: table.delete(all=True),
    "update": lambda _, table: table.update({"count": "2"}),
    "overwrite": lambda _, table: table.overwrite({"item": ["x"], "count": [1]}),
    "sql insert": lambda tx, _: tx.sql("insert into stock values ('x', 1)"),
    "sql select": lambda tx, _: tx.sql("insert into stock select * from other"),
    "sql update": lambda tx, _: tx.sql("update stock set count = 2"),
    "sql delete": lambda tx, _: tx.sql("delete from stock"),
}


@pytest.mark.parametrize("made_here", [False, True])
@pytest.mark.parametrize("write", WRITES)
def test_a_write_to_a_table_that_the_transaction_dropped_is_refused_and_the_rest_is_committed(
    open_database: Callable[..., Database], write: str, made_here: bool
) -> None:
    db = open_database(settings=sl.Settings(background=False, inline_bytes_max=0))
    stocked(db, "other", "x")
    if not made_here:
        stocked(db, "stock", "old")
    with db.transaction() as tx:
        if made_here:
            tx.create_table("stock", {"item": ["old"], "count": [1]}, row_keys="item", kind="keyed")
        table = tx["stock"]
        assert len(table) == 1
        tx["other"].upsert({"item": ["y"], "count": [1]})
        tx.drop_table("stock")
        before = db.usage().num_rows
        with pytest.raises(sl.UnknownTable, match="stock"):
            WRITES[write](tx, table)
        with pytest.raises(sl.UnknownTable, match="dropped the table 'stock'"):
            table.get("old")
        assert db.usage().num_rows == before, "and nothing was staged for it"
    assert db.tables() == ["other"]
    assert len(db["other"]) == 2


def test_what_was_staged_for_a_table_that_the_transaction_dropped_is_refused(db: Database) -> None:
    stocked(db, "stock", "old")
    staged = db.stage({"stock": {"item": ["staged"], "count": [1]}})
    with db.transaction() as tx:
        tx.drop_table("stock")
        with pytest.raises(sl.UnknownTable, match="dropped"):
            tx.merge(staged)
    assert db.tables() == []
