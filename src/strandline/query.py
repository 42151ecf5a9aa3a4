"""Scans: what to read of a table, run anew by each method that gives rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeVar

import pyarrow as pa

from strandline.env import Deadline
from strandline.errors import AsOfTooOld
from strandline.parts.schema import with_times
from strandline.read.question import parts_of
from strandline.read.reading import Reading, anew, united_tables
from strandline.read.want import Want, arrow_of
from strandline.state.model import TableVersion
from strandline.times import told
from strandline.txn.handle import Handle
from strandline.txn.view import View

__all__ = ["Explanation", "Scan"]

A = TypeVar("A")

_BATCH_ROWS = 65_536
"""Rows in a batch of a stream, at most."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a scan would read. `str()` is one line per item."""

    as_of: int
    """The time read, in µs since 1970-01-01 UTC."""
    leaves: int
    """Leaves that are looked into."""
    leaves_total: int
    parts: int
    """Parts that are read, or pieces of them; a part in two leaves counts once."""
    parts_pruned: int
    """Parts with keys in range that statistics show to have no row that matches."""
    entries: int
    """Commits that are not applied yet and may have rows in range."""
    bytes: int
    """Bytes of the parts and entries, at most read."""
    rows: int
    """Rows in them, at most."""
    merged: int
    """Places where rows of several sources have to be merged."""

    def __str__(self) -> str:
        return "\n".join(
            [
                f"as of    {told(self.as_of)}",
                f"leaves   {self.leaves} of {self.leaves_total}",
                f"parts    {self.parts}, pruned by statistics {self.parts_pruned}",
                f"entries  {self.entries} not applied yet",
                f"bytes    {self.bytes:,} at most",
                f"rows     {self.rows:,} at most",
                f"merges   {self.merged}",
            ]
        )


class Scan:
    """Which rows and columns of a table to read, and as of when.

    Nothing is read before a method asks for rows. Each then reads at the scan's `as_of`, or where
    it has none at the latest time of that moment. Rows come sorted by full key. Errors of all of
    them: `UnknownTable` (dropped), `AsOfTooOld`, `AsOfInFuture`, `DeadlineExceeded`, `Corruption`.
    """

    def __init__(
        self,
        handle: Handle,
        view: Callable[[Deadline], View],
        version: TableVersion,
        want: Want,
        *,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> None:
        self._handle = handle
        self._view = view
        self._version = version
        self._want = want
        self._limit = limit
        self._timeout = timeout

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of what comes out."""
        return arrow_of(self._want, self._version)

    def to_arrow(self) -> pa.Table:
        """All rows as a table."""
        return self._taken(self._whole)

    def _whole(self, reading: Reading) -> pa.Table:
        if self._limit is None:
            return reading.table()
        return united_tables(list(self._limited(reading)), reading.question.arrow)

    def to_reader(self) -> pa.RecordBatchReader:
        """All rows as a stream, in bounded memory. It reads as of the moment of this call; if the
        table gives that up before the first rows are taken, as of a later one.

        `timeout` bounds the planning and each wait for data, not the whole of the stream.
        """
        reading = self._reading()
        return pa.RecordBatchReader.from_batches(reading.question.arrow, self._batches(reading))

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """All rows as record batches of up to 65,536 rows, in bounded memory."""
        return self._batches(self._reading())

    def to_pandas(self, *, times: bool = False, **options: Any) -> Any:
        """All rows as a pandas DataFrame; options are those of `pyarrow.Table.to_pandas`.

        `times`: of a raw scan, `__time` as timestamps and not as the integers that it is.
        """
        rows = self.to_arrow()
        return (with_times(rows) if times else rows).to_pandas(**options)

    def to_polars(self) -> Any:
        """All rows as a Polars DataFrame."""
        import polars as pl

        return pl.from_arrow(self.to_arrow())

    def count(self) -> int:
        """How many rows there are; without reading them where the metadata is exact."""
        want = self._want
        if not want.raw:
            first = self._version.row_keys[:1]
            want = Want(first, want.ranges, want.condition, ordered=False)
        rows = self._taken(Reading.count, want)
        return rows if self._limit is None else min(rows, self._limit)

    def explain(self) -> Explanation:
        """What would be read, and what is left out."""
        reading = self._reading()
        view = reading.view
        parts: dict[str, tuple[int, int]] = {}
        pruned: set[str] = set()
        for task in reading.tasks:
            clean = reading.question.is_clean(task)
            for part, _, _ in parts_of(task):
                if reading.question.skips(part, clean=clean):
                    pruned.add(part.key)
                else:
                    parts[part.key] = (part.size, part.rows)
        entries = {id(e): e.batch for task in reading.tasks for e in task.entries}.values()
        inline = [(len(b.inline), b.rows) for b in entries if b.inline]
        sizes = [*parts.values(), *inline]
        return Explanation(
            as_of=view.as_of,
            leaves=len({task.leaf.id for task in reading.tasks}),
            leaves_total=view.data.ask(lambda s: s.leaves.count()),
            parts=len(parts),
            parts_pruned=len(pruned - parts.keys()),
            entries=len(entries),
            bytes=sum(size for size, _ in sizes),
            rows=sum(rows for _, rows in sizes),
            merged=sum(not reading.question.is_clean(task) for task in reading.tasks),
        )

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"<strandline.Scan of {self._version.name!r}: {', '.join(self.schema.names)}>"

    def _taken(self, take: Callable[[Reading], A], want: Want | None = None) -> A:
        """What is taken of a reading before anybody has anything of it."""
        wanted = want or self._want
        deadline = self._handle.deadline(self._timeout)
        return anew(
            self._view(deadline),
            lambda: self._view(deadline),
            lambda view: take(Reading.of(self._handle, view, wanted, deadline)),
        )

    def _reading(self) -> Reading:
        deadline = self._handle.deadline(self._timeout)
        try:
            return Reading.of(self._handle, self._view(deadline), self._want, deadline)
        except AsOfTooOld:  # of the first view, by now; or again
            return Reading.of(self._handle, self._view(deadline), self._want, deadline)

    def _limited(self, reading: Reading) -> Iterator[pa.Table]:
        if self._limit is None:
            yield from reading.tables()
            return
        left = self._limit
        for table in reading.tables(left) if left else ():
            yield table.slice(0, left)
            left -= min(left, table.num_rows)
            if not left:
                return

    def _batches(self, reading: Reading) -> Iterator[pa.RecordBatch]:
        def begun(again: Reading) -> tuple[list[pa.Table], Iterator[pa.Table]]:
            tables = self._limited(again)
            return list(islice(tables, 1)), tables

        try:
            first, rest = begun(reading)
        except AsOfTooOld:
            # Nothing was given yet; a view of a time that was asked for is too old again.
            first, rest = self._taken(begun)
        for table in chain(first, rest):
            yield from table.to_batches(max_chunksize=_BATCH_ROWS)
