"""The commands of a data shard: what comes in, where it lies, and the shard's end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from strandline.state.commands.command import Command
from strandline.state.model import Interval, Key, Part, TableVersion

__all__ = [
    "AdvanceUpper",
    "Append",
    "AppendResult",
    "Apply",
    "ApplyResult",
    "Claim",
    "Clear",
    "Compact",
    "Describe",
    "Finish",
    "Output",
    "Split",
]


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

    def enters(self) -> Iterator[str]:
        yield from (part.key for part in self.parts)


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

    def enters(self) -> Iterator[str]:
        yield from (part.key for _, part in self.parts)


@dataclass(frozen=True, slots=True)
class AdvanceUpper(Command[int | None]):
    """Moves upper to at least `upper`; nothing is written when it is there already."""

    upper: int


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

    def enters(self) -> Iterator[str]:
        yield from (output.part.key for output in self.outputs if not output.moved)


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
    """Claims the shard's upkeep for the author's session, or gives it back.

    Result: whether the author has it now. Convenience only: what keeps two workers apart is that
    `Compact` applies only to exactly its inputs.
    """

    release: bool = False


@dataclass(frozen=True, slots=True)
class Finish(Command[bool]):
    """Ends a shard whose table is gone: upper and since become empty, nothing more can be read.

    Refused (UsageError) while any hold but "retention" is there. Result: True.
    """


@dataclass(frozen=True, slots=True)
class Clear(Command[int]):
    """Lets go of references of a finished shard; their parts die. Result: how many were there."""

    references: tuple[Key, ...]
