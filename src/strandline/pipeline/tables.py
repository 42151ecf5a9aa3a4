"""Tables as DataFrames at native speed: settled parts by Spark's own reader, the rest beside.

Settled is a part all of whose rows are live at the time that is read. What has to be merged, or
is in few rows that no part has yet, is added by the data source and as local rows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from strandline.database import Database
from strandline.env import Deadline
from strandline.errors import LocationError
from strandline.location import BlobMissing
from strandline.parts.schema import DIFF
from strandline.pipeline.frames import arrow_for_spark, quoted, spark_schema
from strandline.pipeline.site import PATIENCE_SECONDS, Site, handle_of
from strandline.pipeline.source import StrandlineSource, reading_of, split_intervals
from strandline.pipeline.verifying import verify_parts
from strandline.read.question import parts_of
from strandline.read.reading import Reading
from strandline.read.want import Want
from strandline.state.model import Interval, Part, TableVersion
from strandline.state.plan import ReadTask, united
from strandline.times import parse_as_of
from strandline.txn.handle import Handle
from strandline.txn.view import views as views_of

__all__ = ["register", "table", "views"]

_GLOB = re.compile(r"[\[\]{}*?\\]")


def register(spark: SparkSession) -> None:
    """Makes `format("strandline")` known to a session; doing it again is harmless."""
    spark.dataSource.register(StrandlineSource)


def table(
    spark: SparkSession, db: Database, name: str, *, as_of: Any = None, timeout: float | None = None
) -> DataFrame:
    """A table as a DataFrame, as of one moment, which is fixed now (None: the latest time).

    Parts that hold live rows only are left to Spark's Parquet reader, with its pruning, once this
    process had them verified whole: the first time a part is met, and again if its file was
    written to. `timeout` (seconds) is for planning, and for verifying if it is given. Errors:
    `UnknownTable`, `AsOfTooOld`, `AsOfInFuture`, `Corruption` (something stored is damaged).
    """
    handle = handle_of(db)
    deadline, patience = _deadlines(handle, timeout)
    moment = db._as_of if as_of is None else parse_as_of(as_of)  # noqa: SLF001  the shells' door
    txns = handle.store.txns
    look = txns.look(deadline)
    version = txns.table(look, name, moment)
    return _frame(spark, handle, version, moment, deadline, patience)


def views(
    spark: SparkSession, db: Database, *, as_of: Any = None, timeout: float | None = None
) -> list[str]:
    """A temporary view for every table, all as of one moment; their names."""
    handle = handle_of(db)
    deadline, patience = _deadlines(handle, timeout)
    moment = db._as_of if as_of is None else parse_as_of(as_of)  # noqa: SLF001  the shells' door
    found = views_of(handle.store, None, moment, deadline)
    for view in found:
        frame = _frame(spark, handle, view.version, view.as_of, deadline, patience)
        frame.createOrReplaceTempView(quoted(view.version.name))
    return [view.version.name for view in found]


def _deadlines(handle: Handle, timeout: float | None) -> tuple[Deadline, Deadline]:
    """By when to have planned, and by when to have verified, which takes as long as data are."""
    patience = handle.deadline(PATIENCE_SECONDS if timeout is None else timeout)
    return handle.deadline(timeout), patience


def _frame(
    spark: SparkSession,
    handle: Handle,
    version: TableVersion,
    as_of: int | None,
    deadline: Deadline,
    patience: Deadline,
) -> DataFrame:
    site = Site.of(handle, version)  # refuses what executors do not reach
    reading = reading_of(handle, version, Want(ordered=False), as_of, deadline)
    schema = spark_schema(reading.question.schema.arrow)
    split = _Split(handle, reading)
    frames = []
    paths = [split.path(part) for part in split.native]
    if paths:
        try:
            verify_parts(spark, handle, site, split.native, patience)
        except BlobMissing as error:
            reading.check_missing(error)
            raise LocationError(
                f"table {version.name!r} was compacted while it was being verified; read it again",
                may_have_happened=False,
            ) from error
        reader = spark.read.schema(schema)
        # Without it Spark takes damaged pages for good ones.
        reader = reader.option("parquet.page.verify-checksum.enabled", "true")
        # It also keeps directories named like column=value from becoming columns.
        reader = reader.option("recursiveFileLookup", "true")
        frames.append(reader.parquet(*paths))
    if split.local:
        arrow = arrow_for_spark(schema)
        rows = pa.concat_tables([rows.cast(arrow) for rows in split.local])
        frames.append(spark.createDataFrame(rows, schema))
    if split.merged:
        frames.append(_merged(spark, handle, reading, split.merged, deadline))
    if not frames:
        frames.append(spark.createDataFrame([], schema))
    return reduce(DataFrame.unionAll, frames)


def _merged(
    spark: SparkSession,
    handle: Handle,
    reading: Reading,
    tasks: Sequence[ReadTask],
    deadline: Deadline,
) -> DataFrame:
    """What has to be merged, by the data source."""
    splits = split_intervals(handle, reading, deadline, chosen=tasks)
    register(spark)
    source = spark.read.format("strandline").option("url", handle.origin.url)
    source = source.option("table", reading.view.version.name)
    text = ";".join(",".join(_ends(i) for i in split) for split in splits)
    return source.option("asOf", str(reading.view.as_of)).option("splits", text).load()


def _ends(interval: Interval) -> str:
    upper = "" if interval.upper is None else interval.upper.hex()
    return f"{interval.lower.hex()}-{upper}"


class _Split:
    """Which sources of a read go which way."""

    def __init__(self, handle: Handle, reading: Reading) -> None:
        self._root = handle.origin.url
        self._version = reading.view.version
        self.native: list[Part] = []
        self.local: list[pa.Table] = []
        self.merged: list[ReadTask] = []
        readable = os.path.isdir(self._root) and not _GLOB.search(self._root)  # noqa: PTH112
        clean = [task for task in reading.tasks if readable and reading.question.is_clean(task)]
        clean = self._whole(clean)
        chosen = {id(task) for task in clean}
        self.merged = [task for task in reading.tasks if id(task) not in chosen]
        parts = {part.key: part for task in clean for part, _, _ in parts_of(task)}
        self.native = list(parts.values())
        entries = {id(e): e for task in clean for e in task.entries if e.batch.inline}
        for entry in entries.values():
            rows = handle.overlay.rows(entry, reading.question.schema)
            self.local.append(rows.drop_columns([DIFF]) if DIFF in rows.column_names else rows)

    def path(self, part: Part) -> str:
        """The part's file, as Spark names it."""
        return f"file:{self._root}/{part.key}"

    def _whole(self, tasks: list[ReadTask]) -> list[ReadTask]:
        """Those tasks of which every source is wholly in such tasks: Spark reads whole files."""
        while True:
            good = {s for s, places in _places(tasks).items() if _fills(*places)}
            kept = [t for t in tasks if all(s in good for s, _, _ in _sources(t))]
            kept = [t for t in kept if all(self._current(part) for part, _, _ in parts_of(t))]
            if len(kept) == len(tasks):
                return kept
            tasks = kept

    def _current(self, part: Part) -> bool:
        return part.schema_version == self._version.version


def _sources(task: ReadTask) -> list[tuple[str, Interval, Interval]]:
    """Each source with its span and the place in the task."""
    found = [(part.key, part.span, place) for part, place, _ in parts_of(task)]
    for entry in task.entries:
        if entry.batch.inline:
            span = Interval(entry.batch.lower, entry.batch.upper + b"\0")
            found.append((f"{entry.time}/{entry.ordinal}", span, span))
    bounds = task.leaf.interval
    return [(key, span, both) for key, span, p in found if (both := p.intersect(bounds))]


def _places(tasks: Sequence[ReadTask]) -> dict[str, tuple[Interval, list[Interval]]]:
    places: dict[str, tuple[Interval, list[Interval]]] = {}
    for task in tasks:
        for key, span, place in _sources(task):
            places.setdefault(key, (span, []))[1].append(place)
    return places


def _fills(span: Interval, places: Sequence[Interval]) -> bool:
    return united(places) == [span]
