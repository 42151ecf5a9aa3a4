"""COPY: rows from files of this machine, and rows into one, in bounded memory.

A user's text never runs where files can be opened. Its options are evaluated where none can, and
given as values to a statement that is put together here; so is the query of `COPY (…) TO`, of
which only the rows come here.

What is relied on in DuckDB: `sniff_csv` tells how a CSV file is cut and `DESCRIBE` what columns
others have; with that every type is told to `read_csv` and `read_json`, so that nothing is guessed
from the first rows; results are streamed in the order of the file, which says what row of a key is
the last one; `COPY … TO` writes an Arrow stream as it comes, in its order.
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
    Failures,
    bounded,
    drained,
    file_errors,
    files,
    instance,
    interrupted,
    is_usage,
    literal,
    quoted,
    refused,
    tokens,
    usage_errors,
)
from strandline.engine.exporting import appearing, check_target, format_of
from strandline.engine.expressions import sql_types
from strandline.engine.statements import Copy
from strandline.env import Deadline
from strandline.errors import LocationError, SchemaMismatch, StrandlineError, UsageError
from strandline.parts.rows.conform import conform
from strandline.parts.schema import TableSchema

__all__ = ["Rows", "columns_named", "copied_from", "copy_to"]

Rows = Callable[[Failures, list[Duck]], pa.RecordBatchReader]
"""Gives the rows to write; told where to keep its failures, and on which connections it runs."""

_BATCH_ROWS = 65_536
_FIRST_BYTES = 1 << 20
_ROWS = "__strandline_rows"

_FORMATS = ("parquet", "csv", "json")
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}

_SAME = {
    "delimiter": "delim",
    "sep": "delim",
    "null": "nullstr",
    "date_format": "dateformat",
    "timestamp_format": "timestampformat",
    "maximum_line_size": "max_line_size",
}
"""Options of COPY that functions of DuckDB call otherwise."""

_TEXT = {"compression", "dateformat", "timestampformat", "ignore_errors"}
_KNOWN = {
    "csv": _TEXT
    | {"header", "delim", "quote", "escape", "nullstr", "encoding", "skip", "comment", "new_line"}
    | {"decimal_separator", "thousands", "max_line_size", "buffer_size", "null_padding"}
    | {"strict_mode", "force_not_null", "allow_quoted_nulls"},
    "json": _TEXT | {"array", "maximum_object_size"},
    "parquet": {"binary_as_string", "hive_partitioning"},
}
"""Options of COPY FROM."""

_SNIFFED_BY = {"delim", "quote", "escape", "encoding", "skip", "comment", "compression", "new_line"}

_SEVERAL_FILES = {
    "append",
    "file_extension",
    "file_size_bytes",
    "filename_pattern",
    "overwrite_or_ignore",
    "partition_by",
    "per_thread_output",
    "return_files",
    "return_stats",
    "row_groups_per_file",
    "use_tmp_file",
    "write_empty_file",
    "write_partition_columns",
}
"""Options of COPY TO that are about files in a directory, or about how a file is made whole."""


# --- what a statement says


@dataclass(frozen=True, slots=True)
class _Asked:
    """What file or files, in what form, with what options."""

    path: str
    form: str
    options: dict[str, Any]


def columns_named(statement: Copy, known: Sequence[str]) -> tuple[str, ...] | None:
    """The table's columns that a statement lists, as the table writes them."""
    if statement.columns is None:
        return None
    names = {name.casefold(): name for name in known}
    for name in statement.columns:
        if name.casefold() not in names:
            raise UsageError(
                f"COPY {statement.source}: there is no column {name!r}; there are {list(known)}"
            )
    found = tuple(names[name.casefold()] for name in statement.columns)
    if len(set(found)) < len(found):
        raise UsageError(f"COPY {statement.source}: a column is listed twice in {list(found)}")
    return found


def _asked(statement: Copy, deadline: Deadline) -> _Asked:
    options = {_SAME.get(k, k): _value(k, text, deadline) for k, text in statement.options.items()}
    if len(options) < len(statement.options):
        raise UsageError("COPY has an option twice, under two of its names")
    path = str(_evaluated("the file", statement.file, deadline))
    if re.match(r"[a-z][a-z0-9+.-]+:/", path, re.IGNORECASE):
        raise UsageError(
            f"COPY is for files of this machine, and {path!r} is a URL: write the path of a file, "
            "such as '/data/file.parquet', and fetch or send it with a tool for that"
        )
    if not path:
        raise UsageError("COPY has an empty path: write that of a file, such as 'file.parquet'")
    if Path(path).expanduser().is_dir():
        inside = "*.parquet" if statement.is_from else "file.parquet"
        raise UsageError(f"{path} is a directory: write '{path.rstrip('/')}/{inside}'")
    form = options.pop("format", None) or _format_of(Path(path))
    if str(form).lower() not in _FORMATS:
        raise UsageError(
            f"what {path!r} is to be is not clear: name it .parquet, .csv or .json, or write "
            f"(FORMAT csv), one of {', '.join(_FORMATS)}"
        )
    return _Asked(path, str(form).lower(), options)


