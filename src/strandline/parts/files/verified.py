"""Nothing of a part is decoded that is not what was written.

Parquet's page checksums cover the contents of pages, not their headers; and a header that tells of
a value more or less than there is makes readers shift or drop values without a word. So between
the last page and Parquet's own footer a part has a table of its *chunks* (a chunk is all pages of
one column in one row group, headers included): their lengths, then their CRC-32s, little endian
uint32 each. Every chunk is verified by it on every read, before a decoder sees it. Readers that
know nothing of the table skip it, and still have the page checksums.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from strandline.errors import Corruption
from strandline.parts.files.crc import combined
from strandline.state.model import Part

__all__ = ["Arena", "ChunkRecorder", "Chunks", "Window", "damaged"]


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


class Arena:
    """Memory that chunks are read into, again and again. Not for several threads at once."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._memory = np.empty(size, dtype=np.uint8)
        self.view: memoryview = self._memory.data
        self._buffer: pa.Buffer | None = None

    def as_file(self, start: int, end: int) -> pa.BufferReader:
        """A file of which the bytes from `start` to `end` are the first of this memory.

        SUBTLE: what Arrow is told is a buffer of `end` bytes that would begin `start` bytes before
        the memory. It asks for nothing before `start`, because no chunk that was loaded is there.
        Without the trick each read would need either a file object in Python, for which Arrow's
        threads wait for the interpreter's lock, or fresh memory as large as the part.

        The buffer is kept until the next one is made. A thread of Arrow's may let go of its share
        of it a moment after a read has returned; would that be the last share, the thread would
        need the interpreter's lock for it, and abort a process that is just ending.
        """
        address = self._memory.ctypes.data - start
        self._buffer = pa.foreign_buffer(address, end, self._memory)
        return pa.BufferReader(self._buffer)


class Window:
    """Neighbouring row groups of a part, as a file of which only what is verified is shown."""

    def __init__(
        self,
        part: Part,
        source: pa.NativeFile,
        chunks: Chunks,
        arena: Arena,
        first: int,
        last: int,
    ) -> None:
        """The chunks from `first` to before `last`; the arena has room for them."""
        self._part = part
        self._source = source
        # A thread that reads a local file by its number, with the place in one call, waits for
        # the interpreter less often: that is a tenth of a scan on several threads.
        self._descriptor: int | None = source.fileno() if isinstance(source, pa.OSFile) else None
        self._chunks = chunks
        self._view = arena.view
        self._first, self._last = first, last
        self._start = chunks.bounds[first]
        self.file = arena.as_file(self._start, chunks.bounds[last])
        """The part; of its bytes only those of chunks that were loaded may be read."""

    def verify(self) -> None:
        """Reads and verifies all of it."""
        self._load(self._first, self._last)

    def load(self, wanted: Sequence[int]) -> None:
        """Reads and verifies the chunks `wanted`, ascending."""
        first = 0
        for at in range(1, len(wanted) + 1):
            if at == len(wanted) or wanted[at] != wanted[at - 1] + 1:  # what is together is read so
                self._load(wanted[first], wanted[at - 1] + 1)
                first = at

    def _load(self, first: int, last: int) -> None:
        bounds, checksums = self._chunks.bounds, self._chunks.checksums
        start, end = bounds[first] - self._start, bounds[last] - self._start
        while start < end:
            taken = self._read(start, end)
            if not taken:
                raise damaged(self._part, f"it ends at byte {start + self._start}")
            start += taken
        for chunk in range(first, last):
            data = self._view[bounds[chunk] - self._start : bounds[chunk + 1] - self._start]
            if zlib.crc32(data) != checksums[chunk]:
                raise damaged(
                    self._part,
                    f"bytes {bounds[chunk]} to {bounds[chunk + 1]} do not have their checksum",
                )

    def _read(self, start: int, end: int) -> int:
        """Fills this stretch of the memory, or less of it; how many bytes, 0 at the end."""
        stretch = self._view[start:end]
        if self._descriptor is not None:
            return os.preadv(self._descriptor, [stretch], start + self._start)
        self._source.seek(start + self._start)
        return int(self._source.readinto(stretch))
