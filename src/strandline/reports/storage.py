"""What is stored: the leaves and parts of a table, the merges that are due, and the shards.

Everything comes as an Arrow table of plain values, for people and for scripts. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from strandline.state.decide import Author, decide
from strandline.state.model import Entry, Interval, Leaf, Part, Reference, TableVersion
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
from strandline.txn.handle import Handle
from strandline.txn.properties import is_online, property_of
from strandline.txn.view import View, view_of, views

__all__ = ["partitions", "parts", "planned", "shards"]

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
        if names is None and not is_online(version):
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
