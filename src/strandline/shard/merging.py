"""Runs one compaction job: reads its inputs, merges them, writes its outputs. Commits nothing.

The same function runs in the process that planned the job, and in a Spark executor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strandline.env import Env
from strandline.location import Blob
from strandline.parts.compact import Run, merge_compact
from strandline.parts.footer import Identity
from strandline.parts.merge import Source
from strandline.parts.read import PartReader
from strandline.parts.schema import DIFF, END, TIME, TableSchema
from strandline.parts.write import write_parts
from strandline.settings import Settings
from strandline.state.commands import Output
from strandline.state.model import L0, Reference, TableVersion
from strandline.state.plan import CompactionJob

__all__ = ["Workshop", "run_job"]

_IN_MEMORY_BYTES = 16 << 20
"""Inputs of no more stored bytes are merged as tables, which starts faster than a stream."""


@dataclass(frozen=True, slots=True)
class Workshop:
    """What a job needs besides itself, wherever it runs."""

    blob: Blob
    reader: PartReader
    env: Env
    settings: Settings
    version: TableVersion
    identity: Identity
    new_key: Callable[[], str]
    threads: int


def run_job(shop: Workshop, job: CompactionJob, *, timeout: float) -> tuple[Output, ...]:
    """The references that shall replace the job's inputs; their parts are durable by then."""
    if job.is_over:
        return ()
    schema = TableSchema.from_version(shop.version)
    small = job.size <= _IN_MEMORY_BYTES
    sources = [_source(shop, schema, ref, small=small, timeout=timeout) for _, ref in job.inputs]
    runs = merge_compact(
        sources,
        schema,
        since=job.since,
        split_at=job.split_at,
        markers_from=job.markers_from,
        memory_bytes=shop.settings.sort_memory_bytes,
        threads=shop.threads,
    )
    return tuple(output for run in runs for output in _written(shop, schema, job, run, timeout))


def _written(
    shop: Workshop, schema: TableSchema, job: CompactionJob, run: Run, timeout: float
) -> list[Output]:
    """One output of the merge, as parts."""
    parts = write_parts(
        shop.blob,
        shop.new_key,
        run.rows,
        schema,
        identity=shop.identity,
        settings=shop.settings,
        timeout=timeout,
        env=shop.env,
        threads=shop.threads,
    )
    leaf, lower = (L0, b"") if job.leaf is None else (job.leaf.id, job.leaf.interval.lower)
    newest = max(reference.time_max for _, reference in job.inputs)
    before = job.split_at if run.age == "history" else None
    return [
        Output(
            leaf,
            lower,
            part,
            newest if part.time_max is None else part.time_max,
            reads_before=before,
        )
        for part in parts
    ]


def _source(
    shop: Workshop, schema: TableSchema, reference: Reference, *, small: bool, timeout: float
) -> Source:
    columns = [*schema.arrow.names, TIME, DIFF, END]
    read = shop.reader.read if small else shop.reader.batches
    data = read(
        reference.part, schema, columns=columns, interval=reference.interval, timeout=timeout
    )
    return Source(data, reference.time, reference.part.distinct, reference.rows_from)
