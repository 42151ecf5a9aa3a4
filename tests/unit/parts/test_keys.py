from __future__ import annotations

import timeit
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import UsageError
from strandline.parts.keys import KeyCodec, KeyRange, clip, locate, successor
from strandline.state.model import Interval
from tests.unit.parts.ranges import mask_of
from tests.unit.parts.strategies import KEYS, key_tuples, keys_schema

Drawn = tuple[tuple[pa.DataType, ...], list[tuple[Any, ...]]]


@st.composite
def tuples_of_keys(draw: st.DrawFn, least: int = 0) -> Drawn:
    kinds = draw(KEYS)
    return kinds, draw(st.lists(key_tuples(kinds), min_size=least, max_size=12))


FINE = datetime.fromisoformat("2026-01-01T00:00:00.000005")
BOOLEANS: st.SearchStrategy[Any] = st.booleans()
DRAWN: st.SearchStrategy[Any] = tuples_of_keys()


def comparable(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(v.encode() if isinstance(v, str) else v for v in values)


def table_of(kinds: tuple[pa.DataType, ...], rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(kinds)
    arrays = [pa.array(c, kind) for c, kind in zip(columns, kinds, strict=True)]
    return pa.table(arrays, schema=keys_schema(*kinds).arrow)


@given(tuples_of_keys(least=2))
def test_the_order_of_the_bytes_is_the_order_of_the_keys(drawn: Drawn) -> None:
    kinds, rows = drawn
    codec = KeyCodec(keys_schema(*kinds))
    for a in rows:
        for b in rows:
            left, right = codec.encode(a), codec.encode(b)
            assert (left < right) == (comparable(a) < comparable(b))
            assert (left == right) == (comparable(a) == comparable(b))
            assert left == right or not right.startswith(left)


@given(tuples_of_keys(least=1))
def test_keys_and_their_prefixes_come_back_and_encode_to_prefixes(drawn: Drawn) -> None:
    kinds, rows = drawn
    codec = KeyCodec(keys_schema(*kinds))
    for row in rows:
        assert codec.normalize(row) == row
        for length in range(len(row) + 1):
            data = codec.encode(row[:length])
            assert codec.decode(data) == row[:length]
            assert codec.encode(row).startswith(data)


@given(tuples_of_keys(least=1))
def test_arrow_and_duckdb_sort_in_the_order_of_the_bytes(drawn: Drawn) -> None:
    kinds, rows = drawn
    codec = KeyCodec(keys_schema(*kinds))
    table = table_of(kinds, rows)
    expected = sorted(codec.encode(row) for row in rows)
    by_arrow = table.sort_by([(name, "ascending") for name in table.column_names])
    assert codec.encode_rows(by_arrow, range(len(rows))) == expected
    order = ", ".join(f'"{name}"' for name in table.column_names)
    with duckdb.connect() as connection:
        connection.register("t", table)
        by_duckdb = connection.sql(f"select * from t order by {order}").to_arrow_table()
    assert codec.encode_rows(by_duckdb.cast(table.schema), range(len(rows))) == expected


@given(tuples_of_keys(least=1))
def test_the_first_and_last_row_give_the_bounds(drawn: Drawn) -> None:
    kinds, rows = drawn
    codec = KeyCodec(keys_schema(*kinds))
    table = table_of(kinds, rows)
    assert codec.first_last(table) == (codec.encode(rows[0]), codec.encode(rows[-1]))


def test_integers_encode_alike_in_every_width() -> None:
    encoded = {
        KeyCodec(keys_schema(kind)).encode((100,))
        for kind in (pa.int8(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64())
    }
    assert len(encoded) == 1
    edges = [-(2**63), -1, 0, 2**63 - 1, 2**63, 2**64 - 1]
    codec = KeyCodec(keys_schema(pa.uint64()))
    assert [codec.decode(codec.encode((n,))) for n in edges] == [(n,) for n in edges]
    assert sorted(edges, key=lambda n: codec.encode((n,))) == edges


@given(st.binary(max_size=6), st.binary(max_size=6))
def test_the_successor_ends_what_starts_with_a_prefix(prefix: bytes, other: bytes) -> None:
    after = successor(prefix)
    assert after is not None or not prefix.strip(b"\xff")
    inside = prefix <= other and (after is None or other < after)
    assert inside == other.startswith(prefix)


def ranges(kinds: tuple[pa.DataType, ...]) -> st.SearchStrategy[KeyRange]:
    bound = st.none() | st.tuples(key_tuples(kinds), st.integers(0, len(kinds))).map(
        lambda pair: pair[0][: pair[1]]
    )
    return st.builds(KeyRange, bound, bound, st.booleans())


@given(st.data())
def test_ranges_hold_what_their_intervals_hold(data: st.DataObject) -> None:
    kinds, rows = data.draw(DRAWN)
    wanted = data.draw(ranges(kinds))
    if rows and data.draw(BOOLEANS):  # bounds that occur
        wanted = KeyRange(rows[0][: data.draw(st.integers(0, len(kinds)))], wanted.upper, True)
    schema = keys_schema(*kinds)
    codec = KeyCodec(schema)
    table = table_of(kinds, rows)
    interval = wanted.interval(codec)
    expected = [interval.contains(codec.encode(row)) for row in rows]
    assert mask_of(wanted, table, schema) == expected


@given(st.data())
def test_clipping_a_sorted_table_keeps_exactly_the_rows_inside(data: st.DataObject) -> None:
    kinds, rows = data.draw(DRAWN)
    schema = keys_schema(*kinds)
    codec = KeyCodec(schema)
    rows = sorted(rows, key=codec.encode)
    table = table_of(kinds, rows)
    if rows and data.draw(BOOLEANS):
        table = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    points = [codec.encode(p) for p in data.draw(st.lists(key_tuples(kinds), max_size=4))]
    points = sorted({*points, *(codec.encode(r)[:-1] for r in rows[:2]), b""})
    cuts = [Interval(a, b) for a, b in zip(points, [*points[1:], None], strict=True)][::2]
    expected = [e for e in map(codec.encode, rows) if any(c.contains(e) for c in cuts)]
    clipped = clip(table, cuts, codec)
    assert codec.encode_rows(clipped, range(clipped.num_rows)) == expected
    for point in points:
        assert locate(table, point, codec) == sum(codec.encode(r) < point for r in rows)


def test_values_beyond_a_column_are_compared_all_the_same() -> None:
    schema = keys_schema(pa.int8(), pa.uint8())
    codec = KeyCodec(schema)
    table = pa.table({"k0": [-128, 0, 127], "k1": [0, 1, 255]}, schema=schema.arrow)
    for lower, upper, expected in [
        ((300,), None, []),
        ((-300,), (300,), [True] * 3),
        (None, (-300,), []),
        ((0, -5), (0, 300), [False, True, False]),
        ((0, 300), None, [False, False, True]),
    ]:
        wanted = KeyRange(lower, upper)
        interval = wanted.interval(codec)
        found = [interval.contains(key) for key in codec.encode_rows(table, range(3))]
        assert found == mask_of(wanted, table, schema) == (expected or [False] * 3)


def test_times_outside_of_python_are_encoded_and_decoded() -> None:
    for kind, value in [(pa.date32(), 2**31 - 1), (pa.timestamp("s", "UTC"), -(2**62))]:
        schema = keys_schema(kind)
        codec = KeyCodec(schema)
        table = pa.table(
            [
                pa.array([value], pa.int64())
                .cast(pa.int32() if kind == pa.date32() else pa.int64())
                .view(kind)
            ],
            schema=schema.arrow,
        )
        data = codec.encode_rows(table, [0])[0]
        assert codec.decode(data) == (value,)
        assert codec.encode((value,)) == data


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), None), (pa.int64(), "7"), (pa.int64(), 7.0), (pa.int64(), True),
        (pa.int64(), 2**64), (pa.int64(), -(2**63) - 1), (pa.string(), b"a"), (pa.string(), 7),
        (pa.string(), "\ud800"), (pa.binary(), "a"), (pa.bool_(), 1),
        (pa.date32(), datetime.fromisoformat("2026-01-01")), (pa.date32(), "yesterday"),
        (pa.timestamp("us", "UTC"), datetime.fromisoformat("2026-01-01")),
        (pa.timestamp("us"), datetime(2026, 1, 1, tzinfo=UTC)),
        (pa.timestamp("s"), FINE), (pa.timestamp("us"), 7),
        (pa.decimal128(5, 2), 1.5), (pa.decimal128(5, 2), Decimal("1.234")),
        (pa.decimal128(5, 2), Decimal("NaN")), (pa.decimal128(5, 2), Decimal("1e99999")),
        (pa.decimal128(5, 2), Decimal("1e-99999")), (pa.int64(), (1, 2)),
    ],
)  # fmt: skip
def test_what_is_no_key_is_refused_by_name(kind: pa.DataType, value: Any) -> None:
    with pytest.raises(UsageError, match="k0"):
        KeyCodec(keys_schema(kind)).normalize(value)


