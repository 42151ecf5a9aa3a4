"""What a condition says about single columns, read out of it to leave out data that cannot match.

That is the comparisons of a column with a constant that all have to hold, and the ranges of keys
that follow. What is not understood leaves nothing out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import types

from strandline.engine.expressions import Tree
from strandline.parts.keys import KeyRange
from strandline.parts.schema import TableSchema
from strandline.parts.statistics import Comparison

__all__ = ["arrow_comparisons", "key_ranges", "sql_comparisons"]

_RANGES_MAX = 1_000
"""Key ranges that one condition is turned into at most."""

_Value = bool | int | float | str | Decimal | date | datetime
"""A constant as a value of its column's type."""

_Reads = Callable[[str, pa.DataType], _Value | None]
"""Reads a constant; None where engines might differ."""


# --- SQL


_SQL_OPS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_NOT_DISTINCT_FROM": "=",
}
_MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def sql_comparisons(tree: Tree, schema: pa.Schema) -> Iterator[Comparison]:
    """The comparisons that every row for which the tree is true passes."""
    kind = tree.get("type")
    if kind == "CONJUNCTION_AND":
        for child in tree["children"]:
            yield from sql_comparisons(child, schema)
    elif kind == "COMPARE_BETWEEN":
        yield from _compared(tree["input"], ">=", [tree["lower"]], schema)
        yield from _compared(tree["input"], "<=", [tree["upper"]], schema)
    elif kind == "COMPARE_IN":
        yield from _compared(tree["children"][0], "in", tree["children"][1:], schema)
    elif kind in _SQL_OPS:
        op = _SQL_OPS[kind]
        yield from _compared(tree["left"], op, [tree["right"]], schema)
        yield from _compared(tree["right"], _MIRRORED[op], [tree["left"]], schema)


def _compared(
    column: Tree, op: str, constants: list[Tree], schema: pa.Schema
) -> Iterator[Comparison]:
    # A dotted name may be a field of a struct: it is left alone.
    if column.get("class") != "COLUMN_REF" or len(column["column_names"]) != 1:
        return
    word = column["column_names"][0].casefold()
    for field in schema:
        if field.name.casefold() == word:
            values = [_sql_constant(constant, field.type) for constant in constants]
            if None not in values:
                yield Comparison(field.name, op, tuple(values))


def _sql_constant(node: Tree, kind: pa.DataType) -> _Value | None:
    """The constant as a value of the column's type if both engines mean the same; else None."""
    cast = ""
    if node.get("class") == "CAST" and not node["try_cast"]:
        cast = node["type_expr"].get("type_name", "?").upper()
        node = node["child"]
    if node.get("class") != "CONSTANT" or "literal" not in node:
        return None
    literal, text = node["literal"].get("kind"), node["literal"].get("text", "")
    for check, form, casts, convert in _CONSTANTS:
        if check(kind) and literal in form and cast in casts:
            return convert(text, kind)
    return None


def _int(text: str, _: pa.DataType) -> int | None:
    value = int(text) if re.fullmatch(r"-?\d{1,20}", text) else None
    return value if value is None or -(1 << 63) <= value < 1 << 64 else None


def _decimal(text: str, kind: pa.DataType) -> Decimal | None:
    if not re.fullmatch(r"-?\d{0,18}(\.\d{0,18})?", text) or not re.search(r"\d", text):
        return None
    value = Decimal(text)
    exponent = value.as_tuple().exponent
    return value if isinstance(exponent, int) and -exponent <= kind.scale else None


def _float(text: str, _: pa.DataType) -> float | None:
    return float(text) if re.fullmatch(r"-?\d{1,15}(\.\d{0,15})?", text) else None


def _date(text: str, _: pa.DataType) -> date | None:
    try:
        return date.fromisoformat(text) if re.fullmatch(r"\d{4}-\d\d-\d\d", text) else None
    except ValueError:
        return None


_MOMENT = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?(Z|[+-]\d\d:\d\d)?")


def _moment(text: str, kind: pa.DataType) -> datetime | None:
    if kind.unit != "us" or not _MOMENT.fullmatch(text):
        return None
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        return None
    if kind.tz is None:
        return value if value.tzinfo is None else None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _flag(text: str, _: pa.DataType) -> bool:
    return text.casefold() == "true"


def _text(text: str, _: pa.DataType) -> str:
    return text


_CONSTANTS: tuple[tuple[Callable[[pa.DataType], bool], set[str], set[str], _Reads], ...] = (
    (types.is_integer, {"INTEGER"}, {""}, _int),
    (types.is_string, {"STRING"}, {""}, _text),
    (types.is_boolean, {"BOOLEAN"}, {""}, _flag),
    (types.is_decimal, {"INTEGER", "NUMERIC"}, {""}, _decimal),
    (types.is_floating, {"INTEGER", "NUMERIC"}, {""}, _float),
    (types.is_date32, {"STRING"}, {"", "DATE"}, _date),
    (types.is_timestamp, {"STRING"}, {"", "TIMESTAMP", "TIMESTAMPTZ"}, _moment),
)


