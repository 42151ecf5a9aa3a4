"""Looks inside: the leaves and parts of a table, and the log, state and objects of a shard.

Everything comes as an Arrow table of plain values, for people and for scripts. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from strandline.env import Deadline
from strandline.errors import UsageError
from strandline.parts.files.inline import decode_inline
from strandline.parts.keys import KeyCodec, clip
from strandline.parts.schema import TableSchema
from strandline.parts.typed import typed
from strandline.shard.look import Look
from strandline.shard.machine import Machine
from strandline.state.codec import LogRecord, decode_rollup
from strandline.state.decide import Author, decide
from strandline.state.model import (
    COLLECTIONS,
    Diff,
    Entry,
    Interval,
    Leaf,
    Meta,
    Part,
    Reference,
    TableVersion,
)
from strandline.state.pages import Page
from strandline.state.plan import (
    STRATEGIES,
    CompactionJob,
    ReadTask,
    plan_compaction,
    plan_descent,
    plan_read,
)
from strandline.state.replay import State, replay
from strandline.times import datetime_of
from strandline.txn.handle import Handle, limit_of
from strandline.txn.properties import property_of
from strandline.txn.view import View, view_of, views

__all__ = ["SUBJECTS", "inspect", "partitions", "parts", "planned", "shards"]

_MOMENT = pa.timestamp("us", "UTC")

PARTITIONS = pa.schema(
    [
        ("leaf", pa.int64()),
        ("lower", pa.string()),
        ("upper", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("parts", pa.int64()),
        ("level_zero", pa.int64()),
        ("entries", pa.int64()),
        ("parent", pa.int64()),
    ]
)
PARTS = pa.schema(
    [
        ("place", pa.string()),
        ("part", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("first", pa.string()),
        ("last", pa.string()),
        ("whole", pa.bool_()),
        ("distinct", pa.bool_()),
        ("time", _MOMENT),
    ]
)
SHARDS = pa.schema(
    [
        ("table", pa.string()),
        ("shard", pa.string()),
        ("seqno", pa.int64()),
        ("log_records", pa.int64()),
        ("rollups", pa.int64()),
        ("sessions", pa.int64()),
    ]
)
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

JOBS = pa.schema(
    [
        ("table", pa.string()),
        ("leaf", pa.int64()),
        ("lower", pa.string()),
        ("upper", pa.string()),
        ("parts", pa.int64()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
    ]
)

SUBJECTS = ("log", "state", "rollups", "pages", "holds", "part")
"""What `inspect` can look into."""


# --- leaves and parts of a table


def partitions(handle: Handle, table: str, as_of: int | None, deadline: Deadline) -> pa.Table:
    """One row per leaf of the table with that id, by key, as `PARTITIONS`.

    Rows and bytes are those stored, retractions included. Of a part whose keys are in several
    leaves each has its share by the part's quantiles, which is an estimate.
    """
    view = view_of(handle.store, table, as_of, deadline)
    tasks, leaves = _plan(view)
    by_leaf: dict[int, list[ReadTask]] = {leaf.id: [] for leaf in leaves}
    for task in tasks:
        by_leaf[task.leaf.id].append(task)
    schema, codec = typed(view.version)
    quantiles = partial(handle.store.reader.quantiles, deadline=deadline)
    rows = [_partition(leaf, by_leaf[leaf.id], schema, codec, quantiles) for leaf in leaves]
    return pa.Table.from_pylist(rows, schema=PARTITIONS)


def _plan(view: View) -> tuple[list[ReadTask], list[Leaf]]:
    def plan(state: State) -> tuple[list[ReadTask], list[Leaf]]:
        tasks = plan_read(state, view.entries, None, view.as_of)
        return tasks, [leaf for _, leaf in state.leaves.range()]

    return view.data.ask(plan)


Quantiles = Callable[[Part], list[tuple[bytes, int]]]


def _partition(
    leaf: Leaf,
    tasks: Sequence[ReadTask],
    schema: TableSchema,
    codec: KeyCodec,
    quantiles: Quantiles,
) -> dict[str, Any]:
    references = {r.id: r for task in tasks for r in task.references}.values()
    entries = {id(e): e for task in tasks for e in task.entries}.values()
    rows = size = 0.0
    for reference in references:
        share = _share(reference.part, reference.interval.intersect(leaf.interval), quantiles)
        rows += share * reference.part.rows
        size += share * reference.part.size
    for entry in entries:
        for part in entry.batch.parts:
            share = _share(part, leaf.interval, quantiles)
            rows += share * part.rows
            size += share * part.size
    return {
        "leaf": leaf.id,
        "lower": _bound(leaf.interval.lower or None, codec),
        "upper": _bound(leaf.interval.upper, codec),
        "rows": round(rows) + sum(_inline_rows(e, leaf.interval, schema, codec) for e in entries),
        "bytes": round(size) + sum(len(e.batch.inline) for e in entries),
        "parts": sum(1 for r in references if r.leaf),
        "level_zero": sum(1 for r in references if not r.leaf),
        "entries": len(entries),
        "parent": leaf.parent,
    }


def _share(part: Part, inside: Interval | None, quantiles: Quantiles) -> float:
    """About how much of a part's rows an interval has, from 0 to 1."""
    if inside is None:
        return 0.0
    if part.span.intersect(inside) == part.span:
        return 1.0
    keys = [key for key, _ in quantiles(part)]
    return sum(inside.contains(key) for key in keys) / max(len(keys), 1)


