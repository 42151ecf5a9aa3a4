from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from strandline.errors import SchemaMismatch, UsageError
from strandline.parts.rows.conform import conform, to_arrow
from strandline.parts.schema import new_schema

SCHEMA = new_schema(pa.schema([("k", pa.int64()), ("s", pa.string()), ("v", pa.float64())]), "k")
ROWS = [{"k": 1, "s": "a", "v": 1.5}, {"k": 2, "s": None, "v": None}]
TABLE = pa.Table.from_pylist(ROWS, SCHEMA.arrow)

FINE = datetime.fromisoformat("2026-01-01T00:00:00.000005")


class Stream:
    """A library that Arrow knows nothing of."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return TABLE.__arrow_c_stream__(requested_schema)


class Array:
    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return TABLE.to_batches()[0].__arrow_c_array__(requested_schema)


def batches() -> Iterator[pa.RecordBatch | pa.Table]:
    yield TABLE.slice(0, 1)
    yield from TABLE.slice(1).to_batches()


FORMS: dict[str, Any] = {
    "table": lambda: TABLE,
    "batch": lambda: TABLE.to_batches()[0],
    "reader": TABLE.to_reader,
    "dataset": lambda: ds.dataset(TABLE),
    "scanner": lambda: ds.dataset(TABLE).scanner(),
    "stream": Stream,
    "array": Array,
    "pandas": TABLE.to_pandas,
    "pandas with an index": lambda: TABLE.to_pandas().set_index("s", drop=False),
    "polars": lambda: pl.from_arrow(TABLE),
    "lazy polars": lambda: pl.DataFrame(pl.from_arrow(TABLE)).lazy(),
    "duckdb": lambda: duckdb.connect().from_arrow(TABLE),
    "dict": lambda: {"v": [1.5, None], "s": ("a", None), "k": np.array([1, 2])},
    "dicts": lambda: ROWS,
    "dicts with holes": lambda: iter([ROWS[0], {"k": 2}]),
    "batches": batches,
    "another order": lambda: TABLE.select(["v", "k", "s"]),
    "other layouts": lambda: TABLE.cast(
        pa.schema([("k", pa.int8()), ("s", pa.large_string()), ("v", pa.float32())])
    ),
    "a dictionary": lambda: TABLE.set_column(1, "s", TABLE["s"].dictionary_encode()),
    "chunks": lambda: pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1)]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("hint", [None, SCHEMA])
def test_every_form_of_data_becomes_the_same_rows(form: str, hint: Any) -> None:
    arrow = conform(to_arrow(FORMS[form](), hint), SCHEMA)
    table = arrow.read_all() if isinstance(arrow, pa.RecordBatchReader) else arrow
    table.validate(full=True)
    assert table.schema.equals(SCHEMA.arrow, check_metadata=True)
    assert table.to_pylist() == ROWS


def test_a_reader_stays_a_reader() -> None:
    def endless() -> Iterator[pa.RecordBatch]:
        while True:
            yield TABLE.to_batches()[0]

    reader = conform(pa.RecordBatchReader.from_batches(TABLE.schema, endless()), SCHEMA)
    assert reader.read_next_batch().to_pylist() == ROWS


@pytest.mark.parametrize("empty", [[], TABLE.slice(0, 0), {"k": [], "s": [], "v": []}])
def test_no_rows_are_fine(empty: Any) -> None:
    table = conform(to_arrow(empty, SCHEMA), SCHEMA)
    assert (table.num_rows, table.schema) == (0, SCHEMA.arrow)


def test_missing_columns_are_null() -> None:
    assert conform(pa.table({"k": [3]}), SCHEMA).to_pylist() == [{"k": 3, "s": None, "v": None}]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"k": [1, None]}, "'k' is null in row 1"),
        ({"s": ["a"]}, "'k' is missing"),
        ({"k": [1], "x": [1]}, "'x' is not in the table"),
        ({"k": [1], "__time": [1]}, "'__time'.*reserved"),
        ({"k": ["1"]}, "'k' is of type int64"),
        ({"k": [1.0]}, "'k' is of type int64"),
        ({"k": [True]}, "'k' is of type int64"),
        ({"k": [1, 2, 2**63]}, "'k'"),
        ({"k": [1], "s": [7]}, "'s' is of type string"),
        ({"k": [1], "s": [b"7"]}, "'s' is of type string"),
        ({"k": [1], "v": ["x"]}, "'v' is of type double"),
        ({"k": [1, 2], "v": [1.0]}, "lengths"),
        ({"k": 1}, "one value"),
        ({"k": [1], "s": "abc"}, "one value"),
        ([{"k": 1}, 7], "row 1"),
    ],
)
@pytest.mark.parametrize("hint", [None, SCHEMA])
def test_what_does_not_fit_is_named(data: Any, says: str, hint: Any) -> None:
    with pytest.raises(SchemaMismatch, match=says):
        conform(to_arrow(data, hint), SCHEMA)


def table_with(kind: pa.DataType) -> Any:
    return new_schema(pa.schema([("k", pa.int64()), ("v", kind)]), "k")


@pytest.mark.parametrize(
    ("given", "wanted", "value"),
    [
        (pa.int64(), pa.int8(), 100),
        (pa.uint64(), pa.int64(), 100),
        (pa.int64(), pa.float64(), 2**53),
        (pa.int32(), pa.decimal128(12, 2), Decimal(7)),
        (pa.float64(), pa.float32(), 0.5),
        (pa.float64(), pa.float32(), float("nan")),
        (pa.float16(), pa.float32(), 0.5),
        (pa.decimal128(10, 4), pa.decimal128(8, 2), Decimal("1.2500")),
        (pa.decimal256(10, 4), pa.decimal128(10, 4), Decimal("1.2500")),
        (pa.date64(), pa.date32(), date(2026, 1, 1)),
        (pa.timestamp("ns"), pa.timestamp("us"), FINE),
        (pa.timestamp("us", "Asia/Kolkata"), pa.timestamp("s", "UTC"),
         datetime(2026, 1, 1, tzinfo=UTC)),
        (pa.binary(2), pa.binary(), b"ab"),
        (pa.string_view(), pa.string(), "ab"),
        (pa.dictionary(pa.int8(), pa.int32()), pa.int64(), 7),
        (pa.large_list(pa.int8()), pa.list_(pa.int64()), [1, None]),
        (pa.list_(pa.string(), 2), pa.list_(pa.string()), ["a", "b"]),
        (pa.struct([("b", pa.int8()), ("a", pa.large_string())]),
         pa.struct([("a", pa.string()), ("b", pa.int64()), ("c", pa.bool_())]),
         {"a": "x", "b": 1}),
        (pa.map_(pa.large_string(), pa.int8()), pa.map_(pa.string(), pa.int64()), [("a", 1)]),
        (pa.list_(pa.struct([("a", pa.null())])), pa.list_(pa.struct([("a", pa.int8())])),
         [{"a": None}]),
    ],
)  # fmt: skip
def test_casts_that_keep_every_value_are_made(
    given: pa.DataType, wanted: pa.DataType, value: Any
) -> None:
    schema = table_with(wanted)
    data = pa.table([pa.array([1, 2]), pa.array([value, None], given)], names=["k", "v"])
    table = conform(data, schema)
    table.validate(full=True)
    expected = pa.array([value, None], schema.arrow.field("v").type)
    assert table.column("v").combine_chunks().to_pylist().__repr__() == repr(expected.to_pylist())


@pytest.mark.parametrize(
    ("given", "wanted", "value"),
    [
        (pa.int64(), pa.int8(), 128),
        (pa.int64(), pa.uint8(), -1),
        (pa.int64(), pa.float64(), 2**53 + 1),
        (pa.int32(), pa.decimal128(3, 2), Decimal(70)),
        (pa.float64(), pa.float32(), 0.1),
        (pa.decimal128(10, 4), pa.decimal128(8, 2), Decimal("1.2345")),
        (
            pa.timestamp("us"),
            pa.timestamp("s"),
            FINE,
        ),
        (pa.list_(pa.int64()), pa.list_(pa.int8()), [1, 128]),
    ],
)
def test_casts_that_would_change_a_value_name_its_row(
    given: pa.DataType, wanted: pa.DataType, value: Any
) -> None:
    nulls = pa.nulls(5, given)
    values = pa.concat_arrays([nulls, pa.array([value], given), nulls])
    data = pa.table([pa.array(range(11)), values], names=["k", "v"])
    with pytest.raises(SchemaMismatch, match=r"'v' .* row 5 "):
        conform(data, table_with(wanted))
    reader = pa.RecordBatchReader.from_batches(data.schema, data.to_batches(max_chunksize=3))
    with pytest.raises(SchemaMismatch, match=r"'v' .* row 5 "):
        conform(reader, table_with(wanted)).read_all()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (pa.float64(), pa.int64()), (pa.bool_(), pa.int8()), (pa.string(), pa.int64()),
        (pa.string(), pa.timestamp("us")), (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us", "UTC"), pa.timestamp("us")), (pa.timestamp("us"), pa.date32()),
        (pa.binary(), pa.string()), (pa.string(), pa.binary()), (pa.int64(), pa.bool_()),
        (pa.list_(pa.float64()), pa.list_(pa.float32())), (pa.int8(), pa.list_(pa.int8())),
        (pa.struct([("x", pa.int8())]), pa.struct([("a", pa.int8())])),
        (pa.duration("us"), pa.int64()), (pa.decimal128(5, 2), pa.int64()),
    ],
)  # fmt: skip
def test_types_of_another_family_are_refused(given: pa.DataType, wanted: pa.DataType) -> None:
    data = pa.table([pa.array([], pa.int64()), pa.array([], given)], names=["k", "v"])
    with pytest.raises(SchemaMismatch, match="'v'"):
        conform(data, table_with(wanted))


@pytest.mark.parametrize(
    ("wanted", "value"),
    [
        (pa.timestamp("us", "UTC"), datetime.fromisoformat("2026-01-01")),
        (pa.date32(), datetime.fromisoformat("2026-01-01T05:00")),
        (pa.int64(), 1.0), (pa.int64(), True), (pa.bool_(), 1), (pa.string(), b"a"),
        (pa.decimal128(5, 2), 0.5), (pa.int8(), 128), (pa.binary(), "a"),
    ],
)  # fmt: skip
def test_plain_values_of_another_kind_are_refused(wanted: pa.DataType, value: Any) -> None:
    schema = table_with(wanted)
    with pytest.raises(SchemaMismatch, match="'v'"):
        conform(to_arrow({"k": [1, 2], "v": [None, value]}, schema), schema)


def test_plain_values_take_the_type_of_the_table() -> None:
    kinds = {
        "float": (pa.float32(), 0.5), "map": (pa.map_(pa.string(), pa.int8()), {"a": 1}),
        "big": (pa.uint64(), 2**64 - 1), "decimal": (pa.decimal128(9, 4), Decimal("1.5")),
        "when": (pa.timestamp("ms", "UTC"), datetime(2026, 1, 1, tzinfo=UTC)),
        "struct": (pa.struct([("a", pa.int8()), ("b", pa.string())]), {"b": "x"}),
    }  # fmt: skip
    fields = [("k", pa.int64()), *((name, kind) for name, (kind, _) in kinds.items())]
    schema = new_schema(pa.schema(fields), "k")
    row = {"k": 1, **{name: value for name, (_, value) in kinds.items()}}
    table = conform(to_arrow([row, {"k": 2}], schema), schema)
    expected = {**row, "map": [("a", 1)], "struct": {"a": None, "b": "x"}}
    assert table.to_pylist() == [expected, dict.fromkeys(row, None) | {"k": 2}]


def test_dates_become_timestamps_at_midnight() -> None:
    data = pa.table({"k": [1], "v": [date(2026, 1, 1)]})
    table = conform(data, table_with(pa.timestamp("us")))
    assert table.column("v").to_pylist() == [datetime.fromisoformat("2026-01-01")]


def test_a_slice_is_judged_by_what_is_in_it() -> None:
    data = pa.table({"k": [1, 2], "v": pa.array([[1], [128]])})
    assert conform(data.slice(0, 1), table_with(pa.list_(pa.int8()))).num_rows == 1


def test_text_that_is_not_utf8_is_refused() -> None:
    bad = pa.array([b"\xff"]).view(pa.string())
    with pytest.raises(SchemaMismatch, match=r"'s'.*not valid"):
        conform(pa.table({"k": [1], "s": bad}), SCHEMA)


@pytest.mark.parametrize("data", [7, "text", None, [1, 2], {1, 2}, object()])
def test_what_is_no_data_is_refused(data: Any) -> None:
    with pytest.raises(UsageError):
        to_arrow(data)


def test_batches_of_another_schema_are_refused_by_number() -> None:
    with pytest.raises(SchemaMismatch, match="item 1"):
        to_arrow([TABLE, TABLE.select(["k"])]).read_all()


def test_values_beyond_python_do_not_hide_the_row() -> None:
    far = pa.array([0, sys.maxsize], pa.int64()).view(pa.timestamp("s"))
    with pytest.raises(SchemaMismatch, match="row 1"):
        conform(pa.table({"k": [1, 2], "v": far}), table_with(pa.timestamp("us")))
