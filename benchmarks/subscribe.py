"""From a commit in one process to its change in a subscriber of another.

    python -m benchmarks.subscribe [--commits 1000]

The writer appends one row at a time, at moments that were drawn beforehand (exponential gaps), and
notes when each append returned. The subscriber notes when it has each change in hand. Both clocks
are the machine's own. One line for each mean gap between commits, because a subscriber that waits
looks less and less often.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

import strandline as sl
from benchmarks.common import SCHEMA, line, machine, rows, scratch

GAPS = (0.005, 0.05, 0.5)


def subscribe(path: Path, until: int, ready: Connection) -> None:
    """Notes the clock at each change, by the `key` of its row, until that many rows have come."""
    seen: dict[int, float] = {}
    with sl.connect(path) as db, db["readings"].subscribe("now", columns=["key"]) as changes:
        ready.send(None)
        for change in changes:
            now = time.monotonic()
            for key in change.rows.column("key").to_pylist():
                assert key not in seen
                seen[key] = now
            if len(seen) >= until:
                break
    ready.send(seen)


def measure(path: Path, commits: int, gap: float) -> None:
    """Prints how long after its commit each change was there."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=subscribe, args=(path, commits, there))
    process.start()
    here.recv()
    records = rows(commits, 1, keys=np.arange(commits)).to_pylist()
    gaps = np.random.default_rng(2).exponential(gap, commits)
    with sl.connect(path) as db:
        table = db["readings"]
        due = time.monotonic()
        returned = []
        for record, pause in zip(records, gaps, strict=True):
            due += pause
            time.sleep(max(0.0, due - time.monotonic()))
            table.append([record])
            returned.append(time.monotonic())
        seen = here.recv()
    process.join()
    assert len(seen) == commits
    taken = [max(0.0, seen[key] - at) for key, at in enumerate(returned)]
    line(f"commit to change, a commit each {gap * 1e3:g} ms", taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=1_000)
    commits = parser.parse_args().commits
    print(f"subscribe: {machine()}")
    for gap in GAPS:
        with scratch() as path:
            with sl.connect(path / "lake") as db:
                db.create_table("readings", SCHEMA, row_keys="key")
            measure(path / "lake", max(20, min(commits, int(20 / gap))), gap)


if __name__ == "__main__":
    main()