# --- Arrow

_ARROW_COMPARISON = re.compile(r"(\w+) (==|<|<=|>|>=) ([^()\[\]{}]+)")
_ARROW_CONSTANTS: tuple[tuple[Callable[[pa.DataType], bool], re.Pattern[str], _Reads], ...] = (
    (types.is_integer, re.compile(r"(-?\d{1,20})"), _int),
    (types.is_string, re.compile(r'"([^"\\]*)"'), _text),
    (types.is_boolean, re.compile(r"(true|false)"), _flag),
    (types.is_floating, re.compile(r"(-?\d{1,15}(?:\.\d{0,15})?)"), _float),
    (types.is_date32, re.compile(r"(\d{4}-\d\d-\d\d)"), _date),
    (types.is_timestamp, re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}Z?)"), _moment),
)


def arrow_comparisons(text: str, schema: pa.Schema) -> Iterator[Comparison]:
    """The comparisons in the printed form of an expression: Arrow shows its tree in no other way.

    Only what can be read in one way is; column names beyond letters, digits and `_` could look
    like anything, so where there are some, nothing is.
    """
    if not all(re.fullmatch(r"\w+", name) for name in schema.names):
        return
    inner = _inside(text)
    if inner is None:
        return
    halves = _halves(inner)
    if halves is not None:
        for half in halves:
            yield from arrow_comparisons(half, schema)
        return
    found = _ARROW_COMPARISON.fullmatch(inner)
    if found is None or found[1] not in schema.names:
        return
    kind = schema.field(found[1]).type
    for check, form, convert in _ARROW_CONSTANTS:
        literal = form.fullmatch(found[3]) if check(kind) else None
        value = convert(literal[1], kind) if literal else None
        if value is not None:
            yield Comparison(found[1], "=" if found[2] == "==" else found[2], (value,))


def _inside(text: str) -> str | None:
    """What is inside the parentheses that the text begins and ends with; None if it does not."""
    if not (text.startswith("(") and text.endswith(")")):
        return None
    for position, depth in _depths(text):
        if depth == 0 and position < len(text) - 1:
            return None
    return text[1:-1]


def _halves(text: str) -> tuple[str, str] | None:
    """The two sides of an `and` outside of all parentheses."""
    for position, depth in _depths(text):
        if depth == 0 and text.startswith(" and ", position):
            return text[:position], text[position + 5 :]
    return None


def _depths(text: str) -> Iterator[tuple[int, int]]:
    """For each character outside of quotes, its position and how deep after it is."""
    depth = 0
    inside_quotes = escaped = False
    for position, character in enumerate(text):
        if inside_quotes:
            inside_quotes = escaped or character != '"'
            escaped = not escaped and character == "\\"
            continue
        inside_quotes = character == '"'
        depth += (character in "([{") - (character in ")]}")
        yield position, depth


# --- keys


def key_ranges(comparisons: Iterable[Comparison], schema: TableSchema) -> list[KeyRange] | None:
    """Ranges of keys outside of which no row passes the comparisons; None: all keys.

    Values fixed for the first keys, then bounds on the next one.
    """
    known = list(comparisons)
    prefixes: list[tuple[Any, ...]] = [()]
    for key in schema.keys:
        fixed = [c.values for c in known if c.column == key and c.op in {"=", "in"}]
        if not fixed:
            return _bounded(prefixes, [c for c in known if c.column == key])
        values = sorted(set(fixed[0]).intersection(*fixed[1:]))
        if len(prefixes) * len(values) > _RANGES_MAX:
            break
        prefixes = [(*prefix, value) for prefix in prefixes for value in values]
    return _bounded(prefixes, [])


def _bounded(prefixes: list[tuple[Any, ...]], bounds: list[Comparison]) -> list[KeyRange] | None:
    """The prefixes, each narrowed by bounds on the key that follows."""
    lower = max((c.values[0] for c in bounds if c.op in {">", ">="}), default=None)
    least = min((c.values[0] for c in bounds if c.op in {"<", "<="}), default=None)
    # Of `< x` and `<= x` the first is the narrower; a lower bound includes its value either way,
    # because the condition itself is applied to what comes out.
    closed = not any(c.op == "<" and c.values[0] == least for c in bounds)
    ranges = []
    for prefix in prefixes:
        start = prefix if lower is None else (*prefix, lower)
        if least is not None:
            ranges.append(KeyRange(start or None, (*prefix, least), closed))
        elif start or prefix:
            ranges.append(KeyRange(start or None, prefix or None, closed=True))
    return ranges if ranges or not prefixes else None
