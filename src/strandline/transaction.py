"""Transactions: any number of reads and writes on any number of tables, at one time.

All reads are as of the time at which the transaction began, with its own writes over them. What was
read is remembered as intervals of keys; the commit is one record, and the isolation says which of
these intervals have to be unchanged for it to be granted.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, Unpack, get_args

import pyarrow as pa

from strandline.env import Deadline
from strandline.errors import UnknownTable, UsageError
from strandline.query import Scan
from strandline.readable import Getting, ReadableTable, Scanning
from strandline.sql.run import run_sql
from strandline.state.commands import Write
from strandline.state.model import Batch, Entry, TableVersion
from strandline.state.tokens import token_of
from strandline.times import Commit, told
from strandline.txn.handle import Handle
from strandline.txn.staging import Staging
from strandline.txn.view import View
from strandline.write.commit import WriteOptions
from strandline.write.ddl import new_table
from strandline.write.edits import united_batch
from strandline.write.moment import Moment
from strandline.write.proof import commit_proven
from strandline.write.reads import Reads
from strandline.write.rows import append, check_keyed, delete, overwrite, update
from strandline.write.staged import Staged, new_id

__all__ = ["STAGING_SECONDS", "Isolation", "Transaction", "TransactionTable"]

Isolation = Literal["strict serializable", "serializable", "snapshot"]

STAGING_SECONDS = 7 * 86_400.0
"""For how long a transaction may keep what it staged."""

# Within one process, so that no two writes of open transactions go for the same one.
_ordinals = itertools.count(1 << 40)


class Transaction:
    """Reads and writes of several tables that happen at one time, or not at all. Thread-safe.

    Made by `Database.transaction`, as a context manager: the end of the block commits, an exception
    discards. `committed` is the `Commit` after that.

    - "snapshot": reads are of one moment; a row that was read and then written here must not have
      been written by another since.
    - "serializable": nothing that was read may have been written by another since; the moment that
      is read may be one that this handle knew already.
    - "strict serializable" (default): the same, and the moment is not before the transaction began.

    In all of them no row is deleted or updated twice. Appends and other writes that rest on no read
    never conflict.

    In the examples of its methods, `tx` is `db.transaction()`.

    >>> with db.transaction() as tx:
    ...     pears = tx["stock"].get_one("pear")["count"]
    ...     tx["stock"].upsert([{"item": "pear", "count": pears - 1}])
    1
    >>> stock.get_one("pear")
    {'item': 'pear', 'count': 1}
    """

    def __init__(
        self,
        handle: Handle,
        *,
        isolation: str = "strict serializable",
        token: Any = None,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = None,
        positions: Mapping[str, str] | None = None,
    ) -> None:
        if isolation not in get_args(Isolation):
            raise UsageError(f"isolation={isolation!r}: choose of {', '.join(get_args(Isolation))}")
        store = handle.store
        self._handle = handle
        self._token = token_of(token)
        self._metadata = dict(metadata or {})
        self._timeout = timeout
        self._positions = positions
        self._staging = Staging(store, Deadline(store.env, STAGING_SECONDS), self._token)
        deadline = handle.deadline(timeout)
        txns = store.txns
        known = txns.machine.known(deadline)
        if isolation != "serializable" or not known.seqno:
            known = txns.look(deadline)
        self._moment = Moment(handle, known)
        self._tables = self._moment.tables
        self._reads = Reads(snapshot=isolation == "snapshot")
        self._writes: dict[str, list[Entry]] = {}
        self._rows: Counter[str] = Counter()
        """Per table, rows that the writes add, change or take away."""
        self._merged: list[Staged] = []
        """They keep their sessions alive."""
        self._lock = threading.Lock()
        self._over = ""
        self.committed: Commit | None = None
        """What was committed, once it was."""

    @property
    def read_time(self) -> int:
        """The time at which everything is read, in µs; -1 in a database without a commit. If a
        table keeps no history of it any more when it is read, it becomes a later one, as long as
        nothing was read.
        """
        return self._moment.time

    # --- what users hold

    def table(self, name: str) -> TransactionTable:
        """A table, to be read and written within this transaction. Errors: UnknownTable.

        >>> tx.table("stock").delete("count > 3")
        1
        """
        self._check_open()
        return TransactionTable(self, self._handle, self._tables.named(name))

    def __getitem__(self, name: str) -> TransactionTable:
        return self.table(name)

    def create_table(
        self,
        name: str,
        schema: Any,
        *,
        row_keys: Sequence[str] | str,
        sort_keys: Sequence[str] | str = (),
        kind: str = "rows",
        split_points: Sequence[Any] = (),
        properties: Mapping[str, Any] | None = None,
    ) -> TransactionTable:
        """A table that is there once this is committed, with what is written to it meanwhile.

        As `Database.create_table`: `schema` may be data, which are its first rows.

        >>> len(tx.create_table("orders", {"id": [1, 2]}, row_keys="id"))
        2
        >>> "orders" in db
        False
        """
        self._check_open()
        store = self._handle.store
        store.check_writable()
        new = new_table(
            store.env, name, schema, row_keys, sort_keys, kind, split_points, properties
        )
        self._tables.create(new)
        table = self.table(name)
        if new.data is not None:
            table.append(new.data)
        return table

    def drop_table(self, name: str) -> None:
        """Ends a table with this commit, and what was written to it here is not. UnknownTable.

        >>> tx.drop_table("stock")
        >>> _ = tx.commit()
        >>> "stock" in db
        False
        """
        self._check_open()
        self._handle.store.check_writable()
        table = self._tables.drop(name)
        self._writes.pop(table, None)
        self._rows.pop(table, None)

    def rename_table(self, name: str, to: str) -> None:
        """Gives a table another name, with this commit. Errors: UnknownTable, UsageError.

        >>> tx.rename_table("stock", "shelf")
        >>> len(tx["shelf"])
        2
        """
        self._check_open()
        self._handle.store.check_writable()
        self._tables.rename(name, to)

    def sql(self, query: str, *, timeout: float | None = None) -> Any:
        """Runs one statement: a query gives a `Relation`, a write the number of rows written.

        >>> tx.sql("UPDATE stock SET count = count + 1")
        2
        >>> tx.sql("SELECT sum(count) FROM stock").fetchall()
        [(9,)]
        """
        self._check_open()
        result = run_sql(self._handle, query, None, self._handle.deadline(timeout), self)
        return (result.rows or 0) if isinstance(result, Commit) else result

    def commit(self, *, timeout: float | None = None) -> Commit:
        """Commits: durable, atomic, and visible to everybody at one time.

        Errors: TransactionConflict (something that was read has changed; nothing was written),
        UnknownTable (a table was dropped), Fenced, and LocationError, whose `may_have_happened`
        says whether it may have been committed. Then, and with a token, it may be called again.

        >>> tx["stock"].delete(keys=["pear"])
        1
        >>> tx.commit().tables
        ('stock',)
        """
        if self.committed is not None:
            return self.committed
        self._check_open()
        deadline = self._handle.deadline(self._timeout if timeout is None else timeout)
        if self._writes or self._tables.changed or self._token is not None or self._positions:
            options = replace(
                self.options("transaction", deadline),
                token=self._token,
                metadata=self._metadata,
                transaction=None,
                positions=self._positions,
                merged=self._ids(),
            )
            writes = self._to_be_written(options)
            self.committed = commit_proven(
                self._handle,
                writes,
                options,
                self._tables.begun(deadline),
                self._reads.to_be_unchanged(self.read_time + 1, writes),
                self._reads.concerns(self._handle, writes),
            )
        else:
            # Reads of one moment are at one moment: that is all that there is to prove.
            self.committed = Commit(self.read_time, 0, ())
        self._over = "was committed"
        return self.committed

    def merge(self, staged: Staged) -> int:
        """Takes up what was staged, after everything that was written before; how many rows.

        Any number of them. What its writes were computed from may not have been written by others
        since. Errors: UnknownTable, UsageError (of another database).

        >>> tx.merge(db.stage({"stock": [{"item": "fig", "count": 1}]}))
        1
        >>> len(tx["stock"])
        3
        """
        self._check_open()
        store = self._handle.store
        store.check_writable()
        writes, reads = staged.taken(store.database)
        versions = {version.table: version for version in self.tables()}
        for write in writes:
            if write.table not in versions:
                called = store.txns.called(self._tables.look(), write.table)
                raise UnknownTable(f"{called} was dropped; nothing was merged")
        known = {each for other in self._merged for each in other.ids}
        if known & set(staged.ids):
            raise UsageError("what was staged is merged into this transaction already; merge once")
        self._merged.append(staged)
        self._reads.merge(reads)
        return self.add([(versions[write.table], write) for write in writes]).rows or 0

    def stage(self, *, timeout: float | None = None) -> Staged:
        """Ends the transaction without a commit: what it wrote, for `merge` into another.

        What it has read goes along: whoever commits is refused if that was changed by others.

        >>> tx["stock"].delete(keys=["pear"])
        1
        >>> staged = tx.stage()
        >>> db.transact(lambda other: other.merge(staged))
        1
        """
        self._check_open()
        if self._tables.changed:
            raise UsageError("tables cannot be created, dropped or renamed in what is staged")
        if self._token is not None or self._positions:
            raise UsageError(
                "a token or a position goes with a commit; pass it to that transaction"
            )
        deadline = self._handle.deadline(self._timeout if timeout is None else timeout)
        options = replace(self.options("transaction", deadline), transaction=None)
        writes = self._to_be_written(options)
        reads = self._reads.to_be_unchanged(self.read_time + 1, writes)
        self._over = "was staged"
        store = self._handle.store
        ids = [new_id(self._handle), *self._ids()]
        return Staged(store.database, [write for _, write in writes], reads, ids, self._staging)

    def _ids(self) -> list[str]:
        """Those of what was merged into it."""
        return [each for staged in self._merged for each in staged.ids]

    def rollback(self) -> None:
        """Discards what was written here; nothing of it was ever visible.

        >>> tx["stock"].delete(all=True)
        2
        >>> tx.rollback()
        >>> len(stock)
        2
        """
        if not self._over:
            self._over = "was rolled back"
            self._writes.clear()

    @property
    def has_token(self) -> bool:
        """Whether a second try would find out what became of the first."""
        return self._token is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.rollback()
        elif not self._over:
            self.commit()

    # --- what reads and writes inside of it ask for

    def options(self, operation: str, deadline: Deadline) -> WriteOptions:
        """The options of a write within the transaction."""
        self._handle.store.check_writable()
        return WriteOptions(operation, None, {}, deadline, self._staging, self)

    def tables(self) -> list[TableVersion]:
        """The tables that the transaction sees, what it did to them included."""
        return self._tables.all()

    def version(self, table: str) -> TableVersion:
        """The table with that id, as it is called here; UnknownTable once it was dropped."""
        return self._tables.version(table)

    def view(self, table: str, deadline: Deadline) -> View:
        """The table with that id as the transaction sees it; what is read of it is remembered."""
        self._check_open()
        version = self.version(table)
        base = self._moment.view(table, deadline)
        time = base.as_of
        # As if written at the time that is read, which may have moved on since.
        own = tuple(
            each if each.time == time else replace(each, time=time)
            for each in self._writes.get(table, ())
        )
        # The base knows it by the name of the moment that is read.
        return replace(
            base,
            version=version,
            # It may have been looked at by an earlier call.
            data=base.data.by(deadline),
            entries=base.entries + own,
            own=own,
            # What is new here nobody else can change.
            seen=None if self._tables.new(table) else partial(self._reads.saw, table),
            given=partial(self._moment.gave, time),
        )

    def add(self, writes: Sequence[tuple[TableVersion, Write]]) -> Commit:
        """Takes up writes; from now on reads within the transaction see them."""
        self._check_open()
        rows = 0
        for version, write in writes:
            self.version(version.table)
            if not write.batch.rows:
                continue
            with self._lock:
                time = max(0, self.read_time)
                entry = Entry(version.table, time, next(_ordinals), "", write.batch)
                self._writes.setdefault(version.table, []).append(entry)
                self._rows[version.table] += write.rows
            rows += write.rows
        return Commit(self.read_time, rows, tuple(dict.fromkeys(v.name for v, _ in writes)))

    # --- inside

    def _to_be_written(self, options: WriteOptions) -> list[tuple[TableVersion, Write]]:
        # The first write to a table says for all of them how many rows are affected.
        return [
            (self.version(table), Write(table, batch, 0 if number else self._rows[table]))
            for table in self._writes
            for number, batch in enumerate(self._batches(table, options))
        ]

    def _check_open(self) -> None:
        if self._over:
            raise UsageError(f"this transaction {self._over}; begin another")

    def _batches(self, table: str, options: WriteOptions) -> list[Batch]:
        """What is committed of a table.

        SUBTLE: in a keyed table two rows of one key may not stand side by side in one commit: both
        have its time, and time is rank. So several writes become one, in which the last row counts.
        """
        batches = [entry.batch for entry in self._writes[table]]
        version = self.version(table)
        if version.kind == "keyed" and len(batches) > 1:
            one = united_batch(self._handle, version, batches, options)
            self._writes[table] = [replace(self._writes[table][-1], batch=one)]
            return [one]
        return batches


class TransactionTable:
    """A table within a transaction: what `Table` does, at the transaction's time.

    Writes give the number of rows that they add, change or delete, and are visible to what is read
    after them in the same transaction.
    """

    def __init__(self, transaction: Transaction, handle: Handle, version: TableVersion) -> None:
        self._transaction = transaction
        self._handle = handle
        self._version = version
        self._table = ReadableTable(handle, version, transaction=transaction)

    @property
    def name(self) -> str:
        """The table's name."""
        return self._table.name

    @property
    def schema(self) -> pa.Schema:
        """The table's columns."""
        return self._table.schema

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Any = None,
        **options: Unpack[Scanning],
    ) -> Scan:
        """As `Table.scan`."""
        return self._table.scan(columns, where, **options)

    def get(
        self, *key: Any, columns: Sequence[str] | None = None, **options: Unpack[Getting]
    ) -> pa.Table:
        """As `Table.get`."""
        return self._table.get(*key, columns=columns, **options)

    def get_one(self, *key: Any, **options: Unpack[Getting]) -> dict[str, Any] | None:
        """As `Table.get_one`."""
        return self._table.get_one(*key, **options)

    def get_many(
        self, keys: Any, *, columns: Sequence[str] | None = None, **options: Unpack[Getting]
    ) -> pa.Table:
        """As `Table.get_many`."""
        return self._table.get_many(keys, columns=columns, **options)

    def head(self, rows: int = 10) -> pa.Table:
        """The first rows by key."""
        return self._table.head(rows)

    def __len__(self) -> int:
        return len(self._table)

    def __bool__(self) -> bool:
        return True

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)

    def append(self, data: Any, *, timeout: float | None = None) -> int:
        """As `Table.append`."""
        options = self._options("append", timeout)
        return append(self._handle, self._version, data, options).rows or 0

    def upsert(self, data: Any, *, timeout: float | None = None) -> int:
        """As `Table.upsert`."""
        check_keyed(self._version)
        options = self._options("upsert", timeout)
        return append(self._handle, self._version, data, options).rows or 0

    def delete(
        self,
        where: Any = None,
        *,
        keys: Any = None,
        key_range: Any = None,
        all: bool = False,  # noqa: A002  the word of the interface
        timeout: float | None = None,
    ) -> int:
        """As `Table.delete`."""
        options = self._options("delete", timeout)
        gone = delete(
            self._handle,
            self._version,
            options,
            where=where,
            keys=keys,
            key_range=key_range,
            everything=all,
        )
        return gone.rows or 0

    def update(
        self, values: dict[str, Any], where: Any = None, *, timeout: float | None = None
    ) -> int:
        """As `Table.update`."""
        options = self._options("update", timeout)
        return update(self._handle, self._version, values, where, options).rows or 0

    def overwrite(self, data: Any, where: Any = None, *, timeout: float | None = None) -> int:
        """As `Table.overwrite`."""
        options = self._options("overwrite", timeout)
        return overwrite(self._handle, self._version, data, where, options).rows or 0

    def _options(self, operation: str, timeout: float | None) -> WriteOptions:
        self._transaction.version(self._version.table)  # before anything is staged for it
        return self._transaction.options(operation, self._handle.deadline(timeout))

    def __repr__(self) -> str:
        return f"{self._table!r} in a transaction at {told(self._transaction.read_time)}"
