"""Commands about databases and their tables."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

import strandline as sl
from strandline.cli.app import Yes, command, confirm, open_database, say_url, url_of
from strandline.cli.files import schema_of_file
from strandline.cli.output import Form, Output, emit
from strandline.cli.parsing import names_of, pairs_of, points_of, schema_of

__all__ = ["create", "describe", "drop", "init", "rename", "tables"]

PANEL = "Databases and tables"

TableName = Annotated[str, typer.Argument(metavar="TABLE", help="The table's name.")]

_TABLES = pa.schema(
    [
        ("table", pa.string()),
        ("kind", pa.string()),
        ("row_keys", pa.list_(pa.string())),
        ("sort_keys", pa.list_(pa.string())),
        ("columns", pa.int64()),
    ]
)
_COLUMNS = pa.schema(
    [
        ("column", pa.string()),
        ("type", pa.string()),
        ("nullable", pa.bool_()),
        ("key", pa.string()),
    ]
)
_DONE = pa.schema(
    [("done", pa.string()), ("name", pa.string()), ("time", pa.timestamp("us", "UTC"))]
)


class Kind(StrEnum):
    """Kinds of table."""

    ROWS = "rows"
    KEYED = "keyed"


def _emit_done(done: str, name: str, commit: sl.Commit | None, output: Form) -> None:
    row = {"done": done, "name": name, "time": None if commit is None else commit.time}
    emit(pa.Table.from_pylist([row], schema=_DONE), output)


@command("init", example="strandline init lake", panel=PANEL)
def init(
    ctx: typer.Context,
    place: Annotated[
        str | None, typer.Argument(metavar="URL", help="Where; else what --url says.")
    ] = None,
    output: Output = Form.TABLE,
) -> None:
    """Make a database in an empty or missing directory. One that is there already is left alone."""
    if place is not None:
        say_url(ctx, place)
    url = url_of(ctx)
    try:
        sl.connect(url, mode="r").close()
        done = "there already"
    except sl.UsageError:
        sl.connect(url).close()
        done = "created"
    _emit_done(done, url, None, output)


@command(
    "create",
    example="strandline create readings --schema 'sensor int64, at timestamp, value double' "
    "--row-keys sensor --sort-keys at",
    panel=PANEL,
)
def create(
    ctx: typer.Context,
    name: TableName,
    row_keys: Annotated[
        list[str],
        typer.Option("--row-keys", metavar="COLUMNS", help="Partition and sort by these columns."),
    ],
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="COLUMNS",
            help="Columns and types: int64, string, double, timestamp, date, decimal(p, s), "
            "boolean, binary, TYPE[], …; 'not null' after the type.",
        ),
    ] = None,
    like: Annotated[
        Path | None, typer.Option("--like", metavar="FILE", help="Take the columns of a file.")
    ] = None,
    sort_keys: Annotated[
        list[str] | None,
        typer.Option("--sort-keys", metavar="COLUMNS", help="Then sort by these columns."),
    ] = None,
    kind: Annotated[
        Kind, typer.Option(help="rows: a multiset; keyed: one row per full key, the latest.")
    ] = Kind.ROWS,
    split_points: Annotated[
        list[str] | None,
        typer.Option(
            "--split-points",
            metavar="KEYS",
            help="Row keys at which leaves begin, with commas between; of several columns with | "
            "between their values.",
        ),
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="Such as retention='30 days'."),
    ] = None,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Leave a table alone that is there and the same.")
    ] = False,
    output: Output = Form.TABLE,
) -> None:
    """Create a table."""
    if (schema is None) == (like is None):
        raise sl.UsageError("say what the columns are: pass --schema 'k int64, …' or --like FILE")
    columns = schema_of_file(like) if like is not None else schema_of(schema or "")
    keys = names_of(row_keys)
    missing = set(keys).difference(columns.names)
    points: list[Any] = []
    if split_points and not missing:
        points = points_of(split_points, columns, keys)
    with open_database(ctx, write=True) as db:
        db.create_table(
            name,
            columns,
            row_keys=keys,
            sort_keys=names_of(sort_keys or []),
            kind=kind.value,
            split_points=points,
            properties=pairs_of(properties or []),
            exist_ok=exist_ok,
        )
    _emit_done("created", name, None, output)


@command("drop", example="strandline drop readings --yes", panel=PANEL)
def drop(
    ctx: typer.Context,
    name: TableName,
    yes: Yes = False,
    missing_ok: Annotated[
        bool, typer.Option("--missing-ok", help="It is fine if there is none.")
    ] = False,
    output: Output = Form.TABLE,
) -> None:
    """Drop a table. A read as of an earlier time goes on seeing it while it is kept."""
    confirm(f"Drop table {name!r}?", yes=yes)
    with open_database(ctx, write=True) as db:
        commit = db.drop_table(name, missing_ok=missing_ok)
    _emit_done("dropped" if commit else "there was none", name, commit, output)


@command("rename", example="strandline rename readings measurements", panel=PANEL)
def rename(
    ctx: typer.Context,
    name: TableName,
    to: Annotated[str, typer.Argument(metavar="NEW_NAME", help="What it shall be called.")],
    output: Output = Form.TABLE,
) -> None:
    """Give a table another name."""
    with open_database(ctx, write=True) as db:
        commit = db.rename_table(name, to)
    _emit_done("renamed", to, commit, output)


@command("tables", example="strandline tables", panel=PANEL)
def tables(ctx: typer.Context, output: Output = Form.TABLE) -> None:
    """List the tables."""
    with open_database(ctx) as db:
        rows = [
            {
                "table": table.name,
                "kind": table.kind,
                "row_keys": list(table.row_keys),
                "sort_keys": list(table.sort_keys),
                "columns": len(table.schema),
            }
            for table in (db.table(name) for name in db.tables())
        ]
    emit(pa.Table.from_pylist(rows, schema=_TABLES), output, whole=True)


@command("describe", example="strandline describe readings", panel=PANEL)
def describe(ctx: typer.Context, name: TableName, output: Output = Form.TABLE) -> None:
    """Show a table's columns and keys, and for people its properties."""
    with open_database(ctx) as db:
        table = db.table(name)
        rows = [
            {
                "column": field.name,
                "type": str(field.type),
                "nullable": field.nullable,
                "key": _key(field.name, table),
            }
            for field in table.schema
        ]
        title = f"{table.name}: {table.kind}"
        properties = [{"property": k, "value": v} for k, v in table.properties.items()]
    emit(pa.Table.from_pylist(rows, schema=_COLUMNS), output, title=title, whole=True)
    if output is Form.TABLE:
        emit(pa.Table.from_pylist(properties), output)


def _key(name: str, table: sl.Table) -> str | None:
    for what, keys in (("row", table.row_keys), ("sort", table.sort_keys)):
        if name in keys:
            return f"{what} {keys.index(name) + 1}"
    return None
