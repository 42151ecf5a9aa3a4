"""`where`: an expression over one row, checked, and what it says about the keys.

A condition comes as SQL text or as a `pyarrow.compute.Expression`. Either way it is only ever
*applied* by the engine that it was written for, DuckDB or Arrow. What is read out of it here (the
comparisons of a column with a constant that all have to hold) serves to leave out data that cannot
match; what is not understood leaves nothing out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from strandline.engine import instance
from strandline.errors import UsageError
from strandline.expressions import Others, evaluate, parse_expression, walk
from strandline.parts.keys import KeyRange
from strandline.parts.schema import TableSchema

__all__ = [
    "ArrowCondition",
    "Comparison",
    "Condition",
    "SqlCondition",
    "compile_where",
    "key_ranges",
]

_RANGES_MAX = 1_000
"""Key ranges that one condition is turned into at most."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """`column op value` holds for every row that matches; with "in", one of the values."""

    column: str
    op: str
    """One of = < <= > >= in."""
    values: tuple[Any, ...]


class Condition(Protocol):
    """An expression that was checked against a table's columns."""

    columns: tuple[str, ...]
    """The columns that it looks at, in the table's order."""
    comparisons: tuple[Comparison, ...]
    reads_others: bool
    """Whether it has subqueries, which read other rows."""

    def select(self, table: pa.Table) -> pa.Table:
        """The rows that match, in their order."""


def compile_where(where: Any, schema: TableSchema, name: str) -> Condition | None:
    """The condition in `where` (None: none) on the table `name`; `UsageError` if it is not one."""
    if where is None:
        return None
    if isinstance(where, str):
        return SqlCondition(where, schema.arrow, name)
    if isinstance(where, pc.Expression):
        return ArrowCondition(where, schema.arrow)
    raise UsageError(
        f'where={where!r} is no condition: pass a SQL expression such as "value > 3", or a '
        "pyarrow.compute.Expression"
    )


# --- SQL


class SqlCondition:
    """A SQL expression; DuckDB evaluates it. With `others` it may have subqueries over them."""

    def __init__(
        self, text: str, schema: pa.Schema, name: str, others: Others | None = None
    ) -> None:
        self._name = name
        self._others = others
        self.reads_others = others is not None
        cursor = instance(ordered=True)
        try:
            self._text, tree = parse_expression(cursor, text, schema, name, "where", others)
        finally:
            cursor.close()
        named = {word.casefold() for path in _paths(tree) for word in path}
        self.columns = tuple(n for n in schema.names if n.casefold() in named)
        self.comparisons = tuple(_sql_comparisons(tree, schema))

    def select(self, table: pa.Table) -> pa.Table:
        if not table.num_rows:
            return table
        # A constant needs no column, but rows have to be counted all the same.
        needed = table.select(self.columns or table.column_names[:1])
        # A mask, not the rows: so values do not pass through DuckDB's types and back.
        item = f"CAST(({self._text}\n) AS BOOLEAN)"
        said = f"where={self._text!r}"
        return table.filter(evaluate(item, needed, self._name, said, self._others).column(0))


def _paths(tree: Any) -> Iterator[list[str]]:
    """The dotted names in an expression; which of their words are columns is not decided here."""
    for node in walk(tree):
        if node.get("class") == "COLUMN_REF":
            yield node["column_names"]


_SQL_OPS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_NOT_DISTINCT_FROM": "=",
}
_MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _sql_comparisons(tree: dict[str, Any], schema: pa.Schema) -> Iterator[Comparison]:
    """The comparisons that every row for which the tree is true passes."""
    kind = tree.get("type")
    if kind == "CONJUNCTION_AND":
        for child in tree["children"]:
            yield from _sql_comparisons(child, schema)
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
    column: dict[str, Any], op: str, constants: list[dict[str, Any]], schema: pa.Schema
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


def _sql_constant(node: dict[str, Any], kind: pa.DataType) -> Any:
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


_CONSTANTS: tuple[
    tuple[Callable[[pa.DataType], bool], set[str], set[str], Callable[[str, pa.DataType], Any]],
    ...,
] = (
    (types.is_integer, {"INTEGER"}, {""}, _int),
    (types.is_string, {"STRING"}, {""}, _text),
    (types.is_boolean, {"BOOLEAN"}, {""}, _flag),
    (types.is_decimal, {"INTEGER", "NUMERIC"}, {""}, _decimal),
    (types.is_floating, {"INTEGER", "NUMERIC"}, {""}, _float),
    (types.is_date32, {"STRING"}, {"", "DATE"}, _date),
    (types.is_timestamp, {"STRING"}, {"", "TIMESTAMP", "TIMESTAMPTZ"}, _moment),
)


# --- Arrow


class ArrowCondition:
    """An Arrow expression; Arrow evaluates it."""

    reads_others = False

    def __init__(self, expression: pc.Expression, schema: pa.Schema) -> None:
        self.expression = expression
        empty = schema.empty_table()
        try:
            empty.filter(expression)
        except (pa.ArrowException, TypeError, ValueError, KeyError) as error:
            raise UsageError(
                f"where={expression} is no condition on the columns {schema.names}: {error}"
            ) from None
        self.columns = tuple(_needed(empty, schema.names, expression))
        self.comparisons = tuple(_arrow_comparisons(str(expression), schema))

    def select(self, table: pa.Table) -> pa.Table:
        return table.filter(self.expression)


def _needed(table: pa.Table, names: list[str], expression: pc.Expression) -> list[str]:
    """Those of the columns `names` without which the expression fails; found by halving."""
    # Arrow drops columns one by one, each time copying the list of all.
    without = set(names)
    others = table.select([name for name in table.column_names if name not in without])
    if not names or not _fails(others, expression):
        return []
    if len(names) == 1:
        return names
    middle = len(names) // 2
    found = (_needed(table, half, expression) for half in (names[:middle], names[middle:]))
    return list(chain.from_iterable(found))


def _fails(table: pa.Table, expression: pc.Expression) -> bool:
    """Whether the expression needs a column that the table does not have."""
    try:
        table.filter(expression)
    except (pa.ArrowException, TypeError, ValueError, KeyError):
        return True
    return False


_ARROW_COMPARISON = re.compile(r"(\w+) (==|<|<=|>|>=) ([^()\[\]{}]+)")
_ARROW_CONSTANTS: tuple[
    tuple[Callable[[pa.DataType], bool], re.Pattern[str], Callable[[str, pa.DataType], Any]], ...
] = (
    (types.is_integer, re.compile(r"(-?\d{1,20})"), _int),
    (types.is_string, re.compile(r'"([^"\\]*)"'), _text),
    (types.is_boolean, re.compile(r"(true|false)"), _flag),
    (types.is_floating, re.compile(r"(-?\d{1,15}(?:\.\d{0,15})?)"), _float),
    (types.is_date32, re.compile(r"(\d{4}-\d\d-\d\d)"), _date),
    (types.is_timestamp, re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}Z?)"), _moment),
)


def _arrow_comparisons(text: str, schema: pa.Schema) -> Iterator[Comparison]:
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
            yield from _arrow_comparisons(half, schema)
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
