from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.parts.schema import TableSchema, new_schema
from strandline.parts.statistics import (
    ColumnStats,
    Comparison,
    StatisticsBuilder,
    decode_statistics,
    may_match,
)
from strandline.settings import Settings
from tests.unit.parts.files.test_part import Store
from tests.unit.parts.strategies import KEY_VALUES

VALUE_TYPES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    **KEY_VALUES,
    pa.string(): st.text(st.sampled_from("ab\U0010ffff\ud7ff\x00"), max_size=40)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    pa.binary(): st.binary(max_size=40) | st.sampled_from([b"\xff" * 40, b"a" * 33]),
    pa.float64(): st.floats(),
    pa.float32(): st.floats(width=32),
}


def schema_of(kind: pa.DataType) -> TableSchema:
    return new_schema(pa.schema([("k", pa.int64()), ("v", kind)]), "k")


def table_of(values: list[Any], kind: pa.DataType) -> pa.Table:
    return pa.table(
        [pa.array(range(len(values)), pa.int64()), pa.array(values, kind)],
        schema=schema_of(kind).arrow,
    )


def statistics_of(table: pa.Table, schema: TableSchema, columns_max: int) -> bytes:
    """The statistics of the keys and the first `columns_max` columns of a table's rows."""
    builder = StatisticsBuilder(schema, columns_max)
    builder.add(table)
    return builder.to_bytes()


OPS: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip


@settings(max_examples=300)
@given(st.data())
def test_nothing_that_matches_is_left_out(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(VALUE_TYPES)))
    one = VALUE_TYPES[kind]
    values = data.draw(st.lists(st.none() | one, min_size=1, max_size=5))
    table = table_of(values, kind)
    found = statistics_of(table, schema_of(kind), 32)
    wanted = data.draw(st.sampled_from([v for v in values if v is not None] or [None]) | one)
    op = data.draw(st.sampled_from(list(OPS)))
    if wanted is None:
        return
    matches = pc.any(OPS[op](table["v"], pa.scalar(wanted, kind))).as_py()
    for form in (op, "in") if op == "=" else (op,):
        if not may_match(found, [Comparison("v", form, (wanted,))], schema_of(kind)):
            assert not matches


@given(st.data())
def test_parts_have_the_same_statistics_as_their_rows(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(VALUE_TYPES)))
    values = data.draw(st.lists(st.none() | VALUE_TYPES[kind], min_size=1, max_size=9))
    table, schema = table_of(values, kind), schema_of(kind)
    store = Store(Settings(row_group_rows=2))
    part = store.write(table, schema)
    alone = decode_statistics(statistics_of(table, schema, 32), schema)
    assert repr(decode_statistics(part.statistics, schema)) == repr(alone)
    assert alone["k"] == ColumnStats(0, len(values) - 1, 0)
    assert alone["v"].nulls == values.count(None)


@pytest.mark.parametrize(
    ("values", "kind", "matching", "left_out"),
    [
        ([5, 9], pa.int16(), [5, 7, 9], [4, 10, -1, 2**70]),
        (["b", "d"], pa.string(), ["b", "c", "d"], ["a", "da", ""]),
        ([Decimal("1.50")], pa.decimal128(9, 2), [Decimal("1.5")], [1, 2, Decimal("1.51")]),
        ([0.1, 0.3], pa.float32(), [0.1, 0.2, 0.3, Decimal("0.2")], [0.05, 1, 7]),
        ([date(2026, 1, 1)], pa.date32(), [date(2026, 1, 1)], [date(2026, 1, 2)]),
        ([datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("ms", "Asia/Kolkata"),
         [datetime.fromisoformat("2026-01-01T05:30+05:30")],
         [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(milliseconds=1)]),
        ([False], pa.bool_(), [False], [True]),
    ],
)  # fmt: skip
def test_what_cannot_match_is_left_out(
    values: list[Any], kind: pa.DataType, matching: list[Any], left_out: list[Any]
) -> None:
    found = statistics_of(table_of([*values, None], kind), schema_of(kind), 32)
    for value in matching:
        assert may_match(found, [Comparison("v", "=", (value,))], schema_of(kind))
        assert may_match(found, [Comparison("v", "in", (left_out[0], value))], schema_of(kind))
    for value in left_out:
        assert not may_match(found, [Comparison("v", "=", (value,))], schema_of(kind))


@pytest.mark.parametrize(
    ("values", "kind", "wanted"),
    [
        ([5], pa.int64(), 5.0), ([5], pa.int64(), "5"), ([5], pa.int64(), None),
        ([5], pa.int64(), True), ([1.0], pa.float64(), float("nan")), ([1.0], pa.float64(), "1"),
        ([float("nan")], pa.float64(), 7.0), ([float("nan"), 1.0], pa.float64(), 7.0),
        ([1.0], pa.float64(), 10**400), (["a"], pa.string(), b"a"), (["a"], pa.string(), 7),
        ([Decimal("0.1")], pa.decimal128(9, 2), 0.1), ([None], pa.int64(), 7),
        ([datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"),
         datetime.fromisoformat("2026-01-01")),
        ([[1]], pa.list_(pa.int8()), [2]), (["\U0010ffff" * 40], pa.string(), "\U0010ffff" * 50),
    ],
)  # fmt: skip
def test_what_is_in_doubt_may_match(values: list[Any], kind: pa.DataType, wanted: Any) -> None:
    found = statistics_of(table_of(values, kind), schema_of(kind), 32)
    assert may_match(found, [Comparison("v", "=", (wanted,))], schema_of(kind))


def test_a_literal_that_an_engine_rounds_is_not_left_out() -> None:
    table = table_of([0.1], pa.float32())
    found = statistics_of(table, schema_of(pa.float32()), 32)
    for literal in ("0.1", "0.1::double", "0.1::float"):
        with duckdb.connect() as connection:
            connection.register("t", table)
            rows = connection.sql(f"select * from t where v = {literal}").fetchall()
            value = connection.sql(f"select {literal}").fetchall()[0][0]
        assert not rows or may_match(
            found, [Comparison("v", "=", (value,))], schema_of(pa.float32())
        )


def test_only_the_first_columns_and_the_keys_have_statistics() -> None:
    names = [f"c{i}" for i in range(10)]
    schema = new_schema(pa.schema([(name, pa.int64()) for name in names]), "c9")
    table = pa.table({name: [1] for name in names}, schema=schema.arrow)
    assert sorted(decode_statistics(statistics_of(table, schema, 3), schema)) == [
        "c0", "c1", "c2", "c9",
    ]  # fmt: skip
    many = StatisticsBuilder(schema, 3)
    for _ in range(100):
        many.add(table)
    assert many.to_bytes() == statistics_of(table, schema, 3)


def test_statistics_of_another_format_say_nothing() -> None:
    schema = schema_of(pa.int64())
    for data in (b"", b"\xff\x00"):
        assert decode_statistics(data, schema) == {}
        assert may_match(data, [Comparison("v", "=", (1,))], schema)
