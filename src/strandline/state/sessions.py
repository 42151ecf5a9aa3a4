"""The life of a session in a shard: one table, and the transitions that are steps of it.

A session is who writes. Of each the shard keeps a value, from which its stage can be told, and the
stage says what may be done by its owner and what to it:

UNKNOWN        There is no value, and the owner wrote no record here: the first one opens it.
OPEN           It may write. Each record adds one to its count; whoever sees the count stand still
               for long enough may end it.
ENDED          Others ended it, because its owner was silent, or to take a table over. It writes no
               record any more; but the owner may not know that yet, and write objects still.
ACKNOWLEDGED   It is certain that no object is written under it any more. Those that nothing needs
               may be swept.
SWEPT          They were, once. What was under way then may have arrived since: once more.
FORGOTTEN      There is no value any more: it was closed and left nothing behind, or swept again.

No event leads back. An id that has ended never comes back, so that what a sweep deletes is
nobody's; whoever goes on does it as a new session. And only what is open may write: a record, and
the objects that a record enters.

UNKNOWN and FORGOTTEN look the same in a state. The owner can tell which it is (`Author.first`); to
others it makes no difference, because nothing that they do leads anywhere from either.

What is not in the table does not happen, and the transition of its command says how it is refused:
Fenced for who writes; False for who was late, since others may have ended, acknowledged or swept a
session first; UsageError for a sweep that comes while objects may still be written. To close what
has ended is harmless.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum, auto
from typing import TypeGuard

from strandline.errors import Fenced, UsageError
from strandline.ids import session_of
from strandline.state.commands import (
    Acknowledge,
    Author,
    Changes,
    CloseSession,
    Expire,
    Heartbeat,
    Swept,
)
from strandline.state.holding import ended_with
from strandline.state.model import Diff, Part, Session
from strandline.state.replay import State

__all__ = [
    "LIFE",
    "Event",
    "Stage",
    "acknowledge",
    "check_keys",
    "check_session",
    "close_session",
    "ended",
    "expire",
    "has_ended",
    "heartbeat",
    "is_open",
    "recorded",
    "stage_of",
    "swept",
]


class Stage(Enum):
    """Where a session is in its life; the values are what reports call it."""

    UNKNOWN = "unknown"
    OPEN = "open"
    ENDED = "ended"
    ACKNOWLEDGED = "acknowledged"
    SWEPT = "swept"
    FORGOTTEN = "forgotten"


class Event(Enum):
    """What happens in its life."""

    RECORD = auto()
    """Its owner writes a record."""
    CLOSE = auto()
    """Its owner writes no more, and left no object that no record entered."""
    CLOSE_LITTERED = auto()
    """Its owner writes no more, and may have left some."""
    EXPIRE = auto()
    ACKNOWLEDGE = auto()
    SWEEP = auto()
    LAST_SWEEP = auto()


LIFE = {
    (Stage.UNKNOWN, Event.RECORD): Stage.OPEN,
    (Stage.OPEN, Event.RECORD): Stage.OPEN,
    (Stage.OPEN, Event.CLOSE): Stage.FORGOTTEN,
    (Stage.OPEN, Event.CLOSE_LITTERED): Stage.ACKNOWLEDGED,
    (Stage.OPEN, Event.EXPIRE): Stage.ENDED,
    (Stage.ENDED, Event.ACKNOWLEDGE): Stage.ACKNOWLEDGED,
    (Stage.ACKNOWLEDGED, Event.SWEEP): Stage.SWEPT,
    (Stage.ACKNOWLEDGED, Event.LAST_SWEEP): Stage.FORGOTTEN,
    (Stage.SWEPT, Event.SWEEP): Stage.SWEPT,
    (Stage.SWEPT, Event.LAST_SWEEP): Stage.FORGOTTEN,
}


def stage_of(session: Session | None, *, first: bool = False) -> Stage:
    """The stage of a session with that value. `first`: as `Author.first`, for who can tell."""
    if session is None:
        return Stage.UNKNOWN if first else Stage.FORGOTTEN
    if session.expired is None:
        return Stage.OPEN
    if session.acknowledged is None:
        return Stage.ENDED
    return Stage.ACKNOWLEDGED if session.swept is None else Stage.SWEPT


def _leads(session: Session | None, event: Event) -> TypeGuard[Session]:
    """Whether the event may happen to a session with that value; without one it is FORGOTTEN."""
    return (stage_of(session), event) in LIFE


def _after(session: Session, event: Event, seqno: int, *, at: int = 0) -> Session | None:
    """The value after an event that is no record of its own. `at`: when, by the location's clock,
    for a sweep; the others happen in record `seqno`.
    """
    stage = LIFE[stage_of(session), event]
    if stage is Stage.FORGOTTEN:
        return None
    if stage is Stage.SWEPT:
        return replace(session, swept=at)
    if stage is Stage.ENDED:
        return replace(session, expired=seqno)
    return replace(session, expired=session.expired or seqno, acknowledged=seqno)


# --- who may write


def is_open(session: Session | None) -> TypeGuard[Session]:
    """Whether that is a session that may write."""
    return _leads(session, Event.RECORD)


def has_ended(state: State, author: Author) -> bool:
    """Whether the author's session was there and may write no more; it never comes back."""
    session = state.sessions.get((author.session,))
    return (stage_of(session, first=author.first), Event.RECORD) not in LIFE


