"""What operators ask of a database: its upkeep, reports, and their word where it is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from strandline.closing import Closing
from strandline.env import LONG_SECONDS, Deadline
from strandline.reports.inside import inspect
from strandline.reports.sessions import force_ack, sessions
from strandline.reports.status import status
from strandline.reports.storage import planned, shards
from strandline.reports.usage import usage
from strandline.state.model import TableVersion
from strandline.times import Micros, parse_as_of
from strandline.txn.handle import Handle
from strandline.upkeep.compaction import CompactionReport, compact
from strandline.upkeep.prune import TablePrune, prune_tables
from strandline.upkeep.splitting import SplitReport, split
from strandline.upkeep.vacuum import TableVacuum, vacuum_database
from strandline.write.ddl import name_of

__all__ = ["OperatedDatabase"]


class OperatedDatabase(Closing):
    """A database that is looked after. `Database` holds tables, too. Thread-safe."""

    def __init__(self, handle: Handle, as_of: int | None = None) -> None:
        self._handle = handle
        self._as_of = as_of

    @property
    def url(self) -> str:
        """Where the database is."""
        return self._handle.origin.url

    # --- upkeep

    def compact(
        self,
        table: str | Sequence[str] | None = None,
        *,
        strategy: str | None = None,
        force: bool = False,
        engine: object = "local",
        progress: Callable[[int, int], None] | None = None,
        timeout: float | None = None,
    ) -> list[CompactionReport]:
        """Merges parts, so that reads open fewer; returns what was done, per table.

        `table` is a name, a list of names, or None for all tables that are online. `strategy`
        ("size-ratio", "basic", "full") overrides the table's property. `engine` says where merging
        happens: "local", or a Spark session. `progress` is told (jobs done, jobs in all) of each
        table. A table that another is compacting is left alone (`claimed_by` in its report says
        who), unless with `force`. `timeout` (seconds) defaults to a day: this is long work. Safe
        beside everything.

        >>> [(report.table, report.parts_after) for report in db.compact("readings")]
        [('readings', 1)]
        """
        return compact(
            self._handle,
            _names(table),
            strategy=strategy,
            force=force,
            engine=engine,
            progress=progress,
            deadline=self._long(timeout),
        )

    def plan_compaction(
        self,
        table: str | Sequence[str] | None = None,
        *,
        strategy: str | None = None,
        timeout: float | None = None,
    ) -> pa.Table:
        """The merges that `compact` would make now, one row each; nothing is changed.

        Columns: table, leaf, lower, upper (of the leaf), parts, rows, bytes (to be merged, at
        most). Commits that are not applied yet are left out.
        """
        return planned(self._handle, _names(table), strategy, self._handle.deadline(timeout))

    def vacuum(
        self,
        table: str | Sequence[str] | None = None,
        *,
        dry_run: bool = False,
        progress: Callable[[str, int, int], None] | None = None,
        timeout: float | None = None,
    ) -> list[TableVacuum]:
        """Deletes objects that nothing needs any more, and shortens the logs; what it did.

        `table` is a name, a list of names, or None for everything, tables that were dropped
        included. An object goes once nothing refers to it, nobody holds it, and the table's
        `deletion_delay` has passed since, by the location's own clock; the first run after
        something died only notes the time. Of everything, what processes left that died while they
        were writing an object goes as well. With `dry_run` nothing is written, and the report says
        what a run would do now. `progress` is told (table, objects deleted, objects in all).
        `timeout` (seconds) defaults to a day. Safe beside everything, itself included.

        >>> [report.table for report in db.vacuum(dry_run=True)]
        ['(transactions)']
        """
        store = self._handle.store
        if not dry_run:
            store.check_writable()
        deadline = self._long(timeout)
        return vacuum_database(
            store, _names(table), dry_run=dry_run, deadline=deadline, progress=progress
        )

    def prune(
        self,
        table: str | Sequence[str] | None = None,
        *,
        before: Any,
        progress: Callable[[str, int, int], None] | None = None,
        timeout: float | None = None,
    ) -> list[TablePrune]:
        """Gives up history before a moment, whatever the tables' retention says; what it did.

        `before` is what `as_of` takes, at most the latest time: no `as_of` before it can be read
        afterwards, unless somebody holds it (`held_by` in the report says who). History goes from
        its beginning only. What is over is deleted by a vacuum, at once or, while the deletion
        delay lasts, by a later one. `table`, `progress` and `timeout` as in `vacuum`.

        >>> commit = stock.delete(keys=["pear"])
        >>> [pruned] = db.prune("stock", before=commit)
        >>> pruned.since == commit.micros, pruned.held_by
        (True, ())
        """
        store = self._handle.store
        store.check_writable()
        deadline = self._long(timeout)
        moment = parse_as_of(before)
        return prune_tables(store, _names(table), moment, deadline=deadline, progress=progress)

    def split(
        self, table: str | Sequence[str] | None = None, *, timeout: float | None = None
    ) -> list[SplitReport]:
        """Splits leaves with more rows than the property `split_rows`, at medians of their keys.

        `table` is a name, a list of names, or None for all tables that are online. Returns, per
        table, the leaves before and after, and how many stay too large because a single row key
        fills them. No data is rewritten. `timeout` (seconds) defaults to a day.

        >>> [(report.table, report.leaves_after) for report in db.split(["readings", "stock"])]
        [('readings', 1), ('stock', 1)]
        """
        return split(self._handle, _names(table), self._long(timeout))

    def status(self, *, count: bool = False, timeout: float | None = None) -> pa.Table:
        """One row per table: how it is stored, and what waits to be applied.

        Columns: table, kind, rows, updates (stored: rows that were replaced or deleted, and what
        says so, count until a compaction drops them), bytes, parts, leaves, level_zero (parts not
        assigned to leaves yet), backlog (commits not applied), latest, since.

        `rows` are those that a scan would give, where that is known from the parts' metadata or
        by reading at most a million updates; else null, unless `count` says to read all it takes.

        >>> db.status().select(["table", "rows"]).to_pylist()
        [{'table': 'readings', 'rows': 3}, {'table': 'stock', 'rows': 2}]
        """
        return status(self._handle, self._as_of, self._handle.deadline(timeout), count=count)

    def usage(self, *, timeout: float | None = None) -> pa.Table:
        """What the objects of the database take, and what they are good for; it lists them all.

        Columns: table (null: of the database itself), use, kind, waits_for, objects, bytes. `use`
        is "live"; "history" (no read of the present needs it); "not applied" (committed, parts or
        rows inline); "dead" (`waits_for` says for what: "rollup", "hold", "delay", "receipt", or
        "vacuum" if the next one deletes it); "state" (rollups, pages, receipts, milestones, the
        marker); "log" (records kept, bytes are null); "unknown" (no state names it: under way, or
        left behind by a process that died; "unfinished" what it was still writing).

        >>> sorted(set(db.usage()["use"].to_pylist()))
        ['log', 'not applied', 'state']
        """
        return usage(self._handle, self._handle.deadline(timeout))

    def shards(self, *, timeout: float | None = None) -> pa.Table:
        """One row per shard, the txns shard (`table` is null) first: how long its log is.

        Columns: table, shard, seqno, log_records (kept in the log), rollups, sessions.

        >>> db.shards()["table"].to_pylist()
        [None, 'readings', 'stock']
        """
        return shards(self._handle, self._handle.deadline(timeout))

    def inspect(
        self,
        what: str,
        *,
        table: str | None = None,
        key: str | None = None,
        limit: int = 20,
        timeout: float | None = None,
    ) -> pa.Table:
        """A look into a shard: the table's, or without `table` the txns shard.

        `what` is "log" (the newest `limit` records), "state", "rollups", "pages" (of the newest
        rollup), "holds" (and the sessions), or "part", for which `key` is an object key or a
        part's id. What columns there are depends on it, and may change between versions: this is
        for people.

        >>> db.inspect("log", limit=1).num_rows
        1
        """
        shard = None if table is None else self._version(table).table
        return inspect(
            self._handle,
            what,
            table=shard,
            key=key,
            limit=limit,
            deadline=self._handle.deadline(timeout),
        )

    def confirm_clock(self, *, timeout: float | None = None) -> Micros:
        """Says that the clock of this machine is right, after somebody has looked at it.

        A jump of time by more than a day is doubted where no other clock vouches for it: retention
        then goes by the time before the jump, until 16 commits over a day have made the new time
        plausible, or this is called. And where commits were made with a clock that was ahead, this
        lets others write again: their commits get times right after those. Returns the time by
        which retention goes now. ClockSkew if the location's clock says otherwise.

        >>> db.confirm_clock() > sl.Micros(0)
        True
        """
        store, deadline = self._handle.store, self._handle.deadline(timeout)
        store.check_writable()
        return Micros(max(0, store.txns.confirm_clock(deadline)))

    def confirm_restore(self, *, timeout: float | None = None) -> int:
        """Goes on from a log that is older than it was, and gives up what was committed after it.

        Writes to a database whose log is a copy of an earlier day, or lost its end, are refused
        (`Corruption`) as far as that can be known. Restoring the newest log loses nothing; where
        there is none, this lets others write again. Returns how many records of the log are given
        up, at least: 0 if it is the newest that anything is known of. It cannot be undone.

        >>> db.confirm_restore()
        0
        """
        store, deadline = self._handle.store, self._handle.deadline(timeout)
        store.check_writable()
        return store.milestones.confirm(deadline)

    # --- sessions

    def sessions(self, *, timeout: float | None = None) -> pa.Table:
        """One row per session: who writes, or wrote, in each shard, and what is left of it.

        Columns: table (null: the shard that commits), session, worker (what its owner calls
        itself, where it attached a table), state ("open"; "ended"; "acknowledged": its owner
        writes nothing more; "swept": once, and once more later), records (that it wrote to the
        shard), holds (tables that it holds exclusively), opened, last_commit (as far as the log
        tells), uncommitted_objects, uncommitted_bytes (that it wrote, and nothing names yet or any
        more), shard. It lists the objects of each session.

        >>> set(db.sessions()["state"].to_pylist())
        {'open'}
        """
        return sessions(self._handle.store, self._handle.deadline(timeout))

    def force_ack(
        self,
        *,
        session: str | None = None,
        worker: str | None = None,
        timeout: float | None = None,
    ) -> list[str]:
        """Says that the owner of a session, or of all of a worker, writes no objects any more.

        For an operator who has seen to it: the machine is gone, or its credentials are. Sessions
        that are open are ended first. What they left goes with the next vacuum, without waiting
        for their lease and grace to pass. Returns the sessions.
        """
        return force_ack(self._handle.store, session, worker, self._handle.deadline(timeout))

    # --- the handle

    def close(self, *, timeout: float | None = None) -> None:
        """Ends background work and this handle's session. Closing twice is harmless.

        >>> db.close()
        >>> db
        <strandline.Database 'memory://', closed>
        """
        self._handle.close(timeout=timeout)

    # --- inside

    def _version(self, name: str) -> TableVersion:
        txns = self._handle.store.txns
        return txns.table(txns.look(), name_of(name), self._as_of)

    def _long(self, timeout: float | None) -> Deadline:
        """By when upkeep has to be done."""
        return self._handle.deadline(LONG_SECONDS if timeout is None else timeout)


def _names(table: str | Sequence[str] | None) -> Sequence[str] | None:
    return [table] if isinstance(table, str) else table
