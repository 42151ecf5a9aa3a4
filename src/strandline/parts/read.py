"""Reads parts: only the row groups that a question needs, and nothing that was not verified.

How the bytes of a part are protected is told in `strandline.parts.opened`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from strandline.env import Deadline, Env
from strandline.location import Blob
from strandline.parts.keys import KeyCodec, KeyRange
from strandline.parts.opened import Decoder, OpenPart, Plan, guarded
from strandline.parts.schema import TableSchema
from strandline.settings import Settings
from strandline.state.model import EVERYTHING, Interval, Part
from strandline.state.plan import united

__all__ = ["PartReader"]

_FILES_MAX = 256
"""Files that are held open between reads, over all parts."""

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
        self._idle: OrderedDict[int, tuple[OpenPart, Decoder]] = OrderedDict()

    def read(
        self,
        part: Part,
        schema: TableSchema,
        *,
        columns: Sequence[str] | None,
        ranges: Sequence[KeyRange] | None = None,
        interval: Interval | None = None,
        intervals: Sequence[Interval] | None = None,
        timeout: float,
    ) -> pa.Table:
        """The part's rows that lie in `interval`, in any of `intervals` and in any of `ranges`.

        `columns` names user columns, and `__time` or `__diff`, which are left out if the part has
        none; None means all user columns. The rows are sorted by full key, the columns those of
        `schema`, whichever version of it the part was written with. Raises `Corruption` for
        damage of any kind, `BlobMissing` if there is no such object.
        """
        deadline = Deadline(self._env, timeout)
        wanted = _wanted(schema, ranges, interval, intervals)
        opened = self.opened(part, timeout=timeout)
        plan = opened.plan(schema, columns, wanted)
        if plan.phases is not None:
            return self._look_up(opened, plan, deadline)
        chunks = list(_chunks(plan.groups, opened.groups_of_rows(_STREAM_ROWS)))

        def decode(groups: Sequence[int]) -> pa.Table:
            # One chunk has Arrow's threads, one per column; of several each has a thread of ours.
            alone = len(chunks) == 1
            return plan.clipped(self._decode(opened, groups, plan, deadline, threads=alone))

        pieces = self._env.parallel(decode, chunks)
        if len(pieces) == 1:
            return pieces[0]
        return pa.concat_tables(pieces) if pieces else plan.arrow.empty_table()

    def batches(
        self,
        part: Part,
        schema: TableSchema,
        *,
        columns: Sequence[str] | None,
        interval: Interval | None = None,
        ranges: Sequence[KeyRange] | None = None,
        intervals: Sequence[Interval] | None = None,
        timeout: float,
        rows: int = _STREAM_ROWS,
    ) -> Iterator[pa.RecordBatch]:
        """The same as `read`, in batches of about `rows` rows and in bounded memory.

        The next batches are decoded side by side. `timeout` is for each step.
        """
        wanted = _wanted(schema, ranges, interval, intervals)
        opened = self.opened(part, timeout=timeout)
        plan = opened.plan(schema, columns, wanted)
        chunks = list(_chunks(plan.groups, opened.groups_of_rows(rows)))

        def decode(groups: Sequence[int]) -> list[pa.RecordBatch]:
            deadline = Deadline(self._env, timeout)
            table = self._decode(opened, groups, plan, deadline, threads=False)
            found: list[pa.RecordBatch] = plan.clipped(table).combine_chunks().to_batches()
            return found

        for batches in self._env.stream(decode, chunks, ahead=_AHEAD):
            yield from batches

    def chunks(
        self,
        part: Part,
        schema: TableSchema,
        *,
        columns: Sequence[str] | None,
        intervals: Sequence[Interval],
        rows: int = _STREAM_ROWS,
        timeout: float,
    ) -> list[Callable[[float], pa.Table]]:
        """The same as `read` in pieces: functions that decode about `rows` rows each, in order.

        Each takes the seconds that it may take, and may be called on any thread.
        """
        opened = self.opened(part, timeout=timeout)
        plan = opened.plan(schema, columns, united(intervals))

        def chunk(groups: Sequence[int]) -> Callable[[float], pa.Table]:
            def load(seconds: float) -> pa.Table:
                # Several run at once: threads of Arrow's own would only be in their way.
                deadline = Deadline(self._env, seconds)
                return plan.clipped(self._decode(opened, groups, plan, deadline, threads=False))

            return load

        return [chunk(groups) for groups in _chunks(plan.groups, opened.groups_of_rows(rows))]

    def quantiles(self, part: Part, *, timeout: float | None = None) -> list[tuple[bytes, int]]:
        """At most 256 evenly spaced encoded full keys of the part, with the rows that they are."""
        opened = self.opened(part, timeout=timeout or self._settings.timeout_seconds)
        return opened.quantiles()

    def about(self, part: Part, *, timeout: float | None = None) -> dict[str, Any]:
        """What the part's footer says of itself: identity, keys, rows, times."""
        return self.opened(part, timeout=timeout or self._settings.timeout_seconds).about

    def opened(self, part: Part, *, timeout: float) -> OpenPart:
        """The part with its footer verified and parsed; from memory where it was so before."""
        with self._lock:
            found = self._open.get(part.key)
            if found is not None and found.part.footer_crc == part.footer_crc:
                self._open.move_to_end(part.key)
                return found
        file = self._file(part, timeout)
        opened = guarded(part, lambda: OpenPart(part, file))
        decoder = guarded(part, lambda: opened.decoder(file))
        with self._lock:
            self._open[part.key] = opened
            while len(self._open) > self._settings.footer_cache_entries:
                self._open.popitem(last=False)
        self._put_back(opened, decoder)
        return opened

    def close(self) -> None:
        """Closes the files that are held open. The reader can be used further."""
        with self._lock:
            decoders = [decoder for _, decoder in self._idle.values()]
            self._idle.clear()
            for opened in self._open.values():
                opened.idle.clear()
        for decoder in decoders:
            decoder.close()

    # --- files

    def _file(self, part: Part, timeout: float) -> pa.NativeFile:
        return guarded(part, lambda: self._blob.open(part.key, timeout=timeout))

    def _take(self, opened: OpenPart, timeout: float) -> Decoder:
        """A decoder of the part that nobody else uses until it is put back."""
        with self._lock:
            if opened.idle:
                decoder = opened.idle.pop()
                del self._idle[id(decoder)]
                return decoder
        source = self._file(opened.part, timeout)
        return guarded(opened.part, lambda: opened.decoder(source))

    def _put_back(self, opened: OpenPart, decoder: Decoder) -> None:
        closing = None
        with self._lock:
            opened.idle.append(decoder)
            self._idle[id(decoder)] = (opened, decoder)
            if len(self._idle) > _FILES_MAX:
                _, (owner, closing) = self._idle.popitem(last=False)
                owner.idle.remove(closing)
        if closing is not None:
            closing.close()

    def _decode(
        self,
        opened: OpenPart,
        groups: Sequence[int],
        plan: Plan,
        deadline: Deadline,
        *,
        threads: bool,
    ) -> pa.Table:
        """The rows of some row groups, in the plan's columns as they are stored."""
        _check(deadline, opened)
        decoder = self._take(opened, deadline.remaining())
        table = self._rows(opened, decoder, groups, plan.leaves, threads=threads)
        self._put_back(opened, decoder)
        return table

    def _look_up(self, opened: OpenPart, plan: Plan, deadline: Deadline) -> pa.Table:
        """The few rows of a plan with phases: the keys first, the rest if there are any."""
        assert plan.phases is not None  # noqa: S101  for the type checker
        _check(deadline, opened)
        decoder = self._take(opened, deadline.remaining())
        first, second = plan.phases
        keys = self._rows(opened, decoder, plan.groups, first.leaves, threads=False)
        found = guarded(opened.part, lambda: plan.found(keys))
        rest = None
        if found:
            rest = self._rows(opened, decoder, plan.groups, second.leaves, threads=True)
        self._put_back(opened, decoder)
        return plan.arrow.empty_table() if rest is None else plan.joined(keys, rest, found)

    @staticmethod
    def _rows(
        opened: OpenPart,
        decoder: Decoder,
        groups: Sequence[int],
        leaves: Sequence[int],
        *,
        threads: bool,
    ) -> pa.Table:
        """Decoded row groups. After an error the decoder is closed."""
        try:
            return guarded(opened.part, lambda: decoder.rows(groups, leaves, threads=threads))
        except BaseException:
            decoder.close()
            raise


def _check(deadline: Deadline, opened: OpenPart) -> None:
    deadline.check(f"reading the part {opened.part.key}", may_have_happened=False)


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


def _chunks(groups: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(groups), size):
        yield groups[start : start + size]
