"""Equal updates as one: their diffs add up exactly, or it is said that they cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from strandline.errors import UsageError
from strandline.parts.rows import consolidate
from strandline.parts.rows.consolidate import consolidated, consolidated_stream
from strandline.parts.rows.updates import netted
from strandline.parts.schema import DIFF, TIME

KEYS = ["k"]
ARROW = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("x", pa.list_(pa.int64())),
        pa.field(TIME, pa.int64(), nullable=False),
        pa.field(DIFF, pa.int64(), nullable=False),
    ]
)
PLAIN = ARROW.remove(1)
MOST, LEAST = 2**63 - 1, -(2**63)

Diffs = dict[int, list[int]]
Kernel = Callable[[pa.Table], pa.Table]


def of(diffs: Diffs, *, nested: bool = False, among: int = 0) -> pa.Table:
    """Updates at time 7, by key; `among` others that are not equal to any, each twice."""
    rows = [{"k": k, TIME: 7, DIFF: diff} for k, each in diffs.items() for diff in each]
    rows += [{"k": 1_000 + n % among, TIME: 7, DIFF: 1} for n in range(2 * among)]
    return pa.Table.from_pylist(
        [{**row, "x": [1]} if nested else row for row in rows], ARROW if nested else PLAIN
    )


def streamed(table: pa.Table) -> pa.Table:
    found = consolidated_stream(
        table.to_batches(), table.schema, KEYS, memory_bytes=64 << 20, threads=1
    )
    return pa.Table.from_batches(found, table.schema)


@pytest.fixture(params=["few", "nested", "many", "stream", "netted"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Kernel, Any]:
    if request.param == "stream":
        monkeypatch.setattr(consolidate, "_IN_MEMORY_BYTES", 0)
    kernels: dict[str, Kernel] = {
        "stream": streamed,
        "netted": lambda table: netted(table.sort_by("k"), KEYS),
    }
    options = {"nested": request.param == "nested", "among": 6_000 * (request.param == "many")}
    return kernels.get(request.param, lambda table: consolidated(table, KEYS)), options


@pytest.mark.parametrize(
    "diffs",
    [
        {1: [MOST, 1]},
        {1: [LEAST, -1]},
        {1: [1, 1], 2: [2**62, 2**62], 3: [1, 1]},
        {1: [MOST, MOST, 2]},  # in 64 bits that is 0
        {1: [LEAST, LEAST]},
    ],
    ids=repr,
)
def test_a_sum_that_64_bits_do_not_hold_is_refused_and_names_the_row(
    kernel: tuple[Kernel, Any], diffs: Diffs
) -> None:
    work, options = kernel
    wrong = 2 if 2 in diffs else 1
    with pytest.raises(UsageError, match=rf"the row \{{'k': {wrong},.*2\*\*63"):
        work(of(diffs, **options))


def test_sums_up_to_the_ends_of_64_bits_are_exact(kernel: tuple[Kernel, Any]) -> None:
    work, options = kernel
    diffs = {
        1: [MOST, 1, -1],  # on its way beyond 64 bits
        2: [LEAST, 1, -1, -5, 5],
        3: [2**62, 2**62 - 1],
        4: [LEAST, MOST, 1],
        5: [MOST, LEAST],
    }
    found = work(of(diffs, **options)).select(["k", DIFF]).slice(0, 4).to_pylist()
    assert [tuple(row.values()) for row in found] == [(1, MOST), (2, LEAST), (3, MOST), (5, -1)]
