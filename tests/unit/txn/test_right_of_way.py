"""Who is let through, for how long others wait, and that nobody waits for what never comes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from strandline.env import Deadline, RealEnv
from strandline.location.memory import MemoryConsensus, MemoryStore
from strandline.txn.right_of_way import RightOfWay, Tries


class Clock(RealEnv):
    """Time passes only while somebody sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.then: Callable[[], object] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.then()


class Refusing(MemoryConsensus):
    """One whose claims never succeed."""

    def claim(self) -> bool:
        return False


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def other(store: MemoryStore) -> MemoryConsensus:
    return MemoryConsensus(store)


@pytest.fixture
def way(store: MemoryStore, clock: Clock) -> RightOfWay:
    return RightOfWay(MemoryConsensus(store), clock)


def release_at(other: MemoryConsensus, clock: Clock, time: float) -> None:
    if clock.now >= time:
        other.release()


def seconds_given(way: RightOfWay, clock: Clock, deadline: float = 60.0) -> float:
    began = clock.now
    way.give(Deadline(clock, deadline))
    return clock.now - began


def test_nobody_waits_while_nobody_claims(way: RightOfWay, clock: Clock) -> None:
    assert seconds_given(way, clock) == 0.0


def test_a_commit_waits_until_the_claim_is_released(
    way: RightOfWay, clock: Clock, other: MemoryConsensus
) -> None:
    assert other.claim()
    clock.then = partial(release_at, other, clock, clock.now + 0.5)
    assert 0.5 <= seconds_given(way, clock) < 0.51


def test_others_have_half_of_the_time_whoever_claims(
    way: RightOfWay, clock: Clock, other: MemoryConsensus
) -> None:
    waited = 0.0
    began = clock.now
    for _ in range(2_000):
        assert other.claim()
        clock.then = partial(release_at, other, clock, clock.now + 0.3)
        waited += seconds_given(way, clock)
        other.release()
        clock.now += 0.01
    share = waited / (clock.now - began)
    assert 0.4 < share < 0.55


def test_a_claim_that_is_never_released_takes_less_and_less(
    way: RightOfWay, clock: Clock, other: MemoryConsensus
) -> None:
    assert other.claim()
    assert 1.0 <= seconds_given(way, clock) < 1.01
    began, waited = clock.now, 0.0
    for _ in range(10_000):
        clock.now += 0.1
        waited += seconds_given(way, clock)
    assert 1.0 <= waited < 0.02 * (clock.now - began)
    other.release()
    clock.now += 10_000
    assert seconds_given(way, clock) == 0.0
    assert other.claim()
    assert seconds_given(way, clock) >= 1.0, "and others are waited for again"


def test_a_wait_leaves_half_of_the_time_for_the_commit(
    way: RightOfWay, clock: Clock, other: MemoryConsensus
) -> None:
    assert other.claim()
    assert 0.1 <= seconds_given(way, clock, deadline=0.2) < 0.11


def test_the_right_of_way_is_claimed_after_three_tries_and_given_up_in_the_end(
    way: RightOfWay, clock: Clock, other: MemoryConsensus
) -> None:
    with Tries(way, clock, Deadline(clock, 60.0)) as tries:
        for _ in range(3):
            tries.begin()
            assert not other.claimed()
        for _ in range(3):
            tries.begin()
            assert other.claimed()
            clock.now += 0.1
        clock.now += 1.0
        tries.begin()
        assert not other.claimed(), "nobody waits for so long"
        for _ in range(3):
            tries.begin()
        assert other.claimed()
    assert not other.claimed()


def test_who_cannot_claim_goes_on_without(
    store: MemoryStore, clock: Clock, other: MemoryConsensus
) -> None:
    with Tries(RightOfWay(Refusing(store), clock), clock, Deadline(clock, 60.0)) as tries:
        began = clock.now
        for _ in range(4):
            tries.begin()
        assert clock.now - began < 0.1
    assert other.claim()
    way = RightOfWay(MemoryConsensus(store), clock)
    began = clock.now
    assert not way.claim(Deadline(clock, 60.0))
    assert clock.now - began < 8.1
