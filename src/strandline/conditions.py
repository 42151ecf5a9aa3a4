"""`where`: an expression over one row, checked, and what it says about the keys.

A condition comes as SQL text or as a `pyarrow.compute.Expression`. Either way it is only ever
*applied* by the engine that it was written for, DuckDB or Arrow. What is read out of it here (the
comparisons of a column with a constant that all have to hold) serves to leave out data that cannot
match; what is not understood leaves nothing out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from strandline.engine import Duck, instance, quoted, refused, tokens, usage_errors
from strandline.errors import UsageError
from strandline.parts.keys import KeyRange
from strandline.parts.schema import TableSchema

__all__ = ["Comparison", "Condition", "compile_where", "key_ranges", "quote_columns"]

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
    """A SQL expression; DuckDB evaluates it."""

    def __init__(self, text: str, schema: pa.Schema, name: str) -> None:
        self._name = quoted(name)
        cursor = instance(ordered=True)
        try:
            self._text, tree = _parsed(cursor, text, schema.names)
            empty = schema.empty_table()
            cursor.register("rows", empty)
            check = f"SELECT 1 FROM rows AS {self._name} WHERE ({self._text}\n)"  # noqa: S608
            cursor.execute(check).fetchall()
        except usage_errors() as error:
            what = f"where={text!r} is no condition on the columns {schema.names}"
            raise refused(what, error) from None
        finally:
            cursor.close()
        named = {word.casefold() for path in _paths(tree) for word in path}
        self.columns = tuple(n for n in schema.names if n.casefold() in named)
        self.comparisons = tuple(_sql_comparisons(tree, schema))

    def select(self, table: pa.Table) -> pa.Table:
        if not table.num_rows:
            return table
        cursor = instance(ordered=True)
        try:
            # A constant needs no column, but rows have to be counted all the same.
            cursor.register("rows", table.select(self.columns or table.column_names[:1]))
            # A mask, not the rows: so values do not pass through DuckDB's types and back.
            query = f"SELECT CAST(({self._text}\n) AS BOOLEAN) FROM rows AS {self._name}"  # noqa: S608
            mask = cursor.sql(query).to_arrow_table().column(0)
        except usage_errors() as error:
            raise refused(f"where={self._text!r} failed on a row", error) from None
        finally:
            cursor.close()
        return table.filter(mask)


def quote_columns(text: str, columns: Iterable[str]) -> str:
    """SQL text in which words that are keywords of DuckDB and names of columns are quoted.

    A column called `at` is natural here and a syntax error there.
    """
    names = {name.casefold(): name for name in columns}
    words = tokens(text)
    result = []
    for i, (word, gap, kind) in enumerate(words):
        name = names.get(word.casefold()) if kind == "keyword" else None
        following = words[i + 1].word.casefold() if i + 1 < len(words) else ""
        zone = word.casefold() == "at" and following == "time"
        result += [word if name is None or zone else quoted(name), gap]
    return "".join(result)


def _parsed(cursor: Duck, text: str, columns: list[str]) -> tuple[str, dict[str, Any]]:
    """The text, with keywords quoted if it needs that, and the tree of its expression."""
    why = "it is a statement"
    if not _closes_what_it_opens(text):
        raise UsageError(f"where={text!r} is no condition: its parentheses do not match")
    for candidate in dict.fromkeys([text, quote_columns(text, columns)]):
        query = f"SELECT 1 FROM rows WHERE (\n{candidate}\n)"  # noqa: S608  parsed, not run
        answer = cursor.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
        parsed = json.loads(answer[0][0])
        if not parsed["error"]:
            return candidate, _expression(text, parsed["statements"])
        why = parsed["error_message"]
    raise UsageError(f"where={text!r} is no condition: {why}")


def _closes_what_it_opens(text: str) -> bool:
    depth = 0
    for word, _, kind in tokens(text):
        if kind == "operator":
            depth += {"(": 1, ")": -1}.get(word, 0)
        if depth < 0:
            return False
    return depth == 0


_CLAUSES = ("group_expressions", "group_sets", "having", "sample", "qualify", "modifiers")
_REFUSED = {
    "SUBQUERY": "a subquery reads other rows; use db.sql for that",
    "WINDOW": "a window function reads other rows; use db.sql for that",
    "PARAMETER": "there are no parameters; write the value",
    "STAR": "name the columns",
}


def _expression(text: str, statements: list[dict[str, Any]]) -> dict[str, Any]:
    """The tree of the one expression; `UsageError` for everything around it."""
    node = statements[0]["node"] if len(statements) == 1 else {}
    plain = (
        node.get("type") == "SELECT_NODE"
        and node["from_table"]["type"] == "BASE_TABLE"
        and node["from_table"]["table_name"] == "rows"
        and not any(node.get(clause) for clause in _CLAUSES)
        and not node["cte_map"]["map"]
    )
    tree = node.get("where_clause") if plain else None
    if not isinstance(tree, dict):
        raise UsageError(f"where={text!r} is a statement; pass a SQL expression")
    if tree["class"] == "FUNCTION" and tree["function_name"] == "row" and not tree["arguments"]:
        raise UsageError("where is empty; leave it out for all rows")
    for kind in _walk(tree):
        why = _REFUSED.get(kind.get("class", ""))
        if why:
            raise UsageError(f"where={text!r} is no condition on one row: {why}")
    return tree


def _walk(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
        for value in tree.values():
            yield from _walk(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _walk(value)


def _paths(tree: Any) -> Iterator[list[str]]:
    """The dotted names in an expression; which of their words are columns is not decided here."""
    for node in _walk(tree):
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
    (types.is_date32, {"STRING"}, {"", "DATE"}, _date),
    (types.is_timestamp, {"STRING"}, {"", "TIMESTAMP", "TIMESTAMPTZ"}, _moment),
)


# --- Arrow


class ArrowCondition:
    """An Arrow expression; Arrow evaluates it."""

    def __init__(self, expression: pc.Expression, schema: pa.Schema) -> None:
        self.expression = expression
        empty = schema.empty_table()
        try:
            empty.filter(expression)
        except (pa.ArrowException, TypeError, ValueError, KeyError) as error:
            raise UsageError(
                f"where={expression} is no condition on the columns {schema.names}: {error}"
            ) from None
        self.columns = tuple(n for n in schema.names if _fails(empty.drop_columns([n]), expression))
        self.comparisons = tuple(_arrow_comparisons(str(expression), schema))

    def select(self, table: pa.Table) -> pa.Table:
        return table.filter(self.expression)


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