@pytest.mark.parametrize(
    ("kind", "value", "key"),
    [
        (pa.int64(), np.int8(7), 7), (pa.int8(), pa.scalar(7), 7), (pa.bool_(), np.True_, True),
        (pa.date32(), "2026-01-02", date(2026, 1, 2)), (pa.binary(), bytearray(b"a"), b"a"),
        (pa.timestamp("us", "UTC"), "2026-01-02T00:00:00+02:00",
         datetime(2026, 1, 1, 22, tzinfo=UTC)),
        (pa.decimal128(5, 2), 7, Decimal("7.00")), (pa.string(), ["a"], "a"),
    ],
)  # fmt: skip
def test_other_forms_of_a_value_are_taken(kind: pa.DataType, value: Any, key: Any) -> None:
    assert KeyCodec(keys_schema(kind)).normalize(value) == (key,)


def test_what_is_no_encoding_is_not_decoded() -> None:
    codec = KeyCodec(keys_schema(pa.int64(), pa.string()))
    for data in (b"\0", codec.encode((1, "a")) + b"\0", codec.encode((1, "a"))[:-1]):
        with pytest.raises(ValueError, match="not an encoded key"):
            codec.decode(data)


def test_encoding_a_key_takes_microseconds() -> None:
    codec = KeyCodec(keys_schema(pa.int64(), pa.string(), pa.timestamp("us", "UTC")))
    key = codec.normalize((7, "seven", datetime(2026, 1, 1, tzinfo=UTC)))
    best = min(timeit.repeat(lambda: codec.encode(key), number=200, repeat=20)) / 200
    assert best < 50e-6  # a few on a quiet machine
