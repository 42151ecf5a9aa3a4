"""What is tried again, what is not, and what a caller is told in the end."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.connect import open_blob, open_location
from strandline.env import RealEnv
from strandline.errors import DeadlineExceeded, LocationError, UsageError
from strandline.location.blob import BlobExists, BlobMissing
from strandline.location.consensus import Claims, Queueing, Record
from strandline.location.failures import Lasting, Refused
from strandline.location.local.blob import FileBlob
from strandline.location.memory import MemoryBlob, MemoryConsensus, MemoryStore
from strandline.location.retry import RetryingBlob, RetryingConsensus
from strandline.location.sqlite.consensus import SqliteConsensus
from strandline.testing.faults import (
    FAIL_AFTER,
    FAIL_BEFORE,
    LATE,
    LOST,
    Call,
    Fault,
    Faults,
    FaultyBlob,
    FaultyConsensus,
)


class Clock(RealEnv):
    """Time passes only while somebody sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds

    def random(self) -> float:
        return 0.5


class Place:
    """A memory store behind faults behind retries."""

    def __init__(self, decide: Callable[[Call], Fault | None]) -> None:
        self.env = Clock()
        self.faults = Faults(decide)
        store = MemoryStore()
        self.stored = MemoryBlob(store, self.env)
        self.blob = RetryingBlob(FaultyBlob(self.stored, self.faults), self.env)
        self.log = RetryingConsensus(FaultyConsensus(MemoryConsensus(store), self.faults), self.env)


def first(count: int, fault: Fault, kind: str = "") -> Callable[[Call], Fault | None]:
    """Lets the first calls (of a kind) fail."""
    left = [count]

    def decide(call: Call) -> Fault | None:
        if kind not in ("", call.kind) or left[0] == 0:
            return None
        left[0] -= 1
        return fault

    return decide


def always(fault: Fault) -> Callable[[Call], Fault | None]:
    return lambda _: fault


@pytest.mark.parametrize("fault", [FAIL_BEFORE, LOST, FAIL_AFTER])
def test_what_is_idempotent_is_tried_again(fault: Fault) -> None:
    calls: list[Callable[[Place], object]] = [
        lambda p: p.blob.get("a", timeout=60),
        lambda p: p.blob.get_range("a", 0, 1, timeout=60),
        lambda p: p.blob.open("a", timeout=60).read(),
        lambda p: p.blob.delete("a", timeout=60),
        lambda p: list(p.blob.list("", timeout=60)),
        lambda p: p.log.head("s", timeout=60),
        lambda p: p.log.scan("s", 0, 1, timeout=60),
        lambda p: p.log.truncate("s", 1, timeout=60),
        lambda p: p.log.keys(timeout=60),
    ]
    for call in calls:
        place = Place(first(3, fault))
        place.stored.put("a", b"x", timeout=1)
        call(place)
        assert place.faults.counts.total() == 4
        assert place.env.slept == [0.005, 0.01, 0.02]


def test_the_last_failure_is_raised_when_time_is_up() -> None:
    for fault, happened in ((FAIL_BEFORE, False), (LOST, True)):
        place = Place(always(fault))
        with pytest.raises(LocationError, match="on purpose") as caught:
            place.blob.get("a", timeout=10)
        assert not isinstance(caught.value, DeadlineExceeded)
        assert caught.value.may_have_happened is happened
        assert 8 < place.env.seconds <= 10
        assert max(place.env.slept) == 1.0


def test_who_has_a_day_hears_of_it_after_a_minute() -> None:
    place = Place(lambda _: FAIL_BEFORE)
    with pytest.raises(LocationError, match="on purpose"):
        place.blob.delete("a", timeout=86_400)
    assert 58 < place.env.seconds <= 60


def test_one_unknown_try_makes_the_whole_unknown() -> None:
    def decide(call: Call) -> Fault:
        return FAIL_AFTER if call.number == 1 else FAIL_BEFORE

    place = Place(decide)
    with pytest.raises(LocationError) as caught:
        place.blob.delete("a", timeout=1)
    assert caught.value.may_have_happened is True


