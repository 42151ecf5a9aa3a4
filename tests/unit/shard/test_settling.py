"""A command happens once and is answered truly, whatever becomes of its compare-and-set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.errors import (
    DeadlineExceeded,
    Fenced,
    LocationError,
    TransactionConflict,
    UsageError,
)
from strandline.ids import ObjectKey, PartId
from strandline.location.failures import Refused
from strandline.settings import Settings
from strandline.shard.machine import Machine
from strandline.state.commands import (
    AdvanceUpper,
    Append,
    AppendResult,
    CloseSession,
    Commit,
    CommitGroup,
    CommitResult,
    Heartbeat,
    Read,
    Write,
)
from strandline.state.model import Batch, Part
from tests.support.deadlines import within
from tests.support.shards import SHARD, TABLE, Place, create, everything, texts, write


@pytest.fixture(name="place")
def _place() -> Place:
    place = Place(Settings(background=False, rollup_every_records=4))
    create(place.machine())
    return place


@pytest.fixture(name="machine")
def _machine(place: Place) -> Machine:
    """A machine whose session is registered."""
    machine = place.machine()
    write(machine, b"before")
    return machine


def assert_agreed(place: Place, machine: Machine, wanted: list[bytes]) -> None:
    """The log and the machine's own state hold exactly these."""
    fresh = place.machine()
    fresh.look()
    assert fresh.ask(texts) == wanted
    assert everything(machine) == everything(fresh)


# --- the slot decides


def test_what_happened_and_was_reported_failed_is_success(place: Place, machine: Machine) -> None:
    place.consensus.plan = ["done"]
    result = write(machine, b"a")
    assert result.time == machine.state.entries.floor((TABLE, 2**62))[0][1]  # type: ignore[index]
    assert_agreed(place, machine, [b"before", b"a"])


def test_a_repeated_request_that_met_its_own_first_try_is_success(
    place: Place, machine: Machine
) -> None:
    place.consensus.plan = ["twice"]
    write(machine, b"a")
    assert_agreed(place, machine, [b"before", b"a"])


def test_the_same_record_is_put_until_the_slot_is_taken(place: Place, machine: Machine) -> None:
    before = len(place.consensus.puts)
    place.consensus.plan = ["lost", "lost", "refused", "lost"]
    write(machine, b"a")
    assert_agreed(place, machine, [b"before", b"a"])
    puts = place.consensus.puts[before:]
    assert len(puts) == 5
    assert len(set(puts)) == 1


def test_a_late_request_that_lands_before_the_look_is_success(
    place: Place, machine: Machine
) -> None:
    place.consensus.plan = ["late"]
    place.consensus.before_scan = [place.consensus.land]
    write(machine, b"a")
    assert_agreed(place, machine, [b"before", b"a"])


def test_a_late_request_that_lands_between_look_and_second_try_is_success(
    place: Place, machine: Machine
) -> None:
    consensus = place.consensus
    inner = consensus.inner.compare_and_set
    landed: list[bool] = []

    def second_try(shard: str, expected: int, data: bytes, *, timeout: float) -> bool:
        if consensus.late:
            landed.append(consensus.land())
        return inner(shard, expected, data, timeout=timeout)

    consensus.plan = ["late"]
    consensus.inner.compare_and_set = second_try  # type: ignore[method-assign]
    consensus.before_scan = [lambda: None]
    write(machine, b"a")
    assert landed == [True]
    assert_agreed(place, machine, [b"before", b"a"])


def test_a_late_request_that_lands_after_success_changes_nothing(
    place: Place, machine: Machine
) -> None:
    place.consensus.plan = ["late"]
    write(machine, b"a")
    assert place.consensus.land() is False
    assert_agreed(place, machine, [b"before", b"a"])


def test_a_slot_that_another_took_is_a_loss_and_the_command_is_decided_anew(
    place: Place, machine: Machine
) -> None:
    rival = place.machine()
    rival.look()
    place.consensus.plan = ["late"]
    place.consensus.before_scan = [lambda: write(rival, b"rival")]
    write(machine, b"a")
    assert place.consensus.land() is False
    assert_agreed(place, machine, [b"before", b"rival", b"a"])


def test_a_loss_that_makes_the_command_impossible_is_raised(place: Place, machine: Machine) -> None:
    rival = place.machine()
    rival.look()
    upper = machine.state.meta.upper
    assert upper is not None
    place.consensus.plan = ["lost"]
    place.consensus.before_scan = [lambda: write(rival, b"rival")]
    batch = Batch(inline=b"a", rows=1)
    with pytest.raises(TransactionConflict):
        machine.submit(Commit(0, (Write(TABLE, batch),), reads=(Read(TABLE, upper),)))
    assert_agreed(place, machine, [b"before", b"rival"])


