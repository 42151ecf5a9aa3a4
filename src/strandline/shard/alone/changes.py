"""All updates of a span of times, at their times: what a listen gives, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.env import Deadline
from strandline.errors import AsOfTooOld
from strandline.location import BlobMissing
from strandline.parts.files.read import PartReader
from strandline.parts.rows.sort import sort_stream, sort_table
from strandline.parts.schema import DIFF, END, TIME, TableSchema
from strandline.settings import Settings
from strandline.shard.alone.shard import Shard
from strandline.shard.look import Look
from strandline.shard.missing import state_without
from strandline.state.model import Interval, Reference
from strandline.state.updates import plan_changes

__all__ = ["check_kept", "updates_between", "updates_of"]

_IN_MEMORY_BYTES = 32 << 20
"""Updates that take no more are sorted in memory."""

Read = tuple[Reference, tuple[Interval, ...]]


def updates_between(
    shard: Shard, after: int, through: int, deadline: Deadline
) -> Iterator[pa.Table]:
    """All applied updates of a shard of `rows` at times in (`after`, `through`], at their times.

    By the newest state that is known, whose upper is beyond `through`. Sorted by time, then full
    key, with `__time` and `__diff`; nothing is added up. A row of history is two updates: it came,
    and it ended. Memory is bounded, however many there are: the first table comes when all have
    been read. Errors: AsOfTooOld, LocationError, Corruption.
    """
    machine, schema = shard.machine, shard.schema
    look = machine.known(deadline)
    while True:
        check_kept(look, after, shard.id)
        tasks = look.ask(lambda s: plan_changes(s, None, after, through))
        wanted = [(r, task.intervals) for task in tasks for r in task.references]
        batches = _batches(shard.reader, schema, _apart(wanted), after, through, deadline)
        ordered = _ordered(batches, schema, shard.settings)
        try:
            first = next(ordered, None)
        except BlobMissing as error:
            # Nothing was given out yet: the sort takes everything in first.
            look = state_without(machine, error, deadline)
            continue
        if first is not None:
            yield first
            yield from ordered
        return


def check_kept(look: Look, after: int, shard: str) -> None:
    """AsOfTooOld if updates at times after `after` may have been moved to later ones."""
    since = look.meta.since
    # What was moved to since came from before it; and before 0 there is nothing.
    if since is None or (after < since and since > 0):
        reached = "nothing can be read any more" if since is None else f"its since is {since}"
        raise AsOfTooOld(
            f"the changes of shard {shard} after {after} are no longer kept apart: {reached}; "
            "take a snapshot, and listen from there"
        )


def _apart(wanted: Sequence[Read]) -> list[Read]:
    """One read for each reference: one of L0 is in the tasks of several leaves."""
    places: dict[int, tuple[Reference, list[Interval]]] = {}
    for reference, intervals in wanted:
        place = reference.place
        inside = [both for i in intervals if (both := i.intersect(place))]
        places.setdefault(reference.id, (reference, []))[1].extend(inside)
    return [(reference, tuple(inside)) for reference, inside in places.values() if inside]


def _batches(
    reader: PartReader,
    schema: TableSchema,
    wanted: Sequence[Read],
    after: int,
    through: int,
    deadline: Deadline,
) -> Iterator[pa.RecordBatch]:
    arrow = schema.stored(time=True, diff=True)
    columns = [*schema.arrow.names, TIME, DIFF, END]
    for reference, intervals in wanted:
        part = reference.part
        for batch in reader.batches(
            part, schema, columns=columns, intervals=intervals, deadline=deadline
        ):
            yield from updates_of(batch, reference, arrow, after, through)


def updates_of(
    batch: pa.RecordBatch, reference: Reference, arrow: pa.Schema, after: int, through: int
) -> Iterator[pa.RecordBatch]:
    """What the rows of a reference's part are in the span: updates with the columns of `arrow`."""
    names = batch.schema.names
    count = batch.num_rows
    times = _numbers(batch, TIME) if TIME in names else np.full(count, reference.time)
    counts = np.ones(count, dtype=np.int64)
    if reference.rows_from is not None:
        counts = counts * (times >= reference.rows_from)
    yield from _updates_at(
        batch,
        times,
        counts * (_numbers(batch, DIFF) if DIFF in names else 1),
        arrow,
        after,
        through,
    )
    if END in names:
        yield from _updates_at(batch, _numbers(batch, END), -counts, arrow, after, through)


def _updates_at(
    batch: pa.RecordBatch, times: Any, diffs: Any, arrow: pa.Schema, after: int, through: int
) -> Iterator[pa.RecordBatch]:
    inside = (times > after) & (times <= through) & (diffs != 0)
    if not inside.any():
        return
    mine = {TIME: pa.array(times, pa.int64()), DIFF: pa.array(diffs, pa.int64())}
    columns = [mine.get(n) if n in mine else batch.column(n) for n in arrow.names]
    whole = pa.RecordBatch.from_arrays(columns, schema=arrow)
    yield whole if inside.all() else whole.filter(pa.array(inside))


def _numbers(batch: pa.RecordBatch, name: str) -> Any:
    return batch.column(name).to_numpy()


def _ordered(
    batches: Iterator[pa.RecordBatch], schema: TableSchema, settings: Settings
) -> Iterator[pa.Table]:
    arrow = schema.stored(time=True, diff=True)
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size > _IN_MEMORY_BYTES:
            break
    order = [TIME, *schema.keys]
    if size <= _IN_MEMORY_BYTES:
        table = sort_table(pa.Table.from_batches(held, arrow), order)
        if table.num_rows:
            yield table
        return
    rows = sort_stream(
        chain(held, batches),
        order,
        schema=arrow,
        memory_bytes=settings.sort_memory_bytes,
        threads=settings.threads,
    )
    for batch in rows:
        yield pa.Table.from_batches([batch])