@pytest.mark.parametrize(
    "error",
    [
        BlobExists("a"),
        BlobMissing("a"),
        DeadlineExceeded("late", may_have_happened=False),
        Lasting("the disk is broken", may_have_happened=True),
        Refused("the disk is full"),
        UsageError("no"),
    ],
    ids=lambda error: error.kind,
)
def test_an_answer_is_not_asked_for_again(error: Exception) -> None:
    place = Place(lambda _: Fault(before=lambda _: error))
    calls: list[Callable[[], object]] = [
        lambda: place.blob.get("a", timeout=60),
        lambda: place.blob.put("a", b"", timeout=60),
        lambda: place.log.head("s", timeout=60),
    ]
    for call in calls:
        with pytest.raises(type(error)) as caught:
            call()
        assert caught.value is error
    assert place.faults.counts.total() == 3
    assert place.env.slept == []


@pytest.mark.parametrize("fault", [FAIL_BEFORE, LOST, FAIL_AFTER])
def test_a_put_whose_outcome_is_unknown_is_settled(fault: Fault) -> None:
    place = Place(first(2, fault, "put"))
    place.blob.put("a", b"mine", timeout=60)
    assert place.stored.get("a", timeout=1) == b"mine"


def test_a_late_put_of_our_own_is_our_own() -> None:
    place = Place(first(1, LATE, "put"))
    real = place.env.sleep

    def land_while_sleeping(seconds: float) -> None:
        real(seconds)
        place.faults.land()

    place.env.sleep = land_while_sleeping  # type: ignore[method-assign]  # a test's
    place.blob.put("a", b"mine", timeout=60)
    assert place.faults.counts["put"] == 2


@pytest.mark.parametrize("fault", [LOST, FAIL_BEFORE])
def test_anothers_object_is_not_taken_for_our_own(fault: Fault) -> None:
    place = Place(first(1, fault, "put"))
    place.stored.put("a", b"theirs", timeout=1)
    with pytest.raises(BlobExists):
        place.blob.put("a", b"mine", timeout=60)


def test_after_a_definite_failure_even_equal_bytes_are_anothers() -> None:
    place = Place(first(1, FAIL_BEFORE, "put"))
    place.stored.put("a", b"equal", timeout=1)
    with pytest.raises(BlobExists):
        place.blob.put("a", b"equal", timeout=60)


def test_a_put_that_cannot_be_compared_is_tried_until_it_can() -> None:
    failures = {"put": 1, "get": 2}

    def decide(call: Call) -> Fault | None:
        if failures.get(call.kind):
            failures[call.kind] -= 1
            return FAIL_AFTER
        return None

    place = Place(decide)
    place.blob.put("a", b"mine", timeout=60)
    assert place.faults.counts == {"put": 4, "get": 3}


def test_an_upload_is_not_tried_again() -> None:
    place = Place(lambda _: FAIL_BEFORE)

    def upload() -> None:
        with place.blob.upload("a", timeout=60) as sink:
            sink.write(b"x")

    with pytest.raises(LocationError):
        upload()
    assert place.faults.counts == {"upload": 1}


@pytest.mark.parametrize("fault", [FAIL_BEFORE, LOST, FAIL_AFTER])
def test_a_compare_and_set_is_not_tried_again(fault: Fault) -> None:
    place = Place(first(1, fault))
    with pytest.raises(LocationError):
        place.log.compare_and_set("s", 0, b"x", timeout=60)
    assert place.faults.counts == {"compare_and_set": 1}
    expected = Record(1, b"x") if fault is FAIL_AFTER else None
    assert place.log.head("s", timeout=60) == expected


def test_a_listing_that_breaks_goes_on_after_the_last_object() -> None:
    class Breaking(MemoryBlob):
        breaks = 0

        def list(self, prefix, *, start_after=None, timeout):  # type: ignore[no-untyped-def]  # as is
            for n, info in enumerate(
                super().list(prefix, start_after=start_after, timeout=timeout)
            ):
                if n == 2:
                    self.breaks += 1
                    raise LocationError("the connection broke", may_have_happened=False)
                yield info

    env = Clock()
    blob = Breaking(MemoryStore(), env)
    keys = [f"k{n}" for n in range(9)]
    for key in keys:
        blob.put(key, b"", timeout=1)
    listing = RetryingBlob(blob, env).list("k", start_after="k0", timeout=60)
    assert [info.key for info in listing] == keys[1:]
    assert blob.breaks == 3


