"""Blob and Consensus in the memory of one process: for tests, examples and the simulator."""

from __future__ import annotations

import io
import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

import pyarrow as pa

from strandline.env import Env
from strandline.location.blob import BlobExists, BlobInfo, BlobMissing
from strandline.location.consensus import Record
from strandline.location.keys import check_key, range_of

__all__ = ["MemoryBlob", "MemoryConsensus", "MemoryStore"]


class MemoryStore:
    """What the handles on one in-memory location share: its objects and its logs."""

    _named: dict[str, MemoryStore] = {}  # noqa: RUF012  shared by design: one store per name
    _naming = threading.Lock()

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.logs: dict[str, list[Record]] = {}
        self.claimant: tuple[int, int] | None = None
        """The handle and the thread that have the right of way."""

    @classmethod
    def named(cls, name: str) -> MemoryStore:
        """The process's one store of that name, empty at first; it lives as long as the process."""
        with cls._naming:
            return cls._named.setdefault(name, cls())


class MemoryBlob:
    """A handle on the objects of a `MemoryStore`."""

    near = True

    def __init__(self, store: MemoryStore, env: Env) -> None:
        self._store = store
        self._env = env

    def get(self, key: str, *, timeout: float) -> bytes:
        found = self._store.objects.get(check_key(key))
        if found is None:
            raise BlobMissing(key)
        return found[0]

    def get_range(self, key: str, start: int, length: int, *, timeout: float) -> bytes:
        data = self.get(key, timeout=timeout)
        begin, end = range_of(len(data), start, length)
        return data[begin:end]

    def put(self, key: str, data: bytes, *, timeout: float) -> None:
        check_key(key)
        # A copy, should the caller go on to write into a buffer of its own.
        stored = (bytes(data), self._env.now_micros())
        with self._store.lock:
            if key in self._store.objects:
                raise BlobExists(key)
            self._store.objects[key] = stored

    @contextmanager
    def upload(self, key: str, *, timeout: float) -> Iterator[BinaryIO]:
        check_key(key)
        sink = _Sink()
        yield sink
        self.put(key, sink.getvalue(), timeout=timeout)

    def open(self, key: str, *, timeout: float) -> pa.NativeFile:
        return pa.BufferReader(self.get(key, timeout=timeout))

    def delete(self, key: str, *, timeout: float) -> bool:
        check_key(key)
        with self._store.lock:
            return self._store.objects.pop(key, None) is not None

    def list(
        self, prefix: str, *, start_after: str | None = None, timeout: float
    ) -> Iterator[BlobInfo]:
        with self._store.lock:
            found = [
                BlobInfo(key, len(data), modified)
                for key, (data, modified) in self._store.objects.items()
                if key.startswith(prefix) and (start_after is None or key > start_after)
            ]
        # Python compares strings by code point, which is the order of their UTF-8 bytes.
        found.sort(key=lambda info: info.key)
        yield from found

    def leftovers(self, before: int, *, delete: bool, timeout: float) -> Sequence[BlobInfo]:
        return ()

    def close(self) -> None:
        """Nothing to give back: the store belongs to its name."""


class _Sink(io.BytesIO):
    """Keeps what was written when a library closes the sink that it was handed."""

    def close(self) -> None:
        """Leaves the buffer readable."""


class MemoryConsensus:
    """A handle on the logs of a `MemoryStore`."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def head(self, shard: str, *, timeout: float) -> Record | None:
        with self._store.lock:
            log = self._store.logs.get(shard)
            return log[-1] if log else None

    def compare_and_set(self, shard: str, expected: int, data: bytes, *, timeout: float) -> bool:
        record = Record(expected + 1, bytes(data))
        with self._store.lock:
            log = self._store.logs.get(shard)
            if (log[-1].seqno if log else 0) != expected:
                return False
            if log is None:
                self._store.logs[shard] = [record]
            else:
                log.append(record)
            return True

    def scan(self, shard: str, from_seqno: int, limit: int, *, timeout: float) -> Sequence[Record]:
        with self._store.lock:
            log = self._store.logs.get(shard, [])
            begin = bisect_left(log, from_seqno, key=_seqno)
            return log[begin : begin + max(0, limit)]

    def truncate(self, shard: str, before_seqno: int, *, timeout: float) -> int:
        with self._store.lock:
            log = self._store.logs.get(shard, [])
            count = min(bisect_left(log, before_seqno, key=_seqno), max(0, len(log) - 1))
            del log[:count]
            return count

    def keys(self, *, timeout: float) -> Sequence[str]:
        with self._store.lock:
            return sorted(self._store.logs)

    def claim(self) -> bool:
        with self._store.lock:
            if self._store.claimant is None:
                self._store.claimant = self._here()
            return self._store.claimant == self._here()

    def release(self) -> None:
        with self._store.lock:
            if self._store.claimant == self._here():
                self._store.claimant = None

    def claimed(self) -> bool:
        return self._store.claimant not in {None, self._here()}

    def _here(self) -> tuple[int, int]:
        return id(self), threading.get_ident()

    def close(self) -> None:
        """Gives up the right of way; the store itself belongs to its name."""
        with self._store.lock:
            if self._store.claimant is not None and self._store.claimant[0] == id(self):
                self._store.claimant = None


def _seqno(record: Record) -> int:
    return record.seqno
