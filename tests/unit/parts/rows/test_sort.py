from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.errors import SchemaMismatch
from strandline.parts.keys import KeyCodec
from strandline.parts.rows.sort import is_sorted, sort_stream, sort_table
from tests.unit.parts.strategies import KEYS, key_tuples, keys_schema

MEMORY = 64 << 20


@settings(max_examples=50)
@given(st.data())
def test_rows_come_out_in_the_order_of_their_encoded_keys_and_stable(data: st.DataObject) -> None:
    kinds = data.draw(KEYS)
    schema = keys_schema(*kinds)
    codec = KeyCodec(schema)
    rows: list[Any] = data.draw(st.lists(key_tuples(kinds), min_size=1, max_size=10))
    rows = [*rows, *rows]
    arrays = [pa.array(c, k) for c, k in zip(zip(*rows, strict=True), kinds, strict=True)]
    table = pa.table(arrays, schema=schema.arrow).append_column(
        "n", pa.array(range(len(rows)), pa.int64())
    )
    encoded = codec.encode_rows(table, range(len(rows)))
    expected = sorted(range(len(rows)), key=lambda i: (encoded[i], i))
    pieces = pa.concat_tables([table.slice(0, 3), table.slice(3)])
    ordered = sort_table(pieces, schema.keys)
    assert ordered["n"].to_pylist() == expected
    assert is_sorted(ordered, schema.keys)
    assert is_sorted(table, schema.keys) == (sorted(encoded) == encoded)
    assert sort_table(ordered, schema.keys) is ordered
    for source in (pieces, pieces.to_reader(), [table.slice(0, 3), table.slice(3).to_reader()]):
        reader = sort_stream(source, schema.keys, memory_bytes=MEMORY, threads=2, stable=True)
        assert reader.read_all().equals(table.take(pa.array(expected)))
    reader = sort_stream(pieces, schema.keys, then=["n"], memory_bytes=MEMORY, threads=2)
    assert reader.read_all()["n"].to_pylist() == expected


def test_no_rows_are_sorted_to_no_rows() -> None:
    schema = keys_schema(pa.string())
    empty = schema.arrow.empty_table()
    assert sort_table(empty, schema.keys) is empty
    for stable in (False, True):
        reader = sort_stream(empty, schema.keys, memory_bytes=MEMORY, threads=1, stable=stable)
        assert reader.read_all() == empty
    reader = sort_stream([], ["k0"], memory_bytes=MEMORY, threads=1, schema=schema.arrow)
    assert reader.read_all() == empty


def temporary_directories() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("strandline-sort-*"))


def bytes_below(path: Path) -> int:
    """Of all files; those that DuckDB is done with go meanwhile."""
    size = 0
    for file in path.rglob("*"):
        with suppress(FileNotFoundError):
            size += file.stat().st_size
    return size


def test_what_does_not_fit_into_memory_is_sorted_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rng = np.random.default_rng(7)
    rows, spilled = 3_000_000, 0

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(30):
            keys = rng.integers(0, 1 << 40, rows // 30)
            yield pa.RecordBatch.from_arrays([pa.array(keys), pa.array(keys), pa.array(keys)],
                                             names=["k", "a", "b"])  # fmt: skip

    schema = pa.schema([(name, pa.int64()) for name in ("k", "a", "b")])
    reader = sort_stream(batches(), ["k"], memory_bytes=MEMORY, threads=2, schema=schema)
    seen, last = 0, -1
    for batch in reader:
        keys = batch.column("k").to_numpy()
        assert keys[0] >= last
        assert (np.diff(keys) >= 0).all()
        assert batch.column("a").equals(batch.column("k"))
        seen, last = seen + len(keys), keys[-1]
        spilled = max(spilled, bytes_below(tmp_path))
    assert seen == rows
    assert spilled > 0
    assert not temporary_directories()


def test_a_stream_that_is_let_go_of_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    table = pa.table({"k": np.arange(500_000)[::-1]})
    reader = sort_stream(table, ["k"], memory_bytes=MEMORY, threads=1)
    reader.read_next_batch()
    assert temporary_directories()
    del reader
    assert not temporary_directories()


def test_what_goes_wrong_in_the_source_is_raised_as_it_was() -> None:
    schema = keys_schema(pa.int64())

    def batches() -> Iterator[pa.RecordBatch]:
        yield from pa.table({"k0": [2, 1]}, schema=schema.arrow).to_batches()
        raise SchemaMismatch("column 'v' is wrong in row 7")

    reader = sort_stream(batches(), ["k0"], memory_bytes=MEMORY, threads=2, schema=schema.arrow)
    with pytest.raises(SchemaMismatch, match="row 7"):
        reader.read_all()


NUMBERS = [
    (pa.int8(), -100),
    (pa.int64(), -(1 << 63)),
    (pa.int64(), (1 << 63) - 101),
    (pa.uint64(), (1 << 64) - 101),
    (pa.timestamp("us", tz="UTC"), -50),
    (pa.date32(), 0),
]


@settings(max_examples=200)
@given(
    st.sampled_from(NUMBERS),
    st.lists(st.integers(0, 100), min_size=2, max_size=400),
    st.integers(1, 100),
)
def test_many_equal_numbers_stay_in_their_order(
    number: tuple[pa.DataType, int], drawn: list[int], alike: int
) -> None:
    kind, base = number
    values = [base + each // alike for each in drawn]
    physical = pa.int32() if kind == pa.date32() else pa.int64()
    keys = pa.array(values, kind if pa.types.is_integer(kind) else physical)
    table = pa.table({"key": keys.cast(kind), "place": range(len(values))})
    expected = sorted(range(len(values)), key=lambda place: (values[place], place))
    pieces = pa.concat_tables([table.slice(0, 7), table.slice(7)])
    assert sort_table(pieces, ["key"])["place"].to_pylist() == expected
    back = sort_table(pieces.take(pa.array(expected[::-1])), ["key"], then=["place"])
    assert back["place"].to_pylist() == expected


def test_nulls_among_numbers_come_last() -> None:
    table = pa.table({"key": pa.array([3, 1, None, 2]), "place": range(4)})
    assert sort_table(table, ["key"])["place"].to_pylist() == [1, 3, 0, 2]