def test_a_listing_that_does_not_begin_is_begun_again() -> None:
    class Late(MemoryBlob):
        failures = 2

        def list(self, prefix, **more):  # type: ignore[no-untyped-def]  # as is
            if self.failures:
                self.failures -= 1
                raise LocationError("no connection", may_have_happened=False)
            return super().list(prefix, **more)

    env = Clock()
    blob = Late(MemoryStore(), env)
    blob.put("k", b"", timeout=1)
    listing = RetryingBlob(blob, env).list("k", timeout=60)
    assert [info.key for info in listing] == ["k"]


def test_what_a_consensus_offers_besides_is_offered_and_nothing_more(tmp_path: Path) -> None:
    env = RealEnv()
    store = MemoryStore()
    queue = SqliteConsensus(tmp_path / "log.sqlite", env)
    faulty = FaultyConsensus(MemoryConsensus(store), Faults())
    for consensus, claims, queues in (
        (faulty, False, False),
        (MemoryConsensus(store), True, False),
        (queue, True, True),
    ):
        retrying = RetryingConsensus(consensus, env)
        assert isinstance(retrying, Claims) is claims
        assert isinstance(retrying, Queueing) is queues
    with RetryingConsensus(queue, env).turn(timeout=60):
        assert queue.compare_and_set("s", 0, b"x", timeout=60)
    queue.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ENOSPC])
def test_a_disk_that_fails_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    env = Clock()
    blob = RetryingBlob(FileBlob(tmp_path, env), env)
    blob.put("a", b"x", timeout=60)

    def fails(*_: object, **__: object) -> int:
        raise OSError(code, os.strerror(code))

    def get() -> None:
        blob.get("a", timeout=60)

    def put() -> None:
        blob.put("b", b"y", timeout=60)

    for name, call in (("open", get), ("pread", get), ("fsync", put), ("link", put)):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fails)
            with pytest.raises(Lasting):
                call()
    assert env.slept == []


def test_a_put_whose_sync_failed_is_not_put_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next sync would succeed, and not for what the failed one left out."""
    env = Clock()
    blob = RetryingBlob(FileBlob(tmp_path, env), env)
    blob.put("a", b"x", timeout=60)
    real = os.fsync
    failed: list[int] = []

    def fails_once(descriptor: int) -> None:
        if (tmp_path / "b").exists() and not failed:
            failed.append(descriptor)
            raise OSError(errno.EIO, "on purpose")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fails_once)
    with pytest.raises(LocationError) as caught:
        blob.put("b", b"x", timeout=60)
    assert caught.value.may_have_happened is True
    assert env.slept == []


def test_what_is_short_for_a_moment_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = Clock()
    blob = RetryingBlob(FileBlob(tmp_path, env), env)
    blob.put("a", b"x", timeout=60)
    real, left = os.open, [3]

    def crowded(*args: Any, **options: Any) -> int:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EMFILE, "too many open files")
        return real(*args, **options)

    monkeypatch.setattr(os, "open", crowded)
    assert blob.get("a", timeout=60) == b"x"
    assert env.slept == [0.005, 0.01, 0.02]


@pytest.mark.parametrize("kind", ["directory", "memory"])
def test_what_ships_tries_again(kind: str, tmp_path: Path) -> None:
    """As the simulator does, of which half the processes have just these in front."""
    url = str(tmp_path / "lake") if kind == "directory" else "memory://"
    with sl.connect(url) as db:
        location = db._handle.store.location
        assert isinstance(location.blob, RetryingBlob)
        assert isinstance(location.consensus, RetryingConsensus)
    with open_location(url) as location:
        assert isinstance(location.blob, RetryingBlob)
        assert isinstance(location.consensus, RetryingConsensus)
    assert isinstance(open_blob(url, RealEnv()), RetryingBlob)
