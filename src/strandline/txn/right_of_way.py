"""Fairness among transactions: who has met too many conflicts is let through by the others.

A long transaction that reads what short ones keep changing would never get through: each time that
it comes to its commit, one of them was first. So after a few conflicts it claims the right of way
of the location, and all others wait with their commits until it is through, or for a short while.

Nothing but fairness rests on it: conflicts are found as ever, and where it cannot be claimed, all
go on without it.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from strandline.env import Deadline, Env
from strandline.location import Claims, Consensus

__all__ = ["RightOfWay", "Tries"]

_TRIES = 3
"""So many tries a transaction has before it claims the right of way."""

_YIELD_SECONDS = 1.0
"""For so long a commit waits for who has claimed it. A transaction that takes longer cannot be
helped: others would stand still."""

_CLAIM_SECONDS = 8.0
"""For so long a transaction waits for others that have claimed it before; then it goes on without.
"""

_POLL_SECONDS = (0.000_5, 0.001_5)
"""Between two looks. With jitter, so that nobody is always late."""

_IN_VAIN_MAX = 10
_REFUSED_MAX = 30


class RightOfWay:
    """The right of way of a location, as one handle sees it. Thread-safe."""

    def __init__(self, consensus: Consensus, env: Env) -> None:
        self._claims = consensus if isinstance(consensus, Claims) else None
        self._env = env
        self._free_until = 0.0
        self._in_vain = 0

    def give(self, deadline: Deadline) -> None:
        """Before a commit: waits while somebody else has claimed it, for a second at most.

        Who has waited goes on unhindered for as long as that took: however many claim it, others
        have half of the time. A process that stopped while it had it is waited for less and less.
        """
        if self._claims is None:
            return
        if not self._claims.claimed():
            self._in_vain = 0
            return
        began = self._env.monotonic()
        if began < self._free_until:
            return
        most = min(_YIELD_SECONDS, deadline.remaining() / 2)
        waited = 0.0
        while waited < most and self._claims.claimed():
            self._pause()
            waited = self._env.monotonic() - began
        if waited >= most:
            self._in_vain = min(_IN_VAIN_MAX, self._in_vain + 1)
        self._free_until = self._env.monotonic() + waited * 2**self._in_vain

    def claim(self, deadline: Deadline) -> bool:
        """Whether it could be claimed, once others that had it before are through."""
        if self._claims is None:
            return False
        began = self._env.monotonic()
        most = min(_CLAIM_SECONDS, deadline.remaining() / 2)
        refused = 0
        while not self._claims.claim():
            # Who looks may be in the way for a moment. More often than that it is impossible.
            refused = 0 if self._claims.claimed() else refused + 1
            if refused > _REFUSED_MAX or self._env.monotonic() - began >= most:
                return False
            self._pause()
        return True

    def release(self) -> None:
        """Gives up what this thread has claimed."""
        if self._claims is not None:
            self._claims.release()

    def _pause(self) -> None:
        least, most = _POLL_SECONDS
        self._env.sleep(least + (most - least) * self._env.random())


class Tries:
    """The tries of one transaction, until it is through: a context manager.

    `begin` comes before each of them, and before what is read in it.
    """

    def __init__(self, way: RightOfWay, env: Env, deadline: Deadline) -> None:
        self._way = way
        self._env = env
        self._deadline = deadline
        self._tries = 0
        self._claimed: float | None = None

    def begin(self) -> None:
        """Waits for those who have the right of way, or claims it, if there were enough tries."""
        if self._claimed is not None:
            if self._env.monotonic() - self._claimed <= _YIELD_SECONDS:
                return
            # Nobody waits for it any more. Others, whom it would help, shall have it.
            self._release()
            self._tries = 0
        self._tries += 1
        if self._tries <= _TRIES:
            self._way.give(self._deadline)
        elif self._way.claim(self._deadline):
            self._claimed = self._env.monotonic()
        else:
            self._tries = 0

    def _release(self) -> None:
        if self._claimed is not None:
            self._claimed = None
            self._way.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._release()
