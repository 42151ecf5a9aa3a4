"""Processor time of an append by its rows, with apply, merges and rollups: there shall be no cliff.

    python -m benchmarks.append_sizes [--rows 100,1000,...] [--setting inline_bytes_max=65536 ...]

All threads count, and what is merged until the last append has returned. Bytes are those of the
directory then, log and parts.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import strandline as sl
from benchmarks.common import SCHEMA, machine, rows, scratch

ROWS = "100,700,1000,2000,3000,3600,5000,10000,20000"


def measured(count: int, settings: sl.Settings) -> tuple[float, float, float]:
    """Milliseconds of processor time and of the clock per append of `count` rows, and MiB."""
    appends = max(40, min(300, 200_000 // count))
    with scratch() as path, sl.connect(path / "lake", settings=settings) as db:
        table = db.create_table("readings", SCHEMA, row_keys="key")
        data = [rows(count, seed) for seed in range(appends + 5)]
        for warm in data[:5]:
            table.append(warm)
        spent, start = time.process_time(), time.perf_counter()
        for each in data[5:]:
            table.append(each)
        spent, start = time.process_time() - spent, time.perf_counter() - start
        stored = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return spent / appends * 1e3, start / appends * 1e3, stored / appends / (1 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--setting", action="append", default=[])
    asked = parser.parse_args()
    chosen: dict[str, Any] = {
        name: int(value) for name, value in (each.split("=") for each in asked.setting)
    }
    settings = sl.Settings(**chosen)
    print(f"append_sizes: {chosen or 'default settings'}; {machine()}")
    for count in map(int, asked.rows.split(",")):
        size = rows(count, 0).nbytes / 1024
        spent, took, stored = measured(count, settings)
        print(
            f"{count:>7} rows, {size:>6.0f} KiB   processor {spent:>6.2f} ms   "
            f"clock {took:>7.2f} ms   {stored:>6.2f} MiB stored an append",
            flush=True,
        )


if __name__ == "__main__":
    main()
