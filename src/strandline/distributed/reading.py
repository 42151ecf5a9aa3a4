"""Reads by tasks: the driver plans splits of similar size, and each task reads one.

A plan fixes one time and cuts the keys into intervals; a task reads its intervals as of that time,
from the table as it is stored by then. So nothing of a plan can go out of date, and it is small.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.database import Database
from strandline.distributed.ranges import halving_points
from strandline.distributed.settled import inline_rows, parts_among, settled_tasks
from strandline.distributed.site import (
    TaskRunner,
    check_reachable,
    handle_of,
    moment_of,
    opened,
    schema_of,
    table_of,
)
from strandline.distributed.verifying import verify_parts
from strandline.engine.conditions import Condition, compile_where
from strandline.env import Deadline
from strandline.errors import LocationError
from strandline.location import BlobMissing
from strandline.parts.keys import KeyCodec, KeyRange
from strandline.parts.statistics import Comparison
from strandline.read.question import parts_of
from strandline.read.reading import Reading
from strandline.read.want import Want, arrow_of, columns_of
from strandline.state.model import EVERYTHING, Interval, Part, TableVersion
from strandline.state.plan import ReadTask, united
from strandline.txn.handle import Handle
from strandline.txn.view import view_of, views

__all__ = [
    "Comparison",
    "Comparisons",
    "Read",
    "ReadPlan",
    "ReadSplit",
    "plan_read",
    "read_of",
    "reads_of_all",
]

_SPLIT_ROWS = 1_000_000
"""Rows that one task reads, about."""

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {  # Any: Arrow ships no types
    "=": pc.equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "<": pc.less,
    "<=": pc.less_equal,
}


@dataclass
class Comparisons:
    """Comparisons that all have to hold; a `Condition` that travels."""

    columns: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    reads_others: bool = False

    def select(self, table: pa.Table) -> pa.Table:
        for said in self.comparisons:
            column = table.column(said.column)
            if said.op == "in":
                mask = pc.is_in(column, value_set=pa.array(said.values, column.type))
            else:
                mask = _COMPARE[said.op](column, pa.scalar(said.values[0], column.type))
            table = table.filter(mask)
        return table


class _Both:
    """Rows that match two conditions."""

    reads_others = False

    def __init__(self, first: Condition, second: Condition) -> None:
        self._both = (first, second)
        self.columns = tuple(dict.fromkeys([*first.columns, *second.columns]))
        self.comparisons = (*first.comparisons, *second.comparisons)

    def select(self, table: pa.Table) -> pa.Table:
        for condition in self._both:
            table = condition.select(table)
        return table


@dataclass(frozen=True)
class Read:
    """What is to be read of a table, as plain data."""

    url: str
    version: TableVersion
    """The table with the columns that come out, as `table_of` found it."""
    as_of: int | None = None
    """In µs; None: the latest time, which a plan fixes."""
    columns: tuple[str, ...] | None = None
    """In order; None: all."""
    where: str | None = None
    """An SQL condition."""
    also: Comparisons | None = None
    """Rows come out if this holds, too."""

    @property
    def schema(self) -> pa.Schema:
        """Of what comes out."""
        return arrow_of(Want(self.columns), self.version)

    def selecting(self, columns: Sequence[str], where: str | None = None) -> Read:
        """The same for some columns and rows; UsageError for those that the table has not."""
        compile_where(where, schema_of(self.version), self.version.name)  # refuses what is none
        return replace(self, columns=columns_of(self.version, columns), where=where)

    def reading(
        self, handle: Handle, deadline: Deadline, ranges: tuple[KeyRange, ...] | None = None
    ) -> Reading:
        """The read of these keys (None: all), planned with an open database."""
        view = view_of(handle.store, self.version.table, self.as_of, deadline)
        # Columns are those of the version that was planned with.
        view = replace(view, version=self.version)
        want = Want(self.columns, ranges, self._condition(), ordered=False)
        return Reading.of(handle, view, want, deadline)

    def _condition(self) -> Condition | None:
        asked = compile_where(self.where, schema_of(self.version), self.version.name)
        if asked is None or self.also is None:
            return self.also if asked is None else asked
        return _Both(asked, self.also)


@dataclass(frozen=True)
class ReadSplit:
    """What one task reads: intervals of encoded keys, at the read's time. Plain data."""

    read: Read
    intervals: tuple[tuple[bytes, bytes | None], ...]
    """From each lower end to before the upper one; None is the open end."""

    def tables(self) -> Iterator[pa.Table]:
        """The rows, in bounded memory, in any order. None of the tables is empty.

        Reads the log of the database as well as its objects. Errors: AsOfTooOld, Corruption,
        LocationError.
        """
        handle = handle_of(opened(self.read.url))
        ranges = tuple(_Encoded(None, None, encoded=Interval(*ends)) for ends in self.intervals)
        yield from self.read.reading(handle, handle.deadline(None), ranges).tables()


