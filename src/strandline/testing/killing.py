"""Blob and Consensus that end their own process at one call: before it goes out, or after it.

For real processes: the end is SIGKILL. A `Killer` counts the calls by kind, so that a run that
nobody killed tells where others can be::

    killer = Killer()
    location = killing(location, killer)
    killer.arm(Kill("compare_and_set", nth=3, after=True))
"""

from __future__ import annotations

import io
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO, Literal, NoReturn, cast

import pyarrow as pa

from strandline.location import Location
from strandline.location.blob import Blob, BlobInfo
from strandline.location.consensus import Consensus, Queueing, Record

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["Kill", "Killer", "KillingBlob", "KillingConsensus", "KillingQueue", "Kind", "killing"]

Kind = Literal[
    "get",
    "get_range",
    "put",
    "upload begin",
    "upload write",
    "upload commit",
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
class Kill:
    """Where a process ends: at the `nth` call of a kind, from 1."""

    kind: Kind
    nth: int
    after: bool
    """Once the call was made and before its caller hears of it; else right before it is made."""


class Killer:
    """Counts calls by kind, and ends the process at the one that it is armed for. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: Counter[Kind] = Counter()
        self._kill: Kill | None = None

    def arm(self, kill: Kill | None) -> None:
        """Counts from 1 again, and ends the process there; never, if None."""
        with self._lock:
            self._calls.clear()
            self._kill = kill

    @property
    def calls(self) -> dict[Kind, int]:
        """How many calls of each kind went out since it was armed."""
        with self._lock:
            return dict(self._calls)

    @contextmanager
    def call(self, kind: Kind) -> Iterator[None]:
        """Around one call."""
        with self._lock:
            self._calls[kind] += 1
            kill = self._kill
            here = kill is not None and (kill.kind, kill.nth) == (kind, self._calls[kind])
        if kill is not None and here and not kill.after:
            _die()
        try:
            yield
        finally:  # a call that failed was made, too
            if here:
                _die()


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    while True:  # the signal may be a moment under way to this thread
        signal.pause()


def killing(location: Location, killer: Killer) -> Location:
    """The location, with every call passing the killer."""
    consensus = location.consensus
    passing = KillingQueue if isinstance(consensus, Queueing) else KillingConsensus
    return replace(
        location,
        blob=KillingBlob(location.blob, killer),
        consensus=passing(consensus, killer),
    )


class KillingBlob:
    """A Blob whose calls pass a `Killer`. A listing is one call, made when it is begun."""

    def __init__(self, blob: Blob, killer: Killer) -> None:
        self._blob = blob
        self._killer = killer

    @property
    def near(self) -> bool:
        return self._blob.near

    def get(self, key: str, *, timeout: float) -> bytes:
        with self._killer.call("get"):
            return self._blob.get(key, timeout=timeout)

    def get_range(self, key: str, start: int, length: int, *, timeout: float) -> bytes:
        with self._killer.call("get_range"):
            return self._blob.get_range(key, start, length, timeout=timeout)

    def put(self, key: str, data: bytes, *, timeout: float) -> None:
        with self._killer.call("put"):
            self._blob.put(key, data, timeout=timeout)

    @contextmanager
    def upload(self, key: str, *, timeout: float) -> Iterator[BinaryIO]:
        with ExitStack() as stack:
            with self._killer.call("upload begin"):
                sink = stack.enter_context(self._blob.upload(key, timeout=timeout))
            yield cast("BinaryIO", _Sink(sink, self._killer))
            with self._killer.call("upload commit"):
                stack.close()

    def open(self, key: str, *, timeout: float) -> pa.NativeFile:
        with self._killer.call("open"):
            return self._blob.open(key, timeout=timeout)

    def delete(self, key: str, *, timeout: float) -> bool:
        with self._killer.call("delete"):
            return self._blob.delete(key, timeout=timeout)

    def leftovers(self, before: int, *, delete: bool, timeout: float) -> Sequence[BlobInfo]:
        return self._blob.leftovers(before, delete=delete, timeout=timeout)

    def list(
        self, prefix: str, *, start_after: str | None = None, timeout: float
    ) -> Iterator[BlobInfo]:
        with self._killer.call("list"):
            found = [*self._blob.list(prefix, start_after=start_after, timeout=timeout)]
        yield from found

    def close(self) -> None:
        self._blob.close()


class KillingConsensus:
    """A Consensus whose calls pass a `Killer`."""

    def __init__(self, consensus: Consensus, killer: Killer) -> None:
        self._consensus = consensus
        self._killer = killer

    def head(self, shard: str, *, timeout: float) -> Record | None:
        with self._killer.call("head"):
            return self._consensus.head(shard, timeout=timeout)

    def compare_and_set(self, shard: str, expected: int, data: bytes, *, timeout: float) -> bool:
        with self._killer.call("compare_and_set"):
            return self._consensus.compare_and_set(shard, expected, data, timeout=timeout)

    def scan(self, shard: str, from_seqno: int, limit: int, *, timeout: float) -> Sequence[Record]:
        with self._killer.call("scan"):
            return self._consensus.scan(shard, from_seqno, limit, timeout=timeout)

    def truncate(self, shard: str, before_seqno: int, *, timeout: float) -> int:
        with self._killer.call("truncate"):
            return self._consensus.truncate(shard, before_seqno, timeout=timeout)

    def keys(self, *, timeout: float) -> Sequence[str]:
        with self._killer.call("keys"):
            return self._consensus.keys(timeout=timeout)

    def close(self) -> None:
        self._consensus.close()


class KillingQueue(KillingConsensus):
    """One whose writers queue up: as without a killer, so that some die while it is their turn.

    To queue up is no call: it changes nothing that is stored.
    """

    def turn(self, *, timeout: float) -> AbstractContextManager[None]:
        return cast("Queueing", self._consensus).turn(timeout=timeout)


class _Sink(io.RawIOBase):
    """Writes to the sink of an upload, each write a call."""

    def __init__(self, sink: BinaryIO, killer: Killer) -> None:
        super().__init__()
        self._sink = sink
        self._killer = killer

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._sink.tell()

    def write(self, data: ReadableBuffer) -> int:
        with self._killer.call("upload write"):
            return self._sink.write(data)
