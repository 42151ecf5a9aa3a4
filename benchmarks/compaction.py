"""Compaction of 200 sorted parts that span the table, 5M rows, beside DuckDB's sorted COPY.

    python -m benchmarks.compaction [--rows 5000000] [--parts 200] [--runs 3] [--kinds keyed rows]
        [--no-spark]

DuckDB sorts the very same files with as many threads, zstd too. Each compaction is of a fresh copy
of the table, in a process of its own, whose peak memory is noted; DuckDB runs in turn with it.
Every key is in the table once, so both have the same rows to write. On Spark:
`db.compact(engine=spark)`, in a session that is warm; its processes' memory is not looked at.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import duckdb
import numpy as np

import strandline as sl
from benchmarks.common import KEY_SPACE, SCHEMA, machine, median, ratio, rows, scratch, timed

ALONE = sl.Settings(small_parts_max=1 << 60, level_zero_parts_max=1 << 60)
"""Nothing is merged in the background before it is measured."""

ONCE = """
import json, resource, sys, time
import strandline as sl
with sl.connect(sys.argv[1]) as db:
    start = time.perf_counter()
    report, = db.compact("readings", strategy="full")
    taken = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(json.dumps([taken, peak, report.parts_before, report.parts_after]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--parts", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", default=["keyed", "rows"])
    parser.add_argument("--no-spark", action="store_true")
    given = parser.parse_args()
    print(f"compaction: {given.parts} parts, {given.rows} rows; {machine()}")
    for kind in given.kinds:
        with scratch() as path:
            build(path / "lake", kind, given.rows, given.parts)
            theirs = beside(path, kind, given.rows, given.runs)
            if not given.no_spark:
                on_spark(path, kind, given.rows, theirs)


def build(lake: Path, kind: str, count: int, parts: int) -> None:
    """A table of so many parts, each sorted and over all keys, that share none."""
    numbers = np.random.default_rng(31).permutation(count)
    with sl.connect(lake, settings=ALONE) as db:
        table = db.create_table("readings", SCHEMA, row_keys="key", kind=kind)
        for part, some in enumerate(np.array_split(numbers, parts)):
            keys = np.sort(some) * (KEY_SPACE // count)
            table.append(rows(len(keys), part, keys=keys))
        found = len(table.parts())
        assert found == parts, found


def beside(path: Path, kind: str, count: int, runs: int) -> float:
    """Compactions in turn with DuckDB; prints both and gives DuckDB's median."""
    files = sorted((path / "lake").glob("w*/s*/part/*.parquet"))
    ours, theirs, peaks = [], [], []
    for _ in range(runs):
        theirs.append(timed(lambda: copied(files, path / "sorted.parquet")))
        shutil.copytree(path / "lake", path / "copy")
        seconds, peak, _, after = once(path / "copy")
        with sl.connect(path / "copy", mode="r") as db:
            assert len(db["readings"]) == count
        shutil.rmtree(path / "copy")
        ours.append(seconds)
        peaks.append(peak)
    print(f"{kind + ': parts afterwards':<44} {after}")
    show(f"{kind}: in this process", ours, count)
    show(f"{kind}: DuckDB, COPY … ORDER BY, zstd", theirs, count)
    ratio(f"{kind}: speed against DuckDB (medians)", median(theirs), median(ours), "at least 0.7")
    print(f"{kind + ': peak memory of the process':<44} {max(peaks):.2f} GiB   (aim: below 2)")
    return median(theirs)


def once(lake: Path) -> tuple[float, float, int, int]:
    """One compaction: seconds, GiB at most, parts before and after."""
    command = [sys.executable, "-c", ONCE, str(lake)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    seconds, peak, before, after = json.loads(done.stdout)
    return seconds, peak, before, after


def on_spark(path: Path, kind: str, count: int, theirs: float) -> None:
    """The second of two compactions on one Spark session."""
    spark = sl.spark.session("strandline-benchmark")
    for _ in range(2):
        shutil.copytree(path / "lake", path / "copy")
        with sl.connect(path / "copy") as db:
            seconds = timed(lambda db=db: db.compact("readings", strategy="full", engine=spark))
            assert len(db["readings"]) == count
        shutil.rmtree(path / "copy")
    show(f"{kind}: on Spark", [seconds], count)
    ratio(f"{kind}: speed on Spark against DuckDB", theirs, seconds, "none; one job per leaf")
    spark.stop()


def show(label: str, seconds: Sequence[float], count: int) -> None:
    shown = "  ".join(f"{each:.2f}" for each in seconds)
    print(f"{label:<44} {shown} s; {count / median(seconds) / 1e6:.2f} M rows/s", flush=True)


def copied(files: Sequence[Path], target: Path) -> None:
    """The rows of the files, sorted, as DuckDB writes them."""
    names = ", ".join(f"'{file}'" for file in files)
    with duckdb.connect(config={"threads": sl.Settings().threads}) as connection:
        connection.execute(
            f"COPY (SELECT * FROM read_parquet([{names}]) ORDER BY key) TO '{target}' "
            "(FORMAT parquet, COMPRESSION zstd)"
        )


if __name__ == "__main__":
    main()
