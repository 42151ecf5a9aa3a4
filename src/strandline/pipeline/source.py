"""`format("strandline")`: Spark's Python data source, for reading and writing tables.

Spark asks it in processes of its own: one plans a read or ends a write, the workers read or write.
A plan fixes one time and cuts the keys into intervals; a task reads its interval as of that time,
from the table as it is stored by then. So nothing of a plan can go out of date, and it is small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches

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

from strandline.connect import connect, decode_marker
from strandline.database import Database
from strandline.engine.conditions import Condition, compile_where
from strandline.env import Deadline
from strandline.errors import StrandlineError, UsageError
from strandline.ids import MARKER_KEY, SessionId
from strandline.location import BlobMissing
from strandline.parts.keys import KeyCodec, KeyRange
from strandline.parts.rows.conform import conform
from strandline.parts.typed import typed
from strandline.pipeline.frames import arrow_for_spark, spark_schema, unsigned
from strandline.pipeline.importing import batch_of, commit_batch, write_rows
from strandline.pipeline.pushed import Pushed, pushed_of
from strandline.pipeline.ranges import halving_points
from strandline.pipeline.site import PATIENCE_SECONDS, Site, handle_of
from strandline.read.question import parts_of
from strandline.read.reading import Reading
from strandline.read.want import Want, columns_of
from strandline.state.codec import encode_batch
from strandline.state.model import EVERYTHING, Interval, TableVersion
from strandline.state.plan import ReadTask, united
from strandline.times import Micros, parse_as_of
from strandline.txn.handle import Handle
from strandline.txn.view import view_of
from strandline.write.commit import WriteOptions, first_commit
from strandline.write.edits import Selection, overwrite

__all__ = ["StrandlineSource", "split_intervals"]

_SPLIT_ROWS = 1_000_000
"""Rows that one task reads, about."""

_OPTIONS = {
    "url": "url",
    "table": "table",
    "path": "path",
    "asof": "asOf",
    "as_of": "asOf",
    "columns": "columns",
    "where": "where",
    "mode": "mode",
    "token": "token",
    "rowkeys": "rowKeys",
    "row_keys": "rowKeys",
    "sortkeys": "sortKeys",
    "sort_keys": "sortKeys",
    "kind": "kind",
    "splits": "splits",
}
"""Options as Spark writes them, in small letters, and what they are called here."""

_READS = ("columns", "asOf", "splits")
_WRITES = ("mode", "token", "rowKeys", "sortKeys", "kind")


class StrandlineSource(DataSource):
    """Options: url and table, or `load("lake/readings")` for both.

    For reads: asOf (an ISO time with a zone, or µs), columns ("a, b"), where (a SQL condition). For
    writes: mode ("upsert": only into a keyed table), token ("scope:number"), where (with overwrite:
    the rows that are replaced), and for a table that is not there yet rowKeys ("a, b"), sortKeys
    and kind.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        with _plainly():
            given = _known(options)
            self._given = given
            self._url, self._table = _place(given)
            self._as_of = _moment(given["asOf"]) if "asOf" in given else None
            self._splits = _planned(given.get("splits"))
            if self._url.startswith("memory:"):
                raise UsageError(
                    f"the database {self._url} lives in the memory of one process, where Spark "
                    "does not reach it; use a directory"
                )

    @classmethod
    def name(cls) -> str:
        return "strandline"

    def schema(self) -> StructType:
        with _plainly():
            version = _version(opened(self._url), self._table, self._as_of)
            whole = spark_schema(typed(version)[0].arrow)
            if "columns" not in self._given:
                return whole
            names = columns_of(version, _names(self._given["columns"]))
            return StructType([whole[name] for name in names])

    def reader(self, schema: StructType) -> DataSourceReader:
        with _plainly():
            self._refuse(_WRITES, "is for writes")
            version = _version(opened(self._url), self._table, self._as_of)
            columns = _selected(schema, version)
            where = self._given.get("where")
            compile_where(where, typed(version)[0], version.name)
            return _Reader(
                self._url, version, columns, schema, self._as_of, self._splits, where=where
            )

    def writer(self, schema: StructType, overwrite: bool) -> _Writer:  # noqa: FBT001  Spark's
        with _plainly():
            self._refuse(_READS, "is for reads")
            given = self._given
            if "where" in given and not overwrite:
                raise UsageError("option 'where' says what overwrite replaces; leave it out")
            upsert = given.get("mode") == "upsert"
            if "mode" in given and (overwrite or not upsert):
                raise UsageError(
                    f"option 'mode' is {given['mode']!r}: write .mode(\"append\") or "
                    '.mode("overwrite"), or .option("mode", "upsert").mode("append")'
                )
            token = _token(given.get("token"))
            with connect(self._url, create="rowKeys" in given) as db:
                version = self._target(db, schema)
                handle = handle_of(db)
                columns = typed(version)[0]
                if upsert and columns.kind != "keyed":
                    raise UsageError(
                        f"table {version.name!r} is of kind {columns.kind!r}, whose rows have no "
                        "key of their own: leave the option 'mode' out to append"
                    )
                compile_where(given.get("where"), columns, version.name)
                conform(unsigned(arrow_for_spark(schema).empty_table(), columns), columns)
                # Spark plans a write in one process and commits it in another.
                session = handle.store.txns.machine.hand_over()
                site = Site.of_store(handle.store, version, session)
                operation = "overwrite" if overwrite else "upsert" if upsert else "append"
                return _Writer(site, operation, token, given.get("where"))

    def _refuse(self, names: Sequence[str], why: str) -> None:
        for name in names:
            if name in self._given:
                raise UsageError(f"option {name!r} {why}; leave it out")

    def _target(self, db: Database, schema: StructType) -> TableVersion:
        """The table that is written to, made if there is none and its keys are given."""
        given, handle = self._given, handle_of(db)
        wanted = {
            "row_keys": _names(given["rowKeys"]) if "rowKeys" in given else None,
            "sort_keys": _names(given["sortKeys"]) if "sortKeys" in given else None,
            "kind": given.get("kind"),
        }
        if self._table not in db:
            if wanted["row_keys"] is None:
                raise UsageError(
                    f"there is no table {self._table!r}; name one of {db.tables()}, or write "
                    '.option("rowKeys", "a, b") to make it with those columns as row keys'
                )
            arrow = arrow_for_spark(schema)
            options = {name: value for name, value in wanted.items() if value is not None}
            db.create_table(self._table, arrow, exist_ok=True, **options)  # type: ignore[arg-type]
        version = _version(handle, self._table, None)
        for name, value in wanted.items():
            if value is not None and getattr(version, name) != value:
                raise UsageError(
                    f"table {self._table!r} is there, and its {name} is {getattr(version, name)}, "
                    f"not {value}; leave that option out"
                )
        return version


