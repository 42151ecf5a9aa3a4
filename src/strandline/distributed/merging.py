"""Compaction by tasks: every job is one; what replaces what is decided on the driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from strandline.distributed.site import Site, TaskRunner
from strandline.shard.merging import run_job
from strandline.state.commands import Output
from strandline.state.model import TableVersion
from strandline.state.plan import CompactionJob
from strandline.txn.store import Store
from strandline.upkeep.compaction import TableRunner

__all__ = ["job_runner"]

JOBS_AT_ONCE = 1_024
"""Jobs that are run together: what was merged is put in place before more is."""


def job_runner(run: TaskRunner) -> TableRunner:
    """What runs the compaction jobs of a table as tasks of an engine; for `register_engine`."""
    return lambda store, version: partial(_merged, run, store, version)


def _merged(
    run: TaskRunner, store: Store, version: TableVersion, jobs: Sequence[CompactionJob]
) -> Iterator[tuple[CompactionJob, tuple[Output, ...]]]:
    """The jobs with their outputs. Whoever applies them keeps the session alive meanwhile."""
    machine = store.data(version.table)
    for start in range(0, len(jobs), JOBS_AT_ONCE):
        site = Site.of(store, version, machine.live_session())
        batch = jobs[start : start + JOBS_AT_ONCE]
        tasks = [_Merge(site, number, job) for number, job in enumerate(batch)]
        for number, outputs in run(tasks):
            yield batch[number], outputs


@dataclass(frozen=True)
class _Merge:
    """One merge, as a task."""

    site: Site
    number: int
    job: CompactionJob

    def __call__(self) -> tuple[int, tuple[Output, ...]]:
        deadline = self.site.workplace().deadline()
        return self.number, run_job(self.site.workshop(), self.job, deadline)
