"""`where` takes conditions on a row and nothing else, and never leaves out a row that matches."""

import subprocess
import sys
from datetime import UTC, date, datetime
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strandline.engine import conditions
from strandline.engine.conditions import (
    PlainCondition,
    SqlCondition,
    compile_where,
    plain_condition,
)
from strandline.engine.expressions import quote_columns
from strandline.errors import UsageError
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


@pytest.mark.parametrize(
    "where", [pc.field(1) == 7, (pc.field("k") > 1) & (pc.field(0) == 1), pc.field("k", 0) == 1]
)
def test_an_arrow_expression_on_the_place_of_a_column_is_refused(where: pc.Expression) -> None:
    # Of a scan of other columns, and of a delete, another column is at that place.
    with pytest.raises(UsageError, match="by its place: tell it by its name"):
        compiled(where)


def test_a_text_may_look_like_the_place_of_a_column() -> None:
    assert compiled(pc.field("name") == "FieldPath(0)") is not None


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


# --- conditions that need no engine

PLAIN = new_schema(
    pa.schema(
        [
            ("K", pa.int32()), ("small", pa.uint8()), ("big", pa.uint64()), ("v", pa.float64()),
            ("s", pa.string()), ("b c", pa.string()), ("rowid", pa.int64()), ("at", pa.int64()),
            ("current_date", pa.string()), ("user", pa.string()), ("é", pa.int64()),
            ("\u017fx", pa.int64()), ("f", pa.float32()), ("d", pa.date32()),
        ]
    ),
    "K",
)  # fmt: skip
WORDS = ["K", "k", '"k"', "small", "SMALL", "big", "v", "V", "s", '"b c"', "rowid", "at",
         "current_date", "user", '"é"', '"É"', '"\u017fx"', "sx", "f", "d", "nothing", "readings",
         "readings.s", "null", "true"]  # fmt: skip
NUMERALS = ["0", "1", "7", "255", "256", "-1", "- 1", "2147483648", "1.5", "-0.0", "0.1", "1e3",
           "007", "12345678901234567", "0.30000000000000004", "9007199254740993"]  # fmt: skip
QUOTED = ["''", "'a'", "'b'", "'a''b'", "'\xff'", "'\U0001f600'", "'7'", "e'a'", "'a' 'b'"]
CONSTANTS = st.sampled_from([*NUMERALS, *QUOTED, "NULL", "true"])
BLANKS = st.sampled_from([" ", " ", "", "\n", "\u00a0", "/* */"])
COMPARISONS = st.builds(
    "".join,
    st.tuples(
        BLANKS, st.sampled_from(["k", "small", "v", "s"]) | st.sampled_from(WORDS), BLANKS,
        st.sampled_from(["=", "<", "<=", ">", ">=", "<>", "!=", "==", "= -"]), BLANKS, CONSTANTS,
    ),
)  # fmt: skip
TEXTS_OF_CONDITIONS = st.builds(
    lambda first, rest: first + "".join(joint + each for joint, each in rest),
    COMPARISONS,
    st.lists(
        st.tuples(st.sampled_from([" and ", " AND\n", "and", " or ", ";", ") and ("]), COMPARISONS),
        max_size=2,
    ),
)

EDGES: dict[str, list[Any]] = {
    "K": [0, 1, 7, -1, 2**31 - 1, -(2**31)],
    "small": [0, 1, 255, None],
    "big": [0, 1, 2**64 - 1, None],
    "v": [0.0, -0.0, 1.5, float("nan"), float("inf"), float("-inf"), 0.1, 0.3, 2.0**53, None],
    "s": ["", "a", "b", "a'b", "a\0", "\xff", "\U0001f600", "\uffff", "7", None],
}
ROWS_OF_PLAIN = pa.Table.from_pylist(
    [
        {
            **{f.name: None for f in PLAIN.arrow},
            **{name: values[row * (2 * step - 1) % len(values)] for step, (name, values) in
               enumerate(EDGES.items(), 1)},
            "b c": EDGES["s"][row % 10], "rowid": row, "at": 7, "current_date": "a",
            "user": "b", "é": 1, "\u017fx": 7, "f": 0.1, "d": date(2026, 11, 20),
        }
        for row in range(60)
    ],
    PLAIN.arrow,
)  # fmt: skip


