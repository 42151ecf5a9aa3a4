"""A log that is older than it was does not go unseen, and can be gone on from."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.connect import LOG_FILE, connect
from strandline.database import Database
from strandline.errors import Corruption, LocationError
from strandline.ids import MilestoneKey
from strandline.txn.milestones import Milestones
from tests.tables.helpers import QUIET, apply


def values(db: Database) -> list[int]:
    return sorted(db["t"].scan().to_arrow().column("k").to_pylist())


def milestones(path: Path) -> list[MilestoneKey]:
    found = (str(p.relative_to(path)) for p in path.glob("milestone/*/*"))
    return sorted(map(MilestoneKey.parse, found))


def objects_of(path: Path) -> set[Path]:
    return {p for p in path.rglob("*") if p.is_file() and not p.name.startswith(LOG_FILE)}


def head(path: Path) -> int:
    with connect(path, mode="r", settings=QUIET) as db:
        return db._handle.store.txns.machine.state.seqno


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A database whose log was put back to what it was before the second of two processes."""
    path = tmp_path / "lake"
    with connect(path, settings=QUIET) as db:
        db.create_table("t", {"k": [1]}, row_keys="k")
    shutil.copy(path / LOG_FILE, tmp_path / "earlier")
    with connect(path, settings=QUIET) as db:
        db["t"].append({"k": [2]})
    shutil.copy(path / LOG_FILE, tmp_path / "newest")
    put_back(path, "earlier")
    return path


def put_back(path: Path, which: str) -> None:
    for companion in path.glob(f"{LOG_FILE}-*"):
        companion.unlink()
    shutil.copy(path.parent / which, path / LOG_FILE)


USES: dict[str, Callable[[Database], Any]] = {
    "append": lambda db: db["t"].append({"k": [3]}),
    "transaction": lambda db: db.transact(lambda tx: tx["t"].append({"k": [3]})),
    "create": lambda db: db.create_table("u", {"k": [3]}, row_keys="k"),
    "apply": lambda db: apply(db["t"]),
    "compact": lambda db: db.compact(),
    "vacuum": lambda db: db.vacuum(),
    "prune": lambda db: db.prune(before=sl.Micros(1)),
    "clock": lambda db: db.confirm_clock(),
    "attach": lambda db: db["t"].attach("worker"),
    "subscribe": lambda db: next(iter(db["t"].subscribe())),
}


@pytest.mark.parametrize("use", USES)
def test_an_earlier_log_is_written_to_by_nobody_until_it_is_confirmed(lake: Path, use: str) -> None:
    before, objects = head(lake), objects_of(lake)
    with connect(lake, settings=QUIET) as db:
        with pytest.raises(Corruption, match="confirm-restore") as caught:
            USES[use](db)
        newest = milestones(lake)[-1]
        assert caught.value.object == f"record {newest.seqno} of shard {newest.shard}"
        assert values(db) == [1], "it can be looked at"
    assert head(lake) == before
    assert objects_of(lake) == objects
    with connect(lake, settings=QUIET) as db:
        assert db.confirm_restore() == newest.seqno - before
        assert db.confirm_restore() == 0
        USES[use](db)
    with connect(lake, settings=QUIET) as db:
        assert 1 in values(db)
        assert 2 not in values(db)


def test_the_newest_log_put_back_is_the_end_of_it(lake: Path) -> None:
    with connect(lake, settings=QUIET) as db, pytest.raises(Corruption):
        db["t"].append({"k": [3]})
    put_back(lake, "newest")
    with connect(lake, settings=QUIET) as db:
        db["t"].append({"k": [3]})
        assert values(db) == [1, 2, 3]
        assert db.confirm_restore() == 0


def test_a_log_that_lost_its_end_is_missed_too(tmp_path: Path) -> None:
    """As SQLite drops a damaged frame of its `-wal`, and all after it."""
    with connect(tmp_path, settings=QUIET) as db:
        db.create_table("t", {"k": [1]}, row_keys="k")
    with closing(sqlite3.connect(tmp_path / LOG_FILE, isolation_level=None)) as log:
        log.execute("DELETE FROM record")
    with connect(tmp_path, settings=QUIET) as db, pytest.raises(Corruption, match="is missing"):
        db.create_table("t", {"k": [1]}, row_keys="k")


def test_a_copy_of_all_of_it_is_a_database(tmp_path: Path) -> None:
    with connect(tmp_path / "lake", settings=QUIET) as db:
        db.create_table("t", {"k": [1]}, row_keys="k")
    shutil.copytree(tmp_path / "lake", tmp_path / "copy")
    with connect(tmp_path / "lake", settings=QUIET) as db:
        db["t"].append({"k": [2]})
    shutil.copytree(tmp_path / "lake", tmp_path / "later")
    for place, expected in (("copy", [1, 3]), ("later", [1, 2, 3])):
        with connect(tmp_path / place, settings=QUIET) as db:
            db["t"].append({"k": [3]})
            assert values(db) == expected


