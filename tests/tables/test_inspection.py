"""What a database tells about its insides agrees with what it does."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from strandline.database import Database
from strandline.errors import UsageError
from strandline.reports.inside import SUBJECTS
from strandline.table import Table
from tests.tables.helpers import READINGS, apply


@pytest.fixture
def split(db: Database) -> Table:
    """A table of three leaves, with two parts over all of them and an inline commit."""
    table = db.create_table(
        "split", READINGS, row_keys="sensor", sort_keys="at", split_points=[1_000, 3_000]
    )
    for at in range(2):
        sensors = list(range(4_000))
        names = [f"{sensor:064}" for sensor in sensors]  # so many that they are not kept inline
        table.append({"sensor": sensors, "at": [at] * 4_000, "name": names})
    table.append({"sensor": [1, 3_500], "at": [5, 5]})
    return table


@pytest.mark.parametrize("applied", [False, True])
def test_partitions_tell_where_rows_are(split: Table, applied: bool) -> None:
    if applied:
        apply(split)
    leaves = split.partitions().to_pylist()
    assert [(leaf["lower"], leaf["upper"]) for leaf in leaves] == [
        (None, "1000"),
        ("1000", "3000"),
        ("3000", None),
    ]
    for leaf, rows in zip(leaves, [2_001, 4_000, 2_001], strict=True):
        assert abs(leaf["rows"] - rows) <= 2 * 4_000 / 100
    assert {leaf["entries"] == 0 for leaf in leaves} == {applied}


def test_partitions_are_exact_where_parts_end_with_leaves(db: Database, split: Table) -> None:
    db.compact("split", strategy="full")
    leaves = split.partitions().to_pylist()
    assert [(leaf["rows"], leaf["parts"]) for leaf in leaves] == [
        (2_001, 1),
        (4_000, 1),
        (2_001, 1),
    ]
    assert all(part["whole"] for part in split.parts().to_pylist())


def test_a_plan_shows_the_merges_that_a_compaction_then_makes(db: Database, split: Table) -> None:
    apply(split)
    planned = db.plan_compaction("split", strategy="full")
    assert planned["lower"].to_pylist() == [None, "1000", "3000"]
    (done,) = db.compact("split", strategy="full")
    assert done.jobs == planned.num_rows
    assert db.plan_compaction("split", strategy="full").num_rows == 0


def test_looking_changes_nothing(db: Database, split: Table) -> None:
    apply(split)
    before = db.shards()
    db.plan_compaction()
    split.partitions()
    for part in split.parts()["part"].to_pylist():
        assert ("key", part) == tuple(db.inspect("part", key=part).to_pylist()[0].values())
    for subject in set(SUBJECTS) - {"part"}:
        assert isinstance(db.inspect(subject, table="split"), pa.Table)
        assert isinstance(db.inspect(subject), pa.Table)
    assert db.shards() == before


def test_the_log_is_shown_newest_first_and_no_longer_than_asked(db: Database, split: Table) -> None:
    records = db.inspect("log", limit=2).to_pylist()
    assert [record["command"] for record in records] == ["Commit", "Commit"]
    assert records[0]["seqno"] == records[1]["seqno"] + 1
    assert records[0]["seqno"] == db.shards()["seqno"].to_pylist()[0]


def test_a_rollup_and_its_pages_are_shown(
    open_database: Callable[..., Database], split: Table
) -> None:
    machine: Any = split._handle.store.txns.machine
    for number in range(200):
        split.append({"sensor": [number], "at": [9]})
    machine.maybe_rollup()
    split.append({"sensor": [0], "at": [10]})
    db = open_database()
    assert db.inspect("rollups").num_rows >= 1
    assert "entries" in db.inspect("pages")["collection"].to_pylist()


def test_what_is_not_there_is_named(db: Database, split: Table) -> None:
    with pytest.raises(UsageError, match="nonsense"):
        db.inspect("nonsense")
    with pytest.raises(UsageError, match="nosuch"):
        db.inspect("part", key="nosuch")
    with pytest.raises(UsageError, match="needs its key"):
        db.inspect("part")
    with pytest.raises(UsageError, match="soon"):
        db.plan_compaction(strategy="soon")
