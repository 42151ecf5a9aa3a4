"""Wrong clocks: refused where the location's clock shows it, doubted where only the log does."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import strandline as sl
from strandline.database import Database
from strandline.location.failures import Refused
from strandline.location.local.blob import FileBlob
from tests.tables.helpers import QUIET, READINGS, apply

HOUR = 3_600 * 1_000_000
DAY = 24 * HOUR
YEAR = 365 * DAY


def shift(db: Database, micros: int) -> None:
    """Sets the clock of one handle, and of nothing else."""
    env = db._handle.store.env
    real = type(env).now_micros
    env.now_micros = lambda: real(env) + micros  # type: ignore[method-assign]


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


def opened(place: str) -> Database:
    return sl.connect(place, settings=QUIET)


ROW = {"sensor": [1], "at": [1], "name": ["a"], "value": [0.5]}


@pytest.mark.parametrize("off", [YEAR, 6 * 60 * 1_000_000, -6 * 60 * 1_000_000, -YEAR])
def test_a_clock_that_differs_from_the_locations_is_refused(place: str, off: int) -> None:
    with opened(place) as db, opened(place) as wrong:
        table = db.create_table("readings", READINGS, row_keys="sensor", sort_keys="at")
        first = table.append(ROW)
        shift(wrong, off)
        word = "ahead of" if off > 0 else "behind"
        with pytest.raises(sl.ClockSkew, match=word):
            wrong.table("readings").append(ROW)
        # Nothing else is affected: others write, and the wrong one reads.
        second = table.append(ROW)
        assert 0 < second.micros - first.micros < HOUR
        assert len(wrong.table("readings")) == 2


def test_t17_neither_a_time_to_come_is_read_nor_a_clock_a_year_ahead_believed(place: str) -> None:
    """CASES T17."""
    with opened(place) as db, opened(place) as wrong:
        table = db.create_table("readings", READINGS, row_keys="sensor", sort_keys="at")
        other = db.create_table("other", READINGS, row_keys="sensor", sort_keys="at")
        first = table.append(ROW)
        later = sl.Micros(first.micros + HOUR)
        with pytest.raises(sl.AsOfInFuture):
            table.as_of(later).scan().to_arrow()
        with pytest.raises(sl.AsOfInFuture):
            db.sql("select * from readings", as_of=later)
        shift(wrong, YEAR)
        tx = wrong.transaction()
        tx["readings"].append(ROW)
        tx["other"].append(ROW)
        with pytest.raises(sl.ClockSkew):
            tx.commit()
        second = other.append(ROW)
        assert 0 < second.micros - first.micros < HOUR
        assert (len(table), len(other)) == (1, 1)
        assert (len(wrong["readings"]), len(wrong["other"])) == (1, 1)


def test_a_clock_that_is_ahead_poisons_not_even_a_new_database(place: str) -> None:
    with opened(place) as wrong:
        shift(wrong, YEAR)
        with pytest.raises(sl.ClockSkew):
            wrong.create_table("readings", READINGS, row_keys="sensor")
        shift(wrong, 0)
        wrong.create_table("readings", READINGS, row_keys="sensor")


def test_a_clock_that_jumps_while_a_handle_is_open_is_noticed(place: str) -> None:
    with opened(place) as db:
        table = db.create_table("readings", READINGS, row_keys="sensor", sort_keys="at")
        table.append(ROW)
        shift(db, YEAR)
        with pytest.raises(sl.ClockSkew):
            table.append(ROW)
        shift(db, HOUR // 60)
        table.append(ROW)


def test_the_locations_clock_is_asked_once(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str] = []
    put = FileBlob.put

    def counted(self: FileBlob, key: str, data: bytes, *, timeout: float) -> None:
        keys.append(key)
        put(self, key, data, timeout=timeout)

    monkeypatch.setattr(FileBlob, "put", counted)
    with opened(place) as db:
        table = db.create_table("readings", READINGS, row_keys="sensor", sort_keys="at")
        for _ in range(20):
            table.append(ROW)
    assert sum("/probe/" in key or "probe" in key for key in keys) == 1
    assert not [path for path in Path(place).rglob("*probe*") if path.is_file()]


def test_a_commit_needs_no_clock_but_the_logs(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise Refused("no space left")

    with opened(place) as db:
        monkeypatch.setattr(FileBlob, "put", broken)
        table = db.create_table("readings", READINGS, row_keys="sensor", sort_keys="at")
        table.append(ROW)
        assert len(table) == 1


def test_a_clock_that_jumped_is_refused_also_where_the_location_does_not_answer(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise Refused("no space left")

    with opened(place) as db:
        table = db.create_table("readings", READINGS, row_keys="sensor", sort_keys="at")
        monkeypatch.setattr(FileBlob, "put", broken)
        table.append(ROW)
        shift(db, YEAR)
        for _ in range(2):
            with pytest.raises(sl.ClockSkew):
                table.append(ROW)


def test_an_as_of_in_an_hour_is_refused_at_once(open_database: Callable[..., Database]) -> None:
    db = open_database()
    table = db.create_table("readings", READINGS, row_keys="sensor", sort_keys="at")
    commit = table.append(ROW)
    for handle in (db, open_database(mode="r")):
        with pytest.raises(sl.AsOfInFuture):
            handle.table("readings").scan(as_of=sl.Micros(commit.micros + HOUR)).to_arrow()


@pytest.fixture
def doubted(tmp_path: Path) -> Database:
    """A database in memory, where no clock is but the machine's, whose time jumped by a year."""
    db = sl.connect(f"memory://{tmp_path}", settings=QUIET)
    table = db.create_table(
        "readings",
        READINGS,
        row_keys="sensor",
        sort_keys="at",
        kind="keyed",
        properties={"retention": "1 hour"},
    )
    table.append(ROW)
    table.append(ROW)
    shift(db, YEAR)
    table.append(ROW)
    return db


