"""Writes by tasks: each sorts its rows and writes them as parts; the driver commits all at once."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.connect import connect
from strandline.database import Database
from strandline.distributed.ranges import halving_points, leaves_wanted, ranges_wanted
from strandline.distributed.site import (
    PATIENCE_SECONDS,
    Site,
    handle_of,
    moment_of,
    schema_of,
)
from strandline.engine.conditions import compile_where
from strandline.env import Deadline
from strandline.errors import Conflict, LocationError, StrandlineError, UsageError
from strandline.ids import SessionId
from strandline.parts.files.write import write_parts
from strandline.parts.keys import KeyCodec
from strandline.parts.rows.conform import conform
from strandline.parts.rows.merge import last_rows, prepare_batch
from strandline.parts.rows.sort import sort_stream
from strandline.parts.schema import TableSchema
from strandline.read.want import Want
from strandline.state.commands import Split, Write
from strandline.state.model import Batch, Part, TableVersion
from strandline.state.plan import leaf_at, leaf_bounds
from strandline.times import Commit
from strandline.txn.apply import apply_table
from strandline.txn.handle import Handle
from strandline.txn.properties import property_of
from strandline.write.commit import WriteOptions, build, commit_writes, first_commit
from strandline.write.edits import Selection, overwrite

__all__ = ["Batch", "BulkWrite", "Handover", "PartWriter", "Sample", "Sampler", "begin_write"]

_SAMPLES = 4_096
"""Keys that a task of the sampling returns at most."""

_IN_MEMORY_BYTES = 256 << 20
"""Rows of one task that take no more are sorted as a table; more go through a sort that spills."""

_log = logging.getLogger("strandline")


# --- on the driver


def begin_write(
    db: Database,
    table: str,
    operation: str,
    *,
    token: tuple[str, int] | None = None,
    metadata: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> BulkWrite | Commit:
    """Begins a write to a table; or the commit that was made with the token before.

    `operation` is what the history calls it. `timeout` (seconds; None: as long as it takes) is for
    all of it. Errors: UnknownTable; UsageError, also if no other process reaches the database.
    """
    handle = handle_of(db)
    if moment_of(db) is not None:
        raise UsageError("this is the database as of an earlier time; import into the database")
    limit = PATIENCE_SECONDS if timeout is None else timeout
    options = WriteOptions.of(handle, operation, token, metadata, limit)
    before = first_commit(handle, options)
    if before is not None:
        return before
    txns = handle.store.txns
    version = txns.table(txns.look(options.deadline), table)
    session = options.staging.session()
    return BulkWrite(
        handle, version, options, Site.of(handle.store, version, session, options.token_text)
    )


class BulkWrite:
    """One write, from its begin to its commit. For as long as it lives, and no longer than its
    deadline, the session that tasks write under is kept alive.
    """

    def __init__(
        self, handle: Handle, version: TableVersion, options: WriteOptions, site: Site
    ) -> None:
        self.schema: TableSchema = schema_of(version)
        self.deadline: Deadline = options.deadline
        self._handle = handle
        self._version = version
        self._options = options
        self._site = site
        self._sent = False
        """Whether a commit of it was made, or may have been."""

    def sampler(self) -> Sampler:
        """What tasks look at their rows with, to tell where the keys are to be cut."""
        fields = [self.schema.arrow.field(name) for name in self.schema.row_keys]
        return Sampler(replace(self.schema, arrow=pa.schema(fields), sort_keys=()))

    def plan(self, samples: Iterable[Sample], cores: int) -> tuple[list[bytes], PartWriter]:
        """Ascending encoded row keys between which the rows go to one task each, and what those
        write them with. A table with too few leaves for the rows is split first.
        """
        sample, rows = _gathered(samples)
        self._split(sample, rows, cores)
        machine = self._handle.store.data(self._version.table)
        leaves = machine.known().ask(leaf_bounds)
        wanted = ranges_wanted(rows, len(leaves) + 1, cores)
        bounds = sorted({*leaves, *halving_points(sample, leaves, wanted)})
        return bounds, PartWriter(self._site, tuple(leaves))

    def commit(self, written: Iterable[Batch]) -> Commit:
        """One commit of what the tasks' writers returned: all rows or none, of a keyed table one of
        each key. Durable and visible when this returns. What was returned twice counts once. After
        one that was made, or may have been, another is refused, unless the write has a token.
        """
        if self._sent and self._options.token is None:
            raise UsageError(
                "this write was committed, or may have been: its parts cannot be committed again; "
                "begin another one and write them anew, with a token to have it once"
            )
        batch = _batch_of(self._handle, self._version, written, self._options)
        # SUBTLE: parts that two commits name cannot be applied, so that nothing after them is.
        self._sent = True
        try:
            return _committed(self._handle, self._version, batch, self._options)
        except (Conflict, LocationError) as error:
            self._sent = isinstance(error, LocationError) and error.may_have_happened
            raise

    def _split(self, sample: Sequence[bytes], rows: int, cores: int) -> None:
        """Splits leaves at the sample's medians until there are enough for the rows."""
        machine = self._handle.store.data(self._version.table)
        look = machine.look(self.deadline)
        bounds = look.ask(leaf_bounds)
        wanted = leaves_wanted(rows, int(property_of(self._version, "split_rows")), cores)
        by_leaf: dict[tuple[int, bytes], list[bytes]] = {}
        for point in sorted(halving_points(sample, bounds, wanted)):
            leaf = look.ask(partial(leaf_at, key=point))
            by_leaf.setdefault((leaf.id, leaf.interval.lower), []).append(point)
        for (leaf_id, lower), points in by_leaf.items():
            # False where another split it meanwhile: then there are more leaves all the same.
            split = Split(leaf_id, lower, tuple(points))
            machine.submit(split, self.deadline)


