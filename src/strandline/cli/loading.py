"""Commands that put files into tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

import strandline as sl
from strandline.cli.app import LONG_SECONDS, Timeout, command, open_database
from strandline.cli.files import Format, found, read
from strandline.cli.output import Form, Output, emit
from strandline.cli.parsing import token_of
from strandline.cli.progress import bar

__all__ = ["emit_commit", "import_", "ingest", "spark_session"]

PANEL = "Writing"

TableName = Annotated[str, typer.Argument(metavar="TABLE", help="The table's name.")]
Files = Annotated[
    list[Path], typer.Argument(metavar="FILES", help="Files of Parquet, CSV or JSON lines.")
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="SCOPE:NUMBER",
        help="Write once however often this is run; the numbers of a scope grow.",
    ),
]

COMMIT = pa.schema(
    [
        ("commit", pa.string()),
        ("time", pa.timestamp("us", "UTC")),
        ("rows", pa.int64()),
        ("tables", pa.list_(pa.string())),
    ]
)


def emit_commit(commit: sl.Commit, output: Form) -> None:
    """Prints what was committed."""
    row = {
        "commit": commit.id,
        "time": commit.time,
        "rows": commit.rows,
        "tables": list(commit.tables),
    }
    emit(pa.Table.from_pylist([row], schema=COMMIT), output)


@contextmanager
def spark_session(**options: Any) -> Iterator[Any]:
    """A session of Spark, stopped in the end."""
    session = sl.spark.session(**options)
    try:
        yield session
    finally:
        session.stop()


@command("ingest", example="strandline ingest readings readings.csv", panel=PANEL)
def ingest(
    ctx: typer.Context,
    name: TableName,
    files: Files,
    form: Annotated[
        Format | None, typer.Option("--format", help="What the files are; else by their names.")
    ] = None,
    token: Token = None,
    timeout: Timeout = LONG_SECONDS,
    output: Output = Form.TABLE,
) -> None:
    """Append files to a table in one commit, in this process and in bounded memory.

    Columns are found by name, and missing ones are null. Nothing between commas is null in CSV; a
    time without a zone is in UTC. In a keyed table rows replace those of their keys.
    """
    sources = found(files, form)
    size = sum(path.stat().st_size for path, _ in sources)
    with open_database(ctx, write=True) as db:
        table = db.table(name)
        with bar(f"ingesting into {name}", size, bytes_=True) as report:
            rows = read(sources, table.schema, name, report)
            commit = table.append(rows, token=token_of(token), timeout=timeout)
    emit_commit(commit, output)


@command("import", example="strandline import readings readings.csv", panel=PANEL)
def import_(
    ctx: typer.Context,
    name: TableName,
    files: Files,
    master: Annotated[
        str, typer.Option("--master", help="Spark's master, where it is not this machine.")
    ] = "local[*]",
    token: Token = None,
    output: Output = Form.TABLE,
) -> None:
    """Append files to a table in one commit, on Spark: for what is large."""
    paths = [str(path) for path, _ in found(files)]
    with open_database(ctx, write=True) as db:
        db.table(name)  # a table that is not there is no reason to start Spark
        with (
            bar(f"importing into {name} on Spark") as report,
            spark_session(master=master) as spark,
        ):
            commit = sl.spark.import_table(
                spark,
                db,
                name,
                paths,
                token=token_of(token),
                progress=lambda _, done, of: report(done, of),
            )
    emit_commit(commit, output)
