"""The life of a session: the whole table, against what `decide` makes of each stage."""

from __future__ import annotations

from itertools import product

import pytest

from strandline.errors import Fenced, UsageError
from strandline.state.commands import (
    Acknowledge,
    AdvanceUpper,
    Claim,
    CloseSession,
    Command,
    Expire,
    Heartbeat,
    OpenHold,
    Retain,
    Swept,
)
from strandline.state.decide import Author, decide
from strandline.state.model import Session
from strandline.state.replay import State, initial, replay
from strandline.state.sessions import LIFE, Event, Stage, has_ended, is_open, stage_of
from tests.support.states import appends, database, reader, shard_at, write

OWNER, OTHER = "w1", "w2"

LIVES: dict[Stage, tuple[Event, ...]] = {
    Stage.UNKNOWN: (),
    Stage.OPEN: (Event.RECORD, Event.RECORD),
    Stage.ENDED: (Event.RECORD, Event.EXPIRE),
    Stage.ACKNOWLEDGED: (Event.RECORD, Event.EXPIRE, Event.ACKNOWLEDGE),
    Stage.SWEPT: (Event.RECORD, Event.CLOSE_LITTERED, Event.SWEEP),
    Stage.FORGOTTEN: (Event.RECORD, Event.CLOSE),
}
"""How a session comes to each stage."""

REFUSED: dict[Event, object] = {
    Event.RECORD: Fenced,
    Event.CLOSE: True,
    Event.CLOSE_LITTERED: True,
    Event.EXPIRE: False,
    Event.ACKNOWLEDGE: False,
    Event.SWEEP: UsageError,
    Event.LAST_SWEEP: UsageError,
}
"""What comes of an event that leads nowhere, where there is a session."""


def submitted(state: State, event: Event) -> tuple[Command[bool], str]:
    """The command that the event is, and whose it is."""
    session = state.sessions.get((OWNER,))
    count = 1 if session is None else session.count
    return {
        Event.RECORD: (Heartbeat(), OWNER),
        Event.CLOSE: (CloseSession(), OWNER),
        Event.CLOSE_LITTERED: (CloseSession(littered=True), OWNER),
        Event.EXPIRE: (Expire(OWNER, count), OTHER),
        Event.ACKNOWLEDGE: (Acknowledge(OWNER), OTHER),
        Event.SWEEP: (Swept(OWNER, 7, last=False), OTHER),
        Event.LAST_SWEEP: (Swept(OWNER, 8, last=True), OTHER),
    }[event]


def happened(state: State, event: Event, *, first: bool) -> tuple[State, bool]:
    """The state after the event, and what whoever caused it was told."""
    command, session = submitted(state, event)
    other = state.sessions.get((OTHER,)) is None
    decision = decide(state, command, Author(session, first if session == OWNER else other))
    return replay(state, state.seqno + 1, b"", decision.diffs), decision.result


def lived(stage: Stage) -> tuple[State, bool]:
    """A state in which the session is in that stage, and whether it never wrote."""
    state = initial()
    for number, event in enumerate(LIVES[stage]):
        state, done = happened(state, event, first=not number)
        assert done is True
    first = not LIVES[stage]
    assert stage_of(state.sessions.get((OWNER,)), first=first) is stage
    return state, first


@pytest.mark.parametrize(("stage", "event"), list(product(Stage, Event)))
def test_each_event_leads_where_the_table_says_or_nowhere(stage: Stage, event: Event) -> None:
    state, first = lived(stage)
    before = state.sessions.get((OWNER,))
    if (stage, event) in LIFE:
        state, done = happened(state, event, first=first)
        after = state.sessions.get((OWNER,))
        assert done is True
        assert stage_of(after) is LIFE[stage, event]
        assert (after is None) == (LIFE[stage, event] is Stage.FORGOTTEN)
        return
    refused = REFUSED[event]
    if before is None and refused is UsageError:
        refused = False  # nothing is left of it that could be deleted too early
    if isinstance(refused, type):
        assert issubclass(refused, Exception)
        with pytest.raises(refused):
            happened(state, event, first=first)
        return
    state, told = happened(state, event, first=first)
    assert told is refused
    assert state.sessions.get((OWNER,)) == before


def test_no_event_leads_back() -> None:
    order = list(Stage)
    for (stage, _), to in LIFE.items():
        assert order.index(stage) <= order.index(to)


@pytest.mark.parametrize("stage", list(Stage))
def test_only_an_open_session_and_a_new_one_may_write(stage: Stage) -> None:
    state, first = lived(stage)
    assert is_open(state.sessions.get((OWNER,))) == (stage is Stage.OPEN)
    may_write = stage in {Stage.UNKNOWN, Stage.OPEN}
    assert has_ended(state, Author(OWNER, first)) == (not may_write)


def test_a_session_expires_only_if_it_wrote_nothing_since_it_was_looked_at() -> None:
    shard = shard_at(9)
    shard.do(Heartbeat(), session="w2")
    shard.do(Heartbeat(), session="w2")
    assert shard.do(Expire("w2", 1)) is False
    assert shard.do(Expire("w2", 2)) is True
    assert shard.state.sessions.get(("w2",)) == Session(2, opened=2, expired=4)
    assert shard.do(Expire("w2", 2)) is False
    assert shard.do(Expire("w3", 0)) is False


def test_an_expired_session_writes_nothing_any_more() -> None:
    shard = shard_at(9)
    shard.do(Heartbeat(), session="w2")
    shard.do(Expire("w2", 1))
    for command in (Heartbeat(), appends(9, 10), Claim(), Retain(3)):
        with pytest.raises(Fenced, match="w2"):
            shard.do(command, session="w2")
    assert shard.do(CloseSession(), session="w2") is True
    assert shard.state.sessions.get(("w2",)) is not None


def test_leased_holds_and_the_claim_end_with_their_session() -> None:
    for ends in (Expire("w2", 3), CloseSession()):
        shard = shard_at(9)
        shard.do(OpenHold("leased", reader(2), leased=True), session="w2")
        shard.do(OpenHold("lasting", reader(4), leased=False), session="w2")
        assert shard.do(Claim(), session="w2") is True
        assert shard.do(Claim()) is False
        shard.do(ends, session="w2" if isinstance(ends, CloseSession) else "w1")
        assert [key[0] for key, _ in shard.state.holds.range()] == ["lasting"]
        assert shard.state.meta.since == 4
        assert shard.do(Claim()) is True


def test_a_session_does_not_expire_itself() -> None:
    with pytest.raises(UsageError, match="itself"):
        shard_at(9).do(Expire("w1", 1))


def test_the_first_record_registers_the_session_and_each_record_counts() -> None:
    shard = database()
    shard.do(AdvanceUpper(1), "w1")
    shard.do(AdvanceUpper(2), "w2")
    shard.do(AdvanceUpper(3), "w1")
    assert shard.state.sessions.get(("w1",)) == Session(count=2, opened=1)
    assert shard.state.sessions.get(("w2",)) == Session(count=1, opened=2)


def test_a_closed_session_is_gone_and_writes_nothing_more() -> None:
    shard = database("orders")
    assert shard.do(CloseSession()) is True
    assert shard.state.sessions.get(("w1",)) is None
    assert shard.do(CloseSession()) is True
    with pytest.raises(Fenced, match="open the database again"):
        shard.commit(write("t1"), clock=5)
