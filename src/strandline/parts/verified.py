"""A part as a file of which nothing can be read that is not what was written.

Parquet's page checksums cover the contents of pages, not their headers; and a header that tells of
a value more or less than there is makes readers shift or drop values without a word. So between
the last page and Parquet's own footer a part has a table of its *chunks* (a chunk is all pages of
one column in one row group, headers included): their lengths, then their CRC-32s, little endian
uint32 each. This file verifies every chunk that is read of it, before a decoder sees it. Readers
that know nothing of the table skip it, and still have the page checksums.
"""

from __future__ import annotations

import io
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from strandline.errors import Corruption
from strandline.parts.crc import combined
from strandline.state.model import Part

__all__ = ["ChunkRecorder", "Chunks", "VerifiedFile", "damaged"]


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


class VerifiedFile(io.RawIOBase):
    """What Arrow reads a part through. Not for several threads at once."""

    def __init__(self, part: Part, source: pa.NativeFile, chunks: Chunks, tail: bytes) -> None:
        self._part = part
        self._source = source
        self._bounds = chunks.bounds
        self._checksums = chunks.checksums
        self._tail = tail
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._part.size)[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes | memoryview:
        """Bytes of whole chunks as they are; parts of some are cut out of them."""
        start = self._at
        end = self._part.size if size is None or size < 0 else min(start + size, self._part.size)
        self._at = end
        footer = self._bounds[-1]
        if start >= footer:
            return self._tail[start - footer : end - footer]
        if end > footer or start < self._bounds[0]:
            raise ValueError("a read across the borders of a part's pages")
        first = bisect_right(self._bounds, start) - 1
        last = bisect_right(self._bounds, end - 1)
        begin, finish = self._bounds[first], self._bounds[last]
        data: bytes = self._source.read_at(finish - begin, begin)
        self._verify(data, first, last)
        if (begin, finish) == (start, end):
            return data
        return memoryview(data)[start - begin : end - begin]

    def _verify(self, data: bytes, first: int, last: int) -> None:
        bounds = self._bounds
        if len(data) == bounds[last] - bounds[first]:
            if last == first + 1:
                if zlib.crc32(data) == self._checksums[first]:
                    return
            else:
                view, base = memoryview(data), bounds[first]
                pieces = (view[bounds[i] - base : bounds[i + 1] - base] for i in range(first, last))
                if [*map(zlib.crc32, pieces)] == list(self._checksums[first:last]):
                    return
        raise damaged(
            self._part, f"bytes {bounds[first]} to {bounds[last]} do not have their checksum"
        )

    def close(self) -> None:
        if not self.closed:
            self._source.close()
        super().close()
