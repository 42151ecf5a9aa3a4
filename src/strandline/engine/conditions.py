"""`where`: an expression over one row, checked, and what it says about the keys.

A condition comes as SQL text or as a `pyarrow.compute.Expression`. Either way it is only ever
*applied* by the engine that it was written for, DuckDB or Arrow. What is read out of it here (the
comparisons of a column with a constant that all have to hold) serves to leave out data that cannot
match; what is not understood leaves nothing out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from strandline.engine.duck import instance
from strandline.engine.expressions import Others, evaluate, parse_expression, walk
from strandline.errors import UsageError
from strandline.parts.keys import KeyRange
from strandline.parts.keytypes import outside
from strandline.parts.schema import TableSchema
from strandline.parts.statistics import Comparison

__all__ = [
    "ArrowCondition",
    "Condition",
    "PlainCondition",
    "SqlCondition",
    "compile_where",
    "key_ranges",
    "plain_condition",
]

_RANGES_MAX = 1_000
"""Key ranges that one condition is turned into at most."""


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
        return _sql_condition(where, schema, name)
    if isinstance(where, pc.Expression):
        _refuse_positions(where)
        return ArrowCondition(where, schema.arrow)
    raise UsageError(
        f'where={where!r} is no condition: pass a SQL expression such as "value > 3", or a '
        "pyarrow.compute.Expression"
    )


def _refuse_positions(where: pc.Expression) -> None:
    """UsageError for columns told by their place: only those are read that are needed, so that
    another would be at that place.
    """
    if "FieldPath(" not in str(where):
        return
    try:
        where.__reduce__()
    except pa.ArrowException:  # Arrow writes names alone; a text that looks like a place it writes
        raise UsageError(
            f"where={where} tells a column by its place: tell it by its name, as in "
            'pyarrow.compute.field("value")'
        ) from None


_known: dict[tuple[int, str, str], tuple[TableSchema, Condition]] = {}
_KNOWN_MAX = 256
_KNOWN_TEXT_MAX = 4_096
"""Characters of a text that is remembered."""


def _sql_condition(text: str, schema: TableSchema, name: str) -> Condition:
    """The condition; one that was seen before is not parsed again. They are immutable."""
    key = (id(schema), name, text)
    found = _known.get(key)
    if found is not None:
        return found[1]
    condition = plain_condition(text, schema, name) or SqlCondition(text, schema.arrow, name)
    if len(text) <= _KNOWN_TEXT_MAX:
        if len(_known) >= _KNOWN_MAX:
            _known.clear()
        # The schema is kept, so that no other gets its id.
        _known[key] = schema, condition
    return condition


# --- SQL that needs no engine

_BLANK = r"[ \t\r\n]"
_PLAIN = re.compile(
    rf"""{_BLANK}*(?:(?P<name>[A-Za-z_][A-Za-z_0-9]*)|"(?P<quoted>[^"\x00]+)")"""
    rf"""{_BLANK}*(?P<op><=|>=|<>|!=|=|<|>)"""
    rf"""(?:{_BLANK}*(?P<text>'(?:[^'\x00\ud800-\udfff]|'')*')"""
    rf"""|(?:{_BLANK}*|{_BLANK}+-)(?P<number>(?:0|[1-9]\d{{0,17}})(?:\.\d{{1,15}})?))""",
    re.ASCII,
)
_AND = re.compile(rf"{_BLANK}+and(?={_BLANK})", re.ASCII | re.IGNORECASE)
_END = re.compile(rf"{_BLANK}*", re.ASCII)

_ARROW_OPS: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


