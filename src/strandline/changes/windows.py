"""All changes of some tables in a span of times: read, sorted, and cut where they are many."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from strandline.changes.differences import Difference, Wanted
from strandline.changes.spans import Span, Spans
from strandline.location import BlobMissing
from strandline.parts.rows.sort import sort_stream, sort_table
from strandline.parts.schema import TIME
from strandline.shard.missing import lost, state_without
from strandline.txn.handle import Handle

__all__ = ["in_tables", "in_whole_times", "read_whole"]

_Sorted: TypeAlias = pa.Table | Iterator[pa.RecordBatch]
"""A table, or a long stream."""

_CHANGE_BYTES = 32 << 20
"""Changes that take no more are delivered at once; more are sorted on disk and come in pieces."""

_CHANGE_ROWS = 262_144
"""Rows of a change at which the next one begins, where there are more than can be held."""


def read_whole(
    handle: Handle,
    wanted: Mapping[str, Wanted],
    spans: Spans,
    again: Callable[[Collection[str]], Spans],
) -> tuple[dict[str, _Sorted], Spans]:
    """All changes in the spans, of each table sorted by time and then key.

    SUBTLE: nothing is delivered before everything was read (the streams are sorted). So where a
    part is gone, because its table was compacted and vacuumed meanwhile, all is read anew from
    what is stored now, which has the same updates; at times up to since it has not, and then
    `again` says so. Only of such tables: what is stored of one that is idle ends before that.
    """
    deadline = handle.deadline(None)
    applied: set[str] = set()
    while True:
        found: dict[str, _Sorted] = {}
        try:
            for name, span in zip(wanted, spans.spans, strict=True):
                found[name] = _sorted(handle, wanted[name], spans, span, among=len(wanted))
        except BlobMissing as error:
            # Corruption if the table still needs it.
            state_without(span.machine, error, deadline)
            applied.add(span.version.table)
            spans = again(applied)
            if spans.through <= spans.after:  # it belongs to a commit that is not applied
                raise lost(f"a commit to table {name!r}", error) from error
            deadline.check("reading changes", may_have_happened=False)
        else:
            return found, spans


def _sorted(handle: Handle, wanted: Wanted, spans: Spans, span: Span, *, among: int) -> _Sorted:
    """Of one table, which has its share of the memory."""
    settings = handle.store.settings
    difference = Difference(handle, wanted, spans, span, handle.deadline(None))
    tables = (table for table in difference.tables() if table.num_rows)
    held: list[pa.Table] = []
    size = 0
    for table in tables:
        held.append(table)
        size += table.nbytes
        if size > _CHANGE_BYTES // among:
            break
    else:
        # Stable: by key within one time, as it was read.
        table = pa.concat_tables(held) if held else wanted.arrow.empty_table()
        return sort_table(table, [TIME])
    ordered = sort_stream(
        chain(held, tables),
        [TIME],
        stable=True,
        schema=wanted.arrow,
        memory_bytes=settings.sort_memory_bytes // among,
        threads=settings.threads,
    )
    first = next(iter(ordered))  # from here on everything was read
    return chain([first], ordered)


def in_tables(batches: Iterable[pa.RecordBatch], arrow: pa.Schema) -> Iterator[pa.Table]:
    """Tables of some rows each; nothing is told of which times are whole."""
    for batch in _short(batches):
        yield pa.Table.from_batches([batch], arrow)


def in_whole_times(
    batches: Iterable[pa.RecordBatch], arrow: pa.Schema, through: int
) -> Iterator[tuple[pa.Table, int | None]]:
    """Rows sorted by time, cut between times where there are many, each with the time up to which
    they complete everything; None where they are a part of one time.
    """
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in _short(batches):
        held.append(batch)
        rows += batch.num_rows
        if rows < _CHANGE_ROWS:
            continue
        table = pa.Table.from_batches(held, arrow)
        times = table.column(TIME).to_numpy()
        last = int(times[-1])
        first_of_last = int(np.searchsorted(times, last))
        if first_of_last:
            yield table.slice(0, first_of_last), last - 1
            held = table.slice(first_of_last).to_batches()
        else:
            yield table, None
            held = []
        rows = sum(batch.num_rows for batch in held)
    yield pa.Table.from_batches(held, arrow), through


def _short(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, _CHANGE_ROWS):
            yield batch.slice(start, _CHANGE_ROWS)
