"""Nothing of a part is decoded that is not what was written.

Parquet's page checksums cover the contents of pages, not their headers; and a header that tells of
a value more or less than there is makes readers shift or drop values without a word. So between
the last page and Parquet's own footer a part has a table of its *chunks* (a chunk is all pages of
one column in one row group, headers included): their lengths, then their CRC-32s, little endian
uint32 each. Every chunk is verified by it on every read, before a decoder sees it. Readers that
know nothing of the table skip it, and still have the page checksums.
"""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from strandline.errors import Corruption
from strandline.parts.crc import combined
from strandline.state.model import Part

__all__ = ["ChunkRecorder", "Chunks", "Window", "damaged"]


def damaged(part: Part, why: str) -> Corruption:
    """The error for a part whose bytes are not what was written."""
    return Corruption(
        f"the part {part.key} is damaged: {why}; restore it from a copy", object=part.key
    )


@dataclass(frozen=True)
class Chunks:
    """Where each chunk of a part begins, ascending, where the last one ends, and checksums."""

    bounds: Sequence[int]
    checksums: Sequence[int]

    def to_bytes(self) -> bytes:
        """The table as it is stored."""
        lengths = np.diff(np.array(self.bounds, dtype=np.int64)).astype("<u4")
        checksums = np.array(self.checksums, dtype="<u4")
        return lengths.tobytes() + checksums.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, count: int, start: int) -> Chunks:
        """The `count` chunks of a table at the beginning of `data`; the first is at `start`."""
        lengths, checksums = np.frombuffer(data, "<u4", 2 * count).reshape(2, count)
        ends = start + np.cumsum(lengths, dtype=np.int64)
        return cls([start, *ends.tolist()], checksums.tolist())


class ChunkRecorder:
    """Takes note of everything that is written, until it is known where chunks begin."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._checksums: list[int] = []

    def wrote(self, data: bytes, end: int) -> None:
        """`data` was written, and the object is `end` bytes long now."""
        self._ends.append(end)
        self._checksums.append(zlib.crc32(data))

    def chunks(self, bounds: Sequence[int]) -> Chunks:
        """The chunks with these bounds. ValueError if one does not fall between two writes."""
        ends = np.array(self._ends, dtype=np.int64)
        lengths = np.diff(ends, prepend=0)
        crcs = np.array(self._checksums, dtype=np.uint32)
        at = np.searchsorted(ends, np.array(bounds, dtype=np.int64))
        if not np.array_equal(ends[at], bounds):
            raise ValueError("a chunk begins inside of what was written at once")
        # Writes number first .. last are those of a chunk.
        first, last = at[:-1] + 1, at[1:]
        total = crcs[first]
        for step in range(1, int((last - first).max(initial=0)) + 1):
            more = first + step <= last
            places = (first + step)[more]
            total[more] = combined(total[more], crcs[places], lengths[places])
        return Chunks(list(bounds), total.tolist())


class Window:
    """Memory as large as a part, into which its chunks are put at their places, once verified.

    Arrow decodes out of it. A file object in Python would do as well, if it were not for Arrow's
    threads: they would need the interpreter's lock to read and to let go of what was read, wait
    for one another, and abort the process when they do so while it is ending. What was never put
    there takes no memory, and what was decoded gives it back.

    Not for several threads at once.
    """

    def __init__(self, part: Part, source: pa.NativeFile, chunks: Chunks, width: int) -> None:
        """`width`: how many chunks a row group has."""
        self._part = part
        self._source = source
        self._bounds = chunks.bounds
        self._checksums = chunks.checksums
        self._width = width
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._memory = mmap.mmap(-1, chunks.bounds[-1], flags=private)
        self._view = memoryview(self._memory)
        self.file = pa.BufferReader(pa.py_buffer(self._memory))
        """The part, as far as it is loaded."""

    @contextmanager
    def loaded(self, groups: Sequence[int], leaves: Sequence[int]) -> Iterator[None]:
        """While this is open, `file` has these columns of these row groups (both ascending)."""
        runs = list(self._runs(groups, leaves))
        try:
            for first, last in runs:
                self._load(first, last)
            yield
        finally:
            for first, last in runs:
                start = self._bounds[first] & -mmap.PAGESIZE
                self._memory.madvise(mmap.MADV_DONTNEED, start, self._bounds[last] - start)

    def close(self) -> None:
        """Closes the file that the bytes come from."""
        self._source.close()

    def _runs(self, groups: Sequence[int], leaves: Sequence[int]) -> Iterator[tuple[int, int]]:
        """The chunks, as ranges of neighbours, which are read at once."""
        first = last = -1
        for group in groups:
            for leaf in leaves:
                chunk = group * self._width + leaf
                if chunk != last:
                    if last >= 0:
                        yield first, last
                    first = chunk
                last = chunk + 1
        if last >= 0:
            yield first, last

    def _load(self, first: int, last: int) -> None:
        bounds, view = self._bounds, self._view
        start, end = bounds[first], bounds[last]
        self._source.seek(start)
        while start < end:
            taken = self._source.readinto(view[start:end])
            if not taken:
                raise damaged(self._part, f"it ends at byte {start}")
            start += taken
        for chunk in range(first, last):
            data = view[bounds[chunk] : bounds[chunk + 1]]
            if zlib.crc32(data) != self._checksums[chunk]:
                raise damaged(
                    self._part,
                    f"bytes {bounds[chunk]} to {bounds[chunk + 1]} do not have their checksum",
                )
