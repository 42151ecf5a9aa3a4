"""Cuts the tasks of a read into pieces: disjoint key intervals, ascending, that fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pyarrow as pa

from strandline.env import Deadline
from strandline.parts.files.read import PartReader
from strandline.read.question import Question, parts_of
from strandline.state.model import EVERYTHING, Interval
from strandline.state.plan import ReadTask

__all__ = ["Piece", "cuts", "pieces_of"]

_PIECE_ROWS = 262_144
"""Rows in a piece, about: few enough to hold several, enough that a piece's overhead is small."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a read that fits into memory."""

    task: ReadTask
    intervals: tuple[Interval, ...]
    load: Callable[[Deadline], pa.Table] | None = None
    """Instead of all that the task has in the intervals: some row groups of one of its parts. Takes
    a deadline."""
    rows_from: int | None = None
    """Of those row groups, rows at earlier times do not count."""


def pieces_of(
    question: Question,
    task: ReadTask,
    reader: PartReader,
    by: Callable[[], Deadline],
    limit: int | None = None,
) -> list[Piece]:
    """The pieces of a task; smaller ones if only about the first `limit` rows are wanted.

    `by`: by when the next step has to be done.
    """
    parts = list(parts_of(task))
    rows = sum(part.rows for part, _, _ in parts)
    size = sum(part.size for part, _, _ in parts)
    # Compressed bytes are all that is known; a piece of about 16 MiB of them stays below 200.
    most = min(_PIECE_ROWS, max(8_192, (16 << 20) * rows // max(size, 1)))
    if limit is not None:
        most = min(most, max(8_192, limit))
    steps = _steps(task, reader, by) if rows > most else []
    if sum(count for _, count in steps) <= most:
        return [Piece(task, task.intervals)]
    several = len(parts) + sum(bool(e.batch.inline) for e in task.entries) > 1
    if question.is_alone(task) and not (several and question.want.ordered):
        return _chunks(question, task, reader, by, most)
    bounds: list[bytes | None] = [b"", *cuts(steps, most), None]
    pieces = []
    for lower, upper in pairwise(bounds):
        span = Interval(lower or b"", upper)
        inside = tuple(both for i in task.intervals if (both := i.intersect(span)))
        if inside:
            pieces.append(Piece(task, inside))
    return pieces


def _steps(
    task: ReadTask, reader: PartReader, by: Callable[[], Deadline]
) -> list[tuple[bytes, int]]:
    """Where the row groups that the task has to read begin, and how many rows each has."""
    steps: list[tuple[bytes, int]] = []
    for part, place, _ in parts_of(task):
        opened = reader.opened(part, by())
        separators, rows = opened.separators, opened.rows_of([0])
        for interval in task.intervals:
            inside = interval.intersect(place)
            if inside is not None:
                steps += [(separators[group], rows) for group in opened.groups_in(inside)]
    return steps


def _chunks(
    question: Question,
    task: ReadTask,
    reader: PartReader,
    by: Callable[[], Deadline],
    rows_max: int,
) -> list[Piece]:
    """Row groups of one part after the other, where no row has to meet another."""
    pieces = []
    for need in question.needs(task, task.intervals, question.columns(task, alone=True)):
        whole = need.part.span in need.intervals
        loads = reader.chunks(
            need.part,
            question.schema,
            columns=need.columns,
            intervals=[EVERYTHING] if whole else need.intervals,
            rows=rows_max,
            deadline=by(),
        )
        pieces += [Piece(task, task.intervals, load, need.rows_from) for load in loads]
    inline = tuple(e for e in task.entries if e.batch.inline)
    if inline:
        rest = replace(task, references=(), entries=inline)
        pieces.append(Piece(rest, task.intervals))
    return pieces


def cuts(steps: Sequence[tuple[bytes, int]], rows_max: int) -> list[bytes]:
    """Keys between which there are about `rows_max` rows."""
    cuts: list[bytes] = []
    gathered = 0
    for key, rows in sorted(steps):
        if gathered and gathered + rows > rows_max and (not cuts or key > cuts[-1]):
            cuts.append(key)
            gathered = 0
        gathered += rows
    return cuts
