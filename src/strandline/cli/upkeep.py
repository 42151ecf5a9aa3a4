"""Commands that keep a database in shape."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any

import pyarrow as pa
import typer

from strandline.cli.app import LONG_SECONDS, Timeout, command, open_database
from strandline.cli.loading import spark_session
from strandline.cli.output import Form, Output, emit
from strandline.cli.progress import bar

__all__ = ["compact", "reported"]

PANEL = "Upkeep"

REPORT = pa.schema(
    [
        ("table", pa.string()),
        ("parts_before", pa.int64()),
        ("parts_after", pa.int64()),
        ("jobs", pa.int64()),
        ("discarded", pa.int64()),
        ("rows", pa.int64()),
        ("claimed_by", pa.string()),
    ]
)


class Engine(StrEnum):
    """Where merging happens."""

    LOCAL = "local"
    SPARK = "spark"


class Strategy(StrEnum):
    """Which parts of a leaf are merged."""

    BASIC = "basic"
    FULL = "full"
    SIZE_RATIO = "size-ratio"


@command("compact", example="strandline compact readings --strategy full", panel=PANEL)
def compact(
    ctx: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="One table; else all that are online.")
    ] = None,
    engine: Annotated[
        Engine, typer.Option("--engine", help="Merge in this process, or on Spark.")
    ] = Engine.LOCAL,
    strategy: Annotated[
        Strategy | None,
        typer.Option("--strategy", help="Which parts are merged; else as the table says."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also tables that another is compacting.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the merges, and do nothing.")
    ] = False,
    timeout: Timeout = LONG_SECONDS,
    output: Output = Form.TABLE,
) -> None:
    """Merge parts, so that reads open fewer of them."""
    chosen = None if strategy is None else strategy.value
    if dry_run:
        with open_database(ctx) as db:
            jobs = db.plan_compaction(name, strategy=chosen)
        emit(jobs, output, title=f"{jobs.num_rows} merges", whole=True)
        return
    with open_database(ctx, write=True) as db, bar("compacting", 0) as report:
        names = [name] if name is not None else None
        if names is not None:
            db.table(names[0])  # a table that is not there is no reason to start Spark
        with spark_session() if engine is Engine.SPARK else nullcontext("local") as where:
            reports = db.compact(
                names,
                strategy=chosen,
                force=force,
                engine=where,
                progress=report,
                timeout=timeout,
            )
    emit(reported(reports), output, whole=True)


def reported(reports: list[Any]) -> pa.Table:
    """What compactions did, one row per table."""
    return pa.Table.from_pylist([asdict(report) for report in reports], schema=REPORT)
