"""Deletes, updates and overwrites: reads that become retractions, markers and new rows.

In a table of `rows`, a row goes by a retraction: the whole row with `__diff` -1. In a `keyed` table
its key goes by a marker: the key with `__diff` -1 and no values. Everything here streams: memory is
bounded however many rows are meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import types

from strandline.changes.differences import runs_of, with_keys_of
from strandline.engine.expressions import Assignments
from strandline.parts.files.inline import decode_inline
from strandline.parts.schema import DIFF, TableSchema
from strandline.parts.typed import typed
from strandline.read.reading import Reading
from strandline.read.want import Want
from strandline.state.commands import Write
from strandline.state.model import Batch, Interval, TableVersion
from strandline.times import Commit
from strandline.txn.handle import Handle
from strandline.txn.view import View
from strandline.write.commit import WriteOptions, build, commit_computed, commit_writes

__all__ = [
    "Selected",
    "Selection",
    "delete_keys",
    "delete_rows",
    "overwrite",
    "touches",
    "united_batch",
    "update_rows",
]


class Selected(Protocol):
    """Rows that a write is about, found anew in each view that the write is computed from."""

    def rows(
        self, handle: Handle, view: View, columns: Sequence[str] | None, options: WriteOptions
    ) -> Iterator[pa.Table]:
        """The rows as of the view; `columns` of them, None for all."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows that a scan would give."""

    want: Want

    def rows(
        self, handle: Handle, view: View, columns: Sequence[str] | None, options: WriteOptions
    ) -> Iterator[pa.Table]:
        want = replace(self.want, columns=None if columns is None else tuple(columns))
        options.deadline.check(f"reading for the {options.operation}", may_have_happened=False)
        # Where no time is left, the first request says so.
        yield from Reading.of(handle, view, want, options.deadline.not_before(0.001)).tables()


def delete_keys(
    handle: Handle, version: TableVersion, keys: Sequence[tuple[Any, ...]], options: WriteOptions
) -> Commit:
    """Deletes full keys of a keyed table without looking whether they are there."""
    schema = typed(version)[0]
    columns = [
        pa.array([key[i] for key in keys], schema.arrow.field(name).type)
        for i, name in enumerate(schema.keys)
    ]
    marked = _markers(pa.table(columns, names=list(schema.keys)), schema)
    batch = build(handle, version, marked, options, diff=True)
    return commit_writes(handle, [(version, Write(version.table, batch))], options)


def delete_rows(
    handle: Handle,
    version: TableVersion,
    selected: Selected,
    options: WriteOptions,
    reads: Sequence[str] = (),
) -> Commit:
    """Deletes the selected rows, each once. `reads`: ids of other tables that were looked at."""

    def compute(view: View) -> list[Batch]:
        return [_deletion(handle, view, selected, options)]

    return commit_computed(handle, version.table, options, compute, reads)


def update_rows(
    handle: Handle,
    version: TableVersion,
    selected: Selected,
    assigned: Callable[[View], Assignments],
    options: WriteOptions,
    reads: Sequence[str] = (),
) -> Commit:
    """Sets columns of the selected rows. `reads`: ids of other tables that were looked at."""
    schema = typed(version)[0]
    keyed = schema.kind == "keyed"

    def updates(tables: Iterable[pa.Table], assignments: Assignments) -> Iterator[pa.Table]:
        for table in tables:
            if not table.num_rows:
                continue
            if keyed:
                yield assignments.apply(table)
            else:
                yield _with_diff(table, -1, schema)
                yield _with_diff(assignments.apply(table), 1, schema)

    def compute(view: View) -> list[Batch]:
        rows = updates(selected.rows(handle, view, None, options), assigned(view))
        stream = _stream(rows, schema, diff=not keyed)
        return [build(handle, view.version, stream, options, diff=not keyed)]

    # Of a row of a table of `rows` the old values go, and the new ones come.
    each = 1 if keyed else 2
    return commit_computed(handle, version.table, options, compute, reads, updates_per_row=each)


def overwrite(
    handle: Handle, version: TableVersion, selected: Selected, data: Any, options: WriteOptions
) -> Commit:
    """Replaces the selected rows by data, or by a batch that is staged already, in one commit."""
    schema = typed(version)[0]
    # Staged once: the data may be a stream that can be read once, and what is computed again after
    # a conflict is only what goes.
    new = data if isinstance(data, Batch) else build(handle, version, data, options)

    def compute(view: View) -> list[Batch]:
        old = _deletion(handle, view, selected, options)
        if not old.rows:
            return [new]
        if schema.kind != "keyed":
            return [old, new]
        # SUBTLE: in a keyed table a marker and a row of one key may not stand side by side in one
        # commit: both have its time, and time is rank. In one batch the last row of a key counts:
        # so the markers come first, then the data.
        return [united_batch(handle, view.version, [old, new], options)]

    return commit_computed(handle, version.table, options, compute)


