"""Holds, claims and appends by a shard's own writers: what `decide` makes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.errors import AsOfTooOld, Fenced, UpperMismatch, UsageError
from strandline.state.commands import (
    AdvanceUpper,
    Append,
    AppendResult,
    Apply,
    Claim,
    Clear,
    CloseHold,
    Describe,
    Expire,
    Finish,
    ForgetTables,
    Heartbeat,
    MoveHold,
    OpenHold,
    Retain,
    TakeHold,
)
from strandline.state.decide import Author, decide
from strandline.state.model import Hold, Part
from tests.support.states import Shard, appends, creates, part, reader, shard_at, table, write


def timed(key: str, first: int, last: int) -> Part:
    """A part with updates at times from `first` to `last` (included)."""
    return replace(part(key, b"a", b"m"), time_min=first, time_max=last)


def replicated(lower: int, upper: int | None, *parts: Part) -> Append:
    return Append(lower, upper, parts, replicated=True)


# --- appends


def test_an_append_elsewhere_than_at_the_upper_is_told_the_upper() -> None:
    """CASES S1, S2."""
    shard = Shard()
    with pytest.raises(UpperMismatch) as caught:
        shard.do(appends(1, 2))
    assert caught.value.upper == 0
    assert shard.do(appends(0, 5)) == AppendResult(5)
    with pytest.raises(UsageError, match="wrong way"):
        shard.do(appends(5, 4))
    with pytest.raises(UsageError, match="no room"):
        shard.do(appends(5, 5, timed("p1", 5, 5)))
    assert shard.do(appends(5, 5)) == AppendResult(5)
    with pytest.raises(UpperMismatch) as caught:
        shard.do(appends(0, 3), session="w2")
    assert caught.value.upper == 5
    assert shard.do(appends(5, 6, timed("p2", 5, 5)), session="w2") == AppendResult(6)


def test_an_append_says_at_which_times_its_updates_are() -> None:
    shard = Shard()
    for bad in (part("p1", b"a", b"b"), timed("p1", 0, 5), timed("p1", 7, 7)):
        with pytest.raises(UsageError, match="p1"):
            shard.do(appends(0, 5, bad))
    with pytest.raises(UsageError, match="cannot be appended at 3"):
        shard.do(Append(0, 5, expected_upper=3))


def test_replicated_writers_add_each_update_once() -> None:
    """CASES S3."""
    shard = Shard()
    shard.do(replicated(0, 3, timed("a1", 0, 2)))
    shard.do(replicated(0, 5, timed("b1", 0, 2), timed("b2", 1, 4)), session="w2")
    shard.do(replicated(3, 6, timed("a2", 3, 5)))
    found = {ref.part.key: (ref.rows_from, ref.time_min) for ref in shard.references()}
    assert found == {"a1": (None, 0), "b2": (3, 3), "a2": (5, 5)}
    assert shard.dead() == ["b1"]


def test_a_replicated_batch_that_is_there_already_is_garbage_and_no_error() -> None:
    shard = Shard()
    shard.do(replicated(0, 5, timed("a1", 0, 4)))
    assert shard.do(replicated(0, 5, timed("b1", 0, 4)), session="w2") == AppendResult(5)
    assert [ref.part.key for ref in shard.references()] == ["a1"]
    assert shard.dead() == ["b1"]


def test_replicated_writers_may_not_leave_a_gap() -> None:
    with pytest.raises(UpperMismatch, match="upper is 5, not 6"):
        shard_at(5).do(replicated(6, 8))


def test_a_token_gives_its_first_result_whatever_has_happened_since() -> None:
    """CASES S4."""
    shard = shard_at(3)
    assert shard.do(appends(3, 4, timed("p1", 3, 3), token=("t", 1))) == AppendResult(4)
    shard.do(appends(4, 5, timed("p2", 4, 4)), session="w2")
    records = len(shard.log)
    again = appends(3, 4, timed("p1", 3, 3), token=("t", 1))
    assert shard.do(again) == AppendResult(4, repeated=True)
    shard.do(appends(5, None, token=("t", 2)))
    gone = Author("w9", first=False)
    assert decide(shard.state, again, gone).result == AppendResult(4, repeated=True)
    ended = appends(5, None, token=("t", 2))
    assert decide(shard.state, ended, gone).result == AppendResult(None, repeated=True)
    assert len(shard.log) == records + 1


def test_nothing_is_appended_to_a_finished_shard() -> None:
    shard = shard_at(5)
    shard.do(appends(5, None))
    with pytest.raises(UsageError, match="finished"):
        shard.do(appends(5, 6))


def test_a_shard_is_fed_by_a_txns_shard_or_by_writers_of_its_own() -> None:
    direct, fed = Shard(), Shard()
    direct.do(appends(0, 5))
    with pytest.raises(UsageError, match="writers of its own"):
        direct.do(Apply(5, 6, ()))
    fed.do(Apply(0, 5, ()))
    with pytest.raises(UsageError, match="belongs to a table"):
        fed.do(appends(5, 6))
    with pytest.raises(UsageError, match="belongs to a table"):
        fed.do(AdvanceUpper(6))
    with pytest.raises(UsageError, match="belongs to a table"):
        fed.do(Describe(table("s1", "t")))


def test_objects_of_a_session_that_is_not_open_are_refused() -> None:
    shard = shard_at(5)
    foreign = timed("w2/s1/part/p1.parquet", 5, 5)
    with pytest.raises(Fenced, match="w2"):
        shard.do(appends(5, 6, foreign))
    shard.do(Heartbeat(), session="w2")
    assert shard.do(appends(5, 6, foreign)) == AppendResult(6)
    shard.do(Expire("w2", 1))
    with pytest.raises(Fenced, match="w2"):
        shard.do(appends(6, 7, timed("w2/s1/part/p2.parquet", 6, 6)))


def test_the_first_description_of_a_shard_holds() -> None:
    shard = Shard()
    first = shard.do(Describe(table("s1", "t")))
    assert shard.do(Describe(table("s1", "other")), session="w2") == first
    assert first.name == "t"


# --- holds


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


# --- the claim


def test_a_claim_is_given_back_by_its_owner_only() -> None:
    shard = shard_at(9)
    shard.do(Claim())
    assert shard.do(Claim(release=True), session="w2") is False
    assert shard.do(Claim(), session="w2") is False
    shard.do(Claim(release=True))
    assert shard.do(Claim(), session="w2") is True


# --- the end of a shard


def test_a_finished_shard_lets_go_of_its_parts_and_refuses_everything() -> None:
    shard = Shard()
    shard.apply(5, (1, part("p1", b"a", b"c")), (2, part("p2", b"d", b"e")))
    shard.do(Retain(2))
    with pytest.raises(UsageError, match="finished"):
        shard.do(Clear(()))
    shard.do(OpenHold("tag", reader(3), leased=False))
    with pytest.raises(UsageError, match="tag"):
        shard.do(Finish())
    shard.do(CloseHold("tag", 1))
    assert shard.do(Finish()) is True
    records = len(shard.log)
    assert shard.do(Finish()) is True
    assert len(shard.log) == records
    keys = tuple(key for key, _ in shard.state.references.range())
    assert shard.do(Clear((*keys, keys[0]))) == 2
    assert shard.do(Clear(keys)) == 0
    assert shard.dead() == ["p1", "p2"]
    with pytest.raises(UpperMismatch):
        shard.do(Apply(5, 6, ()))


def test_only_versions_of_tables_that_ended_are_forgotten() -> None:
    shard = Shard()
    shard.commit(changes=(creates("t1", "orders"),))
    shard.commit(write("t1"))
    with pytest.raises(UsageError, match="still holds"):
        shard.do(ForgetTables((("t1", 1),)))
    ended = replace(table("t1", "orders"), version=1)
    drop = replace(creates("t1", "orders"), after=ended, expected_version=1, dropped=True)
    shard.commit(changes=(drop,))
    with pytest.raises(UsageError, match="not applied"):
        shard.do(ForgetTables((("t1", 1),)))
    shard.commit(tidies=tuple(key for key, _ in shard.state.entries.range()))
    assert shard.do(ForgetTables((("t1", 1), ("t9", 1)))) == 1
    assert not list(shard.state.tables.range())
    assert not list(shard.state.tidied.range())


def test_what_a_shard_retains_is_held_from_the_first_retain_on() -> None:
    """So a hold that is opened next, at a later time, gives up nothing."""
    shard = Shard()
    assert shard.do(Retain(0)) == 0
    shard.do(Apply(0, 10, ()))
    shard.do(OpenHold("late", reader(8), leased=True))
    assert shard.state.meta.since == 0
    assert shard.do(Retain(5)) == 5
