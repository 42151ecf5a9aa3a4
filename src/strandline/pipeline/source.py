"""`format("strandline")`: Spark's Python data source, for reading and writing tables.

Spark asks it in processes of its own: one plans a read or ends a write, the workers read or write.
A plan fixes one time and cuts the keys into intervals; a task reads its interval as of that time,
from the table as it is stored by then. So nothing of a plan can go out of date, and it is small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    Filter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from strandline.changes import Selection, overwrite
from strandline.connect import connect, decode_marker
from strandline.database import Database
from strandline.env import Deadline
from strandline.errors import UsageError
from strandline.handle import Handle
from strandline.ids import MARKER_KEY, SessionId
from strandline.location import BlobMissing
from strandline.parts.conform import conform
from strandline.parts.keys import KeyCodec, KeyRange
from strandline.pipeline.frames import arrow_for_spark, spark_schema, unsigned
from strandline.pipeline.importing import batch_of, commit_batch, write_rows
from strandline.pipeline.pushed import Pushed, pushed_of
from strandline.pipeline.ranges import halving_points
from strandline.pipeline.site import PATIENCE_SECONDS, Site, handle_of
from strandline.reading import Reading, Want, parts_of, typed
from strandline.state.codec import encode_batch
from strandline.state.model import EVERYTHING, Interval, TableVersion
from strandline.state.plan import ReadTask, united
from strandline.times import Micros, parse_as_of
from strandline.txn.view import view_of
from strandline.writing import WriteOptions

__all__ = ["StrandlineSource", "split_intervals"]

_SPLIT_ROWS = 1_000_000
"""Rows that one task reads, about."""

_NAMES = "url, table and asOf"


class StrandlineSource(DataSource):
    """Options: url (a directory), table, and for reads asOf (an ISO time with a zone, or µs)."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        given = {name.casefold(): value for name, value in options.items()}
        self._url = _option(given, "url")
        self._table = _option(given, "table")
        text = given.get("asof")
        self._as_of = None if text is None else _moment(text)
        self._splits = _planned(given.get("splits"))
        if self._url.startswith("memory:"):
            raise UsageError(
                f"the database {self._url} lives in the memory of one process, where Spark does "
                "not reach it; use a directory"
            )

    @classmethod
    def name(cls) -> str:
        return "strandline"

    def schema(self) -> StructType:
        handle = opened(self._url)
        return spark_schema(typed(_version(handle, self._table, self._as_of))[0].arrow)

    def reader(self, schema: StructType) -> DataSourceReader:
        handle = opened(self._url)
        version = _version(handle, self._table, self._as_of)
        columns = _selected(schema, version)
        return _Reader(self._url, version, columns, schema, self._as_of, self._splits)

    def writer(self, schema: StructType, overwrite: bool) -> _Writer:  # noqa: FBT001  Spark's
        if self._as_of is not None:
            raise UsageError("asOf= is for reads; leave it out to write")
        with connect(self._url, create=False) as db:
            handle = handle_of(db)
            version = _version(handle, self._table, None)
            columns = typed(version)[0]
            conform(unsigned(arrow_for_spark(schema).empty_table(), columns), columns)
            # Spark plans a write in one process and commits it in another.
            session = handle.store.txns.machine.hand_over()
            site = Site.of_store(handle.store, version, session)
            return _Writer(site, overwrite=overwrite)


def _option(given: Mapping[str, str], name: str) -> str:
    value = given.get(name)
    if not value:
        raise UsageError(f"option {name!r} is missing: format('strandline') takes {_NAMES}")
    return value


def _planned(text: str | None) -> list[list[Interval]] | None:
    """The splits that `strandline.spark.table` planned: encoded keys in hex, `lower-upper,…;…`."""
    if text is None:
        return None
    return [[_interval(ends) for ends in split.split(",")] for split in text.split(";")]


def _interval(ends: str) -> Interval:
    lower, _, upper = ends.partition("-")
    return Interval(bytes.fromhex(lower), bytes.fromhex(upper) if upper else None)


def _moment(text: str) -> int:
    return parse_as_of(Micros(int(text)) if text.isdigit() else text)


_opened: dict[str, Database] = {}


def opened(url: str) -> Handle:
    """The database in this process, for reading; opened once."""
    found = _opened.get(url)
    if found is not None and not _is_there(handle_of(found)):
        del _opened[url]
        found.close()
        found = None
    if found is None:
        found = _opened[url] = connect(url, mode="r", create=False)
    return handle_of(found)


def _is_there(handle: Handle) -> bool:
    """Whether the place still has the same database: a worker may outlive a directory."""
    store = handle.store
    try:
        data = store.location.blob.get(MARKER_KEY, timeout=store.settings.timeout_seconds)
    except BlobMissing:
        return False
    return decode_marker(data, handle.origin.url).database == store.database


def _version(handle: Handle, table: str, as_of: int | None) -> TableVersion:
    txns = handle.store.txns
    state = txns.refresh(timeout=handle.store.settings.timeout_seconds)
    return txns.table(state, table, as_of)


def _selected(schema: StructType, version: TableVersion) -> tuple[str, ...]:
    known = {field.name: field for field in spark_schema(typed(version)[0].arrow)}
    for field in schema:
        there = known.get(field.name)
        if there is None or there.dataType != field.dataType:
            has = "no such column" if there is None else there.dataType.simpleString()
            raise UsageError(
                f"the schema asks for {field.simpleString()} of table {version.name!r}, which has "
                f"{has}; columns are {list(known)}"
            )
    if not len(schema):
        raise UsageError("the schema names no column")
    return tuple(field.name for field in schema)


