"""A database as its users hold it: tables by name, all of them at one moment, and their upkeep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from strandline.changes.differences import changes_wanted
from strandline.changes.subscription import (
    TablesSubscription,
    seconds_of,
    start_of,
    subscribed_together,
)
from strandline.errors import UsageError
from strandline.operated import OperatedDatabase
from strandline.parts.schema import validate_table_name
from strandline.sql.run import run_sql
from strandline.table import Table
from strandline.times import Commit, datetime_of, parse_as_of
from strandline.transaction import STAGING_SECONDS, Transaction
from strandline.txn.handle import Handle
from strandline.txn.history import history
from strandline.txn.staging import Staging
from strandline.write.commit import WriteOptions
from strandline.write.ddl import create_table, drop_table, name_of, new_table, rename_table
from strandline.write.staged import Staged, stage
from strandline.write.transact import transact

__all__ = ["Database"]

A = TypeVar("A")


class Database(OperatedDatabase):
    """A database: its tables now, or (where `as_of` made it) as of one time. Thread-safe.

    Made by `strandline.connect`. Close it, or use it as a context manager. In another process, by
    pickle or by fork, it opens the database anew, with a session of its own.

    All examples of its methods and of tables begin with this, where `sl` is `strandline`:

    >>> db = sl.connect("memory://")
    >>> readings = db.create_table(
    ...     "readings",
    ...     {"sensor": [7, 7, 9], "at": [1, 2, 1], "value": [20.5, 21.0, 3.5]},
    ...     row_keys="sensor",
    ...     sort_keys="at",
    ... )
    >>> stock = db.create_table(
    ...     "stock", {"item": ["apple", "pear"], "count": [5, 2]}, row_keys="item", kind="keyed"
    ... )
    """

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
        - online (true): whether upkeep visits the table.

        Raises `UsageError`, which names what is wrong and the remedy, with nothing written.

        >>> orders = db.create_table("orders", {"id": [1, 2]}, row_keys="id", kind="keyed")
        >>> len(orders)
        2
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
        """The table of that name; `UnknownTable`, a `KeyError` too, names those that are near.

        >>> db.table("readings").row_keys
        ('sensor',)
        """
        return Table(self._handle, self._version(name), self._as_of)

    def tables(self) -> list[str]:
        """The names of all tables, sorted.

        >>> db.tables(), list(db) == db.tables(), "stock" in db
        (['readings', 'stock'], True, True)
        """
        txns = self._handle.store.txns
        return [version.name for version in txns.tables(txns.look(), self._as_of)]

    def drop_table(
        self, name: str, *, missing_ok: bool = False, timeout: float | None = None
    ) -> Commit | None:
        """Ends a table. An `as_of` before this goes on seeing it while it is kept.

        With `missing_ok`, None where there is no such table.

        >>> _ = db.drop_table("readings")
        >>> "readings" in db
        False
        >>> db.drop_table("readings", missing_ok=True)
        """
        options = self._options("drop_table", timeout)
        return drop_table(self._handle, name, options, missing_ok=missing_ok)

    def rename_table(self, name: str, to: str, *, timeout: float | None = None) -> Commit:
        """Gives a table another name, from now on. Handles on the table go on working.

        >>> _ = db.rename_table("stock", "shelf")
        >>> stock.name
        'shelf'
        """
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

        >>> before = stock.append([{"item": "fig", "count": 1}])
        >>> _ = db.drop_table("stock")
        >>> len(db.as_of(before)["stock"])
        3
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

        >>> db.sql("SELECT sensor, max(value) FROM readings GROUP BY ALL ORDER BY ALL").fetchall()
        [(7, 21.0), (9, 3.5)]
        >>> db.sql("DELETE FROM stock WHERE count < 3").rows
        1
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

        >>> before = stock.append([{"item": "fig", "count": 1}])
        >>> changes = db.subscribe(["readings", "stock"], before, until=stock.delete(keys=["fig"]))
        >>> sum(change.tables["stock"].num_rows for change in changes)
        1
        """
        self._refuse_past("has no changes to come; subscribe to the database itself")
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

        >>> with db.transaction() as tx:
        ...     tx["stock"].delete(keys=["pear"])
        ...     tx["readings"].append([{"sensor": 9, "at": 2, "value": 4.0}])
        1
        1
        >>> tx.committed.tables
        ('stock', 'readings')
        """
        self._refuse_past("cannot change")
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

        >>> db.transact(lambda tx: tx["stock"].update({"count": "count - 1"}, "item = 'pear'"))
        1
        >>> stock.get_one("pear")
        {'item': 'pear', 'count': 1}
        """
        self._refuse_past("cannot change")

        def begin(seconds: float) -> Transaction:
            return Transaction(
                self._handle, isolation=isolation, token=token, metadata=metadata, timeout=seconds
            )

        return transact(self._handle, begin, function, self._handle.deadline(timeout))

    def stage(self, data: Mapping[str, Any], *, timeout: float | None = None) -> Staged:
        """Writes rows for several tables, `{name: data}`, which nobody sees until they are merged.

        `Transaction.merge` takes it up, here or in another process (`Staged.to_bytes`). In a keyed
        table the rows replace those of their keys once committed. `timeout` (seconds) is for
        writing them; nothing is committed.

        >>> staged = db.stage({"stock": {"item": ["fig"], "count": [1]}, "readings": readings})
        >>> db.transact(lambda tx: tx.merge(staged))
        4
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

        >>> _ = stock.delete(keys=["pear"])
        >>> db.history(2)["operation"].to_pylist()
        ['delete', 'create_table']
        """
        deadline = self._handle.deadline(timeout)
        store = self._handle.store
        return history(store, table=None, as_of=self._as_of, limit=limit, deadline=deadline)

    # --- how it looks

    def __repr__(self) -> str:
        when = "" if self._as_of is None else f" as of {datetime_of(self._as_of).isoformat()}"
        closed = ", closed" if self._handle.closed else ""
        return f"<strandline.Database {self.url!r}{when}{closed}>"

    def __reduce__(self) -> tuple[type[Database], tuple[Handle, int | None]]:
        return Database, (self._handle, self._as_of)

    # --- inside

    def _refuse_past(self, why: str) -> None:
        if self._as_of is not None:
            raise UsageError(f"this is the database as of an earlier time, which {why}")

    def _options(self, operation: str, timeout: float | None) -> WriteOptions:
        self._refuse_past("cannot change; write to the database itself")
        return WriteOptions.of(self._handle, operation, None, None, timeout)


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
