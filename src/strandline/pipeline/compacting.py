"""Compaction on Spark: every merge is a task."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from strandline.database import Database
from strandline.distributed import (
    PATIENCE_SECONDS,
    CompactionReport,
    TableRunner,
    checked_database,
    job_runner,
)
from strandline.pipeline.tasks import tasks_on

__all__ = ["compact", "runner"]


def compact(
    spark: SparkSession,
    db: Database,
    table: str | None = None,
    *,
    strategy: str | None = None,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
    timeout: float | None = None,
) -> list[CompactionReport]:
    """Compacts a table, or all that are online, with the merging done by Spark's executors.

    The same as `db.compact(engine=spark)`, without a deadline unless `timeout` (seconds) is given.
    `progress` is called with (jobs done, jobs in all) of each table.
    """
    return checked_database(db).compact(
        table,
        strategy=strategy,
        force=force,
        engine=spark,
        progress=progress,
        timeout=PATIENCE_SECONDS if timeout is None else timeout,
    )


def runner(spark: SparkSession) -> TableRunner:
    """What runs the compaction jobs of tables on that session."""
    # The caller's deadline is looked at between jobs, as for those of one process.
    return job_runner(tasks_on(spark, "compacting"))