def _format_of(path: Path) -> str | None:
    return format_of(path.with_suffix("") if path.suffix.lower() in _COMPRESSIONS else path)


def _value(option: str, text: str, deadline: Deadline) -> Any:
    """The value of an option: a word, names in parentheses, or what DuckDB makes of it."""
    if not text:
        return True
    if text == "*":
        return "*"
    words = [word for word in tokens(text) if word.word]
    if len(words) == 1 and words[0].kind in {"identifier", "keyword"}:
        word = _plain(words[0].word)
        return {"true": True, "on": True, "false": False, "off": False}.get(word.casefold(), word)
    inner = words[1:-1]
    if words[0].word == "(" and all(w.word == "," or _is_name(w.kind) for w in inner):
        return [_plain(w.word) for w in inner if w.word != ","]
    return _evaluated(f"the option {option.upper()}", text, deadline)


def _is_name(kind: str) -> bool:
    return kind in {"identifier", "keyword"}


def _plain(word: str) -> str:
    return word[1:-1].replace('""', '"') if word.startswith('"') else word


def _evaluated(what: str, text: str, deadline: Deadline) -> Any:
    """The value of an expression, found where there are no files to read."""
    with closing(instance(ordered=True)) as cursor:
        with Failures().told(f"COPY: {what}, {text}, has no value"):
            rows = bounded(
                lambda: cursor.execute(f"SELECT {text}").fetchall(),
                [cursor],
                deadline,
                f"COPY: {what}, {text},",
            )
        if len(rows) != 1 or len(rows[0]) != 1:
            raise UsageError(f"COPY: {what}, {text}, is no single value")
        return rows[0][0]


# --- from files


def copied_from(
    statement: Copy, schema: TableSchema, columns: Sequence[str] | None, deadline: Deadline
) -> pa.RecordBatchReader:
    """The rows of the files, file after file, in the columns of the table, as they are read.

    `columns`: those listed. Raises `UsageError` for what is wrong with the statement;
    `SchemaMismatch`, while it is read, for rows that do not fit, with file and line or row.
    """
    asked = _asked(statement, deadline)
    unknown = sorted(asked.options.keys() - _KNOWN[asked.form])
    if unknown:
        raise UsageError(
            f"COPY FROM has no option {unknown[0].upper()} for {asked.form}; it has "
            f"{', '.join(sorted(_KNOWN[asked.form])).upper()}"
        )
    paths = _found(asked.path)
    said = f"COPY {statement.source} FROM"
    into = _Into(said, schema, columns, asked, deadline)
    batches = (batch for path in paths for batch in into.rows(path))
    return pa.RecordBatchReader.from_batches(schema.arrow, batches)


def _found(pattern: str) -> list[Path]:
    """The files of that path, or of that pattern, sorted."""
    whole = Path(pattern).expanduser()
    if whole.is_file():
        return [whole]
    if whole.exists():
        raise UsageError(f"{pattern} is no regular file, and COPY reads a file more than once")
    paths = [Path(name) for name in sorted(glob.glob(str(whole), recursive=True))]  # noqa: PTH207
    paths = [path for path in paths if path.is_file()]
    if not paths:
        special = sorted({*pattern} & {*"*?["})
        remedy = ", ".join(f"[{sign}] for {sign}" for sign in special)
        raise UsageError(
            f"there is no file {pattern}"
            + (f"; in a name that has such signs itself, write {remedy}" if remedy else "")
        )
    return paths


Places = list[tuple[str, str]]
"""Columns of a file, each with the table's column that it goes to."""


@dataclass(frozen=True, slots=True)
class _Into:
    """A table that files are read for."""

    said: str
    schema: TableSchema
    columns: Sequence[str] | None
    asked: _Asked
    deadline: Deadline

    def rows(self, path: Path) -> Iterator[pa.RecordBatch]:
        """All rows of one file."""
        if not path.stat().st_size:
            return
        said = f"{self.said} {path}"
        with closing(files(ordered=False)) as cursor, _told(said):

            def begun() -> pa.RecordBatchReader:
                types_ = sql_types(cursor, self.schema.arrow)
                query = _QUERIES[self.asked.form](self, cursor, str(path), types_)
                return cursor.sql(query).to_arrow_reader(_BATCH_ROWS)

            found = bounded(begun, [cursor], self.deadline, said)
            batches = drained(found, [cursor], lambda: self.deadline, said)
            reader = pa.RecordBatchReader.from_batches(found.schema, batches)
            if self.asked.form != "parquet":
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
        return list(zip(_distinct(names), columns, strict=True))


