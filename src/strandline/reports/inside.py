"""Looks inside: the log, state, rollups, pages and holds of a shard, and a part.

Everything comes as an Arrow table of plain values, for people and for scripts. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from strandline.env import Deadline
from strandline.errors import UsageError
from strandline.shard.look import Look
from strandline.shard.machine import Machine
from strandline.state.codec import LogRecord, decode_rollup
from strandline.state.model import COLLECTIONS, Diff, Entry, Meta, Part
from strandline.state.pages import Page
from strandline.state.replay import State
from strandline.times import datetime_of
from strandline.txn.handle import Handle, limit_of
from strandline.txn.view import view_of

__all__ = ["SUBJECTS", "inspect"]

_MOMENT = pa.timestamp("us", "UTC")

LOG = pa.schema(
    [
        ("seqno", pa.int64()),
        ("session", pa.string()),
        ("count", pa.int64()),
        ("command", pa.string()),
        ("upper", _MOMENT),
        ("changes", pa.string()),
        ("note", pa.string()),
        ("rollup", pa.int64()),
    ]
)
ROLLUPS = pa.schema(
    [
        ("seqno", pa.int64()),
        ("object", pa.string()),
        ("bytes", pa.int64()),
        ("verified", pa.bool_()),
    ]
)
HOLDS = pa.schema(
    [
        ("kind", pa.string()),
        ("id", pa.string()),
        ("since", _MOMENT),
        ("seqno", pa.int64()),
        ("session", pa.string()),
        ("epoch", pa.int64()),
        ("expired", pa.int64()),
        ("note", pa.string()),
    ]
)
PAGES = pa.schema(
    [
        ("collection", pa.string()),
        ("object", pa.string()),
        ("items", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
FACTS = pa.schema([("name", pa.string()), ("value", pa.string())])

SUBJECTS = ("log", "state", "rollups", "pages", "holds", "part")
"""What `inspect` can look into."""


def inspect(
    handle: Handle,
    what: str,
    *,
    table: str | None,
    key: str | None,
    limit: int,
    deadline: Deadline,
) -> pa.Table:
    """A look into one of `SUBJECTS`, of the table with that id or (None) of the txns shard."""
    store = handle.store
    if what == "part":
        if key is None:
            raise UsageError("a look into a part needs its key; `parts` lists the keys of a table")
        return _facts(_inside_part(handle, key, deadline))
    if what not in SUBJECTS:
        raise UsageError(f"there is nothing to inspect called {what!r}; {', '.join(SUBJECTS)} are")
    machine = store.txns.machine if table is None else store.data(table)
    look = machine.look(deadline)
    if what == "log":
        most = limit_of(limit)
        return _log(machine, look, look.seqno if most is None else most, deadline)
    if what == "state":
        return _facts(_inside_state(machine, look))
    if what == "holds":
        return pa.Table.from_pylist(look.ask(_holds), schema=HOLDS)
    rollups = look.ask(lambda s: [r for _, r in s.rollups.range()])
    if what == "rollups":
        found = [
            {"seqno": r.seqno, "object": r.key, "bytes": r.size, "verified": r.verified}
            for r in reversed(rollups)
        ]
        return pa.Table.from_pylist(found, schema=ROLLUPS)
    return _pages(handle, rollups[-1].key if rollups else None, deadline)


def _facts(facts: Iterable[tuple[str, object]]) -> pa.Table:
    rows = [{"name": name, "value": None if v is None else str(v)} for name, v in facts]
    return pa.Table.from_pylist(rows, schema=FACTS)


def _log(machine: Machine, look: Look, limit: int, deadline: Deadline) -> pa.Table:
    """The newest records, the newest first; a last row says so if the log begins with these."""
    start = max(1, look.seqno - limit + 1)
    records = machine.records(start, limit=limit, deadline=deadline)
    rows = [_record(record) for record in reversed(records)]
    if records and records[0].seqno > start:
        note = f"the log begins with record {records[0].seqno}: a vacuum removed those before"
        rows.append({"seqno": records[0].seqno - 1, "note": note})
    return pa.Table.from_pylist(rows, schema=LOG)


def _holds(state: State) -> list[dict[str, Any]]:
    """The holds, then the sessions: with the seqno at which others ended one that was silent."""
    holds = [
        {
            "kind": f"hold: {hold.kind}" if hold.kind else "hold",
            "id": key[0],
            "since": datetime_of(hold.since) if hold.since else None,
            "seqno": hold.seqno,
            "session": hold.session or None,
            "epoch": hold.epoch,
            "note": hold.note or None,
        }
        for key, hold in state.holds.range()
    ]
    sessions = [
        {
            "kind": "session",
            "id": key[0],
            "seqno": session.opened,
            "session": key[0],
            "expired": session.expired,
            "note": f"{session.count} records",
        }
        for key, session in state.sessions.range()
    ]
    return holds + sessions


def _record(record: LogRecord) -> dict[str, Any]:
    uppers = [d.after.upper for d in record.diffs if isinstance(d.after, Meta)]
    upper = uppers[-1] if uppers else None
    return {
        "seqno": record.seqno,
        "session": record.session,
        "count": record.count,
        "command": record.command,
        "upper": datetime_of(upper) if upper else None,
        "changes": _changes(record.diffs),
        "note": record.note or None,
        "rollup": None if record.rollup is None else record.rollup.seqno,
    }


def _changes(diffs: Sequence[Diff]) -> str:
    """How many values of which collections a record set (`+`) and took away (`-`)."""
    said = []
    for name in COLLECTIONS:
        of = [d.after for d in diffs if d.collection == name]
        put = sum(after is not None for after in of)
        said += [f"{name} +{put}"] if put else []
        said += [f"{name} -{len(of) - put}"] if len(of) > put else []
    return ", ".join(said)


def _inside_state(machine: Machine, look: Look) -> list[tuple[str, object]]:
    counts = look.ask(
        lambda s: [(name, s.maps[name].count()) for name in COLLECTIONS if name != "meta"]
    )
    meta = look.meta
    return [
        ("shard", machine.shard),
        ("seqno", look.seqno),
        ("hash", look.state.hash.hex()),
        ("format", meta.format),
        ("upper", _frontier(meta.upper)),
        ("since", _frontier(meta.since)),
        ("last leaf id", meta.leaves),
        ("last reference id", meta.references),
        *counts,
    ]


def _frontier(time: int | None) -> str:
    if time is None:
        return "empty: no time is left"
    return f"{time}" if time < 1 else f"{time} ({datetime_of(time).isoformat()})"


def _pages(handle: Handle, rollup: str | None, deadline: Deadline) -> pa.Table:
    """The pages of a rollup; `object` is null for a page that is inside the rollup itself."""
    rows: list[dict[str, Any]] = []
    if rollup is not None:
        data = handle.store.location.blob.get(rollup, timeout=deadline.remaining())
        for name, stored in decode_rollup(data, rollup).pages.items():
            if isinstance(stored, Page):
                rows.append({"collection": name, "items": len(stored.order)})
                continue
            rows += [
                {"collection": name, "object": ref.key, "items": ref.items, "bytes": ref.size}
                for ref in stored
            ]
    return pa.Table.from_pylist(rows, schema=PAGES)


def _inside_part(handle: Handle, key: str, deadline: Deadline) -> list[tuple[str, object]]:
    """What the catalog and the footer say of the part; `key` is its key, or its id alone."""
    store = handle.store
    part, place = _find_part(handle, key, deadline)
    about = store.reader.about(part, deadline)
    metadata = store.reader.opened(part, deadline).metadata
    quantiles = store.reader.quantiles(part, deadline)
    first = metadata.row_group(0)
    return [
        ("key", part.key),
        ("referenced from", place),
        ("bytes", part.size),
        ("footer bytes", part.footer_size),
        ("footer CRC-32", f"{part.footer_crc:08x}"),
        ("row groups", metadata.num_row_groups),
        ("quantiles", len(quantiles)),
        ("has __diff", part.has_diff),
        ("has __end", part.has_end),
        *((name, value) for name, value in sorted(about.items()) if name != "key"),
        *(
            (f"column {column.path_in_schema}", _column(column))
            for column in (first.column(i) for i in range(first.num_columns))
        ),
    ]


def _column(column: Any) -> str:
    return (
        f"{column.physical_type}, {'+'.join(column.encodings)}, {column.compression}, "
        f"{column.total_compressed_size} of {column.total_uncompressed_size} bytes in the first "
        "row group"
    )


def _find_part(handle: Handle, key: str, deadline: Deadline) -> tuple[Part, str]:
    store = handle.store
    look = store.txns.look(deadline)
    for version in store.txns.tables(look):
        view = view_of(store, version.table, None, deadline)
        found = view.data.ask(_finder(key, view.entries))
        if found is not None:
            return found[0], f"table {version.name!r}, {found[1]}"
    raise UsageError(f"no table refers to a part {key!r} now; `parts` lists the keys of a table")


def _finder(key: str, entries: Sequence[Entry]) -> Callable[[State], tuple[Part, str] | None]:
    def matches(part: Part) -> bool:
        return key in (part.key, part.key.rpartition("/")[2].removesuffix(".parquet"))

    def find(state: State) -> tuple[Part, str] | None:
        for _, reference in state.references.range():
            if matches(reference.part):
                return reference.part, f"leaf {reference.leaf}" if reference.leaf else "L0"
        for entry in entries:
            for part in entry.batch.parts:
                if matches(part):
                    return part, "an entry that is not applied yet"
        return None

    return find
