"""Long transactions get through beside short ones that change what they read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline.database import Database
from strandline.env import RealEnv

COUNTS = pa.schema([("k", pa.int64()), ("n", pa.int64())])
TRIES_MAX = 5


class Patient(RealEnv):
    """What a handle waits by that gives way: it is told, and its time is never over."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Event()

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        self.waits.set()
        super().sleep(seconds)


class Rival:
    """Somebody who commits between each read and commit of another, unless made to wait."""

    def __init__(self, db: Database, write: Callable[[Database], Any]) -> None:
        self._db = db
        self._write = write
        self._env = Patient()
        db._handle.store.way._env = self._env
        self._threads: list[threading.Thread] = []

    def commits(self) -> None:
        """Begins a commit, and comes back once it is through or waits."""
        over = self._env.waits
        over.clear()

        def work() -> None:
            try:
                self._write(self._db)
            finally:
                over.set()

        self._threads.append(threading.Thread(target=work))
        self._threads[-1].start()
        assert over.wait(60)

    def join(self) -> int:
        """How many commits it made, once all of them are through."""
        for thread in self._threads:
            thread.join()
        return len(self._threads)


def increment(db: Database) -> None:
    def step(tx: sl.Transaction) -> None:
        found = tx["counts"].get_one(1)
        assert found is not None
        tx["counts"].upsert({"k": [1], "n": [found["n"] + 1]})

    db.transact(step)


def append(db: Database) -> None:
    db["counts"].append({"k": [1], "n": [7]})


def update(db: Database) -> None:
    db["counts"].update({"n": "n + 1"}, "k = 1")


@pytest.mark.parametrize("write", [increment, append, update])
def test_a_transaction_that_others_are_always_before_gets_its_turn(
    open_database: Callable[..., Database], write: Callable[[Database], None]
) -> None:
    db, other = open_database(), open_database()
    db.create_table("counts", COUNTS, row_keys="k", kind="keyed")
    db["counts"].append({"k": [1, 2], "n": [0, 0]})
    rival = Rival(other, write)
    tries = 0

    def long(tx: sl.Transaction) -> None:
        nonlocal tries
        tries += 1
        tx.sql("update counts set n = n + 100")
        rival.commits()

    db.transact(long, timeout=60)
    assert tries <= TRIES_MAX
    made = rival.join()
    found = {row["k"]: row["n"] for row in db["counts"].scan().to_arrow().to_pylist()}
    assert found == {1: 7 if write is append else 100 + made, 2: 100}


def test_an_update_that_others_are_always_before_gets_its_turn(
    open_database: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    db, other = open_database(), open_database()
    db.create_table("counts", COUNTS, row_keys="k", kind="keyed")
    db["counts"].append({"k": [1, 2], "n": [0, 0]})
    rival = Rival(other, increment)
    staging = db._handle.store.txns
    commit, tries = staging.commit, 0

    def overtaken(**given: Any) -> Any:
        nonlocal tries
        tries += 1
        rival.commits()
        return commit(**given)

    monkeypatch.setattr(staging, "commit", overtaken)
    db.sql("update counts set n = n + 100")
    assert tries <= TRIES_MAX
    monkeypatch.undo()
    made = rival.join()
    assert db["counts"].scan().to_arrow()["n"].to_pylist() == [100 + made, 100]
