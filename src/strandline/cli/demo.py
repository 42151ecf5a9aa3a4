"""The command that shows, with real data, what Strandline does."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
import typer

import strandline as sl
from strandline.cli.app import called, command
from strandline.cli.output import Form, Output, emit
from strandline.cli.progress import Report
from strandline.cli.reports import status_of
from strandline.cli.story import Story, console_for, median_seconds

__all__ = ["demo"]

_MARK = ".strandline-demo"
"""Marks a directory that the demo made, and so may remove."""
_FILES = 4
_APPENDS = 50
_LOOKUPS = 101
_NEW_YEAR = "1998-01-01"


@command("demo", example="strandline demo --scale 0.01", panel="Start here")
def demo(
    path: Annotated[
        Path, typer.Option("--path", metavar="DIRECTORY", help="Where; made anew each time.")
    ] = Path("demo-lake"),
    scale: Annotated[
        float,
        typer.Option("--scale", min=0.001, help="TPC-H scale factor: 1 is 6 million line items."),
    ] = 0.1,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep what an earlier run left, and add to it.")
    ] = False,
    output: Output = Form.TABLE,
) -> None:
    """Import TPC-H data on Spark and show, with times, what Strandline does.

    The database stays in DIRECTORY/lake for you to look at. Other forms of output than a table
    give the times alone.
    """
    story = Story(console_for(output_is_story=output is Form.TABLE))
    generator = _generator()
    _prepare(path, keep=keep)
    _make_data(story, generator, path / "tpch", scale)
    story.begin(
        "Start Spark", "Imports and compactions run on it; reading and small writes do not."
    )
    with story.timed("Spark session"):
        session = sl.spark.session("strandline-demo")
    try:
        with sl.connect(path / "lake") as db:
            _Demo(story, db, session, path / "tpch").run()
    finally:
        session.stop()
    _farewell(story, path / "lake")
    if output is not Form.TABLE:
        emit(story.closing(), output)


# --- before


def _generator() -> str:
    """The program that makes TPC-H data: of this environment, else of the machine."""
    beside = Path(sys.executable).with_name("tpchgen-cli")
    found = str(beside) if beside.exists() else shutil.which("tpchgen-cli")
    if found is None:
        raise sl.UsageError(
            "the demo makes its data with tpchgen-cli, which is not installed; "
            "pip install tpchgen-cli (make setup does)"
        )
    return found


def _prepare(path: Path, *, keep: bool) -> None:
    if path.exists() and not keep:
        if any(path.iterdir()) and not (path / _MARK).exists():
            raise sl.UsageError(
                f"{path} was not made by the demo, and would be removed; pass another --path"
            )
        shutil.rmtree(path)
    path.mkdir(parents=True, exist_ok=True)
    (path / _MARK).touch()


def _make_data(story: Story, generator: str, to: Path, scale: float) -> None:
    story.begin("Make data", f"TPC-H at scale factor {scale:g}: line items and orders, as Parquet.")
    arguments = ["parquet", f"--scale-factor={scale:g}", "--tables=lineitem,orders"]
    arguments += [f"--parts={_FILES}", f"--output-dir={to}", "--overwrite"]
    with story.timed("tpchgen-cli"):
        run = subprocess.run(
            [generator, *arguments], check=False, capture_output=True, text=True, timeout=3600
        )
    if run.returncode:
        raise sl.StrandlineError(f"{generator} failed: {run.stderr or run.stdout}")


def _farewell(story: Story, lake: Path) -> None:
    story.console.print("\n[bold green]That was Strandline.[/bold green] The database stays here:")
    program, url = called(), shlex.quote(str(lake))
    for line in ("status", "get orders 7", "history"):
        story.command(f"{program} --url {url} {line}")


# --- the story


@dataclass
class _Demo:
    story: Story
    db: sl.Database
    session: Any
    data: Path

    def run(self) -> None:
        """All of it, in order."""
        first = self.import_both()
        self.leaves()
        self.lookups()
        self.range_scan()
        self.join()
        second = self.import_more()
        last = self.appends()
        self.time_travel({"first import": first, "second import": second, "the appends": last})
        self.compaction()
        self.status()

    def import_both(self) -> sl.Commit:
        """Creates both tables and fills them."""
        self.story.begin(
            "Import on Spark",
            "Rows are cut into leaves by key and sorted there; one atomic commit per table.",
        )
        lines = self.table("lineitem", "l_orderkey", "l_linenumber")
        orders = self.table("orders", "o_orderkey", ())
        with self.story.timed("import of orders") as report:
            commit = self.load(orders.name, self.files("orders"), report)
        self.story.say(f"{commit.rows:,} rows in commit {commit.id}")
        shipped = self.frame().where(f"l_shipdate < date '{_NEW_YEAR}'")
        with self.story.timed("import of lineitem") as report:
            commit = self.load(lines.name, shipped, report)
        self.story.say(f"{commit.rows:,} rows in commit {commit.id}")
        return commit

    def leaves(self) -> None:
        """Shows how the table is partitioned."""
        self.story.begin(
            "The leaves of lineitem",
            "Each covers an interval of keys; they were found by sampling.",
        )
        partitions = self.db["lineitem"].partitions()
        self.story.rows(partitions, ["leaf", "lower", "upper", "rows", "bytes"])

    def lookups(self) -> None:
        """Looks up keys."""
        self.story.begin("Look up by key", "A leaf, a part, a row group: no scan, and no index.")
        keys = self.keys()
        table = self.db["lineitem"]
        self.story.rows(table.get(keys[0]), ["l_orderkey", "l_linenumber", "l_shipdate"], 4)
        took = median_seconds(lambda at: table.get(keys[at % len(keys)]), _LOOKUPS)
        self.story.note("one lookup", took, f"(median of {_LOOKUPS})")

    def range_scan(self) -> None:
        """Scans an interval of keys."""
        self.story.begin(
            "Scan a range", "The keys from one to another, a few columns, a condition."
        )
        keys = self.keys()
        lower, upper = keys[len(keys) // 2], keys[len(keys) // 2 + 1]
        scan = self.db["lineitem"].scan(
            ["l_orderkey", "l_quantity"], "l_quantity > 10", key_range=(lower, upper)
        )
        with self.story.timed(f"keys from {lower:,} to {upper:,}"):
            found = scan.to_arrow()
        self.story.say(f"{found.num_rows:,} rows")

    def join(self) -> None:
        """Joins both tables in SQL."""
        self.story.begin("Ask in SQL", "DuckDB over our own readers: both tables as of one moment.")
        with self.story.timed("join and aggregate"):
            answer = self.db.sql(
                "select o_orderpriority as priority, count(*) as line_items from lineitem "
                "join orders on l_orderkey = o_orderkey group by all order by all"
            ).to_arrow_table()
        self.story.rows(answer, ["priority", "line_items"])

    def import_more(self) -> sl.Commit:
        """Imports what comes later, into the same leaves."""
        self.story.begin(
            "Import again", "The shipments of 1998 arrive; their keys are spread over all leaves."
        )
        later = self.frame().where(f"l_shipdate >= date '{_NEW_YEAR}'")
        with self.story.timed("second import") as report:
            commit = self.load("lineitem", later, report)
        self.story.say(f"{commit.rows:,} rows more")
        return commit

    def appends(self) -> sl.Commit:
        """Appends single rows."""
        self.story.begin(
            f"{_APPENDS} small appends", "One durable commit per row; it is visible as it returns."
        )
        table = self.db["lineitem"]
        row = table.head(1)
        at = row.schema.get_field_index("l_orderkey")
        keys = self.keys()
        commits: list[sl.Commit] = []

        def append(number: int) -> None:
            key = pa.array([keys[number % len(keys)]], row.schema.field(at).type)
            commits.append(table.append(row.set_column(at, row.schema.field(at), key)))

        self.story.note("one append", median_seconds(append, _APPENDS), "(median)")
        return commits[-1]

    def time_travel(self, moments: dict[str, sl.Commit]) -> None:
        """Counts rows as of earlier commits."""
        self.story.begin("Travel in time", "Any moment that is kept can be read, exactly.")
        for name, commit in moments.items():
            rows = len(self.db["lineitem"].as_of(commit))
            self.story.say(f"as of {name} ({commit.time:%H:%M:%S.%f}): {rows:,} line items")

    def compaction(self) -> None:
        """Compacts on Spark."""
        self.story.begin(
            "Compact on Spark", "Each leaf's parts become one again; readers are not disturbed."
        )
        keys = self.keys()
        table = self.db["lineitem"]
        before = median_seconds(lambda at: table.get(keys[at % len(keys)]), _LOOKUPS)
        with self.story.timed("compaction") as report:
            done = self.db.compact(
                "lineitem", strategy="full", engine=self.session, progress=report
            )[0]
        after = median_seconds(lambda at: table.get(keys[at % len(keys)]), _LOOKUPS)
        self.story.say(
            f"{done.parts_before} parts before, {done.parts_after} after, {done.jobs} merges"
        )
        self.story.note("one lookup before", before, "(median)")
        self.story.note("one lookup after", after, "(median)")

    def status(self) -> None:
        """Shows what is stored."""
        self.story.begin("Status", "What is stored: the whole database, then each table.")
        columns = ["table", "rows", "bytes", "parts", "leaves", "backlog", "log_records", "rollups"]
        self.story.rows(status_of(self.db), columns)

    # --- what the steps share

    def table(self, name: str, row_keys: str, sort_keys: Any) -> sl.Table:
        """A table with the columns of its files."""
        schema = pq.read_schema(self.files(name)[0]).remove_metadata()
        return self.db.create_table(
            name, schema, row_keys=row_keys, sort_keys=sort_keys, exist_ok=True
        )

    def load(self, table: str, source: Any, report: Report) -> sl.Commit:
        """Imports a DataFrame or files."""
        commit: sl.Commit = sl.spark.import_table(
            self.session,
            self.db,
            table,
            source,
            progress=lambda _, done, of: report(done, of),
        )
        return commit

    def files(self, name: str) -> list[str]:
        """The files of a table."""
        return [str(path) for path in sorted((self.data / name).glob("*.parquet"))]

    def frame(self) -> Any:
        """The line items as Spark sees them."""
        return self.session.read.parquet(*self.files("lineitem"))

    def keys(self) -> list[int]:
        """Some order keys that are there, from all over the table."""
        files = self.files("orders")
        column = pq.read_table(files[len(files) // 2], columns=["o_orderkey"])["o_orderkey"]
        step = max(1, len(column) // _LOOKUPS)
        return list(column.take(pa.array(range(0, len(column), step))).to_pylist())
