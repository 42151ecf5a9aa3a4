"""Commands that tell how a database is stored."""

from __future__ import annotations

from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import typer

import strandline as sl
from strandline.cli.app import command, open_database
from strandline.cli.output import Form, Output, emit

__all__ = ["partitions", "parts", "status", "status_of", "usage"]

PANEL = "Reports"

TableName = Annotated[str, typer.Argument(metavar="TABLE", help="The table's name.")]
_SUMS = ("updates", "bytes", "parts", "leaves", "level_zero", "backlog")
_LAST = ("latest", "since")


@command("status", example="strandline status", panel=PANEL)
def status(
    ctx: typer.Context,
    count: Annotated[
        bool, typer.Option("--count", help="Count rows, also where much is to be read for it.")
    ] = False,
    output: Output = Form.TABLE,
) -> None:
    """Show what is stored: first the whole database, then each table.

    Rows are those that a scan gives, null where only --count tells; updates are those stored, with
    what was replaced or deleted until it is compacted; level_zero are parts not given to leaves
    yet; backlog are commits not applied yet; log records and rollups are those kept. In the first
    line, whose table is null, they include those of the database's own log.
    """
    with open_database(ctx) as db:
        rows = status_of(db, count=count)
    emit(rows, output, title="the database (first line), and its tables", whole=True)


def status_of(db: sl.Database, *, count: bool = False) -> pa.Table:
    """The database in one row, then each table in one."""
    tables = db.status(count=count)
    shards = {row["table"]: row for row in db.shards().to_pylist()}
    rows = [{**row, **_log(shards.get(row["table"]))} for row in tables.to_pylist()]
    every: dict[str, Any] = {name: sum(row[name] for row in rows) for name in _SUMS}
    live = [row["rows"] for row in rows]
    every["rows"] = None if None in live else sum(live)
    logs = [_log(shard) for shard in shards.values()]
    total = {name: sum(log[name] for log in logs) for name in ("log_records", "rollups")}
    latest = pc.max(tables["latest"]).as_py() if rows else None
    whole = {"table": None, **every, **total, "latest": latest}
    fields = [f for f in tables.schema if f.name not in _LAST]
    fields += [pa.field("log_records", pa.int64()), pa.field("rollups", pa.int64())]
    fields += [tables.schema.field(name) for name in _LAST]
    return pa.Table.from_pylist([whole, *rows], schema=pa.schema(fields))


def _log(shard: dict[str, Any] | None) -> dict[str, int]:
    return {name: shard[name] if shard else 0 for name in ("log_records", "rollups")}


@command("usage", example="strandline usage", panel=PANEL)
def usage(ctx: typer.Context, output: Output = Form.TABLE) -> None:
    """Show what objects take, by table and by what they are good for.

    live: read now; history: read as of the past only; not applied: committed, not in the table's
    shard yet; dead: waits to be deleted, and waits_for says for what (vacuum: the next one deletes
    it); state: rollups, pages, receipts; log: records that are kept; unknown: no state names it,
    so it is under way, or was left behind.
    """
    with open_database(ctx) as db:
        rows = db.usage()
    emit(rows, output, whole=True)


@command("partitions", example="strandline partitions readings", panel=PANEL)
def partitions(ctx: typer.Context, name: TableName, output: Output = Form.TABLE) -> None:
    """Show the leaves of a table by key: bounds, rows, parts, bytes."""
    with open_database(ctx) as db:
        rows = db.table(name).partitions()
    emit(rows, output, whole=True)


@command("parts", example="strandline parts readings", panel=PANEL)
def parts(ctx: typer.Context, name: TableName, output: Output = Form.TABLE) -> None:
    """Show the parts of a table: where they belong, rows, bytes, keys."""
    with open_database(ctx) as db:
        rows = db.table(name).parts()
    emit(rows, output, whole=True)
