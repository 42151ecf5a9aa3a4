"""Runs one compaction job: reads its inputs, merges them, writes its outputs. Commits nothing.

The same function runs in the process that planned the job, and in a task of an engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from strandline.env import Deadline, Env
from strandline.location import Blob
from strandline.parts.files.footer import Identity
from strandline.parts.files.read import PartReader
from strandline.parts.files.write import write_parts
from strandline.parts.rows.compact import Aged, merge_compact
from strandline.parts.rows.frontier import Run, Stretch
from strandline.parts.rows.merge import Source
from strandline.parts.schema import TableSchema, own_columns
from strandline.settings import Settings
from strandline.state.commands import Output
from strandline.state.model import L0, Reference, TableVersion
from strandline.state.plan import CompactionJob

__all__ = ["Workshop", "run_job"]

_OPEN_ROWS = 1 << 20
"""About so many rows of all inputs are decoded at once; a row group of each at least."""

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


def run_job(shop: Workshop, job: CompactionJob, deadline: Deadline) -> tuple[Output, ...]:
    """The references that shall replace the job's inputs; their parts are durable by then.

    How much there is to do, nobody knows: each step has all that is left of `deadline` now.
    """
    if job.is_over:
        return ()
    each = deadline.left()
    schema = TableSchema.from_version(shop.version)
    references = [reference for _, reference in job.inputs]
    small = job.size <= _IN_MEMORY_BYTES
    runs: list[Run] = []
    nothing = pa.Table.from_batches([], schema.arrow)
    if small:
        sources = [_source(r, _read(shop, schema, r, each)) for r in references]
    else:
        sources = [_source(r, nothing) for r in references]
        count = len(references)
        # Side by side: each opens a part, which is a request or two.
        runs = shop.env.parallel(
            lambda reference: _run(shop, schema, reference, count, each), references
        )
    merged = merge_compact(
        sources,
        schema,
        since=job.since,
        split_at=job.split_at,
        markers_from=job.markers_from,
        memory_bytes=shop.settings.sort_memory_bytes,
        threads=shop.threads,
        runs=runs,
        env=None if small else shop.env,
    )
    return tuple(output for rows in merged for output in _written(shop, schema, job, rows, each))


def _written(
    shop: Workshop, schema: TableSchema, job: CompactionJob, aged: Aged, each: Deadline
) -> list[Output]:
    """One output of the merge, as parts."""
    parts = write_parts(
        shop.blob,
        shop.new_key,
        aged.rows,
        schema,
        identity=shop.identity,
        settings=shop.settings,
        deadline=each.again(),
        env=shop.env,
        threads=shop.threads,
    )
    leaf, lower = (L0, b"") if job.leaf is None else (job.leaf.id, job.leaf.interval.lower)
    newest = max(reference.time_max for _, reference in job.inputs)
    before = job.split_at if aged.age == "history" else None
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


def _source(reference: Reference, rows: pa.Table) -> Source:
    part = reference.part
    ours = frozenset(own_columns(part))
    return Source(rows, reference.time, part.distinct, reference.rows_from, ours)


def _read(shop: Workshop, schema: TableSchema, reference: Reference, each: Deadline) -> pa.Table:
    part = reference.part
    columns = [*schema.arrow.names, *own_columns(part)]
    interval = reference.interval
    return shop.reader.read(part, schema, columns=columns, interval=interval, deadline=each.again())


def _run(
    shop: Workshop, schema: TableSchema, reference: Reference, count: int, each: Deadline
) -> Run:
    """The reference's rows in stretches, shorter ones if it is one of many."""
    part = reference.part
    chunks = shop.reader.placed_chunks(
        part,
        schema,
        columns=[*schema.arrow.names, *own_columns(part)],
        intervals=[reference.interval],
        rows=_OPEN_ROWS // count,
        deadline=each.again(),
    )

    def stretch(lower: bytes, load: Callable[[Deadline], pa.Table]) -> Stretch:
        return Stretch(lower, lambda: load(each.again()))

    return Run([stretch(lower, load) for lower, load in chunks])
