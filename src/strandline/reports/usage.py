"""What the objects of a database take, and what they are good for."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from strandline.env import Deadline
from strandline.errors import Corruption, UsageError
from strandline.ids import MARKER_KEY, MilestoneKey, ObjectKey
from strandline.location import BlobMissing
from strandline.shard.look import Look
from strandline.shard.machine import Machine
from strandline.state.codec import decode_rollup
from strandline.state.garbage import plan_vacuum
from strandline.state.model import Entry, TableVersion
from strandline.state.pages import Page
from strandline.state.replay import State
from strandline.txn.handle import Handle
from strandline.txn.properties import PROPERTIES, duration_micros, property_of
from strandline.txn.store import Store

__all__ = ["USAGE", "usage"]

USAGE = pa.schema(
    [
        ("table", pa.string()),
        ("use", pa.string()),
        ("kind", pa.string()),
        ("waits_for", pa.string()),
        ("objects", pa.int64()),
        ("bytes", pa.int64()),
    ]
)

FORGOTTEN = "(forgotten)"
"""What stands for all tables of which nothing is left but a tombstone."""

_log = logging.getLogger("strandline")

_Group = tuple[str | None, str, str, str | None]
"""Table, use, kind of object, and what a dead one waits for."""


@dataclass(slots=True)
class _Tally:
    """Objects by what they are good for. Each object counts once, where it was met first."""

    store: Store
    deadline: Deadline
    objects: Counter[_Group] = field(default_factory=Counter)
    bytes: Counter[_Group] = field(default_factory=Counter)
    known: set[str] = field(default_factory=set)

    def add(self, key: str, size: int, group: _Group) -> None:
        if key not in self.known:
            self.known.add(key)
            self.count(group, 1, size)

    def count(self, group: _Group, objects: int, size: int = 0) -> None:
        self.objects[group] += objects
        self.bytes[group] += size

    def rows(self) -> list[dict[str, object]]:
        groups = sorted(self.objects, key=lambda g: (g[0] or "", g[1:3], g[3] or ""))
        names = ("table", "use", "kind", "waits_for")
        return [
            {
                **dict(zip(names, group, strict=True)),
                "objects": self.objects[group],
                # A log says how many records it has, not how large they are.
                "bytes": None if group[1] == "log" else self.bytes[group],
            }
            for group in groups
        ]


def usage(handle: Handle, deadline: Deadline) -> pa.Table:
    """What the objects take by table, use and kind, as `USAGE`."""
    store = handle.store
    # SUBTLE: listed first, so that what a state names and the listing does not show is newer, and
    # what no state names was there before the states were read: it is under way, or left behind.
    listed = list(store.location.blob.list("", timeout=deadline.remaining()))
    look = store.txns.look(deadline)
    tally = _Tally(store, deadline)
    names = dict(_tables(store, look))
    for table, version in names.items():
        name = _name(version)
        data = store.data(table)
        shard = data.look(deadline)
        delay = duration_micros(property_of(version, "deletion_delay"))
        _add_shard(tally, name, data, shard, delay)
        entries: list[Entry] = look.ask(partial(_entries_of, table=table))
        _add_entries(tally, name, entries, shard.meta.upper)
    delay = duration_micros(PROPERTIES["deletion_delay"].default)
    shards = store.location.consensus.keys(timeout=deadline.remaining())
    for other in sorted({*shards} - names.keys() - {store.txns.machine.shard}):
        data = store.data(other)
        shard = data.look(deadline)
        _add_shard(tally, _other(other, shard), data, shard, delay)
        if shard.meta.origin == "commits":
            _add_entries_elsewhere(tally, data, shard)
    _add_shard(tally, None, store.txns.machine, look, delay)
    now = store.env.now_micros()
    for left in store.location.blob.leftovers(now, delete=False, timeout=deadline.remaining()):
        tally.add(left.key, left.size, (None, "unknown", "unfinished", None))
    for info in listed:
        if info.key == MARKER_KEY:
            tally.add(info.key, info.size, (None, "state", "marker", None))
        elif _is_milestone(info.key):
            tally.add(info.key, info.size, (None, "state", "milestone", None))
        elif "/" in info.key:  # the log of a directory lies beside its objects
            kind, table_name = "other", None
            with suppress(UsageError):
                key = ObjectKey.parse(info.key)
                kind = key.kind
                table_name = _name(names[key.shard]) if key.shard in names else None
            tally.add(info.key, info.size, (table_name, "unknown", kind, None))
    return pa.Table.from_pylist(tally.rows(), schema=USAGE)


def _tables(store: Store, look: Look) -> Iterator[tuple[str, TableVersion]]:
    """The newest version of each table that there is or was, by id."""
    found: list[TableVersion] = look.ask(lambda s: [version for _, version in s.tables.range()])
    for version in found:
        yield version.table, version


def _entries_of(state: State, table: str) -> list[Entry]:
    return [entry for _, entry in state.entries.prefix((table,))]


def _name(version: TableVersion) -> str:
    return version.name if version.valid_until is None else f"{version.name} (dropped)"


def _other(shard: str, look: Look) -> str:
    """What a shard is called that belongs to no table that the database knows of."""
    finished = look.meta.upper is None and look.meta.since is None
    return FORGOTTEN if finished else f"(shard {shard})"


def _add_entries(
    tally: _Tally, name: str, entries: list[Entry], physical_upper: int | None
) -> None:
    """What is committed and not applied: parts, and rows inside of the log."""
    for entry in entries:
        if physical_upper is None or entry.time < physical_upper:
            continue  # applied, and not tidied yet
        for part in entry.batch.parts:
            tally.add(part.key, part.size, (name, "not applied", "part", None))
        if entry.batch.inline:
            tally.count((name, "not applied", "inline", None), 1, len(entry.batch.inline))


def _add_entries_elsewhere(tally: _Tally, txns: Machine, look: Look) -> None:
    """The same of a txns shard that is used by itself, for the shards that are registered there."""
    deadline = tally.deadline
    found: list[Entry] = look.ask(
        lambda s: [entry for _, entry in s.entries.range() if entry.batch.rows]
    )
    for shard in dict.fromkeys(entry.table for entry in found):
        data = tally.store.data(shard).look(deadline)
        mine = [entry for entry in found if entry.table == shard]
        _add_entries(tally, _other(shard, data), mine, data.meta.upper)


def _add_shard(tally: _Tally, name: str | None, machine: Machine, look: Look, delay: int) -> None:
    """All that the state of one shard names."""
    if not look.seqno:
        return
    store, deadline = tally.store, tally.deadline

    def named(s: State) -> tuple[list[tuple[str, int, _Group]], list[tuple[str, int]]]:
        found: list[tuple[str, int, _Group]] = []
        references = [reference for _, reference in s.references.range()]
        # A part is live where one of its references is: history is what the present never reads.
        references.sort(key=lambda reference: reference.reads_before is not None)
        for reference in references:
            use = "live" if reference.reads_before is None else "history"
            part = reference.part
            found.append((part.key, part.size, (name, use, "part", None)))
        plan = plan_vacuum(s, store.env.now_micros(), delay)
        waits = [*((dead, "vacuum") for _, dead in plan.delete), *plan.waits]
        for dead, reason in waits:
            found.append((dead.key, dead.size, (name, "dead", _kind(dead.key), reason)))
        for _, receipt in s.receipts.range():
            found.append((receipt.key, receipt.size, (name, "state", "receipt", None)))
        return found, [(rollup.key, rollup.size) for _, rollup in s.rollups.range()]

    found, rollups = look.ask(named)
    for key, size, group in found:
        tally.add(key, size, group)
    for key, size in rollups:
        tally.add(key, size, (name, "state", "rollup", None))
        for page, page_size in _pages(store, key, deadline):
            tally.add(page, page_size, (name, "state", "page", None))
    log = store.location.consensus
    first = log.scan(machine.shard, 1, 1, timeout=deadline.remaining())
    records = max(0, look.seqno - first[0].seqno + 1) if first else 0
    tally.count((name, "log", "record", None), records)


def _is_milestone(key: str) -> bool:
    try:
        MilestoneKey.parse(key)
    except UsageError:
        return False
    return True


def _kind(key: str) -> str:
    try:
        return ObjectKey.parse(key).kind
    except UsageError:
        return "other"


def _pages(store: Store, rollup: str, deadline: Deadline) -> Iterator[tuple[str, int]]:
    try:
        data = store.location.blob.get(rollup, timeout=deadline.remaining())
        manifest = decode_rollup(data, rollup)
    except (Corruption, BlobMissing) as error:
        _log.warning("the pages of rollup %s are not counted: %s", rollup, error)
        return
    for pages in manifest.pages.values():
        for ref in () if isinstance(pages, Page) else pages:
            yield ref.key, ref.size
