"""Rows are counted alike in commits, history and transactions; in status it is those there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from strandline.database import Database
from strandline.table import Table
from strandline.times import Commit
from strandline.transaction import Transaction
from strandline.write.staged import Staged
from tests.tables.helpers import apply

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
MORE = {"k": [3, 4], "v": [3, 4]}


@pytest.fixture(params=["rows", "keyed"])
def table(db: Database, request: pytest.FixtureRequest) -> Table:
    """Rows of the keys 1, 2 and 3."""
    table = db.create_table("t", SCHEMA, row_keys="k", kind=request.param)
    table.append({"k": [1, 2, 3], "v": [0, 0, 0]})
    return table


WRITES: dict[str, tuple[Callable[[Table, Any], Any], int, int]] = {
    # What is done, and how many rows that are in a table of `rows`, and in a keyed one.
    "append": (lambda t, _: t.append(MORE), 2, 2),
    "update": (lambda t, _: t.update({"v": "v + 1"}, "k > 1"), 2, 2),
    "update of all": (lambda t, _: t.update({"v": "v + 1"}), 3, 3),
    "update of none": (lambda t, _: t.update({"v": "v + 1"}, "k > 9"), 0, 0),
    "delete": (lambda t, _: t.delete("k > 1"), 2, 2),
    "delete of a range": (lambda t, _: t.delete(key_range=(1, 3)), 2, 2),
    "delete of all": (lambda t, _: t.delete(all=True), 3, 3),
    "delete of keys": (lambda t, _: t.delete(keys=[1, 9]), 1, 2),
    "overwrite": (lambda t, _: t.overwrite(MORE), 5, 4),
    "overwrite of some": (lambda t, _: t.overwrite(MORE, "k = 3"), 3, 2),
    "insert": (lambda _, db: db.sql("INSERT INTO t SELECT k + 2, v FROM t"), 3, 3),
    "sql update": (lambda _, db: db.sql("UPDATE t SET v = (SELECT max(k) FROM t)"), 3, 3),
    "sql delete": (lambda _, db: db.sql("DELETE FROM t WHERE k IN (SELECT 1)"), 1, 1),
}


def counted(rows: Any) -> Any:
    """What a write says: a Commit, or the rows themselves in a transaction."""
    return rows.rows if isinstance(rows, Commit) else rows


@pytest.mark.parametrize("write", WRITES)
def test_a_write_counts_each_row_once(db: Database, table: Table, write: str) -> None:
    do, plain, keyed = WRITES[write]
    expected = plain if table.kind == "rows" else keyed
    commit = do(table, db)
    assert commit.rows == expected
    if expected:
        assert db.history(1)["rows"].to_pylist() == [expected]
        assert table.history(1)["rows"].to_pylist() == [expected]


@pytest.mark.parametrize("write", WRITES)
def test_in_a_transaction_it_counts_the_same(db: Database, table: Table, write: str) -> None:
    do, plain, keyed = WRITES[write]
    expected = plain if table.kind == "rows" else keyed
    tx: Transaction
    with db.transaction() as tx:
        within: Any = tx.table("t")
        assert within.append({"k": [10], "v": [0]}) == 1
        assert within.delete(keys=[10]) == 1
        assert counted(do(within, tx)) == expected
    assert tx.committed is not None
    assert tx.committed.rows == expected + 2
    assert db.history(1)["rows"].to_pylist() == [expected + 2]


def test_what_is_staged_elsewhere_counts_the_same(db: Database, table: Table) -> None:
    tx = db.transaction()
    tx.table("t").update({"v": "v + 1"})
    staged = tx.stage()
    assert (staged.rows, Staged.from_bytes(staged.to_bytes()).rows) == (3, 3)
    with db.transaction() as into:
        assert into.merge(Staged.from_bytes(staged.to_bytes())) == 3
    assert into.committed is not None
    assert into.committed.rows == 3
    assert db.history(1)["rows"].to_pylist() == [3]


def test_a_token_that_is_used_again_tells_the_same_rows(table: Table) -> None:
    first = table.update({"v": "v + 1"}, token=("scope", 1))
    assert table.update({"v": "v + 1"}, token=("scope", 1)) == first
    assert first.rows == 3


def test_status_tells_rows_that_are_there_and_updates_that_are_stored(
    db: Database, table: Table
) -> None:
    def told(**options: Any) -> tuple[Any, Any]:
        (row,) = db.status(**options).to_pylist()
        return row["rows"], row["updates"]

    assert told() == (3, 3)
    apply(table)
    table.update({"v": "7"}, "k = 1")
    table.delete("k = 2")
    updates = 3 + (2 if table.kind == "rows" else 1) + 1
    assert told() == (2, updates)
    apply(table)
    assert told() == (2, updates)


def test_status_does_not_read_much_unless_asked(
    db: Database, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.reports.status._READ_MAX", 3)
    assert db.status()["rows"].to_pylist() == [3]  # of one commit it is known
    table.update({"v": "7"}, "k = 1")
    assert db.status()["rows"].to_pylist() == [None]
    assert db.status(count=True)["rows"].to_pylist() == [3]
