"""The commands of a txns shard: commits, DDL, who may write, and what is applied."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.errors import StrandlineError
from strandline.state.commands.command import Command
from strandline.state.model import EVERYTHING, Batch, Holder, Interval, Key, TableVersion

__all__ = [
    "Attach",
    "Commit",
    "CommitGroup",
    "CommitResult",
    "ForgetTables",
    "Read",
    "Release",
    "TableChange",
    "Tidy",
    "Write",
]


@dataclass(frozen=True, slots=True)
class Write:
    """One batch for one table, within a commit."""

    table: str
    batch: Batch
    affected: int | None = None
    """Rows that it adds, changes or takes away; None: those of the batch."""

    @property
    def rows(self) -> int:
        """What a commit says of it: rows that it adds, changes or takes away, each counted once."""
        return self.batch.rows if self.affected is None else self.affected


@dataclass(frozen=True, slots=True)
class Read:
    """What a commit was computed from: the keys of a table in these intervals, at `since - 1`.

    The commit is refused (`TransactionConflict`) if another wrote one of these keys at `since` or
    later, or if the state cannot tell any more because such a commit was tidied.
    """

    table: str
    since: int
    intervals: tuple[Interval, ...] = (EVERYTHING,)


@dataclass(frozen=True, slots=True)
class TableChange:
    """DDL: the version that shall begin at the commit's time.

    `after.valid_from`, `.version` (and `.created` of a new table) are filled in by `decide`.
    `expected_version` is None for a new table. `dropped` ends the table; `after` is then its
    last version.
    """

    after: TableVersion
    expected_version: int | None
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class CommitResult:
    """`time` is the commit's; `repeated` says that the token had been committed before."""

    time: int
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Commit(Command[CommitResult]):
    """Writes, DDL, both or neither, at one time: `max(clock, upper, at_least)`, or exactly `at`.

    Errors: UnknownTable (a table id that is not registered), UsageError (a name that exists, a
    token number that was passed), TransactionConflict (see `Read`, a stale `expected_version`),
    ClockSkew (a clock that is far behind the shard's upper), UpperMismatch (an `at` that is below
    the shard's upper), Fenced.
    """

    clock: int
    writes: tuple[Write, ...] = ()
    changes: tuple[TableChange, ...] = ()
    token: tuple[str, int] | None = None
    tidies: tuple[Key, ...] = ()
    """Keys of applied entries to retract along the way; those that are gone already are skipped."""
    at_least: int = 0
    reads: tuple[Read, ...] = ()
    epochs: tuple[tuple[str, int], ...] = ()
    """(table, epoch) of the tables that the author holds exclusively."""
    positions: tuple[tuple[str, str], ...] = ()
    """(table, position): up to where the writes go in the log that each holder reads."""
    clock_checked: bool = False
    """Whether `clock` agrees with a clock that is not this machine's."""
    at: int | None = None
    """The time that the caller chose: in a txns shard that is used by itself always, else never.
    `changes` are registrations there: one that is there already, or gone already, changes nothing.
    """
    merged: tuple[str, ...] = ()
    """Scopes of tokens, each with the number 1, of transactions that are in this one: refused if
    one was committed by itself or within another, and remembered like its own."""
    begun: int = 0
    """With `at`: before this time none of its tokens was committed. Refused once since is beyond
    it, because what was committed before since is not known any more."""


@dataclass(frozen=True, slots=True)
class CommitGroup(Command[list[CommitResult | StrandlineError]]):
    """Commits one after another, in one record, at consecutive times.

    Each is checked against those before it in the list as well ◆, and has an outcome of its own.
    Result: a list of CommitResult, or the error of a commit that was refused.
    """

    commits: tuple[Commit, ...]
    tidies: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class Attach(Command[Holder]):
    """Makes the author the only one that may write to a table, at once.

    The session of whoever held it before is ended, alive or dead. Result: the Holder. `worker` is
    what the author calls itself. UnknownTable if there is no such table.
    """

    table: str
    worker: str


@dataclass(frozen=True, slots=True)
class Release(Command[bool]):
    """Gives a table back: from now on anyone may write to it. Harmless if another has it."""

    table: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Tidy(Command[int]):
    """Retracts applied entries; those that are gone already are skipped. Result: how many.

    In a txns shard that is used by itself an entry without rows stays in its place, until
    `CompactTxns`: it says when the table was written to.
    """

    entries: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class ForgetTables(Command[int]):
    """Removes versions of tables that ended, keys (table, version), and what is kept beside a
    table once no version of it is left.

    A version that still holds, or a table with entries, is refused. Result: how many were there.
    """

    versions: tuple[Key, ...]
