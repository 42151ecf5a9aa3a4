"""Commands that read tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

import strandline as sl
from strandline.cli.app import LONG_SECONDS, Timeout, command, open_database
from strandline.cli.loading import emit_commit
from strandline.cli.output import Form, Output, emit, emit_each, note
from strandline.cli.parsing import key_of, names_of, range_of
from strandline.cli.progress import bar

__all__ = ["export", "get", "history", "scan", "sql", "subscribe"]

PANEL = "Reading"

TableName = Annotated[str, typer.Argument(metavar="TABLE", help="The table's name.")]
AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="TIME",
        help="Read as of a time, such as 2026-11-20T10:00:00Z, or of a commit, by its id.",
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option("--columns", metavar="COLUMNS", help="Only these, with commas between."),
]
Limit = Annotated[
    int | None, typer.Option("--limit", min=0, metavar="ROWS", help="At most that many rows.")
]


@command("get", example="strandline get readings 7", panel=PANEL)
def get(
    ctx: typer.Context,
    name: TableName,
    key: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY",
            help="Values of the row keys, then of the sort keys; the first ones do. Write -- "
            "before a negative number.",
        ),
    ],
    columns: Columns = None,
    as_of: AsOf = None,
    output: Output = Form.TABLE,
) -> None:
    """Look up all rows whose keys begin with KEY."""
    with open_database(ctx, moment=as_of) as db:
        table = db.table(name)
        rows = table.get(
            *key_of(key, table.schema, [*table.row_keys, *table.sort_keys]),
            columns=names_of(columns) if columns else None,
            as_of=as_of,
        )
    emit(rows, output, data=True)


@command(
    "scan",
    example="strandline scan readings --columns sensor,value --where 'value > 3' --key-range 7 9",
    panel=PANEL,
)
def scan(
    ctx: typer.Context,
    name: TableName,
    columns: Columns = None,
    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="Rows for which this is true.")
    ] = None,
    key_range: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--key-range",
            metavar="LOWER UPPER",
            help="Keys from LOWER to before UPPER; of several columns with commas between, '' for "
            "an open end.",
        ),
    ] = None,
    as_of: AsOf = None,
    limit: Limit = None,
    count: Annotated[bool, typer.Option("--count", help="Only say how many rows.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Only say what would be read.")
    ] = False,
    output: Output = Form.TABLE,
) -> None:
    """Read rows, sorted by key."""
    with open_database(ctx, moment=as_of) as db:
        table = db.table(name)
        keys = [*table.row_keys, *table.sort_keys]
        wanted = table.scan(
            names_of(columns) if columns else None,
            where,
            key_range=None if key_range is None else range_of(*key_range, table.schema, keys),
            as_of=as_of,
            limit=limit,
        )
        if explain:
            emit(_explained(wanted.explain()), output)
        elif count:
            emit(pa.table({"rows": [wanted.count()]}), output)
        else:
            emit(wanted.to_reader(), output, data=True, whole=limit is not None)


@command("export", example="strandline export readings readings.parquet", panel=PANEL)
def export(
    ctx: typer.Context,
    name: TableName,
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file named .parquet, .csv or .json.")
    ],
    columns: Columns = None,
    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="Rows for which this is true.")
    ] = None,
    as_of: AsOf = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file if it is there.")
    ] = False,
    output: Output = Form.TABLE,
) -> None:
    """Write rows into one file, sorted by key, as of one moment and in bounded memory."""
    with open_database(ctx, moment=as_of) as db:
        rows = db.table(name).export(
            path,
            columns=names_of(columns) if columns else None,
            where=where,
            as_of=as_of,
            overwrite=overwrite,
        )
    emit(pa.table({"file": [str(path)], "rows": [rows]}), output)


def _explained(explanation: Any) -> pa.Table:
    row = asdict(explanation)
    time = pa.array([row.pop("as_of")], pa.timestamp("us", "UTC"))
    return pa.Table.from_pylist([row]).add_column(0, "as_of", time)


@command(
    "sql",
    example="strandline sql 'select sensor, avg(value) from readings group by sensor'",
    panel=PANEL,
)
def sql(
    ctx: typer.Context,
    statement: Annotated[
        str, typer.Argument(metavar="SQL", help="One statement; - reads it from standard input.")
    ],
    as_of: AsOf = None,
    limit: Limit = None,
    timeout: Timeout = LONG_SECONDS,
    output: Output = Form.TABLE,
) -> None:
    """Run SQL in DuckDB: a query, or INSERT, UPDATE, DELETE or COPY FROM as one transaction.

    COPY readings FROM 'new/*.csv' appends files; COPY readings TO 'out.parquet', or COPY (SELECT …)
    TO 'out.csv', writes one. They are files of this machine: Parquet, CSV or JSON.
    """
    text = sys.stdin.read() if statement == "-" else statement
    with _to_query(ctx) as db:
        with bar("running"):
            result = db.sql(text, as_of=as_of, timeout=timeout)
        if isinstance(result, sl.Commit):
            emit_commit(result, output)
            return
        rows = result if limit is None else result.limit(limit)
        emit(rows.to_arrow_reader(), output, data=True, whole=limit is not None)


def _to_query(ctx: typer.Context) -> Any:
    """The database for a statement that may write, and only then needs the permission to."""
    # A moment asks for the same: writable where that is allowed.
    return open_database(ctx, moment="any")


@command(
    "subscribe",
    example="strandline subscribe readings --where 'value > 3' --progress mark --timeout 1",
    panel=PANEL,
)
def subscribe(
    ctx: typer.Context,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="TABLE...", help="One table; or several, with all changes up to one time."
        ),
    ],
    start: Annotated[
        str,
        typer.Option(
            "--start",
            metavar="WHERE",
            help="snapshot: with the rows as of now; now: with what comes; or the progress that an "
            "earlier run ended with; or a time, such as 2026-11-20T10:00:00Z.",
        ),
    ] = "snapshot",
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="End after that time.")
    ] = None,
    columns: Columns = None,
    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="Rows for which this is true.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", help="End after so long without a change."),
    ] = None,
    with_old: Annotated[
        bool, typer.Option("--with-old", help="Also the row before (tables of kind keyed).")
    ] = False,
    kept: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="Keep the history that is needed, over restarts."
        ),
    ] = None,
    progress: Annotated[
        Path | None,
        typer.Option(
            "--progress",
            metavar="FILE",
            help="Keep the progress in FILE: after what was printed, the next run goes on from it.",
        ),
    ] = None,
    output: Output = Form.TABLE,
) -> None:
    """Print every change of a table, or of several, as it comes, in whole commit times.

    Of several tables, --output json and table say to which one rows belong; a condition or columns
    can be given for one alone.
    """
    if progress is not None and progress.exists():
        start = progress.read_text(encoding="utf-8").strip()
    chosen = names_of(columns) if columns else None
    ends: dict[str, Any] = {"timeout": timeout, "with_old": with_old, "name": kept}
    several = len(names) > 1
    if several and (chosen or where):
        raise sl.UsageError("--columns and --where are for one table; subscribe to it alone")
    if several and output not in {Form.TABLE, Form.JSON}:
        raise sl.UsageError(f"--output {output.value} has room for one table; json has for several")
    with open_database(ctx, moment="any") as db:
        changes: Any = (
            db.subscribe(names, start, until, **ends)
            if several
            else db.table(names[0]).subscribe(start, until, chosen, where, **ends)
        )
        with changes:
            try:
                (_print_together if several else _print_changes)(changes, output, progress)
            finally:
                if sys.stderr.isatty():
                    note(f"--start {changes.progress} goes on from here")


def _print_changes(changes: sl.Subscription, output: Form, file: Path | None) -> None:
    """Prints changes; `file` gets the progress of what was printed, never more."""

    def printed() -> Iterator[pa.Table]:
        for change in changes:
            if change.rows.num_rows:
                yield change.rows
            if file is not None and change.complete:
                _keep(str(change.progress), file)

    if output is Form.TABLE:
        for rows in printed():
            emit(rows, output, data=True, whole=True)
            sys.stdout.flush()
        return
    batches = (batch for rows in printed() for batch in rows.combine_chunks().to_batches())
    emit(pa.RecordBatchReader.from_batches(changes.schema, batches), output, data=True)


def _print_together(changes: sl.TablesSubscription, output: Form, file: Path | None) -> None:
    """The same of several tables: each row in an object with its table's name."""

    def printed() -> Iterator[tuple[str, pa.Table]]:
        for change in changes:
            yield from ((name, rows) for name, rows in change.tables.items() if rows.num_rows)
            if file is not None and change.complete:
                _keep(str(change.progress), file)

    if output is Form.TABLE:
        for name, rows in printed():
            emit(rows, output, title=name, data=True, whole=True)
            sys.stdout.flush()
        return
    emit_each(printed())


def _keep(text: str, file: Path) -> None:
    """Puts the text into the file, which always has this one or the one before."""
    other = file.with_name(f"{file.name}.new")
    other.write_text(f"{text}\n", encoding="utf-8")
    other.replace(file)


@command("history", example="strandline history readings --limit 5", panel=PANEL)
def history(
    ctx: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="Of one table; else of all.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=0, metavar="COMMITS", help="At most that many.")
    ] = 20,
    output: Output = Form.TABLE,
) -> None:
    """Show commits, the newest first."""
    with open_database(ctx) as db:
        rows = db.history(limit) if name is None else db.table(name).history(limit)
    emit(rows, output, whole=True)
