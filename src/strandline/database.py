"""A database as its users hold it: tables by name, all of them at one moment, and their upkeep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from strandline.changes.subscription import (
    TablesSubscription,
    seconds_of,
    start_of,
    subscribed_together,
)
from strandline.closing import Closing
from strandline.env import LONG_SECONDS, Deadline
from strandline.errors import UsageError
from strandline.parts.schema import validate_table_name
from strandline.readable import changes_wanted
from strandline.reports.inside import inspect
from strandline.reports.sessions import force_ack, sessions
from strandline.reports.status import status
from strandline.reports.storage import planned, shards
from strandline.reports.usage import usage
from strandline.sql.run import run_sql
from strandline.table import Table
from strandline.times import Commit, Micros, datetime_of, parse_as_of
from strandline.transaction import STAGING_SECONDS, Transaction, transact
from strandline.txn.handle import Handle
from strandline.txn.history import history
from strandline.txn.staging import Staging
from strandline.upkeep.compaction import CompactionReport, compact
from strandline.upkeep.prune import TablePrune, prune_tables
from strandline.upkeep.splitting import SplitReport, split
from strandline.upkeep.vacuum import TableVacuum, vacuum_database
from strandline.write.commit import WriteOptions
from strandline.write.ddl import create_table, drop_table, name_of, new_table, rename_table
from strandline.write.staged import Staged, stage

__all__ = ["Database"]

A = TypeVar("A")


class Database(Closing):
    """A database: its tables now, or (where `as_of` made it) as of one time. Thread-safe.

    Made by `strandline.connect`. Close it, or use it as a context manager. In another process, by
    pickle or by fork, it opens the database anew, with a session of its own.
    """

    def __init__(self, handle: Handle, as_of: int | None = None) -> None:
        self._handle = handle
        self._as_of = as_of

    @property
    def url(self) -> str:
        """Where the database is."""
        return self._handle.origin.url

    # --- tables

    def create_table(  # noqa: PLR0913  each is a word about the table
        self,
        name: str,
        schema: Any,
        *,
        row_keys: Sequence[str] | str,
        sort_keys: Sequence[str] | str = (),
        kind: str = "rows",
        split_points: Sequence[Any] = (),
        properties: Mapping[str, Any] | None = None,
        exist_ok: bool = False,
        aggregate: object = None,
        merge: object = None,
        keep: object = None,
        timeout: float | None = None,
    ) -> Table:
        """Creates a table, in one commit with its first rows if data is passed.

        `schema` is a `pyarrow.Schema`, or data in any form that `Table.append` takes: its schema
        is taken and its rows are appended. Rows are kept sorted by `row_keys`, then `sort_keys`;
        keys are integers, strings, binary, dates, timestamps, decimals or booleans, never null.
        `kind` is "rows" (a multiset) or "keyed" (one row per full key, the latest written).
        `split_points` are row keys, or prefixes of them, at which the table is split into leaves
        from the start. With `exist_ok`, a table that is there already with the same columns, keys
        and kind is returned (and data appended to it).

        Properties, changed later by `Table.set`:

        - retention ("7 days"): how far back in database time an `as_of` can reach at least;
        - strategy ("size-ratio"; "basic", "full"): which parts of a leaf a compaction merges;
        - compaction_parts (11): parts that one merge takes at most;
        - split_rows (8000000): rows above which a leaf is split;
        - deletion_delay ("15 minutes"): for how long objects that nothing needs any more stay, for
          readers without a hold;
        - online (true): whether maintenance visits the table.

        Raises `UsageError`, which names what is wrong and the remedy, with nothing written.
        """
        _refuse_later(kind, aggregate=aggregate, merge=merge, keep=keep)
        options = self._options("create_table", timeout)
        new = new_table(
            self._handle.store.env,
            name,
            schema,
            row_keys,
            sort_keys,
            kind,
            split_points,
            properties,
        )
        return Table(self._handle, create_table(self._handle, new, options, exist_ok=exist_ok))

    def table(self, name: str) -> Table:
        """The table of that name; `UnknownTable`, a `KeyError` too, names those that are near."""
        store = self._handle.store
        look = store.txns.look()
        return Table(self._handle, store.txns.table(look, name_of(name), self._as_of), self._as_of)

    def tables(self) -> list[str]:
        """The names of all tables, sorted."""
        store = self._handle.store
        look = store.txns.look()
        return [version.name for version in store.txns.tables(look, self._as_of)]

    def drop_table(
        self, name: str, *, missing_ok: bool = False, timeout: float | None = None
    ) -> Commit | None:
        """Ends a table. An `as_of` before this goes on seeing it while it is kept.

        With `missing_ok`, None where there is no such table.
        """
        options = self._options("drop_table", timeout)
        return drop_table(self._handle, name, options, missing_ok=missing_ok)

    def rename_table(self, name: str, to: str, *, timeout: float | None = None) -> Commit:
        """Gives a table another name, from now on. Handles on the table go on working."""
        validate_table_name(name_of(to))
        return rename_table(self._handle, name, to, self._options("rename_table", timeout))

    def __getitem__(self, name: str) -> Table:
        return self.table(name)

    def __contains__(self, name: object) -> bool:
        return name in self.tables()

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables())

    # --- reading

    def as_of(self, moment: Any) -> Database:
        """All tables as of a moment; they can be read and not written.

        `moment` is an aware datetime, an ISO string with a zone, `Micros` or a `Commit`.
        """
        return Database(self._handle, parse_as_of(moment))

    def sql(self, text: str, *, as_of: Any = None, timeout: float | None = None) -> Any:
        """Runs one SQL statement in DuckDB; every table is there by its name, all at one moment.

        A query gives a `Relation` (`.fetchall()`, `.df()`, `.pl()`, `.arrow()`) that stays usable.
        INSERT, UPDATE, DELETE and `COPY t FROM 'files'` run as one transaction and give a `Commit`.
        `COPY t TO 'file'`, or `COPY (SELECT …) TO`, gives the number of rows, `Count`, as a
        `Relation`; the file appears whole or not at all, and replaces one only with (OVERWRITE).
        Anything else is a `UsageError`; besides the files of COPY, which are those of this machine,
        no files, extensions or network can be reached.

        `timeout` (seconds) ends the statement wherever it is, with DeadlineExceeded. Of a query it
        is for planning it, and once more for each call that fetches rows, or batch of a stream. So
        does Ctrl-C. Either way nothing was written. Only a single value that takes long to compute,
        such as a list of millions of numbers, is waited for.
        """
        moment = self._as_of if as_of is None else parse_as_of(as_of)
        return run_sql(self._handle, text, moment, self._handle.deadline(timeout))

    def subscribe(
        self,
        tables: Sequence[str],
        start: Any = "snapshot",
        until: Any = None,
        columns: Mapping[str, Sequence[str]] | None = None,
        where: Mapping[str, Any] | None = None,
        *,
        with_old: bool = False,
        timeout: float | None = None,
        poll: float = 0.1,
        name: str | None = None,
    ) -> TablesSubscription:
        """An iterator over every change of several tables, all of them up to one time.

        As `Table.subscribe`, and `columns` and `where` are by table name; `with_old` goes for those
        that are keyed. A `TablesChange` has `tables`, `progress` and `complete`: of every table, by
        its name, the rows up to one time, whole commits, each exactly once. A commit to several
        tables comes in one change. A table that nothing happened to has no rows in it, and its
        time passes with that of the others. A table that is renamed keeps the name that it was
        asked by here; once one is dropped and all before that was given, it ends with UnknownTable.
        """
        if self._as_of is not None:
            raise UsageError(
                "this is the database as of an earlier time, which has no changes to come; "
                "subscribe to the database itself"
            )
        names = list(dict.fromkeys(map(name_of, _listed(tables))))
        for what, given in (("columns", columns), ("where", where)):
            unknown = sorted(set(given or ()) - set(names), key=str)
            if unknown:
                raise UsageError(f"{what}= has {unknown[0]!r}, which is not among the tables")
        txns = self._handle.store.txns
        look = txns.look()
        wanted = {
            version.name: changes_wanted(
                version,
                (columns or {}).get(version.name),
                (where or {}).get(version.name),
                with_old=with_old and version.kind == "keyed",
            )
            for version in (txns.table(look, each) for each in names)
        }
        return subscribed_together(
            self._handle,
            wanted,
            start=start_of(start),
            until=None if until is None else parse_as_of(until),
            timeout=seconds_of(timeout, "timeout"),
            poll=seconds_of(poll, "poll") or 0.0,
            name=name,
        )

    # --- transactions

    def transaction(
        self,
        *,
        isolation: str = "strict serializable",
        token: tuple[str, int] | None = None,
        metadata: dict[str, str] | None = None,
        timeout: float | None = None,
    ) -> Transaction:
        """A transaction over any number of tables, to be used with `with`.

        `isolation` is "strict serializable", "serializable" or "snapshot"; `Transaction` says what
        each promises. The end of the block commits, at one time and visible at once; an exception
        in it discards. A commit whose reads were changed by others raises `TransactionConflict`:
        `transact` tries again by itself.
        """
        if self._as_of is not None:
            raise UsageError("this is the database as of an earlier time, which cannot change")
        return Transaction(
            self._handle, isolation=isolation, token=token, metadata=metadata, timeout=timeout
        )

    def transact(
        self,
        function: Callable[[Transaction], A],
        *,
        isolation: str = "strict serializable",
        token: tuple[str, int] | None = None,
        metadata: dict[str, str] | None = None,
        timeout: float | None = None,
    ) -> A:
        """Calls `function(transaction)` and commits; anew after each conflict, until the deadline.

        Returns what `function` returned for the transaction that was committed. It may be called
        several times, so it should do nothing else than read and write in the transaction. After
        three conflicts the commits of others wait until it is through, for a second at most. An
        unknown outcome is raised, or with a token asked for again until it is known.
        """
        if self._as_of is not None:
            raise UsageError("this is the database as of an earlier time, which cannot change")
        return transact(
            self._handle,
            function,
            isolation=isolation,
            token=token,
            metadata=metadata,
            timeout=timeout,
        )

    def stage(self, data: Mapping[str, Any], *, timeout: float | None = None) -> Staged:
        """Writes rows for several tables, `{name: data}`, which nobody sees until they are merged.

        `Transaction.merge` takes it up, here or in another process (`Staged.to_bytes`). In a keyed
        table the rows replace those of their keys once committed. `timeout` (seconds) is for
        writing them; nothing is committed.
        """
        options = self._options("stage", timeout)
        # What was written stays for longer than it took to write it.
        staging = Staging(self._handle.store, self._handle.deadline(STAGING_SECONDS))
        return stage(self._handle, data, replace(options, staging=staging))

    def history(self, limit: int | None = None, *, timeout: float | None = None) -> pa.Table:
        """The commits of the database, newest first, at most `limit`.

        Columns: commit, time, operation, tables, rows (as `Commit.rows` counts them), metadata,
        session. It goes back as far as the log does, of which a vacuum leaves the newest 1,000
        records or more.
        """
        deadline = self._handle.deadline(timeout)
        store = self._handle.store
        return history(store, table=None, as_of=self._as_of, limit=limit, deadline=deadline)

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
        """
        return split(self._handle, _names(table), self._long(timeout))

    def status(self, *, count: bool = False, timeout: float | None = None) -> pa.Table:
        """One row per table: how it is stored, and what waits to be applied.

        Columns: table, kind, rows, updates (stored: rows that were replaced or deleted, and what
        says so, count until a compaction drops them), bytes, parts, leaves, level_zero (parts not
        assigned to leaves yet), backlog (commits not applied), latest, since.

        `rows` are those that a scan would give, where that is known from the parts' metadata or
        by reading at most a million updates; else null, unless `count` says to read all it takes.
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
        """
        return usage(self._handle, self._handle.deadline(timeout))

    def shards(self, *, timeout: float | None = None) -> pa.Table:
        """One row per shard, the txns shard (`table` is null) first: how long its log is.

        Columns: table, shard, seqno, log_records (kept in the log), rollups, sessions.
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
        """
        shard = None if table is None else self.table(table).id
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
        """Ends background work and this handle's session. Closing twice is harmless."""
        self._handle.close(timeout=timeout)

    def __repr__(self) -> str:
        when = "" if self._as_of is None else f" as of {datetime_of(self._as_of).isoformat()}"
        closed = ", closed" if self._handle.closed else ""
        return f"<strandline.Database {self.url!r}{when}{closed}>"

    def __reduce__(self) -> tuple[type[Database], tuple[Handle, int | None]]:
        return Database, (self._handle, self._as_of)

    # --- inside

    def _long(self, timeout: float | None) -> Deadline:
        """By when upkeep has to be done."""
        return self._handle.deadline(LONG_SECONDS if timeout is None else timeout)

    def _options(self, operation: str, timeout: float | None) -> WriteOptions:
        if self._as_of is not None:
            raise UsageError(
                "this is the database as of an earlier time, which cannot change; write to the "
                "database itself"
            )
        return WriteOptions.of(self._handle, operation, None, None, timeout)


def _names(table: str | Sequence[str] | None) -> Sequence[str] | None:
    return [table] if isinstance(table, str) else table


def _refuse_later(kind: str, **later: object) -> None:
    if kind == "aggregate" or later["aggregate"] is not None:
        raise UsageError(
            "tables of kind 'aggregate' come in a later release; use kind='rows' and aggregate in "
            "db.sql, or kind='keyed'"
        )
    for name, value in later.items():
        if value is not None:
            raise UsageError(f"{name}= comes in a later release; leave it out")


def _listed(tables: Any) -> Sequence[Any]:
    if isinstance(tables, str | bytes) or not isinstance(tables, Sequence) or not tables:
        raise UsageError(f"tables={tables!r}: pass a list of names of tables")
    return tables
