"""`format("strandline")`: Spark's Python data source, for reading and writing tables.

Spark asks it in processes of its own: one plans a read or ends a write, the workers read or write.
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

from strandline.connect import connect
from strandline.database import Database
from strandline.distributed import (
    Batch,
    Handover,
    Read,
    ReadSplit,
    TableVersion,
    check_reachable,
    opened,
    plan_read,
    read_of,
    schema_of,
    table_of,
)
from strandline.errors import StrandlineError, UsageError
from strandline.parts.rows.conform import conform
from strandline.pipeline.frames import arrow_for_spark, spark_schema, unsigned
from strandline.pipeline.pushed import pushed_of
from strandline.pipeline.tasks import unsigned_batches
from strandline.times import Micros, parse_as_of

__all__ = ["StrandlineSource", "splits_option"]

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
            check_reachable(self._url)

    @classmethod
    def name(cls) -> str:
        return "strandline"

    def schema(self) -> StructType:
        with _plainly():
            read = self._read()
            if "columns" in self._given:
                read = read.selecting(_names(self._given["columns"]))
            return spark_schema(read.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        with _plainly():
            self._refuse(_WRITES, "is for writes")
            read = self._read()
            read = read.selecting(_selected(schema, read), self._given.get("where"))
            return _Reader(read, schema, self._splits)

    def _read(self) -> Read:
        return read_of(opened(self._url), self._table, as_of=self._as_of)

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
                columns = schema_of(version)
                if upsert and columns.kind != "keyed":
                    raise UsageError(
                        f"table {version.name!r} is of kind {columns.kind!r}, whose rows have no "
                        "key of their own: leave the option 'mode' out to append"
                    )
                conform(unsigned(arrow_for_spark(schema).empty_table(), columns.arrow), columns)
                operation = "overwrite" if overwrite else "upsert" if upsert else "append"
                # Spark plans a write in one process and commits it in another.
                where = given.get("where")
                return _Writer(Handover.begin(db, version, operation, token=token, where=where))

    def _refuse(self, names: Sequence[str], why: str) -> None:
        for name in names:
            if name in self._given:
                raise UsageError(f"option {name!r} {why}; leave it out")

    def _target(self, db: Database, schema: StructType) -> TableVersion:
        """The table that is written to, made if there is none and its keys are given."""
        given = self._given
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
            db.create_table(self._table, arrow, exist_ok=True, **options)  # type: ignore[arg-type]  # it checks them
        version = table_of(db, self._table)
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


_Intervals = tuple[tuple[bytes, bytes | None], ...]


def splits_option(splits: Sequence[ReadSplit]) -> str:
    """Splits as an option, for `strandline.spark.table`: keys in hex, `lower-upper,…;…`."""
    return ";".join(",".join(map(_ends, split.intervals)) for split in splits)


def _ends(interval: tuple[bytes, bytes | None]) -> str:
    lower, upper = interval
    return f"{lower.hex()}-{'' if upper is None else upper.hex()}"


def _planned(text: str | None) -> list[_Intervals] | None:
    """What `splits_option` wrote."""
    if text is None:
        return None
    return [tuple(map(_interval, split.split(","))) for split in text.split(";")]


def _interval(ends: str) -> tuple[bytes, bytes | None]:
    lower, _, upper = ends.partition("-")
    return bytes.fromhex(lower), bytes.fromhex(upper) if upper else None


def _moment(text: str) -> Micros:
    return Micros(parse_as_of(Micros(int(text)) if text.isdigit() else text))


def _selected(schema: StructType, read: Read) -> tuple[str, ...]:
    """The columns of a schema that Spark was given for a read."""
    known = {field.name: field for field in spark_schema(read.schema)}
    for field in schema:
        there = known.get(field.name)
        if there is None or there.dataType != field.dataType:
            has = "no such column" if there is None else there.dataType.simpleString()
            raise UsageError(
                f"the schema asks for {field.simpleString()} of table {read.version.name!r}, "
                f"which has {has}; columns are {list(known)}"
            )
    if not len(schema):
        raise UsageError("the schema names no column")
    return tuple(field.name for field in schema)


# --- reading


@dataclass
class _Partition(InputPartition):
    """What one task reads; what all of them have in common, which may be large, the reader has."""

    intervals: _Intervals
    as_of: int | None


class _Reader(DataSourceReader):
    def __init__(self, read: Read, schema: StructType, splits: Sequence[_Intervals] | None) -> None:
        self._read = read
        self._schema = schema
        self._splits = splits

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802  Spark's
        also = pushed_of(filters, schema_of(self._read.version))
        self._read = replace(self._read, also=also)
        # Spark looks at every row again: what was pushed only leaves out what cannot match.
        yield from filters

    def partitions(self) -> Sequence[InputPartition]:
        with _plainly():
            read = self._read
            if self._splits is not None and read.as_of is not None:
                return [_Partition(intervals, read.as_of) for intervals in self._splits]
            plan = plan_read(read)
            return [_Partition(split.intervals, plan.read.as_of) for split in plan.splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _Partition):  # Spark's stand-in for a plan without any
            return
        arrow = arrow_for_spark(self._schema)
        read = replace(self._read, as_of=partition.as_of)
        for table in ReadSplit(read, partition.intervals).tables():
            yield from table.cast(arrow).to_batches(max_chunksize=65_536)


# --- writing


@dataclass
class _Written(WriterCommitMessage):
    """What one task wrote."""

    batch: Batch


class _Writer(DataSourceArrowWriter):
    """Stages parts in the tasks; commits them together, or not at all."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with _plainly():
            writer = self._handover.writer
            return _Written(writer(unsigned_batches(iterator, writer.schema.arrow)))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with _plainly():
            self._handover.commit(m.batch for m in messages if isinstance(m, _Written))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing was committed, so nothing is to be taken back."""
