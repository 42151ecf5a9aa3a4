"""Bulk import: parts the rows by key on Spark, sorts and writes them there, commits once here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from strandline.database import Database
from strandline.distributed import Batch, BulkWrite, PartWriter, Sample, Sampler, begin_write
from strandline.pipeline.frames import fitted, frame_of, range_number
from strandline.pipeline.tasks import OverRows, results_of
from strandline.pipeline.watching import Progress, progress_of
from strandline.times import Commit

__all__ = ["import_table"]


def import_table(
    spark: SparkSession,
    db: Database,
    table: str,
    source: Any,
    *,
    token: tuple[str, int] | None = None,
    metadata: dict[str, str] | None = None,
    progress: Progress | bool | None = None,
    timeout: float | None = None,
) -> Commit:
    """Imports a DataFrame, or files, into a table, in one commit: all rows or none.

    `source` is a DataFrame, or a path or paths of Parquet, CSV (with a header) or JSON lines.
    Columns are matched by name; one that is missing and may be null is filled with nulls. Of a
    keyed table, the last row of a key wins; which one that is among files, or rows that Spark
    moved, is arbitrary. A table with too few leaves for the rows is split first. `progress` is
    called with (what, tasks done, tasks in all); True shows bars. `timeout` in seconds; None: as
    long as it takes. With `token`, an import that was committed before gives its commit.

    Raises `SchemaMismatch` (unknown or missing columns, null keys, values that do not fit),
    `UnknownTable`, `UsageError`, `DeadlineExceeded`; then nothing is committed.
    """
    begun = begin_write(db, table, "import", token=token, metadata=metadata, timeout=timeout)
    if isinstance(begun, Commit):
        return begun
    with progress_of(progress) as tell:
        written = _written(spark, begun, source, tell)
    return begun.commit(written)


def _written(spark: SparkSession, write: BulkWrite, source: Any, tell: Progress) -> Sequence[Batch]:
    """What tasks wrote of all rows of the source."""
    schema = write.schema
    frame = fitted(frame_of(spark, source, schema), schema)

    def collected(parted: DataFrame, work: Sampler | PartWriter, what: str) -> list[Any]:
        return results_of(spark, parted, OverRows(work), what, tell, write.deadline)

    samples: list[Sample] = collected(frame.select(*schema.row_keys), write.sampler(), "sampling")
    if not any(sample.rows for sample in samples):
        return []
    bounds, writer = write.plan(samples, _cores(spark))
    parted = frame.repartitionById(len(bounds) + 1, range_number(schema, bounds))
    written: list[Batch] = collected(parted, writer, "importing")
    return written


def _cores(spark: SparkSession) -> int:
    context = getattr(spark, "_sc", None)
    if context is not None:
        return int(context.defaultParallelism)
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
