"""Filters never deny a key that is there, and seldom admit one that is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.parts.files.filters import (
    FILTER_KEYS_MAX,
    Probes,
    make_filter,
    may_contain,
    may_contain_any,
    probes_of,
)
from strandline.parts.hashes import hashes_of, key_hash
from strandline.parts.keys import KeyCodec, KeyRange
from strandline.state.model import Part
from tests.support.states import part
from tests.unit.parts.strategies import keys_schema

HASHES = st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=300)


def array(hashes: list[int]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array(hashes, dtype=np.uint64)


@given(HASHES)
def test_what_is_in_a_filter_is_found(hashes: list[int]) -> None:
    made = make_filter(array(hashes))
    assert all(may_contain(made, key) for key in hashes)
    assert all(may_contain_any(made, array([key])) for key in hashes)


@given(HASHES, HASHES)
def test_many_keys_at_once_are_answered_like_each_alone(
    inside: list[int], asked: list[int]
) -> None:
    made = make_filter(array(inside))
    assert may_contain_any(made, array(asked)) == any(may_contain(made, key) for key in asked)


@pytest.mark.parametrize(
    ("keys", "most"),
    [(1, 15), (10, 15), (100, 15), (6_553, 15), (12_800, 400), (FILTER_KEYS_MAX, 1_200)],
)
def test_few_foreign_keys_pass(keys: int, most: int) -> None:
    hashes = hashes_of([pa.array(range(1_000_000))])
    made = make_filter(hashes[:keys])
    assert len(made) <= 16 * 1024
    assert all(may_contain(made, int(key)) for key in hashes[:keys])
    passed = sum(may_contain_any(made, hashes[i : i + 1]) for i in range(900_000, 930_000))
    # 3 are expected, 300 and 1,000: more than `most` are in one of millions of runs.
    assert passed <= most


def test_keys_that_repeat_make_no_larger_filter() -> None:
    hashes = hashes_of([pa.array(range(100))])
    assert make_filter(np.tile(hashes, 200)) == make_filter(hashes)


def test_too_many_keys_have_no_filter_and_that_holds_everything() -> None:
    none = make_filter(hashes_of([pa.array(range(FILTER_KEYS_MAX + 1))]))
    assert none == b""
    assert may_contain(none, 1)
    assert may_contain_any(none, array([1]))


def test_a_filter_is_what_it_was() -> None:
    """Filters are stored: a change here would deny keys that are there."""
    assert make_filter(array([1, 2, 3])).hex() == "2000ba312d26a98e"


# --- probes

CODEC = KeyCodec(keys_schema(pa.int64(), pa.string(), sort=1))


def key(number: int) -> tuple[bytes, int]:
    return CODEC.encode((number,)), key_hash((number,), [pa.int64()])


def holding(*numbers: int) -> Part:
    lower, upper = CODEC.encode((min(numbers), "a")), CODEC.encode((max(numbers), "z"))
    made = make_filter(hashes_of([pa.array(numbers)]))
    return replace(part("p", lower, upper), filter=made)


@given(st.sets(st.integers(0, 400), min_size=1, max_size=40), st.data())
def test_a_part_with_a_key_that_is_asked_for_is_never_left_out(
    numbers: set[int], data: st.DataObject
) -> None:
    there = data.draw(st.sampled_from(sorted(numbers)))
    others = data.draw(st.lists(st.integers(0, 400), max_size=30))
    probes = Probes([key(n) for n in [there, *others]])
    found = holding(*numbers)
    assert probes.may_be_in(found)
    assert probes.may_be_in(replace(found, filter=b""))


def test_a_part_without_the_keys_is_left_out() -> None:
    found = holding(*range(0, 2_000, 2))
    for count in (1, 3, 300):
        probes = Probes([key(n) for n in range(1, 2 * count, 2)])
        assert not probes.may_be_in(found)


def test_only_complete_row_keys_are_probes() -> None:
    def of(*ranges: KeyRange) -> Probes | None:
        return probes_of(ranges, codec)

    codec = KeyCodec(keys_schema(pa.int64(), pa.string(), pa.int64(), sort=1))
    full = KeyRange((1, "a"), (1, "a"), closed=True)
    assert of(full)
    assert of(KeyRange((1, "a", 5), (1, "a", 9)))
    assert of(full, KeyRange((1,), (1,), closed=True)) is None
    assert of(KeyRange((1, "a"), (1, "b"), closed=True)) is None
    assert of(KeyRange((1, "a"), None)) is None
    assert of(KeyRange(None, (1, "a"))) is None
    assert of() is None
    assert probes_of(None, codec) is None
