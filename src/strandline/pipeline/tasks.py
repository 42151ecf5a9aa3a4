"""How tasks run on Spark, and how their results and errors come back."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from strandline.distributed import PATIENCE_SECONDS, PartWriter, Sampler, TaskRunner
from strandline.env import Deadline, RealEnv
from strandline.errors import Corruption, UsageError
from strandline.pipeline.frames import unsigned
from strandline.pipeline.watching import Progress, watched

__all__ = ["OverRows", "results_of", "tasks_on", "unsigned_batches"]

R = TypeVar("R")

_RESULT = "result binary, error binary"
"""The columns in which tasks return results."""


def tasks_on(spark: SparkSession, what: str, deadline: Deadline | None = None) -> TaskRunner:
    """Runs tasks as those of one Spark job, which ends at the deadline (None: takes its time)."""

    def run(tasks: Sequence[Callable[[], R]]) -> list[R]:
        rows = [(number, bytearray(pickle.dumps(task))) for number, task in enumerate(tasks)]
        frame = spark.createDataFrame(rows, "number int, task binary")
        parted = frame.repartitionById(len(rows), "number")
        limit = deadline or Deadline(RealEnv(), PATIENCE_SECONDS)
        return results_of(spark, parted, _each, what, lambda *_: None, limit)

    return run


def results_of(
    spark: SparkSession,
    frame: DataFrame,
    work: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    what: str,
    tell: Progress,
    deadline: Deadline,
) -> list[Any]:  # as pickles are
    """What the tasks returned that go over the partitions of a frame; raises their first error."""
    with watched(spark, what, tell, deadline):
        # Of several attempts of a task, collect gives the result of one.
        rows = frame.mapInArrow(work, _RESULT).collect()
    for row in rows:
        if row.error is not None:
            raise pickle.loads(row.error)  # noqa: S301  from our own tasks
    return [pickle.loads(row.result) for row in rows]  # noqa: S301  from our own tasks


# --- in the executors


def _each(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs the tasks that a partition has, usually one."""
    for batch in batches:
        for task in batch.column("task").to_pylist():
            yield _result(pickle.loads(task))  # noqa: S301  from our own driver


@dataclass(frozen=True)
class OverRows:
    """Gives the rows of a partition to what the driver made for them."""

    work: Sampler | PartWriter

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield _result(lambda: self.work(unsigned_batches(batches, self.work.schema.arrow)))


def unsigned_batches(
    batches: Iterable[pa.RecordBatch], columns: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Rows as Spark gives them, for a table with those columns."""
    for batch in batches:
        yield from unsigned(pa.Table.from_batches([batch]), columns).to_batches()


def _result(work: Callable[[], object]) -> pa.RecordBatch:
    """What a task returns: its result, or an error that trying again does not help.

    Such an error is handed over as data, so that Spark does not repeat the task and the driver
    raises the error itself, not Spark's account of it.
    """
    result, final = None, None
    try:
        result = pickle.dumps(work())
    except (UsageError, Corruption) as error:
        final = pickle.dumps(error)
    arrays = [pa.array([each], pa.binary()) for each in (result, final)]
    return pa.RecordBatch.from_arrays(arrays, ["result", "error"])
