"""Tables as DataFrames at native speed: settled parts by Spark's own reader, the rest beside.

Settled is a part all of whose rows are live at the time that is read. What has to be merged, or
is in few rows that no part has yet, is added by the data source and as local rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from strandline.database import Database
from strandline.distributed import (
    PATIENCE_SECONDS,
    Read,
    ReadSplit,
    deadline_of,
    plan_read,
    read_of,
    reads_of_all,
)
from strandline.env import Deadline
from strandline.pipeline.frames import arrow_for_spark, quoted, spark_schema
from strandline.pipeline.source import StrandlineSource, splits_option
from strandline.pipeline.tasks import tasks_on

__all__ = ["register", "table", "views"]

_GLOB = re.compile(r"[\[\]{}*?\\]")
"""What Spark takes for more than a name in a path."""


def register(spark: SparkSession) -> None:
    """Makes `format("strandline")` known to a session; doing it again is harmless."""
    spark.dataSource.register(StrandlineSource)


def table(
    spark: SparkSession, db: Database, name: str, *, as_of: Any = None, timeout: float | None = None
) -> DataFrame:
    """A table as a DataFrame, as of one moment, which is fixed now (None: the latest time).

    Parts that hold live rows only are left to Spark's Parquet reader, with its pruning, once this
    process had them verified whole: the first time a part is met, and again if its file was
    written to. `timeout` (seconds) is for planning, and for verifying if it is given. Errors:
    `UnknownTable`, `AsOfTooOld`, `AsOfInFuture`, `Corruption` (something stored is damaged).
    """
    deadline, patience = _deadlines(db, timeout)
    read = read_of(db, name, as_of=as_of, deadline=deadline)
    return _frame(spark, db, read, deadline, patience)


def views(
    spark: SparkSession, db: Database, *, as_of: Any = None, timeout: float | None = None
) -> list[str]:
    """A temporary view for every table, all as of one moment; their names."""
    deadline, patience = _deadlines(db, timeout)
    reads = reads_of_all(db, as_of=as_of, deadline=deadline)
    for read in reads:
        frame = _frame(spark, db, read, deadline, patience)
        frame.createOrReplaceTempView(quoted(read.version.name))
    return [read.version.name for read in reads]


def _deadlines(db: Database, timeout: float | None) -> tuple[Deadline, Deadline]:
    """By when to have planned, and by when to have verified, which takes as long as data are."""
    patience = deadline_of(db, PATIENCE_SECONDS if timeout is None else timeout)
    return deadline_of(db, timeout), patience


def _frame(
    spark: SparkSession, db: Database, read: Read, deadline: Deadline, patience: Deadline
) -> DataFrame:
    plan = plan_read(read, db, files=not _GLOB.search(db.url), deadline=deadline)
    schema = spark_schema(plan.read.schema)
    frames = []
    if plan.files:
        plan.verify(tasks_on(spark, "verifying", patience), patience)
        reader = spark.read.schema(schema)
        # Without it Spark takes damaged pages for good ones.
        reader = reader.option("parquet.page.verify-checksum.enabled", "true")
        # It also keeps directories named like column=value from becoming columns.
        reader = reader.option("recursiveFileLookup", "true")
        frames.append(reader.parquet(*(f"file:{path}" for path in plan.files)))
    if plan.rows:
        arrow = arrow_for_spark(schema)
        rows = pa.concat_tables([rows.cast(arrow) for rows in plan.rows])
        frames.append(spark.createDataFrame(rows, schema))
    if plan.splits:
        frames.append(_merged(spark, plan.read, plan.splits))
    if not frames:
        frames.append(spark.createDataFrame([], schema))
    return reduce(DataFrame.unionAll, frames)


def _merged(spark: SparkSession, read: Read, splits: Sequence[ReadSplit]) -> DataFrame:
    """What has to be merged, by the data source."""
    register(spark)
    source = spark.read.format("strandline").option("url", read.url)
    source = source.option("table", read.version.name).option("asOf", str(read.as_of))
    return source.option("splits", splits_option(splits)).load()
