"""A look at a shard: one state of it, that can be asked whatever is stored of it elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from strandline.env import Deadline
from strandline.shard.follower import Follower
from strandline.state.model import Meta
from strandline.state.replay import State

__all__ = ["Look"]

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Look:
    """A state, bound to where its pages are and by when they have to be there.

    It stays as it is, whatever happens to the shard. Only its pages may go in time, with the
    rollups that name them: then `ask` raises `StateRetired`.
    """

    state: State
    deadline: Deadline
    _follower: Follower

    @property
    def meta(self) -> Meta:
        """What the shard is as a whole: its frontiers above all."""
        return self.state.meta

    @property
    def seqno(self) -> int:
        """The number of the state; 0: the shard has no record yet."""
        return self.state.seqno

    def ask(self, function: Callable[[State], A]) -> A:
        """What `function` makes of the state; called again whenever pages had to be loaded for it.

        `function` is pure. Errors: Corruption, LocationError, StateRetired among them.
        """
        return self._follower.run(function, self.deadline, self.state)

    def by(self, deadline: Deadline) -> Look:
        """The same state, for a later call with a deadline of its own."""
        return replace(self, deadline=deadline)