# --- reading


@dataclass
class _Split(InputPartition):
    """What one task reads: some intervals of encoded keys, at one time."""

    intervals: tuple[tuple[bytes, bytes | None], ...]
    as_of: int


class _Reader(DataSourceReader):
    def __init__(
        self,
        url: str,
        version: TableVersion,
        columns: tuple[str, ...],
        schema: StructType,
        as_of: int | None,
        splits: Sequence[Sequence[Interval]] | None,
    ) -> None:
        self._splits = splits
        self._url = url
        self._version = version
        self._columns = columns
        self._schema = schema
        self._as_of = as_of
        self._pushed: Pushed | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802  Spark's
        self._pushed = pushed_of(filters, typed(self._version)[0])
        # Spark looks at every row again: what was pushed only leaves out what cannot match.
        yield from filters

    def partitions(self) -> Sequence[InputPartition]:
        if self._splits is not None and self._as_of is not None:
            return [_Split(tuple(split), self._as_of) for split in self._splits]
        handle = opened(self._url)
        deadline = handle.deadline(None)
        want = Want(self._columns, condition=self._pushed, ordered=False)
        reading = reading_of(handle, self._version, want, self._as_of, deadline)
        splits = split_intervals(handle, reading, deadline)
        return [_Split(tuple(split), reading.view.as_of) for split in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _Split):  # Spark's stand-in for a plan without any
            return
        handle = opened(self._url)
        ranges = ranges_of(partition.intervals)
        want = Want(self._columns, ranges, self._pushed, ordered=False)
        deadline = handle.deadline(None)
        arrow = arrow_for_spark(self._schema)
        reading = reading_of(handle, self._version, want, partition.as_of, deadline)
        for table in reading.tables():
            yield from table.cast(arrow).to_batches(max_chunksize=65_536)


def reading_of(
    handle: Handle, version: TableVersion, want: Want, as_of: int | None, deadline: Deadline
) -> Reading:
    """The read of a table; None as `as_of` is the latest time."""
    view = view_of(handle.store, version.table, as_of, timeout=deadline.remaining())
    # Columns are those of the version that was planned with.
    view = replace(view, version=version, schema=typed(version)[0])
    return Reading(handle, view, want, deadline)


@dataclass(frozen=True)
class _Encoded(KeyRange):
    """A range that is encoded already; its ends need not be encodings of keys."""

    encoded: Interval = EVERYTHING

    def interval(self, codec: KeyCodec) -> Interval:
        return self.encoded


def ranges_of(intervals: Sequence[tuple[bytes, bytes | None]]) -> tuple[KeyRange, ...]:
    """Encoded intervals as what a read is asked for."""
    return tuple(_Encoded(None, None, encoded=Interval(*ends)) for ends in intervals)


def split_intervals(
    handle: Handle,
    reading: Reading,
    deadline: Deadline,
    *,
    chosen: Sequence[ReadTask] | None = None,
) -> list[list[Interval]]:
    """Intervals of keys that together have all of a read, parted into tasks of similar size.

    `chosen`: only these of the read's tasks.
    """
    splits: list[list[Interval]] = []
    gathered = _SPLIT_ROWS
    for task in reading.tasks if chosen is None else chosen:
        placed = list(parts_of(task))
        rows = sum(part.rows for part, _, _ in placed) + sum(e.batch.rows for e in task.entries)
        if rows <= _SPLIT_ROWS:
            if gathered + rows > _SPLIT_ROWS:
                splits.append([])
                gathered = 0
            splits[-1] += task.own(task.intervals)
            gathered += rows
            continue
        reader = handle.store.reader
        sample = sorted(
            key
            for part, place, _ in placed
            for key, _ in reader.quantiles(part, timeout=deadline.remaining())
            if place.contains(key)
        )
        points = sorted(halving_points(sample, [], -(-rows // _SPLIT_ROWS)))
        for lower, upper in zip([b"", *points], [*points, None], strict=True):
            inside = [x for i in task.intervals if (x := i.intersect(Interval(lower, upper)))]
            if inside:
                splits.append(list(task.own(inside)))
        gathered = _SPLIT_ROWS
    return [united(split) for split in splits if split]


# --- writing


@dataclass
class _Written(WriterCommitMessage):
    """What one task wrote, an encoded batch."""

    batch: bytes


class _Writer(DataSourceArrowWriter):
    """Stages parts in the tasks; commits them together, or not at all."""

    def __init__(self, site: Site, *, overwrite: bool) -> None:
        self._site = site
        self._overwrite = overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _Written(encode_batch(write_rows(self._site, iterator)))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        results = [m.batch for m in messages if isinstance(m, _Written)]
        operation = "overwrite" if self._overwrite else "append"
        version = self._site.version
        with connect(self._site.url, create=False) as db:
            handle = handle_of(db)
            handle.store.txns.machine.adopt(SessionId(self._site.identity.session))
            options = WriteOptions.of(handle, operation, None, None, PATIENCE_SECONDS)
            batch = batch_of(handle, version, results, options)
            if self._overwrite:
                overwrite(handle, version, Selection(Want()), batch, options)
            else:
                commit_batch(handle, version, batch, options)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing was committed, so nothing is to be taken back."""
