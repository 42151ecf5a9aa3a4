"""Write, read and space amplification over 1,000 random batches, background work on.

    python -m benchmarks.amplification [--batches 1000] [--rows 2000] [--leaves 4]

Keys are drawn from a space that makes about a third of the rows replace others. Lines are printed
as the table grows, all as multiples of the same rows in a table that holds them once, compacted:
written, bytes of all parts ever written by those of the batches' rows; on disk, and scanned, bytes
of all parts that are there (nothing is deleted meanwhile) and of those that a scan reads. Besides:
parts that a lookup of a present key reads; length of L0; merges and descents in the background.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import strandline as sl
from benchmarks.common import SCHEMA, machine, rows, scratch
from strandline.parts.files.read import PartReader
from strandline.state.plan import level_zero

LOOKUPS = 200
SPREAD = 1_009
"""Between neighbouring keys."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=1_000)
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--leaves", type=int, default=4)
    given = parser.parse_args()
    print(f"amplification: {given.batches} batches of {given.rows} rows; {machine()}")
    space = given.batches * given.rows
    rng = np.random.default_rng(41)
    seen: set[int] = set()
    merges = Merges()
    with scratch() as path, sl.connect(path / "lake") as db:
        points = [SPREAD * space * n // given.leaves for n in range(1, given.leaves)]
        table = db.create_table(
            "readings", SCHEMA, row_keys="key", kind="keyed", split_points=points
        )
        with merges.counted():
            for batch in range(1, given.batches + 1):
                numbers = rng.choice(space, given.rows, replace=False)
                table.upsert(rows(given.rows, batch, keys=numbers * SPREAD))
                seen.update(numbers.tolist())
                if batch in steps(given.batches):
                    report(db, table, path, (batch, given.rows), seen, merges)
        assert len(table) == len(seen)


def steps(last: int) -> set[int]:
    """1, 3, 10, 30, … and the last."""
    return {n * 10**e for n in (1, 3) for e in range(6) if n * 10**e < last} | {last}


class Merges:
    """What the background did."""

    def __init__(self) -> None:
        self.jobs = 0
        self.sunk = 0

    def counted(self) -> Any:
        """Counts while the context lasts."""
        from strandline.upkeep import compaction

        small, sinking = compaction.plan_small_merge, compaction._sinking  # noqa: SLF001

        def small_counted(*args: Any, **options: Any) -> Any:
            job = small(*args, **options)
            self.jobs += job is not None
            return job

        def sinking_counted(*args: Any) -> Any:
            command = sinking(*args)
            self.sunk += command is not None
            return command

        return patch.multiple(compaction, plan_small_merge=small_counted, _sinking=sinking_counted)


def report(
    db: sl.Database,
    table: sl.Table,
    path: Path,
    size: tuple[int, int],
    seen: set[int],
    merges: Merges,
) -> None:
    """One line, when so many batches of so many rows were written."""
    batch, batch_rows = size
    rng = np.random.default_rng(batch)
    state = db._handle.store.data(table.id).state  # noqa: SLF001  below what users hold
    listed = table.parts().select(["part", "bytes"]).to_pylist()
    parts = {row["part"]: row["bytes"] for row in listed}
    written = sum(f.stat().st_size for f in path.glob("lake/w*/s*/part/*.parquet"))
    live = sum(parts.values())
    copy = compacted(path / f"copy-{batch}", table)
    given = copy / len(seen) * batch * batch_rows
    mean, most = opened(table, rng.choice(np.fromiter(seen, np.int64), LOOKUPS) * SPREAD)
    print(
        f"batches {batch:>5}  rows {len(seen):>8}  written {written / given:5.2f}  "
        f"on disk {written / copy:5.2f}  scanned {live / copy:5.2f}  parts {len(parts):>3}  "
        f"L0 {len(level_zero(state)):>2}  opened by a lookup {mean:.2f} (max {most})  "
        f"merges {merges.jobs}, descents {merges.sunk}",
        flush=True,
    )


def compacted(path: Path, table: sl.Table) -> int:
    """Bytes of the parts of a table that holds the same rows once."""
    with sl.connect(path) as db:
        copy = db.create_table("readings", SCHEMA, row_keys="key", kind="keyed")
        copy.append(table.scan().to_arrow())
        return int(db.status().column("bytes")[0].as_py())


def opened(table: sl.Table, keys: np.ndarray) -> tuple[float, int]:
    """Mean and maximum of the parts that a lookup reads."""
    reads = 0
    read = PartReader.read

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal reads
        reads += 1
        return read(*args, **kwargs)

    counts = []
    with patch.object(PartReader, "read", counted):
        for key in keys.tolist():
            before = reads
            assert table.get(key).num_rows == 1
            counts.append(reads - before)
    return sum(counts) / len(counts), max(counts)


if __name__ == "__main__":
    main()
