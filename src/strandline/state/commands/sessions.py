"""The commands of sessions, in any shard."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.state.commands.command import Command

__all__ = [
    "Acknowledge",
    "CloseSession",
    "Expire",
    "Heartbeat",
    "Swept",
]


@dataclass(frozen=True, slots=True)
class Heartbeat(Command[bool]):
    """Says that the author's session lives: a record that changes nothing but its count."""


@dataclass(frozen=True, slots=True)
class CloseSession(Command[bool]):
    """Ends the author's session cleanly, because it writes no objects any more.

    Its leased holds end, and what it holds exclusively is given back.
    """

    littered: bool = False
    """Whether it may have written objects that no command entered: then it stays in the state,
    ended and acknowledged, until they were swept. Else it is forgotten."""


@dataclass(frozen=True, slots=True)
class Expire(Command[bool]):
    """Ends the session of somebody who was silent: its leased holds end, and it is fenced.

    Result: True; False if its count is not `count` any more, or it is not open.
    """

    session: str
    count: int


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
