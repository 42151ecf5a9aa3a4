"""Blob and Consensus that fail on purpose, when and how a test decides.

Every call passes `Faults.meet` before it is made: there a simulator can let another actor run, and
there it is decided, from nothing but the call, whether and how it fails::

    faults = Faults(lambda call: FAIL_AFTER if call.kind == "put" else None)
    blob = FaultyBlob(MemoryBlob(store, env), faults)
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO, Literal, TypeVar

import pyarrow as pa

from strandline.errors import LocationError, StrandlineError
from strandline.location.blob import Blob, BlobInfo
from strandline.location.consensus import Consensus, Record

__all__ = [
    "FAIL_AFTER",
    "FAIL_BEFORE",
    "LATE",
    "LOST",
    "TWICE",
    "TWICE_OTHER",
    "Call",
    "Fault",
    "Faults",
    "FaultyBlob",
    "FaultyConsensus",
    "flip_a_bit",
    "raising",
]

T = TypeVar("T")

Kind = Literal[
    "get",
    "get_range",
    "put",
    "upload",
    "open",
    "delete",
    "list",
    "head",
    "compare_and_set",
    "scan",
    "truncate",
    "keys",
]


@dataclass(frozen=True, slots=True)
class Call:
    """One call: its number among all that passed the same `Faults`, from 1, and its subject."""

    number: int
    port: Literal["blob", "consensus"]
    kind: Kind
    key: str
    """The object's key, the prefix of a listing, or the shard; empty for `keys`."""

    seqno: int | None = None
    """Of a Consensus call: expected, from or before."""

    size: int | None = None
    """Bytes that are to be written."""

    changes: bool = False
    """Whether the call can change what is stored."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with one call. The fields apply in this order, and can be combined."""

    delay_seconds: float = 0.0
    """Given to `Faults.wait` before anything else."""

    before: Callable[[Call], BaseException] | None = None
    """Raised instead of making the call. It did not happen."""

    late: bool = False
    """The caller is told of an unknown outcome, and the call waits in `Faults.late` to be made."""

    twice: bool = False
    """The call is made, and then once more; the caller gets the first answer."""

    other: bool = False
    """With `twice`: the caller gets the second answer, as from a client library that repeats a
    request by itself and meets its own first try."""

    corrupt: Callable[[bytes], bytes] | None = None
    """Changes the bytes that a read returns, not those that are stored."""

    after: Callable[[Call], BaseException] | None = None
    """Raised after the call was made. It happened."""


def raising(*, may_have_happened: bool) -> Callable[[Call], LocationError]:
    """Makes the error of a storage that fails."""

    def error(call: Call) -> LocationError:
        message = f"call {call.number}, {call.kind} of {call.key!r}, failed on purpose"
        return LocationError(message, may_have_happened=may_have_happened)

    return error


FAIL_BEFORE = Fault(before=raising(may_have_happened=False))
"""A definite failure: nothing happened, and the caller knows it."""

LOST = Fault(before=raising(may_have_happened=True))
"""The request is lost: nothing happened, and the caller does not know it."""

FAIL_AFTER = Fault(after=raising(may_have_happened=True))
"""The answer is lost: it happened, and the caller does not know it."""

LATE = Fault(late=True)
TWICE = Fault(twice=True)
TWICE_OTHER = Fault(twice=True, other=True)


