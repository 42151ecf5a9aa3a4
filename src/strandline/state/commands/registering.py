"""The commands of a txns shard that is used by itself, and of what registers with it."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.state.commands.command import Command

__all__ = [
    "CompactTxns",
    "InitTxns",
    "Join",
    "JoinResult",
    "Leave",
    "Withdraw",
]


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
