"""The Blob port: a durable map from key to bytes; a key is written once and never changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import pyarrow as pa

from strandline.errors import LocationError

__all__ = ["Blob", "BlobExists", "BlobInfo", "BlobMissing"]


class BlobExists(LocationError):
    """A put found its key taken: by another writer, or by its own first try."""

    kind = "exists"

    def __init__(self, key: str) -> None:
        super().__init__(f"the object {key} exists already", may_have_happened=False)
        self.key = key


class BlobMissing(LocationError):
    """A definite "not found": the only answer that counts as absence."""

    kind = "missing"

    def __init__(self, key: str) -> None:
        super().__init__(f"there is no object {key}", may_have_happened=False)
        self.key = key


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """What a listing tells of an object: key, size in bytes, last change in µs.

    The last change is by the location's clock.
    """

    key: str
    size: int
    modified: int


class Blob(Protocol):
    """Contract (`strandline.testing.blob_contract` holds every adapter to it):

    - A key that was put is there, whole and durable, once `put` or the end of `upload` returned;
      before that a reader sees either nothing or all of it.
    - Every put creates: of several at once exactly one succeeds, the others raise `BlobExists`
      and change nothing.
    - `BlobMissing` is raised only when the key is certainly absent; any other failure is a
      `LocationError` that says whether the thing may have happened.
    - `list` is in ascending order of the keys' UTF-8 bytes and shows every object that was put
      before it began and not deleted before it ended.
    - Safe for use from many threads. `timeout` is in seconds.
    """

    @property
    def near(self) -> bool:
        """Whether a read mostly ends sooner than another thread would begin one beside it."""

    def get(self, key: str, *, timeout: float) -> bytes:
        """All bytes of the object; `BlobMissing` when there is none."""

    def get_range(self, key: str, start: int, length: int, *, timeout: float) -> bytes:
        """Bytes `start` to `start + length`, fewer at the object's end.

        A negative `start` counts from the end.
        """

    def put(self, key: str, data: bytes, *, timeout: float) -> None:
        """Creates the object; `BlobExists` when the key is taken."""

    def upload(self, key: str, *, timeout: float) -> AbstractContextManager[BinaryIO]:
        """A sink for a large object in bounded memory.

        The object appears when the block ends (`BlobExists` then, if the key is taken) and not
        at all when it raises.
        """

    def open(self, key: str, *, timeout: float) -> pa.NativeFile:
        """The object as a seekable Arrow file, for readers that fetch only what they need."""

    def delete(self, key: str, *, timeout: float) -> bool:
        """Removes the object; False when it was not there. Deleting twice is harmless."""

    def list(
        self, prefix: str, *, start_after: str | None = None, timeout: float
    ) -> Iterator[BlobInfo]:
        """The objects whose keys begin with `prefix` and sort after `start_after`."""

    def leftovers(self, before: int, *, delete: bool, timeout: float) -> Sequence[BlobInfo]:
        """What writers have left of objects that they did not finish, under names that are no keys.

        Only what did not change since `before` (µs, by the location's clock), and whose writer is
        not seen to be alive. With `delete` that is gone afterwards, and what could not be deleted
        is left out. Was its writer alive all the same, its put or upload raises a `LocationError`,
        and did not happen.
        """

    def close(self) -> None:
        """Gives back what the handle holds."""
