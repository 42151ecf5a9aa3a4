"""Rows of files that others wrote, as a table has them: Parquet, CSV or JSON, in bounded memory.

What is relied on in DuckDB: `sniff_csv` tells how a CSV file is cut and `DESCRIBE` what columns
others have; with that every type is told to `read_csv` and `read_json`, so that nothing is guessed
from the first rows; results are streamed in the order of the file, which says what row of a key is
the last one.
"""

from __future__ import annotations

import csv
import glob
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import types

from strandline.engine.duck import (
    Duck,
    bounded,
    drained,
    file_errors,
    files,
    is_usage,
    literal,
    quoted,
    refused,
    usage_errors,
)
from strandline.engine.expressions import sql_types
from strandline.env import Deadline
from strandline.errors import LocationError, SchemaMismatch, StrandlineError, UsageError
from strandline.parts.rows.conform import conform
from strandline.parts.schema import TableSchema

__all__ = ["OPTIONS", "Importing"]

_BATCH_ROWS = 65_536
_FIRST_BYTES = 1 << 20

_TEXT = {"compression", "dateformat", "timestampformat", "ignore_errors"}
OPTIONS = {
    "parquet": {"binary_as_string", "hive_partitioning"},
    "csv": _TEXT
    | {"header", "delim", "quote", "escape", "nullstr", "encoding", "skip", "comment", "new_line"}
    | {"decimal_separator", "thousands", "max_line_size", "buffer_size", "null_padding"}
    | {"strict_mode", "force_not_null", "allow_quoted_nulls"},
    "json": _TEXT | {"array", "maximum_object_size"},
}
"""The forms that a file may have, each with the options for reading it."""

_SNIFFED_BY = {"delim", "quote", "escape", "encoding", "skip", "comment", "compression", "new_line"}

Places = list[tuple[str, str]]
"""Columns of a file, each with the table's column that it goes to."""


@dataclass(frozen=True, slots=True)
class Importing:
    """A table that files are read for."""

    said: str
    schema: TableSchema
    columns: Sequence[str] | None
    form: str
    options: Mapping[str, Any]
    deadline: Deadline

    def rows(self, path: Path) -> Iterator[pa.RecordBatch]:
        """All rows of one file."""
        if not path.stat().st_size:
            return
        said = f"{self.said} {path}"
        with closing(files(ordered=False)) as cursor, _told(said):

            def begun() -> pa.RecordBatchReader:
                types_ = sql_types(cursor, self.schema.arrow)
                query = _QUERIES[self.form](self, cursor, str(path), types_)
                return cursor.sql(query).to_arrow_reader(_BATCH_ROWS)

            found = bounded(begun, [cursor], self.deadline, said)
            batches = drained(found, [cursor], lambda: self.deadline, said)
            reader = pa.RecordBatchReader.from_batches(found.schema, batches)
            if self.form != "parquet":
                reader = _whole_numbers(reader, self.schema.arrow)
            yield from conform(reader, self.schema)

    def by_name(self, names: Sequence[str], hint: str = "") -> Places:
        """Where columns with names go: where they are called so, all that are listed or known."""
        known = {name.casefold(): name for name in self.schema.arrow.names}
        wanted = None if self.columns is None else set(self.columns)
        places = [
            (name, known.get(name.casefold(), name))
            for name in names
            if wanted is None or known.get(name.casefold()) in wanted
        ]
        missing = sorted((wanted or set()) - {column for _, column in places})
        if missing:
            raise SchemaMismatch(f"there is no column {missing[0]!r} in it; there are {names}")
        targets = Counter(column for _, column in places)
        unknown = targets.keys() - set(known.values())
        for column, count in targets.items():
            if column in unknown:
                raise SchemaMismatch(
                    f"column {column!r} is not in the table, whose columns are "
                    f"{self.schema.arrow.names}{hint}"
                )
            if count > 1:
                raise SchemaMismatch(f"column {column!r} occurs twice")
        return places

    def by_place(self, names: Sequence[str] | None) -> Places:
        """Where columns go in their order; `names`: what a first line calls them."""
        columns = self.schema.arrow.names if self.columns is None else list(self.columns)
        if names is None:
            return [(column, column) for column in columns]
        if len(names) != len(columns):
            raise SchemaMismatch(f"it has {len(names)} columns, {names}, and {columns} are listed")
        called = [name.casefold() for name in names]
        for name, column in zip(called, columns, strict=True):
            # In the order of the list, as in PostgreSQL; but never against what the file says.
            if column.casefold() in called and name != column.casefold():
                raise SchemaMismatch(
                    f"its columns are in the order {names}: list them so, or leave the list out"
                )
        distinct = [f"{number} {name}" for number, name in enumerate(names)]
        return list(zip(distinct, columns, strict=True))


