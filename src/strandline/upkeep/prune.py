"""Gives up history from its beginning, as far as nobody holds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strandline.env import Deadline
from strandline.errors import UsageError
from strandline.shard.vacuum import ShardVacuum
from strandline.state.commands import Retain
from strandline.state.holding import RETENTION
from strandline.state.model import TableVersion
from strandline.state.replay import State
from strandline.times import told
from strandline.txn.apply import apply_table
from strandline.txn.store import Store
from strandline.txn.txns import named
from strandline.upkeep.compaction import compact_table
from strandline.upkeep.vacuum import vacuum_database

__all__ = ["TablePrune", "prune_tables"]


@dataclass(frozen=True, slots=True)
class TablePrune:
    """What a prune did to one table."""

    table: str
    since: int
    """The earliest time that can be read now; µs since the Unix epoch."""
    held_by: tuple[str, ...]
    """The holds that keep it from being as late as was asked for."""
    shard: ShardVacuum | None
    """What the vacuum did that followed; None if nothing of the table is in a shard of its own."""


def prune_tables(
    store: Store,
    names: Sequence[str] | None,
    before: int,
    *,
    deadline: Deadline,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[TablePrune]:
    """Gives up what only reads before that time need, in the named tables (None: all there are).

    The hold of the tables' retention moves, in a record of its own; what is over is let go of by a
    compaction, and deleted by a vacuum, now or once its delay has passed. UsageError if the time
    has not come yet.
    """
    txns = store.txns
    look = txns.look(deadline)
    if before > txns.latest(look):
        raise UsageError(
            f"history before {told(before)} cannot be given up: the latest time is "
            f"{told(txns.latest(look))}; pass that or an earlier one"
        )
    versions = txns.tables(look)
    if names is not None:
        versions = [named(versions, name) for name in names]
    store.look_out([version.table for version in versions], deadline)
    held = {v.table: _let_go(store, v, before, deadline) for v in versions}
    chosen = [version.name for version in versions]
    vacuums = vacuum_database(store, chosen, dry_run=False, deadline=deadline, progress=progress)
    shards = {report.shard.shard: report.shard for report in vacuums}
    return [
        TablePrune(
            version.name,
            store.data(version.table).state.meta.since or 0,
            held[version.table],
            shards.get(version.table),
        )
        for version in versions
    ]


def _let_go(
    store: Store, version: TableVersion, before: int, deadline: Deadline
) -> tuple[str, ...]:
    """Moves the retention and lets go of what is over; the holds that kept it from moving."""
    # Since stays below the shard's upper: what is committed is applied first.
    apply_table(store, version.table, deadline)
    machine = store.data(version.table)
    if not machine.look(deadline).seqno:
        return ()
    machine.submit(Retain(before), deadline)
    compact_table(store, version, deadline)
    return machine.ask(lambda state: _holding(state, before))


def _holding(state: State, before: int) -> tuple[str, ...]:
    """The holds of others at times before that one."""
    return tuple(
        key[0]
        for key, hold in state.holds.range()
        if key[0] != RETENTION and hold.since is not None and hold.since < before
    )
