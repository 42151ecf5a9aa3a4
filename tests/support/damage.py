"""A small database with something of everything that is stored, and ways to damage each object."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from strandline.connect import LOG_FILE, connect
from strandline.database import Database
from strandline.errors import Corruption, UsageError
from strandline.settings import Settings
from strandline.shard import rollup
from strandline.txn.apply import apply_table
from tests.support.deadlines import within

__all__ = ["READS", "SMALL", "TABLES", "Lake", "build", "flip", "names", "read_all", "stored"]

SMALL = Settings(
    background=False,
    timeout_seconds=60.0,
    inline_bytes_max=1_500,
    rollup_every_records=6,
    page_items_max=4,
    row_group_rows=16,
    part_rows_target=64,
)
"""Many objects of few bytes: pages of four items, parts of some row groups."""

TABLES = {"readings": ("sensor", "at"), "stock": ("item",), "settled": ("k",)}
READINGS = pa.schema(
    [
        ("sensor", pa.int64()),
        ("at", pa.int32()),
        ("name", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("value", pa.float64()),
    ]
)
STOCK = pa.schema([("item", pa.string()), ("count", pa.int64())])
SETTLED = pa.schema([("k", pa.int64()), ("v", pa.string()), ("n", pa.list_(pa.int32()))])

Rows = list[tuple[Any, ...]]


def _readings(start: int, end: int) -> pa.Table:
    span = range(start, end)
    columns: dict[str, Any] = {
        "sensor": list(span),
        "at": [i % 7 for i in span],
        "name": [None if i % 9 == 0 else f"sensor {i % 3}" for i in span],
        "tags": [None if i % 5 == 0 else ["a", "b"][: i % 3] for i in span],
        "value": [i / 7 for i in span],
    }
    return pa.table(columns, READINGS)


def _stock(start: int, end: int, count: int) -> pa.Table:
    span = range(start, end)
    return pa.table(
        {"item": [f"i{i:03d}" for i in span], "count": [count + i for i in span]}, STOCK
    )


def _settled(start: int, end: int) -> pa.Table:
    span = range(start, end)
    lists = [None if i % 4 == 0 else list(range(i % 3)) for i in span]
    return pa.table({"k": list(span), "v": [f"v{i % 5}" for i in span], "n": lists}, SETTLED)


def _apply(db: Database, name: str) -> None:
    table = db[name]
    apply_table(table._handle.store, table._version.table, deadline=within(60.0))


def build(path: Path) -> None:
    """Makes the database: rows and keyed, compacted parts, overlapping ones, entries, rollups."""
    with patch.object(rollup, "INLINE_BYTES_MAX", 400), connect(path, settings=SMALL) as db:
        readings = db.create_table(
            "readings", READINGS, row_keys="sensor", sort_keys="at", split_points=[100]
        )
        stock = db.create_table("stock", STOCK, row_keys="item", kind="keyed")
        settled = db.create_table("settled", SETTLED, row_keys="k", split_points=[40])
        settled.append(_settled(0, 70))
        _apply(db, "settled")
        readings.append(_readings(0, 30))
        _apply(db, "readings")
        readings.append(_readings(20, 50))
        _apply(db, "readings")
        db.compact("readings", strategy="full")
        stock.append(_stock(0, 60, 0))
        _apply(db, "stock")
        stock.append(_stock(30, 62, 1_000))
        _apply(db, "stock")
        readings.append(_readings(90, 110))
        readings.delete(where="sensor in (3, 40)")
        _apply(db, "readings")
        for n in range(6):
            settled.append(_settled(200 + n, 201 + n))
            readings.append(_readings(300 + n, 301 + n))
        stock.append(_stock(58, 64, 7))
        stock.delete(keys=["i002"])
        readings.append(_readings(140, 170))
    with closing(sqlite3.connect(path / LOG_FILE)) as log:
        log.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for companion in path.glob(f"{LOG_FILE}-*"):
        companion.unlink()


def _sorted(table: pa.Table) -> Rows:
    return sorted(zip(*(c.to_pylist() for c in table.columns), strict=True), key=repr)


def _keys(name: str) -> list[Any]:
    keys: dict[str, list[Any]] = {
        "readings": [5, 40, 45, 100, 303, 150, 999],
        "stock": ["i001", "i002", "i040", "i063", "none"],
        "settled": [0, 51, 69, 203, 999],
    }
    return keys[name]


READS: dict[str, Callable[[Database, str], Any]] = {
    "get": lambda db, name: [_sorted(db[name].get(key)) for key in _keys(name)],
    "scan": lambda db, name: _sorted(db[name].scan().to_arrow()),
    "count": lambda db, name: db[name].scan().count(),
    "sql": lambda db, name: _sorted(db.sql(f"SELECT * FROM {name}").to_arrow_table()),
}


Outcome = tuple[str, str, Any]
"""Table, way of reading, and what was read or the error."""


def read_all(path: Path, reads: list[str] | None = None, mode: Any = "r") -> Iterator[Outcome]:
    """What a fresh handle reads in every way, errors included."""
    try:
        db = connect(path, mode=mode, create=False, settings=SMALL)
    except Exception as error:  # noqa: BLE001  judged by whoever asks
        for name in TABLES:
            for read in reads or READS:
                yield name, read, error
        return
    with db:
        for name in TABLES:
            for read in reads or READS:
                try:
                    found = READS[read](db, name)
                except Exception as error:  # noqa: BLE001  judged by whoever asks
                    yield name, read, error
                else:
                    yield name, read, found


def stored(path: Path) -> list[str]:
    """The keys of all that is stored, the marker and the log too."""
    keys = [str(p.relative_to(path)) for p in sorted(path.rglob("*")) if p.is_file()]
    return [key for key in keys if not key.startswith((".tmp", f"{LOG_FILE}-"))]


def names(error: object, key: str) -> bool:
    """Whether it is a Corruption that names the object; the log's are named with their record."""
    if key == LOG_FILE and isinstance(error, UsageError):
        # By SQLite's header it is no log of ours, or one of a newer format: that may be true.
        return LOG_FILE in str(error)
    if not isinstance(error, Corruption):
        return False
    if key == LOG_FILE:
        return error.object.endswith(LOG_FILE) or error.object.startswith("record ")
    return error.object == key and key in str(error)


