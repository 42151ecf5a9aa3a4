"""Compaction: one sorted run of what is live, apart from what has ended and from what is newer.

Nothing that a read from since on can see is changed. How the outputs are kept apart, and why reads
of the present then look at one of them only, is told in DESIGN.md, "Current and history apart".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.env import Env
from strandline.parts.keys import KeyCodec
from strandline.parts.plain import bools, int64, int64s, numbers_of, truths_of
from strandline.parts.rows.adjacent import equal_to_next
from strandline.parts.rows.duck import Passage, run, stream
from strandline.parts.rows.frontier import Run, in_turn, merged
from strandline.parts.rows.merge import Source, constant
from strandline.parts.rows.sort import batches_of, sort_stream, sort_table
from strandline.parts.rows.spool import Spool
from strandline.parts.schema import DIFF, END, TIME, TableSchema

__all__ = ["Aged", "merge_compact"]

_IN_MEMORY_BYTES = 32 << 20
"""Sources in memory that are no larger are merged there, without a stream through DuckDB."""

_OPEN = np.iinfo(np.int64).max
"""The end of a row that has none."""

_ALONE = -1
"""The end of an update that found no partner, or looks for none."""

Age = Literal["current", "history", "newer"]


class Aged(NamedTuple):
    """One output: rows sorted by full key, then `__time`."""

    age: Age
    """current: live at F, as user columns and `__time`. history: what ended at or before F, with
    `__time` and `__end`. newer: all other updates, with `__time`, and `__diff` where there is one.
    """
    rows: pa.RecordBatchReader


@dataclass(frozen=True, slots=True)
class _Bounds:
    """What may be given up, and what is kept apart."""

    since: int
    split_at: int | None
    markers_from: int | None

    @property
    def markers_until(self) -> int:
        """Markers up to this time leave nothing behind that they hide among the merged rows."""
        return self.since if self.split_at is None else self.split_at


def merge_compact(
    sources: Sequence[Source],
    schema: TableSchema,
    *,
    since: int,
    split_at: int | None,
    markers_from: int | None,
    memory_bytes: int,
    threads: int,
    runs: Sequence[Run] = (),
    env: Env | None = None,
) -> Iterator[Aged]:
    """What has to be kept of the sources for every `as_of` from `since` on.

    With F = `split_at`: the current rows, then history, then newer ones; each output is to be
    exhausted before the next is asked for, and may be empty. With None nothing is kept apart: one
    output, "newer"; then no source may be history.

    rows: times up to `since` become `since`; the diffs of equal rows of one time are added up, and
    what adds up to nothing vanishes. The i-th retraction of a row ends its i-th addition, if that
    holds for all of its retractions; else all updates of the row stay updates. keyed: a version is
    ended by the next one of its key, a marker included; what ended up to `since` vanishes. Rows
    keep their times, because time is rank. A marker at T goes if its end has come, or if
    `markers_from` <= T: nothing outside of the sources then has a row that it hides. Memory is
    bounded if the sources are iterators. With an `env`, `runs` has the rows of each source, whose
    `data` is not looked at; that is bounded, too, and faster.
    """
    bounds = _Bounds(since, split_at, markers_from)
    names = _columns_of_ours(sources)
    ended = END in names
    if ended and split_at is None:
        raise ValueError("history is merged with a time to split at, or left out")
    if split_at is not None and split_at < since:
        raise ValueError(f"splitting at {split_at} is of no use for reads from {since} on")
    work = _Work(schema, memory_bytes, threads, marked=DIFF in names, ended=ended)
    if env is None:
        ordered = work.ordered(sources, bounds)
    else:
        ordered = work.ordered_runs(sources, runs, bounds, env)
    if split_at is None:
        plain = schema.stored(time=True, diff=work.marked)
        rows = (work.cut(batch, plain) for batch, ages in ordered for batch in ages.all(batch))
        yield Aged("newer", pa.RecordBatchReader.from_batches(plain, rows))
        return
    yield from _apart(ordered, work)


def _apart(ordered: Iterator[tuple[pa.RecordBatch, _Ages]], work: _Work) -> Iterator[Aged]:
    """The outputs of a stream of rows whose ages are known: what is not written yet waits."""
    with ExitStack() as stack:
        history = stack.enter_context(Spool(work.schema.stored(time=True, end=True)))
        newer = stack.enter_context(Spool(work.schema.stored(time=True, diff=work.marked)))

        def current(arrow: pa.Schema) -> Iterator[pa.RecordBatch]:
            for batch, ages in ordered:
                for spool, age in ((history, _HISTORY), (newer, _NEWER)):
                    for rows in ages.of(age, batch):
                        spool.add(work.cut(rows, spool.arrow))
                for rows in ages.of(_CURRENT, batch):
                    yield work.cut(rows, arrow)

        arrow = work.schema.stored(time=True)
        yield Aged("current", pa.RecordBatchReader.from_batches(arrow, current(arrow)))
        rest: Sequence[tuple[Age, Spool]] = (("history", history), ("newer", newer))
        for age, spool in rest:
            yield Aged(age, pa.RecordBatchReader.from_batches(spool.arrow, spool.batches()))


def _columns_of_ours(sources: Iterable[Source]) -> set[str]:
    """Which of `__diff` and `__end` a source has."""
    found: set[str] = set()
    for source in sources:
        if source.ours is not None:
            found |= source.ours
            continue
        if isinstance(source.data, pa.Table):
            found.update(source.data.column_names)
            continue
        first = next(source.data, None)
        if first is None:
            source.data = iter(())
            continue
        source.data = chain([first], source.data)
        found.update(first.schema.names)
    return found & {DIFF, END}


# --- ages

_CURRENT, _HISTORY, _NEWER, _GONE = range(4)


class _Ages:
    """To which output each row of a batch goes."""

    def __init__(self, ages: np.ndarray[Any, Any]) -> None:
        self._ages = ages
        first = ages[0] if len(ages) else _GONE
        self._only = int(first) if (ages == first).all() else None

    def of(self, age: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows that go there, if there are any."""
        if self._only == age:
            yield batch
        elif self._only is None:
            mask = self._ages == age
            if mask.any():
                yield batch.filter(bools(mask))

    def all(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows that go anywhere."""
        if self._only is None:
            yield batch.filter(bools(self._ages != _GONE))
        elif self._only != _GONE:
            yield batch


# --- one sorted pass


class _Work:
    """The rows between sources and outputs: user columns, `__time`, and of `__diff` and `__end`
    what any source has.
    """

    def __init__(
        self,
        schema: TableSchema,
        memory_bytes: int,
        threads: int,
        *,
        marked: bool,
        ended: bool,
    ) -> None:
        self.schema = schema
        self.marked = marked
        self.arrow = schema.stored(time=True, diff=marked, end=ended)
        self._memory_bytes = memory_bytes
        self._threads = threads

    def ordered(
        self, sources: Sequence[Source], bounds: _Bounds
    ) -> Iterator[tuple[pa.RecordBatch, _Ages]]:
        """All rows by full key, then time, with their ages."""
        if self._is_paired:
            paired = _paired(sources, self.schema, bounds, self._memory_bytes, self._threads)
            return ((batch, _ages_of_rows(batch, bounds)) for batch in paired)
        each = [_updates(source, self.arrow, self._forward(bounds)) for source in sources]
        rows = chain.from_iterable(each)
        if len(sources) == 1 and sources[0].distinct:
            batches: Iterable[pa.RecordBatch] = each[0]
        elif _fit_in_memory(sources, self._memory_bytes):
            table = pa.Table.from_batches(rows, self.arrow)
            batches = batches_of(sort_table(table, self.schema.keys, then=[TIME]))
        else:
            batches = self._sorted(rows)
        return self._aged(batches, bounds)

    def ordered_runs(
        self, sources: Sequence[Source], runs: Sequence[Run], bounds: _Bounds, env: Env
    ) -> Iterator[tuple[pa.RecordBatch, _Ages]]:
        """The same of sources that can be decoded stretch by stretch."""
        if self._is_paired or len(sources) == 1:
            streams = in_turn(runs, env, ahead=self._threads + 2)
            whole = [replace(s, data=rows) for s, rows in zip(sources, streams, strict=True)]
            return self.ordered(whole, bounds)

        def updates(source: Source) -> Callable[[pa.Table], pa.Table]:
            def of(rows: pa.Table) -> pa.Table:
                found = _updates(replace(source, data=rows), self.arrow, self._forward(bounds))
                return pa.Table.from_batches(found, self.arrow)

            return of

        batches = merged(
            [run.mapped(updates(s)) for s, run in zip(sources, runs, strict=True)],
            KeyCodec(self.schema),
            then=[TIME],
            env=env,
            memory_bytes=self._memory_bytes,
            threads=self._threads,
            otherwise=self._sorted,
        )
        return self._aged(batches, bounds)

    @property
    def _is_paired(self) -> bool:
        return self.schema.kind == "rows" and self.marked

    def _forward(self, bounds: _Bounds) -> int | None:
        """Up to which time times are moved."""
        return bounds.since if self.schema.kind == "rows" else None

    def _aged(
        self, batches: Iterable[pa.RecordBatch], bounds: _Bounds
    ) -> Iterator[tuple[pa.RecordBatch, _Ages]]:
        if self.schema.kind != "rows":
            return _versions(batches, self.schema.keys, bounds)
        return ((batch, _ages_of_rows(batch, bounds)) for batch in batches)

    def _sorted(self, rows: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """The rows by full key, then time; of one time those that come later come last."""
        return sort_stream(  # type: ignore[no-any-return]  # pyarrow has no types
            rows,
            self.schema.keys,
            then=[TIME],
            stable=self.schema.kind != "rows",
            schema=self.arrow,
            memory_bytes=self._memory_bytes,
            threads=self._threads,
        )

    @staticmethod
    def cut(batch: pa.RecordBatch, arrow: pa.Schema) -> pa.RecordBatch:
        """The batch with the columns of an output."""
        columns = [batch.column(name) for name in arrow.names]
        return pa.RecordBatch.from_arrays(columns, schema=arrow)


def _fit_in_memory(sources: Sequence[Source], memory_bytes: int) -> bool:
    sizes = [s.data.nbytes for s in sources if isinstance(s.data, pa.Table)]
    return len(sizes) == len(sources) and sum(sizes) <= min(_IN_MEMORY_BYTES, memory_bytes)


def _updates(source: Source, arrow: pa.Schema, forward: int | None) -> Iterator[pa.RecordBatch]:
    """A source's rows with all columns of `arrow`, times before `forward` moved up to it."""
    time = source.time if forward is None else max(source.time, forward)
    missing = {TIME: time, DIFF: 1, END: _OPEN}
    for whole in batches_of(source.data):
        batch = whole
        there = set(batch.schema.names)
        if source.rows_from is not None and TIME in there:
            batch = batch.filter(pc.greater_equal(batch.column(TIME), int64(source.rows_from)))
        columns = []
        for field in arrow:
            if field.name in there:
                column = batch.column(field.name)
                if field.name == TIME and forward is not None:
                    column = pc.max_element_wise(column, int64(forward))
            else:
                column = constant(missing[field.name], batch.num_rows)
            columns.append(column)
        if batch.num_rows:
            yield pa.RecordBatch.from_arrays(columns, schema=arrow)


# --- keyed


def _versions(
    ordered: Iterable[pa.RecordBatch], keys: Sequence[str], bounds: _Bounds
) -> Iterator[tuple[pa.RecordBatch, _Ages]]:
    """Versions by key and time, each with its end in `__end`, and its age."""
    held: pa.RecordBatch | None = None
    for batch in ordered:
        if not batch.num_rows:
            continue
        if held is not None:
            yield _ended(held, batch, keys, bounds)
        held = batch
    if held is not None:
        yield _ended(held, None, keys, bounds)


def _ended(
    batch: pa.RecordBatch, following: pa.RecordBatch | None, keys: Sequence[str], bounds: _Bounds
) -> tuple[pa.RecordBatch, _Ages]:
    times = numbers_of(batch.column(TIME))
    ends = np.full(len(times), _OPEN, dtype=np.int64)  # when the next of the same key comes
    if len(times) > 1:
        same = truths_of(equal_to_next(batch, keys))
        ends[:-1][same] = times[1:][same]
    if following is not None:
        seam = [batch.slice(len(times) - 1).select(keys), following.slice(0, 1).select(keys)]
        if equal_to_next(pa.Table.from_batches(seam).combine_chunks(), keys)[0].as_py():
            ends[-1] = following.column(TIME)[0].as_py()
    if END in batch.schema.names:
        ends = np.minimum(ends, numbers_of(batch.column(END)))
    ages = np.full(len(times), _NEWER, dtype=np.int8)
    if bounds.split_at is not None:
        ages[times <= bounds.split_at] = _CURRENT
        ages[ends <= bounds.split_at] = _HISTORY
    if DIFF in batch.schema.names:
        marks = numbers_of(batch.column(DIFF)) < 0
        # SUBTLE: nothing that stays of the inputs needs the marker: all versions before it have
        # an end by now, at its time or earlier. What is outside does, unless it is history that
        # had ended by then.
        ages[marks] = _NEWER
        if bounds.markers_from is not None:
            may_go = (times >= bounds.markers_from) & (times <= bounds.markers_until)
            ages[marks & may_go] = _GONE
    # What ended up to since is seen by no read there is, nor does it hide anything: what did, and
    # is older, was ended by it. Of several at one time the last counts.
    ages[(ends <= bounds.since) | (ends <= times)] = _GONE
    return _with_end(batch, ends), _Ages(ages)


def _with_end(batch: pa.RecordBatch, ends: np.ndarray[Any, Any]) -> pa.RecordBatch:
    at = batch.schema.get_field_index(END)
    field = pa.field(END, pa.int64(), nullable=False)
    if at < 0:
        return batch.append_column(field, int64s(ends))
    return batch.set_column(at, field, int64s(ends))


# --- rows


def _ages_of_rows(batch: pa.RecordBatch, bounds: _Bounds) -> _Ages:
    """Rows tell by themselves: see `_paired`."""
    if bounds.split_at is None:
        return _Ages(np.full(batch.num_rows, _NEWER, dtype=np.int8))
    ages = np.full(batch.num_rows, _CURRENT, dtype=np.int8)
    ages[numbers_of(batch.column(TIME)) > bounds.split_at] = _NEWER
    if END in batch.schema.names:
        ends = numbers_of(batch.column(END))
        ages[ends <= bounds.split_at] = _HISTORY
        ages[ends == _ALONE] = _NEWER
        ages[(ends != _ALONE) & (ends <= bounds.since)] = _GONE
    return _Ages(ages)


def _paired(
    sources: Sequence[Source],
    schema: TableSchema,
    bounds: _Bounds,
    memory_bytes: int,
    threads: int,
) -> Iterable[pa.RecordBatch]:
    """Rows of a table in which rows were retracted, with `__diff` and `__end`.

    Only full keys that something else than one addition at a time has are looked at; others pass.
    """
    arrow = schema.stored(time=True, diff=True, end=True)
    rows = chain.from_iterable(_updates(source, arrow, bounds.since) for source in sources)
    passage = Passage(arrow)
    query = _pairing(passage, schema, bounds.split_at)
    if _fit_in_memory(sources, memory_bytes):
        return batches_of(run(pa.Table.from_batches(rows, arrow), passage, query))
    paired = stream(rows, passage, query, memory_bytes=memory_bytes, threads=threads)
    return batches_of(paired)


def _pairing(passage: Passage, schema: TableSchema, split_at: int | None) -> str:
    """The query that finds which retraction ends which row.

    Of equal rows the n-th retraction ends the n-th addition: `nth` numbers both by time, and puts
    the n-th retraction right behind the n-th addition. If one of them comes before its addition,
    or has none, that is not what happened to these rows alone: more of them is outside of the
    sources. Then all of them stay updates.
    """
    time, diff, end = passage.columns([TIME, DIFF, END])
    keys = ", ".join(passage.columns(schema.keys))
    row = ", ".join(passage.columns(schema.arrow.names))
    until = -1 if split_at is None else split_at
    return f"""
    WITH stored AS MATERIALIZED (SELECT * FROM source),
    touched AS MATERIALIZED (SELECT DISTINCT {keys} FROM stored WHERE {diff} <> 1),
    summed AS MATERIALIZED (
        SELECT {row}, {time}, CAST(sum({diff}) AS BIGINT) AS {diff}
        FROM stored SEMI JOIN touched USING ({keys})
        WHERE {end} = {_OPEN}
        GROUP BY {row}, {time}),
    single AS (
        SELECT {row}, {time}, CAST(sign({diff}) AS BIGINT) AS {diff},
            unnest(range(CAST(abs({diff}) AS BIGINT))) AS copy
        FROM summed),
    numbered AS (
        SELECT *, row_number() OVER (PARTITION BY {row}, {diff} ORDER BY {time}) AS nth
        FROM single
        WHERE {time} <= {until}),
    paired AS (
        SELECT *,
            coalesce(lag(nth) OVER pairs = nth AND lag({time}) OVER pairs < {time}, false) AS ends,
            CASE WHEN lead(nth) OVER pairs = nth THEN lead({time}) OVER pairs ELSE {_OPEN} END
                AS until
        FROM numbered
        WINDOW pairs AS (PARTITION BY {row} ORDER BY nth, {diff} DESC)),
    judged AS (
        SELECT *, bool_and({diff} > 0 OR ends) OVER (PARTITION BY {row}) AS sound
        FROM paired)
    SELECT {row}, {time}, {diff}, CASE WHEN sound THEN until ELSE {_ALONE} END AS {end}
    FROM judged
    WHERE {diff} > 0 OR NOT sound
    UNION ALL
    SELECT {row}, {time}, {diff}, CAST({_ALONE} AS BIGINT) AS {end}
    FROM single
    WHERE {time} > {until}
    UNION ALL
    SELECT stored.* FROM stored SEMI JOIN touched USING ({keys}) WHERE {end} <> {_OPEN}
    UNION ALL
    SELECT stored.* FROM stored ANTI JOIN touched USING ({keys})
    ORDER BY {keys}, {time}
    """  # noqa: S608  names of ours
