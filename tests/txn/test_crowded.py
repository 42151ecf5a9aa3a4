"""Many writers on one log: nobody loses again and again, and one does what is due for all."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline.database import Database
from strandline.location.sqlite.consensus import SqliteConsensus
from strandline.testing.processes import in_processes, side_by_side
from strandline.txn.apply import apply_table
from strandline.upkeep import background
from tests.support.deadlines import within

SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64())])
SETTINGS = sl.Settings(background=False)


def test_who_lost_once_looks_within_its_turn_and_does_not_lose_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        sl.connect(tmp_path, settings=SETTINGS) as one,
        sl.connect(tmp_path, settings=SETTINGS) as other,
    ):
        one.create_table("rows", SCHEMA, row_keys="k")
        other["rows"].append({"k": [0], "n": [0]})
        puts: Counter[bool] = Counter()
        inner = SqliteConsensus.compare_and_set

        def counted(self: SqliteConsensus, *args: Any, **kwargs: Any) -> bool:
            won = inner(self, *args, **kwargs)
            puts[won] += 1
            return won

        monkeypatch.setattr(SqliteConsensus, "compare_and_set", counted)
        table = one._handle.store.txns
        for number in range(1, 20):
            # What `one` knows is old each time.
            other["rows"].append({"k": [number], "n": [0]})
            one["rows"].append({"k": [number], "n": [1]})
        assert puts[True] == 38
        # The first of each finds out; where others write in between, they queue up first. A
        # quiet turn ends that, and the next one that is overtaken finds out again.
        assert puts[False] <= 20
        assert table.machine.state.seqno == other._handle.store.txns.look(within(60)).seqno


def raise_counter(path: Path, times: int) -> int:
    def raised(tx: sl.Transaction) -> None:
        row = tx["counters"].get_one(1)
        tx["counters"].upsert({"k": [1], "n": [1 + (row["n"] if row else 0)]})

    with sl.connect(path) as db:
        for _ in range(times):
            db.transact(raised)
    return times


class _Raise:
    """Picklable."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self) -> int:
        return raise_counter(self.path, 15)


def test_one_hot_key_of_four_processes_counts_every_one(tmp_path: Path) -> None:
    with sl.connect(tmp_path) as db:
        db.create_table("counters", SCHEMA, row_keys="k", kind="keyed")
        done = in_processes([_Raise(tmp_path)] * 4)
        found = db["counters"].get_one(1)
    assert found is not None
    assert found["n"] == sum(done) == 60


def test_of_many_threads_at_a_full_backlog_one_applies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = sl.Settings(background=False, apply_backlog_commits=10_000, backlog_commits_max=40)
    applied: list[int] = []
    guard = threading.Lock()
    inner = apply_table

    def counted(*args: Any, **kwargs: Any) -> Any:
        done = inner(*args, **kwargs)
        with guard:
            applied.append(done.commits)
        return done

    monkeypatch.setattr(background, "apply_table", counted)
    with sl.connect(tmp_path, settings=settings) as db:
        table = db.create_table("rows", SCHEMA, row_keys="k")
        for number in range(40):
            table.append({"k": [number], "n": [0]})
        assert applied == []

        def append(number: int) -> None:
            table.append({"k": [100 + number], "n": [0]})

        side_by_side([lambda n=n: append(n) for n in range(12)])  # type: ignore[misc]
        assert len(applied) == 1
        assert applied[0] >= 40
        assert len(table) == 52


def test_of_two_handles_the_one_whose_commit_fills_a_bite_applies_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = sl.Settings(apply_backlog_commits=16)

    def due(db: Database, table: sl.Table) -> bool:
        store: Any = db._handle.store
        return bool(store.background._is_responsible(table.id))

    monkeypatch.setattr(background.Background, "_wake", lambda _: None)
    with (
        sl.connect(tmp_path, settings=settings) as one,
        sl.connect(tmp_path, settings=settings) as other,
    ):
        one.create_table("rows", SCHEMA, row_keys="k")
        tables = [(db, db["rows"]) for db in (one, other)]
        found = []
        for number in range(48):
            db, table = tables[number % 2]
            table.append({"k": [number], "n": [0]})
            if due(db, table):
                found.append(number + 1)
        assert found == [16, *range(32, 49, 2)]