def _distinct(names: Sequence[str]) -> list[str]:
    return [f"{number} {name}" for number, name in enumerate(names)]


def _select(places: Places, source: str, casts: Mapping[str, str]) -> str:
    items = ", ".join(
        f"{casts[column].format(quoted(name))} AS {quoted(column)}"
        if column in casts
        else f"{quoted(name)} AS {quoted(column)}"
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


def _parquet_query(into: _Into, cursor: Duck, path: str, kinds: Mapping[str, str]) -> str:
    source = _call("read_parquet", path, {"hive_partitioning": False, **into.asked.options})
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


def _json_query(into: _Into, cursor: Duck, path: str, kinds: Mapping[str, str]) -> str:
    options = dict(into.asked.options)
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


def _csv_query(into: _Into, cursor: Duck, path: str, kinds: Mapping[str, str]) -> str:
    # As CSV is written here and by PostgreSQL: nothing is null, two quotes are an empty text.
    fixed = {"quote": '"', "escape": '"', "comment": "", "skip": 0, "allow_quoted_nulls": False}
    options = {**fixed, **into.asked.options}
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
    query = f"SELECT HasHeader, Delimiter, NewLineDelimiter, Columns FROM {source}"  # noqa: S608
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


def _csv_places(into: _Into, cut: _Cut, *, header: bool | None) -> Places:
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


_QUERIES: dict[str, Callable[[_Into, Duck, str, Mapping[str, str]], str]] = {
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


# --- into a file


def copy_to(statement: Copy, rows: Rows, deadline: Deadline, what: str) -> int:
    """Writes the rows into one file, which appears whole or not at all; how many there were.

    `rows` is called once all else is known to be right.
    Raises UsageError, LocationError, and what the rows raise.
    """
    asked = _asked(statement, deadline)
    several = sorted(asked.options.keys() & _SEVERAL_FILES)
    if several:
        raise UsageError(
            f"COPY TO writes one file, to which {several[0].upper()} does not apply: leave it out"
        )
    options = dict(asked.options)
    target = Path(asked.path).expanduser()
    overwrite = options.pop("overwrite", False) is True
    check_target(target, f"write COPY … TO {literal(asked.path)} (OVERWRITE)", overwrite=overwrite)
    compression = _COMPRESSIONS.get(target.suffix.lower())
    if compression and asked.form != "parquet":
        options.setdefault("compression", compression)
    failures = Failures()
    # One thread writes. Several, which have to keep the order, keep ever more rows in memory: 1 GiB
    # of 40 million; and they are no faster, as what gives the rows has threads of its own.
    with appearing(target) as unfinished, closing(files(ordered=True)) as cursor:
        text = _copy(str(unfinished), asked.form, options)
        tap = _Tap()
        cursors: list[Duck] = [tap]

        def written() -> Any:
            reader = rows(failures, cursors)
            cursor.register(_ROWS, tap.passed(reader))
            result = cursor.execute(text).fetchall()
            tap.check()
            return result

        try:
            with _written(target), failures.told(what):
                ((count,),) = bounded(written, cursors, deadline, what)
        finally:
            for each in cursors[1:]:
                each.close()
    return int(count)


class _Tap:
    """What rows for a file pass through, and what is told to stop in the place of who writes it.

    SUBTLE: when a COPY of DuckDB 2.0 fails on the way, be it of its rows or because it is told to
    stop, it may wait for ever for a write that nobody makes. So for it the rows just end, and why
    they did is raised after it has ended. What it wrote until then is thrown away.
    """

    def __init__(self) -> None:
        self._closed = False
        self._error: BaseException | None = None

    def interrupt(self) -> None:
        """Lets nothing through any more."""
        self._closed = True

    def passed(self, reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
        """The rows, up to an error of theirs or to the interrupt."""

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                for batch in reader:
                    if self._closed:
                        return
                    yield batch
            except Exception as error:  # noqa: BLE001  raised by `check`
                self._error = error

        return pa.RecordBatchReader.from_batches(reader.schema, batches())

    def check(self) -> None:
        """Raises what ended the rows too early."""
        if self._error is not None:
            raise self._error
        if self._closed:
            raise interrupted()


def _copy(path: str, form: str, options: Mapping[str, Any]) -> str:
    given = {"format": form, "use_tmp_file": False, **options}
    items = ", ".join(f"{quoted(name)} {_option(value)}" for name, value in given.items())
    return f"COPY (SELECT * FROM {_ROWS}) TO {literal(path)} ({items})"  # noqa: S608  quoted


def _option(value: Any) -> str:
    if value == "*":
        return "*"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "(" + ", ".join(map(quoted, value)) + ")"
    return literal(value)


@contextmanager
def _written(target: Path) -> Iterator[None]:
    try:
        yield
    except file_errors() as error:
        raise LocationError(
            f"{target} could not be written: {error}", may_have_happened=False
        ) from error