def united_batch(
    handle: Handle, version: TableVersion, batches: Sequence[Batch], options: WriteOptions
) -> Batch:
    """Batches of one table, one after another, as one: of a keyed table's key the last row counts.

    In bounded memory.
    """
    schema = typed(version)[0]
    diff = any(batch.has_diff for batch in batches)
    tables = chain.from_iterable(_read_back(handle, each, schema, options) for each in batches)
    rows = (
        table if not diff or DIFF in table.column_names else _with_diff(table, 1, schema)
        for table in tables
    )
    return build(handle, version, _stream(rows, schema, diff=diff), options, diff=diff)


def touches(handle: Handle, version: TableVersion, batch: Batch, keys: pa.Table) -> bool:
    """Whether a batch has a row of one of these full keys, which are sorted."""
    schema, codec = typed(version)
    inline = [decode_inline(batch.inline, schema)] if batch.inline else []
    inside = [Interval(first, last + b"\0") for first, last in runs_of(keys, codec)]
    deadline = handle.deadline(None)
    found = (
        handle.store.reader.read(
            part,
            schema,
            columns=schema.keys,
            intervals=inside,
            deadline=deadline,
        )
        for part in batch.parts
    )
    return any(
        with_keys_of(rows.select(schema.keys), keys, schema.keys).num_rows
        for rows in chain(inline, found)
    )


def _deletion(handle: Handle, view: View, selected: Selected, options: WriteOptions) -> Batch:
    """A batch that takes the selected rows away."""
    schema = typed(view.version)[0]
    if schema.kind == "keyed":
        found = selected.rows(handle, view, schema.keys, options)
        rows = (_markers(table, schema) for table in found)
    else:
        found = selected.rows(handle, view, None, options)
        rows = (_with_diff(table, -1, schema) for table in found)
    return build(handle, view.version, _stream(rows, schema, diff=True), options, diff=True)


def _read_back(
    handle: Handle, batch: Batch, schema: TableSchema, options: WriteOptions
) -> Iterator[pa.Table]:
    """The rows of a batch that is staged, in order."""
    if batch.inline:
        yield decode_inline(batch.inline, schema)
    reader = handle.store.reader
    for part in batch.parts:
        columns = [*schema.arrow.names, *([DIFF] if part.has_diff else [])]
        for rows in reader.batches(part, schema, columns=columns, deadline=options.deadline):
            yield pa.Table.from_batches([rows])


def _markers(keys: pa.Table, schema: TableSchema) -> pa.Table:
    """Delete markers of a keyed table: keys, nothing else that says anything, and `__diff` -1."""
    names = set(schema.keys)
    columns = [
        keys.column(field.name) if field.name in names else _nothing(field, keys.num_rows)
        for field in schema.arrow
    ]
    return _diffed(columns, -1, keys.num_rows, schema)


def _nothing(field: pa.Field, rows: int) -> pa.Array:
    """Nulls, or where the column may have none, zeros and what is empty: nobody reads them."""
    if field.nullable:
        return pa.nulls(rows, field.type)
    return pa.repeat(pa.scalar(_empty_value(field.type), field.type), rows)


def _empty_value(kind: pa.DataType) -> Any:
    if types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return {f.name: None if f.nullable else _empty_value(f.type) for f in fields}
    if types.is_map(kind) or types.is_list(kind):
        return []
    if types.is_string(kind) or types.is_binary(kind):
        return "" if types.is_string(kind) else b""
    if types.is_decimal(kind):
        return Decimal(0)
    if types.is_date32(kind) or types.is_timestamp(kind) or types.is_time64(kind):
        return pa.scalar(0, pa.int32() if types.is_date32(kind) else pa.int64()).cast(kind).as_py()
    return 0 if types.is_integer(kind) else False if types.is_boolean(kind) else 0.0


def _with_diff(rows: pa.Table, diff: int, schema: TableSchema) -> pa.Table:
    """Rows as updates of that diff."""
    columns = [rows.column(name) for name in schema.arrow.names]
    return _diffed(columns, diff, rows.num_rows, schema)


def _diffed(columns: list[Any], diff: int, rows: int, schema: TableSchema) -> pa.Table:
    diffs = pa.repeat(pa.scalar(diff, pa.int64()), rows)
    return pa.Table.from_arrays([*columns, diffs], schema=schema.stored(diff=True))


def _stream(tables: Iterable[pa.Table], schema: TableSchema, *, diff: bool) -> pa.RecordBatchReader:
    stored = schema.stored(diff=diff)

    def batches() -> Iterator[pa.RecordBatch]:
        for table in tables:
            columns = [table.column(name) for name in stored.names]
            yield from pa.Table.from_arrays(columns, schema=stored).to_batches()

    return pa.RecordBatchReader.from_batches(stored, batches())
