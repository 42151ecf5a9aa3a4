"""What all commands have in common: a result, an author, and changes that come of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from strandline.state.model import Diff

__all__ = ["Author", "Changes", "Command", "R"]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Command(Generic[R_co]):
    """What all commands are: each names the type of its result, which its docstring explains."""

    __slots__ = ()

    def enters(self) -> Iterator[str]:
        """The keys of the objects that it enters into the state, if it is one of a data shard."""
        return iter(())


@dataclass(frozen=True, slots=True)
class Author:
    """Who submits a command. `first`: no record of this shard is the session's yet."""

    session: str
    first: bool


Changes = tuple[list[Diff], R]
"""What a command changes, and its result."""
