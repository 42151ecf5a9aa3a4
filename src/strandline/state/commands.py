"""What may be asked of a shard's state, and what comes out. `decide` answers, `replay` follows.

A command is plain data and may be evaluated many times, on newer and newer states, until its
record is in the log: it never contains anything that depends on the commit's time.
"""

from __future__ import annotations

from dataclasses import dataclass

from strandline.state.model import Batch, Interval, Key, Part, TableVersion

__all__ = [
    "AdvanceUpper",
    "Apply",
    "ApplyResult",
    "CloseSession",
    "Command",
    "Commit",
    "CommitResult",
    "Compact",
    "Output",
    "Split",
    "TableChange",
    "Tidy",
    "Write",
]


# --- commands of the txns shard


@dataclass(frozen=True, slots=True)
class Write:
    """One batch for one table, within a commit; one without rows is a condition and no more."""

    table: str
    batch: Batch
    unchanged_since: int | None = None
    """If given: the commit is refused (`TransactionConflict`) when the table has a commit at this
    time or later. What a write that was computed from a read at `unchanged_since - 1` needs."""


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
class Commit:
    """Writes, DDL, both or neither, at one time: `max(clock, upper, at_least)`.

    Errors: UnknownTable (a table id that is not registered), UsageError (a name that exists, a
    token number that was passed), TransactionConflict (see `Write.unchanged_since`, a stale
    `expected_version`), Fenced.
    """

    clock: int
    writes: tuple[Write, ...] = ()
    changes: tuple[TableChange, ...] = ()
    token: tuple[str, int] | None = None
    tidies: tuple[Key, ...] = ()
    """Keys of applied entries to retract along the way; those that are gone already are skipped."""
    at_least: int = 0


@dataclass(frozen=True, slots=True)
class CommitResult:
    """`time` is the commit's; `repeated` says that the token had been committed before."""

    time: int
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Tidy:
    """Retracts applied entries; those that are gone already are skipped. Result: how many."""

    entries: tuple[Key, ...]


# --- commands of a data shard


@dataclass(frozen=True, slots=True)
class Apply:
    """Moves whole times of entries into the shard: its physical upper becomes `new_upper`.

    Refused with UpperMismatch if the shard's upper is not `expected_upper` (somebody else
    applied). Each part is referenced in the leaf that contains its span, or else in L0.
    """

    expected_upper: int
    new_upper: int
    parts: tuple[tuple[int, Part], ...]
    """(commit time, part)."""


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The shard's upper after the command, and where its parts went."""

    upper: int
    leaves: tuple[bytes | None, ...] = ()
    """Lower bounds of the leaves that got parts, ascending; None, at the end, stands for L0."""


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


@dataclass(frozen=True, slots=True)
class Compact:
    """Replaces exactly the references `inputs` by `outputs`, and forwards since to `since`.

    Result: True if applied; False if an input is no longer there (then the outputs are entered as
    dead objects and nothing else changes), or an output's leaf is a leaf no longer.
    """

    inputs: tuple[Key, ...]
    outputs: tuple[Output, ...]
    since: int


@dataclass(frozen=True, slots=True)
class Split:
    """Splits the leaf `leaf` (lower bound `lower`) at `points`, ascending and strictly inside.

    Result: True; False when it is a leaf no longer (split by another). Its references are clipped
    to the new leaves; references whose part has no key in a piece are left out there.
    """

    leaf: int
    lower: bytes
    points: tuple[bytes, ...]


# --- commands of both


@dataclass(frozen=True, slots=True)
class AdvanceUpper:
    """Moves upper to at least `upper`; nothing is written when it is there already."""

    upper: int


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Ends the author's session cleanly: it has nothing uncommitted left."""


Command = Commit | Tidy | Apply | Compact | Split | AdvanceUpper | CloseSession