@example("v > 1.5")
@example("v >= -0.0 and v <> 0.1")
@example("v = 0 and K > -1")
@example("s > 'a' and s <= '\uffff'")
@example("big <> 0 and k != 7")
@given(TEXTS_OF_CONDITIONS)
@settings(max_examples=150, deadline=None)
def test_a_condition_means_the_same_without_an_engine(text: str) -> None:
    plain = plain_condition(text, PLAIN, "readings")
    if plain is None:
        return
    by_engine = SqlCondition(text, PLAIN.arrow, "readings")
    assert plain.columns == by_engine.columns
    assert set(by_engine.comparisons) <= set(plain.comparisons)
    found = plain.select(ROWS_OF_PLAIN).column("rowid")
    assert found.to_pylist() == by_engine.select(ROWS_OF_PLAIN).column("rowid").to_pylist()


@pytest.mark.parametrize(
    "text",
    ["k = 7", "K=7", "k = -7", " k > 1\nAND \"b c\" <> 'it''s' and v <= 2.5 ", "k != 0"],
)
def test_simple_conditions_need_no_engine(text: str) -> None:
    assert isinstance(compile_where(text, PLAIN, "readings"), PlainCondition)


@pytest.mark.parametrize(
    "text",
    ["small = 256", "small = -1", "v = 0.30000000000000004", "f = 0.1", "d = '2026-11-20'",
     "at = 7", "user = 'b' or k = 1", "k = '7'", "s = 7", "k = 7 and", '"É" = 1', "readings = 7",
     "k = 7 -- 8", "k = 1.0", "k = NULL", "not k = 7", "k = 1_000", "s = e'a'"],
)  # fmt: skip
def test_what_may_be_in_doubt_is_left_to_the_engine(text: str) -> None:
    assert plain_condition(text, PLAIN, "readings") is None


def test_a_text_that_was_seen_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    parse = conditions.SqlCondition

    def counted(text: str, *given: Any) -> Any:
        parsed.append(text)
        return parse(text, *given)

    monkeypatch.setattr(conditions, "SqlCondition", counted)
    monkeypatch.setattr(conditions, "_known", {})
    text, other = "at = 7 or k = 1", new_schema(PLAIN.arrow, "small")
    first = compile_where(text, PLAIN, "readings")
    assert compile_where(text, PLAIN, "readings") is first
    assert parsed == [text]
    compile_where(text, other, "readings")
    compile_where(text, PLAIN, "others")
    assert parsed == [text] * 3
    for number in range(3 * conditions._KNOWN_MAX):
        compile_where(f"k = {number}", PLAIN, "readings")
    assert len(conditions._known) <= conditions._KNOWN_MAX
    compile_where(f"at = 7 or s = '{'x' * 5_000}'", PLAIN, "readings")
    assert not any(len(text) > conditions._KNOWN_TEXT_MAX for _, _, text in conditions._known)


def test_every_word_that_is_more_than_a_name_to_the_engine_is_known() -> None:
    found: Any = duckdb.sql("SELECT keyword_name FROM duckdb_keywords() "
                       "WHERE keyword_category <> 'unreserved'")  # fmt: skip
    assert {word for (word,) in found.fetchall()} == conditions._KEYWORDS


def test_a_simple_condition_loads_no_engine() -> None:
    program = (
        "import sys, strandline as sl\n"
        "with sl.connect('memory://') as db:\n"
        "    t = db.create_table('t', {'k': [6, 7], 'v': [1, 2]}, row_keys='k')\n"
        "    assert t.scan(where='k = 7 and v > 1').to_arrow().num_rows == 1\n"
        "print('duckdb' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("False\n", "")
