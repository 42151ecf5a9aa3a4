"""Commits of several threads in one record: what each is told when its time is over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from strandline.env import Deadline, RealEnv
from strandline.errors import DeadlineExceeded
from strandline.state.commands import Commit, CommitGroup, CommitResult
from strandline.txn.grouping import CommitQueue
from tests.support.deadlines import within

LONG = 60.0


class Log:
    """A machine that writes each record once it is told to."""

    def __init__(self) -> None:
        self.under_way = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.records: list[tuple[int, ...]] = []

    def submit(self, command: CommitGroup, _: Deadline, *, note: Any) -> list[CommitResult]:
        self.under_way.release()
        assert self.go_on.acquire(timeout=LONG)
        self.records.append(tuple(commit.clock for commit in command.commits))
        return [CommitResult(commit.clock) for commit in command.commits]


class Waiting(list[Any]):
    """Tells of each commit that begins to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.came = threading.Semaphore(0)

    def append(self, item: Any) -> None:
        super().append(item)
        self.came.release()


class Asked(threading.Thread):
    """A commit in a thread of its own; its clock is its name."""

    def __init__(self, queue: CommitQueue, clock: int, timeout: float = LONG) -> None:
        super().__init__()
        self.outcome: CommitResult | DeadlineExceeded | None = None
        self._queue, self._clock, self._timeout = queue, clock, timeout
        self.start()

    def run(self) -> None:
        try:
            self.outcome = self._queue.commit(
                Commit(self._clock), {}, deadline=within(self._timeout)
            )
        except DeadlineExceeded as error:
            self.outcome = error

    def ended(self) -> CommitResult | DeadlineExceeded | None:
        self.join(LONG)
        assert not self.is_alive()
        return self.outcome


@contextmanager
def queue_with_a_record_under_way() -> Iterator[tuple[CommitQueue, Log, Waiting, Asked]]:
    log = Log()
    queue = CommitQueue(log, RealEnv(), lambda: (), lambda _: None)  # type: ignore[arg-type]
    first = Asked(queue, 1)
    assert log.under_way.acquire(timeout=LONG)
    queue._waiting = waiting = Waiting()
    yield queue, log, waiting, first


def test_a_commit_whose_time_is_over_while_its_record_is_under_way_may_have_happened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check = CommitQueue._check_done
    with queue_with_a_record_under_way() as (queue, log, waiting, first):
        taken = threading.Event()

        def late(self: CommitQueue, member: Any) -> None:
            assert taken.wait(LONG)
            check(self, member)

        monkeypatch.setattr(CommitQueue, "_check_done", late)
        leader = Asked(queue, 2)
        assert waiting.came.acquire(timeout=LONG)
        member = Asked(queue, 3, timeout=0.0)
        assert waiting.came.acquire(timeout=LONG)
        log.go_on.release()
        assert log.under_way.acquire(timeout=LONG)  # with the record of both
        taken.set()
        told = member.ended()
        assert isinstance(told, DeadlineExceeded)
        assert told.may_have_happened
        log.go_on.release()
        assert (first.ended(), leader.ended()) == (CommitResult(1), CommitResult(2))
        assert log.records == [(1,), (2, 3)], "it did happen"


def test_a_commit_whose_time_is_over_before_its_record_began_did_not_happen() -> None:
    with queue_with_a_record_under_way() as (queue, log, waiting, first):
        member = Asked(queue, 2, timeout=0.0)
        told = member.ended()
        assert isinstance(told, DeadlineExceeded)
        assert not told.may_have_happened
        assert waiting == []
        log.go_on.release()
        assert first.ended() == CommitResult(1)
        log.go_on.release()
        assert Asked(queue, 3).ended() == CommitResult(3)
        assert log.records == [(1,), (3,)]


def test_an_outcome_that_comes_as_the_time_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    check = CommitQueue._check_done
    with queue_with_a_record_under_way() as (queue, log, waiting, first):
        done = threading.Event()

        def late(self: CommitQueue, member: Any) -> None:
            assert done.wait(LONG)
            check(self, member)

        monkeypatch.setattr(CommitQueue, "_check_done", late)
        leader = Asked(queue, 2)
        assert waiting.came.acquire(timeout=LONG)
        member = Asked(queue, 3, timeout=0.0)
        assert waiting.came.acquire(timeout=LONG)
        for _ in range(2):
            log.go_on.release()
        assert (first.ended(), leader.ended()) == (CommitResult(1), CommitResult(2))
        done.set()
        assert member.ended() == CommitResult(3)
