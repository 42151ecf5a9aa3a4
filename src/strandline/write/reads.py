"""What a transaction has read, as intervals of keys, and what of it has to be unchanged."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pyarrow as pa

from strandline.parts.files.inline import decode_inline
from strandline.parts.typed import typed
from strandline.state.commands import Read, Write
from strandline.state.model import EVERYTHING, Batch, Interval, TableVersion
from strandline.state.plan import united
from strandline.txn.handle import Handle
from strandline.write.edits import touches
from strandline.write.proof import Concerns

__all__ = ["Reads"]

_READS_MAX = 1_024
"""Intervals of a table that are remembered before they are united."""


class Reads:
    """What one transaction has read of tables that others know, too. Thread-safe."""

    def __init__(self, *, snapshot: bool) -> None:
        self._snapshot = snapshot
        """Whether only what is written as well has to be unchanged."""
        self._seen: dict[str, list[Interval]] = {}
        self._merged: list[Read] = []
        self._lock = threading.Lock()

    def saw(self, table: str, intervals: Sequence[Interval] | None) -> None:
        """Remembers that these keys of the table (None: all) were read."""
        with self._lock:
            seen = self._seen.setdefault(table, [])
            if seen == [EVERYTHING]:
                return
            seen += [EVERYTHING] if intervals is None else intervals
            if EVERYTHING in seen:
                seen[:] = [EVERYTHING]
            elif len(seen) > _READS_MAX and len(seen) & (len(seen) - 1) == 0:
                seen[:] = united(seen)

    def merge(self, reads: Sequence[Read]) -> None:
        """Takes up what staged writes were computed from."""
        self._merged += reads

    def to_be_unchanged(
        self, since: int, writes: Sequence[tuple[TableVersion, Write]]
    ) -> list[Read]:
        """What nobody may have written from that time on, if these writes are to be committed."""
        seen = {table: united(intervals) for table, intervals in self._seen.items() if intervals}
        if self._snapshot:
            seen = _written(seen, writes)
        own = [Read(table, since, tuple(both)) for table, both in seen.items() if both]
        return [*own, *self._merged]

    def concerns(self, handle: Handle, writes: Sequence[tuple[TableVersion, Write]]) -> Concerns:
        """Whether it matters that others changed some keys among those that were read."""
        # Of what was merged it is known what matters, not for which isolation.
        merged = {read.table for read in self._merged}

        def matters(table: str, keys: pa.Table) -> bool:
            return (
                not self._snapshot
                or table in merged
                or any(
                    touches(handle, version, write.batch, keys)
                    for version, write in writes
                    if write.table == table
                )
            )

        return matters


def _written(
    seen: dict[str, list[Interval]], writes: Sequence[tuple[TableVersion, Write]]
) -> dict[str, list[Interval]]:
    """What of it is written as well."""
    written: dict[str, list[Interval]] = {}
    for version, write in writes:
        if write.table in seen:
            written.setdefault(write.table, []).extend(_keys_of(version, write.batch))
    return {table: _common(seen[table], united(keys)) for table, keys in written.items()}


def _keys_of(version: TableVersion, batch: Batch) -> Iterator[Interval]:
    """Intervals that have all keys of a batch, and while it is small little else."""
    if batch.inline:
        schema, codec = typed(version)
        rows = decode_inline(batch.inline, schema)
        for key in dict.fromkeys(codec.encode_rows(rows, range(rows.num_rows))):
            yield Interval(key, key + b"\0")
    for part in batch.parts:
        yield part.span


def _common(some: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """What two lists of ascending, disjoint intervals have in common."""
    found: list[Interval] = []
    left, right = 0, 0
    while left < len(some) and right < len(others):
        one, other = some[left], others[right]
        both = one.intersect(other)
        if both is not None:
            found.append(both)
        if other.upper is None or (one.upper is not None and one.upper <= other.upper):
            left += 1
        else:
            right += 1
    return found
