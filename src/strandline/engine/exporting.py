"""Rows as files that others read: Parquet, CSV or lines of JSON, in bounded memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from strandline.engine.duck import instance
from strandline.errors import LocationError, StrandlineError, UsageError

__all__ = ["FORMATS", "appearing", "check_target", "export", "format_of"]

_ROW_GROUP = 122_880
"""Rows of a row group in Parquet: what others like to read at once."""

_WriteBatch = Callable[[pa.RecordBatch], None]


def export(
    reader: pa.RecordBatchReader, path: str | os.PathLike[str], form: str | None, *, overwrite: bool
) -> int:
    """Writes all rows of the reader into one file, which appears whole or not at all; how many.

    `form`: "parquet", "csv" or "json"; None: by the file's name.
    """
    target = Path(path).expanduser()
    if target.is_dir():
        raise UsageError(f"{target} is a directory: write the path of a file in it")
    chosen = form or format_of(target)
    if chosen not in FORMATS:
        raise UsageError(
            f"what {target} is to be is not clear: name it .parquet, .csv or .json, or pass "
            f"format=, one of {', '.join(FORMATS)}"
        )
    check_target(target, "pass overwrite=True", overwrite=overwrite)
    rows = 0
    with appearing(target) as unfinished, ExitStack() as stack:
        sink = stack.enter_context(unfinished.open("wb"))
        write = stack.enter_context(FORMATS[chosen](sink, reader.schema))
        for batch in reader:
            write(batch)
            rows += batch.num_rows
    return rows


def check_target(target: Path, remedy: str, *, overwrite: bool) -> None:
    """UsageError where no file may appear: where there is one, or what is none.

    SUBTLE: a link is replaced itself, not what it leads to; and /dev/stdout is one.
    """
    if target.is_symlink():
        raise UsageError(f"{target} is a link: write the path of the file itself")
    if target.exists() and not target.is_file():
        raise UsageError(f"{target} is no regular file: write the path of one")
    if target.exists() and not overwrite:
        raise UsageError(f"{target} is there already; {remedy} to replace it")


def format_of(path: Path) -> str | None:
    """What a file is by its name; None if that does not tell."""
    return _BY_SUFFIX.get(path.suffix.lower())


@contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """Where to write what is `target`, whole, once the block has ended without an error.

    `LocationError` if it could not be written.
    """
    unfinished = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        yield unfinished
        with unfinished.open("rb") as written:
            os.fsync(written.fileno())
        unfinished.replace(target)
    except StrandlineError:  # of the rows; a deadline's is an OSError, too
        raise
    except OSError as error:
        why = error.strerror or str(error)
        if not target.parent.exists():
            why = f"there is no directory {target.parent}; make it first"
        raise LocationError(
            f"{target} could not be written: {why}", may_have_happened=False
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def _parquet(sink: BinaryIO, schema: pa.Schema) -> Iterator[_WriteBatch]:
    waiting: list[pa.RecordBatch] = []
    writer = pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True)

    def flush() -> None:
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting, schema), row_group_size=_ROW_GROUP)
            waiting.clear()

    def write(batch: pa.RecordBatch) -> None:
        waiting.append(batch)
        if sum(each.num_rows for each in waiting) >= _ROW_GROUP:
            flush()

    with writer:
        yield write
        flush()


@contextmanager
def _csv(sink: BinaryIO, schema: pa.Schema) -> Iterator[_WriteBatch]:
    try:
        writer = csv.CSVWriter(sink, schema)
    except pa.ArrowInvalid as error:
        raise UsageError(
            f"CSV has no form for a column: {error}; choose columns=, or json"
        ) from None
    with writer:
        yield writer.write_batch


@contextmanager
def _json(sink: BinaryIO, schema: pa.Schema) -> Iterator[_WriteBatch]:
    with closing(instance(ordered=True)) as cursor:

        def write(batch: pa.RecordBatch) -> None:
            if not batch.num_rows:
                return
            cursor.register("batch", pa.Table.from_batches([batch], schema))
            query = "SELECT CAST(to_json(batch) AS VARCHAR) AS line FROM batch"
            for lines in cursor.sql(query).to_arrow_reader(batch.num_rows):
                text = lines.column(0).cast(pa.large_string())
                sink.write("\n".join(text.to_pylist()).encode() + b"\n")
            cursor.unregister("batch")

        yield write


FORMATS: dict[str, Callable[[BinaryIO, pa.Schema], AbstractContextManager[_WriteBatch]]] = {
    "csv": _csv,
    "json": _json,
    "parquet": _parquet,
}
_BY_SUFFIX = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
