"""The fault wrappers do what their names say, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandline.env import RealEnv
from strandline.errors import LocationError
from strandline.location.blob import BlobExists, BlobMissing
from strandline.location.consensus import Record
from strandline.location.memory import MemoryBlob, MemoryConsensus, MemoryStore
from strandline.testing.faults import (
    FAIL_AFTER,
    FAIL_BEFORE,
    LATE,
    LOST,
    TWICE,
    Call,
    Fault,
    Faults,
    FaultyBlob,
    FaultyConsensus,
    flip_a_bit,
)


def place(faults: Faults) -> tuple[FaultyBlob, FaultyConsensus, MemoryBlob, MemoryConsensus]:
    store = MemoryStore()
    blob, log = MemoryBlob(store, RealEnv()), MemoryConsensus(store)
    return FaultyBlob(blob, faults), FaultyConsensus(log, faults), blob, log


@pytest.mark.parametrize(
    ("fault", "told", "happened"),
    [
        (FAIL_BEFORE, False, False),
        (LOST, True, False),
        (FAIL_AFTER, True, True),
        (LATE, True, False),
    ],
)
def test_a_fault_decides_what_happens_and_what_is_told(
    fault: Fault, told: bool, happened: bool
) -> None:
    blob, log, stored, kept = place(Faults(lambda _: fault))
    calls: list[Callable[[], object]] = [
        lambda: blob.put("a", b"x", timeout=60),
        lambda: log.compare_and_set("s", 0, b"x", timeout=60),
    ]
    for call in calls:
        with pytest.raises(LocationError, match="on purpose") as caught:
            call()
        assert caught.value.may_have_happened is told
    assert (len(list(stored.list("", timeout=60))) == 1) is happened
    assert (kept.head("s", timeout=60) == Record(1, b"x")) is happened


@pytest.mark.parametrize("fault", [FAIL_BEFORE, LOST, FAIL_AFTER])
def test_an_upload_fails_at_its_end(fault: Fault) -> None:
    blob, _, stored, _ = place(Faults(lambda _: fault))
    wrote = []

    def upload() -> None:
        with blob.upload("a", timeout=60) as sink:
            sink.write(b"x")
            wrote.append(1)

    with pytest.raises(LocationError):
        upload()
    assert wrote == [1]
    assert (len(list(stored.list("", timeout=60))) == 1) is (fault is FAIL_AFTER)


def test_a_late_call_lands_when_it_is_told_to() -> None:
    faults = Faults(lambda _: LATE)
    blob, log, stored, kept = place(faults)
    with pytest.raises(LocationError):
        log.compare_and_set("s", 0, b"late", timeout=60)
    with pytest.raises(LocationError):
        blob.put("a", b"late", timeout=60)
    assert kept.head("s", timeout=60) is None
    assert faults.land().kind == "compare_and_set"
    assert kept.head("s", timeout=60) == Record(1, b"late")
    stored.put("a", b"first", timeout=60)
    # It comes too late, and nobody is there to hear that.
    assert faults.land().kind == "put"
    assert stored.get("a", timeout=60) == b"first"
    assert faults.late == []


def test_a_call_made_twice_gets_the_first_answer() -> None:
    blob, log, stored, kept = place(Faults(lambda _: TWICE))
    blob.put("a", b"x", timeout=60)
    assert log.compare_and_set("s", 0, b"x", timeout=60) is True
    assert stored.get("a", timeout=60) == b"x"
    assert len(kept.scan("s", 0, 9, timeout=60)) == 1
    assert blob.delete("a", timeout=60) is True
    with pytest.raises(BlobMissing):
        blob.get("a", timeout=60)


def test_corruption_is_in_what_is_read_and_not_in_what_is_stored() -> None:
    blob, log, stored, kept = place(Faults(lambda _: Fault(corrupt=flip_a_bit(9))))
    stored.put("a", b"\x00\x00", timeout=60)
    stored.put("empty", b"", timeout=60)
    kept.compare_and_set("s", 0, b"\x00\x00", timeout=60)
    kept.compare_and_set("s", 1, b"\x00\x00", timeout=60)
    assert blob.get("a", timeout=60) == b"\x00\x02"
    assert blob.get_range("a", 1, 1, timeout=60) == b"\x02"
    assert blob.open("a", timeout=60).read() == b"\x00\x02"
    assert blob.get("empty", timeout=60) == b""
    assert log.head("s", timeout=60) == Record(2, b"\x00\x02")
    assert log.scan("s", 0, 9, timeout=60) == [Record(1, b"\x00\x00"), Record(2, b"\x00\x02")]
    assert stored.get("a", timeout=60) == b"\x00\x00"


def test_every_call_is_met_once_and_counted() -> None:
    met: list[Call] = []
    faults = Faults(met.append)
    blob, log, _, _ = place(faults)
    blob.put("a", b"xy", timeout=60)
    with blob.upload("b", timeout=60) as sink:
        sink.write(b"")
    blob.get("a", timeout=60)
    blob.get_range("a", 0, 1, timeout=60)
    blob.open("a", timeout=60)
    list(blob.list("p", timeout=60))
    blob.delete("a", timeout=60)
    log.compare_and_set("s", 0, b"xyz", timeout=60)
    log.head("s", timeout=60)
    log.scan("s", 1, 9, timeout=60)
    log.truncate("s", 2, timeout=60)
    log.keys(timeout=60)
    assert [call.number for call in met] == list(range(1, 13))
    assert set(faults.counts.values()) == {1}
    assert met[0] == Call(1, "blob", "put", "a", None, 2, changes=True)
    assert met[7] == Call(8, "consensus", "compare_and_set", "s", 0, 3, changes=True)
    changing = ["put", "upload", "delete", "compare_and_set", "truncate"]
    assert [call.kind for call in met if call.changes] == changing


def test_a_delay_is_given_to_the_hook_before_the_call() -> None:
    waits: list[tuple[str, float, bool]] = []
    store = MemoryStore()
    stored = MemoryBlob(store, RealEnv())

    def wait(call: Call, seconds: float) -> None:
        waits.append((call.kind, seconds, bool(list(stored.list("", timeout=60)))))

    faults = Faults(lambda _: Fault(delay_seconds=2.5), wait)
    blob = FaultyBlob(stored, faults)
    blob.put("a", b"", timeout=60)
    assert waits == [("put", 2.5, False)]
    assert faults.waited_seconds == 2.5


def test_definite_errors_can_be_raised() -> None:
    blob, _, _, _ = place(Faults(lambda _: Fault(before=lambda call: BlobExists(call.key))))
    with pytest.raises(BlobExists, match="a/b"):
        blob.put("a/b", b"", timeout=60)
