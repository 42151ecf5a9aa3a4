"""Hypothesis strategies for every value that a shard's state is made of."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from strandline.state.model import (
    COLLECTIONS,
    Batch,
    Dead,
    Diff,
    Entry,
    Hold,
    Holder,
    Interval,
    Leaf,
    Mark,
    Meta,
    Part,
    PartUse,
    Receipt,
    Reference,
    Rollup,
    Session,
    TableVersion,
    Tidied,
    TokenWindow,
)

words = st.text(max_size=12)
blobs = st.binary(max_size=12)
numbers = st.integers(-(2**63), 2**63 - 1)
maybe_numbers = st.none() | numbers
pairs = st.lists(st.tuples(words, words), max_size=3).map(tuple)
columns = st.lists(words, max_size=3).map(tuple)
intervals = st.builds(Interval, blobs, st.none() | blobs)
parts = st.builds(
    Part,
    words,
    numbers,
    numbers,
    blobs,
    blobs,
    maybe_numbers,
    maybe_numbers,
    st.booleans(),
    st.booleans(),
    numbers,
    st.integers(0, 2**32 - 1),
    blobs,
    numbers,
    st.booleans(),
    blobs,
)
batches = st.builds(
    Batch,
    st.lists(parts, max_size=3).map(tuple),
    blobs,
    numbers,
    blobs,
    blobs,
    st.booleans(),
    st.booleans(),
    numbers,
)
rollups = st.builds(Rollup, numbers, words, numbers, st.booleans())
holds = st.builds(Hold, maybe_numbers, maybe_numbers, numbers, words, words, words)
versions = st.builds(
    TableVersion,
    words,
    numbers,
    words,
    numbers,
    maybe_numbers,
    numbers,
    st.sampled_from(["rows", "keyed", "aggregate"]),
    blobs,
    columns,
    columns,
    pairs,
    words,
    pairs,
)
windows = st.builds(
    TokenWindow, numbers, st.lists(st.tuples(numbers, numbers), max_size=3).map(tuple)
)


def _references(reference: Reference) -> st.SearchStrategy[Any]:
    return st.builds(lambda n, raw: ((n, raw, reference.id), reference), numbers, blobs)


# Per collection: a key and a value that belong together.
ITEMS: dict[str, st.SearchStrategy[Any]] = {
    "meta": st.builds(
        Meta,
        numbers,
        maybe_numbers,
        maybe_numbers,
        numbers,
        numbers,
        st.sampled_from(["", "txns", "direct", "commits"]),
        words,
        maybe_numbers,
        numbers,
        numbers,
        numbers,
        words,
        numbers,
    ).map(lambda v: ((), v)),
    "sessions": st.tuples(
        st.tuples(words),
        st.builds(Session, numbers, numbers, maybe_numbers, maybe_numbers, maybe_numbers, words),
    ),
    "holders": st.tuples(st.tuples(words), st.builds(Holder, numbers, words, words, words)),
    "holds": st.tuples(st.tuples(words), holds),
    "marks": st.tuples(st.tuples(numbers), st.builds(Mark, numbers)),
    "receipts": st.tuples(st.tuples(numbers), st.builds(Receipt, numbers, words, numbers)),
    "leaves": st.builds(Leaf, numbers, intervals, maybe_numbers).map(
        lambda v: ((v.interval.lower,), v)
    ),
    "references": st.builds(
        Reference, numbers, numbers, intervals, parts, numbers, maybe_numbers, maybe_numbers
    ).flatmap(_references),
    "parts": st.tuples(st.tuples(words), st.builds(PartUse, numbers, numbers)),
    "dead": st.builds(Dead, words, numbers, numbers, numbers).map(lambda v: ((v.dead, v.key), v)),
    "rollups": rollups.map(lambda v: ((v.seqno,), v)),
    "tables": versions.map(lambda v: ((v.table, v.version), v)),
    "entries": st.builds(Entry, words, numbers, numbers, words, batches).map(
        lambda v: ((v.table, v.time, v.ordinal), v)
    ),
    "tidied": st.tuples(st.tuples(words), st.builds(Tidied, numbers)),
    "tokens": st.tuples(st.tuples(words), windows),
}
assert ITEMS.keys() == COLLECTIONS.keys()


def _diff(name: str, item: tuple[Any, Any], *, gone: bool) -> Diff:
    return Diff(name, item[0], None if gone else item[1])


diffs = st.sampled_from(sorted(ITEMS)).flatmap(
    lambda name: st.builds(_diff, st.just(name), ITEMS[name], gone=st.booleans())
)
