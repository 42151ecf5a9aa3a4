"""Which rows are in a range of keys, told by their values: encoded keys have to agree with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.parts.keys import KeyRange
from strandline.parts.keytypes import outside
from strandline.parts.schema import TableSchema


def mask_of(wanted: KeyRange, table: pa.Table, schema: TableSchema) -> list[bool]:
    """For each row of a table, sorted or not, whether it is in the range."""
    columns = [table.column(name) for name in schema.keys]
    kinds = [schema.arrow.field(name).type for name in schema.keys]
    result: Any = True
    if wanted.lower:
        result = _beyond(columns, kinds, wanted.lower, pc.greater, pc.greater_equal)
    if wanted.upper is not None:
        last = pc.less_equal if wanted.closed else pc.less
        result = _both(result, _beyond(columns, kinds, wanted.upper, pc.less, last))
    return [result] * table.num_rows if isinstance(result, bool) else result.to_pylist()


def _beyond(
    columns: list[Any],
    kinds: list[pa.DataType],
    values: tuple[Any, ...],
    strict: Callable[[Any, Any], Any],
    last: Callable[[Any, Any], Any],
) -> Any:
    """Whether the columns are lexicographically beyond `values`; `last` compares the last value.

    The result is an array or a plain bool.
    """
    if not values:  # the empty prefix begins every key
        return last is pc.less_equal
    column, kind, value = columns[0], kinds[0], values[0]
    side = outside(kind, value)
    if side:
        return (side > 0) == (strict is pc.less)
    scalar = pa.scalar(value, kind)
    if len(values) == 1:
        return last(column, scalar)
    rest = _beyond(columns[1:], kinds[1:], values[1:], strict, last)
    equal = _both(rest, pc.equal(column, scalar))
    return strict(column, scalar) if equal is False else pc.or_kleene(strict(column, scalar), equal)


def _both(a: Any, b: Any) -> Any:
    """`a` and `b`, each an array or a bool."""
    if a is False or b is False:
        return False
    if a is True:
        return b
    return a if b is True else pc.and_kleene(a, b)