def test_a_handle_puts_one_milestone_and_then_one_in_so_many_records(tmp_path: Path) -> None:
    settings = replace(QUIET, rollup_every_records=10)
    with connect(tmp_path, settings=settings) as db:
        assert milestones(tmp_path) == []
        table = db.create_table("t", {"k": [1]}, row_keys="k")
        (first,) = milestones(tmp_path)
        for n in range(35):
            table.append({"k": [n]})
            state = db._handle.store.txns.machine.state
            newest = milestones(tmp_path)[-1]
            assert state.seqno - 10 < newest.seqno <= state.seqno
        assert first.seqno == 1
        assert len(milestones(tmp_path)) == 4
        after = db._handle.store.txns.machine.records(first.seqno + 1, limit=1)
        assert after[0].predecessor.hex().startswith(first.record)
    with connect(tmp_path, mode="r") as db:
        assert values(db)
    with connect(tmp_path) as db:
        assert values(db), "who only reads puts none"
    assert len(milestones(tmp_path)) == 4


def test_milestones_that_others_put_meanwhile_are_no_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(tmp_path, settings=QUIET) as db:
        db.create_table("t", {"k": [1]}, row_keys="k")
    listed = Milestones._listed
    with connect(tmp_path, settings=QUIET) as db, connect(tmp_path, settings=QUIET) as other:

        def meanwhile(self: Milestones, after: int, deadline: Any) -> list[MilestoneKey]:
            if self is db._handle.store.milestones:
                other["t"].append({"k": [2]})
            found = listed(self, after, deadline)
            assert found or self is not db._handle.store.milestones
            return found

        monkeypatch.setattr(Milestones, "_listed", meanwhile)
        db["t"].append({"k": [3]})
        assert values(db) == [1, 2, 3]


def test_a_commit_stands_though_its_milestone_cannot_be_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise LocationError("no space left", may_have_happened=False)

    with connect(tmp_path, settings=QUIET) as db:
        store = db._handle.store
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr(store.milestones._location.blob, "put", full)
            db.create_table("t", {"k": [1]}, row_keys="k")
        assert "no milestone" in caplog.text
        assert values(db) == [1]


def test_a_confirmation_that_ends_anywhere_is_finished_by_another(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_back(lake, "newest")
    with connect(lake, settings=QUIET) as db:
        db["t"].append({"k": [3]})
    put_back(lake, "earlier")
    end = head(lake)
    lost = [key for key in milestones(lake) if key.seqno > end]
    assert len(lost) == 2
    with connect(lake, settings=QUIET) as db:
        blob = db._handle.store.milestones._location.blob
        delete = blob.delete
        deleted: list[str] = []

        def ends(key: str, *, timeout: float) -> bool:
            if deleted:
                raise KeyboardInterrupt
            deleted.append(key)
            return delete(key, timeout=timeout)

        monkeypatch.setattr(blob, "delete", ends)
        with pytest.raises(KeyboardInterrupt):
            db.confirm_restore()
    monkeypatch.undo()
    with connect(lake, settings=QUIET) as db:
        with pytest.raises(Corruption) as caught:
            db["t"].append({"k": [4]})
        assert caught.value.object == f"record {lost[-1].seqno} of shard {lost[-1].shard}"
        assert db.confirm_restore() == lost[-1].seqno - end
        db["t"].append({"k": [4]})
    with connect(lake, settings=QUIET) as db:
        assert values(db) == [1, 4]
        # One that was under way to the storage all the time.
        late = MilestoneKey(lost[-1].shard, lost[-1].seqno + 100, lost[-1].record)
        db._handle.store.location.blob.put(str(late), b"", timeout=9)
    with connect(lake, settings=QUIET) as db:
        with pytest.raises(Corruption):
            db["t"].append({"k": [5]})
        assert db.confirm_restore() > 0
        db["t"].append({"k": [5]})


def test_a_vacuum_leaves_the_newest_milestones(tmp_path: Path) -> None:
    for n in range(9):
        with connect(tmp_path, settings=QUIET) as db:
            if not n:
                db.create_table("t", {"k": [1]}, row_keys="k")
            db["t"].append({"k": [n]})
    before = milestones(tmp_path)
    assert len(before) == 9
    with connect(tmp_path, settings=QUIET) as db:
        db.vacuum(dry_run=True)
        db.vacuum("t")
        assert milestones(tmp_path) == before
        db.vacuum()
        assert milestones(tmp_path) == before[-4:]
        used = [row for row in db.usage().to_pylist() if row["kind"] == "milestone"]
        assert [(row["use"], row["table"], row["objects"]) for row in used] == [("state", None, 4)]
        assert not [row for row in db.usage().to_pylist() if row["kind"] == "other"]


def test_the_key_of_a_milestone_goes_through_text() -> None:
    key = MilestoneKey("s" + "0" * 16, 7, "ab" * 8)  # type: ignore[arg-type]
    assert MilestoneKey.parse(str(key)) == key
    for wrong in ("milestone/x", str(key)[:-1], f"{key}x", str(key).replace("/s", "/w")):
        with pytest.raises(sl.UsageError):
            MilestoneKey.parse(wrong)