# --- at or below the truncation boundary the newest state decides


def _pass_by(place: Place, rival: Machine) -> Callable[[], None]:
    """Others write on, a rollup is named, and the log is truncated up to its seqno."""

    def run() -> None:
        slot = place.log[-1].seqno + 1
        for n in range(12):
            write(rival, b"rival %d" % n)
        rollup = rival.records(place.log[-1].seqno)[0].rollup
        assert rollup is not None
        assert rollup.seqno > slot
        place.consensus.truncate(SHARD, rollup.seqno, timeout=1)

    return run


def _scanned(place: Place, *steps: Callable[[], object]) -> None:
    place.consensus.before_scan = list(steps)


def test_a_record_that_landed_and_was_truncated_is_success(place: Place, machine: Machine) -> None:
    rival = place.machine()
    rival.look()
    place.consensus.plan = ["done"]
    _scanned(place, _pass_by(place, rival))
    write(machine, b"a")
    assert texts(machine.look().state).count(b"a") == 1
    write(machine, b"b")
    assert [t for t in machine.ask(texts) if not t.startswith(b"rival")] == [b"before", b"a", b"b"]


def test_a_record_that_lost_its_slot_before_a_truncation_is_decided_anew(
    place: Place, machine: Machine
) -> None:
    rival = place.machine()
    rival.look()
    place.consensus.plan = ["late"]
    _scanned(place, _pass_by(place, rival))
    write(machine, b"a")
    assert place.consensus.land() is False
    assert machine.ask(texts)[-1] == b"a"
    assert machine.ask(texts).count(b"a") == 1


def _ended_meanwhile(place: Place, machine: Machine) -> Callable[[], None]:
    """Somebody ends the machine's session; then others write on and truncate."""
    rival, killer = place.machine(), place.machine()
    rival.look()

    def run() -> None:
        killer.adopt(machine.session)
        killer.submit(CloseSession())
        _pass_by(place, rival)()

    return run


@pytest.mark.parametrize("fate", ["done", "late"])
@pytest.mark.parametrize("registered", [True, False])
def test_when_the_session_is_gone_too_the_outcome_is_unknown(
    place: Place, machine: Machine, fate: str, registered: bool
) -> None:
    machine = machine if registered else place.machine()
    machine.look()
    happens = fate == "done"
    place.consensus.plan = [fate]
    if registered or happens:
        _scanned(place, _ended_meanwhile(place, machine))
    else:
        rival = place.machine()
        rival.look()
        _scanned(place, _pass_by(place, rival))
    with pytest.raises(LocationError, match="cannot be known") as caught:
        write(machine, b"a")
    assert caught.value.may_have_happened is True
    assert not isinstance(caught.value, DeadlineExceeded)
    assert place.machine().ask(texts).count(b"a") == happens
    # An id that ended, or may have, never writes again; its owner goes on under another.
    ended = caught.value
    assert machine.session not in str(ended)
    write(machine, b"b")
    assert not any(place.consensus.land() for _ in range(len(place.consensus.late)))
    records = place.machine().records()
    assert records[-1].session == machine.session
    assert place.machine().ask(texts).count(b"a") == happens


@pytest.mark.parametrize("first", [True, False])
def test_a_token_that_was_committed_is_success_though_the_session_is_gone(
    place: Place, machine: Machine, first: bool
) -> None:
    machine = place.machine() if first else machine
    machine.look()
    place.consensus.plan = ["done"]
    _scanned(place, _ended_meanwhile(place, machine))
    result = write(machine, b"a", token=("scope", 7))
    entries = machine.ask(lambda s: [entry for _, entry in s.entries.range()])
    assert [e.time for e in entries if e.batch.inline == b"a"] == [result.time]
    assert result.repeated is True
    before = machine.session
    write(machine, b"b")
    assert place.machine().records()[-1].session == machine.session
    assert (machine.session == before) is False or first


def test_a_token_that_was_not_committed_is_committed_under_another_session(
    place: Place, machine: Machine
) -> None:
    ended = machine.session
    place.consensus.plan = ["late"]
    _scanned(place, _ended_meanwhile(place, machine))
    result = write(machine, b"a", token=("scope", 7))
    assert result.repeated is False
    assert machine.session != ended
    assert place.consensus.land() is False
    assert place.machine().ask(texts).count(b"a") == 1