def _inline_rows(entry: Entry, inside: Interval, schema: TableSchema, codec: KeyCodec) -> int:
    if not entry.batch.inline:
        return 0
    rows = clip(decode_inline(entry.batch.inline, schema), [inside], codec)
    return int(rows.num_rows)


def _bound(key: bytes | None, codec: KeyCodec) -> str | None:
    """An encoded key, or a bound between keys, as a person writes it; None: no end."""
    if key is None:
        return None
    try:
        return ", ".join(str(value) for value in codec.decode(key))
    except (ValueError, IndexError):
        return f"0x{key.hex()}"


def parts(handle: Handle, table: str, as_of: int | None, deadline: Deadline) -> pa.Table:
    """One row per reference of the table with that id, and per part that is not applied yet.

    As `PARTS`, by place: "leaf 3", "L0", or "entry". `whole`: all rows of the part belong to it.
    """
    view = view_of(handle.store, table, as_of, deadline)
    references: list[Reference] = view.data.ask(
        lambda state: [r for _, r in state.references.range()]
    )
    codec = typed(view.version)[1]
    rows = [
        _part(
            f"leaf {r.leaf}" if r.leaf else "L0",
            r.part,
            r.time_max,
            codec,
            whole=r.interval.intersect(r.part.span) == r.part.span,
        )
        for r in references
    ]
    rows += [
        _part("entry", part, entry.time, codec, whole=True)
        for entry in view.entries
        for part in entry.batch.parts
    ]
    return pa.Table.from_pylist(rows, schema=PARTS)


def _part(place: str, part: Part, time: int, codec: KeyCodec, *, whole: bool) -> dict[str, Any]:
    return {
        "place": place,
        "part": part.key,
        "rows": part.rows,
        "bytes": part.size,
        "first": _bound(part.lower, codec),
        "last": _bound(part.upper, codec),
        "whole": whole,
        "distinct": part.distinct,
        "time": datetime_of(time) if time >= 0 else None,
    }


# --- what a compaction would do


def planned(
    handle: Handle, names: Sequence[str] | None, strategy: str | None, deadline: Deadline
) -> pa.Table:
    """One row per merge that a compaction would make now, as `JOBS`. Nothing is changed.

    Commits that are not applied yet are left out: where their rows will be is not decided.
    """
    if strategy is not None and strategy not in STRATEGIES:
        raise UsageError(f"strategy={strategy!r}: pass one of {', '.join(STRATEGIES)}")
    rows: list[dict[str, Any]] = []
    for view in views(handle.store, names, None, deadline):
        version = view.version
        if names is None and property_of(version, "online") != "true":
            continue
        codec = typed(version)[1]
        jobs = view.data.ask(_planner(version, strategy))
        rows += [_job(version.name, job, codec) for job in jobs]
    return pa.Table.from_pylist(rows, schema=JOBS)


def _planner(version: TableVersion, strategy: str | None) -> Callable[[State], list[CompactionJob]]:
    chosen = strategy or property_of(version, "strategy")
    parts_max = int(property_of(version, "compaction_parts"))

    def plan(state: State) -> list[CompactionJob]:
        # A compaction takes L0 down into the leaves first. States are values: what comes of that
        # is worked out here, and written nowhere.
        author = Author("", first=True)
        for command in list(plan_descent(state)):
            diffs = decide(state, command, author).diffs
            state = replay(state, state.seqno, state.hash, diffs)
        return plan_compaction(state, chosen, parts_max=parts_max, keyed=version.kind == "keyed")

    return plan


def _job(table: str, job: CompactionJob, codec: KeyCodec) -> dict[str, Any]:
    inside = Interval() if job.leaf is None else job.leaf.interval
    return {
        "table": table,
        "leaf": None if job.leaf is None else job.leaf.id,
        "lower": _bound(inside.lower or None, codec),
        "upper": _bound(inside.upper, codec),
        "parts": len(job.inputs),
        "rows": job.rows,
        "bytes": job.size,
    }


# --- shards


def shards(handle: Handle, deadline: Deadline) -> pa.Table:
    """One row per shard as `SHARDS`: the txns shard first (`table` is null), then by table."""
    store = handle.store
    txns = store.txns.machine
    look = store.txns.look(deadline)
    rows = [{"table": None, **_shard(handle, txns, look, deadline)}]
    for version in store.txns.tables(look):
        machine = store.data(version.table)
        data = machine.look(deadline)
        rows.append({"table": version.name, **_shard(handle, machine, data, deadline)})
    return pa.Table.from_pylist(rows, schema=SHARDS)


def _shard(handle: Handle, machine: Machine, look: Look, deadline: Deadline) -> dict[str, Any]:
    log = handle.store.location.consensus
    first = log.scan(machine.shard, 1, 1, timeout=deadline.remaining())
    return {
        "shard": machine.shard,
        "seqno": look.seqno,
        # Seqnos have no gaps, so the first that is kept tells how many there are.
        "log_records": look.seqno - first[0].seqno + 1 if first else 0,
        "rollups": look.ask(lambda s: s.rollups.count()),
        "sessions": look.ask(lambda s: s.sessions.count()),
    }


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


# --- one part


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
