"""`where`: an expression over one row, checked.

A condition comes as SQL text or as a `pyarrow.compute.Expression`. Either way it is only ever
*applied* by the engine that it was written for, DuckDB or Arrow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from strandline.engine.comparisons import arrow_comparisons, sql_comparisons
from strandline.engine.duck import instance
from strandline.engine.expressions import Others, evaluate, parse_expression, walk
from strandline.errors import UsageError
from strandline.parts.keytypes import outside
from strandline.parts.schema import TableSchema
from strandline.parts.statistics import Comparison

__all__ = [
    "ArrowCondition",
    "Condition",
    "PlainCondition",
    "SqlCondition",
    "compile_where",
    "plain_condition",
]


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


def _plain_value(found: re.Match[str], kind: pa.DataType) -> str | float | None:
    if found["text"] is not None:
        return found["text"][1:-1].replace("''", "'") if types.is_string(kind) else None
    number = found["number"]
    if found.string[found.start("number") - 1] == "-":
        number = f"-{number}"
    if types.is_float64(kind):
        # Of more digits DuckDB's decimals may become another double than the nearest.
        return float(number) if sum(map(str.isdigit, number)) <= 15 else None
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
        with closing(instance(ordered=True)) as cursor:
            self._text, tree = parse_expression(cursor, text, schema, name, "where", others)
        # Dotted names; which of their words are columns is not decided here.
        paths = [n["column_names"] for n in walk(tree) if n.get("class") == "COLUMN_REF"]
        named = {word.casefold() for path in paths for word in path}
        self.columns = tuple(n for n in schema.names if n.casefold() in named)
        self.comparisons = tuple(sql_comparisons(tree, schema))

    def select(self, table: pa.Table) -> pa.Table:
        if not table.num_rows:
            return table
        # A constant needs no column, but rows have to be counted all the same.
        needed = table.select(self.columns or table.column_names[:1])
        # A mask, not the rows: so values do not pass through DuckDB's types and back.
        item = f"CAST(({self._text}\n) AS BOOLEAN)"
        said = f"where={self._text!r}"
        return table.filter(evaluate(item, needed, self._name, said, self._others).column(0))


# --- Arrow


class ArrowCondition:
    """An Arrow expression; Arrow evaluates it."""

    reads_others = False

    def __init__(self, expression: pc.Expression, schema: pa.Schema) -> None:
        self.expression = expression
        empty = schema.empty_table()
        error = _failure(empty, expression)
        if error is not None:
            raise UsageError(
                f"where={expression} is no condition on the columns {schema.names}: {error}"
            )
        self.columns = tuple(_needed(empty, schema.names, expression))
        self.comparisons = tuple(arrow_comparisons(str(expression), schema))

    def select(self, table: pa.Table) -> pa.Table:
        return table.filter(self.expression)


def _needed(table: pa.Table, names: list[str], expression: pc.Expression) -> list[str]:
    """Those of the columns `names` without which the expression fails; found by halving."""
    # Arrow drops columns one by one, each time copying the list of all.
    without = set(names)
    others = table.select([name for name in table.column_names if name not in without])
    if not names or _failure(others, expression) is None:
        return []
    if len(names) == 1:
        return names
    middle = len(names) // 2
    found = (_needed(table, half, expression) for half in (names[:middle], names[middle:]))
    return list(chain.from_iterable(found))


def _failure(table: pa.Table, expression: pc.Expression) -> Exception | None:
    """Why it cannot be evaluated: it needs a column that the table does not have, or another."""
    try:
        table.filter(expression)
    except (pa.ArrowException, TypeError, ValueError, KeyError) as error:
        return error
    return None
