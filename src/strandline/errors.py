"""Every error that Strandline raises.

::

    StrandlineError
    ├── UsageError            the caller's mistake; trying again does not help
    │   ├── UnknownTable      (a KeyError too)
    │   ├── SchemaMismatch
    │   ├── AsOfTooOld
    │   └── AsOfInFuture
    ├── Conflict              somebody else was first; try again
    │   ├── TransactionConflict
    │   ├── UpperMismatch     carries the current upper
    │   └── Held              somebody holds the table exclusively
    ├── Fenced                this writer was replaced; open a new one
    ├── LocationError         the storage; says whether the thing may have happened
    │   └── DeadlineExceeded  (a TimeoutError too)
    ├── ClockSkew             a clock that may not be trusted
    └── Corruption            stored bytes are not what was written; names the object

A handler chooses by class; `kind` is a stable word for logs and for other languages.
"""

from __future__ import annotations

__all__ = [
    "AsOfInFuture",
    "AsOfTooOld",
    "ClockSkew",
    "Conflict",
    "Corruption",
    "DeadlineExceeded",
    "Fenced",
    "Held",
    "LocationError",
    "SchemaMismatch",
    "StrandlineError",
    "TransactionConflict",
    "UnknownTable",
    "UpperMismatch",
    "UsageError",
]


class StrandlineError(Exception):
    """The root of all errors of this package."""

    kind = "error"

    def __reduce__(self) -> tuple[object, ...]:
        # Errors of tasks come back in pickles: not by `__init__`, which takes what `args` lacks.
        return type(self).__new__, (type(self),), {**self.__dict__, "args": self.args}


class UsageError(StrandlineError):
    """The request cannot be served however often it is made."""

    kind = "usage"


class UnknownTable(UsageError, KeyError):
    """No table has that name at that time."""

    kind = "unknown-table"

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class SchemaMismatch(UsageError):
    """Data does not fit the table's schema; nothing was written."""

    kind = "schema-mismatch"


class AsOfTooOld(UsageError):
    """The `as_of` is before `since`: that history is no longer kept."""

    kind = "as-of-too-old"


class AsOfInFuture(UsageError):
    """The `as_of` is beyond the latest time that can be known."""

    kind = "as-of-in-future"


class Conflict(StrandlineError):
    """Another writer was first; the same request can succeed when made again."""

    kind = "conflict"


class TransactionConflict(Conflict):
    """What a transaction read was changed before it committed."""

    kind = "transaction-conflict"


class UpperMismatch(Conflict):
    """The shard's upper is not the expected one. `upper` is the current one (None: finished)."""

    kind = "upper-mismatch"

    def __init__(self, message: str, upper: int | None) -> None:
        super().__init__(message)
        self.upper = upper


class Held(Conflict):
    """The table is held exclusively by somebody else, whom the message names."""

    kind = "held"


class Fenced(StrandlineError):
    """This session was ended by somebody else, or a copy of the process writes under it, too; its
    handle can do nothing more.
    """

    kind = "fenced"


class LocationError(StrandlineError):
    """The storage failed.

    `may_have_happened` is False only where it is certain that nothing was changed.
    """

    kind = "location"

    def __init__(self, message: str, *, may_have_happened: bool = True) -> None:
        super().__init__(message)
        self.may_have_happened = may_have_happened


class DeadlineExceeded(LocationError, TimeoutError):
    """The time given ran out; `may_have_happened` says whether the thing may be done anyway."""

    kind = "deadline"


class ClockSkew(StrandlineError):
    """A clock differs so much from the location's or the log's that a commit is refused."""

    kind = "clock-skew"


class Corruption(StrandlineError):
    """Stored bytes are damaged or missing. `object` is the key of what is damaged."""

    kind = "corruption"

    def __init__(self, message: str, *, object: str) -> None:  # noqa: A002  the field's word
        super().__init__(message)
        self.object = object
