"""How neighbouring rows of a table compare by their keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["equal_to_next", "order_of"]


def _pairs(table: pa.Table | pa.RecordBatch, name: str) -> tuple[Any, Any]:
    column = table.column(name)
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # too long for one chunk of its type
            return column.slice(0, len(column) - 1), column.slice(1)
    return column.slice(0, len(column) - 1), column.slice(1)


def order_of(table: pa.Table | pa.RecordBatch, keys: Sequence[str]) -> tuple[bool, bool]:
    """Whether the rows are sorted by `keys` (ascending, lexicographic), and whether two are equal.

    The second is only meaningful if the first is True.
    """
    if table.num_rows < 2:
        return True, False
    tied: Any = None  # whether a row is equal to the next in all keys so far
    for name in keys:
        here, following = _pairs(table, name)
        falls = pc.greater(here, following)
        if pc.any(falls if tied is None else pc.and_(tied, falls)).as_py():
            return False, False
        equal = pc.equal(here, following)
        tied = equal if tied is None else pc.and_(tied, equal)
        if not pc.any(tied).as_py():
            return True, False
    return True, True


def equal_to_next(table: pa.Table | pa.RecordBatch, keys: Sequence[str]) -> Any:
    """For each row but the last, whether the next one has equal `keys`. Keys are never null."""
    tied: Any = None
    for name in keys:
        here, following = _pairs(table, name)
        equal = pc.equal(here, following)
        tied = equal if tied is None else pc.and_(tied, equal)
    return tied
