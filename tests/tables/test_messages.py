"""What people are told: names and times, not ids and counts of microseconds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import strandline as sl
from strandline.database import Database
from strandline.table import Table
from strandline.times import told

INSIDE = re.compile(r"\b1[0-9]{15}\b|\b[a-z][0-9a-f]{16}\b")
"""Microseconds of these decades, and ids: of shards and tables, of sessions, of commits."""

ROW = {"sensor": [7], "at": [1], "name": ["a"], "value": [1.0]}


@contextmanager
def told_in_words(*words: str) -> Iterator[None]:
    """A block that fails with a message of these words and nothing from inside."""
    with pytest.raises(sl.StrandlineError) as caught:
        yield
    message = str(caught.value)
    assert INSIDE.search(message) is None, message
    assert [word for word in words if word not in message] == [], message


@pytest.fixture
def filled(readings: Table) -> Table:
    """`readings` with a row of each of two commits."""
    readings.append(ROW)
    readings.append(ROW)
    return readings


def later(moment: datetime, **much: float) -> datetime:
    return moment + timedelta(**much)


def test_a_moment_that_cannot_be_read_is_told_as_a_time(db: Database, filled: Table) -> None:
    first = db.history().to_pylist()[-1]["time"]
    ahead = later(datetime.now(UTC), days=400)
    year = f"{ahead:%Y-%m-%dT}"
    with told_in_words(year, "the latest time is 20"):
        filled.scan(as_of=ahead).to_arrow()
    with told_in_words(year, "the latest time is 20"):
        filled.subscribe(ahead)
    with told_in_words(year, "the latest time is 20"):
        db.prune("readings", before=ahead)
    with told_in_words("'readings'", " as of 2000-01-01T00:00:00Z"):
        db.as_of("2000-01-01T00:00:00Z").table("readings")
    with told_in_words("'readings'"):
        filled.scan(as_of=later(first, hours=-1)).count()
    db.prune("readings", before=db.history(1)["time"][0].as_py())
    with told_in_words("'readings'", "is before 20", "Z, the earliest"):
        filled.scan(as_of=first).count()
    with told_in_words("'readings'", "after 20", "to start from is 20"):
        next(filled.subscribe(first, timeout=60.0))


def test_a_table_that_was_dropped_is_told_by_its_name(
    open_database: Callable[..., Database], filled: Table
) -> None:
    other = open_database()
    held, changes = other.table("readings"), other.table("readings").subscribe("now", timeout=60.0)
    kept = other.stage({"readings": ROW})
    with told_in_words("'readings'"), other.transaction() as transaction:
        transaction.table("readings").append(ROW)
        open_database().drop_table("readings")
    for call in (
        lambda: held.append(ROW),
        lambda: held.append({**ROW, "name": ["x" * 100_000]}),
        held.scan().to_arrow,
        lambda: held.attach("worker-1"),
        lambda: held.delete("sensor = 7"),
        lambda: held.update({"value": "2"}),
        lambda: held.set(retention="1 day"),
        held.partitions,
        lambda: list(changes),
        lambda: held.subscribe("now"),
    ):
        with told_in_words("'readings'"):
            call()
    with told_in_words("'readings'"), other.transaction() as transaction:
        transaction.merge(kept)
    with told_in_words("'readings'"):
        filled.append(ROW)


def test_who_holds_a_table_is_told_with_the_name_of_the_table(
    open_database: Callable[..., Database], filled: Table
) -> None:
    other = open_database()
    with filled.attach("worker-1"), told_in_words("'readings'", "worker-1"):
        other.table("readings").append(ROW)
    lease = filled.attach("worker-1")
    with other.table("readings").attach("worker-2"):
        with told_in_words("'readings'", "worker-2"):
            filled.append(ROW)
        with told_in_words("'readings'"):
            lease.append(ROW)


def test_a_conflict_is_told_by_the_name_of_the_table(
    open_database: Callable[..., Database], filled: Table
) -> None:
    with told_in_words("'readings'"), open_database().transaction() as transaction:
        assert transaction.table("readings").scan().count() == 2
        transaction.table("readings").append(ROW)
        filled.append(ROW)


@pytest.mark.parametrize("broken", ["scan", "compare_and_set", "head scan compare_and_set"])
def test_a_log_that_does_not_answer_is_told_by_the_name_of_the_table(
    filled: Table,
    open_database: Callable[..., Database],
    monkeypatch: pytest.MonkeyPatch,
    broken: str,
) -> None:
    db = open_database()
    table = db.table("readings")
    table.append(ROW)

    def fail(*_: object, **__: object) -> None:
        raise sl.LocationError("nobody answers")

    for name in broken.split():
        monkeypatch.setattr(db._handle.store.location.consensus, name, fail)
    messages = []
    for call in (
        lambda: table.append(ROW, timeout=0.05),
        table.scan(timeout=0.05).to_arrow,
        lambda: db.compact("readings", timeout=0.05),
        lambda: db.vacuum(timeout=0.05),
        lambda: db.drop_table("readings", timeout=0.05),
    ):
        try:
            call()
        except sl.StrandlineError as error:
            messages.append(str(error))
    assert messages
    assert [message for message in messages if INSIDE.search(message)] == []


def test_a_shard_goes_by_the_name_of_its_table(db: Database, filled: Table) -> None:
    store = db._handle.store
    assert store.data(filled._version.table).title == "table 'readings'"
    assert store.txns.machine.title == "the database"
    db.rename_table("readings", "measured")
    db.table("measured")
    assert store.data(filled._version.table).title == "table 'measured'"


def test_times_are_told_exactly_and_can_be_given_back(db: Database, filled: Table) -> None:
    commits = db.history().to_pylist()[:2]
    second, first = (sl.Commit(int(row["commit"][1:], 16)) for row in commits)
    for moment, count in ((first, 1), (second, 2)):
        assert filled.as_of(moment.id).scan().count() == count
        assert filled.as_of(told(moment.micros)).scan().count() == count
        assert db.sql("select count(*) from readings", as_of=moment.id).fetchall() == [(count,)]


def test_the_times_of_changes_are_exact_for_programs_and_times_for_people(filled: Table) -> None:
    pd = pytest.importorskip("pandas")
    raw = filled.scan(raw=True)
    exact, shown = raw.to_pandas(), raw.to_pandas(times=True)
    assert str(exact["__time"].dtype) == "int64"
    assert [pd.Timestamp(t, unit="us", tz="UTC") for t in exact["__time"]] == list(shown["__time"])
    change = next(iter(filled.subscribe(timeout=60.0)))
    assert str(change.to_pandas()["__time"].dtype) == "int64"
    assert str(change.to_pandas(times=True)["__time"].dtype) == "datetime64[us, UTC]"
    assert "__time" not in filled.scan().to_pandas(times=True)
    assert not INSIDE.search(str(raw.explain()))


def test_a_part_that_is_missing_is_told_by_the_name_that_its_table_had(tmp_path: Path) -> None:
    settings = sl.Settings(background=False, inline_bytes_max=0)
    with sl.connect(tmp_path / "lake", settings=settings) as db:
        table = db.create_table("old", {"k": [1]}, row_keys="k")
        commit = table.append({"k": [2]})
        db.compact("old")
        parts = set(table.parts()["part"].to_pylist())
        db.drop_table("old")
    with sl.connect(tmp_path / "lake", settings=settings) as db:
        for part in parts:
            db._handle.store.location.blob.delete(part, timeout=5)
        with pytest.raises(sl.Corruption, match=r"of table 'old' is missing"):
            db.as_of(commit)["old"].scan().to_arrow()