@contextmanager
def _plainly() -> Iterator[None]:
    """Our errors without the calls that led to them, of which Spark would show every line."""
    try:
        yield
    except StrandlineError as error:
        error.__cause__ = error.__context__ = None
        raise error.with_traceback(None) from None


def _known(options: Mapping[str, str]) -> dict[str, str]:
    """The options under their names here; UsageError names what is near to one that is unknown."""
    given: dict[str, str] = {}
    for name, value in options.items():
        known = _OPTIONS.get(name.casefold())
        if known is None:
            near = get_close_matches(name.casefold(), _OPTIONS, 1)
            hint = f"; did you mean {_OPTIONS[near[0]]!r}?" if near else ";"
            names = ", ".join(n for n in dict.fromkeys(_OPTIONS.values()) if n != "splits")
            raise UsageError(f"format('strandline') has no option {name!r}{hint} it takes {names}")
        if known in given:
            raise UsageError(f"option {known!r} is given twice")
        given[known] = value
    return given


def _place(given: Mapping[str, str]) -> tuple[str, str]:
    """The database and the table; of `load("lake/readings")` the last name is the table's."""
    url, table, path = (given.get(name) for name in ("url", "table", "path"))
    if path and url is None and table is None:
        url, _, table = path.rstrip("/").rpartition("/")
    elif path and url is None:
        url = path
    elif path and table is None:
        table = path
    elif path:
        raise UsageError(f"url, table and the path {path!r} are given; leave the path out")
    for name, value in (("url", url), ("table", table)):
        if not value:
            raise UsageError(
                f'option {name!r} is missing: write .option("url", "lake")'
                '.option("table", "readings"), or .load("lake/readings")'
            )
    return str(url), str(table)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _token(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    scope, _, number = text.rpartition(":")
    if not scope or not number.isdecimal():
        raise UsageError(f"option 'token' is {text!r}: write it as scope:number, such as load:7")
    return scope, int(number)


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
    return txns.table(txns.look(), table, as_of)


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
        *,
        where: str | None = None,
    ) -> None:
        self._splits = splits
        self._where = where
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

    def _condition(self) -> Condition | None:
        """What the user asked for, and what leaves out rows that Spark would."""
        asked = compile_where(self._where, typed(self._version)[0], self._version.name)
        if asked is None or self._pushed is None:
            return self._pushed if asked is None else asked
        return _Both(asked, self._pushed)

    def partitions(self) -> Sequence[InputPartition]:
        with _plainly():
            return self._plan()

    def _plan(self) -> Sequence[InputPartition]:
        if self._splits is not None and self._as_of is not None:
            return [_Split(tuple(split), self._as_of) for split in self._splits]
        handle = opened(self._url)
        deadline = handle.deadline(None)
        want = Want(self._columns, condition=self._condition(), ordered=False)
        reading = reading_of(handle, self._version, want, self._as_of, deadline)
        splits = split_intervals(handle, reading, deadline)
        return [_Split(tuple(split), reading.view.as_of) for split in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _Split):  # Spark's stand-in for a plan without any
            return
        handle = opened(self._url)
        ranges = ranges_of(partition.intervals)
        want = Want(self._columns, ranges, self._condition(), ordered=False)
        deadline = handle.deadline(None)
        arrow = arrow_for_spark(self._schema)
        reading = reading_of(handle, self._version, want, partition.as_of, deadline)
        for table in reading.tables():
            yield from table.cast(arrow).to_batches(max_chunksize=65_536)


