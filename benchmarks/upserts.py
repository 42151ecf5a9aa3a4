"""An upsert of 100,000 random keys into a keyed table of 10M rows, and lookups after it.

    python -m benchmarks.upserts [--rows 10000000] [--keys 100000] [--runs 5] [--lake DIRECTORY]

The table is imported in bulk first: once, if `--lake` names a directory that keeps it; a copy of
that is what upserts go to. A run is one upsert until it is durable, of new data for keys that are
there; after the first and after the last one, lookups of keys that no upsert touched, of keys that
the last one did, and of keys that are not there, in turn. Background work is on, as always. The
floor is the same rows, sorted, written as one Parquet file and synced.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import strandline as sl
from benchmarks.appends import look_up
from benchmarks.common import (
    KEY_SPACE,
    SCHEMA,
    line,
    machine,
    rows,
    scratch,
    timed,
)

LOOKUPS = 500
PIECE_ROWS = 1_000_000

PEERS = {
    "delta-rs 1.6.6": (7.9, 78.0),
    "PyIceberg 0.12": (31.0, 100.0),
    "DuckLake": (0.6, 32.0),
    "Lance 14": (6.3, 24.0),
    "Paimon 2.1": (0.2, 36.0),
    "SlateDB 0.17": (3.2, 0.6),
    "DuckDB 2.0's own file": (5.7, 0.8),
    "plain PySpark 4.3": (9.6, 78.0),
}
"""Seconds of the upsert and milliseconds of a lookup after it, measured on such a machine."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--lake", type=Path)
    given = parser.parse_args()
    print(f"upserts: {given.keys} keys into {given.rows} rows; {machine()}")
    with scratch() as path:
        lake = path / "lake"
        if given.lake is None:
            build(lake, given.rows)
        else:
            if not given.lake.exists():
                build(given.lake, given.rows)
            shutil.copytree(given.lake, lake)
        with sl.connect(lake) as db:
            measure(db["readings"], path, given.rows, given.keys, given.runs)
    for name, (seconds, milliseconds) in PEERS.items():
        print(f"{'peer: ' + name:<44} upsert {seconds} s, lookup {milliseconds} ms")


def build(lake: Path, count: int) -> None:
    """The table, imported in one append of a stream that is not sorted."""
    with sl.connect(lake) as db:
        table = db.create_table("readings", SCHEMA, row_keys="key", kind="keyed")
        print(f"{'bulk import':<44} {timed(lambda: table.append(pieces(count))):.2f} s")


def pieces(count: int) -> pa.RecordBatchReader:
    """`count` rows, whose keys are the multiples of `gap(count)`, in no order."""
    numbers = np.random.default_rng(21).permutation(count)

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, count, PIECE_ROWS):
            keys = numbers[start : start + PIECE_ROWS] * gap(count)
            yield from rows(len(keys), start, keys=keys).to_batches()

    return pa.RecordBatchReader.from_batches(SCHEMA, batches())


def gap(count: int) -> int:
    """What lies between the keys of a table of so many rows."""
    return KEY_SPACE // count


def measure(table: sl.Table, path: Path, count: int, size: int, runs: int) -> None:
    """Upserts in turn with their floor, then lookups."""
    rng = np.random.default_rng(22)
    ours, floor = [], []
    touched = np.zeros(count, dtype=bool)
    for run in range(runs):
        numbers = rng.choice(count, size, replace=False)
        touched[numbers] = True
        data = rows(size, 100 + run, keys=numbers * gap(count))
        ours.append(timed(lambda data=data: table.upsert(data)))
        floor.append(timed(lambda data=data: written(data, path / "floor.parquet")))
        if run == 0:
            look_around(table, rng, count, touched, data)
    line(f"upsert of {size} rows (aim: 500 ms)", ours)
    line("floor: sort, one Parquet file, fsync", floor)
    look_around(table, rng, count, touched, data)


def written(data: pa.Table, path: Path) -> None:
    """The rows, sorted, durable in one file."""
    with path.open("wb") as file:
        pq.write_table(data.sort_by("key"), file, compression="zstd", row_group_size=8_192)
        file.flush()
        os.fsync(file.fileno())


def look_around(
    table: sl.Table, rng: np.random.Generator, count: int, touched: np.ndarray, last: pa.Table
) -> None:
    """Lookups of three kinds in turn, after some to warm up."""
    untouched = rng.choice(np.flatnonzero(~touched), 2 * LOOKUPS, replace=False) * gap(count)
    upserted = rng.choice(last.num_rows, 2 * LOOKUPS, replace=False)
    keys, values = last.column("key").to_numpy(), last.column("value").to_numpy()
    kinds: dict[str, list[float]] = {"an untouched": [], "an upserted": [], "an absent": []}
    for number in range(2 * LOOKUPS):
        key = int(untouched[number])
        mine = upserted[number]
        taken = (
            look_up(table, key, 1),
            timed(lambda key=int(keys[mine]), value=values[mine]: found(table, key, value)),
            look_up(table, key + 1, 0),
        )
        if number >= LOOKUPS:
            for kind, seconds in zip(kinds.values(), taken, strict=True):
                kind.append(seconds)
    for name, seconds in kinds.items():
        line(f"lookup of {name} key (aim: 4 ms)", seconds)


def found(table: sl.Table, key: int, value: float) -> None:
    """Looks up a key that has to have that value."""
    got = table.get(key).column("value").to_pylist()
    assert got == [value], (key, got, value)


if __name__ == "__main__":
    main()