@dataclass(frozen=True)
class Handover:
    """A write that one process begins and another commits, as plain data.

    The session that tasks write under is nobody's meanwhile: it lasts for its lease.
    """

    operation: str
    """ "append", "upsert" or "overwrite"."""
    token: tuple[str, int] | None
    where: str | None
    """Which rows an overwrite replaces; None: all."""
    writer: PartWriter

    @classmethod
    def begin(
        cls,
        db: Database,
        version: TableVersion,
        operation: str,
        *,
        token: tuple[str, int] | None = None,
        where: str | None = None,
    ) -> Handover:
        """Begins a write to a table and gives the session away. Errors: UsageError."""
        compile_where(where, schema_of(version), version.name)
        store = handle_of(db).store
        session = store.txns.machine.hand_over()
        return cls(operation, token, where, PartWriter(Site.of(store, version, session)))

    def commit(self, written: Iterable[Batch]) -> Commit:
        """Like `BulkWrite.commit`, once and in any process that reaches the log."""
        site = self.writer.site
        version = site.version
        with connect(site.url, create=False) as db:
            handle = handle_of(db)
            handle.store.txns.machine.adopt(SessionId(site.identity.session))
            options = WriteOptions.of(handle, self.operation, self.token, None, PATIENCE_SECONDS)
            before = first_commit(handle, options)
            if before is not None:
                return before
            batch = _batch_of(handle, version, written, options)
            if self.operation != "overwrite":
                return _committed(handle, version, batch, options)
            condition = compile_where(self.where, schema_of(version), version.name)
            replaced = Selection(Want(condition=condition))
            return overwrite(handle, version, replaced, batch, options)


def _gathered(samples: Iterable[Sample]) -> tuple[list[bytes], int]:
    """Encoded row keys drawn evenly of all samples, ascending, and the exact number of rows."""
    found = list(samples)
    coarsest = max((sample.level for sample in found), default=0)
    drawn = [key for sample in found for key in sample.keys[:: 1 << (coarsest - sample.level)]]
    return sorted(drawn), sum(sample.rows for sample in found)


def _batch_of(
    handle: Handle, version: TableVersion, written: Iterable[Batch], options: WriteOptions
) -> Batch:
    """One batch of what the tasks wrote."""
    schema = schema_of(version)
    named = {part.key: part for batch in written for part in batch.parts}
    parts = sorted(named.values(), key=lambda part: part.lower)
    if not parts:
        return Batch()
    apart = all(a.upper < b.lower for a, b in pairwise(parts))
    if not apart and schema.kind == "keyed":
        # Of rows of one key in one commit only one may be left; so all are sorted once more.
        return build(handle, version, _read_back(handle, schema, parts, options), options)
    return Batch(
        parts=tuple(parts),
        rows=sum(part.rows for part in parts),
        lower=parts[0].lower,
        upper=max(part.upper for part in parts),
        has_diff=any(part.has_diff for part in parts),
        distinct=apart and all(part.distinct for part in parts),
        schema_version=schema.version,
    )


def _read_back(
    handle: Handle, schema: TableSchema, parts: Sequence[Part], options: WriteOptions
) -> pa.RecordBatchReader:
    reader, columns = handle.store.reader, schema.arrow.names
    batches = (
        batch
        for part in parts
        for batch in reader.batches(part, schema, columns=columns, deadline=options.deadline)
    )
    return pa.RecordBatchReader.from_batches(schema.arrow, batches)


