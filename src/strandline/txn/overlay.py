"""Entries as reads want them: those that can matter to a lookup, and their rows, decoded once."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import pyarrow as pa

from strandline.parts.files.inline import decode_inline, decode_together
from strandline.parts.keys import KeyCodec, clip
from strandline.parts.rows.sort import sort_table
from strandline.parts.schema import TIME, TableSchema
from strandline.state.model import Entry, Interval

__all__ = ["Block", "Cover", "Overlay"]

_BYTES_MAX = 64 << 20
"""Decoded rows that are kept: more than the backlog of a few tables."""

_TABLE_BYTES = 1 << 10
"""What a table takes besides its rows, about."""

_INDEX_FROM = 24
"""Fewer entries are looked at one by one."""

_BLOCKS = (64, 8)
"""How many entries are read as one. What comes after is gathered by eight, and then by more: so
each is sorted twice, and a long backlog is a few tables."""


@dataclass(frozen=True, slots=True)
class Block:
    """The rows of neighbouring entries, with `__time`, and `__diff` if any has it; by full key."""

    last: int
    """The time of the last of these entries."""
    data: pa.Table


class Cover:
    """Which entries of a view are in which blocks. Immutable."""

    def __init__(
        self, entries: tuple[Entry, ...], places: Sequence[tuple[int, int, Block]]
    ) -> None:
        """`places`: from where to where among the entries each block is; ascending."""
        self._entries = entries
        self._places = places
        self._firsts = [entries[start].time for start, _, _ in places]
        self._blocks = [block for _, _, block in places]
        bounds = [0, *(at for start, end, _ in places for at in (start, end)), len(entries)]
        self._rest = [
            entry
            for start, end in zip(bounds[::2], bounds[1::2], strict=True)
            for entry in entries[start:end]
            if entry.batch.rows
        ]

    def block_of(self, entry: Entry) -> Block | None:
        """The block that has the entry's rows, None if it is to be read by itself."""
        at = bisect_right(self._firsts, entry.time) - 1
        if at < 0 or entry.time > self._blocks[at].last or not _may_gather(entry):
            return None
        return self._blocks[at]

    def holding(self, intervals: Sequence[Interval], codec: KeyCodec) -> list[Entry]:
        """The entries that have a row in an interval; of those in no block, that may have one."""
        found = [entry for entry in self._rest if _meets(entry, intervals)]
        for start, end, block in self._places:
            rows = clip(block.data, intervals, codec)
            if rows.num_rows:
                # Each entry of a block has a time of its own.
                times = set(rows.column(TIME).to_pylist())
                found += [entry for entry in self._entries[start:end] if entry.time in times]
        found.sort(key=lambda entry: (entry.time, entry.ordinal))
        return found

    def newest(
        self, intervals: Sequence[Interval], codec: KeyCodec
    ) -> tuple[Sequence[Entry], bool]:
        """The same for one key of which the newest row alone counts; whether a block has any.

        Then nothing counts that is older than all entries.
        """
        found = [entry for entry in self._rest if _meets(entry, intervals)]
        for start, end, block in reversed(self._places):
            rows = clip(block.data, intervals, codec)
            if rows.num_rows:
                time = rows.column(TIME)[-1].as_py()  # they are sorted by key, then by time
                found += [entry for entry in self._entries[start:end] if entry.time == time]
                found.sort(key=lambda entry: (entry.time, entry.ordinal))
                return found, True
        return found, False


