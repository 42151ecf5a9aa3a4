"""How a database is doing: its tables' rows and storage."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from strandline.env import Deadline
from strandline.read.question import parts_of
from strandline.read.reading import Reading
from strandline.read.want import Want
from strandline.state.replay import State
from strandline.times import datetime_of
from strandline.txn.handle import Handle
from strandline.txn.view import View, views

__all__ = ["STATUS", "status"]

_MOMENT = pa.timestamp("us", "UTC")

STATUS = pa.schema(
    [
        ("table", pa.string()),
        ("kind", pa.string()),
        ("rows", pa.int64()),
        ("updates", pa.int64()),
        ("bytes", pa.int64()),
        ("parts", pa.int64()),
        ("leaves", pa.int64()),
        ("level_zero", pa.int64()),
        ("backlog", pa.int64()),
        ("latest", _MOMENT),
        ("since", _MOMENT),
    ]
)


_READ_MAX = 1_000_000
"""Updates that are read of a table to know its rows: some tenths of a second."""


def status(
    handle: Handle, as_of: int | None, deadline: Deadline, *, count: bool = False
) -> pa.Table:
    """One row per table, as `STATUS`. `count`: however much is to be read for it."""
    opened = views(handle.store, None, as_of, deadline)
    rows = [
        {**_status(view), "rows": _live(handle, view, deadline, count=count)} for view in opened
    ]
    return pa.Table.from_pylist(rows, schema=STATUS)


def _live(handle: Handle, view: View, deadline: Deadline, *, count: bool) -> int | None:
    """The rows that a scan would give; None where too much is to be read to know."""
    want = Want(view.version.row_keys[:1], ordered=False)
    reading = Reading.of(handle, view, want, deadline)
    unknown = [task for task in reading.tasks if reading.question.rows_of(task) is None]
    updates = sum(
        sum({part.key: part.rows for part, _, _ in parts_of(task)}.values())
        + sum(entry.batch.rows for entry in task.entries if entry.batch.inline)
        for task in unknown
    )
    return reading.count() if count or updates <= _READ_MAX else None


def _status(view: View) -> dict[str, Any]:
    row: dict[str, Any] = view.data.ask(_stored)
    since = view.data.meta.since
    waiting = [entry.batch for entry in view.entries]
    parts = [part for batch in waiting for part in batch.parts]
    return {
        **row,
        "table": view.version.name,
        "kind": view.version.kind,
        "updates": row["updates"] + sum(batch.rows for batch in waiting),
        "bytes": row["bytes"]
        + sum(len(batch.inline) for batch in waiting)
        + sum(part.size for part in parts),
        "parts": row["parts"] + len(parts),
        "backlog": len({entry.time for entry in view.entries}),
        "latest": datetime_of(view.as_of) if view.as_of >= 0 else None,
        "since": datetime_of(since) if since else None,
    }


def _stored(state: State) -> dict[str, int]:
    parts = {}
    level_zero = 0
    for key, reference in state.references.range():
        parts[reference.part.key] = reference.part
        level_zero += key[0] == 0
    return {
        "updates": sum(part.rows for part in parts.values()),
        "bytes": sum(part.size for part in parts.values()),
        "parts": len(parts),
        "leaves": state.leaves.count(),
        "level_zero": level_zero,
    }
