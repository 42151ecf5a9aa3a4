"""SQL expressions over one row: what `where` and `update` take, and never a statement."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from strandline.engine.duck import Duck, Failures, instance, quoted, tokens
from strandline.errors import SchemaMismatch, UsageError
from strandline.parts.schema import TableSchema

__all__ = [
    "ROWS",
    "Assignments",
    "Others",
    "Tree",
    "evaluate",
    "parse_expression",
    "quote_columns",
    "serialized",
    "sql_types",
    "walk",
]

Tree = dict[str, Any]
"""A parsed expression, as DuckDB writes it in JSON."""

A = TypeVar("A")


class Others(Protocol):
    """The tables that subqueries may name, and the time that they have."""

    def register(self, cursor: Duck, failures: Failures) -> None:
        """Makes the tables known to a connection."""

    def bounded(self, function: Callable[[], A], cursor: Duck) -> A:
        """`function()`, whose query runs on the connection, and ends when the time is over."""


ROWS = "__strandline_rows"
"""What the rows that an expression is evaluated over are called, beside their alias."""

_ORDINAL = "__strandline_row"
"""Their numbers: with subqueries DuckDB may give results in another order."""


def parse_expression(
    cursor: Duck,
    text: str,
    schema: pa.Schema,
    table: str,
    what: str,
    others: Others | None = None,
) -> tuple[str, Tree]:
    """The text, with keywords quoted where it needs that, and its tree.

    Without `others` there may be no subqueries. Raises `UsageError`, which begins with `what`,
    for statements, for more than one expression, and for what reads other rows or unknown columns.
    """
    said = f"{what}={text!r}"
    text, tree = _parsed(cursor, text, schema.names, said)
    if others is None and any(node.get("class") == "SUBQUERY" for node in walk(tree)):
        raise UsageError(f"{said} is no expression over one row: use db.sql for subqueries")
    failures = Failures()
    with failures.told(f"{said} is no expression over the columns {schema.names}"):
        cursor.register(ROWS, schema.empty_table())
        # In this place DuckDB itself refuses aggregates.
        check = f"SELECT 1 FROM {ROWS} AS {quoted(table)} WHERE (({text}\n) IS NULL)"  # noqa: S608  parsed
        if others is None:
            cursor.execute(check).fetchall()
        else:
            # Subqueries are evaluated, though there is no row.
            others.register(cursor, failures)
            others.bounded(lambda: cursor.execute(check).fetchall(), cursor)
    return text, tree


def evaluate(items: str, rows: pa.Table, table: str, said: str, others: Others | None) -> pa.Table:
    """The select list `items` over rows, in their order, one result row for each.

    Raises `UsageError`, which begins with `said`, where an expression fails on a row.
    """
    failures = Failures()
    source = f"FROM {ROWS} AS {quoted(table)}"
    with closing(instance(ordered=True)) as cursor, failures.told(f"{said} failed on a row"):
        if others is None:
            cursor.register(ROWS, rows)
            return cursor.sql(f"SELECT {items} {source}").to_arrow_table()
        others.register(cursor, failures)
        numbers = pa.array(range(rows.num_rows), pa.int64())
        cursor.register(ROWS, rows.append_column(_ORDINAL, numbers))
        query = f"SELECT {items}, {_ORDINAL} {source} ORDER BY {_ORDINAL}"
        found = others.bounded(lambda: cursor.sql(query).to_arrow_table(), cursor)
        return found.drop_columns([_ORDINAL])


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


def walk(tree: object, without: str = "") -> Iterator[Tree]:
    """Every node of a tree; none that is under the key `without`."""
    if isinstance(tree, dict):
        yield tree
        tree = [value for key, value in tree.items() if key != without]
    if isinstance(tree, list):
        for value in tree:
            yield from walk(value, without)


def _parsed(cursor: Duck, text: str, columns: list[str], said: str) -> tuple[str, Tree]:
    if not _closes_what_it_opens(text):
        raise UsageError(f"{said} is no expression: its parentheses do not match")
    why = ""
    for candidate in dict.fromkeys([text, quote_columns(text, columns)]):
        query = f"SELECT 1 FROM {ROWS} WHERE (\n{candidate}\n)"  # noqa: S608  parsed, not run
        parsed = serialized(cursor, query)
        if not parsed["error"]:
            return candidate, _expression(parsed["statements"], said)
        why = parsed["error_message"]
    raise UsageError(f"{said} is no expression: {why}")


def serialized(cursor: Duck, query: str) -> Tree:
    """What DuckDB parses a query to: `statements`, or `error` and `error_message`."""
    answer = cursor.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
    parsed: Tree = json.loads(answer[0][0])
    return parsed


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
    "WINDOW": "a window function reads other rows; compute it with db.sql",
    "PARAMETER": "there are no parameters; write the value",
    "STAR": "name the columns",
}


def _expression(statements: list[Tree], said: str) -> Tree:
    """The tree of the one expression; `UsageError` for everything around it."""
    node = statements[0]["node"] if len(statements) == 1 else {}
    plain = (
        node.get("type") == "SELECT_NODE"
        and node["from_table"]["type"] == "BASE_TABLE"
        and node["from_table"]["table_name"] == ROWS
        and not any(node.get(clause) for clause in _CLAUSES)
        and not node["cte_map"]["map"]
    )
    tree = node.get("where_clause") if plain else None
    if not isinstance(tree, dict):
        raise UsageError(f"{said} is a statement; pass a SQL expression over one row")
    if tree["class"] == "FUNCTION" and tree["function_name"] == "row" and not tree["arguments"]:
        raise UsageError(f"{said} is empty; leave it out or pass a SQL expression over one row")
    for inner in walk(tree, without="subquery"):
        why = _REFUSED.get(inner.get("class", ""))
        if why:
            raise UsageError(f"{said} is no expression over one row: {why}")
    return tree


class Assignments:
    """Columns and the expressions that give them new values, checked against a table."""

    def __init__(
        self,
        values: object,
        schema: TableSchema,
        name: str,
        others: Others | None = None,
    ) -> None:
        if not isinstance(values, Mapping) or not values:
            raise UsageError(
                f'update takes a dict of columns and expressions, {{"value": "value * 2"}}, not '
                f"{values!r}"
            )
        self._schema = schema
        self._name = name
        self._others = others
        self._columns = [_column(column, schema, name) for column in values]
        with closing(instance(ordered=True)) as cursor:
            texts = [
                _checked(cursor, column, text, schema, name, others)
                for column, text in values.items()
            ]
            types = sql_types(cursor, schema.arrow)
        self._items = ", ".join(
            f"CAST(({text}\n) AS {types[column]}) AS {quoted(column)}"
            for column, text in zip(self._columns, texts, strict=True)
        )

    def apply(self, rows: pa.Table) -> pa.Table:
        """The rows with the columns set. `UsageError` or `SchemaMismatch` for a bad value."""
        said = f"the update of table {self._name!r}"
        result = evaluate(self._items, rows, self._name, said, self._others)
        fields = {field.name: field for field in rows.schema}
        columns = dict(zip(fields, rows.columns, strict=True))
        for name in self._columns:
            field = self._schema.arrow.field(name)
            column = result.column(name).cast(field.type)
            if column.null_count and not field.nullable:
                raise SchemaMismatch(
                    f"{said} makes column {name!r} null in {column.null_count} rows, and it is "
                    "never null"
                )
            fields[name], columns[name] = field, column
        return pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields.values()))


def sql_types(cursor: Duck, schema: pa.Schema) -> dict[str, str]:
    """What DuckDB calls the types of the columns."""
    cursor.register(ROWS, schema.empty_table())
    types = cursor.sql(f"SELECT * FROM {ROWS}").types  # noqa: S608  a constant
    return dict(zip(schema.names, map(str, types), strict=True))


def _column(name: object, schema: TableSchema, table: str) -> str:
    if name not in schema.arrow.names:
        raise UsageError(
            f"table {table!r} has no column {name!r} to update; its columns are "
            f"{schema.arrow.names}"
        )
    if schema.kind == "keyed" and name in schema.keys:
        raise UsageError(
            f"{name!r} is a key of table {table!r}, which has one row per key: delete the rows and "
            "upsert them under their new keys"
        )
    return str(name)


def _checked(
    cursor: Duck,
    column: str,
    text: object,
    schema: TableSchema,
    name: str,
    others: Others | None,
) -> str:
    """The expression, if it is one over a row."""
    if not isinstance(text, str):
        raise UsageError(
            f"the new value of column {column!r} is {text!r}: write it as a SQL expression, such "
            'as "0" or "\'text\'"'
        )
    return parse_expression(cursor, text, schema.arrow, name, column, others)[0]