class _Both:
    """Rows that match two conditions."""

    reads_others = False

    def __init__(self, first: Condition, second: Condition) -> None:
        self._both = (first, second)
        self.columns = tuple(dict.fromkeys([*first.columns, *second.columns]))
        self.comparisons = (*first.comparisons, *second.comparisons)

    def select(self, table: pa.Table) -> pa.Table:
        for condition in self._both:
            table = condition.select(table)
        return table


def reading_of(
    handle: Handle, version: TableVersion, want: Want, as_of: int | None, deadline: Deadline
) -> Reading:
    """The read of a table; None as `as_of` is the latest time."""
    view = view_of(handle.store, version.table, as_of, deadline)
    # Columns are those of the version that was planned with.
    view = replace(view, version=version)
    return Reading.of(handle, view, want, deadline)


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
            for key, _ in reader.quantiles(part, deadline)
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

    def __init__(
        self, site: Site, operation: str, token: tuple[str, int] | None, where: str | None
    ) -> None:
        self._site = site
        self._operation = operation
        self._token = token
        self._where = where

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with _plainly():
            return _Written(encode_batch(write_rows(self._site, iterator)))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        results = [m.batch for m in messages if isinstance(m, _Written)]
        version = self._site.version
        with _plainly(), connect(self._site.url, create=False) as db:
            handle = handle_of(db)
            handle.store.txns.machine.adopt(SessionId(self._site.identity.session))
            options = WriteOptions.of(handle, self._operation, self._token, None, PATIENCE_SECONDS)
            if first_commit(handle, options) is not None:
                return
            batch = batch_of(handle, version, results, options)
            if self._operation == "overwrite":
                condition = compile_where(self._where, typed(version)[0], version.name)
                replaced = Selection(Want(condition=condition))
                overwrite(handle, version, replaced, batch, options)
            else:
                commit_batch(handle, version, batch, options)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing was committed, so nothing is to be taken back."""