def flip_a_bit(position: int) -> Callable[[bytes], bytes]:
    """Flips the bit at `position`, counted around the end."""

    def flip(data: bytes) -> bytes:
        if not data:
            return data
        changed = bytearray(data)
        at = position % (8 * len(data))
        changed[at // 8] ^= 1 << (at % 8)
        return bytes(changed)

    return flip


class Faults:
    """The one place that all calls of a location pass.

    `decide` is given every call before it is made, in the order in which they come, and may
    block: a simulator switches actors in it. It should depend on nothing but the call and the
    calls before. `wait` is given a fault's delay; by default the delay is only counted.
    """

    def __init__(
        self,
        decide: Callable[[Call], Fault | None] = lambda _: None,
        wait: Callable[[Call, float], None] = lambda _call, _seconds: None,
    ) -> None:
        self._decide = decide
        self._wait = wait
        self._lock = threading.Lock()
        self._number = 0
        self.counts: Counter[str] = Counter()
        """How many calls of each kind there were."""

        self.waited_seconds = 0.0
        self.late: list[tuple[Call, Callable[[], object]]] = []
        """Calls of which the caller was told that their outcome is unknown, not made yet."""

    def meet(
        self,
        port: Literal["blob", "consensus"],
        kind: Kind,
        key: str,
        *,
        seqno: int | None = None,
        size: int | None = None,
        changes: bool = False,
    ) -> tuple[Call, Fault]:
        """Counts the call, and says what goes wrong with it. Raises what goes wrong before it."""
        with self._lock:
            self._number += 1
            self.counts[kind] += 1
            call = Call(self._number, port, kind, key, seqno, size, changes)
        fault = self._decide(call) or _NOTHING
        if fault.delay_seconds:
            self.waited_seconds += fault.delay_seconds
            self._wait(call, fault.delay_seconds)
        if fault.before is not None:
            raise fault.before(call)
        return call, fault

    def run(self, call: Call, fault: Fault, act: Callable[[], T]) -> T:
        """Makes the call as the fault wants it."""
        if fault.late:
            self.late.append((call, act))
            raise raising(may_have_happened=True)(call)
        answer = act()
        if fault.twice and fault.other:
            answer = act()
        elif fault.twice:
            with suppress(StrandlineError):
                act()
        if fault.after is not None:
            raise fault.after(call)
        return answer

    def land(self, index: int = 0) -> Call:
        """Makes one of the late calls now; nobody hears of its answer."""
        call, act = self.late.pop(index)
        with suppress(StrandlineError):
            act()
        return call


_NOTHING = Fault()


class FaultyBlob:
    """A Blob whose calls meet `Faults`.

    An `upload` meets them when its block ends, as that is when it happens; one that would be late
    or made twice is made once and in time. A listing meets them when it begins.
    """

    def __init__(self, blob: Blob, faults: Faults) -> None:
        self._blob = blob
        self._faults = faults

    @property
    def near(self) -> bool:
        return self._blob.near

    def get(self, key: str, *, timeout: float) -> bytes:
        call, fault = self._faults.meet("blob", "get", key)
        data = self._faults.run(call, fault, lambda: self._blob.get(key, timeout=timeout))
        return fault.corrupt(data) if fault.corrupt else data

    def get_range(self, key: str, start: int, length: int, *, timeout: float) -> bytes:
        call, fault = self._faults.meet("blob", "get_range", key)
        data = self._faults.run(
            call, fault, lambda: self._blob.get_range(key, start, length, timeout=timeout)
        )
        return fault.corrupt(data) if fault.corrupt else data

    def put(self, key: str, data: bytes, *, timeout: float) -> None:
        call, fault = self._faults.meet("blob", "put", key, size=len(data), changes=True)
        self._faults.run(call, fault, lambda: self._blob.put(key, data, timeout=timeout))

    @contextmanager
    def upload(self, key: str, *, timeout: float) -> Iterator[BinaryIO]:
        with self._blob.upload(key, timeout=timeout) as sink:
            yield sink
            call, fault = self._faults.meet("blob", "upload", key, changes=True)
        if fault.after is not None:
            raise fault.after(call)

    def open(self, key: str, *, timeout: float) -> pa.NativeFile:
        call, fault = self._faults.meet("blob", "open", key)
        file = self._faults.run(call, fault, lambda: self._blob.open(key, timeout=timeout))
        if fault.corrupt is None:
            return file
        with file:
            return pa.BufferReader(fault.corrupt(file.read()))

    def delete(self, key: str, *, timeout: float) -> bool:
        call, fault = self._faults.meet("blob", "delete", key, changes=True)
        return self._faults.run(call, fault, lambda: self._blob.delete(key, timeout=timeout))

    def leftovers(self, before: int, *, delete: bool, timeout: float) -> Sequence[BlobInfo]:
        return self._blob.leftovers(before, delete=delete, timeout=timeout)

    def list(
        self, prefix: str, *, start_after: str | None = None, timeout: float
    ) -> Iterator[BlobInfo]:
        call, fault = self._faults.meet("blob", "list", prefix)
        yield from self._faults.run(
            call,
            fault,
            lambda: self._blob.list(prefix, start_after=start_after, timeout=timeout),
        )

    def close(self) -> None:
        self._blob.close()


class FaultyConsensus:
    """A Consensus whose calls meet `Faults`."""

    def __init__(self, consensus: Consensus, faults: Faults) -> None:
        self._consensus = consensus
        self._faults = faults

    def head(self, shard: str, *, timeout: float) -> Record | None:
        call, fault = self._faults.meet("consensus", "head", shard)
        head = self._faults.run(call, fault, lambda: self._consensus.head(shard, timeout=timeout))
        return None if head is None else _corrupted([head], fault)[0]

    def compare_and_set(self, shard: str, expected: int, data: bytes, *, timeout: float) -> bool:
        call, fault = self._faults.meet(
            "consensus", "compare_and_set", shard, seqno=expected, size=len(data), changes=True
        )
        return self._faults.run(
            call,
            fault,
            lambda: self._consensus.compare_and_set(shard, expected, data, timeout=timeout),
        )

    def scan(self, shard: str, from_seqno: int, limit: int, *, timeout: float) -> Sequence[Record]:
        call, fault = self._faults.meet("consensus", "scan", shard, seqno=from_seqno)
        records = self._faults.run(
            call, fault, lambda: self._consensus.scan(shard, from_seqno, limit, timeout=timeout)
        )
        return _corrupted(records, fault)

    def truncate(self, shard: str, before_seqno: int, *, timeout: float) -> int:
        call, fault = self._faults.meet(
            "consensus", "truncate", shard, seqno=before_seqno, changes=True
        )
        return self._faults.run(
            call, fault, lambda: self._consensus.truncate(shard, before_seqno, timeout=timeout)
        )

    def keys(self, *, timeout: float) -> Sequence[str]:
        call, fault = self._faults.meet("consensus", "keys", "")
        return self._faults.run(call, fault, lambda: self._consensus.keys(timeout=timeout))

    def close(self) -> None:
        self._consensus.close()


def _corrupted(records: Sequence[Record], fault: Fault) -> Sequence[Record]:
    """The records with the last one changed: the newest is what a reader acts on."""
    if fault.corrupt is None or not records:
        return records
    last = records[-1]
    return [*records[:-1], Record(last.seqno, fault.corrupt(last.data))]
