"""Which parts and entries hold the updates of a span of times: pure plans, as in `state.plan`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from strandline.state.model import EVERYTHING, Entry, Interval, Reference
from strandline.state.plan import by_leaf, in_leaf, level_zero, united
from strandline.state.replay import State

__all__ = ["ChangeTask", "entry_task", "has_updates", "plan_changes", "through_within"]


@dataclass(frozen=True, slots=True)
class ChangeTask:
    """Everything that has updates in these keys: no other task has any there."""

    intervals: tuple[Interval, ...]
    """Ascending, disjoint."""
    references: tuple[Reference, ...] = ()
    entries: tuple[Entry, ...] = ()


def has_updates(reference: Reference, after: int, through: int) -> bool:
    """Whether the reference may have updates at times in (`after`, `through`].

    Of history the ends of rows are updates, too: none is later than `reads_before`.
    """
    last = reference.time_max
    if reference.reads_before is not None:
        last = max(last, reference.reads_before)
    return reference.time_min <= through and last > after


def plan_changes(
    state: State, intervals: Sequence[Interval] | None, after: int, through: int
) -> list[ChangeTask]:
    """The tasks that together give all applied updates at times in (`after`, `through`], by key.

    `intervals`: only these keys; None: all. May raise `PagesNeeded`.
    """
    wanted = [EVERYTHING] if intervals is None else united(intervals)
    above = [r for r in level_zero(state) if has_updates(r, after, through)]
    tasks = []
    for leaf, inside in by_leaf(state, wanted):
        found = [*(r for r in in_leaf(state, leaf) if has_updates(r, after, through)), *above]
        references = tuple(r for r in found if any(r.place.intersect(i) for i in inside))
        if references:
            tasks.append(ChangeTask(inside, references))
    return tasks


def entry_task(entries: Iterable[Entry], intervals: Sequence[Interval] | None) -> list[ChangeTask]:
    """The same for entries, as one task or none."""
    inside = (EVERYTHING,) if intervals is None else tuple(united(intervals))
    found = tuple(e for e in entries if e.batch.rows and any(map(e.place.intersect, inside)))
    return [ChangeTask(inside, entries=found)] if found else []


def through_within(tasks: Iterable[ChangeTask], after: int, through: int, rows_max: int) -> int:
    """How far to go at once: the latest time up to `through` with about `rows_max` updates.

    An estimate: the rows of a part are taken to be spread evenly over its times. Always later
    than `after`.
    """
    parts = {r.part.key: r for task in tasks for r in task.references}.values()
    first = np.array([max(r.time_min, after + 1) for r in parts], dtype=np.float64)
    last = np.array([max(r.time_max, r.reads_before or 0) for r in parts], dtype=np.float64)
    spans = np.array([_span(r) for r in parts], dtype=np.float64)
    rows = np.array([r.part.rows for r in parts], dtype=np.float64)

    def until(time: int) -> float:
        times = np.clip(np.minimum(last, time) - first + 1, 0, None)
        return float(np.sum(rows * times / spans))

    if until(through) <= rows_max:
        return through
    low, high = after + 1, through  # the answer is in [low, high)
    while high - low > 1:
        middle = (low + high) // 2
        if until(middle) <= rows_max:
            low = middle
        else:
            high = middle
    return low


def _span(reference: Reference) -> int:
    last = max(reference.time_max, reference.reads_before or 0)
    return max(1, last - reference.time_min + 1)
