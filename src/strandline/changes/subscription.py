"""Subscriptions: every change of some tables, in whole commit times, each exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, Unpack

import pyarrow as pa

from strandline.changes.course import Course, Options
from strandline.changes.differences import Wanted
from strandline.closing import Closing
from strandline.env import given_seconds
from strandline.errors import UsageError
from strandline.parts.schema import with_times
from strandline.times import Progress, parse_as_of
from strandline.txn.handle import Handle

__all__ = [
    "Change",
    "Subscription",
    "TablesChange",
    "TablesSubscription",
    "seconds_of",
    "start_of",
    "subscribed",
    "subscribed_together",
]

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to a table, at one or several commit times."""

    rows: pa.Table
    """By `__time`, then key. A table of `rows`: the user's columns, `__time`, `__diff` (+n, -n).
    A `keyed` table: the user's columns, `__time`, `__op` ("upsert" or "delete"), and `__old` if it
    was asked for. May be empty: then only time has passed."""
    progress: Progress
    """Everything up to and including this time was delivered; `start=` takes it."""
    complete: bool = True
    """False: more follows of the time of the last rows, in the next change. `progress` stays where
    it was, so that a restart from there begins that time anew."""

    def to_pandas(self, *, times: bool = False, **options: Any) -> Any:
        """The rows as a pandas DataFrame; options are those of `pyarrow.Table.to_pandas`.

        `times`: with `__time` as timestamps, and not as the integers that it is.
        """
        return (with_times(self.rows) if times else self.rows).to_pandas(**options)


@dataclass(frozen=True, slots=True)
class TablesChange:
    """What happened to several tables, at one or several commit times, the same for all of them."""

    tables: Mapping[str, pa.Table]
    """Every table that was subscribed to, by the name that it was asked by, and its rows as in
    `Change.rows`; without rows where nothing happened to it."""
    progress: Progress
    """Everything up to and including this time was delivered, of all tables; `start=` takes it."""
    complete: bool = True
    """False: more follows that belongs with these rows, in the next changes. `progress` stays where
    it was, so that a restart from there begins anew with all of it."""


def start_of(value: Any) -> str | int:
    """What `start=` means: "snapshot", "now" or a time; `UsageError` shows the forms."""
    if isinstance(value, Progress):
        return "snapshot" if value.micros < 0 else value.micros
    if isinstance(value, str):
        if value in {"snapshot", "now"}:
            return value
        if value.startswith("p"):
            return Progress.parse(value).micros
    try:
        return parse_as_of(value)
    except UsageError as error:
        raise UsageError(
            f'start={value!r}: pass "snapshot", "now", the progress of an earlier change or its '
            f"text, or a time. {error}"
        ) from None


def seconds_of(value: Any, what: str) -> float | None:
    """A number of seconds above 0, or None."""
    return None if value is None else given_seconds(value, what)


class _Changes(Closing, Generic[C]):
    """The iterator over what a course brings."""

    def __init__(self, course: Course[C]) -> None:
        self._course = course
        self._changes: Iterator[C] | None = None
        self._ended = False

    @property
    def progress(self) -> Progress:
        """How far the subscription has come, also where that brought no change."""
        return self._course.progress

    def __iter__(self) -> Iterator[C]:
        return self

    def __next__(self) -> C:
        if self._ended:
            raise StopIteration
        if self._changes is None:
            self._changes = self._course.changes()
        try:
            return next(self._changes)
        except StopIteration:
            self.close()
            raise
        except BaseException:
            self._changes = None
            raise

    def close(self) -> None:
        """Ends the iteration, and what is held for it. A named subscription keeps its place."""
        self._ended = True
        self._changes = None
        self._course.close()

    def __del__(self) -> None:
        # Nothing that lives on refers to this object: a loop that is left lets go of it at once.
        self._course.leave()


class Subscription(_Changes[Change]):
    """An iterator over changes; it waits for those to come. For one thread at a time.

    Use it in a `for` loop, or in a `with` block that ends it. After an error the next call goes on
    from `progress`, unless it was within a change that is not complete.
    """

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows of its changes."""
        (schema,) = self._course.schemas.values()
        return schema


class TablesSubscription(_Changes[TablesChange]):
    """An iterator over the changes of several tables, as `Subscription` is of one."""

    @property
    def schemas(self) -> dict[str, pa.Schema]:
        """The Arrow schema of the rows of each table's changes, by its name."""
        return self._course.schemas


def subscribed(handle: Handle, wanted: Wanted, **options: Unpack[Options]) -> Subscription:
    """A subscription to one table."""
    table = wanted.version.name

    def made(rows: Mapping[str, pa.Table], progress: Progress, complete: bool) -> Change:  # noqa: FBT001  as the course passes it
        return Change(rows[table], progress, complete)

    return Subscription(Course(handle, {table: wanted}, made, **options))


def subscribed_together(
    handle: Handle, wanted: Mapping[str, Wanted], **options: Unpack[Options]
) -> TablesSubscription:
    """A subscription to several tables."""
    return TablesSubscription(Course(handle, wanted, TablesChange, **options))
