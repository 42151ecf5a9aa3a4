"""Commands that keep a database in shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any

import pyarrow as pa
import typer

from strandline.cli.app import (
    EXIT_FAILED,
    LONG_SECONDS,
    Timeout,
    Yes,
    command,
    confirm,
    open_database,
    url_of,
)
from strandline.cli.loading import spark_session
from strandline.cli.output import Form, Output, emit, note
from strandline.cli.progress import bar

__all__ = ["compact", "confirm_restore", "prune", "reported", "vacuum"]

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
        ("why_nothing", pa.string()),
    ]
)


VACUUMED = pa.schema(
    [
        ("table", pa.string()),
        ("dropped", pa.bool_()),
        ("objects", pa.int64()),
        ("bytes", pa.int64()),
        ("waiting", pa.string()),
        ("rollups", pa.int64()),
        ("records", pa.int64()),
        ("damaged", pa.list_(pa.string())),
        ("left", pa.int64()),
    ]
)
GIVEN_UP = pa.schema([("records_given_up", pa.int64())])
PRUNED = pa.schema(
    [
        ("table", pa.string()),
        ("since", pa.timestamp("us", "UTC")),
        ("held_by", pa.list_(pa.string())),
        ("objects", pa.int64()),
        ("bytes", pa.int64()),
        ("waiting", pa.string()),
        ("left", pa.int64()),
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
    for each in reports:
        if each.why_nothing is not None:
            note(f"{each.table}: nothing was merged: {each.why_nothing}")


Names = Annotated[
    list[str] | None, typer.Argument(metavar="TABLE", help="Tables; else all that there are.")
]


@command("vacuum", example="strandline vacuum --dry-run", panel=PANEL)
def vacuum(
    ctx: typer.Context,
    names: Names = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would go now, and do nothing.")
    ] = False,
    timeout: Timeout = LONG_SECONDS,
    output: Output = Form.TABLE,
) -> int:
    """Delete objects that nothing needs any more, and shorten the logs.

    An object goes once nothing refers to it, nobody holds it, and the table's deletion_delay has
    passed since a vacuum saw it dead: so the first run deletes little, and a later one the rest.
    What waits is said with what it waits for: a rollup, a hold, the delay, or a receipt. Without
    TABLE, what tables left that were dropped goes as well. With --dry-run, records is the one that
    the log would begin with. Objects of which no answer said that they are gone are left for the
    next run, and the exit status is 1.
    """
    with open_database(ctx, write=not dry_run) as db, bar("vacuuming") as report:
        done = db.vacuum(
            names or None,
            dry_run=dry_run,
            progress=lambda _, gone, count: report(gone, count),
            timeout=timeout,
        )
    rows = [
        {
            "table": each.table,
            "dropped": each.dropped,
            "objects": each.shard.objects,
            "bytes": each.shard.bytes,
            "waiting": _waiting(each.shard.waiting),
            "rollups": each.shard.rollups,
            "records": each.shard.records,
            "damaged": list(each.shard.damaged),
            "left": each.shard.left,
        }
        for each in done
    ]
    title = "what would go" if dry_run else "what went"
    emit(pa.Table.from_pylist(rows, schema=VACUUMED), output, title=title, whole=True)
    return _completed(rows)


@command("prune", example="strandline prune --before 2026-01-31T00:00:00Z --yes", panel=PANEL)
def prune(
    ctx: typer.Context,
    before: Annotated[
        str,
        typer.Option(
            "--before", metavar="TIME", help="The earliest time to be read, such as in the example."
        ),
    ],
    names: Names = None,
    yes: Yes = False,
    timeout: Timeout = LONG_SECONDS,
    output: Output = Form.TABLE,
) -> int:
    """Give up history before a time, whatever the retention says; then vacuum.

    History goes from its beginning only, and only as far as nobody holds it: held_by says who does,
    and since, from when on the table can be read now.
    """
    of = ", ".join(names) if names else "all tables"
    confirm(f"Give up the history of {of} before {before}?", yes=yes)
    with open_database(ctx, write=True) as db, bar("pruning") as report:
        done = db.prune(
            names or None,
            before=before,
            progress=lambda _, gone, count: report(gone, count),
            timeout=timeout,
        )
    rows = [
        {
            "table": each.table,
            "since": each.since,
            "held_by": list(each.held_by),
            "objects": 0 if each.shard is None else each.shard.objects,
            "bytes": 0 if each.shard is None else each.shard.bytes,
            "waiting": "" if each.shard is None else _waiting(each.shard.waiting),
            "left": 0 if each.shard is None else each.shard.left,
        }
        for each in done
    ]
    emit(pa.Table.from_pylist(rows, schema=PRUNED), output, whole=True)
    return _completed(rows)


@command("confirm-restore", example="strandline confirm-restore --yes", panel=PANEL)
def confirm_restore(ctx: typer.Context, yes: Yes = False, output: Output = Form.TABLE) -> None:
    """Go on from a log that is older than it was: where a copy was put back, or its end was lost.

    Until then nobody can write. What was committed after it is given up, and cannot be had back;
    put the newest log back instead, if there is one. Tells how many records are given up, at least.
    """
    confirm(
        f"Go on from the log of {url_of(ctx)} as it is, and give up what was committed after it?",
        yes=yes,
    )
    with open_database(ctx, write=True) as db:
        records = db.confirm_restore()
    emit(pa.Table.from_pylist([{"records_given_up": records}], schema=GIVEN_UP), output)


def _completed(rows: Iterable[Mapping[str, Any]]) -> int:
    """The exit status of a run that may have left objects behind, after telling so."""
    left = sum(row["left"] for row in rows)
    if left:
        note(
            f"strandline: not complete: {left} objects that nothing needs are left, because the "
            "location did not say that they are gone; run it again"
        )
    return EXIT_FAILED if left else 0


def _waiting(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} for {reason}" for reason, count in sorted(counts.items()))


def reported(reports: list[Any]) -> pa.Table:
    """What compactions did, one row per table."""
    return pa.Table.from_pylist([asdict(report) for report in reports], schema=REPORT)