@dataclass(frozen=True)
class Lake:
    """A copy of the database that is damaged and made whole again."""

    path: Path
    whole: dict[str, bytes]
    expected: dict[tuple[str, str], Any]

    @classmethod
    def of(cls, pristine: Path, path: Path) -> Lake:
        """A copy of the database at `pristine`."""
        shutil.copytree(pristine, path, ignore=shutil.ignore_patterns(".tmp", f"{LOG_FILE}-*"))
        expected = {(name, read): found for name, read, found in read_all(path)}
        return cls(path, {key: (path / key).read_bytes() for key in stored(path)}, expected)

    def write(self, key: str, data: bytes | None) -> None:
        """Gives an object other bytes, or none."""
        path = self.path / key
        for companion in self.path.glob(f"{LOG_FILE}-*"):
            companion.unlink()
        path.unlink(missing_ok=True)
        if data is not None:
            path.write_bytes(data)
            os.utime(path, (1e9, 1e9))  # a log that was changed just now is waited for

    def restore(self, key: str) -> None:
        """Gives an object its own bytes again."""
        self.write(key, self.whole[key])

    def wrong(self, *keys: str, reads: list[str] | None = None, mode: Any = "r") -> list[str]:
        """What is read that is neither right nor an error that names one of these objects."""
        found = []
        for name, read, outcome in read_all(self.path, reads, mode):
            if isinstance(outcome, Exception):
                if not any(names(outcome, key) for key in keys):
                    found.append(f"{read} of {name}: {type(outcome).__name__}: {outcome}")
            elif outcome != self.expected[name, read]:
                found.append(f"{read} of {name}: wrong rows")
        return found


def flip(data: bytes, bit: int) -> bytes:
    """The bytes with one bit changed."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
