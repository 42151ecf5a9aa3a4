"""Holds: who still needs what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.errors import AsOfTooOld, Fenced, UsageError
from strandline.state.commands import (
    Apply,
    CloseHold,
    MoveHold,
    OpenHold,
    Retain,
    TakeHold,
)
from strandline.state.model import Hold
from tests.support.states import Shard, appends, reader, shard_at


def test_since_is_the_least_of_the_holds_and_never_goes_back() -> None:
    """CASES S10."""
    shard = shard_at(10)
    for name, since in (("h2", 2), ("h3", 3)):
        shard.do(OpenHold(name, reader(since), leased=True))
    shard.do(MoveHold("h2", 1, 1))
    assert shard.state.meta.since == 2
    shard.do(MoveHold("h2", 1, 5))
    assert shard.state.meta.since == 3
    assert shard.do(MoveHold("h3", 1, 1)).since == 3
    assert shard.do(OpenHold("h1", reader(1), leased=True)).since == 3
    shard.do(CloseHold("h3", 1))
    shard.do(CloseHold("h1", 1))
    assert shard.state.meta.since == 5
    shard.do(CloseHold("h2", 1))
    assert shard.state.meta.since == 5


def test_since_stays_below_the_upper() -> None:
    shard = shard_at(5)
    shard.do(OpenHold("h", reader(99), leased=True))
    assert shard.state.meta.since == 4


def test_a_hold_that_must_be_exact_is_refused_below_since() -> None:
    shard = shard_at(9)
    shard.do(Retain(6))
    with pytest.raises(AsOfTooOld, match="since 6"):
        shard.do(OpenHold("b", reader(5), leased=False, exact=True))
    assert shard.do(OpenHold("b", reader(6), leased=False, exact=True)).since == 6


def test_a_hold_remembers_the_seqno_it_was_opened_at_and_moves_forward_only() -> None:
    shard = shard_at(9)
    hold = shard.do(OpenHold("h", reader(), leased=True))
    assert hold == Hold(0, seqno=1, epoch=1, session="w1", kind="reader")
    shard.do(appends(9, 12))
    assert shard.do(MoveHold("h", 1, 4, seqno=99)).seqno == 3
    assert shard.do(MoveHold("h", 1, 3, seqno=2)) == replace(hold, since=4, seqno=3)


def test_who_takes_a_hold_over_fences_the_one_before() -> None:
    shard = shard_at(9)
    shard.do(OpenHold("h", reader(2), leased=True))
    taken = shard.do(TakeHold("h"), session="w2")
    assert (taken.epoch, taken.session) == (2, "w2")
    with pytest.raises(Fenced, match="taken over"):
        shard.do(MoveHold("h", 1, 5))
    with pytest.raises(Fenced, match="taken over"):
        shard.do(CloseHold("h", 1))
    shard.do(CloseHold("h", 2), session="w2")
    with pytest.raises(Fenced, match="gone"):
        shard.do(MoveHold("h", 2, 5), session="w2")
    assert shard.do(CloseHold("h", 2), session="w2") is True
    with pytest.raises(UsageError, match="no hold 'h'"):
        shard.do(TakeHold("h"))


def test_the_id_of_a_hold_is_its_own() -> None:
    shard = shard_at(9)
    shard.do(OpenHold("h", reader(), leased=True))
    with pytest.raises(UsageError, match="'h' already"):
        shard.do(OpenHold("h", reader(), leased=True))


def test_a_shard_that_is_read_and_written_to_the_end_is_empty_for_ever() -> None:
    shard = shard_at(9)
    shard.do(OpenHold("h", reader(), leased=True))
    shard.do(MoveHold("h", 1, None))
    assert shard.state.meta.since == 8
    shard.do(appends(9, None))
    ended = shard.state.meta
    assert ended.upper is None
    assert ended.since is None
    with pytest.raises(UsageError, match="finished"):
        shard.do(OpenHold("late", reader(), leased=True))


def test_what_a_shard_retains_is_held_from_the_first_retain_on() -> None:
    """So a hold that is opened next, at a later time, gives up nothing."""
    shard = Shard()
    assert shard.do(Retain(0)) == 0
    shard.do(Apply(0, 10, ()))
    shard.do(OpenHold("late", reader(8), leased=True))
    assert shard.state.meta.since == 0
    assert shard.do(Retain(5)) == 5
