"""Sorts rows by keys: in memory, or as a stream of any length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from strandline.parts.plain import int64s, numbers_of
from strandline.parts.rows.adjacent import equal_to_next, order_of
from strandline.parts.rows.duck import Passage, stream

__all__ = ["batches_of", "is_sorted", "sort_stream", "sort_table", "sort_telling"]

_ORDINAL = "__ordinal"

Places = np.ndarray[tuple[int], np.dtype[np.int64]]


def is_sorted(table: pa.Table | pa.RecordBatch, keys: Sequence[str]) -> bool:
    """Whether the rows are in ascending order of `keys`."""
    return order_of(table, keys)[0]


def sort_table(table: pa.Table, keys: Sequence[str], *, then: Sequence[str] = ()) -> pa.Table:
    """The rows ordered by `keys`, then by the columns `then`; equal ones stay in their order.

    Returns the same object if they are in that order already.
    """
    names = [*keys, *then]
    return table if is_sorted(table, names) else _reordered(table, names)


def sort_telling(table: pa.Table, keys: Sequence[str]) -> tuple[pa.Table, bool]:
    """The same, and whether two of the rows are equal in all of `keys`."""
    ordered, tied = order_of(table, keys)
    if ordered:
        return table, tied
    table = _reordered(table, keys)
    return table, pc.any(equal_to_next(table, keys)).as_py()


def _reordered(table: pa.Table, names: Sequence[str]) -> pa.Table:
    order = _order_of_numbers(table, names)
    if order is None:
        by = [(name, "ascending") for name in names]
        order = pc.sort_indices(table.select(names), sort_keys=by)
    return table.take(order)


def _order_of_numbers(table: pa.Table, names: Sequence[str]) -> pa.Array | None:
    """The places of the rows in their order, if numbers alone tell it.

    NumPy sorts numbers three times as fast as Arrow, but not stably: what is tied is put back.
    """
    column = table.column(names[0])
    kind = column.type
    numeric = types.is_integer(kind) or types.is_timestamp(kind) or types.is_date32(kind)
    if not numeric or column.null_count:
        return None
    keys = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(keys, pa.ChunkedArray):  # too long for one chunk of its type
        return None
    order = np.argsort(numbers_of(keys)).astype(np.int64, copy=False)
    ordered = numbers_of(keys.take(int64s(order)))
    tied = ordered[1:] == ordered[:-1]
    if not tied.any():
        return int64s(order)
    return int64s(_stable(order, tied)) if len(names) == 1 else None


def _stable(order: Places, tied: np.ndarray[Any, Any]) -> Places:
    """The order with what is tied with its neighbour in ascending places."""
    among = np.zeros(len(order), dtype=bool)
    among[1:] = tied
    among[:-1] |= tied
    group = np.zeros(len(order), dtype=np.int64)
    np.cumsum(~tied, out=group[1:])
    # One number per row, of its group first: sorting such is faster than sorting places by two.
    each = group[among] * len(order) + order[among]
    each.sort()
    order[among] = each % len(order)
    return order


def batches_of(data: Any) -> Iterator[pa.RecordBatch]:
    """The batches of a table, a reader, or any iterable of tables, readers and batches."""
    if isinstance(data, pa.RecordBatch):
        yield data
    elif isinstance(data, pa.Table):
        yield from data.to_batches()
    else:
        for item in data:
            yield from batches_of(item)


def sort_stream(
    data: Any,
    keys: Sequence[str],
    *,
    memory_bytes: int,
    threads: int,
    then: Sequence[str] = (),
    stable: bool = False,
    schema: pa.Schema | None = None,
) -> pa.RecordBatchReader:
    """All rows of `data`, ordered by `keys`, then by the columns `then`, as a stream.

    `data` is a reader, a table or several of them, of one schema, which has to be given where
    `data` does not tell. Memory is bounded by about `memory_bytes`, whatever the number of rows;
    the rest is in a temporary directory while the stream is read. `stable`: equal rows come out
    in the order in which they came in.
    """
    arrow = _schema_of(data) if schema is None else schema
    batches = batches_of(data)
    if stable:
        arrow = arrow.append(pa.field(_ORDINAL, pa.int64()))
        batches = _numbered(batches, arrow)
    passage = Passage(arrow)
    order = [*keys, *then, *([_ORDINAL] if stable else [])]
    query = f"SELECT * FROM source ORDER BY {', '.join(passage.columns(order))}"  # noqa: S608  names of ours
    reader = stream(batches, passage, query, memory_bytes=memory_bytes, threads=threads)
    if not stable:
        return reader
    width = len(arrow) - 1
    plain = pa.schema([arrow.field(i) for i in range(width)])
    return pa.RecordBatchReader.from_batches(
        plain, (pa.RecordBatch.from_arrays(b.columns[:width], schema=plain) for b in reader)
    )


def _schema_of(data: Any) -> pa.Schema:
    if hasattr(data, "schema"):
        return data.schema
    return data[0].schema


def _numbered(batches: Iterator[pa.RecordBatch], arrow: pa.Schema) -> Iterator[pa.RecordBatch]:
    base = 0
    for batch in batches:
        ordinals = int64s(np.arange(base, base + batch.num_rows, dtype=np.int64))
        base += batch.num_rows
        yield pa.RecordBatch.from_arrays([*batch.columns, ordinals], schema=arrow)
