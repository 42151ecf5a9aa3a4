"""Moments: what `as_of` takes, and what a commit is to the one who made it; whole numbers."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from strandline.errors import UsageError

__all__ = [
    "TIME_MAX",
    "Commit",
    "Micros",
    "Progress",
    "datetime_of",
    "micros_of",
    "parse_as_of",
    "told",
    "whole",
]

TIME_MAX = (1 << 63) - 2
"""The greatest time of an update, a since or an `as_of`; upper, which is beyond all of its updates,
may be one more. So no filter for "up to" or "before" a time can have an update beyond it."""


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MICROS_MAX = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_FORMS = (
    'a datetime with a time zone, an ISO string with one ("2026-11-20T10:00:00Z"), '
    "strandline.Micros(n) (microseconds since 1970-01-01 UTC), or a Commit, or its id"
)
_COMMIT = re.compile(r"c[0-9a-f]{16}")
_PROGRESS = re.compile(r"p[0-9a-f]{16}")
_NOTHING = "snapshot"


@dataclass(frozen=True, slots=True, order=True)
class Micros:
    """A moment as microseconds since 1970-01-01 UTC: the time of the log itself.

    >>> Micros(1_763_632_800_000_000).time.isoformat()
    '2025-11-20T10:00:00+00:00'
    """

    value: int

    def __post_init__(self) -> None:
        value = whole(self.value)
        if value is None:
            raise UsageError(f"Micros takes an int of microseconds, not {self.value!r}")
        object.__setattr__(self, "value", value)
        if not 0 <= value <= _MICROS_MAX:
            raise UsageError(
                f"Micros({self.value}) is out of range: 0 to {_MICROS_MAX}, the end of year 9999"
            )

    @property
    def time(self) -> datetime:
        """The moment as a datetime in UTC."""
        return datetime_of(self.value)


@dataclass(frozen=True, slots=True)
class Commit:
    """What was committed, and when. As an `as_of` it means the moment right after it."""

    micros: int
    """The commit's time: microseconds since 1970-01-01 UTC."""
    rows: int | None = 0
    """Rows that it added, changed or took away; None if the log no longer keeps the record of a
    repeated commit. A row that an update changes counts once. In a keyed table a row is its key:
    one that is upserted, replaced or named in `delete(keys=…)` counts, whether it was there or not.
    An `overwrite` counts what went and what came; several writes in a transaction count in turn.
    """
    tables: tuple[str, ...] = ()
    """The names of the tables that were written."""

    @property
    def id(self) -> str:
        """The letter c and 16 hex digits of the time; `as_of` takes it as it takes the commit."""
        return f"c{self.micros:016x}"

    @property
    def time(self) -> datetime:
        """The commit's time as a datetime in UTC."""
        return datetime_of(self.micros)


@dataclass(frozen=True, slots=True, order=True)
class Progress:
    """How far a subscription has come. `str` gives a text for keeping, `parse` the way back.

    Everything up to and including `micros` was delivered. As an `as_of` it means that moment.

    >>> str(Progress(1_763_632_800_000_000))
    'p00064403c28ee800'
    >>> Progress.parse("p00064403c28ee800").time.isoformat()
    '2025-11-20T10:00:00+00:00'
    """

    micros: int
    """Microseconds since 1970-01-01 UTC; -1: nothing was delivered whole yet."""

    @property
    def time(self) -> datetime:
        """The moment as a datetime in UTC."""
        return datetime_of(self.micros)

    def __str__(self) -> str:
        return _NOTHING if self.micros < 0 else f"p{self.micros:016x}"

    @classmethod
    def parse(cls, text: str) -> Progress:
        """The inverse of `str`."""
        if text == _NOTHING:
            return cls(-1)
        if not _PROGRESS.fullmatch(text):
            raise UsageError(f"{text!r} is no progress of a subscription: p and 16 hex digits")
        return cls(Micros(int(text[1:], 16)).value)


def whole(value: Any) -> int | None:
    """The integer that a value is, of Python, NumPy or whatever has one; None for others.

    >>> whole(7), whole(7.0), whole(True)
    (7, None, None)
    """
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def datetime_of(micros: int) -> datetime:
    """The moment as a datetime in UTC. Exact."""
    return _EPOCH + timedelta(microseconds=micros)


def told(micros: int) -> str:
    """A time as messages tell it, exact, and as `as_of` takes it.

    >>> told(1_763_632_800_000_001), told(-1)
    ('2025-11-20T10:00:00.000001Z', 'the beginning')
    """
    if micros < 0:
        return "the beginning"
    try:
        return datetime_of(micros).isoformat().replace("+00:00", "Z")
    except OverflowError:  # after the year 9999
        return f"Micros({micros})"


def micros_of(moment: datetime) -> int:
    """Microseconds since 1970-01-01 UTC of a datetime with a time zone. Exact, rounded down."""
    return (moment - _EPOCH) // _MICROSECOND


def parse_as_of(value: object) -> int:
    """The time that a user's `as_of` names, in µs; `UsageError` that shows the accepted forms."""
    if isinstance(value, Micros):
        return value.value
    if isinstance(value, Commit | Progress) and value.micros >= 0:
        return value.micros
    if isinstance(value, datetime):
        return _of_datetime(value)
    if isinstance(value, str):
        return _of_text(value)
    raise _refused(value, "")


def _of_datetime(value: datetime) -> int:
    # A datetime whose tzinfo has no offset is naive as well; so is pandas' NaT, which has neither.
    if value.tzinfo is None or value.utcoffset() is None:
        raise _refused(value, ", which has no time zone: pass tzinfo=datetime.UTC for UTC")
    return micros_of(value)


def _of_text(value: str) -> int:
    if value.startswith("tag:"):
        raise UsageError(f"as_of={value!r}: there are no tags yet; as_of takes {_FORMS}")
    if _COMMIT.fullmatch(value) and (micros := int(value[1:], 16)) <= _MICROS_MAX:
        return micros
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError:
        raise _refused(value, "") from None
    if parsed.tzinfo is None:
        raise _refused(value, ", which has no time zone: append Z for UTC")
    return micros_of(parsed)


def _refused(value: object, why: str) -> UsageError:
    return UsageError(f"as_of cannot be {value!r}{why}; it takes {_FORMS}")
