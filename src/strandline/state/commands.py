"""What may be asked of a shard's state, and what comes out. `decide` answers, `replay` follows.

A command is plain data and may be evaluated many times, on newer and newer states, until its
record is in the log: it never contains anything that depends on the commit's time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from strandline.errors import StrandlineError
from strandline.state.model import (
    EVERYTHING,
    Batch,
    Dead,
    Diff,
    Hold,
    Holder,
    Interval,
    Key,
    Mark,
    Part,
    Receipt,
    TableVersion,
)

__all__ = [
    "Acknowledge",
    "AdvanceUpper",
    "Append",
    "AppendResult",
    "Apply",
    "ApplyResult",
    "Attach",
    "Author",
    "Changes",
    "Claim",
    "Clear",
    "CloseHold",
    "CloseSession",
    "Collect",
    "Command",
    "Commit",
    "CommitGroup",
    "CommitResult",
    "Compact",
    "CompactTxns",
    "ConfirmClock",
    "Describe",
    "Expire",
    "Finish",
    "ForgetTables",
    "Heartbeat",
    "InitTxns",
    "Join",
    "JoinResult",
    "KeepReceipts",
    "Leave",
    "MoveHold",
    "OpenHold",
    "Output",
    "R",
    "Read",
    "Release",
    "Retain",
    "RetireRollups",
    "Split",
    "Swept",
    "TableChange",
    "TakeHold",
    "Tidy",
    "Withdraw",
    "Write",
    "objects_of",
]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Command(Generic[R_co]):
    """What all commands are: each names the type of its result, which its docstring explains."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Author:
    """Who submits a command. `first`: no record of this shard is the session's yet."""

    session: str
    first: bool


Changes = tuple[list[Diff], R]
"""What a command changes, and its result."""


# --- commands of the txns shard


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
class ConfirmClock(Command[int]):
    """An operator says that `clock` is right: what doubted it does so no more.

    Result: by which time retention goes from now on.
    """

    clock: int


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


@dataclass(frozen=True, slots=True)
class InitTxns(Command[int | None]):
    """Makes a new shard a txns shard that is used by itself, whose commits have the times that
    their callers choose, all of them after `time`. Harmless if it is one. Result: its upper.
    """

    time: int


@dataclass(frozen=True, slots=True)
class Withdraw(Command[bool]):
    """Makes sure that a shard is not registered with that number of its `Join` from now on.

    Result: False if it is registered with it now; True else.
    """

    table: str
    number: int


@dataclass(frozen=True, slots=True)
class CompactTxns(Command[tuple[int, bool]]):
    """Moves the since of a txns shard that is used by itself, and gives up what is before it.

    Bounded by the first entry that has rows, and by upper. Of each table the newest entry before
    since, and the newest version, stay. Result: since, and whether more than `items_max` items
    were to be given up, so that it has to be asked again.
    """

    since: int
    items_max: int = 1_000


# --- commands of a data shard


@dataclass(frozen=True, slots=True)
class JoinResult:
    """The number of the join that holds, and the shard's upper, which only applies move now."""

    number: int
    upper: int


@dataclass(frozen=True, slots=True)
class Join(Command[JoinResult]):
    """Gives a shard that is used by itself to a txns shard, `owner`: only it adds data from now on.

    Each time has a number of its own, greater than those before; `over` is the greatest one that
    the txns shard knows to be over. Harmless if the owner has it, with a later number. UsageError
    if another txns shard, or a database, has it. Result: JoinResult.
    """

    owner: str
    over: int


@dataclass(frozen=True, slots=True)
class Leave(Command[bool]):
    """Gives a shard back to its writers, unless it was joined anew. Result: whether it was.

    `upper`: through where the owner said that nothing more comes; the shard's becomes that.
    """

    owner: str
    number: int
    upper: int


