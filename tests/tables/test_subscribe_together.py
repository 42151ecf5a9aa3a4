"""Subscriptions to several tables: one time for all of them, each commit once."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline.changes import windows
from strandline.database import Database
from strandline.table import Table
from tests.support.deadlines import within
from tests.tables.helpers import READINGS, apply

Settle = Callable[[Table], None]


@pytest.fixture
def idle(db: Database) -> Table:
    return db.create_table("idle", READINGS, row_keys="sensor", sort_keys="at")


def row(at: int) -> dict[str, list[Any]]:
    return {"sensor": [1], "at": [at], "name": [None], "value": [None]}


def ats(change: sl.TablesChange, name: str = "readings") -> list[int]:
    return change.tables[name].column("at").to_pylist()  # type: ignore[no-any-return]


def through(db: Database, commit: sl.Commit) -> dict[str, Any]:
    return {"until": commit, "timeout": 5.0}


def test_commits_to_one_table_come_in_turn_and_the_time_of_an_idle_one_passes(
    db: Database, readings: Table, idle: Table, settle: Settle
) -> None:
    # CASES T16
    with db.subscribe(["readings", "idle"], "now", timeout=0.05, poll=0.01) as changes:
        third = readings.append(row(3))
        settle(readings)
        first = next(changes)
        assert ats(first) == [3]
        assert first.progress.micros == third.micros
        fifth = readings.append(row(5))
        settle(readings)
        second = next(changes)
        assert ats(second) == [5]
        assert second.tables["idle"].num_rows == 0
        assert second.progress.micros == fifth.micros
        assert first.complete
        assert second.complete
        last = db.create_table("other", READINGS, row_keys="sensor")
        assert last.name == "other"
        (told,) = list(changes)  # only that time has passed
        assert told.progress > second.progress
        assert not any(rows.num_rows for rows in told.tables.values())


def test_a_commit_to_several_tables_is_one_change(
    db: Database, readings: Table, stock: Table, settle: Settle
) -> None:
    seen = []
    with db.subscribe(["readings", "stock"], "now", timeout=0.05, poll=0.01) as changes:
        for number in range(6):
            with db.transaction() as tx:
                tx.table("readings").append(row(number))
                tx.table("stock").upsert({"item": ["a"], "size": [1], "count": [number]})
            settle(readings)
            if number % 3 == 0:
                settle(stock)
        seen = list(changes)
    pairs = [
        (time, at)
        for change in seen
        for time, at in zip(
            change.tables["readings"].column("__time").to_pylist(), ats(change), strict=True
        )
    ]
    upserts = [
        (time, count)
        for change in seen
        for time, count in zip(
            change.tables["stock"].column("__time").to_pylist(),
            change.tables["stock"].column("count").to_pylist(),
            strict=True,
        )
    ]
    assert pairs == upserts
    assert [at for _, at in pairs] == list(range(6))
    for change in seen:  # whole times, up to the progress
        for rows in change.tables.values():
            assert all(time <= change.progress.micros for time in rows.column("__time").to_pylist())


def test_a_snapshot_is_of_one_time_and_what_comes_goes_on_from_it(
    db: Database, readings: Table, stock: Table, settle: Settle
) -> None:
    for number in range(3):
        with db.transaction() as tx:
            tx.table("readings").append(row(number))
            tx.table("stock").upsert({"item": [str(number)], "size": [1], "count": [number]})
    settle(readings)
    found: dict[str, int] = {"readings": 0, "stock": 0}
    with db.subscribe(["readings", "stock"], timeout=0.05) as changes:
        for change in changes:
            for name, rows in change.tables.items():
                found[name] += rows.num_rows
            if change.complete:
                break
        assert found == {"readings": 3, "stock": 3}
        readings.append(row(9))
        assert ats(next(changes)) == [9]


def test_it_goes_on_from_the_progress_of_a_change(
    db: Database, readings: Table, stock: Table, settle: Settle
) -> None:
    start: Any = "snapshot"
    found = []
    for number in range(5):
        readings.append(row(number))
        settle(readings)
        if number == 2:
            stock.upsert({"item": ["a"], "size": [1], "count": [1]})
        with db.subscribe(["stock", "readings"], start, timeout=0.02) as changes:
            for change in changes:
                found += [("readings", at) for at in ats(change)]
                found += [("stock", c) for c in change.tables["stock"].column("count").to_pylist()]
                if change.complete:
                    start = str(change.progress)
    assert found == [
        ("readings", 0),
        ("readings", 1),
        ("readings", 2),
        ("stock", 1),
        ("readings", 3),
        ("readings", 4),
    ]


def test_changes_survive_apply_tidy_and_compaction_of_one_of_the_tables(
    db: Database, readings: Table, stock: Table
) -> None:
    with db.subscribe(["readings", "stock"], "now", timeout=0.05) as changes:
        for number in range(8):
            readings.append(row(number))
        apply(readings)
        db._handle.store.txns.tidy(deadline=within(60.0))
        db.compact("readings", strategy="full")
        stock.upsert({"item": ["a"], "size": [1], "count": [1]})
        readings.append(row(8))
        seen = list(changes)
    assert [at for change in seen for at in ats(change)] == list(range(9))
    assert sum(change.tables["stock"].num_rows for change in seen) == 1


def test_many_changes_come_in_pieces_that_only_the_last_completes(
    db: Database, readings: Table, stock: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "_CHANGE_BYTES", 1_000)
    monkeypatch.setattr(windows, "_CHANGE_ROWS", 100)
    with db.subscribe(["readings", "stock"], "now", timeout=0.05) as changes:
        start = changes.progress
        many = {"sensor": list(range(1_000)), "at": [0] * 1_000}
        with db.transaction() as tx:
            tx.table("readings").append({**many, "name": [None] * 1_000, "value": [None] * 1_000})
            tx.table("stock").upsert({"item": ["a"], "size": [1], "count": [1]})
        seen = list(changes)
    sizes = [change.tables["readings"].num_rows for change in seen]
    assert sum(sizes) == 1_000
    assert max(sizes) <= 100
    assert [change.complete for change in seen] == [False] * (len(seen) - 1) + [True]
    assert {change.progress for change in seen[:-1]} == {start}
    assert seen[-1].tables["stock"].num_rows == 1
    assert tx.committed is not None
    assert seen[-1].progress.micros == tx.committed.micros


def test_a_table_that_came_later_is_read_from_its_beginning(db: Database, readings: Table) -> None:
    first = readings.append(row(1))
    younger = db.create_table("younger", READINGS, row_keys="sensor")
    younger.append(row(2))
    apply(younger)
    db._handle.store.txns.tidy(deadline=within(60.0))
    with db.subscribe(["readings", "younger"], first, timeout=0.05) as changes:
        seen = list(changes)
    assert [at for change in seen for at in ats(change, "younger")] == [2]
    assert not any(change.tables["readings"].num_rows for change in seen)


def test_a_renamed_table_keeps_its_name_here_and_a_dropped_one_ends_it(
    db: Database, readings: Table, stock: Table
) -> None:
    with db.subscribe(["readings", "stock"], "now", timeout=0.05, poll=0.01) as changes:
        db.rename_table("readings", "measured")
        readings.append(row(1))
        db.drop_table("stock")
        readings.append(row(2))
        assert ats(next(changes)) == [1]
        with pytest.raises(sl.UnknownTable, match=r"stock.*dropped"):
            next(changes)


def test_columns_conditions_and_old_rows_are_by_table(
    db: Database, readings: Table, stock: Table
) -> None:
    options: dict[str, Any] = {
        "columns": {"readings": ["at"]},
        "where": {"readings": "at > 1", "stock": "count > 1"},
        "with_old": True,
        "timeout": 0.05,
    }
    with db.subscribe(["readings", "stock"], "now", **options) as changes:
        assert changes.schemas["readings"].names == ["at", "__time", "__diff"]
        for number in range(4):
            readings.append(row(number))
            stock.upsert({"item": ["a"], "size": [1], "count": [number]})
        seen = list(changes)
    assert [at for change in seen for at in ats(change)] == [2, 3]
    stocks = pa.concat_tables([change.tables["stock"] for change in seen])
    assert stocks.column("count").to_pylist() == [2, 3]
    assert stocks.column("__old").to_pylist()[1]["count"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tables": "readings"}, "list of names"),
        ({"tables": []}, "list of names"),
        ({"tables": ["reading"]}, "did you mean 'readings'"),
        ({"tables": ["readings"], "where": {"idle": "at > 1"}}, "not among the tables"),
        ({"tables": ["readings"], "timeout": -1}, "above 0"),
    ],
)
def test_what_is_wrong_is_said(
    db: Database, readings: Table, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(sl.UsageError, match=message):
        db.subscribe(**arguments)


def test_nothing_is_held_after_it_was_closed_or_could_not_begin(
    db: Database, readings: Table, idle: Table
) -> None:
    def held(table: Table) -> list[str]:
        return [kind for kind in table.holds().column("kind").to_pylist() if kind != "retention"]

    with db.subscribe(["readings", "idle"], "now"):
        assert held(readings) == held(idle) == ["subscription"]
    assert held(readings) == held(idle) == []
    with pytest.raises(sl.UsageError, match="printable"):
        db.subscribe(["readings", "idle"], "now", name="\n")
    assert held(readings) == held(idle) == []
