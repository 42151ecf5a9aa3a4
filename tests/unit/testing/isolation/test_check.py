"""The checker of histories: it finds each kind of mistake, and takes what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.testing.isolation.check import violations
from strandline.testing.isolation.history import Did, Predicate, Row, Saw, Wrote, point
from strandline.transaction import Isolation

ALL: tuple[Isolation, ...] = ("snapshot", "serializable", "strict serializable")
STRONG = ALL[1:]


def did(name: str, begin: int, end: int | None, *steps: Any, **more: Any) -> Did:
    """One that wrote is committed at `end`; of a process of its own unless that is said."""
    more = {"process": name, "isolation": "strict serializable", **more}
    if any(isinstance(step, Wrote) for step in steps):
        more.setdefault("time", end)
    return Did(name, begin=begin, end=end, steps=steps, **more)


def put(key: int, value: int | None, table: str = "a") -> Wrote:
    return Wrote(table, (key,), value)


def got(key: int, value: int | None = None, by: str = "", table: str = "a") -> Saw:
    return Saw(point(table, (key,)), () if value is None else (Row((key,), value, by),))


def ranged(lower: int, upper: int, *rows: Row) -> Saw:
    return Saw(Predicate("a", (lower,), (upper,)), rows)


FIRST = did("first", 0, 10, put(1, 100), put(2, 100), put(1, 100, "b"))


def kinds(*history: Did) -> set[str]:
    return {found.kind for found in violations([FIRST, *history])}


def named(kind: str, *history: Did) -> set[str]:
    """The transactions that a violation of that kind is said to be between."""
    found = [v for v in violations([FIRST, *history]) if v.kind == kind]
    assert found, violations([FIRST, *history])
    for violation in found:
        assert all(name in violation.message for name in violation.names)
    return set(found[0].names)


@pytest.mark.parametrize("isolation", ALL)
def test_transactions_one_after_the_other_are_fine(isolation: Isolation) -> None:
    more = {"isolation": isolation, "process": "p"}
    assert not kinds(
        did("a", 11, 20, got(1, 100, "first"), put(1, 101), got(1, 101, "a"), **more),
        did("b", 21, 30, got(1, 101, "a"), put(1, None), got(1), put(3, 1), **more),
        did("c", 31, 40, ranged(0, 9, Row((2,), 100, "first"), Row((3,), 1, "b")), **more),
    )


@pytest.mark.parametrize("isolation", ALL)
def test_a_lost_update_is_found(isolation: Isolation) -> None:
    one = did("one", 11, 20, got(1, 100, "first"), put(1, 101), isolation=isolation)
    two = did("two", 12, 21, got(1, 100, "first"), put(1, 102), isolation=isolation)
    assert named("lost update", one, two) == {"one", "two"}


@pytest.mark.parametrize("isolation", ALL)
def test_of_two_that_insert_what_was_not_there_one_is_lost(isolation: Isolation) -> None:
    one = did("one", 11, 20, got(5), put(5, 1), isolation=isolation)
    two = did("two", 12, 21, got(5), put(5, 2), isolation=isolation)
    assert "lost update" in kinds(one, two)


@pytest.mark.parametrize("isolation", ALL)
def test_blind_writes_lose_nothing(isolation: Isolation) -> None:
    more: dict[str, Any] = {"isolation": isolation}
    assert not kinds(did("one", 11, 20, put(1, 1), **more), did("two", 12, 21, put(1, 2), **more))


def skewed(one: Isolation, two: Isolation) -> tuple[Did, Did]:
    both = (got(1, 100, "first"), got(2, 100, "first"))
    return (
        did("one", 11, 20, *both, put(1, 0), isolation=one),
        did("two", 12, 21, *both, put(2, 0), isolation=two),
    )


def test_write_skew_is_found_where_both_are_serializable() -> None:
    for one in STRONG:
        for two in STRONG:
            assert named("write skew", *skewed(one, two)) == {"one", "two"}


def test_write_skew_is_allowed_where_one_is_a_snapshot() -> None:
    assert not kinds(*skewed("snapshot", "snapshot"))
    assert not kinds(*skewed("snapshot", "serializable"))
    assert not kinds(*skewed("serializable", "snapshot"))


@pytest.mark.parametrize("isolation", STRONG)
def test_a_phantom_is_found(isolation: Isolation) -> None:
    one = did("one", 11, 20, ranged(5, 9), put(7, 0), isolation=isolation)
    two = did("two", 12, 21, ranged(5, 9), put(8, 0), isolation=isolation)
    assert named("phantom", one, two) == {"one", "two"}
    apart = did("two", 12, 21, ranged(10, 19), put(18, 0), isolation=isolation)
    assert not kinds(one, apart)


def test_a_phantom_is_allowed_under_snapshot() -> None:
    one = did("one", 11, 20, ranged(5, 9), put(7, 0), isolation="snapshot")
    two = did("two", 12, 21, ranged(5, 9), put(8, 0), isolation="snapshot")
    assert not kinds(one, two)


def test_a_phantom_of_a_predicate_is_found() -> None:
    """Rows that come to match by an update, and no row that does not."""
    poor = Saw(Predicate("a", least=0, below=50), ())
    one = did("one", 11, 20, poor, put(1, 10))
    two = did("two", 12, 21, poor, put(2, 10))
    assert named("phantom", one, two) == {"one", "two"}
    rich = did("two", 12, 21, poor, put(2, 60))
    assert not kinds(one, rich)


def test_a_row_that_leaves_a_predicate_is_a_dependency() -> None:
    rows = (Row((1,), 100, "first"), Row((2,), 100, "first"))
    full = Saw(Predicate("a", least=50), rows)
    one, two = did("one", 11, 20, full, put(1, 10)), did("two", 12, 21, full, put(2, 10))
    assert named("write skew", one, two) == {"one", "two"}


def test_a_cycle_of_three_is_found() -> None:
    more: dict[str, Any] = {"isolation": "serializable"}
    one = did("one", 11, 20, got(1, 100, "first"), put(2, 7), **more)
    two = did("two", 12, 21, got(3), put(1, 7), **more)
    three = did("three", 13, 22, got(2, 100, "first"), put(3, 7), **more)
    assert named("cycle", one, two, three) == {"one", "two", "three"}
    snapshot = did("three", 13, 22, got(2, 100, "first"), put(3, 7), isolation="snapshot")
    assert not kinds(one, two, snapshot)


def test_what_only_reads_may_close_a_cycle() -> None:
    """Fekete, O'Neil, O'Neil: a reader sees the batch closed, and not what still goes into it."""
    more: dict[str, Any] = {"isolation": "serializable"}
    deposit = did("deposit", 11, 30, got(1, 100, "first"), put(2, 7), **more)
    close = did("close", 12, 20, got(3), put(1, 0), **more)
    look = did("look", 21, 25, got(1, 0, "close"), got(2, 100, "first"), **more)
    assert "deposit" in named("cycle", deposit, close, look)
    assert not kinds(deposit, close)


def test_a_stale_read_is_one_only_where_time_counts() -> None:
    write = did("write", 11, 20, put(1, 101))
    late = (25, 30, got(1, 100, "first"))
    assert named("stale read", write, did("look", *late)) == {"write", "look"}
    assert not kinds(write, did("look", *late, isolation="serializable"))
    assert not kinds(write, did("look", 15, 30, got(1, 100, "first")))


def test_a_row_that_is_missed_late_is_a_stale_read() -> None:
    write = did("write", 11, 20, put(7, 1))
    assert named("stale read", write, did("look", 25, 30, ranged(5, 9))) == {"write", "look"}


def test_time_counts_over_what_lies_between() -> None:
    """`look` misses one that ended long before it began, with others on the way."""
    others = [did(f"other{n}", 21 + n, 22 + n, put(50 + n, n), process="o") for n in range(20)]
    write = did("write", 11, 20, put(1, 101))
    look = did("look", 60, 70, got(1, 100, "first"))
    assert named("stale read", write, *others, look) == {"write", "look"}


@pytest.mark.parametrize("isolation", ALL)
def test_reads_of_one_process_never_go_back(isolation: Isolation) -> None:
    more: dict[str, Any] = {"isolation": isolation, "process": "p"}
    write = did("write", 11, 20, put(1, 101), isolation="serializable")
    new = did("new", 21, 22, got(1, 101, "write"), **more)
    old = did("old", 23, 24, got(1, 100, "first"), **more)
    assert named("non-monotonic read", write, new, old) == {"new", "old"}
    elsewhere = did("old", 23, 24, got(1, 100, "first"), isolation="serializable")
    assert not kinds(write, new, elsewhere)


@pytest.mark.parametrize("isolation", ALL)
def test_who_wrote_something_sees_it_later(isolation: Isolation) -> None:
    more: dict[str, Any] = {"isolation": isolation, "process": "p"}
    write = did("write", 11, 20, put(1, 101), **more)
    look = did("look", 21, 22, got(1, 100, "first"), **more)
    assert named("non-monotonic read", write, look) == {"write", "look"}


@pytest.mark.parametrize("isolation", ALL)
def test_a_dirty_read_is_found(isolation: Isolation) -> None:
    more: dict[str, Any] = {"isolation": isolation}
    write = did("write", 11, 20, put(1, 101), put(1, 102))
    look = did("look", 21, 22, got(1, 101, "write"), **more)
    assert named("dirty read", write, look) == {"write", "look"}
    unknown = did("write", 11, None, put(1, 101), outcome="unknown")
    assert named("dirty read", unknown, look) == {"write", "look"}
    later = did("write", 30, 40, put(1, 101))
    assert named("dirty read", later, look) == {"write", "look"}
    assert named("read from nowhere", look) == {"look"}


@pytest.mark.parametrize("isolation", ALL)
def test_an_aborted_read_is_found(isolation: Isolation) -> None:
    write = did("write", 11, 20, put(1, 101), outcome="aborted", time=None)
    look = did("look", 21, 22, got(1, 101, "write"), isolation=isolation)
    assert named("aborted read", write, look) == {"write", "look"}


@pytest.mark.parametrize("isolation", ALL)
def test_a_fractured_read_over_two_tables_is_found(isolation: Isolation) -> None:
    write = did("write", 11, 20, put(1, 101), put(1, 99, "b"))
    reads = (got(1, 101, "write"), got(1, 100, "first", "b"))
    look = did("look", 15, 22, *reads, isolation=isolation)
    assert named("fractured read", write, look) == {"write", "look"}
    turned = did("look", 15, 22, *reversed(reads), isolation=isolation)
    assert named("fractured read", write, turned) == {"write", "look"}


@pytest.mark.parametrize("isolation", ALL)
def test_a_fuzzy_read_is_found(isolation: Isolation) -> None:
    """Also of one that aborts: what it did next may have rested on it."""
    write, more = did("write", 11, 20, put(1, 101)), did("more", 21, 30, put(2, 101))
    reads = (got(1, 100, "first"), got(2, 101, "more"))
    look = did("look", 15, 32, *reads, isolation=isolation, outcome="aborted")
    assert named("fuzzy read", write, more, look) == {"write", "more", "look"}
    twice = did("look", 15, 32, reads[0], got(1, 101, "write"), isolation=isolation)
    assert named("fuzzy read", write, twice) == {"write", "look"}


def test_a_row_that_comes_and_goes_is_missed_before_and_after() -> None:
    there = did("there", 11, 20, put(7, 1))
    gone = did("gone", 21, 30, put(7, None))
    between = did("between", 31, 40, put(1, 101))
    look: dict[str, Any] = {"isolation": "serializable"}
    assert not kinds(there, gone, between, did("look", 11, 50, ranged(5, 9), **look))
    late = did("look", 11, 50, ranged(5, 9), got(1, 101, "between"), **look)
    assert not kinds(there, gone, between, late)
    during = did("during", 22, 25, put(2, 5))
    seen = (ranged(5, 9), got(2, 5, "during"), got(1, 100, "first"))
    assert not kinds(there, gone, between, during, did("look", 11, 50, *seen, **look))
    after = did("after", 20, 21, put(2, 5))
    end = did("end", 22, 29, put(2, 6))
    while_there = did("look", 11, 50, ranged(5, 9), got(2, 5, "after"), **look)
    found = kinds(there, gone, after, end, while_there)
    assert found == {"fuzzy read"}


def test_what_was_written_is_seen_within() -> None:
    assert kinds(did("one", 11, 20, put(1, 5), got(1, 100, "first"))) == {"own write"}
    assert kinds(did("one", 11, 20, put(7, 5), ranged(5, 9))) == {"own write"}
    assert kinds(did("one", 11, 20, put(1, None), got(1, 100, "first"))) == {"own write"}


def test_rows_that_were_not_asked_for_and_rows_seen_twice_are_found() -> None:
    row = Row((1,), 100, "first")
    assert kinds(did("one", 11, 20, ranged(0, 2, row, row))) == {"doubled row"}
    assert kinds(did("one", 11, 20, ranged(5, 9, row))) == {"wrong row"}
    assert kinds(did("one", 11, 20, Saw(Predicate("a", below=50), (row,)))) == {"wrong row"}


def test_a_moment_that_is_said_is_held_against_what_was_seen() -> None:
    write = did("write", 11, 20, put(1, 101))
    reads = (got(1, 100, "first"),)
    assert not kinds(write, did("look", 12, 30, *reads, at=19))
    assert named("wrong moment", write, did("look", 12, 30, *reads, at=20)) == {"look"}


def test_two_commits_of_one_time_are_found() -> None:
    one, two = did("one", 11, 20, put(5, 1)), did("two", 12, 20, put(6, 1))
    assert named("one time", one, two) == {"one", "two"}


def test_an_outcome_that_nobody_was_told_is_fine_once_it_was_asked_for() -> None:
    """Killed after its commit: known to have happened, and nobody knows when it ended."""
    lost = did("lost", 11, None, got(1, 100, "first"), put(1, 101), time=20)
    assert not kinds(lost, did("look", 12, 13, got(1, 100, "first")))
    assert not kinds(lost, did("look", 30, 31, got(1, 101, "lost")))
    never = did("never", 11, None, put(1, 101), outcome="aborted", time=None)
    assert not kinds(never, did("look", 30, 31, got(1, 100, "first")))
