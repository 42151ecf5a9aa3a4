"""What history costs who reads the present, and what keeping it apart costs a compaction.

    python -m benchmarks.history [--keys 500000] [--rows 5000000] [--parts 200]

A keyed table with ten versions of every key, all within its retention, beside one that was written
once: lookups and scans of the present. Then the compaction of many parts of a table of rows, beside
DuckDB's sorted COPY of the same files.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import duckdb
import numpy as np
import pyarrow.parquet as pq

import strandline as sl
from benchmarks.common import SCHEMA, line, machine, median, ratio, rows, scratch, timed

VERSIONS = 10
ROUNDS = 7
LOOKUPS = 300

ALONE = sl.Settings(small_part_bytes_max=1)
"""Nothing is merged in the background while something is measured."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=500_000)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--parts", type=int, default=200)
    given = parser.parse_args()
    print(f"history: {given.keys} keys, {VERSIONS} versions of each; {machine()}")
    with scratch() as path:
        present(path, given.keys)
    with scratch() as path:
        compaction(path, given.rows, given.parts)


def present(path: Path, count: int) -> None:
    """Scans and lookups of the present, with history and without."""
    keys = np.arange(count, dtype=np.int64) * 1_001
    rng = np.random.default_rng(3)
    with sl.connect(path / "lake", settings=ALONE) as db:
        old = db.create_table("old", SCHEMA, row_keys="key", kind="keyed")
        new = db.create_table("new", SCHEMA, row_keys="key", kind="keyed")
        for version in range(VERSIONS):
            newest = rows(count, version, keys=keys)
            old.append(newest)
        new.append(newest)
        seconds = timed(lambda: db.compact("old", strategy="full"))
        print(f"{'compaction of all versions':<44} {seconds:.2f} s")
        shown = old.parts().select(["rows", "bytes"]).to_pylist()
        print(f"{'parts of the table with history':<44} {shown}")
        assert old.scan().count() == new.scan().count() == count
        compared(old, new, keys, rng, "with history")
        few = rng.choice(keys, count // 100, replace=False)
        changed = rows(len(few), 99, keys=np.sort(few))
        old.append(changed)
        new.append(changed)
        compared(old, new, keys, rng, "with history, 1 % newer beside")


def compared(
    old: sl.Table, new: sl.Table, keys: np.ndarray, rng: np.random.Generator, label: str
) -> None:
    """Both tables in turn, so that what else the machine does is the same for both."""
    for name, read in (
        ("scan", lambda table: table.scan().to_arrow()),
        ("one column", lambda table: table.scan(columns=["value"]).to_arrow()),
    ):
        ours, theirs = alternately(old, new, read)
        ratio(f"{name}, {label} : without", ours, theirs, "at most 1.2")
    mine: list[float] = []
    others: list[float] = []
    for key in rng.choice(keys, LOOKUPS, replace=False):
        for table, times in ((old, mine), (new, others)):
            start = time.perf_counter()
            assert table.get(int(key)).num_rows == 1
            times.append(time.perf_counter() - start)
    line(f"lookup, {label}", mine)
    line("lookup, without", others)
    ratio(f"lookup, {label} : without", median(mine), median(others), "at most 1.2")


def alternately(
    old: sl.Table, new: sl.Table, read: Callable[[sl.Table], object]
) -> tuple[float, float]:
    """The median seconds of both."""
    mine: list[float] = []
    others: list[float] = []
    for _ in range(ROUNDS):
        mine.append(timed(lambda: read(old)))
        others.append(timed(lambda: read(new)))
    return median(mine[1:]), median(others[1:])


def compaction(path: Path, count: int, parts: int) -> None:
    """Rows per second of a compaction of many parts, and of DuckDB on the same rows."""
    rng = np.random.default_rng(4)
    files: list[Path] = []
    each = count // parts
    with sl.connect(path / "lake", settings=ALONE) as db:
        table = db.create_table("readings", SCHEMA, row_keys="key")
        for number in range(parts):
            data = rows(each, number, keys=np.sort(rng.integers(0, 1 << 40, each)))
            table.append(data)
            files.append(path / f"{number}.parquet")
            pq.write_table(data, files[-1], compression="zstd")
        ours = timed(lambda: db.compact("readings", strategy="full"))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        assert table.scan().count() == each * parts
    theirs = timed(lambda: copied(files, path / "sorted.parquet"))
    print(f"{'parts, rows':<44} {parts}, {each * parts}")
    print(f"{'peak memory of the process':<44} {peak:.2f} GiB (aim: below 2)")
    print(f"{'compaction; DuckDB COPY':<44} {ours:.2f} s; {theirs:.2f} s")
    ratio("speed of compaction : DuckDB's sorted COPY", 1 / ours, 1 / theirs, "at least 0.7")


def copied(files: Sequence[Path], target: Path) -> None:
    names = ", ".join(f"'{file}'" for file in files)
    with duckdb.connect() as connection:
        connection.execute(
            f"COPY (SELECT * FROM read_parquet([{names}]) ORDER BY key) TO '{target}' "
            "(FORMAT parquet, COMPRESSION zstd)"
        )


if __name__ == "__main__":
    main()
