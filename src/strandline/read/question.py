"""What is asked of one table as of one time, and what that means for each task of the plan. Pure.

A task has references and entries. Whether their rows have to be merged, which of their parts can be
left out, and which columns are read of the others is told here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from strandline.parts.files.filters import probes_of
from strandline.parts.schema import TIME, own_columns
from strandline.parts.statistics import Comparison, may_match
from strandline.parts.typed import typed
from strandline.read.want import Want, arrow_of, implied_by, intervals_of
from strandline.state.model import Interval, Part, TableKind, TableVersion
from strandline.state.plan import ReadTask

__all__ = ["Need", "Question", "is_covered", "parts_of"]

_FEW_KEYS = 4
"""So few keys are looked for wherever they may be before anything is planned or handed out."""


class Need(NamedTuple):
    """What a piece needs of one part."""

    number: int
    """Of the entry that it belongs to; -1: of none."""
    part: Part
    intervals: list[Interval]
    time: int
    rows_from: int | None
    columns: list[str]

    @property
    def last(self) -> int:
        """No row is later."""
        return self.time if self.part.time_max is None else self.part.time_max


class Question:
    """What is wanted of a version of a table as of a time. Immutable."""

    def __init__(self, version: TableVersion, want: Want, as_of: int) -> None:
        self.want = want
        self.as_of = as_of
        self.schema, self.codec = typed(version)
        self.arrow = arrow_of(want, version)
        """The schema of what comes out."""
        implied = implied_by(want.condition, self.schema)
        self.intervals = intervals_of(want.ranges, implied, self.codec)
        """The encoded keys that have to be looked at; None: all."""
        probes = probes_of(want.ranges, self.codec)
        self.probes = probes_of(implied, self.codec) if probes is None else probes
        """The complete row keys that it is for; None if it is for more than some of these."""
        keys = 0 if self.probes is None else len(self.probes)
        self.few_keys = 0 < keys <= _FEW_KEYS
        versions = self.schema.kind == "keyed" and self.schema.keys == self.schema.row_keys
        self.one_row = keys == 1 and versions and not want.raw
        """Whether the newest version of one key is all that is asked for."""

    def rows_of(self, task: ReadTask) -> int | None:
        """Exactly how many rows a task gives before the condition; None if only reading tells."""
        if not self.is_clean(task):
            return None
        rows = 0
        for part, place, _ in parts_of(task):
            if place != part.span or not is_covered(place, task.intervals):
                return None
            rows += part.rows
        for entry in task.entries:
            if entry.batch.inline:
                if not is_covered(entry.place, task.intervals):
                    return None
                rows += entry.batch.rows - sum(part.rows for part in entry.batch.parts)
        return rows

    def is_clean(self, task: ReadTask) -> bool:
        """Whether every stored row is a live row: nothing is to be merged or left out by time."""
        as_of = self.as_of
        if self.want.raw or any(
            r.time_max > as_of or r.part.has_end or r.is_cut for r in task.references
        ):
            return False
        if self.schema.kind == "rows":
            return not _has_diff(task)
        if len(task.references) + len(task.entries) != 1:
            return False
        if task.references:
            return task.references[0].part.distinct
        return task.entries[0].batch.distinct

    def is_alone(self, task: ReadTask) -> bool:
        """Whether each stored row tells by itself, and by its time, if it is live."""
        added = self.schema.kind == "rows" and not self.want.raw and not _has_diff(task)
        return added or self.is_clean(task)

    def skips(self, part: Part, *, clean: bool) -> bool:
        """Whether the part's statistics show that the condition holds for none of its rows.

        SUBTLE: of a keyed table's row that is to be merged, an older version may match where the
        newest does not; leaving the newest out would bring the older one back. Keys are the same
        in all versions, so comparisons of keys are safe; all are in tables of `rows`, where a row
        and its retraction are equal.
        """
        condition = self.want.condition
        if condition is None or not part.statistics:
            return False
        usable: Sequence[Comparison] = condition.comparisons
        if not clean and self.schema.kind != "rows":
            keys = set(self.schema.keys)
            usable = [c for c in usable if c.column in keys]
        return bool(usable) and not may_match(part.statistics, usable, self.schema)

    def columns(self, task: ReadTask, *, alone: bool) -> list[str]:
        """The user columns that are read: what comes out, what is looked at, what is merged by."""
        names: list[str] = self.schema.arrow.names
        want = self.want
        if want.columns is None or want.raw or (not alone and self.schema.kind == "rows"):
            return names
        needed = {*want.columns, *(want.condition.columns if want.condition else ())}
        several = len(task.references) + len(task.entries) > 1
        if not alone or (want.ordered and several):
            needed.update(self.schema.keys)
        # A table without columns has no rows to count.
        return [n for n in names if n in needed] or [self.schema.keys[0]]

    def needs(
        self, task: ReadTask, intervals: Sequence[Interval], columns: Sequence[str]
    ) -> Iterator[Need]:
        """What is to be read of the task's parts: the columns, and those of ours that count."""
        clean = self.is_clean(task)
        timeless: set[str] = set()
        if not clean and not self.want.raw:
            timeless = _timeless(task, self.as_of, self.schema.kind)
        for number, part, place, time, rows_from in _stored_in(task):
            inside = [both for i in intervals if (both := i.intersect(place))]
            if inside and not self.skips(part, clean=clean):
                own = [] if clean else own_columns(part)
                if part.key in timeless:
                    own.remove(TIME)
                yield Need(number, part, inside, time, rows_from, [*columns, *own])


def parts_of(task: ReadTask) -> Iterator[tuple[Part, Interval, int]]:
    """The parts of a task, each with the keys that it is there for and the time of its rows."""
    return ((part, place, time) for _, part, place, time, _ in _stored_in(task))


def _stored_in(task: ReadTask) -> Iterator[tuple[int, Part, Interval, int, int | None]]:
    """The same, each with the number of its entry (-1: none), and the time from which on its rows
    count, where others do not.
    """
    for ref in task.references:
        yield -1, ref.part, ref.place, ref.time, ref.rows_from if ref.is_cut else None
    for number, entry in enumerate(task.entries):
        for part in entry.batch.parts:
            yield number, part, part.span, entry.time, None


def _has_diff(task: ReadTask) -> bool:
    return any(r.part.has_diff for r in task.references) or any(
        e.batch.has_diff for e in task.entries
    )


def _timeless(task: ReadTask, as_of: int, kind: TableKind) -> set[str]:
    """Parts, by key, of which a read needs no `__time` though it merges them with others.

    All of their rows count. rows: then times say nothing more. keyed: they rank, but where no other
    source has a row between the first and the last time of a part, one time for all of its rows
    ranks them the same; if it is distinct, they need no ranks among themselves. So it is with what
    is current beside newer parts.
    """
    counting = {
        r.part.key
        for r in task.references
        if not (r.part.time_max is None or r.time_max > as_of or r.part.has_end or r.is_cut)
    }
    if kind == "rows" or not counting:
        return counting
    spans = [(r.time_min, r.time_max, r.part.key) for r in task.references]
    spans += [(e.time, e.time, "") for e in task.entries]
    met: set[str] = set()
    reach, holder = -1, ""
    for first, last, key in sorted(spans):
        if first <= reach:
            met.update((key, holder))
        if last >= reach:
            reach, holder = last, key
    distinct = {r.part.key for r in task.references if r.part.distinct}
    return (counting & distinct) - met


def is_covered(place: Interval, intervals: Sequence[Interval]) -> bool:
    """Whether one of the intervals has all of the place."""
    return any(interval.intersect(place) == place for interval in intervals)
