"""A few rows as bytes inside of an entry: an Arrow IPC stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa

from strandline.errors import Corruption
from strandline.parts.evolve import Mapping
from strandline.parts.plain import int64s
from strandline.parts.schema import DIFF, TableSchema
from strandline.state.model import Entry

__all__ = ["decode_inline", "decode_together", "encode_inline"]


_END = b"\xff\xff\xff\xff\0\0\0\0"
"""How an Arrow IPC stream ends."""


def encode_inline(table: pa.Table) -> bytes:
    """The rows of a table, sorted as they are, with its schema."""
    # A stream is these messages one after another; Arrow's own writer of streams takes longer to
    # set up than to write a few rows.
    batches = table.combine_chunks().to_batches()
    return b"".join([table.schema.serialize(), *(b.serialize() for b in batches), _END])


def decode_inline(data: bytes, schema: TableSchema) -> pa.Table:
    """The rows in the columns of `schema`, whichever version they were written with.

    With `__diff` if they have it. Raises `Corruption` if they cannot be read.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            table = reader.read_all()
        if table.schema == schema.arrow and table.schema.equals(schema.arrow, check_metadata=True):
            return table
        mapping = Mapping(table.schema, schema, [*schema.arrow.names, DIFF])
        return mapping.table(table.select(mapping.needed))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Corruption(
            f"the rows inside of an entry cannot be read ({error}); restore the log from a copy",
            object="entry",
        ) from error


def decode_together(entries: Sequence[Entry], schema: TableSchema) -> pa.Table:
    """The inline rows of entries, one entry after another, with `__time`, and `__diff` if any has.

    Columns and errors as of `decode_inline`.
    """
    diff = any(entry.batch.has_diff for entry in entries)
    stored = schema.stored(time=True, diff=diff)
    tables = []
    for data, of in _streams(entries):
        rows = decode_inline(data, schema)
        counts = [entry.batch.rows - sum(part.rows for part in entry.batch.parts) for entry in of]
        if sum(counts) != rows.num_rows:
            raise Corruption(
                f"entries of {sum(counts)} rows hold {rows.num_rows}; restore the log from a copy",
                object="entry",
            )
        times = np.repeat(np.array([entry.time for entry in of], dtype=np.int64), counts)
        columns = [rows.column(name) for name in schema.arrow.names]
        columns.append(int64s(times))
        if diff and DIFF in rows.column_names:
            columns.append(rows.column(DIFF))
        elif diff:
            columns.append(int64s(np.ones(rows.num_rows, dtype=np.int64)))
        tables.append(pa.Table.from_arrays(columns, schema=stored))
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables)


def _streams(entries: Sequence[Entry]) -> Iterator[tuple[bytes, list[Entry]]]:
    """Neighbours whose rows have the same columns, as one stream."""
    # Streams of one schema begin with the same bytes and end with the same ones; between them are
    # batches. To open a stream costs much more than to have another batch in it.
    for head, group in groupby(entries, key=lambda entry: _schema_in(entry.batch.inline)):
        of = list(group)
        if len(of) == 1 or not all(entry.batch.inline.endswith(_END) for entry in of):
            yield from ((entry.batch.inline, [entry]) for entry in of)
            continue
        batches = (entry.batch.inline[len(head) : -len(_END)] for entry in of)
        yield b"".join([head, *batches, _END]), of


def _schema_in(data: bytes) -> bytes:
    """The first message of a stream: four bytes that mark it, its length, itself."""
    return data[: 8 + int.from_bytes(data[4:8], "little")]
