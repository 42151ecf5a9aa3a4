"""Bulk import: parts the rows by key on Spark, sorts and writes them there, commits once here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from strandline.database import Database
from strandline.env import Deadline
from strandline.errors import LocationError, UsageError
from strandline.parts.files.write import write_parts
from strandline.parts.keys import KeyCodec
from strandline.parts.rows.conform import conform
from strandline.parts.rows.merge import last_rows, prepare_batch
from strandline.parts.rows.sort import sort_stream
from strandline.parts.schema import TableSchema
from strandline.pipeline.frames import fitted, frame_of, range_number, unsigned
from strandline.pipeline.ranges import halving_points, leaves_wanted, ranges_wanted
from strandline.pipeline.site import (
    PATIENCE_SECONDS,
    RESULT,
    Site,
    checked_results,
    guarded,
    handle_of,
    result_batch,
)
from strandline.pipeline.watching import Progress, progress_of, watched
from strandline.state.codec import decode_batch, encode_batch
from strandline.state.commands import Split, Write
from strandline.state.model import Batch, Part, TableVersion
from strandline.state.plan import leaf_at, leaf_bounds
from strandline.times import Commit
from strandline.txn.apply import apply_table
from strandline.txn.handle import Handle
from strandline.txn.properties import property_of
from strandline.write.commit import WriteOptions, build, commit_writes, first_commit

__all__ = ["batch_of", "commit_batch", "import_table", "write_rows"]

_SAMPLES = 4_096
"""Keys that a task of the sampling returns at most."""

_IN_MEMORY_BYTES = 256 << 20
"""Rows of one task that take no more are sorted as a table; more go through a sort that spills."""


def import_table(
    spark: SparkSession,
    db: Database,
    table: str,
    source: Any,
    *,
    token: tuple[str, int] | None = None,
    metadata: dict[str, str] | None = None,
    progress: Progress | bool | None = None,
    timeout: float | None = None,
) -> Commit:
    """Imports a DataFrame, or files, into a table, in one commit: all rows or none.

    `source` is a DataFrame, or a path or paths of Parquet, CSV (with a header) or JSON lines.
    Columns are matched by name; one that is missing and may be null is filled with nulls. Of a
    keyed table, the last row of a key wins; which one that is among files, or rows that Spark
    moved, is arbitrary. A table with too few leaves for the rows is split first. `progress` is
    called with (what, tasks done, tasks in all); True shows bars. `timeout` in seconds; None: as
    long as it takes. With `token`, an import that was committed before gives its commit.

    Raises `SchemaMismatch` (unknown or missing columns, null keys, values that do not fit),
    `UnknownTable`, `UsageError`, `DeadlineExceeded`; then nothing is committed.
    """
    handle = handle_of(db)
    if db._as_of is not None:  # noqa: SLF001  the shells' one door
        raise UsageError("this is the database as of an earlier time; import into the database")
    limit = PATIENCE_SECONDS if timeout is None else timeout
    options = WriteOptions.of(handle, "import", token, metadata, limit)
    before = first_commit(handle, options)
    if before is not None:
        return before
    store = handle.store
    version = store.txns.table(store.txns.look(options.deadline), table)
    with progress_of(progress) as tell:
        job = _Import(spark, handle, version, options, tell)
        batch = job.written(source)
    return commit_batch(handle, version, batch, options)


def commit_batch(
    handle: Handle, version: TableVersion, batch: Batch, options: WriteOptions
) -> Commit:
    """Commits a batch that tasks wrote, and applies it."""
    commit = commit_writes(handle, [(version, Write(version.table, batch))], options)
    try:
        apply_table(handle.store, version.table, handle.deadline(None))
    except LocationError:
        # The commit stands, and reads see it: whoever writes or compacts next applies it.
        return commit
    return commit


class _Import:
    """One import, from the source to parts that are durable and not committed."""

    def __init__(
        self,
        spark: SparkSession,
        handle: Handle,
        version: TableVersion,
        options: WriteOptions,
        tell: Progress,
    ) -> None:
        self._spark = spark
        self._handle = handle
        self._version = version
        self._tell = tell
        self._options = options
        self._deadline: Deadline = options.deadline
        self._schema = TableSchema.from_version(version)
        session = options.staging.session()
        self._site = Site.of_store(handle.store, version, session, options.token_text)

    def written(self, source: Any) -> Batch:
        """The batch of all rows of the source."""
        frame = fitted(frame_of(self._spark, source, self._schema), self._schema)
        sample, rows = self._sampled(frame)
        if not rows:
            return Batch()
        cores = _cores(self._spark)
        self._pre_split(sample, rows, cores)
        machine = self._handle.store.data(self._version.table)
        leaves = machine.known().ask(leaf_bounds)
        wanted = ranges_wanted(rows, len(leaves) + 1, cores)
        bounds = sorted({*leaves, *halving_points(sample, leaves, wanted)})
        parted = frame.repartitionById(len(bounds) + 1, range_number(self._schema, bounds))
        write = _Writing(self._site, tuple(leaves))
        results = self._collected(parted, write, "importing")
        return batch_of(self._handle, self._version, results, self._options)

    def _sampled(self, frame: DataFrame) -> tuple[list[bytes], int]:
        """Encoded row keys drawn evenly, ascending, and the exact number of rows."""
        keys = _key_schema(self._schema)
        results = self._collected(frame.select(*keys.arrow.names), _Sampling(keys), "sampling")
        found = [_Sample.from_bytes(result) for result in results]
        coarsest = max((sample.level for sample in found), default=0)
        drawn = [key for sample in found for key in sample.keys[:: 1 << (coarsest - sample.level)]]
        return sorted(drawn), sum(sample.rows for sample in found)

    def _pre_split(self, sample: Sequence[bytes], rows: int, cores: int) -> None:
        """Splits leaves at the sample's medians until there are enough for the rows."""
        machine = self._handle.store.data(self._version.table)
        look = machine.look(self._deadline)
        bounds = look.ask(leaf_bounds)
        wanted = leaves_wanted(rows, int(property_of(self._version, "split_rows")), cores)
        by_leaf: dict[tuple[int, bytes], list[bytes]] = {}
        for point in sorted(halving_points(sample, bounds, wanted)):
            leaf = look.ask(partial(leaf_at, key=point))
            by_leaf.setdefault((leaf.id, leaf.interval.lower), []).append(point)
        for (leaf_id, lower), points in by_leaf.items():
            # False where another split it meanwhile: then there are more leaves all the same.
            split = Split(leaf_id, lower, tuple(points))
            machine.submit(split, self._deadline)

    def _collected(
        self, frame: DataFrame, work: Callable[[Iterable[pa.RecordBatch]], Any], what: str
    ) -> list[bytes]:
        env = self._handle.store.env
        with watched(self._spark, env, what, self._tell, self._deadline):
            # Of several attempts of a task, collect gives the result of one.
            return checked_results(frame.mapInArrow(work, RESULT).collect())


