"""Equal updates as one: their diffs added up, and gone where they add up to nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.parts.rows.adjacent import equal_to_next
from strandline.parts.rows.duck import Passage, stream
from strandline.parts.rows.merge import exact, sums, total_of
from strandline.parts.rows.sort import sort_table, sort_telling
from strandline.parts.schema import DIFF, TIME

__all__ = ["consolidated", "consolidated_stream"]

_IN_MEMORY_BYTES = 32 << 20
"""Updates that take no more are added up in memory."""


def consolidated(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Updates with `__diff`, sorted by `keys`, then `__time` if they have one; each row once.

    Rows of which everything but the diff is equal are one row. Any diff may come out but 0; one
    that 64 bits do not hold is a UsageError.
    """
    order = [*keys, TIME] if TIME in table.column_names else list(keys)
    table, tied = sort_telling(table, order)
    if not tied:
        return _without_nothing(table)
    next_is_same = np.asarray(equal_to_next(table, order))
    # Only what has a neighbour of its key can have an equal; that may be in another column.
    touched = np.zeros(table.num_rows, dtype=bool)
    touched[:-1] |= next_is_same
    touched[1:] |= next_is_same
    alone = _without_nothing(table.filter(pa.array(~touched)))
    summed = sums(table.filter(pa.array(touched))).select(table.column_names)
    return sort_table(pa.concat_tables([alone, summed.cast(alone.schema)]), order)


def _without_nothing(table: pa.Table) -> pa.Table:
    nothing = pc.equal(table.column(DIFF), 0)
    if table.num_rows and pc.any(nothing).as_py():
        return table.filter(pc.invert(nothing))
    return table


def consolidated_stream(
    batches: Iterable[pa.RecordBatch],
    arrow: pa.Schema,
    keys: Sequence[str],
    *,
    memory_bytes: int,
    threads: int,
) -> Iterator[pa.RecordBatch]:
    """The same for updates of any number, in any order, in bounded memory.

    Everything is taken in before the first row comes out, so what reading `batches` raises is
    raised before that, and that a sum is too large, too.
    """
    held: list[pa.RecordBatch] = []
    rows = iter(batches)
    size = 0
    for batch in rows:
        held.append(batch)
        size += batch.nbytes
        if size > _IN_MEMORY_BYTES:
            break
    if size <= _IN_MEMORY_BYTES:
        yield from consolidated(pa.Table.from_batches(held, arrow), keys).to_batches()
        return
    passage = Passage(arrow)
    summed = stream(
        chain(held, rows),
        passage,
        _query(passage, keys),
        memory_bytes=memory_bytes,
        threads=threads,
    )
    yield from map(exact, summed)


def _query(passage: Passage, keys: Sequence[str]) -> str:
    diff: Any = passage.column(DIFF)
    others = [name for name in passage.names if name != diff]
    timed = [TIME] if TIME in passage.arrow.names else []
    total = total_of(diff)
    values = [name if name != diff else f"{total} AS {diff}" for name in passage.names]
    return (
        f"SELECT {', '.join(values)} FROM source "  # noqa: S608  names of ours
        f"GROUP BY {', '.join(others)} HAVING sum({diff}) <> 0 "
        # Sums that 64 bits do not hold come first: before anything was made of the others.
        f"ORDER BY {total} IS NOT NULL, {', '.join(passage.columns([*keys, *timed]))}"
    )
