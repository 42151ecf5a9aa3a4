"""COPY: what it asks for; rows from files of this machine, and rows into one, in bounded memory.

A user's text never runs where files can be opened. Its options are evaluated where none can, and
given as values to a statement that is put together here; so is the query of `COPY (…) TO`, of
which only the rows come here.

What is relied on in DuckDB: `COPY … TO` writes an Arrow stream as it comes, in its order.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from strandline.engine.duck import (
    Duck,
    Failures,
    bounded,
    file_errors,
    files,
    instance,
    interrupted,
    literal,
    quoted,
    tokens,
)
from strandline.engine.exporting import appearing, check_target, format_of
from strandline.engine.expressions import ROWS
from strandline.engine.importing import OPTIONS, Importing
from strandline.engine.statements import Copy, columns_called
from strandline.env import Deadline
from strandline.errors import LocationError, UsageError
from strandline.parts.schema import TableSchema

__all__ = ["Rows", "columns_named", "copied_from", "copy_to"]

Rows = Callable[[Failures, list[Duck]], pa.RecordBatchReader]
"""Gives the rows to write; told where to keep its failures, and on which connections it runs."""

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
    found = tuple(columns_called(statement.columns, known, f"COPY {statement.source}"))
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
    if str(form).lower() not in OPTIONS:
        raise UsageError(
            f"what {path!r} is to be is not clear: name it .parquet, .csv or .json, or write "
            f"(FORMAT csv), one of {', '.join(OPTIONS)}"
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
    if len(words) == 1 and words[0].is_name:
        word = words[0].name
        return {"true": True, "on": True, "false": False, "off": False}.get(word.casefold(), word)
    inner = words[1:-1]
    if words[0].word == "(" and all(w.word == "," or w.is_name for w in inner):
        return [w.name for w in inner if w.word != ","]
    return _evaluated(f"the option {option.upper()}", text, deadline)


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
    unknown = sorted(asked.options.keys() - OPTIONS[asked.form])
    if unknown:
        raise UsageError(
            f"COPY FROM has no option {unknown[0].upper()} for {asked.form}; it has "
            f"{', '.join(sorted(OPTIONS[asked.form])).upper()}"
        )
    paths = _found(asked.path)
    said = f"COPY {statement.source} FROM"
    into = Importing(said, schema, columns, asked.form, asked.options, deadline)
    batches = (batch for path in paths for batch in into.rows(path))
    return pa.RecordBatchReader.from_batches(schema.arrow, batches)


def _found(pattern: str) -> list[Path]:
    """The files of that path, or of that pattern, sorted."""
    whole = Path(pattern).expanduser()
    if whole.is_file():
        return [whole]
    if whole.exists():
        raise UsageError(f"{pattern} is no regular file, and COPY reads a file more than once")
    paths = [Path(name) for name in sorted(glob.glob(str(whole), recursive=True))]  # noqa: PTH207  of any path
    paths = [path for path in paths if path.is_file()]
    if not paths:
        special = sorted({*pattern} & {*"*?["})
        remedy = ", ".join(f"[{sign}] for {sign}" for sign in special)
        raise UsageError(
            f"there is no file {pattern}"
            + (f"; in a name that has such signs itself, write {remedy}" if remedy else "")
        )
    return paths


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

        def written() -> int:
            reader = rows(failures, cursors)
            cursor.register(ROWS, tap.passed(reader))
            ((count,),) = cursor.execute(text).fetchall()
            tap.check()
            return int(count)

        try:
            with _written(target), failures.told(what):
                return bounded(written, cursors, deadline, what)
        finally:
            for each in cursors[1:]:
                each.close()


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


def _copy(path: str, form: str, options: Mapping[str, object]) -> str:
    given = {"format": form, "use_tmp_file": False, **options}
    items = ", ".join(f"{quoted(name)} {_option(value)}" for name, value in given.items())
    return f"COPY (SELECT * FROM {ROWS}) TO {literal(path)} ({items})"  # noqa: S608  quoted


def _option(value: object) -> str:
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