def _committed(
    handle: Handle, version: TableVersion, batch: Batch, options: WriteOptions
) -> Commit:
    """Commits a batch that tasks wrote, and applies it."""
    commit = commit_writes(handle, [(version, Write(version.table, batch))], options)
    try:
        apply_table(handle.store, version.table, handle.deadline(None))
    except StrandlineError as error:
        # The commit stands, and reads see it: whoever writes or compacts next applies it.
        _log.warning("a commit to %r is to be applied later: %s", version.name, error)
    return commit


# --- in a task


@dataclass(frozen=True)
class Sample:
    """Every `2 ** level`-th of a task's keys, about, and how many there were."""

    rows: int
    level: int
    keys: list[bytes]


@dataclass(frozen=True)
class Sampler:
    """Draws keys of a task's rows, and checks all of them along the way. Plain data."""

    schema: TableSchema
    """The columns that it is to be given: the row keys."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Sample:
        """A sample for `BulkWrite.plan`. Errors: SchemaMismatch."""
        codec = KeyCodec(self.schema)
        rows = level = 0
        kept: list[tuple[int, bytes]] = []
        for given in batches:
            batch = _conformed(given, self.schema)
            zeros = _trailing_zeros(rows, batch.num_rows)
            rows += batch.num_rows
            drawn = np.flatnonzero(zeros >= level)
            keys = codec.encode_rows(batch, drawn.tolist())
            kept += zip(zeros[drawn].tolist(), keys, strict=True)
            while len(kept) > _SAMPLES:
                level += 1
                kept = [(zero, key) for zero, key in kept if zero >= level]
        return Sample(rows, level, [key for _, key in kept])


def _trailing_zeros(start: int, count: int) -> npt.NDArray[np.int_]:
    """For each row number how many zero bits its hash ends in: a draw that any process repeats.

    A hash, because every n-th row would always meet the same keys of data that repeat.
    """
    mixed = np.arange(start, start + count, dtype=np.uint64)
    with np.errstate(over="ignore"):
        mixed = mixed * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
        lowest = mixed & (~mixed + np.uint64(1))
    return np.where(lowest == 0, 64, np.log2(np.maximum(lowest, 1).astype(np.float64))).astype(int)


def _conformed(batch: pa.RecordBatch, schema: TableSchema) -> pa.RecordBatch:
    reader = pa.RecordBatchReader.from_batches(batch.schema, [batch])
    return next(iter(conform(reader, schema)), pa.RecordBatch.from_pylist([], schema.arrow))


@dataclass(frozen=True)
class PartWriter:
    """Sorts a task's rows and writes them as parts that end at the bounds of leaves. Plain data."""

    site: Site
    cuts: tuple[bytes, ...] = ()

    @property
    def schema(self) -> TableSchema:
        """The columns that it is to be given."""
        return schema_of(self.site.version)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Batch:
        """Parts for `BulkWrite.commit`, durable; nobody sees them yet. What an attempt leaves that
        is not committed is swept with its session. Errors: SchemaMismatch, LocationError.
        """
        schema = self.schema
        held: list[pa.RecordBatch] = []
        size = 0
        incoming = (_conformed(batch, schema) for batch in batches)
        rows: pa.Table | Iterator[pa.RecordBatch] | None = None
        for batch in incoming:
            held.append(batch)
            size += batch.nbytes
            if size > _IN_MEMORY_BYTES:
                rows = _sorted_stream(self.site, schema, held, incoming)
                break
        if rows is None:
            table = pa.Table.from_batches(held, schema.arrow)
            held.clear()
            if not table.num_rows:
                return Batch()
            rows, _ = prepare_batch(table.combine_chunks(), schema)
        place = self.site.workplace()
        parts = write_parts(
            place.blob,
            self.site.new_part_key,
            rows,
            schema,
            identity=self.site.identity,
            settings=self.site.settings,
            deadline=place.deadline(),
            cuts=self.cuts,
        )
        return Batch(parts=tuple(parts), rows=sum(part.rows for part in parts))


def _sorted_stream(
    site: Site, schema: TableSchema, held: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    def all_of_it() -> Iterator[pa.RecordBatch]:
        while held:
            yield held.pop(0)
        yield from rest

    keyed = schema.kind == "keyed"
    ordered = sort_stream(
        all_of_it(),
        schema.keys,
        memory_bytes=site.settings.sort_memory_bytes,
        threads=1,
        stable=keyed,
        schema=schema.arrow,
    )
    return last_rows(ordered, schema.keys) if keyed else iter(ordered)
