"""Bugs that the machine of transactions (tests/model) found, each as small as it gets."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

import strandline as sl

SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.int64()), ("v", pa.int64())])


def made(db: sl.Database, name: str, kind: str = "keyed") -> sl.Table:
    return db.create_table(name, SCHEMA, row_keys="k", sort_keys="s", kind=kind)


def test_a_row_written_in_a_transaction_counts_over_the_newest_commit_beside_lower_keys(
    db: sl.Database,
) -> None:
    """Entries were read in the order of their first keys, and not in that of their commits."""
    made(db, "t").append({"k": [0], "s": [1], "v": [3]})
    with db.transaction() as tx:
        tx["t"].upsert({"k": [0, 0], "s": [0, 1], "v": [7, 7]})
        assert tx["t"].get(0)["v"].to_pylist() == [7, 7]
        assert tx["t"].update({"v": "v + 1"}, "v = 3") == 0
    assert db["t"].get(0)["v"].to_pylist() == [7, 7]


def test_keys_are_deleted_in_a_table_that_the_same_transaction_made(db: sl.Database) -> None:
    """It was looked for among the tables that everybody knows."""
    with db.transaction() as tx:
        table = tx.create_table("t", SCHEMA, row_keys="k", sort_keys="s", kind="keyed")
        table.upsert({"k": [0, 1], "s": [0, 0], "v": [7, 7]})
        table.delete(keys=[(1, 0)])
        assert table.name == "t"
        tx.rename_table("t", "u")
        assert table.name == tx["u"].name == "u"
    assert db["u"].scan().to_arrow()["k"].to_pylist() == [0]


def test_a_table_that_the_transaction_dropped_is_unknown_in_it(db: sl.Database) -> None:
    made(db, "t")
    with db.transaction() as tx:
        table = tx["t"]
        tx.drop_table("t")
        with pytest.raises(sl.UnknownTable, match="dropped the table 't'"):
            table.delete(keys=[(1, 0)])
    assert db.tables() == []


def test_a_commit_is_told_of_by_its_token_also_when_another_holds_the_table_by_now(
    open_database: Callable[..., sl.Database],
) -> None:
    """A loader that begins anew after its answer was lost stages parts, and was told Held."""
    db = open_database(settings=sl.Settings(background=False, inline_bytes_max=0))
    made(db, "t")

    def load(number: int) -> sl.Transaction:
        with db.transaction(token=("loader", number)) as tx:
            tx["t"].upsert({"k": [1], "s": [1], "v": [1]})
            tx["t"].upsert({"k": [1], "s": [1], "v": [2]})
        return tx

    first = load(1).committed
    with db["t"].attach("worker"):
        assert load(1).committed == first
        with pytest.raises(sl.Held, match="worker 'worker'"):
            load(2)
    assert db["t"].scan().to_arrow()["v"].to_pylist() == [2]
