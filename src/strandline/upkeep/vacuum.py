"""Vacuums a database: shard by shard, and what is left of tables that were dropped long ago."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from strandline.env import Deadline
from strandline.errors import UsageError
from strandline.shard.leftovers import clear_leftovers
from strandline.shard.look import Look
from strandline.shard.machine import Machine
from strandline.shard.vacuum import ShardVacuum, Vacuum
from strandline.state.clocks import settled_time
from strandline.state.commands import Clear, Finish, ForgetTables
from strandline.state.holding import RETENTION
from strandline.state.model import Meta, TableVersion
from strandline.state.pages import TOP
from strandline.state.replay import State
from strandline.txn.apply import apply_table
from strandline.txn.properties import PROPERTIES, duration_micros, property_of
from strandline.txn.store import Store
from strandline.upkeep.sweep import sweep

__all__ = ["SESSIONS", "TXNS", "UNFINISHED", "TableVacuum", "vacuum_database"]

TXNS = "(transactions)"
"""What reports call the txns shard, which belongs to all tables."""

SESSIONS = "(ended sessions)"
"""What reports call what sessions left behind that ended; those that wait are sessions."""

UNFINISHED = "(unfinished objects)"
"""What reports call what processes left that died while they were writing an object."""

_log = logging.getLogger("strandline")

HISTORY_RECORDS = 1_000
"""Records of the txns shard that stay, because the history of commits is told from them."""

_CLEARED = 2_000
"""References that one record lets go of."""


@dataclass(frozen=True, slots=True)
class TableVacuum:
    """What a vacuum did to one table, or with `dry_run` what it would do."""

    table: str
    """Its name; of the shard that all tables share, "(transactions)"."""
    dropped: bool
    """Whether the table was dropped; what it leaves goes once its retention is over."""
    shard: ShardVacuum


def vacuum_database(
    store: Store,
    names: Sequence[str] | None,
    *,
    dry_run: bool,
    deadline: Deadline,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[TableVacuum]:
    """Vacuums the named tables; None: all there are and were, and the shard that they share.

    `progress` is told the table, objects deleted, and objects to be deleted in all.
    """
    txns = store.txns
    if not dry_run:
        # What an older log does not know of, the newest may need.
        store.milestones.check(deadline)
    look = txns.look(deadline)
    newest = txns.machine.ask(_newest_versions, deadline)
    if names is not None:
        chosen = {txns.table(look, name).table for name in names}
        newest = [version for version in newest if version.table in chosen]
    if not dry_run:
        store.look_out([version.table for version in newest], deadline)
    done = [
        _vacuum_table(store, version, dry_run=dry_run, deadline=deadline, progress=progress)
        for version in newest
    ]
    done = [table for table in done if table is not None]
    if names is None:
        if not dry_run:
            _forget(store, deadline)
            store.milestones.thin_out(deadline)
        delay = duration_micros(PROPERTIES["deletion_delay"].default)
        shard = _vacuum(
            store,
            txns.machine,
            TXNS,
            delay,
            dry_run=dry_run,
            deadline=deadline,
            progress=progress,
        )
        done.append(TableVacuum(TXNS, dropped=False, shard=shard))
        done.append(_swept(store, newest, dry_run=dry_run, deadline=deadline, progress=progress))
        done.append(_cleared(store, newest, dry_run=dry_run, deadline=deadline))
    return [table for table in done if table is not None]


def _swept(
    store: Store,
    versions: Sequence[TableVersion],
    *,
    dry_run: bool,
    deadline: Deadline,
    progress: Callable[[str, int, int], None] | None,
) -> TableVacuum | None:
    """What ended sessions left behind, of all tables; None if there are none."""
    done = sweep(
        store,
        delay_micros=_longest_delay(versions),
        deadline=deadline,
        dry_run=dry_run,
        progress=None if progress is None else partial(progress, SESSIONS),
    )
    if not done.sessions and not done.waiting:
        return None
    shard = ShardVacuum(
        shard="",
        objects=done.objects,
        bytes=done.bytes,
        waiting=done.waiting,
        rollups=0,
        records=0,
        left=done.left,
    )
    return TableVacuum(SESSIONS, dropped=False, shard=shard)


def _cleared(
    store: Store, versions: Sequence[TableVersion], *, dry_run: bool, deadline: Deadline
) -> TableVacuum | None:
    """What processes that died left of objects that they did not finish; None if nothing."""
    done = clear_leftovers(
        store.location,
        store.txns.machine,
        store.env,
        delay_micros=max(_longest_delay(versions), int(store.settings.grace_seconds * 1_000_000)),
        deadline=deadline,
        dry_run=dry_run,
    )
    if not done:
        return None
    size = sum(info.size for info in done)
    shard = ShardVacuum(shard="", objects=len(done), bytes=size, waiting={}, rollups=0, records=0)
    return TableVacuum(UNFINISHED, dropped=False, shard=shard)


def _longest_delay(versions: Sequence[TableVersion]) -> int:
    """The longest deletion delay of any table, in µs."""
    delays = [duration_micros(property_of(version, "deletion_delay")) for version in versions]
    return max(delays, default=duration_micros(PROPERTIES["deletion_delay"].default))


def _newest_versions(state: State) -> list[TableVersion]:
    """The newest version of each table that there is or was, by name."""
    newest = {version.table: version for _, version in state.tables.range()}
    return sorted(newest.values(), key=lambda version: (version.name, version.table))


def _vacuum_table(
    store: Store,
    version: TableVersion,
    *,
    dry_run: bool,
    deadline: Deadline,
    progress: Callable[[str, int, int], None] | None,
) -> TableVacuum | None:
    """None for a table that has no shard of its own, because nothing was ever applied to it."""
    machine = store.data(version.table)
    over = _is_over(store, version)
    if over and not dry_run:
        # What was committed before the drop and not applied: so that nothing needs its entries.
        apply_table(store, version.table, deadline)
    look = machine.look(deadline)
    if not look.seqno:
        return None
    if not dry_run:
        _tidy(store, version.table, look, deadline)
    if over and not dry_run:
        _end(machine, deadline)
    shard = _vacuum(
        store,
        machine,
        version.name,
        duration_micros(property_of(version, "deletion_delay")),
        dry_run=dry_run,
        deadline=deadline,
        progress=progress,
    )
    return TableVacuum(version.name, version.valid_until is not None, shard)


def _tidy(store: Store, table: str, data: Look, deadline: Deadline) -> None:
    """Retracts applied entries that whoever applied them has left behind.

    SUBTLE: `data` may be older than the entries that are looked at; what is below its upper was
    applied all the same. A finished shard has no upper, and all there was before it.
    """
    store.check_committed(table, data, deadline)
    upper = TOP if data.meta.upper is None else data.meta.upper
    txns = store.txns
    txns.look(deadline)
    keys = txns.machine.ask(
        lambda s: [key for key, _ in s.entries.range((table,), (table, upper))], deadline
    )
    txns.to_be_tidied(keys)
    if keys:
        txns.tidy(deadline)


def _vacuum(
    store: Store,
    machine: Machine,
    name: str,
    delay: int,
    *,
    dry_run: bool,
    deadline: Deadline,
    progress: Callable[[str, int, int], None] | None,
) -> ShardVacuum:
    vacuum = Vacuum(
        machine,
        store.location,
        store.env,
        delay_micros=delay,
        deadline=deadline,
        records_min=HISTORY_RECORDS if name == TXNS else 0,
        progress=None if progress is None else lambda done, count: progress(name, done, count),
    )
    return vacuum.plan() if dry_run else vacuum.run()


# --- tables that were dropped


def _is_over(store: Store, version: TableVersion) -> bool:
    """Whether the table was dropped longer ago than its retention, in database time."""
    if version.valid_until is None:
        return False
    retention = duration_micros(property_of(version, "retention"))
    return _settled(store.txns.machine.state.meta) - version.valid_until >= retention


def _settled(meta: Meta) -> int:
    """The latest time, or that before a jump of the clock that nobody vouches for."""
    return min(settled_time(meta), (meta.upper or 0) - 1)


def _end(machine: Machine, deadline: Deadline) -> None:
    """Finishes the shard of a table that is over and lets go of its parts, unless it is held."""
    held = machine.ask(lambda s: [k for k, _ in s.holds.range() if k[0] != RETENTION])
    if held:
        return
    try:
        machine.submit(Finish(), deadline)
    except UsageError as error:
        _log.info("shard %s stays for now: %s", machine.shard, error)
        return  # somebody took hold of it just now
    references = machine.ask(lambda s: [key for key, _ in s.references.range()])
    for start in range(0, len(references), _CLEARED):
        bite = tuple(references[start : start + _CLEARED])
        machine.submit(Clear(bite), deadline)


def _forget(store: Store, deadline: Deadline) -> None:
    """Forgets versions of tables at which nothing can be read any more.

    Names are asked for as of times, too; so they stay as long as the longest retention of any
    table that there is, and as long as the table's own history goes back, whoever holds it.
    """
    txns = store.txns
    meta = txns.look(deadline).meta
    versions, newest = txns.machine.ask(
        lambda s: (list(s.tables.range()), _newest_versions(s)), deadline
    )
    kept = [duration_micros(property_of(v, "retention")) for _, v in versions]
    before = _settled(meta) - max(kept, default=0)
    old = [(key, v) for key, v in versions if v.valid_until is not None and v.valid_until <= before]
    dropped = {v.table for v in newest if v.valid_until is not None}
    gone = {v.table for _, v in old if v.table in dropped and _is_gone(store, v.table, deadline)}
    keys = tuple(
        key
        for key, version in old
        if version.table in gone
        or (version.table not in dropped and not _is_readable(store, version, deadline))
    )
    if keys:
        txns.machine.submit(ForgetTables(keys), deadline)


def _is_readable(store: Store, version: TableVersion, deadline: Deadline) -> bool:
    """Whether a time at which this version of a table held can still be read."""
    since = store.data(version.table).look(deadline).meta.since
    return since is not None and version.valid_until is not None and since < version.valid_until


def _is_gone(store: Store, table: str, deadline: Deadline) -> bool:
    """Whether nothing of a dropped table is left: no entry, no part, no object that waits."""
    machine, txns = store.data(table), store.txns
    txns.look(deadline)
    if txns.machine.ask(lambda s: s.entries.count((table,), (table, TOP)), deadline):
        return False
    data = machine.look(deadline)
    if not data.seqno:
        return True
    left = machine.ask(lambda s: s.parts.count() + s.dead.count(), deadline)
    return data.meta.upper is None and data.meta.since is None and not left
