"""An import of 10M unsorted rows in this process, beside DuckDB's sorted COPY of the same input.

python -m benchmarks.import_local [--rows 10000000] [--runs 3]
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import duckdb
import pyarrow.dataset as ds
import pyarrow.parquet as pq

import strandline as sl
from benchmarks.common import SCHEMA, machine, median, ratio, rows, scratch, timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    print(f"import in-process: {options.rows} rows; {machine()}")
    with scratch() as path:
        source = path / "source.parquet"
        pq.write_table(rows(options.rows, 11), source, compression="zstd")
        ours, theirs = [], []
        for _ in range(options.runs):
            ours.append(timed(lambda: import_strandline(path / "lake", source, options.rows)))
            shutil.rmtree(path / "lake")
            theirs.append(timed(lambda: copy_duckdb(path / "sorted.parquet", source)))
        print(
            f"{'strandline, append of a file':<44} {options.rows / median(ours) / 1e6:.2f} M rows/s"
        )
        print(f"{'DuckDB, COPY … ORDER BY':<44} {options.rows / median(theirs) / 1e6:.2f} M rows/s")
        ratio("speed against DuckDB (medians)", median(theirs), median(ours), "at least 0.8")


def import_strandline(lake: Path, source: Path, count: int) -> None:
    """One append of the whole file, streamed, until it is durable."""
    with sl.connect(lake) as db:
        table = db.create_table("readings", SCHEMA, row_keys="key")
        commit = table.append(ds.dataset(source))
        assert commit.rows == count


def copy_duckdb(target: Path, source: Path) -> None:
    """The same rows, sorted, with the same codec."""
    connection = duckdb.connect()
    connection.execute(
        f"COPY (SELECT * FROM read_parquet('{source}') ORDER BY key) "
        f"TO '{target}' (FORMAT parquet, COMPRESSION zstd)"
    )
    connection.close()


if __name__ == "__main__":
    main()
