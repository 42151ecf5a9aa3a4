"""Who submits a command, and whether they still may."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from strandline.errors import Fenced
from strandline.ids import session_of
from strandline.state.commands import R
from strandline.state.model import Diff, Part, Session
from strandline.state.replay import State

__all__ = ["Author", "Changes", "check_keys", "check_session", "has_ended", "is_open"]

Changes = tuple[list[Diff], R]
"""What a command changes, and its result."""


@dataclass(frozen=True, slots=True)
class Author:
    """Who submits a command. `first`: no record of this shard is the session's yet."""

    session: str
    first: bool


def is_open(session: Session | None) -> bool:
    """Whether that is a session that may write."""
    return session is not None and session.expired is None


def has_ended(state: State, author: Author) -> bool:
    """Whether the author's session was there and may write no more; it never comes back."""
    session = state.sessions.get((author.session,))
    return not is_open(session) and (session is not None or not author.first)


def check_session(state: State, author: Author) -> None:
    """Fenced if the author's session ended: it stays ended."""
    if has_ended(state, author):
        raise Fenced(
            f"session {author.session} was ended by somebody else; open the database again"
        )


def check_keys(state: State, author: Author, parts: Iterable[Part]) -> None:
    """Fenced unless every session that wrote one of these parts is open in this shard.

    Those of an ended session may be deleted at any time: a sweep cannot know of this commit.
    """
    for session in {session_of(part.key) for part in parts} - {author.session, None}:
        if not is_open(state.sessions.get((str(session),))):
            raise Fenced(
                f"session {session}, which wrote objects of this commit, is not open in this "
                "shard; write them again with a session that is"
            )