def _select(places: Places, source: str, casts: Mapping[str, str]) -> str:
    items = ", ".join(
        f"{casts.get(column, '{}').format(quoted(name))} AS {quoted(column)}"
        for name, column in places
    )
    return f"SELECT {items} FROM {source}"  # noqa: S608  quoted


def _call(function: str, path: str, options: Mapping[str, Any]) -> str:
    # SUBTLE: DuckDB takes a path for a pattern, where this is the one file of that name.
    given = "".join(f", {quoted(name)} = {literal(value)}" for name, value in options.items())
    return f"{function}({literal(glob.escape(path))}{given})"


def _described(cursor: Duck, source: str) -> dict[str, str]:
    """The columns, with their types."""
    rows = cursor.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()  # noqa: S608  quoted
    return {row[0]: row[1] for row in rows}


def _parquet_query(into: Importing, cursor: Duck, path: str, kinds: Mapping[str, str]) -> str:
    source = _call("read_parquet", path, {"hive_partitioning": False, **into.options})
    described = _described(cursor, source)
    places = into.by_name(list(described))
    # What has types is taken as `append` takes it, which refuses what would lose something. But a
    # decimal, as SQL makes them of numbers, is as good a float as its text in a CSV file.
    floats = {
        column: f"CAST({{}} AS {kinds[column]})"
        for name, column in places
        if described[name].startswith("DECIMAL") and kinds[column] in {"DOUBLE", "FLOAT"}
    }
    return _select(places, source, floats)


def _json_query(into: Importing, cursor: Duck, path: str, kinds: Mapping[str, str]) -> str:
    options = dict(into.options)
    if "array" in options:
        options["format"] = "array" if options.pop("array") else "newline_delimited"
    # All rows are looked at, for names alone: one that comes late is not to be lost.
    names = {"sample_size": -1, "maximum_depth": 1, "map_inference_threshold": -1}
    looked = {k: v for k, v in options.items() if k not in {"dateformat", "timestampformat"}}
    found = _described(cursor, _call("read_json", path, {**looked, **names, "records": "true"}))
    places = into.by_name(list(found))
    columns = {name: _read_as(kinds[column], options) for name, column in places}
    source = _call("read_json", path, {**options, "columns": columns})
    return _select(places, source, _moments(places, columns, kinds))


def _csv_query(into: Importing, cursor: Duck, path: str, kinds: Mapping[str, str]) -> str:
    # As CSV is written here and by PostgreSQL: nothing is null, two quotes are an empty text.
    fixed = {"quote": '"', "escape": '"', "comment": "", "skip": 0, "allow_quoted_nulls": False}
    options = {**fixed, **into.options}
    header = options.pop("header", None)
    if header is not None and not isinstance(header, bool):
        header = str(header).lower() in {"1", "match"}
    look = {k: v for k, v in options.items() if k in _SNIFFED_BY}
    cut = _sniffed(cursor, path, look, header=header)
    if len(cut.names) == 1 and "delim" not in options:
        # Where rows differ in length, any other delimiter seems to be a better guess.
        cut = _sniffed(cursor, path, {**look, "delim": ","}, header=header)
    places = _csv_places(into, cut, header=header)
    columns = {name: _read_as(kinds[column], options) for name, column in places}
    told: dict[str, Any] = {"auto_detect": False, "delim": cut.delim}
    told |= {} if cut.new_line is None else {"new_line": cut.new_line}
    told |= {**options, "header": cut.names_given, "columns": columns}
    source = _call("read_csv", path, told)
    return _select(places, source, _moments(places, columns, kinds))


@dataclass(frozen=True, slots=True)
class _Cut:
    """How a CSV file is cut."""

    names_given: bool
    delim: str
    new_line: str | None
    names: list[str]


def _sniffed(cursor: Duck, path: str, look: Mapping[str, Any], *, header: bool | None) -> _Cut:
    """How a file is cut. A line of names is told by DuckDB where `header` does not say."""
    lenient = {"all_varchar": True, "null_padding": True, "strict_mode": False}
    given: dict[str, Any] = {**look, **lenient, "ignore_errors": True}
    if header is not None:
        given["header"] = header
    source = _call("sniff_csv", path, given)
    query = f"SELECT HasHeader, Delimiter, NewLineDelimiter, Columns FROM {source}"  # noqa: S608  quoted
    try:
        ((names_given, delim, new_line, columns),) = cursor.execute(query).fetchall()
    except usage_errors():
        # Rows of several lengths. Reading tells which; what is needed for that is the first.
        delim = str(look.get("delim", ","))
        return _Cut(header is not False, delim, None, _first_row(path, look, delim))
    return _Cut(names_given, delim, new_line, [column["name"] for column in columns])


