"""What a table gives back is what was written to it, whichever way and wherever it lies by now."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from strandline.database import Database
from strandline.errors import (
    AsOfInFuture,
    LocationError,
    SchemaMismatch,
    UnknownTable,
    UsageError,
)
from strandline.table import Table
from strandline.times import Commit, Micros
from tests.tables.helpers import QUIET, READINGS, apply, rows

Settle = Callable[[Table], None]


def some(*values: tuple[Any, ...]) -> pa.Table:
    """Rows of the table `readings`."""
    rows = [dict(zip(READINGS.names, row, strict=True)) for row in values]
    return pa.Table.from_pylist(rows, schema=READINGS)


ONE, TWO, THREE = (7, 1, "a", 1.0), (7, 2, "b", 2.0), (9, 1, "c", None)


# --- rows in, rows out


@pytest.mark.parametrize(
    "form",
    [
        lambda t: t,
        lambda t: t.to_batches()[0],
        lambda t: t.to_reader(),
        lambda t: t.to_pydict(),
        lambda t: t.to_pylist(),
        lambda t: t.to_pandas(),
        pl.from_arrow,
        lambda t: iter(t.to_batches(max_chunksize=1)),
        duckdb.from_arrow,
        lambda t: t.select(["value", "name", "at", "sensor"]),
        ds.dataset,
    ],
    ids=[
        "table", "batch", "reader", "columns", "rows", "pandas", "polars", "batches", "duckdb",
        "reordered", "dataset",
    ],
)  # fmt: skip
def test_every_form_of_data_is_taken(readings: Table, form: Callable[[pa.Table], Any]) -> None:
    commit = readings.append(form(some(THREE, ONE, TWO)))
    assert rows(readings.scan().to_arrow()) == [ONE, TWO, THREE]
    assert commit.rows == 3
    assert commit.tables == ("readings",)


def test_rows_with_equal_keys_and_equal_rows_are_all_kept(readings: Table, settle: Settle) -> None:
    other = (7, 1, "other", 5.0)
    readings.append(some(ONE, ONE, other))
    settle(readings)
    readings.append(some(ONE))
    settle(readings)
    assert sorted(rows(readings.get(7))) == sorted([ONE, ONE, ONE, other])
    assert len(readings) == 4


def test_a_keyed_table_keeps_the_latest_row_of_each_key(stock: Table, settle: Settle) -> None:
    stock.upsert({"item": ["x", "x", "y"], "size": [1, 1, 1], "count": [1, 2, 3]})
    settle(stock)
    stock.append({"item": ["y"], "size": [1], "count": [4]})
    settle(stock)
    assert rows(stock.scan().to_arrow()) == [("x", 1, 2), ("y", 1, 4)]
    assert stock.get_one("y", 1) == {"item": "y", "size": 1, "count": 4}
    assert stock.get_one("z", 1) is None
    assert len(stock) == 2


def test_missing_columns_become_null_and_order_does_not_matter(readings: Table) -> None:
    readings.append({"at": [1], "sensor": [7]})
    assert rows(readings.scan().to_arrow()) == [(7, 1, None, None)]


def test_empty_data_is_written_as_nothing(readings: Table) -> None:
    before = readings.append(some(ONE))
    nothing: list[Any] = [some(), some().to_reader(), {"sensor": [], "at": []}, []]
    for data in nothing:
        commit = readings.append(data)
        assert (commit.rows, commit.tables) == (0, ())
        assert commit.micros >= before.micros
    assert readings.history().num_rows == 2
    assert rows(readings.scan().to_arrow()) == [ONE]


def test_an_empty_table_reads_as_one(readings: Table, stock: Table) -> None:
    for table in (readings, stock):
        assert table.scan().to_arrow().schema == table.schema
        assert table.scan().to_arrow().num_rows == len(table) == table.head().num_rows == 0
        assert list(table.scan().to_batches()) == []
        assert table.get_many([]).num_rows == 0
    assert readings.get(7).num_rows == 0
    assert stock.get_one("x", 1) is None
    assert bool(readings)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"sensor": [None], "at": [1]}, "sensor"),
        ({"sensor": [7]}, "at"),
        ({"sensor": [7], "at": [1], "other": [1]}, "other"),
        ({"sensor": [7], "at": [1], "__time": [1]}, "__time"),
        ({"sensor": [7], "at": [1], "__diff": [-1]}, "__diff"),
        ({"sensor": ["x"], "at": [1]}, "sensor"),
        ({"sensor": [1.5], "at": [1]}, "sensor"),
        ({"sensor": [2**63], "at": [1]}, "sensor"),
        ({"sensor": [7], "at": [1], "value": ["x"]}, "value"),
        ({"sensor": [7], "at": [1, 2]}, "length"),
    ],
    ids=str,
)
def test_data_that_does_not_fit_is_refused_and_nothing_is_written(
    readings: Table, data: Any, why: str
) -> None:
    with pytest.raises(SchemaMismatch, match=why):
        readings.append(data)
    assert len(readings) == 0
    assert readings.history().num_rows == 1


@pytest.mark.parametrize("data", [5, "rows", b"rows", object(), [1, 2]], ids=type)
def test_what_is_no_data_is_refused(readings: Table, data: Any) -> None:
    with pytest.raises(UsageError):
        readings.append(data)


def test_a_large_append_goes_through_parts_and_reads_the_same(db: Database) -> None:
    table = db.create_table("t", pa.schema([("k", pa.int64()), ("v", pa.string())]), row_keys="k")
    count = 50_000
    data = pa.table({"k": [(i * 7919) % count for i in range(count)], "v": ["x" * 8] * count})
    table.append(data)
    batches = [data.slice(i, 9_999) for i in range(0, count, 9_999)]
    reader = pa.RecordBatchReader.from_batches(
        data.schema, (b for t in batches for b in t.to_batches())
    )
    table.append(reader)
    for _ in range(2):
        assert len(table) == 2 * count
        assert table.get(4_321)["v"].to_pylist() == ["x" * 8] * 2
        keys = table.scan(["k"]).to_arrow()["k"].to_pylist()
        assert keys == sorted(data["k"].to_pylist() * 2)
        assert table.scan(key_range=(10, 15)).count() == 10
        apply(table)


# --- lookups


def test_get_takes_any_prefix_of_the_keys(readings: Table, settle: Settle) -> None:
    readings.append(some(ONE, THREE))
    settle(readings)
    readings.append(some(TWO))
    settle(readings)
    assert rows(readings.get(7)) == [ONE, TWO]
    assert rows(readings.get(7, 2)) == rows(readings.get((7, 2))) == [TWO]
    assert rows(readings.get(8)) == rows(readings.get(7, 3)) == []
    assert readings.get(8).schema == readings.schema
    assert rows(readings.get_many([9, (7, 1), 7, 8])) == [ONE, TWO, THREE]
    assert rows(readings.get(9, columns=["name"])) == [("c",)]


@pytest.mark.parametrize(
    "call",
    [
        lambda t: t.get(),
        lambda t: t.get("seven"),
        lambda t: t.get(None),
        lambda t: t.get(7.5),
        lambda t: t.get(7, 1, 2),
        lambda t: t.get(2**64),
        lambda t: t.get(7, columns=["nothing"]),
        lambda t: t.get_one(7, 1),
        lambda t: t.get_many("77"),
        lambda t: t.get_many(7),
        lambda t: t.get_many([()]),
        lambda t: t.scan(["nothing"]),
        lambda t: t.scan([]),
        lambda t: t.scan(["name", "name"]),
        lambda t: t.scan(limit=-1),
        lambda t: t.scan(limit=True),
        lambda t: t.scan(limit=2.0),
        lambda t: t.history(limit=2.0),
        lambda t: t.history(limit=-1),
        lambda t: t.scan(timeout=True).to_arrow(),
        lambda t: t.scan(limit="5"),
        lambda t: t.scan(key_range=7),
        lambda t: t.scan(key_range=(1, 2, 3)),
        lambda t: t.scan(key_range=("a", None)),
        lambda t: t.scan(key_range=(1, 2), key_ranges=[(1, 2)]),
        lambda t: t.scan(key_ranges="ab"),
        lambda t: t.scan(raw=True, where="value > 1"),
        lambda t: t.scan(where="DELETE FROM readings"),
        lambda t: t.scan(as_of=5),
        lambda t: t.scan(timeout=0).to_arrow(),
        lambda t: t.scan(timeout="soon").to_arrow(),
        lambda t: t.delete(),
        lambda t: t.delete(all="yes"),
        lambda t: t.delete("value > 1", all=True),
        lambda t: t.delete("value > 1", keys=[7]),
        lambda t: t.delete(keys=7),
        lambda t: t.delete(keys=[()]),
        lambda t: t.delete("DROP TABLE readings"),
        lambda t: t.update({}),
        lambda t: t.update("value = 1"),
        lambda t: t.update({"nothing": "1"}),
        lambda t: t.update({"value": 1}),
        lambda t: t.update({"value": "max(value)"}),
        lambda t: t.update({"value": "1; DROP TABLE readings"}),
        lambda t: t.update({"value": "value +"}),
        lambda t: t.upsert({"sensor": [1], "at": [1]}),
        lambda t: t.append({"sensor": [1], "at": [1]}, token="t"),
        lambda t: t.append({"sensor": [1], "at": [1]}, token=("t", -1)),
        lambda t: t.append({"sensor": [1], "at": [1]}, token=("", 1)),
        lambda t: t.append({"sensor": [1], "at": [1]}, token=("t", True)),
        lambda t: t.append({"sensor": [1], "at": [1]}, metadata={"a": 1}),
        lambda t: t.append({"sensor": [1], "at": [1]}, metadata="note"),
        lambda t: t.append({"sensor": [1], "at": [1]}, timeout=-1),
        lambda t: t.set(nothing=1),
        lambda t: t.set(retention="soon"),
        lambda t: t.set(split_rows=0),
        lambda t: t.set(strategy="best"),
    ],
)
def test_bad_arguments_are_usage_errors_and_nothing_is_written(
    readings: Table, call: Callable[[Table], Any]
) -> None:
    readings.append(some(ONE))
    with pytest.raises(UsageError):
        call(readings)
    assert rows(readings.scan().to_arrow()) == [ONE]
    assert readings.history().num_rows == 2


KEYS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int8(), [-128, -1, 0, 127]),
    (pa.uint64(), [0, 1, 2**63, 2**64 - 1]),
    (pa.string(), ["", "a", "a\0b", "z", "é", "￿", "😀"]),
    (pa.binary(), [b"", b"\0", b"\x7f", b"\x80", b"\xff"]),
    (pa.bool_(), [False, True]),
    (pa.date32(), [date(1, 1, 1), date(1970, 1, 1), date(2026, 11, 20)]),
    (
        pa.timestamp("us", "UTC"),
        [datetime(1960, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)],
    ),
    (pa.timestamp("ms"), [datetime(1960, 1, 1), datetime(2026, 1, 1)]),  # noqa: DTZ001
    (pa.decimal128(10, 2), [Decimal("-1.50"), Decimal("0.00"), Decimal("99999999.99")]),
]


@pytest.mark.parametrize(("kind", "keys"), KEYS, ids=[str(kind) for kind, _ in KEYS])
def test_every_type_of_key_sorts_and_is_found(
    db: Database, kind: pa.DataType, keys: list[Any]
) -> None:
    table = db.create_table("t", pa.schema([("k", kind), ("n", pa.int64())]), row_keys="k")
    order = list(range(len(keys)))
    table.append(pa.table({"k": pa.array(keys[::-1], kind), "n": order[::-1]}))
    for _ in range(2):
        assert table.scan().to_arrow()["k"].to_pylist() == keys
        for number, key in enumerate(keys):
            assert table.get(key)["n"].to_pylist() == [number]
        assert table.scan(key_range=(keys[1], None)).to_arrow()["n"].to_pylist() == order[1:]
        assert table.scan(key_range=(None, keys[-1])).to_arrow()["n"].to_pylist() == order[:-1]
        apply(table)


# --- scans


@pytest.fixture
def grid(db: Database, settle: Settle) -> Table:
    """Keys (a, b) from 0 to 9 each, in three commits."""
    schema = pa.schema([("a", pa.int32()), ("b", pa.int32()), ("v", pa.int64())])
    table = db.create_table("grid", schema, row_keys=["a", "b"], split_points=[3, (6, 5)])
    cells = [(a, b, 10 * a + b) for a in range(10) for b in range(10)]
    for part in range(3):
        columns = zip(*cells[part::3], strict=True)
        table.append(pa.table([list(c) for c in columns], schema=schema))
        settle(table)
    return table


def values(scan: Any) -> list[int]:
    found: list[int] = scan.to_arrow()["v"].to_pylist()
    return found


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, range(100)),
        ({"key_range": (3, 5)}, range(30, 50)),
        ({"key_range": ((3, 5), 5)}, range(35, 50)),
        ({"key_range": ((3, 5), (3, 8))}, range(35, 38)),
        ({"key_range": (None, 2)}, range(20)),
        ({"key_range": (8, None)}, range(80, 100)),
        ({"key_range": (None, None)}, range(100)),
        ({"key_range": (5, 3)}, []),
        ({"key_range": (5, 5)}, []),
        ({"key_ranges": [(8, None), (1, 2), ((1, 5), 3)]}, [*range(10, 30), *range(80, 100)]),
        ({"key_ranges": []}, []),
        ({"where": "v % 10 = 3"}, range(3, 100, 10)),
        ({"where": "a = 4 AND b >= 5"}, range(45, 50)),
        ({"where": "a IN (1, 9) AND b < 2"}, [10, 11, 90, 91]),
        ({"where": "a = 4 AND a = 5"}, []),
        ({"where": "A > 8"}, range(90, 100)),
        ({"where": "grid.a > 8 -- all"}, range(90, 100)),
        ({"where": pc.field("a") == 4}, range(40, 50)),
        ({"where": (pc.field("a") > 3) & (pc.field("v") < 45)}, range(40, 45)),
        ({"where": "v > 50", "key_range": (4, 6)}, range(51, 60)),
        ({"where": "v > 1000"}, []),
        ({"limit": 0}, []),
        ({"limit": 7}, range(7)),
        ({"limit": 1000}, range(100)),
        ({"where": "v % 2 = 1", "limit": 3}, [1, 3, 5]),
    ],
    ids=str,
)
def test_scans_give_what_is_asked_for_in_the_order_of_keys(
    grid: Table, arguments: dict[str, Any], expected: Any
) -> None:
    scan = grid.scan(**arguments)
    assert values(scan) == list(expected)
    assert scan.count() == len(list(expected))
    assert [v for batch in scan.to_batches() for v in batch["v"].to_pylist()] == list(expected)
    narrow = grid.scan(columns=["v"], **arguments)
    assert values(narrow) == list(expected)
    assert narrow.schema.names == ["v"]


def test_sizes_and_timeouts_are_numbers_of_any_kind(grid: Table) -> None:
    two: Any = np.int64(2)
    assert grid.scan(limit=two, timeout=two).to_arrow().num_rows == 2
    assert grid.head(two).num_rows == 2
    seconds: Any = np.float32(20)
    assert grid.history(two, timeout=seconds).num_rows == 2


def test_a_scan_hands_out_every_form(grid: Table) -> None:
    scan = grid.scan(columns=["v", "a"], limit=2)
    expected = {"v": [0, 1], "a": [0, 0]}
    assert scan.to_arrow().to_pydict() == expected
    assert scan.to_reader().read_all().to_pydict() == expected
    assert scan.to_pandas().equals(pd.DataFrame({"v": [0, 1], "a": pd.array([0, 0], "int32")}))
    assert scan.to_polars().to_dict(as_series=False) == expected
    assert pa.table(scan).to_pydict() == expected
    assert pa.RecordBatchReader.from_stream(grid).read_all().num_rows == 100
    assert "v, a" in repr(scan)


def test_a_scan_reads_the_table_anew_each_time(readings: Table) -> None:
    scan = readings.scan()
    assert scan.count() == 0
    readings.append(some(ONE))
    assert scan.count() == 1


def test_keys_prune_leaves(grid: Table) -> None:
    apply(grid)
    plan = grid.scan(where="a = 4").explain()
    assert (plan.leaves, plan.leaves_total) == (1, 3)
    assert grid.scan().explain().leaves == 3
    assert grid.scan(where=pc.field("a") == 4).explain().leaves == 1
    assert grid.scan(where="a + 0 = 4").explain().leaves == 3
    assert "leaves   1 of 3" in str(plan)


def test_statistics_prune_parts(db: Database) -> None:
    table = db.create_table("t", pa.schema([("k", pa.int64()), ("v", pa.int64())]), row_keys="k")
    for low in (0, 1_000_000):
        table.append(pa.table({"k": range(20_000), "v": range(low, low + 20_000)}))
        apply(table)
    plan = table.scan(where="v < 5").explain()
    assert (plan.parts, plan.parts_pruned) == (1, 1)
    assert table.scan(where="v < 5").count() == 5
    assert table.scan(where="v >= 1000000 AND v < 1000002").count() == 2
    assert table.scan(where=pc.field("v") < 5).explain().parts_pruned == 1


def test_an_older_row_of_a_key_never_comes_back_through_a_condition(db: Database) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    table = db.create_table("t", schema, row_keys="k", kind="keyed")
    for value in (0, 1_000_000):
        table.append(pa.table({"k": range(20_000), "v": [value] * 20_000}))
        apply(table)
        table.append({"k": [5], "v": [value]})
    assert table.scan(where="v = 0").count() == 0
    assert table.scan(where=pc.field("v") == 0).count() == 0
    assert table.scan(where="v = 1000000").count() == 20_000


def test_raw_gives_the_stored_updates(readings: Table) -> None:
    first = readings.append(some(ONE, TWO))
    second = readings.delete(keys=[(7, 1)])
    raw = readings.scan(raw=True).to_arrow()
    assert raw.column_names == [*READINGS.names, "__time", "__diff"]
    assert sorted(rows(raw), key=str) == sorted(
        [(*ONE, first.micros, 1), (*ONE, second.micros, -1), (*TWO, first.micros, 1)], key=str
    )


# --- deletes, updates, overwrites


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        ({"where": "value > 1"}, [ONE, THREE]),
        ({"where": "value IS NULL"}, [ONE, TWO]),
        ({"where": pc.field("name") == "a"}, [TWO, THREE]),
        ({"keys": [7]}, [THREE]),
        ({"keys": [(7, 2), 8]}, [ONE, THREE]),
        ({"key_range": (7, 9)}, [THREE]),
        ({"key_range": ((7, 2), None)}, [ONE]),
        ({"key_range": (7, 9), "where": "at = 1"}, [TWO, THREE]),
        ({"all": True}, []),
        ({"where": "value > 1000"}, [ONE, TWO, THREE]),
    ],
    ids=str,
)
def test_delete_takes_away_what_it_names(
    readings: Table, settle: Settle, arguments: dict[str, Any], left: list[Any]
) -> None:
    readings.append(some(ONE, TWO))
    settle(readings)
    readings.append(some(THREE))
    settle(readings)
    commit = readings.delete(**arguments)
    assert commit.rows == 3 - len(left)
    settle(readings)
    assert rows(readings.scan().to_arrow()) == left
    assert readings.scan().count() == len(left)


def test_delete_takes_every_copy_of_a_row_once(readings: Table, settle: Settle) -> None:
    readings.append(some(ONE, ONE, TWO))
    settle(readings)
    assert readings.delete("name = 'a'").rows == 2
    settle(readings)
    assert readings.delete("name = 'a'").rows == 0
    readings.append(some(ONE))
    settle(readings)
    assert rows(readings.scan().to_arrow()) == [ONE, TWO]


def test_a_keyed_table_deletes_full_keys_blindly_and_others_by_reading(
    stock: Table, settle: Settle
) -> None:
    stock.upsert({"item": ["x", "x", "y"], "size": [1, 2, 1], "count": [1, 2, 3]})
    settle(stock)
    assert stock.delete(keys=[("x", 1), ("nothing", 9)]).rows == 2
    settle(stock)
    assert rows(stock.scan().to_arrow()) == [("x", 2, 2), ("y", 1, 3)]
    assert stock.delete(keys=["x", "nothing"]).rows == 1
    settle(stock)
    assert stock.get_one("x", 2) is None
    stock.upsert({"item": ["x"], "size": [2], "count": [9]})
    settle(stock)
    assert stock.delete("count = 3").rows == 1
    assert rows(stock.scan().to_arrow()) == [("x", 2, 9)]


def test_update_sees_each_row_as_it_was(readings: Table, settle: Settle) -> None:
    readings.append(some(ONE, TWO, THREE))
    settle(readings)
    readings.update({"value": "at * 10", "at": "at + coalesce(value, 0)"}, where="sensor = 7")
    settle(readings)
    assert rows(readings.scan().to_arrow()) == [(7, 2, "a", 10.0), (7, 4, "b", 20.0), THREE]
    readings.update({"name": "upper(name)"})
    assert readings.scan(["name"]).to_arrow()["name"].to_pylist() == ["A", "B", "C"]
    assert readings.update({"name": "'x'"}, where="false").rows == 0


def test_update_of_a_keyed_table_replaces_rows(stock: Table, settle: Settle) -> None:
    stock.upsert({"item": ["x", "y"], "size": [1, 1], "count": [1, 2]})
    settle(stock)
    stock.update({"count": "count + 1"}, where="item = 'y'")
    settle(stock)
    assert rows(stock.scan().to_arrow()) == [("x", 1, 1), ("y", 1, 3)]
    with pytest.raises(UsageError, match="is a key"):
        stock.update({"size": "size + 1"})


@pytest.mark.parametrize("expression", ["count + 9223372036854775807", "'many'", "1e300"])
def test_an_update_that_does_not_fit_writes_nothing(stock: Table, expression: str) -> None:
    stock.upsert({"item": ["x"], "size": [1], "count": [1]})
    with pytest.raises(UsageError):
        stock.update({"count": expression})
    assert rows(stock.scan().to_arrow()) == [("x", 1, 1)]


def test_overwrite_replaces_in_one_commit(readings: Table, settle: Settle) -> None:
    before = readings.append(some(ONE, TWO, THREE))
    settle(readings)
    readings.overwrite(some((7, 9, "new", 0.0)), where="sensor = 7")
    settle(readings)
    assert rows(readings.scan().to_arrow()) == [(7, 9, "new", 0.0), THREE]
    readings.overwrite(some(ONE).to_reader())
    settle(readings)
    assert rows(readings.scan().to_arrow()) == [ONE]
    readings.overwrite(some())
    assert len(readings) == 0
    assert rows(readings.as_of(before).scan().to_arrow()) == [ONE, TWO, THREE]


def test_overwrite_of_a_keyed_table_keeps_the_new_row_of_a_key_that_stays(
    stock: Table, settle: Settle
) -> None:
    stock.upsert({"item": ["x", "y"], "size": [1, 1], "count": [1, 2]})
    settle(stock)
    stock.overwrite({"item": ["y", "z"], "size": [1, 1], "count": [20, 30]})
    settle(stock)
    assert rows(stock.scan().to_arrow()) == [("y", 1, 20), ("z", 1, 30)]


def test_a_large_overwrite_of_a_keyed_table_streams(db: Database) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    table = db.create_table("t", schema, row_keys="k", kind="keyed")
    table.append(pa.table({"k": range(40_000), "v": ["old"] * 40_000}))
    table.overwrite(pa.table({"k": range(20_000, 60_000), "v": ["new"] * 40_000}))
    apply(table)
    found = table.scan().to_arrow()
    assert found["k"].to_pylist() == list(range(20_000, 60_000))
    assert set(found["v"].to_pylist()) == {"new"}
    assert table.delete(all=True).rows == 40_000
    apply(table)
    assert len(table) == 0


# --- exactly once


def test_a_token_returns_its_first_commit_and_looks_at_nothing_else(readings: Table) -> None:
    token = ("job", 1)
    first = readings.append(some(ONE), token=token, metadata={"file": "a"})

    def refuse() -> Any:
        raise AssertionError("data was looked at")
        yield

    again = readings.append(refuse(), token=token)
    assert again == first
    assert readings.delete("value > 0", token=token) == first
    assert readings.update({"value": "0"}, token=token) == first
    assert readings.overwrite(refuse(), token=token) == first
    assert rows(readings.scan().to_arrow()) == [ONE]


def test_a_token_remembers_a_write_that_changed_nothing(readings: Table) -> None:
    first = readings.delete("value > 5", token=("job", 1))
    assert first.rows == 0
    readings.append(some((7, 1, "x", 9.0)))
    assert readings.delete("value > 5", token=("job", 1)) == first
    assert len(readings) == 1


def test_a_token_number_that_was_passed_is_refused(readings: Table) -> None:
    readings.append(some(ONE), token=("job", 5))
    with pytest.raises(UsageError, match="was passed"):
        readings.append(some(ONE), token=("job", 4))
    assert len(readings) == 1


# --- time


def test_as_of_sees_each_moment(readings: Table, settle: Settle) -> None:
    first = readings.append(some(ONE))
    settle(readings)
    second = readings.append(some(TWO))
    settle(readings)
    third = readings.delete(keys=[7])
    settle(readings)
    for commit, expected in ((first, [ONE]), (second, [ONE, TWO]), (third, [])):
        for moment in (commit, commit.time, commit.time.isoformat(), Micros(commit.micros)):
            assert rows(readings.scan(as_of=moment).to_arrow()) == expected
        view = readings.as_of(commit)
        assert rows(view.get(7)) == expected
        assert len(view) == len(expected)
        assert rows(readings.get(7, as_of=commit)) == expected
    assert rows(readings.as_of(Micros(third.micros - 1)).scan().to_arrow()) == [ONE, TWO]


def test_a_view_of_an_earlier_time_cannot_be_written(readings: Table, db: Database) -> None:
    commit = readings.append(some(ONE))
    for write in (
        lambda: readings.as_of(commit).append(some(TWO)),
        lambda: readings.as_of(commit).delete(all=True),
        lambda: readings.as_of(commit).set(online=False),
        lambda: db.as_of(commit).create_table("t", READINGS, row_keys="at"),
        lambda: db.as_of(commit).drop_table("readings"),
        lambda: db.as_of(commit)["readings"].append(some(TWO)),
    ):
        with pytest.raises(UsageError, match="earlier time"):
            write()


def test_the_future_is_refused_at_once(readings: Table) -> None:
    commit = readings.append(some(ONE))
    with pytest.raises(AsOfInFuture):
        readings.scan(as_of=commit.time + timedelta(days=1)).to_arrow()


def test_now_on_an_idle_database_is_made_definite(readings: Table) -> None:
    commit = readings.append(some(ONE))
    now = readings._handle.store.env.now_micros()
    assert now > commit.micros
    assert rows(readings.scan(as_of=Micros(now)).to_arrow()) == [ONE]
    assert readings.append(some(TWO)).micros > now
    assert rows(readings.scan(as_of=Micros(now)).to_arrow()) == [ONE]


def test_a_table_is_not_there_before_it_was_made(db: Database, readings: Table) -> None:
    first = readings.append(some(ONE))
    later = db.create_table("later", READINGS, row_keys="at")
    with pytest.raises(UnknownTable):
        later.as_of(first)
    assert db.as_of(first).tables() == ["readings"]


# --- the table itself


def test_history_tells_what_was_done(readings: Table, db: Database) -> None:
    db.create_table("other", READINGS, row_keys="at").append(some(ONE))
    first = readings.append(some(ONE, TWO), metadata={"file": "a.csv"})
    readings.delete(keys=[7])
    found = readings.history().to_pylist()
    assert [row["operation"] for row in found] == ["delete", "append", "create_table"]
    assert [row["rows"] for row in found] == [2, 2, 0]
    assert found[1]["commit"] == first.id
    assert found[1]["time"] == first.time
    assert found[1]["metadata"] == [("file", "a.csv")]
    assert found[1]["tables"] == ["readings"]
    assert readings.history(1).num_rows == 1
    assert readings.as_of(first).history()["operation"].to_pylist() == ["append", "create_table"]
    assert db.history()["operation"].to_pylist() == [
        "delete", "append", "append", "create_table", "create_table",
    ]  # fmt: skip


def test_history_is_long(readings: Table) -> None:
    commits = [readings.append(some((1, i, None, None)), token=("t", i)) for i in range(300)]
    assert readings.history()["commit"].to_pylist()[:300] == [c.id for c in commits[::-1]]
    assert readings.append(some(ONE), token=("t", 240)) == commits[240]


def test_properties_have_defaults_and_can_be_changed(readings: Table) -> None:
    assert readings.properties["retention"] == "7 days"
    before = readings.set(retention="30 days", online=False)
    readings.set(split_rows=1000)
    assert readings.properties == {
        **readings.properties,
        "retention": "30 days",
        "online": "false",
        "split_rows": "1000",
    }
    assert readings.as_of(before).properties["split_rows"] != "1000"


def test_a_table_shows_what_it_is(readings: Table, db: Database) -> None:
    readings.append(some((7, 1, "<b>&", 1.0)))
    assert (
        repr(readings).splitlines()[0]
        == "<strandline.Table 'readings', rows, by sensor, at (sort)>"
    )
    assert "  value: double" in repr(readings)
    assert "&lt;b&gt;&amp;" in readings._repr_html_()
    assert repr(db) == f"<strandline.Database {db.url!r}>"
    assert readings.row_keys == ("sensor",)
    assert readings.sort_keys == ("at",)
    assert (readings.kind, readings.name) == ("rows", "readings")
    assert readings.schema.names == READINGS.names
    assert readings.schema.metadata is None
    assert all(field.metadata is None for field in readings.schema)
    assert readings.head(5).num_rows == 1


def test_a_write_whose_rows_could_not_be_stored_did_not_happen(
    open_database: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    db = open_database(settings=replace(QUIET, inline_bytes_max=0))
    table = db.create_table("readings", READINGS, row_keys="sensor", sort_keys="at")

    def unknown(*_: Any, **__: Any) -> None:
        raise LocationError("no answer")

    with monkeypatch.context() as patch:
        for call in ("put", "upload"):
            patch.setattr(db._handle.store.location.blob, call, unknown)
        with pytest.raises(LocationError) as failed:
            table.append(some(ONE))
        assert not failed.value.may_have_happened
    table.append(some(TWO))
    assert rows(table.scan().to_arrow()) == [TWO]


def test_a_commit_names_itself(readings: Table) -> None:
    commit = readings.append(some(ONE))
    assert isinstance(commit, Commit)
    assert commit.id == f"c{commit.micros:016x}"
    assert commit.time.tzinfo is UTC


@pytest.mark.parametrize("inline_bytes_max", [0, 65_536])
def test_rows_go_from_a_keyed_table_whose_columns_are_never_null(
    open_database: Callable[..., Database], inline_bytes_max: int
) -> None:
    kinds = [
        pa.int8(), pa.uint64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(),
        pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("s"), pa.time64("us"),
        pa.decimal128(9, 2), pa.list_(pa.field("element", pa.int8(), nullable=False)),
        pa.map_(pa.string(), pa.int8()),
        pa.struct([pa.field("a", pa.int8(), nullable=False), pa.field("b", pa.string())]),
    ]  # fmt: skip
    fields = [pa.field(f"v{i}", kind, nullable=False) for i, kind in enumerate(kinds)]
    schema = pa.schema([pa.field("k", pa.int64()), *fields])
    db = open_database(settings=replace(QUIET, inline_bytes_max=inline_bytes_max))
    table = db.create_table("t", schema, row_keys="k", kind="keyed")
    row = {
        "v0": 1, "v1": 1, "v2": 1.0, "v3": 1.0, "v4": True, "v5": "x", "v6": b"x",
        "v7": date(2026, 11, 20), "v8": datetime(2026, 11, 20, tzinfo=UTC),
        "v9": datetime(2026, 11, 20),  # noqa: DTZ001  the column has no zone
        "v10": time(1), "v11": Decimal(1), "v12": [1],
        "v13": [("x", 1)], "v14": {"a": 1, "b": "x"},
    }  # fmt: skip
    table.append(pa.Table.from_pylist([{"k": k, **row} for k in range(4)], schema))
    table.delete(keys=[1])
    table.delete(where="k = 2")
    db.sql("DELETE FROM t WHERE k = 3")
    assert table.scan(columns=["k"]).to_arrow().to_pylist() == [{"k": 0}]
    db.compact("t", strategy="full")
    assert table.scan(columns=["k"]).to_arrow().to_pylist() == [{"k": 0}]
    assert len(table) == 1
