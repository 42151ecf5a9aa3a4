"""Entries as reads want them: those that can matter to a lookup, and their rows, decoded once."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate

import pyarrow as pa

from strandline.parts.inline import decode_inline
from strandline.parts.schema import TableSchema
from strandline.state.model import Entry, Interval, Key

__all__ = ["Overlay"]

_BYTES_MAX = 64 << 20
"""Decoded rows that are kept: more than the backlog of a few tables."""

_INDEX_FROM = 24
"""Fewer entries are looked at one by one."""


class Overlay:
    """What one handle remembers of entries. Thread-safe.

    An entry never changes, so what is remembered of it is true for ever; the bound on bytes makes
    room for newer ones.
    """

    def __init__(self, *, bytes_max: int = _BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._rows: OrderedDict[Key, tuple[pa.Table, int]] = OrderedDict()
        self._bytes = 0
        self._indexes: dict[str, _Index] = {}
        self._lock = threading.Lock()

    def rows(self, entry: Entry, schema: TableSchema) -> pa.Table:
        """The inline rows of an entry, sorted by full key, with `__diff` where it has any."""
        key = (entry.table, entry.time, entry.ordinal)
        found = self._rows.get(key)
        if found is not None:
            return found[0]
        table = decode_inline(entry.batch.inline, schema)
        with self._lock:
            if key not in self._rows:
                self._rows[key] = (table, len(entry.batch.inline))
                self._bytes += len(entry.batch.inline)
            while self._bytes > self._bytes_max:
                self._bytes -= self._rows.popitem(last=False)[1][1]
        return table

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
