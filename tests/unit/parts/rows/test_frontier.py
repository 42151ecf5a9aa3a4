"""Sorted runs in stretches come out as one sorted run, however they are cut and whatever fits."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.env import RealEnv
from strandline.parts.keys import KeyCodec
from strandline.parts.rows.frontier import Run, Stretch, in_turn, merged
from strandline.parts.rows.sort import sort_table
from strandline.parts.schema import new_schema

SCHEMA = new_schema(pa.schema([("k", pa.int64()), ("t", pa.int64()), ("run", pa.int64())]), "k")
CODEC = KeyCodec(SCHEMA)
ENV = RealEnv(threads=3)


def run_of(rows: list[tuple[int, int]], number: int) -> pa.Table:
    columns = [[k for k, _ in rows], [t for _, t in rows], [number] * len(rows)]
    table = pa.Table.from_arrays([pa.array(c, pa.int64()) for c in columns], schema=SCHEMA.arrow)
    return sort_table(table, ["k", "t"])


def stretches_of(table: pa.Table, size: int) -> Run:
    """In stretches of so many rows, each with a bound as footers have it."""
    each = []
    for start in range(0, table.num_rows, size):
        rows = table.slice(start, size)
        each.append(Stretch(CODEC.encode_rows(rows, [0])[0], partial(pa.table, rows)))
    return Run(each)


class Sorter:
    """What is left goes through here; notes how much that was."""

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, left: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = pa.Table.from_batches(left, SCHEMA.arrow)
        self.rows = table.num_rows
        yield from sort_table(table, ["k"], then=["t"]).to_batches()


def expected(runs: list[pa.Table]) -> list[dict[str, int]]:
    """Python's sort is stable: what is equal stays in the order of the runs."""
    rows = [row for run in runs for row in run.to_pylist()]
    return sorted(rows, key=lambda row: (row["k"], row["t"]))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 3)), max_size=30), max_size=6),
    st.integers(1, 8),
    st.sampled_from([1, 100, 400, 2_000, 1 << 20]),
    st.integers(1, 4),
)
def test_the_runs_come_out_in_order_whatever_fits_in_memory(
    given_rows: list[list[tuple[int, int]]], size: int, memory: int, threads: int
) -> None:
    runs = [run_of(rows, number) for number, rows in enumerate(given_rows)]
    out = merged(
        [stretches_of(run, size) for run in runs],
        CODEC,
        then=["t"],
        env=ENV,
        memory_bytes=memory,
        threads=threads,
        otherwise=Sorter(),
    )
    assert pa.Table.from_batches(out, SCHEMA.arrow).to_pylist() == expected(runs)


@pytest.mark.parametrize("threads", [1, 4])
def test_runs_that_share_the_key_space_need_no_other_sort(threads: int) -> None:
    r = random.Random(1)
    runs = [run_of([(r.randrange(1 << 40), n) for _ in range(2_000)], n) for n in range(20)]
    sorter = Sorter()
    memory = 24 * 20 * 100 * 3  # three stretches of each run
    out = merged(
        [stretches_of(run, 100) for run in runs],
        CODEC,
        then=["t"],
        env=ENV,
        memory_bytes=memory,
        threads=threads,
        otherwise=sorter,
    )
    largest = total = 0
    last = -1
    for batch in out:
        largest = max(largest, batch.nbytes)
        total += batch.num_rows
        keys = batch.column("k").to_pylist()
        assert keys == sorted(keys)
        assert keys[0] >= last
        last = keys[-1]
    assert total == 40_000
    assert sorter.rows == 0
    assert largest <= memory


def test_a_key_with_more_rows_than_fit_goes_the_other_way() -> None:
    runs = [run_of([(7, t) for t in range(500)], n) for n in range(4)]
    sorter = Sorter()
    out = merged(
        [stretches_of(run, 50) for run in runs],
        CODEC,
        then=["t"],
        env=ENV,
        memory_bytes=5_000,
        threads=2,
        otherwise=sorter,
    )
    assert pa.Table.from_batches(out, SCHEMA.arrow).to_pylist() == expected(runs)
    assert sorter.rows == 2_000


def test_runs_in_turn_give_each_its_own_rows() -> None:
    runs = [run_of([(k, n) for k in range(n * 5)], n) for n in range(4)]
    streams = in_turn([stretches_of(run, 3) for run in runs], ENV, ahead=2)
    for run, batches in zip(runs, streams, strict=True):
        assert pa.Table.from_batches(batches, SCHEMA.arrow).equals(run)


def test_what_a_stretch_raises_is_raised() -> None:
    def fail() -> pa.Table:
        raise ValueError("damaged")

    out = merged(
        [Run([Stretch(b"", fail)])],
        CODEC,
        then=["t"],
        env=ENV,
        memory_bytes=1_000,
        threads=2,
        otherwise=Sorter(),
    )
    with pytest.raises(ValueError, match="damaged"):
        list(out)
