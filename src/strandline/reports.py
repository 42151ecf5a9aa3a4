"""How a database is doing: its tables' storage."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from strandline.env import Deadline
from strandline.handle import Handle
from strandline.state.replay import State
from strandline.times import datetime_of
from strandline.txn.view import View, views

__all__ = ["STATUS", "status"]

_MOMENT = pa.timestamp("us", "UTC")

STATUS = pa.schema(
    [
        ("table", pa.string()),
        ("kind", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("parts", pa.int64()),
        ("leaves", pa.int64()),
        ("level_zero", pa.int64()),
        ("backlog", pa.int64()),
        ("latest", _MOMENT),
        ("since", _MOMENT),
    ]
)


def status(handle: Handle, as_of: int | None, deadline: Deadline) -> pa.Table:
    """One row per table, as `STATUS`."""
    opened = views(handle.store, None, as_of, timeout=deadline.remaining())
    return pa.Table.from_pylist([_status(view) for view in opened], schema=STATUS)


def _status(view: View) -> dict[str, Any]:
    row: dict[str, Any] = view.machine.run(_stored, state=view.data)
    since = view.data.meta.since
    waiting = [entry.batch for entry in view.entries]
    parts = [part for batch in waiting for part in batch.parts]
    return {
        **row,
        "table": view.version.name,
        "kind": view.version.kind,
        "rows": row["rows"] + sum(batch.rows for batch in waiting),
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
        "rows": sum(part.rows for part in parts.values()),
        "bytes": sum(part.size for part in parts.values()),
        "parts": len(parts),
        "leaves": state.leaves.count(),
        "level_zero": level_zero,
    }
