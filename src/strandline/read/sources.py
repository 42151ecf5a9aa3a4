"""The rows of a piece as they are stored, source by source: of parts, and inside of entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from strandline.env import Deadline
from strandline.parts.keys import clip
from strandline.parts.rows.merge import Source, newest_time
from strandline.parts.schema import DIFF, TIME
from strandline.read.pieces import Piece
from strandline.read.question import Need, Question, is_covered
from strandline.state.model import Entry
from strandline.txn.handle import Handle
from strandline.txn.overlay import Block

__all__ = ["Sources"]

_Read = Callable[[Need], tuple[int, Source]]

_GATHER_FROM = 16
"""So many entries of a piece are read by blocks; fewer one by one."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the rows for one question are."""

    question: Question
    table: str
    entries: tuple[Entry, ...]
    """All of the view, of which a piece has some."""
    handle: Handle

    def of(
        self,
        piece: Piece,
        columns: Sequence[str],
        by: Callable[[], Deadline],
        *,
        is_only: bool,
    ) -> list[Source]:
        """The rows of each source: references, then entries one after another.

        `by`: by when the next step has to be done. `is_only`: there is no other piece, so that
        parts are read side by side.

        SUBTLE: of two rows of one key at one time the one in the later source counts. A transaction
        reads what it wrote as if written at the time that it reads, after everything else.
        """
        if piece.load is not None:
            rows, time = piece.load(by()), self.question.as_of
            return [Source(rows, time, distinct=False, rows_from=piece.rows_from)]
        inline = list(self._from_inline(piece, columns))
        needs = list(self.question.needs(piece.task, piece.intervals, columns))
        read = partial(self._read, by)
        stored = self._from_parts(needs, read, [source for _, source in inline], is_only=is_only)
        return [source for _, source in sorted([*stored, *inline], key=lambda item: item[0])]

    # --- parts

    def _from_parts(
        self, needs: Sequence[Need], read: _Read, inline: Sequence[Source], *, is_only: bool
    ) -> list[tuple[int, Source]]:
        """With the number of the entry that each belongs to; -1: of none.

        `inline`: the other sources of the piece.
        """
        # A few keys that are near are found sooner than other threads would begin, above all where
        # others keep the cores busy.
        if is_only and not (self.question.few_keys and self.handle.store.location.blob.near):
            return self.handle.store.env.parallel(read, needs)
        if self.question.one_row:
            return self._newest_first(needs, read, inline)
        return [read(need) for need in needs]

    def _read(self, by: Callable[[], Deadline], need: Need) -> tuple[int, Source]:
        data = self.handle.store.reader.read(
            need.part,
            self.question.schema,
            columns=need.columns,
            intervals=need.intervals,
            deadline=by(),
        )
        return need.number, Source(data, need.time, need.part.distinct, need.rows_from)

    def _newest_first(
        self, needs: Sequence[Need], read: _Read, inline: Sequence[Source]
    ) -> list[tuple[int, Source]]:
        """What was read until a version of the key was found that is newer than all in the rest.

        A marker that the key was deleted is a version, too.
        """
        as_of = self.question.as_of
        newest = max((newest_time(source, as_of) for source in inline), default=-1)
        found = {}
        for at, need in sorted(enumerate(needs), key=lambda each: each[1].last, reverse=True):
            if need.last < newest:
                break
            found[at] = read(need)
            newest = max(newest, newest_time(found[at][1], as_of))
        # Of versions of one time the one in the later source counts.
        return [found[at] for at in sorted(found)]

    # --- entries

    def _from_inline(self, piece: Piece, columns: Sequence[str]) -> Iterator[tuple[int, Source]]:
        schema, overlay = self.question.schema, self.handle.overlay
        entries = [(n, e) for n, e in enumerate(piece.task.entries) if e.batch.inline]
        gathers = len(entries) >= _GATHER_FROM
        cover = overlay.cover(self.table, self.entries, schema) if gathers else None
        blocks: dict[int, tuple[int, int, Block]] = {}
        for number, entry in entries:
            block = None if cover is None else cover.block_of(entry)
            if block is not None:
                least, first, _ = blocks.get(id(block), (number, entry.time, block))
                blocks[id(block)] = min(least, number), min(first, entry.time), block
                continue
            data = overlay.rows(entry, schema)
            if not is_covered(entry.place, piece.intervals):
                data = clip(data, piece.intervals, self.question.codec)
            if data.num_rows:
                extra = [DIFF] if entry.batch.has_diff else []
                rows = data.select([*columns, *extra])
                yield number, Source(rows, entry.time, entry.batch.distinct)
        # SUBTLE: a block has more than the task's entries. What else it has is applied in the state
        # that was read, so it is earlier than the first of them; or later than `as_of`; or has no
        # key in the task's intervals, if those are cut to where its sources are.
        inside = piece.task.own(piece.intervals) if blocks else ()
        for number, first, block in blocks.values():
            data = clip(block.data, inside, self.question.codec)
            if data.num_rows:
                names = [*columns, *(name for name in (TIME, DIFF) if name in data.column_names)]
                rows = data.select(names)
                yield number, Source(rows, block.last, distinct=False, rows_from=first)
