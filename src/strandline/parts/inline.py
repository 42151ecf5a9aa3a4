"""A few rows as bytes inside of an entry: an Arrow IPC stream."""

from __future__ import annotations

import pyarrow as pa

from strandline.errors import Corruption
from strandline.parts.evolve import Mapping
from strandline.parts.schema import DIFF, TableSchema

__all__ = ["decode_inline", "encode_inline"]


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