def test_a_token_that_another_session_committed_brings_that_ones_result(
    place: Place, machine: Machine
) -> None:
    other = place.machine()
    other.look()
    theirs: list[CommitResult] = []
    ended = _ended_meanwhile(place, machine)
    place.consensus.plan = ["late"]

    def both() -> None:
        theirs.append(write(other, b"a", token=("scope", 7)))
        ended()

    _scanned(place, both)
    result = write(machine, b"a", token=("scope", 7))
    assert (result.time, result.repeated) == (theirs[0].time, True)
    assert place.machine().ask(texts).count(b"a") == 1


def test_a_first_record_whose_token_is_new_is_written_after_all(place: Place) -> None:
    machine, rival = place.machine(), place.machine()
    machine.look()
    rival.look()
    place.consensus.plan = ["late"]
    _scanned(place, _pass_by(place, rival))
    write(machine, b"a", token=("scope", 7))
    assert machine.ask(texts).count(b"a") == 1
    write(machine, b"b")


def test_a_token_whose_result_is_no_longer_kept_leaves_it_unknown(
    place: Place, machine: Machine
) -> None:
    ended = _ended_meanwhile(place, machine)
    other = place.machine()
    other.look()

    def pass_window() -> None:
        for number in range(8, 80):
            write(other, b"rival", token=("scope", number))
        ended()

    place.consensus.plan = ["done"]
    _scanned(place, pass_window)
    with pytest.raises(LocationError, match="cannot be known") as caught:
        write(machine, b"a", token=("scope", 7))
    assert caught.value.may_have_happened is True


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize(("records", "token"), [(1, ("scope", 7)), (2, ("scope", 7)), (2, None)])
def test_a_record_that_a_copy_of_the_process_counted_is_not_taken_for_ours(
    place: Place, machine: Machine, records: int, token: tuple[str, int] | None, *, grouped: bool
) -> None:
    copy, rival = place.machine(), place.machine()
    copy.adopt(machine.session)
    rival.look()
    for _ in range(records):
        write(machine, b"theirs")
    _pass_by(place, rival)()
    ours = Commit(0, (Write(TABLE, Batch(inline=b"ours", rows=1)),), token=token)
    for error in (Fenced if token else LocationError, Fenced):
        with pytest.raises(error, match="another process") as caught:
            copy.submit(CommitGroup((ours,)) if grouped else ours)
        if error is LocationError:
            assert caught.value.may_have_happened is True  # type: ignore[attr-defined]
    write(machine, b"theirs")
    found = place.machine().ask(texts)
    assert found.count(b"theirs") == records + 1
    assert b"ours" not in found


def test_a_record_that_leaves_its_token_open_is_ours_all_the_same() -> None:
    """What a replica appends is there already: its parts are garbage, its token is not spent."""
    place = Place(Settings(background=False, rollup_every_records=4))
    machine, rival = place.machine(), place.machine()
    machine.submit(Append(0, 10, expected_upper=0))
    rival.look()

    def pass_by() -> None:
        for _ in range(12):
            rival.submit(Heartbeat())
        rollup = rival.records(place.log[-1].seqno)[0].rollup
        assert rollup is not None
        place.consensus.truncate(SHARD, rollup.seqno, timeout=1)

    key = str(ObjectKey(machine.session, SHARD, "part", PartId("p0123456789abcdef")))
    part = Part(key, 1, 1, b"a", b"a", time_min=1, time_max=1)
    place.consensus.plan = ["done"]
    _scanned(place, pass_by)
    late = Append(0, 5, (part,), replicated=True, token=("scope", 7))
    assert machine.submit(late) == AppendResult(10)
    assert machine.submit(Append(10, 11, expected_upper=10)) == AppendResult(11)
    assert machine.ask(lambda s: s.dead.count()) == 1


# --- the deadline


def _unsettled(place: Place, machine: Machine, text: bytes) -> None:
    """Leaves a record behind that may land at any time."""
    place.consensus.plan = ["late", *["lost"] * 1000]
    with pytest.raises(DeadlineExceeded) as caught:
        write_briefly(place, machine, text)
    assert caught.value.may_have_happened is True
    place.consensus.plan = []


def write_briefly(place: Place, machine: Machine, text: bytes) -> None:
    batch = Batch(inline=text, rows=1)
    machine.submit(Commit(0, (Write(TABLE, batch),)), within(0.5, place.env))


@pytest.mark.parametrize("lands", [True, False])
def test_an_unsettled_record_is_settled_before_the_next_one(
    place: Place, machine: Machine, lands: bool
) -> None:
    _unsettled(place, machine, b"a")
    if lands:
        assert place.consensus.land()
    write(machine, b"b")
    assert not any(place.consensus.land() for _ in range(len(place.consensus.late)))
    assert_agreed(place, machine, [b"before", b"a", b"b"])


