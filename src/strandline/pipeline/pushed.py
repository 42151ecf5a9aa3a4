"""Spark's filters as a condition: what leaves out rows that cannot match. Spark looks again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
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

from strandline.parts.schema import TableSchema
from strandline.parts.statistics import Comparison

__all__ = ["Pushed", "pushed_of"]

_OPS: dict[type[Filter], str] = {
    EqualTo: "=",
    EqualNullSafe: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    In: "in",
    LessThan: "<",
    LessThanOrEqual: "<=",
}

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "<": pc.less,
    "<=": pc.less_equal,
}


@dataclass
class Pushed:
    """Comparisons that all have to hold; a `Condition`."""

    columns: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    reads_others: bool = False

    def select(self, table: pa.Table) -> pa.Table:
        for said in self.comparisons:
            column = table.column(said.column)
            if said.op == "in":
                mask = pc.is_in(column, value_set=pa.array(said.values, column.type))
            else:
                mask = _COMPARE[said.op](column, pa.scalar(said.values[0], column.type))
            table = table.filter(mask)
        return table


def pushed_of(filters: Sequence[Filter], schema: TableSchema) -> Pushed | None:
    """What of the filters is understood; None if nothing is."""
    comparisons = tuple(c for f in filters for c in _comparison(f, schema))
    if not comparisons:
        return None
    named = {comparison.column for comparison in comparisons}
    return Pushed(tuple(n for n in schema.arrow.names if n in named), comparisons)


def _comparison(given: Any, schema: TableSchema) -> Iterator[Comparison]:
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
