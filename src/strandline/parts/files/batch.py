"""Builds what one commit writes to one table: a few rows inline, or parts, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pyarrow as pa

from strandline.env import Deadline, Env
from strandline.location import Blob
from strandline.parts.files.inline import encode_inline
from strandline.parts.files.write import Identity, write_parts
from strandline.parts.keys import KeyCodec
from strandline.parts.rows.conform import conform, to_arrow
from strandline.parts.rows.merge import last_rows, prepare_batch
from strandline.parts.rows.sort import is_sorted, sort_stream
from strandline.parts.schema import DIFF, TableSchema, without_plain_diff
from strandline.settings import Settings
from strandline.state.model import Batch, Part

__all__ = ["build_batch"]

_IN_MEMORY_BYTES = 32 << 20
"""Rows that take no more are sorted in memory."""

_CUT_ROWS_MIN = 65_536
"""A part is not ended at a leaf's bound before it has this many rows: small files cost more."""

_THREADS_MAX = 4


def build_batch(
    data: Any,
    schema: TableSchema,
    *,
    blob: Blob,
    new_key: Callable[[], str],
    identity: Callable[[], Identity],
    settings: Settings,
    env: Env,
    deadline: Deadline,
    diff: bool = False,
    cuts: Callable[[], Sequence[bytes]] = tuple,
) -> Batch:
    """A batch of data in any form that `to_arrow` takes; parts are written, nothing is committed.

    `diff`: the data has a column `__diff` besides the table's: -1 retracts a row (rows) or
    deletes a key (keyed). Only if parts are written is anybody asked for their `identity`, and for
    `cuts`, the bounds of the table's leaves: parts end there where that does not make them small.
    No rows make a `Batch` of 0 rows.
    Raises as `to_arrow` and `conform` do; then parts may be left behind that nobody refers to.
    """
    stored = replace(schema, arrow=schema.stored(diff=True)) if diff else schema
    rows = conform(to_arrow(data, stored), stored)
    builder = _Builder(schema, blob, new_key, identity, settings, deadline, stored.arrow, cuts, env)
    if isinstance(rows, pa.Table):
        size = rows.nbytes
        if size <= _IN_MEMORY_BYTES:
            return builder.small(rows, size)
        return builder.large(rows.to_batches(), ordered=is_sorted(rows, schema.keys))
    head, rest = _head(rows)
    if rest is None:
        return builder.small(head, head.nbytes)
    return builder.large(chain(head.to_batches(), rest), ordered=False)


def _head(reader: pa.RecordBatchReader) -> tuple[pa.Table, Iterator[pa.RecordBatch] | None]:
    """The first rows of a stream, and the rest; None if there is none."""
    batches = []
    size = 0
    for batch in reader:
        batches.append(batch)
        size += batch.nbytes
        if size > _IN_MEMORY_BYTES:
            return pa.Table.from_batches(batches, reader.schema), iter(reader)
    return pa.Table.from_batches(batches, reader.schema), None


@dataclass(frozen=True)
class _Builder:
    """What a batch is made for and with."""

    schema: TableSchema
    blob: Blob
    new_key: Callable[[], str]
    identity: Callable[[], Identity]
    settings: Settings
    deadline: Deadline
    arrow: pa.Schema
    cuts: Callable[[], Sequence[bytes]]
    env: Env

    def small(self, rows: pa.Table, size: int) -> Batch:
        """A batch of rows that are sorted in memory, of about `size` bytes."""
        if not rows.num_rows:
            return Batch()
        rows, distinct = prepare_batch(rows, self.schema)
        rows = without_plain_diff(rows)
        # Encoding adds to the rows' bytes, so larger ones need not be tried; but fewer rows may be
        # left than there were.
        inline_max = self.settings.inline_bytes_max
        if size <= inline_max or rows.nbytes <= inline_max:
            inline = encode_inline(rows)
            if len(inline) <= inline_max:
                return self._inline(rows, inline, distinct=distinct)
        return self._of_parts(self._written(rows.to_batches()))

    def large(self, batches: Iterable[pa.RecordBatch], *, ordered: bool) -> Batch:
        """A batch of rows that may be more than memory holds."""
        keyed = self.schema.kind == "keyed"
        if not ordered:
            batches = sort_stream(
                batches,
                self.schema.keys,
                memory_bytes=self.settings.sort_memory_bytes,
                threads=min(_THREADS_MAX, self.settings.threads),
                stable=keyed,
                schema=self.arrow,
            )
        rows = last_rows(batches, self.schema.keys) if keyed else batches
        return self._of_parts(self._written(rows))

    def _inline(self, rows: pa.Table, inline: bytes, *, distinct: bool) -> Batch:
        has_diff = DIFF in rows.column_names
        lower, upper = KeyCodec(self.schema).first_last(rows)
        return Batch(
            inline=inline,
            rows=rows.num_rows,
            lower=lower,
            upper=upper,
            has_diff=has_diff,
            distinct=distinct and not has_diff,
            schema_version=self.schema.version,
        )

    def _written(self, rows: Iterable[pa.RecordBatch]) -> list[Part]:
        return write_parts(
            self.blob,
            self.new_key,
            rows,
            self.schema,
            identity=self.identity(),
            settings=self.settings,
            deadline=self.deadline,
            cuts=self.cuts(),
            cut_rows_min=_CUT_ROWS_MIN,
            env=self.env,
            threads=min(_THREADS_MAX, self.settings.threads),
        )

    def _of_parts(self, parts: list[Part]) -> Batch:
        if not parts:
            return Batch()
        return Batch(
            parts=tuple(parts),
            rows=sum(part.rows for part in parts),
            lower=parts[0].lower,
            upper=max(part.upper for part in parts),
            has_diff=any(part.has_diff for part in parts),
            # Parts of one stream have no key in common.
            distinct=all(part.distinct for part in parts),
            schema_version=self.schema.version,
        )