def test_an_unsettled_record_that_lost_is_given_up(place: Place, machine: Machine) -> None:
    rival = place.machine()
    rival.look()
    _unsettled(place, machine, b"a")
    write(rival, b"rival")
    write(machine, b"b")
    assert_agreed(place, machine, [b"before", b"rival", b"b"])


def test_a_refresh_settles_what_an_earlier_call_left(place: Place, machine: Machine) -> None:
    _unsettled(place, machine, b"a")
    assert texts(machine.look().state) == [b"before", b"a"]
    assert_agreed(place, machine, [b"before", b"a"])


def test_a_read_does_not_wait_for_what_cannot_be_settled(place: Place, machine: Machine) -> None:
    _unsettled(place, machine, b"a")
    place.consensus.plan = ["lost"] * 1000
    began = place.env.seconds
    assert texts(machine.look(within(60, place.env)).state) == [b"before"]
    assert place.env.seconds - began < 3
    place.consensus.plan = []
    assert place.consensus.land()
    assert texts(machine.look().state) == [b"before", b"a"]


def test_while_it_is_unsettled_nothing_else_is_begun(place: Place, machine: Machine) -> None:
    _unsettled(place, machine, b"a")
    place.consensus.plan = ["lost"] * 1000
    with pytest.raises(DeadlineExceeded, match="not begun") as caught:
        write_briefly(place, machine, b"b")
    assert caught.value.may_have_happened is False
    place.consensus.plan = []
    write(machine, b"c")
    assert_agreed(place, machine, [b"before", b"a", b"c"])


def test_a_look_that_fails_leaves_the_outcome_open(
    place: Place, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: Any, **__: Any) -> Any:
        raise Refused("permission denied")

    place.consensus.plan = ["done"]
    with monkeypatch.context() as patch:
        patch.setattr(place.consensus, "scan", denied)
        with pytest.raises(LocationError) as caught:
            write(machine, b"a")
    assert caught.value.may_have_happened is True
    write(machine, b"b")
    assert_agreed(place, machine, [b"before", b"a", b"b"])


@pytest.mark.parametrize("first", [True, False])
def test_an_interrupt_in_the_middle_leaves_a_record_that_is_settled(
    place: Place, machine: Machine, first: bool
) -> None:
    machine = place.machine() if first else machine
    machine.look()
    place.consensus.plan = ["interrupt"]
    with pytest.raises(KeyboardInterrupt):
        write(machine, b"a")
    write(machine, b"b")
    assert_agreed(place, machine, [b"before", b"a", b"b"])


def test_closing_settles_first(place: Place, machine: Machine) -> None:
    fresh = place.machine()
    fresh.look()
    _unsettled(place, fresh, b"a")
    fresh.close()
    assert fresh.records()[-1].command == "CloseSession"
    assert place.machine().ask(texts) == [b"before", b"a"]
    with pytest.raises(UsageError, match="closed"):
        write(fresh)


# --- all of it at once

WORDS = ["ok", "lost", "done", "late", "refused", "twice", "interrupt"]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_whatever_goes_wrong_each_command_happens_as_it_was_answered(data: Any) -> None:
    place = Place(Settings(background=False, rollup_every_records=5))
    create(place.machine())
    machines = [place.machine() for _ in range(2)]
    acknowledged: list[bytes] = []
    unknown: list[bytes] = []
    impossible: list[bytes] = []
    for n in range(data.draw(st.integers(1, 12))):
        machine = data.draw(st.sampled_from(machines))
        place.consensus.plan = data.draw(st.lists(st.sampled_from(WORDS), max_size=5))
        text = b"%d" % n
        try:
            write_briefly(place, machine, text)
            acknowledged.append(text)
        except LocationError as error:
            (unknown if error.may_have_happened else impossible).append(text)
        except KeyboardInterrupt:
            unknown.append(text)
        if place.consensus.late and data.draw(st.booleans()):
            place.consensus.land()
        if data.draw(st.booleans()):
            machine.look()
    place.consensus.plan = []
    while place.consensus.late:
        place.consensus.land()
    for machine in machines:
        machine.submit(AdvanceUpper(10**12))
    fresh = place.machine()
    fresh.look()
    found = fresh.ask(texts)
    assert len(found) == len(set(found))
    assert set(acknowledged) <= set(found) <= set(acknowledged) | set(unknown)
    assert not set(found) & set(impossible)
    for machine in machines:
        machine.look()
        assert everything(machine) == everything(fresh)