def check_session(state: State, author: Author) -> None:
    """Fenced if the author's session ended: it stays ended."""
    if has_ended(state, author):
        raise Fenced(
            f"session {author.session} was ended by somebody else; open the database again"
        )


def check_keys(
    state: State,
    author: Author,
    parts: Iterable[Part],
    why: str = "is not open in this shard; write them again with a session that is",
) -> None:
    """Fenced unless every session that wrote one of these parts is open in this shard ◆.

    Those of an ended session may be deleted at any time, and of one that is not known here nobody
    could tell: a sweep does not know of this commit.
    """
    for session in {session_of(part.key) for part in parts} - {author.session, None}:
        if not is_open(state.sessions.get((str(session),))):
            raise Fenced(f"session {session}, which wrote objects of this commit, {why}")


# --- transitions


def recorded(state: State, author: Author) -> Session:
    """The author's session with one more record; its first one registers it."""
    session = state.sessions.get((author.session,))
    if session is None:
        session = Session(count=0, opened=state.seqno + 1)
    return replace(session, count=session.count + 1)


def heartbeat(_: State, __: Heartbeat, ___: Author) -> Changes[bool]:
    """The transition of `Heartbeat`."""
    return [], True


def close_session(state: State, command: CloseSession, author: Author) -> Changes[bool]:
    """The transition of `CloseSession`."""
    event = Event.CLOSE_LITTERED if command.littered else Event.CLOSE
    session = state.sessions.get((author.session,))
    if not _leads(session, event):
        return [], True  # one that others ended is swept
    # The record counts, so that its outcome can be told by the state as that of any other.
    diffs = ended(state, author.session, recorded(state, author), event)
    for key, holder in state.holders.range():
        if holder.session == author.session:
            diffs.append(Diff("holders", key, replace(holder, session="")))
    return diffs, True


def expire(state: State, command: Expire, author: Author) -> Changes[bool]:
    """The transition of `Expire`."""
    session = state.sessions.get((command.session,))
    if not _leads(session, Event.EXPIRE) or session.count != command.count:
        return [], False
    if command.session == author.session:
        raise UsageError("a session cannot expire itself; close it")
    return ended(state, command.session, session, Event.EXPIRE), True


def ended(state: State, name: str, session: Session, event: Event) -> list[Diff]:
    """What changes when that session, which is open, ends by that event."""
    after = _after(session, event, state.seqno + 1)
    return [Diff("sessions", (name,), after), *ended_with(state, name)]


def acknowledge(state: State, command: Acknowledge, _: Author) -> Changes[bool]:
    """The transition of `Acknowledge`."""
    session = state.sessions.get((command.session,))
    if not _leads(session, Event.ACKNOWLEDGE):
        return [], False
    if command.count is not None and session.count != command.count:
        return [], False
    after = _after(session, Event.ACKNOWLEDGE, state.seqno + 1)
    return [Diff("sessions", (command.session,), after)], True


def swept(state: State, command: Swept, _: Author) -> Changes[bool]:
    """The transition of `Swept`."""
    event = Event.LAST_SWEEP if command.last else Event.SWEEP
    session = state.sessions.get((command.session,))
    if session is None:
        return [], False
    if not _leads(session, event):
        raise UsageError(
            f"session {command.session} may still write objects: it has to be acknowledged first"
        )
    after = _after(session, event, state.seqno + 1, at=command.at)
    return [Diff("sessions", (command.session,), after)], True
