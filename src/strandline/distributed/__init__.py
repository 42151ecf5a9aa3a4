"""Work on tables in many processes: what an engine such as Spark, Ray or Dask is built on.

A *driver* has the database open: it plans, and it commits. A *task* runs in any process that
reaches the database. It has what travelled there in a pickle, and opens the rest by its address.

- Read: `plan_read` on the driver gives a `ReadPlan`. Its splits travel, and each gives its rows in
  a task (`ReadSplit.tables`).
- Write: `begin_write` on the driver gives a `BulkWrite`, which keeps the session of its parts alive
  while it lives. Its `Sampler` and then its `PartWriter` travel and are called with the rows of a
  task; `BulkWrite.commit` makes one commit of what the writers returned. Where one process begins
  a write and another commits it, that is a `Handover`.
- Compact: `register_engine` takes what `job_runner` makes of a `TaskRunner`. Then
  `Database.compact(engine=…)` claims the table, plans the merges on the driver, has each run as a
  task, and applies it there; the session is kept alive meanwhile.

Tasks that write and merge need the objects alone; those that read need the log as well.
"""

from strandline.distributed.merging import job_runner
from strandline.distributed.reading import (
    Comparison,
    Comparisons,
    Read,
    ReadPlan,
    ReadSplit,
    plan_read,
    read_of,
    reads_of_all,
)
from strandline.distributed.site import (
    PATIENCE_SECONDS,
    TableVersion,
    TaskRunner,
    check_reachable,
    checked_database,
    deadline_of,
    opened,
    schema_of,
    table_of,
)
from strandline.distributed.writing import (
    Batch,
    BulkWrite,
    Handover,
    PartWriter,
    Sample,
    Sampler,
    begin_write,
)
from strandline.upkeep.compaction import CompactionReport, TableRunner, register_engine

__all__ = [
    "PATIENCE_SECONDS",
    "Batch",
    "BulkWrite",
    "CompactionReport",
    "Comparison",
    "Comparisons",
    "Handover",
    "PartWriter",
    "Read",
    "ReadPlan",
    "ReadSplit",
    "Sample",
    "Sampler",
    "TableRunner",
    "TableVersion",
    "TaskRunner",
    "begin_write",
    "check_reachable",
    "checked_database",
    "deadline_of",
    "job_runner",
    "opened",
    "plan_read",
    "read_of",
    "reads_of_all",
    "register_engine",
    "schema_of",
    "table_of",
]
