"""Which row groups and pages parts should have: lookups, scans, writing and size side by side.

    python -m benchmarks.row_groups [--rows 4000000]

Each line is one part of the same sorted rows. Lookups of keys that are never repeated go through a
warm reader, in turn with a bare pyarrow read and filter of the row group that holds the key. Scans
read one column of the whole part and add it up in DuckDB: from our reader's chunks, from Arrow's
own dataset scanner, and by DuckDB's own reader from a bare file with its default row groups.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from benchmarks.common import SCHEMA, machine, median, rows, scratch, timed
from strandline.env import Deadline, RealEnv
from strandline.location.local.blob import FileBlob
from strandline.parts.files.read import PartReader
from strandline.parts.files.write import Identity, write_part
from strandline.parts.keys import KeyRange
from strandline.parts.rows.sort import sort_table
from strandline.parts.schema import new_schema
from strandline.settings import Settings
from strandline.state.model import EVERYTHING, Part

ENV = RealEnv()


def soon() -> Deadline:
    """By when a part has to be read or written."""
    return Deadline(ENV, 600)


READINGS = new_schema(SCHEMA, "key")
WHO = Identity("d0", "s0", "readings", "w0", "s0")
LOOKUPS = 600
SCANS = 9

HEADER = (
    f"{'rows':>7} {'page':>6} {'write':>6} {'size':>5} {'footer':>6} {'open':>5} "
    f"{'hit':>6} {'floor':>6} {'ratio':>5} {'miss':>6} "
    f"{'chunks':>6} {'arrow':>6} {'duckdb':>6} {'ratio':>5}"
)
UNITS = (
    f"{'':>7} {'KiB':>6} {'M/s':>6} {'MB':>5} {'KB':>6} {'ms':>5} {'ms':>6} {'ms':>6} {'':>5} "
    f"{'ms':>6} {'ms':>6} {'ms':>6} {'ms':>6} {'':>5}"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    count = parser.parse_args().rows
    print(f"row groups: {count} rows; {machine()}")
    print(HEADER)
    print(UNITS)
    table = pa.Table.from_arrays(sort_table(rows(count, 9), ["key"]).columns, schema=READINGS.arrow)
    with scratch() as path:
        bare = path / "bare.parquet"
        connection = duckdb.connect()
        connection.register("data", table)
        connection.sql(f"COPY data TO '{bare}' (COMPRESSION zstd)")
        for group_rows in (2_048, 8_192, 16_384, 32_768, 65_536, 122_880):
            measure(path, table, bare, group_rows, None)
        for group_rows in (8_192, 65_536):
            measure(path, table, bare, group_rows, 16)


def measure(path: Path, table: pa.Table, bare: Path, group_rows: int, page_kib: int | None) -> None:
    """Writes one part and prints its line."""
    settings = Settings(row_group_rows=group_rows)
    blob = FileBlob(path / f"blob-{group_rows}-{page_kib}", ENV)
    key = "w0/s0/part/p0.parquet"
    began = time.perf_counter()
    with pages_of(page_kib):
        part = write_part(
            blob, key, table, READINGS, identity=WHO, settings=settings, deadline=soon()
        )
    seconds = time.perf_counter() - began
    reader = PartReader(blob, settings, ENV)
    opening = timed(lambda: reader.opened(part, soon()))
    file = path / f"blob-{group_rows}-{page_kib}" / key
    hit, floor, miss = lookups(reader, part, file, table, group_rows)
    chunks, arrow, theirs = scans(reader, part, file, bare)
    print(
        f"{group_rows:>7} {page_kib or '-':>6} {table.num_rows / seconds / 1e6:>6.2f} "
        f"{part.size / 1e6:>5.0f} {part.footer_size / 1e3:>6.0f} {opening * 1e3:>5.1f} "
        f"{hit * 1e3:>6.2f} {floor * 1e3:>6.2f} {hit / floor:>5.2f} {miss * 1e3:>6.2f} "
        f"{chunks * 1e3:>6.0f} {arrow * 1e3:>6.0f} {theirs * 1e3:>6.0f} {theirs / chunks:>5.2f}",
        flush=True,
    )
    file.unlink()


def pages_of(kib: int | None) -> Any:
    """A context in which Parquet's writer makes pages of that size; None: of its own choice."""
    writer = pq.ParquetWriter

    def with_pages(*args: Any, **options: Any) -> pq.ParquetWriter:
        return writer(*args, **options, **({"data_page_size": kib * 1024} if kib else {}))

    return mock.patch.object(pq, "ParquetWriter", with_pages)


def lookups(
    reader: PartReader, part: Part, file: Path, table: pa.Table, group_rows: int
) -> tuple[float, float, float]:
    """Median seconds of a hit, of the bare read of the same row group, and of a miss."""
    keys = table.column("key").to_numpy()
    bare = pq.ParquetFile(file, page_checksum_verification=True)

    def look_up(key: int, expected: int) -> float:
        began = time.perf_counter()
        found = reader.read(
            part,
            READINGS,
            columns=None,
            ranges=[KeyRange((key,), (key,), closed=True)],
            deadline=soon(),
        )
        seconds = time.perf_counter() - began
        assert (found.num_rows > 0) == (expected > 0)
        return seconds

    hits, floor, misses = [], [], []
    for at in np.random.default_rng(5).permutation(len(keys))[:LOOKUPS]:
        key = int(keys[at])
        hits.append(look_up(key, 1))
        began = time.perf_counter()
        group = bare.read_row_group(int(at) // group_rows)
        group.filter(pc.equal(group.column("key"), key))
        floor.append(time.perf_counter() - began)
        if at + 1 < len(keys) and keys[at + 1] > key + 1:
            misses.append(look_up(key + 1, 0))
    return median(hits), median(floor), median(misses)


def scans(reader: PartReader, part: Part, file: Path, bare: Path) -> tuple[float, float, float]:
    """Median seconds of adding up one column: from chunks, from a dataset, by DuckDB alone."""
    connection = duckdb.connect()
    arrow = pa.schema([READINGS.arrow.field("value")])

    def batches() -> Iterator[pa.RecordBatch]:
        loads = reader.chunks(
            part, READINGS, columns=["value"], intervals=[EVERYTHING], deadline=soon()
        )
        for table in ENV.stream(lambda load: load(soon()), loads, ahead=6):
            yield from table.combine_chunks().to_batches()

    options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    dataset = ds.dataset(file, format=ds.ParquetFileFormat(default_fragment_scan_options=options))

    def total(source: str) -> float:
        found: float = connection.sql(f"SELECT sum(value) FROM {source}").fetchall()[0][0]
        return found

    def from_chunks() -> float:
        connection.register("chunks", pa.RecordBatchReader.from_batches(arrow, batches()))
        return total("chunks")

    connection.register("dataset", dataset)
    ways: list[Callable[[], float]] = [
        from_chunks, lambda: total("dataset"), lambda: total(f"'{bare}'")
    ]  # fmt: skip
    assert np.allclose([way() for way in ways], ways[0]())
    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(SCANS):
        for way, found in zip(ways, seconds, strict=True):
            found.append(timed(way))
    chunks, dataset_seconds, theirs = map(median, seconds)
    return chunks, dataset_seconds, theirs


if __name__ == "__main__":
    main()
