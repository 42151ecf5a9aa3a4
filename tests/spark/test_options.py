"""The options of `format("strandline")`, and what is said of those that it does not take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from strandline.database import Database
from tests.spark.helpers import rows

pytestmark = pytest.mark.spark

DATA = pa.table({"k": pa.array([1, 2, 3], pa.int64()), "v": pa.array([10, 20, 30], pa.int64())})


def loaded(spark: SparkSession, path: str, **options: str) -> list[tuple[Any, ...]]:
    return rows(spark.read.format("strandline").options(**options).load(path))


def saved(spark: SparkSession, data: pa.Table, path: str, how: str, /, **options: str) -> None:
    frame = spark.createDataFrame(data)
    frame.write.format("strandline").options(**options).mode(how).save(path)


def test_a_table_is_made_written_and_read_by_options(spark: SparkSession, db: Database) -> None:
    path = f"{db.url}/stock"
    saved(spark, DATA, path, "append", rowKeys="k", kind="keyed", token="load:1")
    table = db["stock"]
    assert (table.row_keys, table.kind, len(table)) == (("k",), "keyed", 3)
    # The same token again changes nothing.
    saved(spark, DATA.slice(0, 1), path, "append", token="load:1", mode="upsert")
    saved(spark, DATA.slice(0, 1), path, "overwrite", token="load:1")
    before = db.history().num_rows
    assert rows(table.scan().to_arrow()) == [(1, 10), (2, 20), (3, 30)]
    more = pa.table({"k": [3, 4], "v": [31, 41]})
    saved(spark, more, path, "append", mode="upsert", token="load:2")
    first = db.history(1).to_pylist()[0]
    assert (first["operation"], first["rows"], db.history().num_rows) == ("upsert", 2, before + 1)
    assert loaded(spark, path, where="v > 15") == [(2, 20), (3, 31), (4, 41)]
    assert loaded(spark, path, columns="v", where="k = 4") == [(41,)]
    read = spark.read.format("strandline").option("where", "k > 1").load(path).filter("v < 40")
    assert rows(read) == [(2, 20), (3, 31)]
    saved(spark, more.slice(1), path, "overwrite", where="k > 2")
    assert loaded(spark, path) == [(1, 10), (2, 20), (4, 41)]
    first = db.history(1).to_pylist()[0]
    assert (first["operation"], first["rows"]) == ("overwrite", 2)
    micros = str(db.history(2)["commit"].to_pylist()[1])
    assert loaded(spark, path, as_of=str(int(micros[1:], 16))) == [
        (1, 10),
        (2, 20),
        (3, 31),
        (4, 41),
    ]


def test_errors_are_ours_and_short(spark: SparkSession, db: Database) -> None:
    db.create_table("stock", DATA, row_keys="k")
    path = f"{db.url}/stock"
    attempts: list[tuple[Callable[[], Any], str]] = [
        (lambda: loaded(spark, path, tokn="a:1"), "did you mean 'token'"),
        (lambda: loaded(spark, f"{db.url}/stok"), "did you mean 'stock'"),
        (lambda: loaded(spark, path, where="w = 1"), "w"),
        (lambda: saved(spark, DATA, f"{db.url}/new", "append"), "rowKeys"),
        (lambda: saved(spark, DATA, path, "append", mode="upsert"), "use|leave"),
        # Spark's own, which says what to write.
        (lambda: saved(spark, DATA, path, "errorifexists"), "Append.*Overwrite"),
    ]
    for attempt, said in attempts:
        with pytest.raises(Exception, match=said) as caught:
            attempt()
        assert len(str(caught.value).splitlines()) <= 25, str(caught.value)
    assert len(db["stock"]) == 3
