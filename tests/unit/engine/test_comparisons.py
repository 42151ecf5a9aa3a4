"""What is read out of a condition never leaves out a row that matches."""

from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.engine.comparisons import key_ranges
from strandline.engine.conditions import compile_where
from strandline.parts.keys import KeyCodec, KeyRange
from strandline.parts.schema import new_schema
from strandline.parts.statistics import Comparison
from tests.unit.engine.test_conditions import NOON, SCHEMA, compiled


def read(where: Any) -> list[tuple[str, str, Any]]:
    return [(c.column, c.op, *c.values) for c in compiled(where).comparisons]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("sensor = 7", [("sensor", "=", 7)]),
        ("7 < sensor", [("sensor", ">", 7)]),
        ("sensor BETWEEN 1 AND 3", [("sensor", ">=", 1), ("sensor", "<=", 3)]),
        ("sensor IN (1, -2)", [("sensor", "in", 1, -2)]),
        ("name = 'it''s'", [("name", "=", "it's")]),
        ("price >= 1.5", [("price", ">=", Decimal("1.5"))]),
        ('"on" = true', [("on", "=", True)]),
        ("day < DATE '2026-11-20'", [("day", "<", date(2026, 11, 20))]),
        ("at <= '2026-11-20 12:00:00Z'", [("at", "<=", NOON)]),
        ("at = TIMESTAMPTZ '2026-11-20 13:00:00+01:00'", [("at", "=", NOON)]),
        ("local = TIMESTAMP '2026-11-20 12:00:00'", [("local", "=", NOON.replace(tzinfo=None))]),
        (
            "sensor = 7 AND (name > 'a' AND value < 2)",
            [("sensor", "=", 7), ("name", ">", "a"), ("value", "<", 2.0)],
        ),
        (pc.field("sensor") == 7, [("sensor", "=", 7)]),
        (
            (pc.field("sensor") > 7) & (pc.field("name") <= "b"),
            [("sensor", ">", 7), ("name", "<=", "b")],
        ),
        (pc.field("at") >= NOON, [("at", ">=", NOON)]),
        (pc.field("day") < date(2026, 11, 20), [("day", "<", date(2026, 11, 20))]),
    ],
    ids=str,
)
def test_comparisons_with_constants_are_read(where: Any, expected: list[Any]) -> None:
    assert read(where) == expected


@pytest.mark.parametrize(
    "where",
    [
        "sensor = 7 OR value > 2",
        "value > 1e300",
        "NOT sensor = 7",
        "sensor = 7.5",
        "sensor + 1 = 7",
        "sensor::BIGINT = 7",
        "name = 7",
        "sensor = '7'",
        "price = 1.005",
        "day = '20 November'",
        "sensor IN (1, NULL)",
        "sensor IN (1, value)",
        "sensor = value",
        (pc.field("sensor") == 7) | (pc.field("value") > 2),
        ~(pc.field("sensor") == 7),
        pc.field("name") == 'a" and (sensor == 7) and "b',
        pc.field("name") == 'a\\" and (sensor == 7) and "b',
    ],
    ids=str,
)
def test_what_may_mean_something_else_is_not_read(where: Any) -> None:
    assert [c for c in read(where) if c[0] != "name" or isinstance(where, str)] == []


def test_a_column_name_cannot_pass_for_a_comparison() -> None:
    odd = new_schema(pa.schema([("k", pa.int64()), ("(k == 7) and (k", pa.int64())]), ["k"])
    assert compiled(pc.field("(k == 7) and (k") == 7, odd).comparisons == ()


def ranges(*comparisons: tuple[str, str, Any]) -> list[KeyRange] | None:
    return key_ranges(
        [Comparison(c, op, v if op == "in" else (v,)) for c, op, v in comparisons], SCHEMA
    )


def test_fixed_keys_and_bounds_on_the_next_become_ranges() -> None:
    assert ranges() is None
    assert ranges(("value", ">", 1.0)) is None
    assert ranges(("at", ">", NOON)) is None
    assert ranges(("sensor", "=", 7)) == [KeyRange((7,), (7,), closed=True)]
    assert ranges(("sensor", ">", 7)) == [KeyRange((7,), None, closed=True)]
    assert ranges(("sensor", "<", 7), ("sensor", "<=", 7)) == [KeyRange(None, (7,))]
    assert ranges(("sensor", "=", 7), ("at", ">=", NOON)) == [
        KeyRange((7, NOON), (7,), closed=True)
    ]
    assert ranges(("sensor", "in", (9, 1, 9)), ("at", "<", NOON)) == [
        KeyRange((1,), (1, NOON)),
        KeyRange((9,), (9, NOON)),
    ]
    assert ranges(("sensor", "=", 7), ("sensor", "in", (8, 9))) == []


NUMBERS = st.integers(-3, 3)
OPS = st.sampled_from(["=", "<", "<=", ">", ">=", "in"])
CLAUSES = st.lists(
    st.tuples(st.sampled_from(["a", "b", "v"]), OPS, st.lists(NUMBERS, min_size=1, max_size=3)),
    min_size=1,
    max_size=4,
)
PAIR = new_schema(pa.schema([("a", pa.int64()), ("b", pa.int64()), ("v", pa.int64())]), ["a", "b"])
GRID = pa.table(
    {
        "a": [a for a in range(-3, 4) for _ in range(7)],
        "b": [b for _ in range(7) for b in range(-3, 4)],
        "v": [n % 7 - 3 for n in range(49)],
    },
    schema=pa.schema([(f.name, f.type) for f in PAIR.arrow]),
)


@settings(deadline=None, max_examples=60)
@given(CLAUSES)
def test_key_ranges_never_leave_out_a_row_that_matches(clauses: list[Any]) -> None:
    words = [
        f"{c} IN ({', '.join(map(str, values))})" if op == "in" else f"{c} {op} {values[0]}"
        for c, op, values in clauses
    ]
    condition = compile_where(" AND ".join(words), PAIR, "grid")
    assert condition is not None
    matching = condition.select(GRID)
    found = key_ranges(condition.comparisons, PAIR)
    if found is None:
        return
    codec = KeyCodec(PAIR)
    intervals = [r.interval(codec) for r in found]
    for a, b in zip(matching["a"].to_pylist(), matching["b"].to_pylist(), strict=True):
        key = codec.encode((a, b))
        assert any(i.lower <= key and (i.upper is None or key < i.upper) for i in intervals)
