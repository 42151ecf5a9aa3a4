"""Bulk import: every row once, in order, or nothing."""

from bisect import bisect_right
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from strandline.connect import connect
from strandline.database import Database
from strandline.distributed import ranges
from strandline.errors import DeadlineExceeded, SchemaMismatch, UsageError
from strandline.parts.keys import KeyCodec
from strandline.parts.schema import new_schema
from strandline.pipeline import importing
from strandline.pipeline.frames import range_number, spark_schema
from strandline.pipeline.importing import import_table
from strandline.pipeline.tasks import OverRows
from tests.spark.helpers import rows

pytestmark = pytest.mark.spark

READINGS = pa.schema([("sensor", pa.int64()), ("at", pa.int32()), ("value", pa.float64())])


def readings(count: int) -> pa.Table:
    """Rows in a scattered order, some of them equal."""
    sensors = [(i * 7919) % 1_000 - 500 for i in range(count)]
    columns: dict[str, Any] = {
        "sensor": sensors,
        "at": [i % 13 for i in range(count)],
        "value": [float(i % 5) for i in range(count)],
    }
    return pa.table(columns, READINGS)


@pytest.fixture
def many_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small imports are parted as large ones are."""
    monkeypatch.setattr(ranges, "_LEAF_ROWS_MIN", 200)


def test_a_dataframe_arrives_sorted_and_whole(
    spark: SparkSession, db: Database, many_ranges: None
) -> None:
    table = db.create_table("readings", READINGS, row_keys=["sensor"], sort_keys=["at"])
    data = readings(5_000)
    commit = import_table(spark, db, "readings", spark.createDataFrame(data).repartition(3))
    assert (commit.rows, commit.tables) == (5_000, ("readings",))
    found = table.scan().to_arrow()
    assert rows(found) == rows(data)
    keys = list(zip(found["sensor"].to_pylist(), found["at"].to_pylist(), strict=True))
    assert keys == sorted(keys)
    parts = table.parts()
    assert parts.num_rows >= 4
    leaves = table.partitions()
    assert leaves.num_rows == 2
    assert leaves["level_zero"].to_pylist() == [0, 0]
    # Of rows spread evenly, no leaf has much more than its share.
    assert max(leaves["rows"].to_pylist()) < 3_500


def test_parquet_csv_and_json_say_the_same(
    spark: SparkSession, db: Database, tmp_path: Path
) -> None:
    data = readings(300)
    pq.write_table(data, tmp_path / "a.parquet")
    frame = spark.createDataFrame(data).select("value", "sensor", "at")
    frame.write.option("header", True).csv(str(tmp_path / "a.csv"))
    frame.write.json(str(tmp_path / "a.json"))
    for source in ("a.parquet", "a.csv", "a.json"):
        table = db.create_table(source[2:], READINGS, row_keys="sensor", sort_keys="at")
        commit = import_table(spark, db, source[2:], str(tmp_path / source))
        assert commit.rows == 300
        assert rows(table.scan().to_arrow()) == rows(data)


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "string": (pa.string(), ["", "a", "z", "é", "\U0001f600", "\uffee", "a\x00", "A"]),
    "binary": (pa.binary(), [b"", b"\x00", b"\x7f", b"\x80", b"\xff", b"\xff\x00", b"a"]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1, 0, -1, 1, 255, 256, -256]),
    "int8": (pa.int8(), [-128, 127, 0, -1, 1]),
    "uint64": (pa.uint64(), [0, 1, 2**63, 2**64 - 1, 2**63 - 1]),
    "decimal": (pa.decimal128(10, 2), [Decimal("-1.50"), Decimal("99999999.99"), Decimal("0.01")]),
    "date": (
        pa.date32(),
        [date(1, 1, 1), date(1582, 10, 10), date(1969, 12, 31), date(9999, 1, 1)],
    ),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        [datetime(year, 12, 31, 23, 59, 59, 999999, tzinfo=UTC) for year in (1, 1969, 2026)],
    ),
    "local": (pa.timestamp("us"), [datetime(1969, 1, 1), datetime(2026, 6, 1, 12)]),  # noqa: DTZ001
    "flag": (pa.bool_(), [True, False]),
}


@pytest.mark.parametrize("name", KEYS)
def test_spark_parts_rows_by_the_order_that_keys_have(spark: SparkSession, name: str) -> None:
    kind, values = KEYS[name]
    pairs = [(value, second) for value in values for second in ("", "b", "\U0001f600")]
    schema = new_schema(pa.schema([("k", kind), ("s", pa.string())]), ["k", "s"])
    codec = KeyCodec(schema)
    bounds = sorted({*map(codec.encode, pairs[::2]), codec.encode(pairs[1][:1])} - {b""})
    first, second = zip(*pairs, strict=True)
    columns = [pa.array(first, kind), pa.array(second, pa.string())]
    target = spark_schema(schema.arrow)
    arrow = pa.table(columns, names=["k", "s"])
    if name == "uint64":
        arrow = arrow.set_column(0, "k", arrow["k"].cast(pa.decimal128(20, 0)))
    frame = spark.createDataFrame(arrow, target)
    found = frame.select(range_number(schema, bounds).alias("n")).toArrow()["n"].to_pylist()
    assert found == [bisect_right(bounds, codec.encode(pair)) for pair in pairs]


@pytest.mark.parametrize("name", ["string", "binary", "decimal", "date", "uint64"])
def test_keys_of_every_type_arrive(
    spark: SparkSession, db: Database, many_ranges: None, name: str, tmp_path: Path
) -> None:
    kind, values = KEYS[name]
    data = pa.table({"k": pa.array(values * 100, kind), "n": pa.array(range(len(values) * 100))})
    pq.write_table(data, tmp_path / "keys.parquet")
    table = db.create_table("keys", data.schema, row_keys="k")
    import_table(spark, db, "keys", str(tmp_path / "keys.parquet"))
    found = table.scan().to_arrow()
    assert rows(found) == rows(data)
    order = [KeyCodec(new_schema(data.schema, "k")).encode((k,)) for k in found["k"].to_pylist()]
    assert order == sorted(order)
    assert table.get(values[-1]).num_rows == 100


def test_of_a_keyed_table_one_row_of_each_key_is_left(
    spark: SparkSession, db: Database, many_ranges: None
) -> None:
    table = db.create_table("last", READINGS, row_keys="sensor", sort_keys="at", kind="keyed")
    table.append({"sensor": [-500], "at": [0], "value": [77.0]})
    data = readings(3_000)
    import_table(spark, db, "last", spark.createDataFrame(data))
    keys = set(zip(data["sensor"].to_pylist(), data["at"].to_pylist(), strict=True))
    found = table.scan().to_arrow()
    got = list(zip(found["sensor"].to_pylist(), found["at"].to_pylist(), strict=True))
    assert got == sorted(keys)
    assert table.get_one(-500, 0)["value"] != 77.0  # type: ignore[index]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("select cast(null as bigint) sensor, 1 at, 2d value", "'sensor' is null"),
        ("select id sensor, id + 4000000000 at, 1d value from range(100)", "column 'at'"),
        ("select 1L sensor, 1 at, 2d value, 3 more", "'more' is not in the table"),
        ("select 1L sensor, 2d value", "'at' is missing"),
        ("select 1L sensor, 1 at, 'x' value", "'value'"),
        ("select 1L sensor, 1 at, 1d value, 2d value", "twice"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_committed(
    spark: SparkSession, db: Database, query: str, says: str
) -> None:
    table = db.create_table("readings", READINGS, row_keys="sensor", sort_keys="at")
    before = db.history().num_rows
    with pytest.raises(SchemaMismatch, match=says):
        import_table(spark, db, "readings", spark.sql(query))
    assert (len(table), db.history().num_rows) == (0, before)


def test_a_csv_value_that_overflows_is_refused(
    spark: SparkSession, db: Database, tmp_path: Path
) -> None:
    table = db.create_table("readings", READINGS, row_keys="sensor", sort_keys="at")
    (tmp_path / "a.csv").write_text("sensor,at,value\n1,2,3\n1,99999999999,3\n")
    with pytest.raises(Exception, match="99999999999"):
        import_table(spark, db, "readings", str(tmp_path / "a.csv"))
    assert len(table) == 0


def fails_once(batches: Any) -> Any:
    """Gives its rows, and then fails in the first attempt of each task."""
    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0:
        raise RuntimeError("lost on purpose")


class _WorksThenFails(OverRows):
    """Samples, or writes its parts, and then fails in the first attempt."""

    def __call__(self, batches: Any) -> Any:
        yield from fails_once(super().__call__(batches))


def test_every_row_arrives_once_when_tasks_fail_and_are_tried_again(
    spark: SparkSession, db: Database, many_ranges: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = db.create_table("readings", READINGS, row_keys="sensor", sort_keys="at")
    data = readings(1_000)
    monkeypatch.setattr(importing, "OverRows", _WorksThenFails)
    commit = import_table(spark, db, "readings", spark.createDataFrame(data))
    assert commit.rows == 1_000
    assert rows(table.scan().to_arrow()) == rows(data)
    lake = Path(db.url)
    # The losers' parts are there, and the table knows nothing of them.
    assert len(list(lake.rglob("*.parquet"))) > table.parts().num_rows


def test_a_token_is_imported_once(spark: SparkSession, db: Database) -> None:
    table = db.create_table("readings", READINGS, row_keys="sensor", sort_keys="at")
    frame = spark.createDataFrame(readings(50))
    first = import_table(spark, db, "readings", frame, token=("nightly", 1))
    again = import_table(spark, db, "readings", frame, token=("nightly", 1))
    assert again.micros == first.micros
    assert len(table) == 50


def test_an_empty_import_adds_nothing(spark: SparkSession, db: Database) -> None:
    table = db.create_table("readings", READINGS, row_keys="sensor", sort_keys="at")
    assert import_table(spark, db, "readings", spark.createDataFrame(readings(0))).rows == 0
    assert len(table) == 0


def test_progress_is_told(spark: SparkSession, db: Database) -> None:
    db.create_table("readings", READINGS, row_keys="sensor", sort_keys="at")
    told: list[tuple[str, int, int]] = []
    frame = spark.createDataFrame(readings(50))
    import_table(spark, db, "readings", frame, progress=lambda *said: told.append(said))
    assert {what for what, _, _ in told} == {"sampling", "importing"}
    assert all(done <= total for _, done, total in told)


def test_an_import_past_its_deadline_is_ended_and_commits_nothing(
    spark: SparkSession, db: Database
) -> None:
    table = db.create_table("readings", READINGS, row_keys="sensor", sort_keys="at")
    endless = spark.sql("select a.id sensor, 1 at, 1d value from range(1000000) a, range(100000) b")
    with pytest.raises(DeadlineExceeded, match="timeout="):
        import_table(spark, db, "readings", endless, timeout=2.0)
    assert len(table) == 0


def test_a_database_in_memory_is_refused(spark: SparkSession) -> None:
    with connect("memory://") as db:
        db.create_table("readings", READINGS, row_keys="sensor")
        with pytest.raises(UsageError, match="use a directory"):
            import_table(spark, db, "readings", spark.createDataFrame(readings(5)))
