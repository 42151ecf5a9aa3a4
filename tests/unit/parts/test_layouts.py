"""The same rows come of the same values, whatever layout of Arrow's they are given in."""

from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.connect import connect
from strandline.errors import SchemaMismatch
from strandline.parts.rows.conform import conform, to_arrow
from strandline.parts.schema import new_schema
from tests.tables.helpers import QUIET

INDICES = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(),
           pa.uint64()]  # fmt: skip
TEXTS = [pa.string(), pa.large_string(), pa.string_view()]
BINARIES = [pa.binary(), pa.large_binary(), pa.binary_view()]
Draw = Callable[[st.SearchStrategy[Any]], Any]

LEAVES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): st.sampled_from(["", "a", "b", "of more than twelve bytes"]),
    pa.binary(): st.sampled_from([b"", b"a", b"\xff", b"of more than twelve bytes"]),
    pa.int32(): st.integers(-2, 2),
    pa.bool_(): st.booleans(),
}


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        inner.map(lambda kind: pa.list_(pa.field("element", kind))),
        st.tuples(inner, inner).map(lambda kinds: pa.struct([("a", kinds[0]), ("b", kinds[1])])),
        st.tuples(st.sampled_from([pa.string(), pa.int32()]), inner).map(
            lambda kinds: pa.map_(kinds[0], pa.field("value", kinds[1]))
        ),
    )


KINDS = st.recursive(st.sampled_from(list(LEAVES)), nested, max_leaves=3)


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if kind in LEAVES:
        return st.none() | LEAVES[kind]
    if pa.types.is_struct(kind):
        fields = {kind.field(i).name: values_of(kind.field(i).type) for i in range(2)}
        return st.none() | st.fixed_dictionaries(fields)
    if pa.types.is_map(kind):
        pair = st.tuples(LEAVES[kind.key_type], values_of(kind.item_type))
        return st.none() | st.lists(pair, max_size=2)
    return st.none() | st.lists(values_of(kind.value_type), max_size=3)


def laid_out(draw: Draw, values: list[Any], kind: pa.DataType) -> pa.Array:
    """The values, in any layout there is."""
    how = draw(st.sampled_from(["plain", "dictionary", "runs", "slice"]))
    if how == "slice":
        around = draw(st.lists(values_of(kind), max_size=2))
        return laid_out(draw, [*around, *values, *around], kind).slice(len(around), len(values))
    if how == "dictionary":
        different: list[Any] = []
        for value in values:
            if value is not None and value not in different:
                different.append(value)
        places = [None if value is None else different.index(value) for value in values]
        indices = pa.array(places, draw(st.sampled_from(INDICES)))
        return pa.DictionaryArray.from_arrays(indices, laid_out(draw, different, kind))
    if how == "runs" and values:
        ends = [i for i in range(1, len(values)) if values[i] != values[i - 1]] + [len(values)]
        each = laid_out(draw, [values[end - 1] for end in ends], kind)
        return pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), each)
    if kind in LEAVES:
        others = TEXTS if kind == pa.string() else BINARIES if kind == pa.binary() else [kind]
        return pa.array(values, draw(st.sampled_from(others)))
    nulls = pa.array([value is None for value in values], pa.bool_())
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(2)]
        columns = [
            laid_out(draw, [None if v is None else v[field.name] for v in values], field.type)
            for field in fields
        ]
        return pa.StructArray.from_arrays(columns, names=["a", "b"], mask=nulls)
    # What a null covers is there all the same.
    lists = [draw(st.just([]) if map_(kind) else values_of(kind)) or [] if v is None else v
             for v in values]  # fmt: skip
    if map_(kind):
        pairs = [pair for value in lists for pair in value]
        keys = pa.array([key for key, _ in pairs], kind.key_type)
        return pa.MapArray.from_arrays(
            pa.array(bounds_of(lists), pa.int32()),
            keys.dictionary_encode() if draw(st.booleans()) else keys,
            laid_out(draw, [item for _, item in pairs], kind.item_type),
            mask=nulls,
        )
    return lists_of(draw, lists, nulls, kind.value_type)


