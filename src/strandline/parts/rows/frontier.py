"""Merges sorted runs that are read in stretches: nothing is sorted that is not due, or twice.

The stretches of all runs are decoded in the order of their first keys. What is below the first key
of the next one, the frontier, is complete: it is sorted, as little as that is, and goes out. So
about a stretch of each run is in memory, and threads sort what goes out side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import pyarrow as pa

from strandline.env import Env
from strandline.parts.keys import KeyCodec, locate
from strandline.parts.rows.sort import sort_table

__all__ = ["Run", "Stretch", "in_turn", "merged"]

_ROUNDS = 8
"""A round takes such a share of the memory: it is there several times while it is sorted."""


class Stretch(NamedTuple):
    """Neighbouring rows of a sorted run."""

    lower: bytes
    """No encoded key of it is below, and none of the stretches before it in its run is above."""
    load: Callable[[], pa.Table]


@dataclass(frozen=True, slots=True)
class Run:
    """A sorted run in stretches, ascending, each of which can be decoded at any time."""

    each: Sequence[Stretch]

    def mapped(self, function: Callable[[pa.Table], pa.Table]) -> Run:
        """The run with the function applied to each stretch as it is decoded."""
        return Run([Stretch(lower, _then(load, function)) for lower, load in self.each])


def _then(
    load: Callable[[], pa.Table], function: Callable[[pa.Table], pa.Table]
) -> Callable[[], pa.Table]:
    return lambda: function(load())


def in_turn(runs: Sequence[Run], env: Env, *, ahead: int) -> list[Iterator[pa.RecordBatch]]:
    """The rows of each run, to be exhausted before the next; `ahead` stretches are decoded already.

    Many runs are short: to read ahead within each would be to wait at each.
    """
    stretches = ((number, stretch) for number, run in enumerate(runs) for stretch in run.each)
    tables = env.stream(lambda item: (item[0], item[1].load()), stretches, ahead=ahead)
    following = next(tables, None)

    def of(number: int) -> Iterator[pa.RecordBatch]:
        nonlocal following
        while following is not None and following[0] == number:
            batches = following[1].combine_chunks().to_batches()
            following = next(tables, None)
            yield from batches

    return [of(number) for number in range(len(runs))]


def merged(
    runs: Sequence[Run],
    codec: KeyCodec,
    *,
    then: Sequence[str],
    env: Env,
    memory_bytes: int,
    threads: int,
    otherwise: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]],
) -> Iterator[pa.RecordBatch]:
    """All rows by full key, then by the columns `then`; equal ones in the order of their runs.

    Where a stretch of each run is more than `memory_bytes`, or few keys have too many rows, what is
    left by then goes through `otherwise`, which has to sort it.
    """
    frontier = _Frontier(runs, codec, env, memory_bytes, threads)

    def in_order(tables: list[pa.Table]) -> pa.Table:
        # Runs mostly come in the order of their times: then the keys alone put all in order.
        rows = sort_table(pa.concat_tables(tables).combine_chunks(), codec.keys)
        return sort_table(rows, codec.keys, then=then)

    for rows in env.stream(in_order, frontier.rounds(), ahead=max(1, threads - 1)):
        yield from rows.to_batches()
    left = frontier.left()
    if left is not None:
        yield from otherwise(left)


class _Rest(NamedTuple):
    """What is left of a stretch."""

    rows: pa.Table
    size: int
    """Bytes of the whole stretch: all of it is in memory as long as any of its rows is."""


class _Frontier:
    """What is decoded and did not go out yet."""

    def __init__(
        self, runs: Sequence[Run], codec: KeyCodec, env: Env, memory_bytes: int, threads: int
    ) -> None:
        self._runs = runs
        self._codec = codec
        self._env = env
        self._memory_bytes = memory_bytes
        self._ahead = threads + 2
        self._held: list[list[_Rest]] = [[] for _ in runs]
        self._loaded = [0] * len(runs)
        self._full = False
        self._row_bytes = 0.0

    def rounds(self) -> Iterator[list[pa.Table]]:
        """What goes out, bit by bit, until all did or too much is held."""
        order = sorted(
            (stretch.lower, number, at)
            for number, run in enumerate(self._runs)
            for at, stretch in enumerate(run.each)
        )
        stretches = self._env.stream(self._load, order, ahead=self._ahead)
        fresh = rows = size = 0
        for count, (number, held) in enumerate(stretches, 1):
            self._loaded[number] += 1
            if held.rows.num_rows:
                self._held[number].append(held)
                fresh += held.size
                size += held.size
                rows += held.rows.num_rows
                self._row_bytes = size / rows
            if fresh < self._memory_bytes // _ROUNDS or count == len(order):
                continue
            fresh = 0
            yield from self._divided(self._below(order[count][0]))
            self._full = self._size() > self._memory_bytes
            if self._full:
                return
        rest = [held.rows for run in self._held for held in run]
        self._held = [[] for _ in self._runs]
        yield from self._divided(rest)

    def _load(self, place: tuple[bytes, int, int]) -> tuple[int, _Rest]:
        _, number, at = place
        table = self._runs[number].each[at].load()
        return number, _Rest(table, table.nbytes)

    def left(self) -> Iterator[pa.RecordBatch] | None:
        """All rows that did not go out, run by run; None: there are none."""
        if not self._full:
            return None
        held = [[held.rows for held in run] for run in self._held]
        rest = [Run(run.each[at:]) for run, at in zip(self._runs, self._loaded, strict=True)]
        self._held = []
        further = in_turn(rest, self._env, ahead=self._ahead)
        return chain.from_iterable(
            chain((b for table in tables for b in table.to_batches()), batches)
            for tables, batches in zip(held, further, strict=True)
        )

    def _size(self) -> int:
        return sum(held.size for run in self._held for held in run)

    def _below(self, bound: bytes) -> list[pa.Table]:
        """Takes what is below, in the order of the runs."""
        taken: list[pa.Table] = []
        for number, run in enumerate(self._held):
            kept: list[_Rest] = []
            for held in run:
                at = 0 if kept else locate(held.rows, bound, self._codec)
                if at:
                    taken.append(held.rows.slice(0, at))
                if at < held.rows.num_rows:
                    kept.append(held._replace(rows=held.rows.slice(at)))
            self._held[number] = kept
        return taken

    def _divided(self, tables: list[pa.Table]) -> Iterator[list[pa.Table]]:
        """The rows in portions of about a round, each with all rows of its keys, ascending."""
        size = self._row_bytes * sum(table.num_rows for table in tables)
        count = int(size * _ROUNDS / self._memory_bytes)
        if count > 1:
            # Where the longest is cut evenly, the others are about so, too.
            longest = max(tables, key=lambda table: table.num_rows)
            places = sorted({longest.num_rows * cut // count for cut in range(1, count)})
            for bound in self._codec.encode_rows(longest, places):
                cuts = [locate(table, bound, self._codec) for table in tables]
                taken = [table.slice(0, at) for table, at in zip(tables, cuts, strict=True) if at]
                tables = [
                    table.slice(at)
                    for table, at in zip(tables, cuts, strict=True)
                    if at < table.num_rows
                ]
                if taken:
                    yield taken
        if tables:
            yield tables
