"""What a transaction has read has to be unchanged, or in a snapshot what it writes of that."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.state.commands import Read, Write
from strandline.state.model import EVERYTHING, Batch, Interval
from strandline.write.reads import Reads
from tests.support.states import part, table

POINTS = [bytes([point]) for point in range(12)]
POINT = st.sampled_from(POINTS)
READ = st.builds(Interval, POINT, st.none() | POINT)
WRITTEN = st.tuples(POINT, POINT).map(sorted)


def writes(*spans: Any) -> Any:
    """To the table t, a part each."""
    batches = [Batch(parts=(part(str(span), *span),), rows=1) for span in spans]
    return [(table("t", "t"), Write("t", each)) for each in batches]


def keys(reads: list[Read]) -> set[bytes]:
    return {
        key for read in reads for each in read.intervals for key in POINTS if each.contains(key)
    }


@given(read=st.lists(READ), spans=st.lists(WRITTEN))
def test_of_a_snapshot_what_is_read_and_written(
    read: list[Interval], spans: list[list[bytes]]
) -> None:
    reads = Reads(snapshot=True)
    reads.saw("t", read)
    reads.saw("other", None)
    found = reads.to_be_unchanged(7, writes(*spans))
    written = {key for key in POINTS for lower, upper in spans if lower <= key <= upper}
    assert keys(found) == written & keys([Read("t", 7, tuple(read))])
    assert {(each.table, each.since) for each in found} <= {("t", 7)}


@given(read=st.lists(READ, min_size=1))
def test_else_all_that_was_read(read: list[Interval]) -> None:
    reads = Reads(snapshot=False)
    for each in read:
        reads.saw("t", [each])
    assert keys(reads.to_be_unchanged(7, [])) == keys([Read("t", 7, tuple(read))])


def test_many_intervals_become_few() -> None:
    reads = Reads(snapshot=False)
    for number in range(3_000):
        key = number.to_bytes(2, "big")
        reads.saw("t", [Interval(key, key + b"\0")])
        reads.saw("u", [Interval(b"", b"x")])
    assert [len(reads._seen["t"]), len(reads._seen["u"]) < 2_048] == [3_000, True]
    reads.saw("t", None)
    reads.saw("t", [Interval(b"a", b"b")])
    assert reads._seen["t"] == [EVERYTHING]


@pytest.mark.parametrize("snapshot", [True, False])
def test_what_staged_writes_read_is_asked_as_it_was(snapshot: bool) -> None:
    reads = Reads(snapshot=snapshot)
    staged = Read("t", 3, (EVERYTHING,))
    reads.merge([staged])
    assert reads.to_be_unchanged(7, []) == [staged]
