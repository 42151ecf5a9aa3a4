"""Where an import splits the keys: pure functions over a sorted sample of encoded row keys."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

from strandline.parts.keys import separating

__all__ = ["halving_points", "leaves_wanted", "ranges_wanted"]

_LEAF_ROWS_MIN = 250_000
"""A leaf is not made for parallelism's sake for fewer rows: small parts cost more than they win."""

_TASK_ROWS = 1_250_000
"""Rows that one task sorts and writes, about: what a Python worker holds in memory."""


def halving_points(sample: Sequence[bytes], bounds: Sequence[bytes], wanted: int) -> list[bytes]:
    """Points that, with the ascending `bounds` there are, cut the keys into `wanted` intervals.

    In the order found: each halves, at the median of the ascending `sample`, the interval with
    the most of it. Fewer where what is left has one key only.

    >>> halving_points([b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8"], [], 4)
    [b'5', b'3', b'7']
    """
    edges = [0, *(bisect_left(sample, bound) for bound in bounds), len(sample)]
    heap = [(start - end, start, end) for start, end in pairwise(edges)]
    heapify(heap)
    points: list[bytes] = []
    while heap and len(points) + len(bounds) + 1 < wanted:
        _, start, end = heappop(heap)
        middle = _cut(sample, start, end)
        if middle is None:
            continue
        points.append(separating(sample[middle - 1], sample[middle]))
        heappush(heap, (start - middle, start, middle))
        heappush(heap, (middle - end, middle, end))
    return points


def leaves_wanted(rows: int, split_rows: int, cores: int) -> int:
    """How many leaves a table should have that gets `rows` more rows at once."""
    useful = min(cores, rows // _LEAF_ROWS_MIN)
    return max(1, -(-rows // split_rows), useful)


def ranges_wanted(rows: int, leaves: int, cores: int) -> int:
    """Into how many key ranges, one per task, the rows of an import are parted."""
    # Several per core even out tasks of different length.
    useful = min(2 * cores, rows // (_LEAF_ROWS_MIN // 2))
    return max(leaves, -(-rows // _TASK_ROWS), useful)


def _cut(sample: Sequence[bytes], start: int, end: int) -> int | None:
    """Where the key at the middle begins, or the next one after it; None if there is one key."""
    if end - start < 2:
        return None
    middle = bisect_left(sample, sample[(start + end) // 2], start, end)
    if middle > start:
        return middle
    middle = bisect_left(sample, sample[start] + b"\0", start, end)
    return middle if middle < end else None
