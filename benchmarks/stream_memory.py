"""Peak memory of an append of 20M rows streamed from a reader: the whole process tree.

python -m benchmarks.stream_memory [--rows 20000000]
"""

from __future__ import annotations

import argparse
import multiprocessing
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

import strandline as sl
from benchmarks.common import SCHEMA, machine, rows, scratch

BATCH = 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    count = parser.parse_args().rows
    print(f"streamed append: {count} rows in batches of {BATCH}; {machine()}")
    with scratch() as path:
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=append, args=(path / "lake", count))
        start = time.perf_counter()
        process.start()
        peak = watch(process)
        taken = time.perf_counter() - start
        assert process.exitcode == 0
        with sl.connect(path / "lake", mode="r") as db:
            assert len(db["readings"]) == count
    print(f"{'time':<44} {taken:.1f} s, {count / taken / 1e6:.2f} M rows/s (with making the rows)")
    print(f"{'peak RSS of the process tree':<44} {peak / 2**20:.0f} MiB   (aim: under 1024)")


def append(lake: Path, count: int) -> None:
    """Appends rows that are made as they are asked for."""

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, count, BATCH):
            yield from rows(min(BATCH, count - start), start).to_batches()

    with sl.connect(lake) as db:
        table = db.create_table("readings", SCHEMA, row_keys="key")
        table.append(pa.RecordBatchReader.from_batches(SCHEMA, batches()))


def watch(process: multiprocessing.process.BaseProcess) -> int:
    """The greatest sum of resident bytes of the process and its children while it runs."""
    peak = 0
    ended = threading.Event()
    while process.is_alive():
        peak = max(peak, resident(process.pid or 0))
        ended.wait(0.02)
    process.join()
    return peak


def resident(pid: int) -> int:
    """Resident bytes of a process and everything it started."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return pages * 4096 + sum(resident(int(child)) for child in children)


if __name__ == "__main__":
    main()
