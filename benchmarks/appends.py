"""One-row durable appends through `Table.append`, apply and rollups on, and lookups after them.

    python -m benchmarks.appends [--count 20000] [--leaves 1]

Afterwards: how long L0 is and how many parts a lookup opens.
Beside it the floor: one SQLite commit of 1 KB with `synchronous=FULL` on the same disk.
"""

from __future__ import annotations

import argparse
import sqlite3
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import strandline as sl
from benchmarks.common import KEY_SPACE, SCHEMA, line, machine, median, ratio, rows, scratch
from strandline.parts.files.read import PartReader
from strandline.state.plan import level_zero


def floor(path: Path, count: int) -> list[float]:
    """Seconds of each of `count` commits of 1 KB."""
    connection = sqlite3.connect(path / "floor.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE log (seqno INTEGER PRIMARY KEY, data BLOB)")
    taken = []
    for seqno in range(count):
        start = time.perf_counter()
        connection.execute("INSERT INTO log VALUES (?, ?)", (seqno, b"x" * 1024))
        taken.append(time.perf_counter() - start)
    connection.close()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--leaves", type=int, default=1)
    asked = parser.parse_args()
    count, leaves = asked.count, asked.leaves
    print(f"appends: {count} of one row to {leaves} leaves; {machine()}")
    keys = np.random.default_rng(1).choice(KEY_SPACE, count, replace=False)
    data = rows(count, 2, keys=keys)
    records = data.to_pylist()
    with scratch() as path, sl.connect(path / "lake") as db:
        line("floor: SQLite commit, synchronous=FULL", floor(path, 5_000))
        points = [KEY_SPACE * n // leaves for n in range(1, leaves)]
        table = db.create_table("readings", SCHEMA, row_keys="key", split_points=points)
        taken = []
        for record in records:
            start = time.perf_counter()
            table.append([record])
            taken.append(time.perf_counter() - start)
        line("append of one row", taken)
        ratio("last 50 against first 50 (medians)", median(taken[-50:]), median(taken[:50]), "1.2")
        rng = np.random.default_rng(3)
        hits = [look_up(table, int(key), 1) for key in rng.permutation(keys)[:2_000]]
        line("lookup of a present key afterwards", hits)
        misses = [look_up(table, int(key), 0) for key in rng.integers(0, KEY_SPACE, 1_000)]
        line("lookup of an absent key afterwards", misses)
        assert len(table) == count
        opened(db, table, keys[:500].tolist())


def opened(db: sl.Database, table: sl.Table, keys: list[int]) -> None:
    """Prints what lookups have to look at."""
    state = db._handle.store.data(table.id).state  # noqa: SLF001  below what users hold
    print(f"{'parts, of which in L0':<44} {state.parts.count()}, {len(level_zero(state))}")
    reads = 0
    read = PartReader.read

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal reads
        reads += 1
        return read(*args, **kwargs)

    counts = []
    with patch.object(PartReader, "read", counted):
        for key in keys:
            reads = 0
            table.get(key)
            counts.append(reads)
    mean = sum(counts) / len(counts)
    print(f"{'parts opened by a lookup':<44} mean {mean:.2f}  max {max(counts)}")


def look_up(table: sl.Table, key: int, expected: int) -> float:
    """Seconds of one lookup that has to find so many rows."""
    start = time.perf_counter()
    found = table.get(key)
    taken = time.perf_counter() - start
    assert found.num_rows == expected, (key, found.num_rows)
    return taken


if __name__ == "__main__":
    main()
