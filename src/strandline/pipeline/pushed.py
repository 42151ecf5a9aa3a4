"""Spark's filters as a condition: what leaves out rows that cannot match. Spark looks again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import types
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from strandline.distributed import Comparison, Comparisons
from strandline.parts.schema import TableSchema

__all__ = ["pushed_of"]

_OPS: dict[type[Filter], str] = {
    EqualTo: "=",
    EqualNullSafe: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    In: "in",
    LessThan: "<",
    LessThanOrEqual: "<=",
}


def pushed_of(filters: Sequence[Filter], schema: TableSchema) -> Comparisons | None:
    """What of the filters is understood; None if nothing is."""
    comparisons = tuple(c for f in filters for c in _comparison(f, schema))
    if not comparisons:
        return None
    named = {comparison.column for comparison in comparisons}
    return Comparisons(tuple(n for n in schema.arrow.names if n in named), comparisons)


def _comparison(given: Any, schema: TableSchema) -> Iterator[Comparison]:
    # Any, because PySpark's filters have their attributes each for itself.
    op = _OPS.get(type(given))
    if op is None or len(given.attribute) != 1 or given.attribute[0] not in schema.arrow.names:
        return
    name = given.attribute[0]
    kind = schema.arrow.field(name).type
    values = tuple(given.value) if op == "in" else (given.value,)
    if op == "in":
        values = tuple(value for value in values if value is not None)
    if values and all(_means_the_same(value, kind) for value in values):
        yield Comparison(name, op, values)


def _means_the_same(value: Any, kind: pa.DataType) -> bool:
    """Whether Arrow and Spark compare the value with a column of that type alike."""
    exact: tuple[tuple[Callable[[pa.DataType], bool], type], ...] = (
        (types.is_integer, int),
        (types.is_string, str),
        (types.is_boolean, bool),
        (types.is_decimal, Decimal),
        (types.is_date32, date),
        (types.is_binary, bytes),
    )
    if types.is_timestamp(kind):
        if type(value) is not datetime or kind.unit != "us":
            return False
        return (value.tzinfo is None) == (kind.tz is None)
    if not any(check(kind) and type(value) is wanted for check, wanted in exact):
        return False
    try:
        pa.scalar(value, kind)
    except (pa.ArrowException, OverflowError, ValueError):
        return False
    return True
