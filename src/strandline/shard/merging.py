"""Runs one compaction job: reads its inputs, merges them, writes its outputs. Commits nothing.

The same function runs in the process that planned the job, and in a Spark executor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

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
from strandline.state.model import L0, Part, Reference, TableVersion
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
    references = [reference for _, reference in job.inputs]
    rows: Sequence[pa.Table | Iterator[pa.RecordBatch]]
    if job.size <= _IN_MEMORY_BYTES:
        rows = [_read(shop, schema, reference, timeout) for reference in references]
    else:
        rows = _Ahead(shop, schema, references, timeout).each()
    sources = [_source(*pair) for pair in zip(references, rows, strict=True)]
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


def _source(reference: Reference, rows: pa.Table | Iterator[pa.RecordBatch]) -> Source:
    part = reference.part
    ours = frozenset(n for n, has in ((DIFF, part.has_diff), (END, part.has_end)) if has)
    return Source(rows, reference.time, part.distinct, reference.rows_from, ours)


def _columns(schema: TableSchema, part: Part) -> list[str]:
    ours = ((TIME, part.time_max is not None), (DIFF, part.has_diff), (END, part.has_end))
    return [*schema.arrow.names, *(name for name, there in ours if there)]


def _read(shop: Workshop, schema: TableSchema, reference: Reference, timeout: float) -> pa.Table:
    part = reference.part
    columns = _columns(schema, part)
    interval = reference.interval
    return shop.reader.read(part, schema, columns=columns, interval=interval, timeout=timeout)


class _Ahead:
    """The rows of several references one after the other, of which the next are decoded already.

    Many parts are small: to read ahead within each would be to wait at each.
    """

    def __init__(
        self, shop: Workshop, schema: TableSchema, references: Sequence[Reference], timeout: float
    ) -> None:
        self._shop = shop
        self._schema = schema
        self._references = references
        self._timeout = timeout
        self._tables = shop.env.stream(
            lambda piece: (piece[0], piece[1](timeout)), self._pieces(), ahead=shop.threads + 2
        )
        self._next = next(self._tables, None)

    def each(self) -> list[Iterator[pa.RecordBatch]]:
        """The rows of each reference, to be exhausted before the next."""
        return [self._of(number) for number in range(len(self._references))]

    def _of(self, number: int) -> Iterator[pa.RecordBatch]:
        while self._next is not None and self._next[0] == number:
            batches = self._next[1].combine_chunks().to_batches()
            self._next = next(self._tables, None)
            yield from batches

    def _pieces(self) -> Iterator[tuple[int, Callable[[float], pa.Table]]]:
        for number, reference in enumerate(self._references):
            part = reference.part
            for load in self._shop.reader.chunks(
                part,
                self._schema,
                columns=_columns(self._schema, part),
                intervals=[reference.interval],
                timeout=self._timeout,
            ):
                yield number, load
