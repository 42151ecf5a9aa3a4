"""What is left of work that leaves no data behind: state, newest rollups, log, objects.

    python -m benchmarks.growth [--appends 10000] [--tables 1000]

Empty appends, bare and with a token (a token's outcome is kept, so each is a record), and tables
that are made, written to and dropped. Then two vacuums, with a retention and a deletion delay of
zero, on a clock that has moved on a little.
"""

from __future__ import annotations

import argparse
import sqlite3
import time
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

import strandline as sl
from benchmarks.common import machine, scratch

SCHEMA = pa.schema([pa.field("key", pa.int64(), nullable=False), pa.field("value", pa.float64())])
SHORT = {"retention": "0 seconds", "deletion_delay": "0 seconds"}


class Size(NamedTuple):
    """How large a database is."""

    items: dict[str, int]
    """In the state of the txns shard, per collection that has any."""
    log_records: int
    log_bytes: int
    objects: int
    object_bytes: int
    newest_rollups: int
    """Bytes of the newest manifest of each shard."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--appends", type=int, default=10_000)
    parser.add_argument("--tables", type=int, default=1_000)
    asked = parser.parse_args()
    print(f"growth; {machine()}")
    with scratch() as path, sl.connect(path / "lake") as db:
        kept = db.create_table("kept", SCHEMA, row_keys="key", properties=SHORT)
        kept.append({"key": [1], "value": [1.0]})
        shown(db, path / "lake", "at first")
        nothing = SCHEMA.empty_table()
        for _ in range(asked.appends):
            kept.append(nothing)
        shown(db, path / "lake", f"after {asked.appends} empty appends")
        for number in range(asked.appends):
            kept.append(nothing, token=("job", number + 1))
        shown(db, path / "lake", f"after {asked.appends} empty appends with a token")
        for number in range(asked.tables):
            made = db.create_table(f"t{number}", SCHEMA, row_keys="key", properties=SHORT)
            made.append({"key": [1], "value": [1.0]})
            db.drop_table(f"t{number}")
        shown(db, path / "lake", f"after {asked.tables} tables made, written to and dropped")
        for run in (1, 2, 3):
            time.sleep(1.1)  # marks are of the location's clock
            kept.append({"key": [run], "value": [0.0]})
            start = time.perf_counter()
            db.vacuum()
            shown(db, path / "lake", f"after vacuum {run} ({time.perf_counter() - start:.1f} s)")


def shown(db: sl.Database, path: Path, when: str) -> None:
    """Prints how large the database is."""
    size = measured(db, path)
    print(
        f"{when:<56} log {size.log_records:>6} records {size.log_bytes / 1024:>8.0f} KiB  objects "
        f"{size.objects:>5} {size.object_bytes / 1024:>8.0f} KiB  newest rollups "
        f"{size.newest_rollups / 1024:>6.1f} KiB\n    txns: "
        + ", ".join(f"{name} {count}" for name, count in size.items.items()),
        flush=True,
    )


def measured(db: sl.Database, path: Path) -> Size:
    """The sizes now."""
    txns = db._handle.store.txns.machine  # noqa: SLF001  below what users hold
    items = txns.look().ask(lambda s: {name: found.count() for name, found in s.maps.items()})
    records, log_bytes = logged(path)
    files = [f for f in path.glob("w*/**/*") if f.is_file()]
    newest: dict[Path, Path] = {}
    for manifest in sorted(path.glob("w*/s*/rollup/*.rollup"), key=lambda f: f.name):
        newest[Path(manifest.parts[-3])] = manifest
    return Size(
        {name: count for name, count in items.items() if count},
        records,
        log_bytes,
        len(files),
        sum(f.stat().st_size for f in files),
        sum(f.stat().st_size for f in newest.values()),
    )


def logged(path: Path) -> tuple[int, int]:
    """Records of all shards in the log of a directory, and their bytes."""
    connection = sqlite3.connect(f"file:{path / 'log.sqlite'}?mode=ro", uri=True)
    found = connection.execute("SELECT count(*), sum(length(data)) FROM record").fetchone()
    connection.close()
    return int(found[0]), int(found[1] or 0)


if __name__ == "__main__":
    main()
