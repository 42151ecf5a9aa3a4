"""`where` takes conditions on a row and nothing else, and never leaves out a row that matches."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.conditions import Comparison, compile_where, key_ranges
from strandline.errors import UsageError
from strandline.expressions import quote_columns
from strandline.parts.keys import KeyCodec, KeyRange
from strandline.parts.schema import TableSchema, new_schema

ARROW = pa.schema(
    [
        ("sensor", pa.int32()),
        ("at", pa.timestamp("us", "UTC")),
        ("name", pa.string()),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("on", pa.bool_()),
        ("local", pa.timestamp("us")),
        ("value", pa.float64()),
    ]
)
SCHEMA = new_schema(ARROW, ["sensor"], ["at"])
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def compiled(where: Any, schema: TableSchema = SCHEMA) -> Any:
    return compile_where(where, schema, "readings")


def read(where: Any) -> list[tuple[str, str, Any]]:
    return [(c.column, c.op, *c.values) for c in compiled(where).comparisons]


@pytest.mark.parametrize(
    "where",
    [
        "DELETE FROM readings",
        "SELECT 1",
        "value > 3; DROP TABLE readings",
        "value > 3) UNION SELECT 1 FROM rows WHERE (1 = 1",
        "value > 3) OR (value < 2",
        "value > 3) GROUP BY (1",
        "value IN (SELECT 1)",
        "EXISTS (SELECT 1)",
        "(SELECT true)",
        "value > (SELECT max(value) FROM rows)",
        "max(value) > 3",
        "row_number() OVER () > 1",
        "unnest([true])",
        "value > ?",
        "value > $limit",
        "COLUMNS(*) > 3",
        "valu > 3",
        "other.value > 3",
        "value >",
        "",
        "   ",
        "-- nothing",
        "value > 3 /* open",
        "value > 3 ORDER BY value",
        "value > 3 LIMIT 1",
        "'unclosed",
        "read_text('/etc/passwd') = ''",
    ],
)
def test_what_is_no_condition_on_one_row_is_refused(where: str) -> None:
    with pytest.raises(UsageError, match="where"):
        compiled(where)


@pytest.mark.parametrize("where", [3, True, ["value > 3"], b"value > 3", object()], ids=type)
def test_what_is_neither_text_nor_an_expression_is_refused(where: Any) -> None:
    with pytest.raises(UsageError, match=r"where=.* is no condition: pass a SQL expression"):
        compiled(where)


def test_an_arrow_expression_on_an_unknown_column_is_refused() -> None:
    with pytest.raises(UsageError, match="no condition on the columns"):
        compiled(pc.field("nothing") > 3)


def test_columns_are_found_whatever_their_case_and_only_those() -> None:
    assert compiled("Value > 3 AND \"NAME\" = 'x'").columns == ("name", "value")
    assert compiled("readings.value > 3").columns == ("value",)
    assert compiled(pc.field("value") > 3).columns == ("value",)
    assert compiled("true").columns == ()


def test_names_that_are_keywords_need_no_quotes() -> None:
    condition = compiled("at > '2026-11-20 12:00:00Z' AND at AT TIME ZONE 'UTC' IS NOT NULL")
    assert condition.columns == ("at",)
    assert compiled("  at IS NULL").columns == ("at",)
    assert quote_columns("é = 'at' and at > 3 -- at", ["at"]) == "é = 'at' and \"at\" > 3 -- at"


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


def test_rows_for_which_the_condition_is_null_do_not_match_and_order_is_kept() -> None:
    schema = new_schema(pa.schema([("k", pa.int64()), ("v", pa.float64())]), "k")
    table = pa.table({"k": range(100_000), "v": [None, 1.0, 2.0, 3.0] * 25_000})
    for where in ("v > 1", pc.field("v") > 1):
        condition = compile_where(where, schema, 'odd "name"')
        assert condition is not None
        selected = condition.select(table)
        assert selected["k"].to_pylist() == [k for k in range(100_000) if k % 4 > 1]
        assert condition.select(table.slice(0, 0)).num_rows == 0


def test_a_failure_on_a_row_is_the_users() -> None:
    table = pa.Table.from_pylist([{"sensor": 1, "name": "x", "value": 1.0}], schema=ARROW)
    for where in ("CAST(name AS INTEGER) > 3", "value > 'many'"):
        with pytest.raises(UsageError, match="failed on a row"):
            compiled(where).select(table)
