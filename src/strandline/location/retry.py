"""Trying again where that cannot do harm, and until the deadline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO, TypeVar

import pyarrow as pa

from strandline.env import Deadline, Env, retry_delays
from strandline.errors import DeadlineExceeded, LocationError
from strandline.location.blob import Blob, BlobExists, BlobInfo, BlobMissing
from strandline.location.consensus import Claims, Consensus, Queueing, Record
from strandline.location.failures import Lasting

__all__ = ["RetryingBlob", "RetryingConsensus", "each_try"]

T = TypeVar("T")

_FIRST_SECONDS = 0.01
_MOST_SECONDS = 2.0
_AGAIN_SECONDS = 60.0
"""From the first failure on, where there is more time: upkeep has a day, and what has failed for a
minute is worth hearing of."""

_ANSWERS = (BlobExists, BlobMissing)
_FINAL = (DeadlineExceeded, Lasting)


def _persistently(env: Env, call: Callable[[float], T], timeout: float) -> T:
    """What `call` returns, given the seconds that are left, on the first try that does not fail.

    When there is no time for another try, the last failure is raised: it tells more than that
    the time is up. It says whether any of the tries may have happened.
    """
    deadline = Deadline(env, timeout)
    last: Deadline | None = None
    delays = iter(retry_delays(env, first_seconds=_FIRST_SECONDS, most_seconds=_MOST_SECONDS))
    may_have_happened = False
    while True:
        try:
            return call(deadline.remaining())
        except _ANSWERS:
            raise
        except LocationError as error:
            may_have_happened |= error.may_have_happened
            last = last or Deadline(env, min(deadline.remaining(), _AGAIN_SECONDS))
            delay = next(delays)
            if isinstance(error, _FINAL) or delay >= last.remaining():
                error.may_have_happened = may_have_happened
                raise
        env.sleep(delay)


class RetryingBlob:
    """A Blob of which a call fails only when it keeps failing until the deadline, or for a minute.

    An `upload` is not repeated: what was written to it is not there any more.
    """

    def __init__(self, blob: Blob, env: Env) -> None:
        self._blob = blob
        self._env = env

    @property
    def near(self) -> bool:
        return self._blob.near

    def get(self, key: str, *, timeout: float) -> bytes:
        return self._again(lambda left: self._blob.get(key, timeout=left), timeout)

    def get_range(self, key: str, start: int, length: int, *, timeout: float) -> bytes:
        return self._again(
            lambda left: self._blob.get_range(key, start, length, timeout=left), timeout
        )

    def put(self, key: str, data: bytes, *, timeout: float) -> None:
        unknown = False

        def put(left: float) -> None:
            nonlocal unknown
            try:
                self._blob.put(key, data, timeout=left)
            except BlobExists:
                # SUBTLE: the object may be our own, from a try whose outcome we were not told.
                # Keys are unique, so equal bytes can only be that; and were they another's, the
                # object would be there all the same, whole and as it should be. What cannot
                # be read now is not settled: that error is raised instead, and the put repeated.
                if not unknown:
                    raise
                if not self._holds(key, data, left):
                    raise
            except LocationError as error:
                unknown |= error.may_have_happened
                raise

        self._again(put, timeout)

    def upload(self, key: str, *, timeout: float) -> AbstractContextManager[BinaryIO]:
        return self._blob.upload(key, timeout=timeout)

    def open(self, key: str, *, timeout: float) -> pa.NativeFile:
        return self._again(lambda left: self._blob.open(key, timeout=left), timeout)

    def delete(self, key: str, *, timeout: float) -> bool:
        return self._again(lambda left: self._blob.delete(key, timeout=left), timeout)

    def leftovers(self, before: int, *, delete: bool, timeout: float) -> Sequence[BlobInfo]:
        return self._again(
            lambda left: self._blob.leftovers(before, delete=delete, timeout=left), timeout
        )

    def list(
        self, prefix: str, *, start_after: str | None = None, timeout: float
    ) -> Iterator[BlobInfo]:
        """Goes on after the last object that was listed, where a listing breaks.

        Every object has the whole `timeout`: how long the caller takes over one is not the
        listing's business.
        """
        last = start_after
        whole: Iterator[BlobInfo] | None = None

        def following(left: float) -> BlobInfo | None:
            nonlocal whole
            listing = whole or self._blob.list(prefix, start_after=last, timeout=left)
            whole = None  # if it breaks now
            found = next(listing, None)
            whole = listing
            return found

        while (info := self._again(following, timeout)) is not None:
            last = info.key
            yield info

    def close(self) -> None:
        self._blob.close()

    def _again(self, call: Callable[[float], T], timeout: float) -> T:
        return _persistently(self._env, call, timeout)

    def _holds(self, key: str, data: bytes, timeout: float) -> bool:
        try:
            return self._blob.get(key, timeout=timeout) == data
        except BlobMissing:
            return False  # it was there, and was deleted


def each_try(blob: Blob, call: Callable[[Blob, float], T], timeout: float) -> T:
    """What `call` returns, given a Blob that tries once and the seconds that are left.

    It is called as often as the Blob itself would try: for who has to know of each try.
    """
    if isinstance(blob, RetryingBlob):
        return _persistently(
            blob._env,  # noqa: SLF001  of this module
            lambda left: call(blob._blob, left),  # noqa: SLF001  of this module
            timeout,
        )
    return call(blob, timeout)


class RetryingConsensus:
    """A Consensus of which reads and truncations fail only if they fail for as long as that.

    A `compare_and_set` is never repeated here: only who made the record can tell, by its id,
    whether a record found in the slot is the one from before. What the Consensus offers besides
    (`Queueing`, `Claims`) is offered as it is.
    """

    def __init__(self, consensus: Consensus, env: Env) -> None:
        self._consensus = consensus
        self._env = env
        # A claim and a turn are a thread's, and nothing but speed and fairness rests on them. They
        # are attributes of the object, for `isinstance` to find there just what is offered.
        if isinstance(consensus, Queueing):
            self.turn = consensus.turn
        if isinstance(consensus, Claims):
            self.claim = consensus.claim
            self.release = consensus.release
            self.claimed = consensus.claimed

    def head(self, shard: str, *, timeout: float) -> Record | None:
        return self._again(lambda left: self._consensus.head(shard, timeout=left), timeout)

    def compare_and_set(self, shard: str, expected: int, data: bytes, *, timeout: float) -> bool:
        return self._consensus.compare_and_set(shard, expected, data, timeout=timeout)

    def scan(self, shard: str, from_seqno: int, limit: int, *, timeout: float) -> Sequence[Record]:
        return self._again(
            lambda left: self._consensus.scan(shard, from_seqno, limit, timeout=left), timeout
        )

    def truncate(self, shard: str, before_seqno: int, *, timeout: float) -> int:
        """As the port says; of a truncation that took several tries, the count is of the last."""
        return self._again(
            lambda left: self._consensus.truncate(shard, before_seqno, timeout=left), timeout
        )

    def keys(self, *, timeout: float) -> Sequence[str]:
        return self._again(lambda left: self._consensus.keys(timeout=left), timeout)

    def close(self) -> None:
        self._consensus.close()

    def _again(self, call: Callable[[float], T], timeout: float) -> T:
        return _persistently(self._env, call, timeout)
