from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from strandline.errors import UsageError
from strandline.parts.schema import (
    DIFF,
    END,
    TIME,
    TableSchema,
    column_id,
    new_schema,
    own_columns,
    validate_table_name,
    without_plain_diff,
)
from strandline.state.model import Part, TableVersion

PLAIN = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("v", pa.float64())])


def test_a_schema_comes_back_from_the_catalog() -> None:
    schema = new_schema(PLAIN, "k", ["at"], "keyed")
    version = TableVersion(
        "s0", 1, "t", 0, None, 0, "keyed", schema.to_bytes(), schema.row_keys, schema.sort_keys
    )
    back = TableSchema.from_version(version)
    assert back == schema
    assert back.arrow.equals(schema.arrow, check_metadata=True)
    assert (back.keys, back.values) == (("k", "at"), ("v",))
    assert back.ids == {1: "k", 2: "at", 3: "v"}


def test_columns_have_ids_and_keys_are_not_null() -> None:
    schema = new_schema(PLAIN.with_metadata({"pandas": "noise"}), ("k",))
    assert [column_id(field) for field in schema.arrow] == [1, 2, 3]
    assert [field.nullable for field in schema.arrow] == [False, True, True]
    assert schema.arrow.metadata is None
    again = new_schema(schema.arrow, "at")
    assert again.ids == schema.ids


def test_stored_rows_have_time_and_diff_where_wanted() -> None:
    schema = new_schema(PLAIN, "k")
    assert schema.stored() is schema.arrow
    assert schema.stored(time=True, diff=True).names == [*PLAIN.names, "__time", "__diff"]


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (pa.large_string(), pa.string()), (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()), (pa.binary(4), pa.binary()),
        (pa.dictionary(pa.int8(), pa.string()), pa.string()), (pa.date64(), pa.date32()),
        (pa.time32("ms"), pa.time64("us")), (pa.decimal256(20, 2), pa.decimal128(20, 2)),
        (pa.large_list(pa.large_string()), pa.list_(pa.field("element", pa.string()))),
        (pa.list_(pa.int8(), 3), pa.list_(pa.field("element", pa.int8()))),
        (pa.map_(pa.large_string(), pa.int8()), pa.map_(pa.string(), pa.int8())),
        (pa.struct([("a", pa.string_view())]), pa.struct([("a", pa.string())])),
        (pa.uint64(), pa.uint64()), (pa.timestamp("s", "Asia/Kolkata"),) * 2,
    ],
)  # fmt: skip
def test_types_are_stored_in_one_form(given: pa.DataType, stored: pa.DataType) -> None:
    schema = new_schema(pa.schema([("k", pa.int64()), ("v", given)]), "k")
    assert schema.arrow.field("v").type == stored


@pytest.mark.parametrize(
    ("columns", "row_keys", "sort_keys", "says"),
    [
        ([("k", pa.int64())], [], [], "row key"),
        ([], ["k"], [], "column"),
        ([("k", pa.int64())], ["x"], [], "'x' is not a column"),
        ([("k", pa.int64())], ["k"], ["k"], "twice"),
        ([("k", pa.float64())], ["k"], [], "cannot be a key"),
        ([("k", pa.list_(pa.int8()))], ["k"], [], "cannot be a key"),
        ([("k", pa.time64("us"))], ["k"], [], "cannot be a key"),
        ([("k", pa.int64()), ("v", pa.null())], ["k"], [], "'v'.*null"),
        ([("k", pa.int64()), ("v", pa.timestamp("ns"))], ["k"], [], "'v'.*cast to us"),
        ([("k", pa.int64()), ("v", pa.list_(pa.time64("ns")))], ["k"], [], "'v'.*cast to us"),
        ([("k", pa.int64()), ("v", pa.float16())], ["k"], [], "'v'.*float32"),
        ([("k", pa.int64()), ("v", pa.duration("us"))], ["k"], [], "'v'.*int64"),
        ([("k", pa.int64()), ("v", pa.decimal256(60, 2))], ["k"], [], "'v'.*38"),
        ([("k", pa.int64()), ("v", pa.decimal128(5, -2))], ["k"], [], "'v'.*scale"),
        ([("k", pa.int64()), ("v", pa.struct([]))], ["k"], [], "'v'.*struct"),
        ([("k", pa.int64()), ("v", pa.struct([("a", pa.int8()), ("A", pa.int8())]))], ["k"], [],
         "'v'.*case"),
        ([("k", pa.int64()), ("v", pa.union([], "dense"))], ["k"], [], "'v'"),
        ([("k", pa.int64()), ("K", pa.int64())], ["k"], [], "case"),
        ([("k", pa.int64()), ("k", pa.int64())], ["k"], [], "twice"),
        ([("k", pa.int64()), ("", pa.int64())], ["k"], [], "empty"),
        ([("k", pa.int64()), ("__time", pa.int64())], ["k"], [], "reserved"),
        ([("k", pa.int64()), ("e\u0301", pa.int64())], ["k"], [], "NFC"),
        ([("k", pa.int64()), ("a\nb", pa.int64())], ["k"], [], "control"),
        ([("k", pa.int64()), ("a" * 256, pa.int64())], ["k"], [], "longer"),
    ],
)  # fmt: skip
def test_what_no_table_can_have_is_refused(
    columns: list[tuple[str, pa.DataType]], row_keys: list[str], sort_keys: list[str], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        new_schema(pa.schema(columns), row_keys, sort_keys)


@pytest.mark.parametrize("name", ["t", "Größe", "a b.c", "表", '"; drop table', "x" * 255, "..."])
def test_names_as_people_have_them_are_taken(name: str) -> None:
    validate_table_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\0", "e\u0301", "ä" * 128])
def test_names_that_confuse_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        validate_table_name(name)


def test_a_diff_that_says_of_every_row_that_it_was_added_once_is_left_out() -> None:
    arrow = pa.schema([("k", pa.int64()), (DIFF, pa.int64())])
    plain = pa.table({"k": [1, 2], DIFF: [1, 1]}, arrow)
    for rows in (plain, plain.to_batches()[0]):
        assert without_plain_diff(rows).schema.names == ["k"]
    for diffs in ([1, -1], [1, 2]):
        assert without_plain_diff(pa.table({"k": [1, 2], DIFF: diffs}, arrow)).num_columns == 2
    assert without_plain_diff(plain.select(["k"])).num_columns == 1


def test_a_part_tells_which_columns_of_ours_it_has() -> None:
    part = Part("key", size=1, rows=1, lower=b"a", upper=b"b")
    assert own_columns(part) == []
    assert own_columns(replace(part, time_min=1, time_max=2, has_diff=True)) == [TIME, DIFF]
    assert own_columns(replace(part, time_min=1, time_max=2, has_end=True)) == [TIME, END]
