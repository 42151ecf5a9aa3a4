"""Hashes of keys: what is equal has one hash, in whatever form it comes."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import SchemaMismatch
from strandline.parts.hashes import hashes_of, key_hash, key_hashes
from strandline.parts.keys import KeyCodec
from tests.unit.parts.strategies import INTEGERS, KEYS, TEXTS, key_tuples, keys_schema

Drawn = tuple[tuple[pa.DataType, ...], list[tuple[Any, ...]]]


@st.composite
def tuples_of_keys(draw: st.DrawFn) -> Drawn:
    kinds = draw(KEYS)
    return kinds, draw(st.lists(key_tuples(kinds), min_size=1, max_size=12))


def arrays_of(kinds: tuple[pa.DataType, ...], rows: list[tuple[Any, ...]]) -> list[pa.Array]:
    columns = list(zip(*rows, strict=True))
    return [pa.array(c, kind) for c, kind in zip(columns, kinds, strict=True)]


def hashed(*columns: pa.Array | pa.ChunkedArray) -> list[int]:
    return hashes_of(columns).tolist()


@given(tuples_of_keys())
def test_a_single_key_has_the_hash_that_it_has_among_others(drawn: Drawn) -> None:
    kinds, rows = drawn
    schema = keys_schema(*kinds)
    table = pa.table(arrays_of(kinds, rows), schema=schema.arrow)
    codec = KeyCodec(schema)
    singles = [key_hash(codec.normalize(row), kinds) for row in rows]
    assert key_hashes(table, schema.row_keys, schema).tolist() == singles
    assert all(0 <= single < 1 << 64 for single in singles)


@given(tuples_of_keys(), st.integers(0, 5), st.integers(0, 5))
def test_slices_and_chunks_change_no_hash(drawn: Drawn, before: int, after: int) -> None:
    kinds, rows = drawn
    plain = hashed(*arrays_of(kinds, rows))
    padded = arrays_of(kinds, [rows[0]] * before + rows + [rows[-1]] * after)
    assert hashed(*(a.slice(before, len(rows)) for a in padded)) == plain
    at = before % (len(rows) + 1)
    whole = arrays_of(kinds, rows)
    assert hashed(*(pa.chunked_array([a[:at], a[at:]], a.type) for a in whole)) == plain


@given(tuples_of_keys())
def test_dictionaries_change_no_hash(drawn: Drawn) -> None:
    kinds, rows = drawn
    arrays = arrays_of(kinds, rows)
    plain = hashed(*arrays)
    assert hashed(*(a.dictionary_encode() for a in arrays)) == plain
    schema = keys_schema(*kinds)
    table = pa.table([a.dictionary_encode() for a in arrays], names=list(schema.row_keys))
    assert key_hashes(table, schema.row_keys, schema).tolist() == plain


@given(st.integers(0, 127))
def test_the_width_of_an_integer_does_not_matter(value: int) -> None:
    found = {hashed(pa.array([value], pa.type_for_alias(name)))[0] for name in INTEGERS}
    assert len(found) == 1


@given(st.integers(-128, -1))
def test_negative_numbers_are_widened_with_their_sign(value: int) -> None:
    kinds = [pa.type_for_alias(name) for name in INTEGERS if name.startswith("int")]
    assert len({hashed(pa.array([value], kind))[0] for kind in kinds}) == 1


@given(st.integers(-(10**7) + 1, 10**7 - 1))
def test_the_precision_of_a_decimal_does_not_matter(unscaled: int) -> None:
    value = Decimal(unscaled).scaleb(-2)
    kinds = [pa.decimal32(7, 2), pa.decimal64(12, 2), pa.decimal128(30, 2), pa.decimal256(60, 2)]
    found = {hashed(pa.array([value], kind))[0] for kind in kinds}
    assert found == {key_hash((value,), [pa.decimal128(20, 2)])}


@given(st.lists(TEXTS, min_size=1, max_size=8))
def test_the_layout_of_texts_does_not_matter(texts: list[str]) -> None:
    plain = hashed(pa.array(texts, pa.string()))
    for kind in (pa.large_string(), pa.string_view()):
        assert hashed(pa.array(texts, kind)) == plain
    data = [text.encode() for text in texts]
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        assert hashed(pa.array(data, kind)) == plain


def test_texts_beyond_one_block_are_hashed_like_others() -> None:
    texts = ["x" * 700_000, "", "y" * 1_500_000, "short", "", "z" * 600_000, "a"]
    assert hashed(pa.array(texts)) == [key_hash((text,), [pa.string()]) for text in texts]


def test_a_null_is_no_key() -> None:
    with pytest.raises(SchemaMismatch, match="null"):
        hashes_of([pa.array([1, None])])


def test_no_rows_have_no_hashes() -> None:
    kinds = [pa.int64(), pa.string(), pa.bool_(), pa.decimal128(5, 2), pa.date32()]
    assert all(hashed(pa.array([], kind)) == [] for kind in kinds)


def test_neighbouring_numbers_are_spread_over_all_bits() -> None:
    hashes = hashes_of([pa.array(range(100_000))])
    assert len(np.unique(hashes)) == 100_000
    for bit in range(64):
        share = float(((hashes >> np.uint64(bit)) & np.uint64(1)).mean())
        assert abs(share - 0.5) < 0.01
    counts = np.bincount((hashes >> np.uint64(54)).astype(np.int64), minlength=1024)
    assert counts.min() > 50
    assert counts.max() < 160


def test_texts_and_tuples_that_look_alike_do_not_collide() -> None:
    numbers = np.arange(200_000)
    texts = pa.array([f"customer-{n:07d}" for n in numbers.tolist()])
    assert len(np.unique(hashes_of([texts]))) == len(texts)
    left, right = pa.array(numbers // 500), pa.array(numbers % 500)
    assert len(np.unique(hashes_of([left, right]))) == len(numbers)
    assert hashed(pa.array([1]), pa.array([2])) != hashed(pa.array([2]), pa.array([1]))
    assert hashed(pa.array(["a"]), pa.array(["bc"])) != hashed(pa.array(["ab"]), pa.array(["c"]))
    assert len(set(hashed(pa.array(["", "\0", "\0\0", "\0a", "a\0", "a"])))) == 6


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.int64(), 0, "e220a8397b1dcdaf"),
        (pa.int8(), -1, "de0a564cbcd060c4"),
        (pa.uint64(), (1 << 64) - 2, "336503c6b835bec0"),
        (pa.bool_(), True, "e4d971771b652c20"),
        (pa.string(), "", "a706dd2f4d197e6f"),
        (pa.string(), "Grüße", "35ed1ae1e34344b4"),
        (pa.binary(), b"\0\xff", "7f82dd83775d9435"),
        (pa.date32(), date(2026, 1, 1), "245c5c4fc4b8341c"),
        (pa.timestamp("us", "UTC"), datetime(2026, 1, 1, tzinfo=UTC), "1df7d7f96431778d"),
        (pa.timestamp("ms"), datetime.fromisoformat("1969-12-31T23:59:59"), "9a47f82ef9d8ecb4"),
        (pa.decimal128(10, 2), Decimal("-12.34"), "2d0221f1407d9801"),
    ],
)
def test_hashes_are_what_they_were(kind: pa.DataType, value: Any, expected: str) -> None:
    """They are stored: a change here breaks every filter there is."""
    assert f"{hashed(pa.array([value], kind))[0]:016x}" == expected
    assert f"{key_hash((value,), [kind]):016x}" == expected


def test_the_hash_of_several_keys_is_what_it_was() -> None:
    assert f"{key_hash((7, 'a'), [pa.int64(), pa.string()]):016x}" == "1b37d881370959ba"
