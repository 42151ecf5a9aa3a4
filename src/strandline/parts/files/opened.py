"""One part whose footer was verified, and what is to be read of it for a question.

What protects the bytes of a part: `Part.footer_crc` covers everything behind the last page, and is
verified before any of that is parsed; checksums in there cover all the rest
(`strandline.parts.files.verified`).
"""

from __future__ import annotations

import os
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from strandline.env import Env
from strandline.errors import LocationError, StrandlineError
from strandline.parts.evolve import Mapping
from strandline.parts.files.footer import MAGIC, Footer
from strandline.parts.files.verified import Arena, Chunks, Window, damaged
from strandline.parts.keys import KeyCodec, clip, places
from strandline.parts.plain import int64s
from strandline.parts.schema import TableSchema
from strandline.state.model import Interval, Part

__all__ = [
    "Columns",
    "Decoder",
    "FileState",
    "OpenPart",
    "Plan",
    "damaged",
    "guarded",
    "state_of_file",
]

A = TypeVar("A")

_TICK_MICROS = 20_000

_COPY_BELOW = 8
"""Rows that are less than this share of what was decoded are copied out of it: a found row shall
not keep thousands of others in memory."""


def guarded(part: Part, function: Callable[[], A]) -> A:
    """What `function`, which reads the part, returns; what it raises, as an error of ours.

    Arrow tells damage and a failed read both by OSError; only a failed system call has a number.
    """
    try:
        return function()
    except (StrandlineError, MemoryError):
        raise
    except OSError as error:
        if error.errno is not None:
            raise LocationError(
                f"reading the part {part.key} failed: {error}", may_have_happened=False
            ) from error
        raise damaged(part, str(error)) from error
    except (pa.ArrowException, ValueError, LookupError, TypeError, ArithmeticError) as error:
        raise damaged(part, str(error) or type(error).__name__) from error


class FileState(NamedTuple):
    """What of a local file is not the same again once somebody has written to it."""

    device: int
    inode: int
    size: int
    written_ns: int
    changed_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileState:
        """The state that a file was found in."""
        times = status.st_mtime_ns, status.st_ctime_ns
        return cls(status.st_dev, status.st_ino, status.st_size, *times)

    def is_settled(self, env: Env) -> bool:
        """Whether the next write will change it.

        Two writes within one tick of the kernel's clock leave a file with the same times.
        """
        return env.now_micros() - self.changed_ns // 1_000 >= _TICK_MICROS


def state_of_file(file: pa.NativeFile) -> FileState | None:
    """The state of an open local file; None for any other source, of which it cannot be told."""
    if not isinstance(file, pa.OSFile):
        return None
    return FileState.of(os.fstat(file.fileno()))


class RowGroups(NamedTuple):
    """Neighbouring row groups, and the intervals that wanted rows are in (None: all are wanted)."""

    numbers: range
    inside: Sequence[Interval] | None

    @property
    def is_lookup(self) -> bool:
        """Whether keys are decoded first: that costs a hit little, and saves a miss most."""
        return self.inside is not None and len(self.numbers) <= 2


