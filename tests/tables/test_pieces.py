"""A read cut into pieces gives what an uncut one gives, whatever the pieces cut through."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline.read.pieces
from strandline.connect import connect
from strandline.database import Database
from strandline.env import Deadline
from strandline.errors import LocationError
from strandline.location import BlobMissing
from strandline.read.pieces import Piece
from strandline.read.reading import Reading
from strandline.read.want import Want
from strandline.settings import Settings
from strandline.shard.follower import StateRetired
from strandline.state.plan import plan_read
from strandline.table import Table
from tests.tables.helpers import apply, rows

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("v", pa.int64())])
SMALL = Settings(background=False, row_group_rows=64, part_rows_target=1_000)


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """A database in which tables of some thousand rows have many parts, row groups and pieces."""
    monkeypatch.setattr(strandline.read.pieces, "_PIECE_ROWS", 300)
    with connect(tmp_path, settings=SMALL) as database:
        yield database


def fill(db: Database, kind: str, *, applied: str, deletes: bool) -> tuple[Table, Table]:
    """A table with overlapping parts, and one with the same rows in a single small batch each."""
    chance = random.Random(7)
    made = []
    for name in ("cut", "whole"):
        chance.seed(7)
        table = db.create_table(
            name, SCHEMA, row_keys="a", sort_keys="b", kind=kind, split_points=[40]
        )
        for number in range(3):
            keys = [(chance.randrange(90), chance.choice("xyz")) for _ in range(1_500)]
            table.append(
                {
                    "a": [a for a, _ in keys],
                    "b": [b for _, b in keys],
                    "v": [chance.randrange(5) for _ in keys],
                }
            )
            if deletes:
                table.delete(where=f"v = {number}", key_range=(10, 70))
            if applied == "all" or (applied == "some" and number < 2):
                apply(table)
        made.append(table)
    return made[0], made[1]


@pytest.mark.parametrize("deletes", [False, True], ids=["added", "retracted"])
@pytest.mark.parametrize("applied", ["none", "some", "all"])
@pytest.mark.parametrize("kind", ["rows", "keyed"])
def test_pieces_together_are_the_whole(
    db: Database, monkeypatch: pytest.MonkeyPatch, kind: str, applied: str, deletes: bool
) -> None:
    table, other = fill(db, kind, applied=applied, deletes=deletes)
    for options in (
        {},
        {"key_range": (35, 45)},
        {"key_ranges": [(3, 5), ((44, "y"), 50), (80, None)]},
        {"where": "v > 1"},
        {"where": "v > 1 AND a < 50", "columns": ["v"]},
        {"as_of": db.history()["time"][2].as_py()},
    ):
        cut = table.scan(**options)
        found = cut.to_arrow()
        streamed = pa.Table.from_batches(cut.to_batches(), cut.schema)
        assert sorted(rows(streamed)) == sorted(rows(found))
        assert cut.count() == found.num_rows
        if "columns" not in options:
            keys = [(a, b) for a, b, _ in rows(streamed)]
            assert keys == sorted(keys)
        monkeypatch.setattr(strandline.read.pieces, "_PIECE_ROWS", 1_000_000)
        assert sorted(rows(table.scan(**options).to_arrow())) == sorted(rows(found))
        monkeypatch.setattr(strandline.read.pieces, "_PIECE_ROWS", 300)
    assert sorted(rows(other.scan().to_arrow())) == sorted(rows(table.scan().to_arrow()))
    total = db.sql("SELECT count(*), sum(v) FROM cut").fetchall()
    assert total == db.sql("SELECT count(*), sum(v) FROM whole").fetchall()
    assert total[0][0] == table.scan().count()


def test_no_piece_is_much_larger_than_it_may_be(db: Database) -> None:
    table = db.create_table("t", SCHEMA, row_keys="a")
    table.append({"a": range(5_000), "b": ["x"] * 5_000, "v": range(5_000)})
    apply(table)
    for want in (Want(), Want(ordered=False), Want(("v",))):
        deadline = table._handle.deadline(None)
        reading = Reading.of(table._handle, table._view(deadline), want, deadline)
        sizes = [piece.num_rows for piece in reading.tables()]
        assert sum(sizes) == 5_000
        assert max(sizes) <= 300 + 2 * 64
    few = table.scan(limit=5)
    assert few.to_arrow()["a"].to_pylist() == [0, 1, 2, 3, 4]


def test_a_part_that_was_compacted_away_is_read_where_its_rows_are_now(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, _ = fill(db, "keyed", applied="all", deletes=True)
    expected = rows(table.scan().to_arrow())
    deadline = table._handle.deadline(None)
    view = table._view(deadline)
    db.compact("cut", strategy="full")
    gone = {r.part.key for _, r in view.data.state.references.range()} - {
        r.part.key for _, r in table._handle.store.data(table.id).state.references.range()
    }
    assert gone
    read = table._handle.store.reader.read

    def without(part: object, *args: object, **options: object) -> object:
        key = part.key  # type: ignore[attr-defined]
        if key in gone:
            raise BlobMissing(key)
        return read(part, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(table._handle.store.reader, "read", without)
    found = Reading.of(table._handle, view, Want(), deadline).table()
    assert rows(found) == expected


def test_a_view_that_is_made_anew_twice_has_what_its_transaction_wrote(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = db.create_table("t", SCHEMA, row_keys="a", kind="keyed")
    table.append({"a": [1, 2], "b": ["x", "y"], "v": [1, 2]})
    apply(table)
    retired = iter([True])

    def retiring(*args: Any, **options: Any) -> object:
        if next(retired, False):
            raise StateRetired("its pages are gone", may_have_happened=False)
        return plan_read(*args, **options)

    with db.transaction() as tx:
        tx["t"].append({"a": [1, 3], "b": ["z", "z"], "v": [3, 3]})
        deadline = table._handle.deadline(None)
        reading = Reading.of(table._handle, tx["t"]._table._view(deadline), Want(), deadline)
        monkeypatch.setattr("strandline.read.reading.plan_read", retiring)
        [task] = reading.tasks
        found = reading._replanned(Piece(task, task.intervals), is_only=True)
    assert rows(found) == [(1, "z", 3), (2, "y", 2), (3, "z", 3)]


def test_row_groups_of_a_part_that_was_compacted_away_ask_for_another_read(db: Database) -> None:
    table, _ = fill(db, "rows", applied="all", deletes=False)
    deadline = table._handle.deadline(None)
    reading = Reading.of(table._handle, table._view(deadline), Want(ordered=False), deadline)

    def missing(_: Deadline) -> pa.Table:
        raise BlobMissing("w0/s0/part/p0.parquet")

    with pytest.raises(LocationError, match="read it again"):
        reading.read(Piece(reading.tasks[0], reading.tasks[0].intervals, missing))