@dataclass(frozen=True, slots=True)
class Describe(Command[TableVersion]):
    """Says what the rows of a shard that is used by itself look like: once, before the first
    append. Result: the description that holds, which is the one that came first.
    """

    version: TableVersion


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The shard's upper that the append made; `repeated`: the token had been committed before."""

    upper: int | None
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Append(Command[AppendResult]):
    """Adds the updates at times from `lower` to before `new_upper`, in parts with `__time`.

    With `expected_upper` refused unless that is the shard's upper. Without, the writer is one of
    several that append the same data (`replicated`): what is below the shard's upper is cut off,
    and a batch that is wholly below it changes nothing. `new_upper` None finishes the shard for
    writers.

    Checked in this order: the token; a finished shard, or one that a txns shard feeds
    (UsageError); the session; the sessions of the parts' keys (Fenced); `lower` beyond `new_upper`
    (UsageError); data where they are equal (UsageError); the upper (UpperMismatch).
    """

    lower: int
    new_upper: int | None
    parts: tuple[Part, ...] = ()
    expected_upper: int | None = None
    replicated: bool = False
    token: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The shard's upper after the command, and where its parts went."""

    upper: int
    leaves: tuple[bytes | None, ...] = ()
    """Lower bounds of the leaves that got parts, ascending; None, at the end, stands for L0."""


@dataclass(frozen=True, slots=True)
class Apply(Command[ApplyResult]):
    """Moves whole times of entries into the shard: its physical upper becomes `new_upper`.

    Refused with UpperMismatch if the shard's upper is not `expected_upper` (somebody else
    applied). Each part is referenced in the leaf that contains its span, or else in L0.
    """

    expected_upper: int
    new_upper: int
    parts: tuple[tuple[int, Part], ...]
    """(commit time, part)."""
    owner: str = ""
    """The txns shard, if it is one that is used by itself."""


@dataclass(frozen=True, slots=True)
class Output:
    """What a compaction puts in place of its inputs: a reference to be.

    `part` is either a new part, or an input's own part: then nothing is rewritten and only the
    reference moves (from L0 down into leaves). `interval` defaults to the leaf's. `time` as in
    `Reference.time`.
    """

    leaf: int
    """The leaf's number, 0 for L0."""
    leaf_lower: bytes
    """The leaf's lower bound, b"" for L0."""
    part: Part
    time: int
    interval: Interval | None = None
    moved: bool = False
    """Whether `part` is an input's own."""
    reads_before: int | None = None
    """As in `Reference.reads_before`."""
    rows_from: int | None = None
    """As in `Reference.rows_from`."""


@dataclass(frozen=True, slots=True)
class Compact(Command[bool]):
    """Replaces exactly the references `inputs` by `outputs`.

    Result: True if applied; False if an input is no longer there (then the outputs are entered as
    dead objects and nothing else changes), or an output's leaf is a leaf no longer. Whoever merges
    gives up only what is before the since of a state that was there: since never goes back.
    """

    inputs: tuple[Key, ...]
    outputs: tuple[Output, ...]


@dataclass(frozen=True, slots=True)
class Split(Command[bool]):
    """Splits the leaf `leaf` (lower bound `lower`) at `points`, ascending and strictly inside.

    Result: True; False when it is a leaf no longer (split by another). Its references are clipped
    to the new leaves; references whose part has no key in a piece are left out there.
    """

    leaf: int
    lower: bytes
    points: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Claim(Command[bool]):
    """Claims the shard's maintenance for the author's session, or gives it back.

    Result: whether the author has it now. Convenience only: what keeps two workers apart is that
    `Compact` applies only to exactly its inputs.
    """

    release: bool = False


@dataclass(frozen=True, slots=True)
class Retain(Command[int | None]):
    """Moves the hold "retention" (made if missing) to `since`, never back.

    Bounded by the shard's upper. Result: the shard's since.
    """

    since: int


@dataclass(frozen=True, slots=True)
class Finish(Command[bool]):
    """Ends a shard whose table is gone: upper and since become empty, nothing more can be read.

    Refused (UsageError) while any hold but "retention" is there. Result: True.
    """


@dataclass(frozen=True, slots=True)
class Clear(Command[int]):
    """Lets go of references of a finished shard; their parts die. Result: how many were there."""

    references: tuple[Key, ...]


# --- holds


