"""Sorts rows by keys: in memory, or as a stream of any length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.parts.adjacent import order_of
from strandline.parts.duck import Passage, stream

__all__ = ["batches_of", "is_sorted", "sort_stream", "sort_table"]

_ORDINAL = "__ordinal"


def is_sorted(table: pa.Table | pa.RecordBatch, keys: Sequence[str]) -> bool:
    """Whether the rows are in ascending order of `keys`."""
    return order_of(table, keys)[0]


def sort_table(table: pa.Table, keys: Sequence[str], *, then: Sequence[str] = ()) -> pa.Table:
    """The rows ordered by `keys`, then by the columns `then`; equal ones stay in their order.

    Returns the same object if they are in that order already.
    """
    names = [*keys, *then]
    if table.num_rows < 2 or is_sorted(table, names):
        return table
    order = [(name, "ascending") for name in names]
    return table.take(pc.sort_indices(table.select(names), sort_keys=order))


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
    query = f"SELECT * FROM source ORDER BY {', '.join(passage.columns(order))}"  # noqa: S608
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
        ordinals = pa.array(np.arange(base, base + batch.num_rows, dtype=np.int64))
        base += batch.num_rows
        yield pa.RecordBatch.from_arrays([*batch.columns, ordinals], schema=arrow)