def lists_of(draw: Draw, lists: list[Any], nulls: pa.Array, kind: pa.DataType) -> pa.Array:
    sizes = {len(value) for value in lists}
    if len(sizes) == 1 and sizes != {0} and draw(st.booleans()):
        inner = laid_out(draw, [v for value in lists for v in value], kind)
        return pa.FixedSizeListArray.from_arrays(inner, sizes.pop(), mask=nulls)
    large = draw(st.booleans())
    width = pa.int64() if large else pa.int32()
    if draw(st.booleans()):
        inner = laid_out(draw, [v for value in lists for v in value], kind)
        lists_array = pa.LargeListArray if large else pa.ListArray
        return lists_array.from_arrays(pa.array(bounds_of(lists), width), inner, mask=nulls)
    # Views may lie in any order.
    order = draw(st.permutations(range(len(lists))))
    offsets = [0] * len(lists)
    flat: list[Any] = []
    for at in order:
        offsets[at] = len(flat)
        flat += lists[at]
    view = pa.LargeListViewArray if large else pa.ListViewArray
    lengths = pa.array([len(value) for value in lists], width)
    inner = laid_out(draw, flat, kind)
    return view.from_arrays(pa.array(offsets, width), lengths, inner, mask=nulls)


def map_(kind: pa.DataType) -> bool:
    return bool(pa.types.is_map(kind))


def bounds_of(lists: list[Any]) -> list[int]:
    return [sum(len(value) for value in lists[:at]) for at in range(len(lists) + 1)]


@given(st.data())
def test_the_same_rows_come_of_every_layout(data: st.DataObject) -> None:
    kind = data.draw(KINDS)
    values = data.draw(st.lists(values_of(kind), max_size=5))
    column = laid_out(data.draw, values, kind)
    plain = new_schema(pa.schema([("k", pa.int64()), ("v", kind)]), "k")
    made = new_schema(pa.schema([("k", pa.int64()), ("v", column.type)]), "k")
    assert made.arrow == plain.arrow
    table = pa.table({"k": range(len(values)), "v": column})
    if data.draw(st.booleans()):
        table = pa.table(
            {"k": pa.chunked_array([], pa.int64()), "v": pa.chunked_array([], column.type)}
        )
        values = []
    found = conform(table if data.draw(st.booleans()) else table.to_reader(), plain)
    rows = found.read_all() if isinstance(found, pa.RecordBatchReader) else found
    rows.validate(full=True)
    assert rows.schema == plain.arrow
    assert rows.column("v").to_pylist() == values


@pytest.mark.parametrize("kind", [pl.Categorical(), pl.Enum(["a", "b", "c"])])
def test_categories_of_polars_are_texts(kind: Any) -> None:
    frame = pl.DataFrame(
        {"k": pl.Series(["a", "b"], dtype=kind), "v": pl.Series(["c", None], dtype=kind)}
    )
    with connect("memory://", settings=QUIET) as db:
        table = db.create_table("t", frame, row_keys="k", kind="keyed")
        table.upsert(frame.with_columns(v=pl.lit("b", dtype=kind)))
        table.append({"k": frame["k"], "v": frame["v"].to_list()})
        assert table.schema.field("k").type == pa.string()
        assert table.get_many(frame["k"]).to_pylist() == frame.to_dicts()
        assert table.get_many(frame.to_arrow()["k"]).to_pylist() == frame.to_dicts()
        assert table.get(frame.to_arrow()["k"][0]).num_rows == 1
        table.delete(keys=frame["k"][:1])
        table.delete(keys=frame.to_arrow()["k"].slice(1))
        assert len(table) == 0


def test_indices_that_point_nowhere_are_refused() -> None:
    schema = new_schema(pa.schema([("k", pa.int64()), ("v", pa.string())]), "k")
    wrong = pa.DictionaryArray.from_arrays(pa.array([0, 7]), pa.array(["a"]), safe=False)
    with pytest.raises(SchemaMismatch, match=r"column 'v', given as dictionary.*is not valid"):
        conform(to_arrow({"k": [1, 2], "v": wrong}), schema)