@dataclass(frozen=True, slots=True)
class OpenHold(Command[Hold]):
    """Opens the hold `id` at `hold.since`, or at the shard's since where that is later.

    `hold.since` None asks for the shard's since, whatever it is; `hold.seqno`, if given, becomes
    the seqno of this record's predecessor. `leased` ties it to the author's session. `exact`:
    AsOfTooOld instead of a later since. Result: the Hold. An id that exists is refused.
    """

    id: str
    hold: Hold
    leased: bool
    exact: bool = False


@dataclass(frozen=True, slots=True)
class MoveHold(Command[Hold]):
    """Moves a hold forward: to `since` (None: to the empty frontier), and its seqno, where it has
    one, to `seqno`. Neither goes back. Result: the Hold. Fenced if the hold is gone or was taken.
    """

    id: str
    epoch: int
    since: int | None
    seqno: int | None = None


@dataclass(frozen=True, slots=True)
class TakeHold(Command[Hold]):
    """Takes a hold over: its epoch is raised, and a leased one moves to the author's session.

    Result: the Hold. UsageError if there is none.
    """

    id: str


@dataclass(frozen=True, slots=True)
class CloseHold(Command[bool]):
    """Ends a hold; since may move. Harmless if it is gone. Fenced if another took it."""

    id: str
    epoch: int


# --- garbage


@dataclass(frozen=True, slots=True)
class Collect(Command[int]):
    """Forgets dead objects that were deleted, keys (seqno, object key), and notes the time.

    `mark`: what the location's clock showed after this seqno was known. `marks` are forgotten.
    Result: how many dead objects were there.
    """

    dead: tuple[Key, ...] = ()
    mark: tuple[int, Mark] | None = None
    marks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RetireRollups(Command[bool]):
    """Drops rollups, and says which were read back whole; all by their keys.

    `objects` are what only the dropped ones name; they are dead from here on. `kept` are all others
    that there were when the objects were gathered: if another has come meanwhile, which may share
    their pages, nothing happens. Result: whether it did.
    """

    dropped: tuple[str, ...]
    kept: tuple[str, ...]
    objects: tuple[Dead, ...] = ()
    verified: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeepReceipts(Command[int]):
    """Enters receipts that were written; drops others, whose objects are dead from here on."""

    added: tuple[tuple[int, Receipt], ...] = ()
    dropped: tuple[int, ...] = ()


# --- commands of both


@dataclass(frozen=True, slots=True)
class AdvanceUpper(Command[int | None]):
    """Moves upper to at least `upper`; nothing is written when it is there already."""

    upper: int


@dataclass(frozen=True, slots=True)
class CloseSession(Command[bool]):
    """Ends the author's session cleanly, because it writes no objects any more.

    Its leased holds end, and what it holds exclusively is given back.
    """

    littered: bool = False
    """Whether it may have written objects that no command entered: then it stays in the state,
    ended and acknowledged, until they were swept. Else it is forgotten."""


@dataclass(frozen=True, slots=True)
class Heartbeat(Command[bool]):
    """Says that the author's session lives: a record that changes nothing but its count."""


@dataclass(frozen=True, slots=True)
class Acknowledge(Command[bool]):
    """Says that the owner of an ended session writes no objects any more.

    With `count`, as `Expire`; without, because the owner says so, or an operator who knows.
    Result: True; False if there is no such session, it is open, or it is acknowledged.
    """

    session: str
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Swept(Command[bool]):
    """Says that the objects of an ended session that nothing needs were deleted.

    `at`: when, by the location's clock. `last`: the session is forgotten. Result: whether it was
    there.
    """

    session: str
    at: int
    last: bool


@dataclass(frozen=True, slots=True)
class Expire(Command[bool]):
    """Ends the session of somebody who was silent: its leased holds end, and it is fenced.

    Result: True; False if its count is not `count` any more, or it is not open.
    """

    session: str
    count: int


def objects_of(command: Command[Any]) -> Iterator[str]:
    """The keys of the objects that a command of a data shard enters into its state."""
    match command:
        case Append():
            yield from (part.key for part in command.parts)
        case Apply():
            yield from (part.key for _, part in command.parts)
        case Compact():
            yield from (output.part.key for output in command.outputs if not output.moved)
        case KeepReceipts():
            yield from (receipt.key for _, receipt in command.added)
