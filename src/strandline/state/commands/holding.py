"""The commands of holds, in any shard."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.state.commands.command import Command
from strandline.state.model import Hold

__all__ = [
    "CloseHold",
    "MoveHold",
    "OpenHold",
    "Retain",
    "TakeHold",
]


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


@dataclass(frozen=True, slots=True)
class Retain(Command[int | None]):
    """Moves the hold "retention" (made if missing) to `since`, never back.

    Bounded by the shard's upper. Result: the shard's since.
    """

    since: int
