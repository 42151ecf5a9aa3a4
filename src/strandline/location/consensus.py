"""The Consensus port: one linearizable, durable log of records per shard."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, runtime_checkable

__all__ = ["Claims", "Consensus", "Queueing", "Record"]


class Record(NamedTuple):
    """One record of a shard's log. Seqnos start at 1 and have no gaps."""

    seqno: int
    data: bytes


class Consensus(Protocol):
    """Contract (`strandline.testing.consensus_contract` holds every adapter to it):

    - Linearizable per shard and durable: what `compare_and_set` answered True to is in every
      later answer, to whichever handle or process, until it is truncated.
    - `compare_and_set` succeeds only if `expected` is the seqno of the newest record at that
      moment (0 for an empty log). A log that was truncated still knows its newest record, so a
      writer that slept through a truncation cannot succeed at an old seqno.
    - Errors are `LocationError`s that say whether the thing may have happened; unknown means so.
      No adapter repeats a `compare_and_set` whose outcome is unknown.
    - Safe for use from many threads; no waiting caller starves. `timeout` is in seconds.
    """

    def head(self, shard: str, *, timeout: float) -> Record | None:
        """The newest record, None for a log without one."""

    def compare_and_set(self, shard: str, expected: int, data: bytes, *, timeout: float) -> bool:
        """Appends `data` as record `expected + 1` if `expected` is the newest seqno; else False."""

    def scan(self, shard: str, from_seqno: int, limit: int, *, timeout: float) -> Sequence[Record]:
        """The records that are there with seqno >= `from_seqno`, ascending, at most `limit`.

        The first may be later than `from_seqno` when the log was truncated past it: the caller
        notices by its seqno.
        """

    def truncate(self, shard: str, before_seqno: int, *, timeout: float) -> int:
        """Removes records with seqno < `before_seqno`, never the newest; returns how many."""

    def keys(self, *, timeout: float) -> Sequence[str]:
        """The shards that have a log, ascending."""

    def close(self) -> None:
        """Gives back what the handle holds."""


@runtime_checkable
class Queueing(Protocol):
    """What a Consensus may offer besides: writers queue up before they look, not after.

    Nothing depends on it but speed: who looks and writes within its turn does not lose to others
    who look in theirs.
    """

    def turn(self, *, timeout: float) -> AbstractContextManager[None]:
        """Nobody else's `compare_and_set` goes through meanwhile, but that of this thread does.

        Waits for as long as others have theirs; `DeadlineExceeded` if that takes too long. To be
        kept short: what the caller does meanwhile, all writers wait for.
        """


@runtime_checkable
class Claims(Protocol):
    """What a Consensus may offer besides: a thread claims the right of way, which all others see.

    Nothing depends on it but fairness (`txn.right_of_way`), and nothing is refused because of it.
    None of these waits or fails: where it cannot be known, nobody has claimed it, and nobody can. A
    claim goes with its process, however that ends.
    """

    def claim(self) -> bool:
        """Whether this thread has it from now on; False while another has it, here or elsewhere."""

    def release(self) -> None:
        """Gives up the claim of this thread, if it has one."""

    def claimed(self) -> bool:
        """Whether another thread has it, here or elsewhere. Takes microseconds."""
