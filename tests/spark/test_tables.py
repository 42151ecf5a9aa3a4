"""Reading and writing tables from Spark: the data source, and tables as native DataFrames."""

import pickle
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from strandline.database import Database
from strandline.distributed import Comparisons
from strandline.pipeline.compacting import compact
from strandline.pipeline.pushed import pushed_of
from strandline.pipeline.source import StrandlineSource
from strandline.pipeline.tables import table as spark_table
from strandline.pipeline.tables import views
from strandline.table import Table
from strandline.txn.apply import apply_table
from tests.spark.helpers import rows
from tests.support.deadlines import within

pytestmark = pytest.mark.spark

STOCK = pa.schema(
    [
        ("item", pa.string()),
        ("size", pa.int32()),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("count", pa.int64()),
    ]
)
Read = Callable[[SparkSession, Database, Any], DataFrame]


def by_source(spark: SparkSession, db: Database, as_of: Any) -> DataFrame:
    reader = spark.read.format("strandline").option("url", db.url).option("table", "stock")
    return (reader if as_of is None else reader.option("asOf", str(as_of.micros))).load()


def natively(spark: SparkSession, db: Database, as_of: Any) -> DataFrame:
    return spark_table(spark, db, "stock", as_of=as_of)


both_ways = pytest.mark.parametrize("read", [by_source, natively])
both_kinds = pytest.mark.parametrize("kind", ["rows", "keyed"])


def stock(start: int, end: int, count: int = 1) -> pa.Table:
    span = range(start, end)
    columns: dict[str, Any] = {
        "item": [f"item-{i:04d}" for i in span],
        "size": [i % 3 for i in span],
        "day": [date(2026, 1, 1 + i % 28) for i in span],
        "price": [Decimal(i) / 4 for i in span],
        "count": [None if i % 10 == 9 else count for i in span],
    }
    return pa.table(columns, STOCK)


def apply(table: Table) -> None:
    apply_table(table._handle.store, table._version.table, deadline=within(60.0))


def shape(table: Table) -> list[Any]:
    """What is stored where."""
    return list(table.parts().select(["place", "rows", "first", "last"]).to_pylist())


def history(db: Database, kind: str) -> tuple[Table, list[Any]]:
    """A table with parts in two leaves, parts that overlap, retractions and unapplied commits."""
    table = db.create_table(
        "stock", STOCK, row_keys="item", sort_keys="size", kind=kind, split_points=["item-2000"]
    )
    commits = [table.append(stock(0, 4_000))]
    apply(table)
    commits.append(table.append(stock(500, 600, count=2)))
    apply(table)
    commits.append(table.delete(where="item in ('item-0007', 'item-3000')"))
    commits.append(table.append(stock(3_990, 4_010, count=3)))
    return table, commits


@both_ways
@both_kinds
def test_every_moment_is_read_as_the_database_reads_it(
    spark: SparkSession, db: Database, read: Read, kind: str
) -> None:
    table, commits = history(db, kind)
    for commit in commits:
        expected = rows(table.as_of(commit).scan().to_arrow())
        assert rows(read(spark, db, commit)) == expected
    apply(table)
    assert rows(read(spark, db, None)) == rows(table.scan().to_arrow())
    assert rows(read(spark, db, commits[0])) == rows(stock(0, 4_000))
    assert read(spark, db, None).columns == STOCK.names


@both_ways
@pytest.mark.parametrize(
    "condition",
    [
        "item = 'item-0550'",
        "item >= 'item-3995'",
        "item > 'item-1998' and item <= 'item-2001' and size = 0",
        "item in ('item-0001', 'item-0550', 'nothing')",
        "day = date'2026-01-05' and price < 10.25",
        "count is null and price > 900",
        "count = 2 or item = 'item-0001'",
        "item like 'item-055%' and count <=> 2",
        "not (size = 1) and price between 100 and 101",
    ],
)
def test_filters_give_what_the_same_condition_gives_in_the_database(
    spark: SparkSession, db: Database, read: Read, condition: str
) -> None:
    table, _ = history(db, "rows")
    where = condition.replace("count <=> 2", "count = 2")
    expected = rows(table.scan(where=where).to_arrow())
    assert expected
    assert rows(read(spark, db, None).where(condition)) == expected


@both_ways
def test_an_empty_table_has_columns_and_no_rows(
    spark: SparkSession, db: Database, read: Read
) -> None:
    db.create_table("stock", STOCK, row_keys="item")
    frame = read(spark, db, None)
    assert (frame.columns, frame.collect()) == (STOCK.names, [])


def test_pushed_comparisons_become_what_the_planner_understands() -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNull

    from strandline.parts.schema import new_schema

    schema = new_schema(STOCK, "item", "size")
    filters = [
        EqualTo(("item",), "a"),
        GreaterThan(("size",), 2**40),  # no value of the column
        In(("count",), (1, None, 2)),
        IsNull(("count",)),
        EqualTo(("item", "inner"), "a"),
    ]
    pushed = pushed_of(filters, schema)
    assert isinstance(pushed, Comparisons)
    assert [(c.column, c.op, c.values) for c in pushed.comparisons] == [
        ("item", "=", ("a",)),
        ("count", "in", (1, 2)),
    ]
    assert pushed.select(stock(0, 50)).num_rows == 0


