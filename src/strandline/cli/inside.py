"""The command that looks inside of what is stored."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

import strandline as sl
from strandline.cli.app import command, open_database
from strandline.cli.output import Form, Output, emit

__all__ = ["inspect"]


class Subject(StrEnum):
    """What there is to look into."""

    LOG = "log"
    STATE = "state"
    ROLLUPS = "rollups"
    PAGES = "pages"
    HOLDS = "holds"
    PART = "part"


@command("inspect", example="strandline inspect log --table readings", panel="Reports")
def inspect(
    ctx: typer.Context,
    what: Annotated[
        Subject,
        typer.Argument(
            help="log: its newest records; state: its sizes; rollups; pages: of the newest rollup; "
            "holds: who keeps history or objects, and the sessions; part: the footer of the part "
            "KEY."
        ),
    ],
    key: Annotated[
        str | None, typer.Argument(metavar="KEY", help="Of a part: its object key, or its id.")
    ] = None,
    table: Annotated[
        str | None,
        typer.Option("--table", help="Of that table's shard; else of the database's own."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, metavar="RECORDS", help="So many records of the log.")
    ] = 20,
    output: Output = Form.TABLE,
) -> None:
    """Look into the log, the state, or a part."""
    if (what is Subject.PART) != (key is not None):
        raise sl.UsageError(
            "`inspect part` takes the KEY of a part, and nothing else does; `strandline parts "
            "TABLE` lists the keys"
        )
    with open_database(ctx) as db:
        rows = db.inspect(what.value, table=table, key=key, limit=limit)
    emit(rows, output, whole=True)