@dataclass(frozen=True)
class Plan:
    """What is to be read of a part."""

    columns: Columns
    groups: Sequence[RowGroups]
    phases: tuple[Columns, Columns] | None
    """The keys, which tell whether there are rows at all, and the rest; None: not in phases."""

    @property
    def leaves(self) -> Sequence[int]:
        """The columns, as Parquet counts them."""
        return self.columns.leaves

    @property
    def arrow(self) -> pa.Schema:
        """The schema of what comes out."""
        return self.columns.arrow

    def clipped(self, decoded: pa.Table, groups: RowGroups) -> pa.Table:
        """Of decoded row groups, the rows and columns that were asked for."""
        table = self.columns.mapping.table(decoded)
        if groups.inside is not None:
            table = clip(table, groups.inside, self.columns.codec)
        if table.column_names != self.arrow.names:
            table = table.select(self.arrow.names)
        if table.num_rows * _COPY_BELOW < decoded.num_rows:
            table = table.take(int64s(np.arange(table.num_rows)))
        return table

    def looked_up(self, decoder: Decoder, groups: RowGroups, *, threads: bool) -> pa.Table:
        """The rows that were asked for of few row groups: the keys first, the rest if need be."""
        assert self.phases is not None  # noqa: S101  for the type checker
        first, second = self.phases
        columns = first.mapping.columns(decoder.rows(first.leaves, threads=False))
        keys = [columns[name] for name in self.columns.codec.keys]
        found = places(keys, groups.inside or (), self.columns.codec)
        if not found:
            return self.arrow.empty_table()
        columns.update(second.mapping.columns(decoder.rows(second.leaves, threads=threads)))
        table = pa.Table.from_arrays([columns[n] for n in self.arrow.names], schema=self.arrow)
        rows = sum(end - start for start, end in found)
        if rows * _COPY_BELOW < table.num_rows:
            wanted = [np.arange(start, end) for start, end in found]
            return table.take(int64s(np.concatenate(wanted) if len(wanted) > 1 else wanted[0]))
        return pa.concat_tables([table.slice(start, end - start) for start, end in found])


@dataclass(frozen=True)
class Columns:
    """The part of a plan that is the same for every question with the same columns."""

    mapping: Mapping
    leaves: Sequence[int]
    """The columns, as Parquet counts them."""
    arrow: pa.Schema
    """The schema of what comes out."""
    codec: KeyCodec


