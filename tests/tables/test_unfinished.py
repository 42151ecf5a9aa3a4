"""What processes left that died while they wrote an object goes with a vacuum; `usage` tells."""

import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline.location.local.temporary import TEMPORARY_DIRECTORY
from strandline.settings import Settings
from strandline.shard import new_shard_id, open_shard, vacuum_shard
from strandline.upkeep.vacuum import UNFINISHED

HOUR = 3_600.0
NAME = "17-4711-00ff00ff00ff00ff.tmp"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    with sl.connect(tmp_path / "lake") as db:
        db.create_table("t", {"k": [1]}, row_keys="k")
    return tmp_path / "lake"


def left(lake: Path, *, seconds: float) -> Path:
    """A file that was written to so long ago, by a process that is gone."""
    path = lake / TEMPORARY_DIRECTORY / NAME
    path.write_bytes(b"half")
    at = time.time() - seconds
    os.utime(path, (at, at))
    return path


def vacuumed(db: sl.Database, **options: Any) -> list[tuple[int, int]]:
    reports = [report for report in db.vacuum(**options) if report.table == UNFINISHED]
    return [(report.shard.objects, report.shard.bytes) for report in reports]


def unfinished(db: sl.Database) -> list[dict[str, Any]]:
    return [row for row in db.usage().to_pylist() if row["kind"] == "unfinished"]


def test_a_vacuum_deletes_what_died_unfinished(lake: Path) -> None:
    path = left(lake, seconds=HOUR)
    with sl.connect(lake) as db:
        (row,) = unfinished(db)
        assert (row["use"], row["objects"], row["bytes"]) == ("unknown", 1, 4)
        assert vacuumed(db, dry_run=True) == [(1, 4)]
        assert path.exists()
        assert vacuumed(db) == [(1, 4)]
        assert not path.exists()
        assert not vacuumed(db)
        assert not unfinished(db)
        assert len(db["t"]) == 1


def test_what_is_younger_than_the_delay_stays(lake: Path) -> None:
    path = left(lake, seconds=HOUR)
    with sl.connect(lake) as db:
        db["t"].set(deletion_delay="2 hours")
        assert vacuumed(db) == vacuumed(db, dry_run=True) == []
        assert len(unfinished(db)) == 1
    # However short the delay: a request may be under way for as long as the grace.
    with sl.connect(lake, settings=Settings(grace_seconds=2 * HOUR)) as db:
        db["t"].set(deletion_delay="0 seconds")
        assert vacuumed(db) == []
    assert path.exists()


def test_the_age_is_by_the_clock_of_the_location(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose clock is ahead deletes nothing too early."""
    path = left(lake, seconds=60)
    now = time.time_ns
    with sl.connect(lake) as db:
        monkeypatch.setattr(time, "time_ns", lambda: now() + int(4 * HOUR * 1e9))
        assert vacuumed(db) == []
    assert path.exists()


def test_an_upload_under_way_is_neither_told_nor_deleted(lake: Path) -> None:
    with sl.connect(lake) as db:
        blob = db._handle.store.location.blob
        with blob.upload("w/late", timeout=60) as sink:
            sink.write(b"half")
            (path,) = (lake / TEMPORARY_DIRECTORY).iterdir()
            os.utime(path, (1_000, 1_000))
            assert not vacuumed(db)
            assert not unfinished(db)
            sink.write(b" done")
        assert blob.get("w/late", timeout=60) == b"half done"


def test_a_vacuum_of_one_table_leaves_it_alone(lake: Path) -> None:
    path = left(lake, seconds=HOUR)
    with sl.connect(lake) as db:
        assert vacuumed(db, table="t") == []
    assert path.exists()


def test_a_vacuum_of_a_shard_by_itself_deletes_it(tmp_path: Path) -> None:
    with sl.open_location(tmp_path / "shards") as location:
        shard = new_shard_id()
        write, read = open_shard(location, shard, schema=pa.schema([("n", pa.int64())]))
        with write, read:
            write.compare_and_append({"n": [1]}, 0, 1, time=0)
        path = left(tmp_path / "shards", seconds=HOUR)
        vacuum_shard(location, shard, dry_run=True)
        assert path.exists()
        vacuum_shard(location, shard)
        assert not path.exists()
