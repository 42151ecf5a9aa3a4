"""Compaction on Spark: every job is a task; what replaces what is decided here, by the driver."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from strandline.database import Database
from strandline.env import Deadline
from strandline.pipeline.site import (
    PATIENCE_SECONDS,
    RESULT,
    Site,
    checked_results,
    guarded,
    handle_of,
    result_batch,
)
from strandline.pipeline.watching import watched
from strandline.shard.merging import run_job
from strandline.state.commands import Output
from strandline.state.model import TableVersion
from strandline.state.plan import CompactionJob
from strandline.txn.store import Store
from strandline.upkeep.compaction import CompactionReport, JobRunner
from strandline.upkeep.compaction import compact as compact_tables

__all__ = ["SparkRunner", "compact", "runner"]

JOBS_AT_ONCE = 1_024
"""Jobs in one Spark job: what was merged is put in place before more is."""


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
    handle = handle_of(db)
    deadline = handle.deadline(PATIENCE_SECONDS if timeout is None else timeout)
    names = None if table is None else [table]
    return compact_tables(
        handle,
        names,
        strategy=strategy,
        force=force,
        engine=spark,
        progress=progress,
        deadline=deadline,
    )


def runner(spark: SparkSession, store: Store, version: TableVersion) -> JobRunner:
    """What runs the compaction jobs of a table on that session."""
    return SparkRunner(spark, store, version)


class SparkRunner:
    """Runs compaction jobs in executors, a task each; a `JobRunner`."""

    def __init__(self, spark: SparkSession, store: Store, version: TableVersion) -> None:
        self._spark = spark
        self._store = store
        self._version = version

    def __call__(
        self, jobs: Sequence[CompactionJob]
    ) -> Iterator[tuple[CompactionJob, tuple[Output, ...]]]:
        for start in range(0, len(jobs), JOBS_AT_ONCE):
            yield from self._run(jobs[start : start + JOBS_AT_ONCE])

    def _run(
        self, jobs: Sequence[CompactionJob]
    ) -> Iterator[tuple[CompactionJob, tuple[Output, ...]]]:
        # Pickled, as all is that goes between Spark's driver and its Python workers.
        rows = [(number, bytearray(pickle.dumps(job))) for number, job in enumerate(jobs)]
        frame = self._spark.createDataFrame(rows, "number int, job binary")
        machine = self._store.data(self._version.table)
        site = Site.of_store(self._store, self._version, machine.live_session())
        tasks = frame.repartitionById(len(rows), "number").mapInArrow(_Merging(site), RESULT)
        env = self._store.env
        # The caller's deadline is looked at between jobs, as for those of one process.
        deadline = Deadline(env, PATIENCE_SECONDS)
        with watched(self._spark, env, "compacting", lambda *_: None, deadline):
            results = checked_results(tasks.collect())
        for result in results:
            number, outputs = pickle.loads(result)  # noqa: S301  from our own task
            yield jobs[number], outputs


@dataclass(frozen=True)
class _Merging:
    """Runs the jobs that a task gets, usually one."""

    site: Site

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                yield result_batch(*guarded(lambda row=row: self._merge(**row)))  # type: ignore[misc]

    def _merge(self, number: int, job: bytes) -> bytes:
        wanted = pickle.loads(job)  # noqa: S301  from our own driver
        outputs = run_job(self.site.workshop(), wanted, self.site.deadline())
        return pickle.dumps((number, outputs))
