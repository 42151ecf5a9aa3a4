"""Holds, leases and replicated appends under any sequence of commands, beside a plain model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from strandline.errors import Fenced, UpperMismatch, UsageError
from strandline.state.commands import (
    Append,
    CloseHold,
    CloseSession,
    Expire,
    Heartbeat,
    MoveHold,
    OpenHold,
    Retain,
    TakeHold,
)
from strandline.state.model import Hold
from tests.support.states import Shard, part

SESSIONS = ["w1", "w2", "w3"]
sessions = st.sampled_from(SESSIONS)
hold_ids = st.sampled_from(["h1", "h2", "h3"])
times = st.integers(0, 40)


@dataclass
class Known:
    """What the model knows of a hold."""

    since: int | None
    epoch: int
    session: str


class Holds(RuleBasedStateMachine):
    """Since is never beyond what an open hold asks for; what ended stays ended."""

    def __init__(self) -> None:
        super().__init__()
        self.shard = Shard()
        self.holds: dict[str, Known] = {}
        self.counts: dict[str, int] = {}
        self.ended: set[str] = set()
        self.since = 0
        self.appended: set[int] = set()
        self.made = 0

    def submits(self, session: str, command: Any) -> Any:
        """The result; None if the session may write no more, which has to be said."""
        records = len(self.shard.log)
        if session in self.ended:
            with pytest.raises(Fenced):
                self.shard.do(command, session=session)
            return None
        result = self.shard.do(command, session=session)
        if len(self.shard.log) > records:
            self.counts[session] = self.counts.get(session, 0) + 1
        return result

    def upper(self) -> int:
        upper = self.shard.state.meta.upper
        assert upper is not None
        return upper

    # --- data

    @rule(session=sessions, back=st.integers(-1, 4), rows=st.integers(0, 6))
    def replicated_append(self, session: str, back: int, rows: int) -> None:
        """Everybody writes the same source: one update at each time."""
        lower = max(self.upper() - back, 0)
        self.made += 1
        written = part(f"p{self.made}", b"a", b"m")
        new = replace(written, time_min=lower, time_max=lower + rows - 1)
        command = Append(lower, lower + rows, (new,) if rows else (), replicated=True)
        if session not in self.ended and lower > self.upper():
            with pytest.raises(UpperMismatch):
                self.submits(session, command)
            return
        before = self.upper()
        if self.submits(session, command) is not None:
            self.appended |= set(range(before, lower + rows))

    @invariant()
    def each_time_is_in_one_part(self) -> None:
        found: list[int] = []
        for reference in self.shard.references():
            found += range(reference.time_min, reference.time_max + 1)
        assert sorted(found) == sorted(self.appended)
        assert self.appended == set(range(self.upper()))

    # --- holds

    @rule(session=sessions, hold=hold_ids, since=times, leased=st.booleans())
    def open_hold(self, session: str, hold: str, since: int, *, leased: bool) -> None:
        command = OpenHold(hold, Hold(since, seqno=0, kind="reader"), leased=leased)
        if session not in self.ended and hold in self.holds:
            with pytest.raises(UsageError):
                self.shard.do(command, session=session)
            return
        opened = self.submits(session, command)
        if opened is not None:
            assert opened.since == max(since, self.since)
            self.holds[hold] = Known(opened.since, 1, session if leased else "")

    @rule(session=sessions, hold=hold_ids, since=times, stale=st.booleans())
    def move_hold(self, session: str, hold: str, since: int, *, stale: bool) -> None:
        known = self.holds.get(hold)
        epoch = known.epoch - stale if known else 1
        command = MoveHold(hold, epoch, since, seqno=self.shard.state.seqno)
        if session not in self.ended and (known is None or stale):
            with pytest.raises(Fenced):
                self.shard.do(command, session=session)
            return
        moved = self.submits(session, command)
        if moved is not None:
            assert known is not None
            known.since = moved.since
            assert moved.since >= since

    @rule(session=sessions, hold=hold_ids)
    def take_hold(self, session: str, hold: str) -> None:
        known = self.holds.get(hold)
        if session not in self.ended and known is None:
            with pytest.raises(UsageError):
                self.shard.do(TakeHold(hold), session=session)
            return
        taken = self.submits(session, TakeHold(hold))
        if taken is not None:
            assert known is not None
            known.epoch += 1
            known.session = session if known.session else ""
            assert (taken.epoch, taken.session) == (known.epoch, known.session)

    @rule(session=sessions, hold=hold_ids)
    def close_hold(self, session: str, hold: str) -> None:
        known = self.holds.get(hold)
        epoch = known.epoch if known else 1
        if self.submits(session, CloseHold(hold, epoch)) is not None:
            self.holds.pop(hold, None)

    @rule(session=sessions, since=times)
    def retain(self, session: str, since: int) -> None:
        if self.submits(session, Retain(since)) is not None:
            retention = self.shard.state.holds.get(("retention",))
            if retention is not None:
                self.holds["retention"] = Known(retention.since, 1, "")

    @invariant()
    def the_holds_are_those_of_the_model(self) -> None:
        found = {key[0]: hold for key, hold in self.shard.state.holds.range()}
        assert {
            name: Known(hold.since, hold.epoch, hold.session) for name, hold in found.items()
        } == self.holds

    @invariant()
    def since_never_goes_back_and_never_past_a_hold(self) -> None:
        since = self.shard.state.meta.since
        assert since is not None
        assert since >= self.since
        assert all(hold.since is None or hold.since >= since for hold in self.holds.values())
        self.since = since

    # --- sessions

    @rule(session=sessions)
    def heartbeat(self, session: str) -> None:
        self.submits(session, Heartbeat())

    @precondition(lambda self: self.counts)
    @rule(by=sessions, session=sessions, behind=st.integers(0, 1))
    def expire(self, by: str, session: str, behind: int) -> None:
        count = self.counts.get(session, 0) - behind
        if by == session:
            return
        alive = session in self.counts and session not in self.ended
        expired = self.submits(by, Expire(session, count))
        if expired is not None:
            assert expired is (alive and behind == 0)
            if expired:
                self.end(session)

    @rule(session=sessions)
    def close(self, session: str) -> None:
        if session in self.counts and session not in self.ended:
            self.shard.do(CloseSession(), session=session)
            self.end(session)

    def end(self, session: str) -> None:
        self.ended.add(session)
        self.holds = {name: hold for name, hold in self.holds.items() if hold.session != session}


Holds.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestHolds: Any = Holds.TestCase
