"""Verifies parts whole before Spark's own Parquet reader gets them.

That reader knows page checksums, which do not cover the headers of pages, and takes any Parquet
file for the one that it was told to read. So what it is given is read once by us: in this process
if it is little, else as tasks on the executors, so that not one process reads a whole table. A
process remembers which files it verified, and asks only if they were written to since.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from strandline.env import Deadline
from strandline.location import BlobMissing
from strandline.parts.files.opened import FileState
from strandline.pipeline.site import (
    RESULT,
    Site,
    checked_results,
    guarded,
    result_batch,
)
from strandline.pipeline.watching import watched
from strandline.state.model import Part
from strandline.txn.handle import Handle

__all__ = ["verify_parts"]

_HERE_BYTES_MAX = 512 << 20
"""What one process verifies by itself: a fraction of a second's work on a few cores."""

_TASK_BYTES = 64 << 20
"""Bytes that one task verifies, about."""

_REMEMBERED_MAX = 200_000

_verified: dict[tuple[str, str, int], FileState] = {}
"""The state of the files that this process verified, by place, key, and checksum of the footer."""


def verify_parts(
    spark: SparkSession, handle: Handle, site: Site, parts: Sequence[Part], deadline: Deadline
) -> None:
    """Returns if every byte of the parts of a directory is what was written.

    Raises `Corruption` naming a part that is damaged, `BlobMissing` for one that is not there.
    """
    # SUBTLE: looked at before they are read. A write in between is then either seen by the one who
    # reads, or leaves the file in another state than the one that is remembered.
    states = {part.key: _state_of(site.url, part) for part in parts}
    due = [part for part in parts if not _is_verified(site.url, part, states[part.key])]
    if sum(part.size for part in due) <= _HERE_BYTES_MAX:
        reader = handle.store.reader
        handle.store.env.parallel(lambda p: reader.verify(p, deadline), due)
    else:
        _on_executors(spark, handle, site, due, deadline)
    for part in due:
        state = states[part.key]
        if state is not None and state.is_settled(handle.store.env):
            if len(_verified) >= _REMEMBERED_MAX:
                _verified.clear()
            _verified[site.url, part.key, part.footer_crc] = state


def _is_verified(url: str, part: Part, state: FileState | None) -> bool:
    return state is not None and _verified.get((url, part.key, part.footer_crc)) == state


def _state_of(url: str, part: Part) -> FileState | None:
    try:
        return FileState.of(os.lstat(f"{url}/{part.key}"))
    except OSError:  # whoever reads it says what is the matter
        return None


def _on_executors(
    spark: SparkSession, handle: Handle, site: Site, parts: Sequence[Part], deadline: Deadline
) -> None:
    shares = _shares(parts)
    rows = [(number, bytearray(pickle.dumps(share))) for number, share in enumerate(shares)]
    frame = spark.createDataFrame(rows, "number int, parts binary")
    tasks = frame.repartitionById(len(rows), "number").mapInArrow(_Verifying(site), RESULT)
    with watched(spark, handle.store.env, "verifying", lambda *_: None, deadline):
        results = checked_results(tasks.collect())
    for missing in filter(None, results):
        raise BlobMissing(missing.decode())


def _shares(parts: Sequence[Part]) -> list[list[Part]]:
    """The parts in groups of about as many bytes as a task shall read."""
    shares: list[list[Part]] = [[]]
    size = 0
    for part in parts:
        if shares[-1] and size + part.size > _TASK_BYTES:
            shares.append([])
            size = 0
        shares[-1].append(part)
        size += part.size
    return shares


@dataclass(frozen=True)
class _Verifying:
    """Verifies the parts that a task gets; the key of one that is missing is what it returns."""

    site: Site

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for parts in batch.column("parts").to_pylist():
                yield result_batch(*guarded(lambda parts=parts: self._verify(parts)))  # type: ignore[misc]

    def _verify(self, pickled: bytes) -> bytes:
        reader = self.site.workplace().reader
        for part in pickle.loads(pickled):  # noqa: S301  from our own driver
            try:
                reader.verify(part, self.site.deadline())
            except BlobMissing as error:
                return error.key.encode()
        return b""
