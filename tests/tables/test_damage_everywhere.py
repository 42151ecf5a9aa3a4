"""Whatever happens to any stored object, a fresh handle reads what is right or names the object.

Quick: every object, every kind of damage, some flipped bits of each. With STRANDLINE_DAMAGE=full,
which `make damage` sets, every bit of every object is flipped.
"""

from __future__ import annotations

import os
import random
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from strandline.connect import LOG_FILE, connect
from strandline.database import Database
from strandline.errors import Corruption
from strandline.ids import MARKER_KEY
from strandline.parts.files.read import PartReader
from strandline.parts.schema import TableSchema
from strandline.read.question import parts_of
from strandline.read.reading import Reading
from strandline.read.want import Want
from strandline.state.codec import decode_page, decode_record, decode_rollup
from strandline.state.model import Part
from strandline.txn.view import view_of
from tests.support.damage import READS, SMALL, TABLES, Lake, build, flip, names
from tests.support.deadlines import within

SEED = 20_261_121
FULL = os.environ.get("STRANDLINE_DAMAGE") == "full"
FLIPS = 3
"""Bits that are flipped in each object by the quick test."""


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damage") / "lake"
    build(path)
    return path


@pytest.fixture
def lake(pristine: Path, tmp_path: Path) -> Lake:
    return Lake.of(pristine, tmp_path / "lake")


def test_there_is_something_of_everything(lake: Lake) -> None:
    keys = {key for key in lake.whole if not key.startswith("milestone/")}
    assert len(keys) < len(lake.whole)
    kinds = {key.rsplit("/", 2)[-2] if "/" in key else key for key in keys}
    assert kinds == {"part", "page", "rollup", MARKER_KEY, LOG_FILE}
    assert not any(isinstance(found, Exception) for found in lake.expected.values())
    assert all(found for found in lake.expected.values())
    assert lake.wrong() == []