def _first_row(path: str, look: Mapping[str, Any], delim: str) -> list[str]:
    with pa.input_stream(path, compression="detect") as stream:
        text = stream.read(_FIRST_BYTES).decode(errors="replace")
    quote = str(look["quote"]) or None
    lines = text.splitlines(keepends=True)[int(look["skip"]) :]
    rows = csv.reader(
        lines,
        delimiter=delim,
        quotechar=quote,
        quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
    )
    return next(rows, [])


def _csv_places(into: Importing, cut: _Cut, *, header: bool | None) -> Places:
    if not cut.names_given:
        return into.by_place(None)
    known = {name.casefold() for name in into.schema.arrow.names}
    if header is None and not known & {name.casefold() for name in cut.names}:
        # SUBTLE: DuckDB's guess, of which rows of text alone tell nothing, and which would either
        # lose the first row or fail.
        raise SchemaMismatch(
            f"its first line, {cut.names}, may be names or a row: write (HEADER) or (HEADER false)"
        )
    if into.columns is not None:
        return into.by_place(cut.names)
    return into.by_name(
        cut.names, "; list the columns, COPY t (a, b) FROM …, to name them by their order"
    )


_WHOLE = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT"}
_WHOLE |= {f"U{kind}" for kind in _WHOLE}
_MOMENT = "TIMESTAMP WITH TIME ZONE"


def _read_as(kind: str, options: Mapping[str, Any]) -> str:
    """What values of a column are read as from text.

    SUBTLE: read as an integer, 1.7 would be 2. So they are read as what holds both. Of more
    digits Arrow refuses some integers near 2**64. And a format goes for times without a zone
    alone; one that it tells is taken off.
    """
    if kind == _MOMENT and "timestampformat" in options:
        return "TIMESTAMP"
    return "DECIMAL(38, 9)" if kind in _WHOLE else kind


def _moments(
    places: Places, columns: Mapping[str, str], kinds: Mapping[str, str]
) -> dict[str, str]:
    """Columns that were read as times without a zone and are in UTC.

    SUBTLE: a CAST would be done by DuckDB while it reads, where the format is then not used.
    """
    read = {column: (columns[name], kinds[column]) for name, column in places}
    return {
        column: "timezone('UTC', {})"
        for column, pair in read.items()
        if pair == ("TIMESTAMP", _MOMENT)
    }


_QUERIES: dict[str, Callable[[Importing, Duck, str, Mapping[str, str]], str]] = {
    "csv": _csv_query,
    "json": _json_query,
    "parquet": _parquet_query,
}


def _whole_numbers(reader: pa.RecordBatchReader, schema: pa.Schema) -> pa.RecordBatchReader:
    """The same rows, with integers where the table has them."""
    fields = [
        pa.field(field.name, wanted) if _is_whole(wanted, field.type) else field
        for field in reader.schema
        for wanted in [schema.field(field.name).type]
    ]

    def batches() -> Iterator[pa.RecordBatch]:
        base = 0
        for batch in reader:
            arrays = [
                column if column.type == field.type else _whole(column, field, base)
                for column, field in zip(batch.columns, fields, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
            base += batch.num_rows

    return pa.RecordBatchReader.from_batches(pa.schema(fields), batches())


def _is_whole(wanted: pa.DataType, given: pa.DataType) -> bool:
    return bool(types.is_integer(wanted) and types.is_decimal(given))


def _whole(column: pa.Array, field: pa.Field, base: int) -> pa.Array:
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid:
        row, value = next(
            (row, value) for row, value in enumerate(column.to_pylist()) if not _fits(value, field)
        )
        raise SchemaMismatch(
            f"column {field.name!r} is {value.normalize():f} in row {base + row}, and of type "
            f"{field.type}"
        ) from None


def _fits(value: Decimal | None, field: pa.Field) -> bool:
    try:
        pa.scalar(None if value is None else int(value), field.type)
    except (pa.ArrowInvalid, OverflowError):
        return False
    return value is None or value == int(value)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Errors about what is in a file as `SchemaMismatch`, with the file and its line."""
    try:
        yield
    except LocationError:  # the deadline's, which is an OSError, too
        raise
    except StrandlineError as error:
        counted = " (the first row is row 0)" if " in row " in str(error) else ""
        raise SchemaMismatch(f"{what}: {error}{counted}") from error
    except (*usage_errors(), *file_errors(), pa.ArrowException, OSError) as error:
        found = _LINE.search(str(error))
        if found is not None:
            line, rest = found.groups()
            reason = _REASON.search(rest)
            why = " ".join((reason.group(0) if reason else rest).split("\n")[0].split())
            raise SchemaMismatch(f"{what}, line {line}: {why}") from error
        if is_usage(error):
            raise SchemaMismatch(str(refused(what, error))) from error
        raise UsageError(f"{what} cannot be read: {error}") from error


_LINE = re.compile(r"[Ll]ine:? (\d+)[:\n]? *(.*)", re.DOTALL)
_REASON = re.compile(r"(Error when converting .*|Expected Number .*|Value with .*|Maximum .*)")
