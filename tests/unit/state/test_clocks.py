"""What a txns shard makes of clocks: rules on plain states, without I/O."""

from dataclasses import replace

import pytest

from strandline.errors import ClockSkew
from strandline.state.clocks import SKEW_MICROS, settled_time
from strandline.state.commands import Commit, CommitResult, ConfirmClock
from strandline.state.decide import Author, decide
from strandline.state.model import Diff, Meta
from strandline.state.replay import State, initial, replay

DAY = 86_400 * 1_000_000
START = 20_000 * DAY
A = Author("w1", first=False)


def then(state: State, command: Commit | ConfirmClock) -> tuple[State, object]:
    decision = decide(state, command, Author("w1", first=state.seqno == 0))
    return replay(state, state.seqno + 1, b"", decision.diffs), decision.result


def committed(state: State, clock: int, *, checked: bool = False) -> State:
    state, result = then(state, Commit(clock, clock_checked=checked))
    assert isinstance(result, CommitResult)
    return state


def test_a_clock_far_behind_the_log_is_refused_and_one_a_little_behind_is_not() -> None:
    state = committed(initial(), START)
    assert committed(state, START + 1 - SKEW_MICROS).meta.upper == START + 2
    with pytest.raises(ClockSkew, match=r"300 s behind.*confirm-clock"):
        decide(state, Commit(START - SKEW_MICROS), A)


def test_the_first_commit_of_all_is_no_jump() -> None:
    assert committed(initial(), START).meta.frozen is None


def test_a_jump_is_recorded_with_the_time_before_it() -> None:
    state = committed(committed(initial(), START), START + DAY + 2)
    assert state.meta.frozen == settled_time(state.meta) == START
    assert state.meta.upper == START + DAY + 3


def test_a_step_of_a_day_is_no_jump() -> None:
    assert committed(committed(initial(), START), START + DAY).meta.frozen is None


def test_a_jump_that_another_clock_vouches_for_is_none() -> None:
    state = committed(committed(initial(), START), START + 400 * DAY, checked=True)
    assert settled_time(state.meta) == START + 400 * DAY


def test_a_jump_is_cleared_by_a_commit_that_another_clock_vouches_for() -> None:
    state = committed(committed(initial(), START), START + 2 * DAY)
    assert settled_time(committed(state, START + 2 * DAY + 9, checked=True).meta) > START
    # One whose clock is behind the log vouches for nothing.
    assert settled_time(committed(state, START + 2 * DAY - 9, checked=True).meta) == START


def test_enough_commits_over_a_day_make_a_jump_plausible() -> None:
    state = committed(committed(initial(), START), START + 365 * DAY)
    jumped = START + 365 * DAY
    for count in range(1, 16):
        state = committed(state, jumped + count)
        assert settled_time(state.meta) == START
    soon = committed(state, jumped + DAY - 1)
    assert settled_time(soon.meta) == START
    assert settled_time(committed(soon, jumped + DAY).meta) == jumped + DAY


def test_few_commits_make_no_jump_plausible_however_late_they_come() -> None:
    state = committed(committed(initial(), START), START + 365 * DAY)
    for day in range(1, 16):
        state = committed(state, START + (365 + day) * DAY)
        assert settled_time(state.meta) == START


def test_a_database_with_a_commit_a_week_goes_on_in_time() -> None:
    state = initial()
    times = [START + 7 * week * DAY for week in range(200)]
    for time in times:
        state = committed(state, time)
        assert settled_time(state.meta) >= time - 17 * 7 * DAY


def test_an_operator_confirms_a_clock_that_jumped() -> None:
    state = committed(committed(initial(), START), START + 2 * DAY)
    state, time = then(state, ConfirmClock(START + 2 * DAY + 5))
    assert time == settled_time(state.meta) == START + 2 * DAY
    assert not decide(state, ConfirmClock(START + 2 * DAY + 5), A).diffs


def test_an_operator_confirms_a_clock_that_the_log_ran_ahead_of() -> None:
    wrong = START + 365 * DAY
    state = committed(committed(initial(), START), wrong)
    with pytest.raises(ClockSkew):
        decide(state, Commit(START + 5), A)
    state, time = then(state, ConfirmClock(START + 5))
    assert time == START
    state = committed(committed(state, START + 6), START + 7)
    assert state.meta.upper == wrong + 3, "the log counts on by itself"
    # Retention goes by the time before, until the clock has caught up for a day.
    state = committed(state, START + 364 * DAY)
    assert settled_time(state.meta) == START
    for count in range(17):
        state = committed(state, wrong + 10 + count)
    assert settled_time(state.meta) == START
    state = committed(committed(state, wrong + DAY // 2), wrong + DAY + 100)
    assert settled_time(state.meta) == wrong + DAY + 100
    assert state.meta == Meta(upper=wrong + DAY + 101)
    with pytest.raises(ClockSkew):
        decide(state, Commit(START), A)


def test_a_log_that_ran_ahead_once_more_has_to_be_confirmed_once_more() -> None:
    state = committed(committed(initial(), START), START + 365 * DAY)
    state, _ = then(state, ConfirmClock(START + 5))
    further = replace(state.meta, upper=START + 700 * DAY)
    state = replay(state, state.seqno + 1, b"", [Diff("meta", (), further)])
    with pytest.raises(ClockSkew):
        decide(state, Commit(START + 9), A)