def batch_of(
    handle: Handle, version: TableVersion, results: Sequence[bytes], options: WriteOptions
) -> Batch:
    """One batch of what the tasks wrote, each an encoded batch."""
    schema = TableSchema.from_version(version)
    parts: list[Part] = sorted(
        (part for result in results for part in decode_batch(result).parts),
        key=lambda part: part.lower,
    )
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


def _cores(spark: SparkSession) -> int:
    context = getattr(spark, "_sc", None)
    if context is not None:
        return int(context.defaultParallelism)
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)


def _key_schema(schema: TableSchema) -> TableSchema:
    """The row keys alone."""
    fields = [schema.arrow.field(name) for name in schema.row_keys]
    return replace(schema, arrow=pa.schema(fields), sort_keys=())


# --- in the executors


@dataclass(frozen=True)
class _Sample:
    """Every `2 ** level`-th of a task's keys, about, and how many there were."""

    rows: int
    level: int
    keys: list[bytes]

    def to_bytes(self) -> bytes:
        about = {b"rows": str(self.rows).encode(), b"level": str(self.level).encode()}
        schema = pa.schema([pa.field("key", pa.binary())], metadata=about)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write(pa.record_batch([pa.array(self.keys, pa.binary())], schema=schema))
        return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]

    @classmethod
    def from_bytes(cls, data: bytes) -> _Sample:
        table = pa.ipc.open_stream(data).read_all()
        about = table.schema.metadata
        return cls(int(about[b"rows"]), int(about[b"level"]), table.column(0).to_pylist())


@dataclass(frozen=True)
class _Sampling:
    """Draws keys of a task's rows, and checks all of them along the way."""

    schema: TableSchema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield result_batch(*guarded(lambda: self._sample(batches).to_bytes()))

    def _sample(self, batches: Iterable[pa.RecordBatch]) -> _Sample:
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
        return _Sample(rows, level, [key for _, key in kept])


def _trailing_zeros(start: int, count: int) -> Any:
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
    table = unsigned(pa.Table.from_batches([batch]), schema)
    reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches())
    batch = next(iter(conform(reader, schema)), None)
    return _empty(schema) if batch is None else batch


def _empty(schema: TableSchema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema.arrow)


@dataclass(frozen=True)
class _Writing:
    """Sorts a task's rows and writes them as parts, which end at the bounds of leaves."""

    site: Site
    cuts: tuple[bytes, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield result_batch(
            *guarded(lambda: encode_batch(write_rows(self.site, batches, self.cuts)))
        )


def write_rows(site: Site, batches: Iterable[pa.RecordBatch], cuts: Sequence[bytes] = ()) -> Batch:
    """The rows as a batch of parts, sorted; of a keyed table the last row of each key."""
    schema = TableSchema.from_version(site.version)
    held: list[pa.RecordBatch] = []
    size = 0
    incoming = (_conformed(batch, schema) for batch in batches)
    rows: pa.Table | Iterator[pa.RecordBatch] | None = None
    for batch in incoming:
        held.append(batch)
        size += batch.nbytes
        if size > _IN_MEMORY_BYTES:
            rows = _sorted_stream(site, schema, held, incoming)
            break
    if rows is None:
        table = pa.Table.from_batches(held, schema.arrow)
        held.clear()
        if not table.num_rows:
            return Batch()
        rows, _ = prepare_batch(table.combine_chunks(), schema)
    parts = write_parts(
        site.workplace().blob,
        site.new_part_key,
        rows,
        schema,
        identity=site.identity,
        settings=site.settings,
        deadline=site.deadline(),
        cuts=cuts,
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
