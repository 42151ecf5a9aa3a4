"""Lookups, range scans and full scans of a settled table of 10M rows, one part per leaf.

    python -m benchmarks.reads [--rows 10000000]

No cache of rows; checks for newer records and checksums are on; keys are never repeated. Beside
each figure what it is held against in the same run: a bare pyarrow read and filter of the same row
group, and DuckDB on a bare Parquet file with its own default row groups.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import strandline as sl
from benchmarks.appends import look_up
from benchmarks.common import (
    KEY_SPACE,
    SCHEMA,
    line,
    machine,
    median,
    ratio,
    rows,
    scratch,
    timed,
)

LEAVES = 8

FRESH = """
import time; start = time.perf_counter()
import strandline as sl
db = sl.connect({path!r}, mode="r")
assert db["readings"].get({key}).num_rows == 1
print(time.perf_counter() - start)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    count = parser.parse_args().rows
    print(f"reads: {count} rows in {LEAVES} leaves; {machine()}")
    rng = np.random.default_rng(7)
    keys = rng.permutation(np.unique(rng.integers(0, KEY_SPACE, count)))
    data = rows(len(keys), 8, keys=keys)
    with scratch() as path:
        bare = path / "bare.parquet"
        write_bare(data, bare)
        settings = sl.Settings(part_rows_target=len(keys))
        with sl.connect(path / "lake", settings=settings) as db:
            points = [KEY_SPACE * n // LEAVES for n in range(1, LEAVES)]
            table = db.create_table("readings", SCHEMA, row_keys="key", split_points=points)
            table.append(data)
            db.compact("readings", strategy="full")
            print(f"{'parts':<44} {db.status().column('parts')[0]}")
            lookups(table, keys, rng, path / "lake")
            ranges(table, keys, rng)
            scans(db, table, bare, len(keys))
        fresh = [fresh_process(path / "lake", int(key)) for key in rng.permutation(keys)[:9]]
        line("fresh process: import, open, one lookup", fresh)
        whole = [
            timed(
                lambda: subprocess.run(
                    [sys.executable, "-c", FRESH.format(path=str(path / "lake"), key=int(keys[0]))],
                    check=True,
                    capture_output=True,
                )
            )
            for _ in range(9)
        ]
        line("the same with the interpreter's own start", whole)


def write_bare(data: pa.Table, path: Path) -> None:
    """The same rows, sorted, as DuckDB writes them."""
    connection = duckdb.connect()
    connection.register("data", data)
    connection.sql(f"COPY (SELECT * FROM data ORDER BY key) TO '{path}' (COMPRESSION zstd)")
    connection.close()


def lookups(table: sl.Table, keys: np.ndarray, rng: np.random.Generator, lake: Path) -> None:
    """Lookups in turn with bare reads of the row groups that hold the same keys."""
    chosen = rng.permutation(keys)
    bare = BareReader(lake)
    for key in chosen[:300]:
        look_up(table, int(key), 1)
        bare.look_up(int(key))
    hits, floor = [], []
    for key in chosen[300:2_300]:
        hits.append(look_up(table, int(key), 1))
        floor.append(bare.look_up(int(key)))
    line("lookup of a present key, warm", hits)
    line("floor: pyarrow, read and filter its row group", floor)
    ratio("lookup against that floor (p50)", median(hits), median(floor), "at most 1.3")
    absent = rng.integers(0, KEY_SPACE, 1_000)
    line("lookup of an absent key, warm", [look_up(table, int(key), 0) for key in absent])


class BareReader:
    """The parts' row groups, read with pyarrow alone: footers cached, page checksums verified."""

    def __init__(self, lake: Path) -> None:
        self._groups: list[tuple[int, int, pq.ParquetFile, int]] = []
        for path in lake.glob("w*/s*/part/*.parquet"):
            file = pq.ParquetFile(path, page_checksum_verification=True)
            for group in range(file.num_row_groups):
                bounds = file.metadata.row_group(group).column(0).statistics
                self._groups.append((bounds.min, bounds.max, file, group))
        self._groups.sort(key=lambda group: group[0])

    def look_up(self, key: int) -> float:
        """Seconds to read and filter the newest row group that holds the key."""
        found = [g for g in self._groups if g[0] <= key <= g[1]]
        _, _, file, group = found[-1]
        start = time.perf_counter()
        table = file.read_row_group(group)
        table = table.filter(pc.equal(table.column("key"), key))
        return time.perf_counter() - start


def ranges(table: sl.Table, keys: np.ndarray, rng: np.random.Generator) -> None:
    """Scans of 1,000 neighbouring keys each."""
    ordered = np.sort(keys)
    taken = []
    for start in rng.integers(0, len(ordered) - 1_001, 300):
        bounds = (int(ordered[start]), int(ordered[start + 1_000]))
        began = time.perf_counter()
        found = table.scan(key_range=bounds).to_arrow()
        taken.append(time.perf_counter() - began)
        assert found.num_rows == 1_000
    line("range scan of 1,000 keys", taken)


def scans(db: sl.Database, table: sl.Table, bare: Path, count: int) -> None:
    """A full scan with an aggregate, in turn with DuckDB over the bare file."""
    connection = duckdb.connect()
    for column in ("value", "key"):
        query = f"select sum({column}), count(*) from "
        floor = f"{query} read_parquet('{bare}')"
        ours, theirs = [], []
        for _ in range(9):
            taken, found = answered(lambda q=query: db.sql(q + "readings").fetchall())
            ours.append(taken)
            taken, expected = answered(lambda q=floor: connection.sql(q).fetchall())
            theirs.append(taken)
            assert found[0][1] == expected[0][1] == count
        line(f"sum({column}) over all rows, db.sql", ours)
        line(f"sum({column}), DuckDB over bare Parquet", theirs)
        ratio("speed against DuckDB (medians)", median(theirs), median(ours), "at least 0.8")
    line("scan().to_arrow() of all columns", [timed(lambda: table.scan().to_arrow())])
    line("pyarrow, the bare file", [timed(lambda: pq.read_table(bare))])


def answered(query: Callable[[], list[tuple[float, int]]]) -> tuple[float, list[tuple[float, int]]]:
    """Seconds that a query takes, and what it says."""
    start = time.perf_counter()
    found = query()
    return time.perf_counter() - start, found


def fresh_process(path: Path, key: int) -> float:
    """Seconds from the first line of a new process to its first answer."""
    code = FRESH.format(path=str(path), key=key)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return float(done.stdout)


if __name__ == "__main__":
    main()