@pytest.mark.parametrize("damage", ["removed", "emptied", "half", "cut", "longer"])
def test_an_object_of_another_length(lake: Lake, damage: str) -> None:
    for key, data in lake.whole.items():
        cut: dict[str, bytes | None] = {
            "removed": None,
            "emptied": b"",
            "half": data[: len(data) // 2],
            "cut": data[:-1],
            "longer": data + b"\0",
        }
        lake.write(key, cut[damage])
        assert lake.wrong(key) == [], key
        lake.restore(key)


def test_an_object_in_which_a_bit_is_flipped(lake: Lake) -> None:
    rng = random.Random(SEED)
    for key, data in lake.whole.items():
        for bit in rng.sample(range(8 * len(data)), FLIPS):
            lake.write(key, flip(data, bit))
            assert lake.wrong(key) == [], (key, bit)
        lake.restore(key)


def test_objects_that_have_changed_places(lake: Lake) -> None:
    for one, other in pairs(list(lake.whole)):
        lake.write(one, lake.whole[other])
        assert lake.wrong(one) == [], (one, other)
        lake.write(other, lake.whole[one])
        assert lake.wrong(one, other) == [], (one, other)
        lake.restore(one)
        lake.restore(other)


def pairs(keys: list[str]) -> Iterator[tuple[str, str]]:
    """Each object with its neighbour of the same kind, and with one of another kind."""
    objects = [key for key in keys if "/" in key]
    kinds = sorted(objects, key=lambda key: (key.split("/")[2], key))
    yield from pairwise(kinds)
    yield MARKER_KEY, objects[0]
    yield objects[-1], MARKER_KEY
    yield LOG_FILE, MARKER_KEY
    yield kinds[0], kinds[-1]


def test_records_that_have_changed_places(lake: Lake) -> None:
    with closing(sqlite3.connect(lake.path / LOG_FILE)) as log:
        records = log.execute("SELECT rowid, shard, seqno, data FROM record").fetchall()
    rng = random.Random(SEED)
    for (row, shard, seqno, data), (other, _, _, its) in [
        rng.sample(records, 2) for _ in range(12)
    ]:
        change_log(lake, [(row, its), (other, data)])
        assert lake.wrong(LOG_FILE) == [], (shard, seqno)
        change_log(lake, [(row, its)])
        assert lake.wrong(LOG_FILE) == [], (shard, seqno)
        lake.restore(LOG_FILE)
    for row, shard, seqno, data in rng.sample(records, 24):
        change_log(lake, [(row, flip(data, rng.randrange(8 * len(data))))])
        assert lake.wrong(LOG_FILE, reads=["scan"]) == [], (shard, seqno)
        lake.restore(LOG_FILE)


def change_log(lake: Lake, changes: list[tuple[int, bytes]]) -> None:
    """Gives records other bytes, as SQLite would have stored them."""
    lake.restore(LOG_FILE)
    path = lake.path / LOG_FILE
    with closing(sqlite3.connect(path, isolation_level=None)) as log:
        log.execute("PRAGMA journal_mode = DELETE")
        for row, data in changes:
            log.execute("UPDATE record SET data = ? WHERE rowid = ?", (data, row))
    os.utime(path, (1e9, 1e9))


def test_a_writer_finds_the_same_damage(lake: Lake) -> None:
    rng = random.Random(SEED)
    for key, data in lake.whole.items():
        for damaged in (None, flip(data, rng.randrange(8 * len(data)))):
            lake.write(key, damaged)
            assert lake.wrong(key, mode="rw", reads=["scan"]) == [], key
            lake.restore(key)


# --- every bit


full = pytest.mark.skipif(not FULL, reason="takes long: make damage")
SHARES = 12
"""Tests that each flips a share of the bits, so that several processes can work."""

shares = pytest.mark.parametrize("share", range(SHARES))


@full
@pytest.mark.slow
def test_every_bit_of_state_and_records(lake: Lake) -> None:
    """In what decodes them, as it does whatever a fresh handle reads."""
    for key, data in lake.whole.items():
        if key.endswith(".rollup"):
            refuses_every_bit(key, data, partial(decode_rollup, object_name=key))
        elif key.endswith(".page"):
            refuses_every_bit(
                key, data, partial(decode_page, "parts", key.split("/")[1], object_name=key)
            )
    with closing(sqlite3.connect(lake.path / LOG_FILE)) as log:
        for shard, seqno, data in log.execute("SELECT shard, seqno, data FROM record"):
            name = f"record {seqno} of shard {shard}"
            refuses_every_bit(name, data, partial(decode_record, object_name=name))


def refuses_every_bit(name: str, data: bytes, decode: Callable[[bytes], Any]) -> None:
    for bit in range(8 * len(data)):
        with pytest.raises(Corruption, match=re.escape(name)):
            decode(flip(data, bit))


@full
@pytest.mark.slow
def test_every_bit_of_the_marker(lake: Lake) -> None:
    for bit in range(8 * len(lake.whole[MARKER_KEY])):
        lake.write(MARKER_KEY, flip(lake.whole[MARKER_KEY], bit))
        assert lake.wrong(MARKER_KEY, reads=["get"]) == [], bit


@full
@pytest.mark.slow
@shares
def test_every_bit_of_the_parts(lake: Lake, share: int) -> None:
    """With one handle, whose reader of parts is fresh for each bit; some by table, all by part."""
    with connect(lake.path, mode="r", settings=SMALL) as db:
        store = db._handle.store
        for name, part, schema in parts_in_use(db):
            data = lake.whole[part.key]
            path = lake.path / part.key
            path.chmod(0o600)
            expected = store.reader.read(part, schema, columns=None, deadline=within(60))
            for bit in range(share, 8 * len(data), SHARES):
                path.write_bytes(flip(data, bit))
                store.reader = PartReader(store.location.blob, SMALL, store.env)
                with pytest.raises(Corruption, match=part.key):
                    store.reader.verify(part, deadline=within(60))
                try:
                    right = (
                        store.reader.read(part, schema, columns=None, deadline=within(60))
                        == expected
                    )
                except Corruption as error:
                    right = names(error, part.key)
                assert right, (part.key, bit)
                if bit // SHARES % 64 == 0:
                    for read in READS:
                        store.reader = PartReader(store.location.blob, SMALL, store.env)
                        try:
                            right = READS[read](db, name) == lake.expected[name, read]
                        except Corruption as error:
                            right = names(error, part.key)
                        assert right, (part.key, bit, read)
            path.write_bytes(data)
            store.reader = PartReader(store.location.blob, SMALL, store.env)


def parts_in_use(db: Database) -> list[tuple[str, Part, TableSchema]]:
    """Each table with each of its live parts."""
    found = []
    for name in TABLES:
        view = view_of(db._handle.store, db[name]._version.table, None, deadline=within(60))
        reading = Reading.of(db._handle, view, Want(), db._handle.deadline(None))
        parts = {part.key: part for task in reading.tasks for part, _, _ in parts_of(task)}
        found += [(name, part, reading.question.schema) for part in parts.values()]
    return found


@full
@pytest.mark.slow
@shares
def test_every_bit_of_the_log_around_the_records(lake: Lake, share: int) -> None:
    data = lake.whole[LOG_FILE]
    with closing(sqlite3.connect(f"file:{lake.path / LOG_FILE}?immutable=1", uri=True)) as log:
        records = [found for (found,) in log.execute("SELECT data FROM record")]
    covered = bytearray(len(data))
    for record in records:
        at = data.find(record)
        if at >= 0:  # else it goes over several of SQLite's pages
            covered[at : at + len(record)] = b"x" * len(record)
    around = [at for at in range(len(data)) if data[at] and not covered[at]]
    for at in around[share::SHARES]:
        for bit in range(8 * at, 8 * at + 8):
            lake.write(LOG_FILE, flip(data, bit))
            assert lake.wrong(LOG_FILE, reads=["scan"]) == [], bit