@dataclass(frozen=True)
class _Encoded(KeyRange):
    """A range that is encoded already; its ends need not be encodings of keys."""

    encoded: Interval = EVERYTHING

    def interval(self, codec: KeyCodec) -> Interval:
        return self.encoded


@dataclass(frozen=True)
class ReadPlan:
    """A read of one moment in pieces that are read side by side. On the driver.

    Each row of the read is in exactly one of `splits`, `rows` and `files`.
    """

    read: Read
    splits: tuple[ReadSplit, ...]
    rows: tuple[pa.Table, ...]
    """What is in no part yet and has not to be merged."""
    parts: tuple[Part, ...]
    """Settled ones: `files`."""
    handle: Handle
    reading: Reading

    @property
    def files(self) -> list[str]:
        """Paths of Parquet files all of whose rows count: any reader of Parquet may read them, once
        `verify` has returned. Empty unless they were asked for.
        """
        return [f"{self.read.url}/{part.key}" for part in self.parts]

    def verify(self, run: TaskRunner, deadline: Deadline) -> None:
        """Returns if every byte of `files` is what was written.

        Few of them are read in this process, many by tasks. Errors: Corruption, naming an object
        that is damaged or missing; LocationError if a compaction replaced one since the plan.
        """
        try:
            verify_parts(self.handle.store, self.parts, run, deadline)
        except BlobMissing as error:
            self.reading.check_missing(error)
            raise LocationError(
                f"table {self.read.version.name!r} was compacted while it was being verified; "
                "read it again",
                may_have_happened=False,
            ) from error


def read_of(
    db: Database, name: str, *, as_of: object = None, deadline: Deadline | None = None
) -> Read:
    """All of a table as of a moment (None: that of `db`, or the latest, which a plan fixes).

    Errors: UnknownTable; UsageError if no other process reaches the database.
    """
    version = table_of(db, name, as_of=as_of, deadline=deadline)
    check_reachable(db.url)
    return Read(db.url, version, moment_of(db, as_of))


def reads_of_all(db: Database, *, as_of: object = None, deadline: Deadline) -> list[Read]:
    """The same for every table, all of them as of one moment, which is fixed now."""
    check_reachable(db.url)
    store = handle_of(db).store
    found = views(store, None, moment_of(db, as_of), deadline)
    return [Read(db.url, view.version, view.as_of) for view in found]


def plan_read(
    read: Read,
    db: Database | None = None,
    *,
    files: bool = False,
    deadline: Deadline | None = None,
) -> ReadPlan:
    """Plans a read with an open database; None: with the one that this process opened for tasks.

    `files`: whether the engine reads whole Parquet files itself, where it can. Errors:
    UnknownTable, AsOfTooOld, AsOfInFuture, DeadlineExceeded.
    """
    handle = handle_of(opened(read.url) if db is None else db)
    deadline = deadline or handle.deadline(None)
    reading = read.reading(handle, deadline)
    read = replace(read, as_of=reading.view.as_of)
    # Path.is_dir raises where a directory above is closed to us.
    there = os.path.isdir(read.url)  # noqa: PTH112  see above
    settled = settled_tasks(reading) if files and there else []
    chosen = {id(task) for task in settled}
    rest = [task for task in reading.tasks if id(task) not in chosen]
    return ReadPlan(
        read,
        tuple(ReadSplit(read, tuple(each)) for each in _intervals(handle, rest, deadline)),
        tuple(inline_rows(handle, reading, settled)),
        tuple(parts_among(settled)),
        handle,
        reading,
    )


def _intervals(
    handle: Handle, tasks: Sequence[ReadTask], deadline: Deadline
) -> list[list[Interval]]:
    """The keys of all of these tasks, parted into splits of similar size."""
    splits: list[list[Interval]] = []
    gathered = _SPLIT_ROWS
    for task in tasks:
        rows = sum(part.rows for part, _, _ in parts_of(task))
        rows += sum(entry.batch.rows for entry in task.entries)
        if rows > _SPLIT_ROWS:
            splits += _cut(handle, task, rows, deadline)
            gathered = _SPLIT_ROWS
            continue
        if gathered + rows > _SPLIT_ROWS:
            splits.append([])
            gathered = 0
        splits[-1] += task.own(task.intervals)
        gathered += rows
    return [united(split) for split in splits if split]


def _cut(handle: Handle, task: ReadTask, rows: int, deadline: Deadline) -> Iterator[list[Interval]]:
    """A large task of so many rows in several splits."""
    reader = handle.store.reader
    sample = sorted(
        key
        for part, place, _ in parts_of(task)
        for key, _ in reader.quantiles(part, deadline)
        if place.contains(key)
    )
    points = sorted(halving_points(sample, [], -(-rows // _SPLIT_ROWS)))
    for lower, upper in zip([b"", *points], [*points, None], strict=True):
        inside = [x for i in task.intervals if (x := i.intersect(Interval(lower, upper)))]
        if inside:
            yield list(task.own(inside))