def since_after_compaction(db: Database) -> int:
    db.compact("readings", strategy="full")
    table = db.table("readings")
    state = db._handle.store.data(table.id).look()
    assert state.meta.since is not None
    return state.meta.since


def test_retention_does_not_follow_a_jump_of_the_clock(doubted: Database) -> None:
    env = doubted._handle.store.env
    assert since_after_compaction(doubted) < env.now_micros() - YEAR + HOUR
    first = doubted.history().column("commit").to_pylist()[-2]
    assert first
    earlier = doubted.history().column("time").cast(pa.int64()).to_pylist()[1]
    assert len(doubted.table("readings").scan(as_of=sl.Micros(earlier)).to_arrow()) == 1


def test_a_table_that_was_dropped_outlives_a_jump_of_the_clock(tmp_path: Path) -> None:
    # Its retention went by the latest time, whatever clock that was of, and all of it was deleted.
    with sl.connect(f"memory://{tmp_path}", settings=QUIET) as db:
        other = db.create_table("other", READINGS, row_keys="sensor")
        commit = db.create_table("readings", READINGS, row_keys="sensor").append(ROW)
        apply(db.table("readings"))
        db.drop_table("readings")
        db.vacuum()
        shift(db, YEAR)
        other.append(ROW)
        db.vacuum()
        assert len(db.as_of(commit)["readings"]) == 1
        db.confirm_clock()
        db.vacuum()
        with pytest.raises(sl.StrandlineError):
            len(db.as_of(commit)["readings"])


def test_retention_goes_on_once_an_operator_confirmed_the_clock(doubted: Database) -> None:
    before = since_after_compaction(doubted)
    assert doubted.confirm_clock().value > before + YEAR - HOUR
    doubted.table("readings").append(ROW)
    assert since_after_compaction(doubted) > before + YEAR - 2 * HOUR


def test_a_clock_set_right_after_a_jump_writes_on_once_it_is_confirmed(doubted: Database) -> None:
    shift(doubted, 0)
    table = doubted.table("readings")
    ahead = table.history().column("time").cast(pa.int64()).to_pylist()[0]
    with pytest.raises(sl.ClockSkew, match="confirm"):
        table.append(ROW)
    assert len(table) == 1
    assert doubted.confirm_clock().value < ahead - YEAR + HOUR
    assert ahead < table.append(ROW).micros < ahead + 1_000
    assert since_after_compaction(doubted) < ahead - YEAR + HOUR
