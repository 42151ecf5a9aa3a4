"""Bulk import against Spark's own range-partitioned, sorted Parquet write of the same files.

    python benchmarks/import_spark.py --rows 10000000 --rounds 3

Both read the same Parquet files, in one session, one after the other in turns, with the same codec
(zstd) and number of partitions. Strandline's time includes sampling, splitting, commit and apply.
Prints every round, the medians, and the ratio of the speeds.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import strandline as sl

FILE_ROWS = 1_000_000
WORDS = 50_000
START_MICROS = 1_700_000_000_000_000


def make_files(directory: Path, rows: int) -> None:
    random = np.random.default_rng(20261121)
    words = pa.array([f"station-{number:05d}" for number in range(WORDS)])
    directory.mkdir(parents=True)
    for number, start in enumerate(range(0, rows, FILE_ROWS)):
        count = min(FILE_ROWS, rows - start)
        payload = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(30), count, [None, pa.py_buffer(random.bytes(30 * count))]
        )
        table = pa.table(
            {
                "key": random.integers(-(2**62), 2**62, count),
                "name": words.take(pa.array(random.integers(0, WORDS, count))),
                "at": pa.array(START_MICROS + random.integers(0, 10**12, count)).cast(
                    pa.timestamp("us", "UTC")
                ),
                "value": random.random(count),
                "payload": payload.cast(pa.binary()),
            }
        )
        pq.write_table(table, directory / f"{number:04d}.parquet", compression="zstd")


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def partitions_of(spark: SparkSession, rows: int) -> int:
    """As many partitions as the import makes of so many rows."""
    from strandline.distributed.ranges import leaves_wanted, ranges_wanted

    cores = spark.sparkContext.defaultParallelism
    return ranges_wanted(rows, leaves_wanted(rows, 8_000_000, cores), cores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", default="local[*]")
    given = parser.parse_args()
    spark = sl.spark.session("strandline-benchmark", given.master)
    with tempfile.TemporaryDirectory() as place:
        run(spark, Path(place), given.rows, given.rounds)
    spark.stop()


def run(spark: SparkSession, place: Path, rows: int, rounds: int) -> None:
    files = place / "input"
    make_files(files, rows)
    schema = pq.read_schema(next(files.glob("*.parquet")))
    partitions = partitions_of(spark, rows)

    def ours() -> None:
        with sl.connect(place / "lake") as db:
            db.create_table("readings", schema, row_keys="key")
            assert sl.spark.import_table(spark, db, "readings", str(files)).rows == rows

    def theirs() -> None:
        frame = spark.read.parquet(str(files)).repartitionByRange(partitions, "key")
        frame = frame.sortWithinPartitions("key")
        frame.write.option("compression", "zstd").parquet(str(place / "plain"))

    times: dict[str, list[float]] = {"strandline": [], "spark": []}
    for number in range(rounds + 1):
        for name, work in (("spark", theirs), ("strandline", ours)):
            seconds = timed(work)
            shutil.rmtree(place / ("lake" if name == "strandline" else "plain"))
            if number:  # the first round warms up both
                times[name].append(seconds)
                print(f"{name:10} {seconds:7.2f} s {rows / seconds / 1e6:6.2f} M rows/s")
    medians = {name: statistics.median(found) for name, found in times.items()}
    ratio = medians["spark"] / medians["strandline"]
    print(f"rows {rows:,}, partitions {partitions}, rounds {rounds}")
    for name, seconds in medians.items():
        print(f"median {name:10} {seconds:7.2f} s {rows / seconds / 1e6:6.2f} M rows/s")
    print(f"speed of the import against Spark's own write: {ratio:.2f} (aim: at least 0.8)")
    print(json.dumps({"rows": rows, "partitions": partitions, "seconds": times}))


if __name__ == "__main__":
    main()
