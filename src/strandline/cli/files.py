"""Files of Parquet, CSV and JSON as a stream of batches that fit a table, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json
import pyarrow.parquet as pq
from pyarrow import csv, types

import strandline as sl

__all__ = ["Format", "found", "read", "schema_of_file"]

_BATCH_ROWS = 65_536
_BLOCK_BYTES = 4 << 20
"""Text that is parsed at once; no line of JSON may be longer."""

_ZONED = r"\d:\d\d.*(Z|z|[+-]\d\d(:?\d\d)?)$"
_DATE_CHARACTERS = len("2026-11-20")


class Format(StrEnum):
    """What a file is."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"


_SUFFIXES = {
    ".parquet": Format.PARQUET,
    ".pq": Format.PARQUET,
    ".csv": Format.CSV,
    ".json": Format.JSON,
    ".jsonl": Format.JSON,
    ".ndjson": Format.JSON,
}
_COMPRESSIONS = {".gz", ".bz2", ".zst", ".lz4"}

Source = tuple[Path, Format]
Batches = Iterator[tuple[pa.RecordBatch, float]]
"""Batches, each with the share of the file that was read by then."""


def found(paths: Sequence[Path], form: Format | None = None) -> list[Source]:
    """The files, and those in the directories, with what they are: as `form` says, or their names.

    UsageError for one that is missing or of an unknown kind.
    """
    sources: list[Source] = []
    for path in paths:
        if path.is_dir():
            inside = [p for p in sorted(path.rglob("*")) if p.is_file()]
            kinds = [(p, kind) for p in inside if (kind := form or form_of(p))]
            if not kinds:
                raise sl.UsageError(f"the directory {path} has no Parquet, CSV or JSON files")
            sources += kinds
            continue
        if not path.exists():
            raise sl.UsageError(f"there is no file {path}")
        kind = form or form_of(path)
        if kind is None:
            raise sl.UsageError(
                f"what {path} is cannot be told from its name; pass --format parquet, csv or json"
            )
        sources.append((path, kind))
    return sources


def form_of(path: Path) -> Format | None:
    """What a file is by its name, compression aside."""
    suffixes = [s.lower() for s in path.suffixes if s.lower() not in _COMPRESSIONS]
    return _SUFFIXES.get(suffixes[-1]) if suffixes else None


def schema_of_file(path: Path, form: Format | None = None) -> pa.Schema:
    """The columns of a file: Parquet's own, or those that the first rows of text look like."""
    source = found([path], form)[0]
    with _failures(source[0]):
        if source[1] is Format.PARQUET:
            return pq.read_schema(source[0]).remove_metadata()
        return _opened_text(source, None).schema


def read(
    sources: Sequence[Source], schema: pa.Schema, table: str, report: Callable[[float], None]
) -> pa.RecordBatchReader:
    """All rows of the files in the columns of `schema`; missing ones are null.

    `report` is told the bytes that were read. Raises `SchemaMismatch` for columns that the table
    has not and for values that do not fit, naming the file.
    """
    return pa.RecordBatchReader.from_batches(schema, _read(sources, schema, table, report))


def _read(
    sources: Sequence[Source], schema: pa.Schema, table: str, report: Callable[[float], None]
) -> Iterator[pa.RecordBatch]:
    before = 0
    for source in sources:
        path, form = source
        size = path.stat().st_size
        batches = _parquet(path) if form is Format.PARQUET else _text(source, schema)
        with _failures(path):
            for batch, share in batches:
                yield _aligned(batch, schema, path, table)
                report(before + size * share)
        before += size
        report(before)


class _failures:  # noqa: N801  reads as a statement: with _failures(path)
    """Makes errors about a file's contents name the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, sl.StrandlineError):
            return
        if isinstance(error, pa.ArrowException | UnicodeDecodeError):
            raise sl.SchemaMismatch(f"{self._path} cannot be read: {error}") from error
        if isinstance(error, OSError):
            raise sl.UsageError(f"{self._path} cannot be read: {error}") from error


def _parquet(path: Path) -> Batches:
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        rows, total = 0, max(file.metadata.num_rows, 1)
        for batch in file.iter_batches(_BATCH_ROWS):
            rows += batch.num_rows
            yield batch, rows / total


def _text(source: Source, schema: pa.Schema) -> Batches:
    reader = _opened_text(source, schema)
    size = max(source[0].stat().st_size, 1)
    seen = 0
    for batch in reader:
        # What a reader has read ahead it does not tell; its batches do, nearly.
        seen += batch.nbytes
        yield batch, min(seen / size, 1.0)


def _opened_text(source: Source, schema: pa.Schema | None) -> pa.RecordBatchReader:
    path, form = source
    known = [] if schema is None else [(f.name, _parsed_as(f.type, form)) for f in schema]
    stream = pa.input_stream(str(path), compression="detect")
    if form is Format.CSV:
        return csv.open_csv(
            stream,
            read_options=csv.ReadOptions(block_size=_BLOCK_BYTES),
            parse_options=csv.ParseOptions(newlines_in_values=True),
            # As CSV is written here: nothing is null, two quotes are an empty text.
            convert_options=csv.ConvertOptions(
                column_types=dict(known),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    _refuse_array(path)
    return arrow_json.open_json(
        stream,
        read_options=arrow_json.ReadOptions(block_size=_BLOCK_BYTES),
        parse_options=arrow_json.ParseOptions(
            explicit_schema=pa.schema(known) if known else None, unexpected_field_behavior="infer"
        ),
    )


def _parsed_as(kind: pa.DataType, form: Format) -> pa.DataType:
    """What a column is read as: moments as text, whose zone may be left out."""
    if types.is_timestamp(kind) and kind.tz is not None:
        return pa.string()
    if form is Format.JSON and (types.is_date(kind) or types.is_binary(kind)):
        return pa.string()
    return kind


def _refuse_array(path: Path) -> None:
    with pa.input_stream(str(path), compression="detect") as stream:
        if stream.read(256).lstrip()[:1] == b"[":
            raise sl.UsageError(
                f"{path} is one JSON array; write one object per line: jq -c '.[]' {path}"
            )


# --- fitting


def _aligned(batch: pa.RecordBatch, schema: pa.Schema, path: Path, table: str) -> pa.RecordBatch:
    """The batch in the columns of the schema, by name."""
    names, known = batch.schema.names, set(schema.names)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise sl.SchemaMismatch(
            f"{path} has a column {unknown[0]!r} that table {table!r} has not; its columns are "
            f"{', '.join(schema.names)}"
        )
    given = set(names)
    return pa.record_batch(
        [
            _fitting(batch.column(field.name), field, path)
            if field.name in given
            else pa.nulls(batch.num_rows, field.type)
            for field in schema
        ],
        schema=schema,
    )


def _fitting(column: pa.Array, field: pa.Field, path: Path) -> pa.Array:
    if column.type == field.type:
        return column
    try:
        if types.is_timestamp(field.type) and types.is_string(column.type):
            return _moments(column).cast(field.type)
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise sl.SchemaMismatch(
            f"{path}: column {field.name!r} of type {column.type} does not fit {field.type}: "
            f"{error}"
        ) from error


def _moments(column: pa.Array) -> pa.Array:
    """Texts of moments, those without a time zone with that of UTC."""
    dates = pc.equal(pc.utf8_length(column), _DATE_CHARACTERS)
    whole = pc.if_else(dates, pc.binary_join_element_wise(column, "T00:00:00Z", ""), column)
    zoned = pc.match_substring_regex(whole, _ZONED)
    return pc.if_else(zoned, whole, pc.binary_join_element_wise(whole, "Z", ""))
