"""Spark reads the present without its history, and the past with it."""

import pytest
from pyspark.sql import SparkSession

from strandline.database import Database
from strandline.pipeline.compacting import compact
from strandline.read.reading import Reading
from strandline.read.want import Want
from strandline.table import Table
from strandline.txn.view import view_of
from tests.spark.helpers import rows
from tests.spark.test_tables import Read, both_kinds, both_ways, history, natively
from tests.support.deadlines import within

pytestmark = pytest.mark.spark


def parts_of_history(table: Table) -> int:
    store = table._handle.store
    machine = store.data(table._version.table)
    state = machine.look(within(60.0))
    found: int = state.ask(lambda s: sum(r.part.has_end for _, r in s.references.range()))
    return found


@both_ways
@both_kinds
def test_every_moment_is_read_the_same_once_history_is_apart(
    spark: SparkSession, db: Database, read: Read, kind: str
) -> None:
    table, commits = history(db, kind)
    before = [rows(table.as_of(commit).scan().to_arrow()) for commit in commits]
    assert compact(spark, db, "stock", strategy="full")[0].discarded == 0
    assert parts_of_history(table) > 0
    assert [rows(table.as_of(commit).scan().to_arrow()) for commit in commits] == before
    assert [rows(read(spark, db, commit)) for commit in commits] == before
    assert rows(read(spark, db, None)) == before[-1]


@both_kinds
def test_the_present_is_left_to_sparks_own_reader(
    spark: SparkSession, db: Database, kind: str
) -> None:
    table, _ = history(db, kind)
    compact(spark, db, "stock", strategy="full")
    view = view_of(table._handle.store, table._version.table, None, deadline=within(60.0))
    reading = Reading.of(table._handle, view, Want(), table._handle.deadline(60.0))
    assert reading.tasks
    assert all(reading.question.is_clean(task) for task in reading.tasks)
    current = [r.part.key for task in reading.tasks for r in task.references]
    files = {name.rpartition("/")[2] for name in natively(spark, db, None).inputFiles()}
    assert files == {key.rpartition("/")[2] for key in current}