def test_what_all_tasks_have_in_common_does_not_travel_with_each(db: Database) -> None:
    columns = {"k": [1], **{f"value_{n}": [1] for n in range(100)}}
    db.create_table("wide", pa.table(columns).schema, row_keys="k").append(columns)
    source = StrandlineSource({"url": db.url, "table": "wide"})
    reader = source.reader(source.schema())
    [partition] = reader.partitions()
    assert len(pickle.dumps(partition)) < 300
    assert len(list(reader.read(partition))) == 1


def test_a_narrower_schema_reads_only_its_columns(spark: SparkSession, db: Database) -> None:
    table, _ = history(db, "rows")
    reader = spark.read.format("strandline").option("url", db.url).option("table", "stock")
    frame = reader.schema("count long, item string").load()
    assert rows(frame) == rows(table.scan(columns=["count", "item"]).to_arrow())
    with pytest.raises(Exception, match="no such column"):
        reader.schema("colour string").load().collect()


@both_kinds
def test_settled_parts_are_read_by_spark_itself(
    spark: SparkSession, db: Database, kind: str
) -> None:
    table = db.create_table(
        "stock", STOCK, row_keys="item", sort_keys="size", kind=kind, split_points=["item-2000"]
    )
    table.append(stock(0, 4_000))
    apply(table)
    # Few rows that no part has yet do not send what is settled through Python.
    table.append(stock(5_000, 5_010))
    frame = spark_table(spark, db, "stock")
    plan = frame._jdf.queryExecution().toString()
    assert ("parquet" in plan.lower(), "strandline" in plan.lower()) == (True, False)
    assert rows(frame) == rows(table.scan().to_arrow())
    # What is retracted does, for the keys between.
    table.delete(keys=["item-3000"] if kind == "rows" else [("item-3000", 0)])
    frame = spark_table(spark, db, "stock")
    assert "strandline" in frame._jdf.queryExecution().toString().lower()
    assert rows(frame) == rows(table.scan().to_arrow())


def test_a_view_for_every_table_at_one_moment(spark: SparkSession, db: Database) -> None:
    table, commits = history(db, "keyed")
    db.create_table("other names", stock(0, 5), row_keys="item")
    assert views(spark, db) == ["other names", "stock"]
    assert spark.sql("select count(*) from stock").first()[0] == len(table)  # type: ignore[index]
    assert spark.table("`other names`").count() == 5
    assert views(spark, db, as_of=commits[0]) == ["stock"]
    assert spark.table("stock").count() == 4_000


@both_ways
def test_a_damaged_part_is_named_and_never_read_wrong(
    spark: SparkSession, db: Database, read: Read
) -> None:
    table = db.create_table("stock", STOCK, row_keys="item", sort_keys="size")
    table.append(stock(0, 20_000))
    apply(table)
    key = table.parts()["part"][0].as_py()
    path = next(Path(db.url).rglob(f"*{Path(key).name}*"))
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(Exception, match=path.stem):
        read(spark, db, None).selectExpr(*[f"sum(hash({c}))" for c in STOCK.names]).collect()


@both_kinds
def test_appends_and_overwrites_are_one_commit(
    spark: SparkSession, db: Database, kind: str
) -> None:
    table = db.create_table("stock", STOCK, row_keys="item", sort_keys="size", kind=kind)
    frame = spark.createDataFrame(stock(0, 300)).repartition(3)
    writer = frame.write.format("strandline").option("url", db.url).option("table", "stock")
    before = db.history().num_rows
    writer.mode("append").save()
    assert db.history().num_rows == before + 1
    assert rows(table.scan().to_arrow()) == rows(stock(0, 300))
    new = spark.createDataFrame(stock(200, 400, count=9)).repartition(2)
    writer = new.write.format("strandline").option("url", db.url).option("table", "stock")
    writer.mode("overwrite").save()
    assert db.history().num_rows == before + 2
    assert rows(table.scan().to_arrow()) == rows(stock(200, 400, count=9))


def test_a_write_that_fails_commits_nothing(spark: SparkSession, db: Database) -> None:
    table = db.create_table("stock", STOCK, row_keys="item", sort_keys="size")
    bad = spark.createDataFrame(stock(0, 100)).selectExpr(
        "if(item = 'item-0050', null, item) item", "size", "day", "price", "count"
    )
    before = db.history().num_rows
    writer = bad.write.format("strandline").option("url", db.url).option("table", "stock")
    with pytest.raises(Exception, match="'item' is null"):
        writer.mode("append").save()
    assert (len(table), db.history().num_rows) == (0, before)


@both_kinds
def test_compaction_on_spark_is_compaction_in_process(
    spark: SparkSession, db: Database, kind: str
) -> None:
    table, commits = history(db, kind)
    moments = [rows(table.as_of(commit).scan().to_arrow()) for commit in commits]
    done: list[tuple[int, int]] = []
    reports = compact(spark, db, "stock", strategy="full", progress=lambda *d: done.append(d))
    assert [report.discarded for report in reports] == [0]
    assert done == [(1, 2), (2, 2)]
    on_spark = shape(table)
    assert [rows(table.as_of(c).scan().to_arrow()) for c in commits] == moments

    db.rename_table("stock", "first")
    again, _ = history(db, kind)
    db.compact("stock", strategy="full")
    assert shape(again) == on_spark


def test_a_spark_session_is_an_engine(spark: SparkSession, db: Database) -> None:
    table, _ = history(db, "rows")
    before = rows(table.scan().to_arrow())
    reports = db.compact("stock", strategy="full", engine=spark)
    assert [report.jobs for report in reports] == [2]
    assert rows(table.scan().to_arrow()) == before
