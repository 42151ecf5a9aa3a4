"""What a command prints: rows as a table for people, or as JSON, CSV or Arrow for programs."""

from __future__ import annotations

import base64
import json
import math
import sys
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time
from enum import StrEnum
from typing import Annotated, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import typer
from pyarrow import csv, types

import strandline as sl
from strandline.cli.tables import show

__all__ = ["Form", "Output", "emit", "emit_each", "note"]


class Form(StrEnum):
    """Forms of output."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"


Output = Annotated[
    Form,
    typer.Option(
        "--output",
        "-o",
        help="table: for people; json: an array of objects; csv; arrow: an IPC stream.",
    ),
]

Rows: TypeAlias = pa.Table | pa.RecordBatchReader


def note(message: str) -> None:
    """Tells a person something that is not output, in one line."""
    print(" ".join(message.split()), file=sys.stderr)


def emit(
    rows: Rows, form: Form, *, title: str | None = None, data: bool = False, whole: bool = False
) -> None:
    """Prints rows on standard output, in bounded memory; each batch is there once it was read.

    A table is the exception: it is printed as a whole.

    `data`: the rows are a user's, and are shown as they are; else sizes are made readable. `whole`:
    a table shows all of them, however many.
    """
    if form is Form.ARROW:
        _emit_arrow(rows)
    elif form is Form.CSV:
        _emit_csv(rows)
    elif form is Form.JSON:
        _emit_json(rows)
    else:
        for said in show(rows.schema, _rows(rows), title=title, data=data, whole=whole):
            note(said)


def _rows(rows: Rows) -> Iterator[dict[str, Any]]:
    for batch in _batches(rows):
        yield from _objects(batch)


def _batches(rows: Rows) -> Iterator[pa.RecordBatch]:
    return iter(rows.to_batches() if isinstance(rows, pa.Table) else rows)


# --- for programs


def _emit_arrow(rows: Rows) -> None:
    if sys.stdout.isatty():
        raise sl.UsageError("--output arrow is bytes, not text; send it to a file or a program")
    sink = sys.stdout.buffer
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        for batch in _batches(rows):
            writer.write_batch(batch)
            sink.flush()
    sink.flush()


def _emit_csv(rows: Rows) -> None:
    schema = pa.schema([(f.name, pa.string() if _is_told(f.type) else f.type) for f in rows.schema])
    sys.stdout.flush()
    sink = sys.stdout.buffer
    with csv.CSVWriter(sink, schema) as writer:
        for batch in _batches(rows):
            columns = [
                pa.array([None if v is None else _text(v) for v in column.to_pylist()], pa.string())
                if _is_told(column.type)
                else column
                for column in batch.columns
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            sink.flush()
    sink.flush()


def _is_told(kind: pa.DataType) -> bool:
    """Whether CSV has no form of its own for values of that type: they are written as JSON is."""
    return bool(
        types.is_nested(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
        or types.is_string_view(kind)
        or types.is_dictionary(kind)
        or types.is_decimal(kind)
        or types.is_interval(kind)
    )


def _text(value: Any) -> str:
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def emit_each(tables: Iterable[tuple[str, pa.Table]]) -> None:
    """Prints rows of several tables as JSON: each an object with `table` and `row`."""
    _print_objects(
        ({"table": name, "row": row} for batch in _batches(rows) for row in _objects(batch))
        for name, rows in tables
    )


def _emit_json(rows: Rows) -> None:
    _print_objects(_objects(batch) for batch in _batches(rows))


def _print_objects(groups: Iterable[Iterable[dict[str, Any]]]) -> None:
    """An array with one object per line, so that it can be read as a stream, too."""
    out = sys.stdout
    separator = "[\n"
    for group in groups:
        for row in group:
            out.write(separator + json.dumps(row, ensure_ascii=False))
            separator = ",\n"
        out.flush()
    out.write("[]\n" if separator == "[\n" else "\n]\n")
    out.flush()


def _objects(batch: pa.RecordBatch) -> Iterable[dict[str, Any]]:
    names = batch.schema.names
    for values in zip(*(_values(column) for column in batch.columns), strict=True):
        yield {name: _plain(value) for name, value in zip(names, values, strict=True)}


def _values(column: pa.Array) -> list[Any]:
    if not types.is_timestamp(column.type):
        return list(column.to_pylist())
    # As Python values they would load pandas, in case of nanoseconds, and have narrower limits.
    texts = pc.replace_substring(column.cast(pa.string()), " ", "T", max_replacements=1)
    return list(pc.replace_substring_regex(texts, r"\.0+(Z|[+-]|$)", r"\1").to_pylist())


def _plain(value: Any) -> Any:  # noqa: PLR0911  one line per kind of value
    """A value as JSON has it: times in ISO 8601, decimals as text, bytes in base64, no NaN."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if value and all(isinstance(v, tuple) and len(v) == 2 for v in value):
            return {str(key): _plain(item) for key, item in value}  # how Arrow gives maps
        return [_plain(item) for item in value]
    return str(value)