class OpenPart:
    """A part whose footer was verified: its metadata, where which key is, idle files."""

    def __init__(self, part: Part, file: pa.NativeFile) -> None:
        self.part = part
        self.idle: list[pa.NativeFile] = []
        """Open files of the part that nobody uses."""
        tail = self._verified(file)
        self.metadata = pq.read_metadata(pa.BufferReader(tail))
        count = self.metadata.num_row_groups * self.metadata.num_columns
        self.chunks = Chunks.from_bytes(tail, count, len(MAGIC))
        self.stored = self.metadata.schema.to_arrow_schema()
        texts = self.metadata.metadata or {}
        self.about = Footer.about_of(texts)
        self._seen: dict[FileState, Any] = {}
        self._separators = Footer.separators_of(texts)
        self._texts = texts
        self._plans: dict[tuple[int, tuple[str, ...] | None, bool], Columns] = {}
        pages_end = part.size - part.footer_size
        if self.chunks.bounds[-1] != pages_end or self.metadata.num_rows != part.rows:
            raise damaged(part, "its footer does not fit it")
        if self.about["key"] != part.key:
            raise damaged(part, f"it is another part, {self.about['key']}")

    def _verified(self, file: pa.NativeFile) -> bytes:
        """The bytes behind the last page, if object and reference agree on them."""
        part, size = self.part, file.size()
        if size != part.size:
            raise damaged(part, f"it has {size} bytes where {part.size} were written")
        head: bytes = file.read_at(len(MAGIC), 0)
        tail: bytes = file.read_at(part.footer_size, size - part.footer_size)
        if len(tail) != part.footer_size or zlib.crc32(tail) != part.footer_crc:
            raise damaged(part, "its footer does not have the checksum that it was written with")
        if head != MAGIC:
            raise damaged(part, "it does not begin as Parquet does")
        return tail

    @property
    def separators(self) -> Sequence[bytes]:
        """For each row group, encoded bytes above all keys before it and not above its first."""
        return self._separators

    def quantiles(self) -> list[tuple[bytes, int]]:
        """See `PartReader.quantiles`."""
        return Footer.quantiles_of(self._texts)

    def bytes_of(self, groups: range) -> int:
        """How many bytes neighbouring row groups take, all columns together."""
        width = int(self.metadata.num_columns)
        bounds = self.chunks.bounds
        return bounds[(groups[-1] + 1) * width] - bounds[groups[0] * width]

    def window(self, file: pa.NativeFile, arena: Arena, groups: range) -> Window:
        """Neighbouring row groups of an open file of the part, of which nothing is read yet."""
        width = self.metadata.num_columns
        first, last = groups[0] * width, (groups[-1] + 1) * width
        return Window(self.part, file, self.chunks, arena, first, last)

    def headers_verified(
        self, state: FileState | None, groups: range, leaves: Sequence[int]
    ) -> bool:
        """Whether the chunks of these columns in these row groups were verified whole before, with
        the file in this very state.
        """
        seen = None if state is None else self._seen.get(state)
        return seen is not None and bool(seen[groups.start : groups.stop, leaves].all())

    def note_verified(self, state: FileState, groups: range, leaves: Sequence[int]) -> None:
        """Remembers that these chunks were verified whole, out of the file in this state."""
        if state not in self._seen:
            width = self.metadata.num_columns
            self._seen = {state: np.zeros((self.metadata.num_row_groups, width), bool)}
        seen = self._seen.get(state)
        if seen is not None:  # another thread may just have met the file in another state
            seen[groups.start : groups.stop, leaves] = True

    def decoded_by_pages(
        self, file: pa.NativeFile, groups: range, leaves: Sequence[int]
    ) -> pa.Table:
        """Row groups decoded from an open file of the part; what is in the pages is verified."""
        reader = pq.ParquetFile(
            file, metadata=self.metadata, pre_buffer=False, page_checksum_verification=True
        ).reader
        table = reader.read_row_groups(list(groups), column_indices=leaves, use_threads=False)
        if table.num_rows != self.rows_of(groups):
            raise damaged(self.part, f"it has {table.num_rows} rows, not what was written")
        return table

    def rows_of(self, groups: Sequence[int]) -> int:
        """How many rows the row groups, ascending, have. All but the last have equally many."""
        per_group = int(self.about["group_rows"])
        rows = per_group * len(groups)
        if groups and groups[-1] == len(self._separators) - 1:
            rows += self.part.rows - per_group * len(self._separators)
        return rows

    def groups_of_rows(self, rows: int) -> int:
        """How many row groups have about so many rows."""
        return max(1, rows // int(self.about["group_rows"]))

    def groups_in(self, interval: Interval) -> range:
        """The row groups that may have rows in the interval."""
        # Where a key was repeated over the border of two row groups, both have it: so a separator
        # that is equal to the bound leaves the row group before it in.
        start = max(0, bisect_left(self._separators, interval.lower) - 1)
        if interval.upper is None:
            return range(start, len(self._separators))
        return range(start, bisect_left(self._separators, interval.upper))

    def plan(
        self, schema: TableSchema, columns: Sequence[str] | None, wanted: Sequence[Interval]
    ) -> Plan:
        """What is to be read for the ascending, disjoint intervals `wanted`."""
        part = self.part
        inside = [
            i for i in wanted if i.lower <= part.upper and (i.upper is None or i.upper > part.lower)
        ]
        whole = len(inside) == 1 and _covers(inside[0], part)
        found = self._columns(schema, columns, keys=not whole)
        if whole:
            return Plan(found, [RowGroups(range(len(self._separators)), None)], None)
        phases = None
        known = set(schema.keys)
        names = [n for n in found.arrow.names if n not in known]
        if names:
            keys = self._columns(schema, schema.keys, keys=False)
            phases = (keys, self._columns(schema, names, keys=False))
        return Plan(found, self._groups(inside), phases)

    def _groups(self, inside: Sequence[Interval]) -> list[RowGroups]:
        """The row groups that may have rows in the ascending intervals."""
        found: list[range] = []
        for interval in inside:
            groups = self.groups_in(interval)
            if found and groups.start <= found[-1].stop:
                before = found.pop()
                groups = range(before.start, max(before.stop, groups.stop))
            found.append(groups)
        return [RowGroups(groups, inside) for groups in found]

    def parted(self, plan: Plan, groups_max: int) -> Iterator[RowGroups]:
        """The row groups of a plan, at most so many at once."""
        for numbers, inside in plan.groups:
            for start in range(0, len(numbers), groups_max):
                some = numbers[start : start + groups_max]
                yield RowGroups(some, inside and self._meeting(inside, some))

    def _meeting(self, inside: Sequence[Interval], groups: range) -> Sequence[Interval]:
        """Those of the ascending intervals that may have a key of the row groups."""
        least = self._separators[groups.start]
        start = bisect_left(inside, least, key=lambda interval: interval.lower)
        if start and (inside[start - 1].upper or least + b"\0") > least:
            start -= 1
        if groups.stop == len(self._separators):
            return inside[start:]
        # As in `groups_in`: a key that is equal to the separator may be on both sides.
        following = self._separators[groups.stop]
        return inside[start : bisect_right(inside, following, key=lambda interval: interval.lower)]

    def _columns(
        self, schema: TableSchema, columns: Sequence[str] | None, *, keys: bool
    ) -> Columns:
        asked = None if columns is None else tuple(columns)
        found = self._plans.get((schema.version, asked, keys))
        if found is None:
            names = schema.arrow.names if asked is None else list(asked)
            needed = [*dict.fromkeys([*names, *schema.keys])] if keys else names
            # Without any column there would be nothing to count rows by.
            mapping = Mapping(self.stored, schema, needed or schema.keys[:1])
            if not mapping.needed:  # columns that were added later, and no other
                mapping = Mapping(self.stored, schema, [*needed, schema.keys[0]])
            there = {field.name: field for field in mapping.arrow}
            out = pa.schema([there[n] for n in names if n in there])
            found = Columns(mapping, self._leaves(mapping.needed), out, KeyCodec(schema))
            self._plans[schema.version, asked, keys] = found
        return found

    def _leaves(self, columns: Sequence[int]) -> list[int]:
        """Columns as Parquet counts them, which sees only what is not nested."""
        bounds = list(accumulate((_leaf_count(f.type) for f in self.stored), initial=0))
        return [leaf for at in columns for leaf in range(bounds[at], bounds[at + 1])]


class Decoder:
    """Decodes neighbouring row groups of one part. Not for several threads at once."""

    def __init__(
        self, opened: OpenPart, source: pa.NativeFile, arena: Arena, groups: range
    ) -> None:
        self._opened = opened
        self._source = source
        self._groups = groups
        self._window = opened.window(source, arena, groups)
        # What is in a `ParquetFile`, without the names of columns that it prepares each time.
        self._reader = pq.ParquetReader()
        self._reader.open(self._window.file, metadata=opened.metadata, pre_buffer=False)

    def state_of_file(self) -> FileState | None:
        """See the function of this name."""
        return state_of_file(self._source)

    def rows(self, leaves: Sequence[int], *, threads: bool) -> pa.Table:
        """The columns `leaves`, ascending; `threads`: on Arrow's, one per column."""
        opened = self._opened
        width = opened.metadata.num_columns
        self._window.load([group * width + leaf for group in self._groups for leaf in leaves])
        table = self._reader.read_row_groups(
            list(self._groups), column_indices=leaves, use_threads=threads
        )
        rows = opened.rows_of(self._groups)
        if table.num_rows != rows:
            raise damaged(opened.part, f"it has {table.num_rows} rows, of {rows} written")
        return table


def _leaf_count(kind: pa.DataType) -> int:
    if types.is_map(kind):
        return _leaf_count(kind.key_type) + _leaf_count(kind.item_type)
    if types.is_struct(kind):
        return sum(_leaf_count(kind.field(i).type) for i in range(kind.num_fields))
    return _leaf_count(kind.value_type) if types.is_list(kind) else 1


def _covers(interval: Interval, part: Part) -> bool:
    return interval.lower <= part.lower and (interval.upper is None or interval.upper > part.upper)