class PlainCondition:
    """Comparisons of columns with constants that all have to hold; Arrow evaluates them."""

    reads_others = False

    def __init__(self, compared: Sequence[Comparison], schema: pa.Schema) -> None:
        self._compared = [
            (c.column, c.op, pa.scalar(c.values[0], schema.field(c.column).type)) for c in compared
        ]
        named = {c.column for c in compared}
        self.columns = tuple(name for name in schema.names if name in named)
        self.comparisons = tuple(c for c in compared if c.op != "<>")

    def select(self, table: pa.Table) -> pa.Table:
        mask: Any = None
        for name, op, value in self._compared:
            column = table.column(name)
            holds = _ARROW_OPS[op](column, value)
            if op in {">", ">="} and types.is_floating(column.type):
                # SUBTLE: DuckDB, which has the other conditions, has NaN above all numbers.
                holds = pc.or_kleene(holds, pc.is_nan(column))
            mask = holds if mask is None else pc.and_kleene(mask, holds)
        return table.filter(mask)


def plain_condition(text: str, schema: TableSchema, name: str) -> PlainCondition | None:
    """The condition, if it is as simple as `k = 7 and name < 'x'`; None: it takes an engine.

    SUBTLE: it has to mean exactly what DuckDB makes of it, so what may be in doubt is left to
    DuckDB: words that are more than names to it, constants that do not fit the column, other types
    than integers, doubles and texts.
    """
    known = {field.name.casefold(): field for field in schema.fields}
    compared = []
    at = 0
    while True:
        found = _PLAIN.match(text, at)
        comparison = None if found is None else _plain_comparison(found, known, name)
        if found is None or comparison is None:
            return None
        compared.append(comparison)
        if _END.fullmatch(text, found.end()):
            return PlainCondition(compared, schema.arrow)
        following = _AND.match(text, found.end())
        if following is None:
            return None
        at = following.end()


def _plain_comparison(
    found: re.Match[str], known: Mapping[str, pa.Field], table: str
) -> Comparison | None:
    given = found["name"] or found["quoted"]
    word = given.casefold()
    field = known.get(word)
    if field is None or word == table.casefold() or (found["name"] and word in _KEYWORDS):
        return None
    # DuckDB knows the case of ASCII letters alone.
    if field.name != given and not (field.name.isascii() and given.isascii()):
        return None
    value = _plain_value(found, field.type)
    op = "<>" if found["op"] == "!=" else found["op"]
    return None if value is None else Comparison(field.name, op, (value,))


def _plain_value(found: re.Match[str], kind: pa.DataType) -> Any:
    if found["text"] is not None:
        return found["text"][1:-1].replace("''", "'") if types.is_string(kind) else None
    number = found["number"]
    if found.string[found.start("number") - 1] == "-":
        number = f"-{number}"
    if types.is_float64(kind):
        # Of more digits DuckDB's decimals may become another double than the nearest.
        return _float(number, kind) if sum(map(str.isdigit, number)) <= 15 else None
    if not types.is_integer(kind) or "." in number:
        return None
    value = int(number)
    return value if outside(kind, value) == 0 else None


_KEYWORDS = frozenset(
    """
    all analyse analyze and anti any array as asc asof asymmetric at authorization between
    bigint binary bit boolean both by case cast char character check coalesce collate collation
    column columns concurrently constraint create cross dec decimal default deferrable desc
    describe distinct do else end except exists extract false fetch float for foreign freeze
    from full generated glob group grouping grouping_id having ilike in initially inner inout
    int integer intersect interval into is isnull join lambda lateral leading left like limit
    map national natural nchar none not notnull null nullif numeric offset on only or order out
    outer overlaps overlay pivot pivot_longer pivot_wider placing position positional precision
    primary qualify real references returning right row select semi setof show similar smallint
    some struct substring summarize symmetric table tablesample then time timestamp to trailing
    treat trim true try_cast tuple union unique unpack unpivot using values varchar variadic
    verbose when where window with xmlattributes xmlconcat xmlelement xmlexists xmlforest
    xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable
    """.split()  # noqa: SIM905  a list of so many would fill the page
)
"""What is more than a name to DuckDB, or no name at all."""


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
