"""Reads parts: only the row groups that a question needs, and nothing that was not verified.

How the bytes of a part are protected is told in `strandline.parts.files.opened`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from strandline.env import Deadline, Env
from strandline.location import Blob
from strandline.parts.files.opened import Decoder, OpenPart, Plan, RowGroups, guarded, state_of_file
from strandline.parts.files.verified import Arena
from strandline.parts.keys import KeyCodec, KeyRange
from strandline.parts.schema import TableSchema
from strandline.settings import Settings
from strandline.state.model import EVERYTHING, Interval, Part
from strandline.state.plan import united

__all__ = ["PartReader"]

_FILES_MAX = 256
"""Files that are held open between reads, over all parts."""

_ARENAS_MAX = 16
_ARENA_BYTES_MIN = 1 << 20
_ARENA_BYTES_MAX = 16 << 20
"""Memory that stored bytes are read into is kept between reads, as long as it is not larger."""

_THREADS_FROM = 1 << 20
"""A piece of fewer stored bytes is decoded sooner than threads of Arrow's own would begin."""

_STREAM_ROWS = 131_072
_AHEAD = 6
"""Chunks that a stream decodes before they are asked for."""


class PartReader:
    """Reads parts of one Blob; keeps what their footers say, and some files open. Thread-safe."""

    def __init__(self, blob: Blob, settings: Settings, env: Env) -> None:
        self._blob = blob
        self._settings = settings
        self._env = env
        self._lock = threading.Lock()
        self._open: OrderedDict[str, OpenPart] = OrderedDict()
        self._files: OrderedDict[int, tuple[OpenPart, pa.NativeFile]] = OrderedDict()
        self._arenas: list[Arena] = []

    def read(
        self,
        part: Part,
        schema: TableSchema,
        *,
        columns: Sequence[str] | None,
        ranges: Sequence[KeyRange] | None = None,
        interval: Interval | None = None,
        intervals: Sequence[Interval] | None = None,
        deadline: Deadline,
    ) -> pa.Table:
        """The part's rows that lie in `interval`, in any of `intervals` and in any of `ranges`.

        `columns` names user columns, and `__time`, `__diff` or `__end`, which are left out if the
        part has none; None means all user columns. The rows are sorted by full key, the columns
        those of `schema`, whichever version of it the part was written with. Raises `Corruption`
        for damage of any kind, `BlobMissing` if there is no such object.
        """
        wanted = _wanted(schema, ranges, interval, intervals)
        opened = self.opened(part, deadline)
        plan = opened.plan(schema, columns, wanted)
        parted = list(opened.parted(plan, opened.groups_of_rows(_STREAM_ROWS)))
        # One alone has Arrow's threads, one per column; of several each has a thread of ours.
        alone = len(parted) == 1
        tables = self._env.parallel(
            lambda groups: self._decode(opened, groups, plan, deadline, threads=alone), parted
        )
        if alone:
            return tables[0]
        return pa.concat_tables(tables) if tables else plan.arrow.empty_table()

    def batches(
        self,
        part: Part,
        schema: TableSchema,
        *,
        columns: Sequence[str] | None,
        interval: Interval | None = None,
        ranges: Sequence[KeyRange] | None = None,
        intervals: Sequence[Interval] | None = None,
        deadline: Deadline,
        rows: int = _STREAM_ROWS,
    ) -> Iterator[pa.RecordBatch]:
        """The same as `read`, in batches of about `rows` rows and in bounded memory.

        The next batches are decoded side by side. Each step has all that is left of `deadline` when
        the first begins.
        """
        each = deadline.left()
        wanted = _wanted(schema, ranges, interval, intervals)
        opened = self.opened(part, deadline)
        plan = opened.plan(schema, columns, wanted)
        parted = list(opened.parted(plan, opened.groups_of_rows(rows)))

        def decode(groups: RowGroups) -> list[pa.RecordBatch]:
            table = self._decode(opened, groups, plan, each.again(), threads=False)
            found: list[pa.RecordBatch] = table.combine_chunks().to_batches()
            return found

        for batches in self._env.stream(decode, parted, ahead=_AHEAD):
            yield from batches

    def chunks(
        self,
        part: Part,
        schema: TableSchema,
        *,
        columns: Sequence[str] | None,
        intervals: Sequence[Interval],
        rows: int = _STREAM_ROWS,
        deadline: Deadline,
    ) -> list[Callable[[Deadline], pa.Table]]:
        """The same as `read` in pieces: functions that decode about `rows` rows each, in order.

        Each takes a deadline of its own, and may be called on any thread.
        """
        placed = self.placed_chunks(
            part, schema, columns=columns, intervals=intervals, rows=rows, deadline=deadline
        )
        return [load for _, load in placed]

    def placed_chunks(
        self,
        part: Part,
        schema: TableSchema,
        *,
        columns: Sequence[str] | None,
        intervals: Sequence[Interval],
        rows: int = _STREAM_ROWS,
        deadline: Deadline,
    ) -> list[tuple[bytes, Callable[[Deadline], pa.Table]]]:
        """The same, each with bytes that no encoded key of it is below, nor any before it above."""
        opened = self.opened(part, deadline)
        plan = opened.plan(schema, columns, united(intervals))

        def chunk(groups: RowGroups) -> Callable[[Deadline], pa.Table]:
            # Several run at once: threads of Arrow's own would only be in their way.
            return lambda by: self._decode(opened, groups, plan, by, threads=False)

        parted = opened.parted(plan, opened.groups_of_rows(rows))
        return [(opened.separators[groups.numbers[0]], chunk(groups)) for groups in parted]

    def verify(self, part: Part, deadline: Deadline) -> None:
        """Reads the whole part, and returns if every byte of it is what was written.

        For the sake of readers that know page checksums only. Raises what `read` raises.
        """
        file = self._file(part, deadline)

        def verify() -> None:
            opened = OpenPart(part, file)  # anew: what was true of a footer once may be so no more
            groups = range(opened.metadata.num_row_groups)
            step = opened.groups_of_rows(_STREAM_ROWS)
            for start in range(0, len(groups), step):
                deadline.check(f"verifying the part {part.key}", may_have_happened=False)
                piece = groups[start : start + step]
                with self._memory(opened.bytes_of(piece)) as arena:
                    opened.window(file, arena, piece).verify()

        with file:
            guarded(part, verify)

    def quantiles(self, part: Part, deadline: Deadline) -> list[tuple[bytes, int]]:
        """At most 256 evenly spaced encoded full keys of the part, with the rows that they are."""
        return self.opened(part, deadline).quantiles()

    def about(self, part: Part, deadline: Deadline) -> dict[str, Any]:
        """What the part's footer says of itself: identity, keys, rows, times."""
        return self.opened(part, deadline).about

    def opened(self, part: Part, deadline: Deadline) -> OpenPart:
        """The part with its footer verified and parsed; from memory where it was so before."""
        with self._lock:
            found = self._open.get(part.key)
            if found is not None and found.part.footer_crc == part.footer_crc:
                self._open.move_to_end(part.key)
                return found
        file = self._file(part, deadline)
        opened = guarded(part, lambda: OpenPart(part, file))
        with self._lock:
            self._open[part.key] = opened
            while len(self._open) > self._settings.footer_cache_entries:
                self._open.popitem(last=False)
        self._put_back(opened, file)
        return opened

    def close(self) -> None:
        """Closes the files that are held open. The reader can be used further."""
        with self._lock:
            files = [file for _, file in self._files.values()]
            self._files.clear()
            self._arenas.clear()
            for opened in self._open.values():
                opened.idle.clear()
        for file in files:
            file.close()

    # --- files

    def _file(self, part: Part, deadline: Deadline) -> pa.NativeFile:
        return guarded(part, lambda: self._blob.open(part.key, timeout=deadline.remaining()))

    def _take(self, opened: OpenPart, deadline: Deadline) -> pa.NativeFile:
        """An open file of the part that nobody else uses until it is put back."""
        with self._lock:
            if opened.idle:
                file = opened.idle.pop()
                del self._files[id(file)]
                return file
        return self._file(opened.part, deadline)

    def _put_back(self, opened: OpenPart, file: pa.NativeFile) -> None:
        closing = None
        with self._lock:
            opened.idle.append(file)
            self._files[id(file)] = (opened, file)
            if len(self._files) > _FILES_MAX:
                _, (owner, closing) = self._files.popitem(last=False)
                owner.idle.remove(closing)
        if closing is not None:
            closing.close()

    def _arena(self, size: int) -> Arena:
        """Memory of at least that size that nobody else uses."""
        with self._lock:
            for at, arena in enumerate(self._arenas):
                if arena.size >= size:
                    return self._arenas.pop(at)
            if self._arenas:  # too small: a larger one takes its place
                self._arenas.pop()
        return Arena(max(size, _ARENA_BYTES_MIN))

    @contextmanager
    def _memory(self, size: int) -> Iterator[Arena]:
        """Memory of at least that size; it is kept for the next unless the block failed."""
        arena = self._arena(size)
        yield arena
        with self._lock:
            if arena.size <= _ARENA_BYTES_MAX and len(self._arenas) < _ARENAS_MAX:
                self._arenas.append(arena)

    @contextmanager
    def _decoder(self, opened: OpenPart, groups: range, deadline: Deadline) -> Iterator[Decoder]:
        """A decoder for these row groups; what it used is kept for the next unless it failed."""
        file = self._take(opened, deadline)
        try:
            with self._memory(opened.bytes_of(groups)) as arena:
                yield Decoder(opened, file, arena, groups)
        except BaseException:
            file.close()
            raise
        self._put_back(opened, file)

    def _pages(
        self, opened: OpenPart, groups: range, leaves: Sequence[int], deadline: Deadline
    ) -> pa.Table | None:
        """Row groups as Arrow decodes them by itself, with page checksums; None if it may not.

        SUBTLE: it may where the chunks were verified whole before and nobody has written to the
        file since: then the headers of pages are what they were. The file is looked at before and
        after, so that no write falls between; a write changes the file's times before its bytes.
        Verifying whole chunks each time would make a scan a third slower, because its threads
        then wait for the interpreter's lock, once per chunk. What no file system notices, bits
        that rot on the disk below a file that is being read again and again, is caught unless it
        hits a header.
        """
        file = self._take(opened, deadline)
        try:
            state = state_of_file(file)
            table = None
            if opened.headers_verified(state, groups, leaves):
                table = opened.decoded_by_pages(file, groups, leaves)
                if state_of_file(file) != state:
                    table = None
        except BaseException:
            file.close()
            raise
        self._put_back(opened, file)
        return table

    def _decode(
        self, opened: OpenPart, groups: RowGroups, plan: Plan, deadline: Deadline, *, threads: bool
    ) -> pa.Table:
        """The rows of some row groups of a plan."""
        part = opened.part
        deadline.check(f"reading the part {part.key}", may_have_happened=False)

        def decoded() -> pa.Table:
            whole = plan.phases is None or not groups.is_lookup
            if whole and not threads:
                found = self._pages(opened, groups.numbers, plan.leaves, deadline)
                if found is not None:
                    return plan.clipped(found, groups)
            with self._decoder(opened, groups.numbers, deadline) as decoder:
                several = threads and opened.bytes_of(groups.numbers) >= _THREADS_FROM
                if whole:
                    state = decoder.state_of_file()
                    table = decoder.rows(plan.leaves, threads=several)
                    if state is not None and state.is_settled(self._env):
                        opened.note_verified(state, groups.numbers, plan.leaves)
                    return plan.clipped(table, groups)
                return plan.looked_up(decoder, groups, threads=several)

        return guarded(part, decoded)


def _wanted(
    schema: TableSchema,
    ranges: Sequence[KeyRange] | None,
    interval: Interval | None,
    intervals: Sequence[Interval] | None,
) -> Sequence[Interval]:
    """What all of the conditions have in common, as ascending, disjoint intervals."""
    wanted: Sequence[Interval] = [interval or EVERYTHING]
    if intervals is not None:
        wanted = _common(wanted, united(intervals))
    if ranges is not None:
        codec = KeyCodec(schema)
        wanted = _common(wanted, united(r.interval(codec) for r in ranges))
    return wanted


def _common(some: Sequence[Interval], others: Sequence[Interval]) -> Sequence[Interval]:
    if some == [EVERYTHING]:
        return others
    return united(both for a in some for b in others if (both := a.intersect(b)))