class Overlay:
    """What one handle remembers of entries. Thread-safe.

    An entry never changes, so what is remembered of it is true for ever; the bound on bytes makes
    room for newer ones.
    """

    def __init__(self, *, bytes_max: int = _BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._tables: OrderedDict[_Made, tuple[pa.Table, int]] = OrderedDict()
        self._bytes = 0
        self._indexes: dict[str, _Index] = {}
        self._covers: dict[str, tuple[tuple[Entry, ...], int, Cover]] = {}
        self._lock = threading.Lock()

    def rows(self, entry: Entry, schema: TableSchema) -> pa.Table:
        """The inline rows of an entry, sorted by full key, with `__diff` where it has any."""
        made = (entry.table, entry.time, entry.ordinal, 1, schema.version)
        return self._remembered(made, lambda: decode_inline(entry.batch.inline, schema))

    def cover(self, table: str, entries: tuple[Entry, ...], schema: TableSchema) -> Cover:
        """Those of a view's entries that can be read together, in blocks."""
        found = self._covers.get(table)
        if found is not None and found[0] is entries and found[1] == schema.version:
            return found[2]
        places = []
        for start, end in _runs(entries):
            at = start
            for size in _BLOCKS:
                while end - at >= size:
                    places.append((at, at + size, self._block(entries[at : at + size], schema)))
                    at += size
        cover = Cover(entries, places)
        self._covers[table] = (entries, schema.version, cover)
        return cover

    def _block(self, entries: tuple[Entry, ...], schema: TableSchema) -> Block:
        # SUBTLE: what begins with one entry and has that many has the same ones each time, because
        # a new commit is later than all others.
        first = entries[0]
        made = (first.table, first.time, first.ordinal, len(entries), schema.version)
        data = self._remembered(
            made,
            lambda: sort_table(decode_together(entries, schema), schema.keys, then=(TIME,)),
        )
        return Block(entries[-1].time, data)

    def _remembered(self, made: _Made, make: Callable[[], pa.Table]) -> pa.Table:
        found = self._tables.get(made)
        if found is not None:
            return found[0]
        table = make().combine_chunks()
        size = table.nbytes + _TABLE_BYTES
        with self._lock:
            if made not in self._tables:
                self._tables[made] = (table, size)
                self._bytes += size
            while self._bytes > self._bytes_max:
                self._bytes -= self._tables.popitem(last=False)[1][1]
        return table

    def holding(
        self,
        table: str,
        entries: tuple[Entry, ...],
        intervals: Sequence[Interval],
        schema: TableSchema,
        codec: KeyCodec,
        *,
        newest: bool = False,
    ) -> tuple[Sequence[Entry], bool]:
        """The same as `touching`, for a few keys: with a look into the rows, where there are many.

        A hundred commits of random keys may all have any key, and one or none of them has it.
        `newest`: there is one key, of which only the newest row counts. Also tells whether what is
        older than all entries does not count then.
        """
        if len(entries) < _INDEX_FROM:
            return self.touching(table, entries, intervals), False
        cover = self.cover(table, entries, schema)
        if newest:
            return cover.newest(intervals, codec)
        return cover.holding(intervals, codec), False

    def touching(
        self, table: str, entries: tuple[Entry, ...], intervals: Sequence[Interval] | None
    ) -> Sequence[Entry]:
        """Those of a view's entries that have rows and may have one in an interval (None: all)."""
        if intervals is None or len(entries) < _INDEX_FROM:
            return [e for e in entries if e.batch.rows and _meets(e, intervals)]
        index = self._indexes.get(table)
        if index is None or index.entries is not entries:
            index = self._indexes[table] = _Index(entries)
        if len(intervals) == 1:
            return index.inside(intervals[0])
        found = {id(e): e for interval in intervals for e in index.inside(interval)}
        return sorted(found.values(), key=lambda e: (e.time, e.ordinal))


_Made = tuple[str, int, int, int, int]
"""What a table was made of: an entry, how many from that one on, and the version of the schema."""


def _may_gather(entry: Entry) -> bool:
    """Whether the entry is committed, and nothing but rows inside of it."""
    return bool(entry.batch.inline) and not entry.batch.parts and bool(entry.session)


def _runs(entries: tuple[Entry, ...]) -> Iterator[tuple[int, int]]:
    """From where to where there are only entries that may be gathered, each at its own time.

    Entries of one time are told apart by their order alone, which a table does not keep.
    """
    start = 0
    for at, entry in enumerate(entries):
        alone = _may_gather(entry) and (at == 0 or entries[at - 1].time < entry.time)
        if alone and at + 1 < len(entries):
            # What a transaction wrote itself comes last, as if at the time that it reads.
            alone = entry.time < entries[at + 1].time or not entries[at + 1].session
        if not alone:
            yield start, at
            start = at + 1
    yield start, len(entries)


def _meets(entry: Entry, intervals: Sequence[Interval] | None) -> bool:
    batch = entry.batch
    return intervals is None or any(
        lower <= batch.upper and (upper is None or batch.lower < upper)
        for lower, upper in intervals
    )


class _Index:
    """Entries by the first of their keys. Immutable."""

    def __init__(self, entries: tuple[Entry, ...]) -> None:
        self.entries = entries
        order = sorted((e for e in entries if e.batch.rows), key=lambda e: e.batch.lower)
        self._order = order
        self._lowers = [e.batch.lower for e in order]
        # The greatest key of an entry and of all before it: where it is below an interval, so is
        # everything before.
        self._reaches = list(accumulate((e.batch.upper for e in order), max))

    def inside(self, interval: Interval) -> list[Entry]:
        """The entries that may have a row in the interval, in the order of commits."""
        lower, upper = interval
        start = bisect_left(self._reaches, lower)
        end = len(self._order) if upper is None else bisect_left(self._lowers, upper)
        found = [e for e in self._order[start:end] if e.batch.upper >= lower]
        if len(found) > 1:
            found.sort(key=lambda e: (e.time, e.ordinal))
        return found
