"""Tables as their users hold them, and leases, by which a worker alone may write to one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

import pyarrow as pa

from strandline.engine.exporting import export
from strandline.errors import UsageError
from strandline.ids import SessionId
from strandline.readable import ReadableTable
from strandline.reports.storage import partitions, parts
from strandline.state.commands import Attach, Release
from strandline.state.model import Holder, TableVersion
from strandline.times import Commit
from strandline.transaction import Transaction
from strandline.txn.handle import Handle
from strandline.txn.history import history
from strandline.txn.holds import drop_subscription, holds_of
from strandline.txn.properties import PROPERTIES, property_of
from strandline.write.commit import WriteOptions
from strandline.write.ddl import set_properties
from strandline.write.rows import append, check_keyed, delete, overwrite, update

__all__ = ["Lease", "Table"]

NOWHERE = object()
"""The position of one who says nothing of a log upstream."""


class Table(ReadableTable):
    """One table, now or (where `as_of` made it) as of one time. Thread-safe.

    It stays with its table: after a rename it goes on; once the table was dropped, every call
    raises `UnknownTable`, also when another table has taken its name.

    Writes take `token=(scope, number)` for exactly-once over retries and restarts: the numbers of
    a scope grow, and a write whose token was committed before returns that commit and looks at
    nothing else. `metadata=` (strings to strings) shows in `history`. `timeout=` is in seconds.
    They raise `UsageError` or `SchemaMismatch` with nothing written, `Fenced`, and
    `LocationError`, which says whether the write may have happened.
    """

    def __init__(
        self,
        handle: Handle,
        version: TableVersion,
        as_of: int | None = None,
        position: str | None = None,
    ) -> None:
        super().__init__(handle, version, as_of)
        self._position = position
        """What the commits made through this object say of a log upstream, as JSON."""

    # --- what it is

    @property
    def properties(self) -> dict[str, str]:
        """All properties of the table; `Database.create_table` says what they are.

        >>> readings.properties["retention"]
        '7 days'
        """
        version = self._fresh()
        return {name: property_of(version, name) for name in PROPERTIES}

    def set(self, *, timeout: float | None = None, **properties: Any) -> Commit:
        """Changes properties, those named and no others.

        >>> _ = readings.set(retention="30 days", online=False)
        >>> readings.properties["retention"]
        '30 days'
        """
        options = self._options("set", None, None, timeout)
        return set_properties(self._handle, self._version, properties, options)

    def history(self, limit: int | None = None, *, timeout: float | None = None) -> pa.Table:
        """The commits that touched the table, newest first, at most `limit`.

        Columns: commit, time, operation, tables, rows (of this table, as `Commit.rows` counts
        them), metadata, session.

        >>> _ = stock.delete(keys=["pear"], metadata={"by": "me"})
        >>> stock.history(1).select(["operation", "rows", "metadata"]).to_pylist()
        [{'operation': 'delete', 'rows': 1, 'metadata': [('by', 'me')]}]
        """
        return history(
            self._handle.store,
            table=self._version.table,
            as_of=self._as_of,
            limit=limit,
            deadline=self._handle.deadline(timeout),
        )

    def partitions(self, *, timeout: float | None = None) -> pa.Table:
        """The leaves of the table by key, and what is stored in each.

        Columns: leaf (its id), lower, upper (row keys as text; null: no end), rows (stored,
        retractions included; an estimate where parts span leaves), bytes, parts (given to the
        leaf), level_zero (parts with keys in it, not given to it yet), entries (commits with keys
        in it that are not applied yet), parent (the leaf that it was split from).

        >>> readings.partitions().select(["leaf", "lower", "upper", "entries"]).to_pylist()
        [{'leaf': 1, 'lower': None, 'upper': None, 'entries': 1}]
        """
        deadline = self._handle.deadline(timeout)
        return partitions(self._handle, self._version.table, self._as_of, deadline)

    def parts(self, *, timeout: float | None = None) -> pa.Table:
        """The parts of the table, each as often as it is referenced.

        Columns: place ("leaf 3", "L0", or "entry" for a commit that is not applied yet), part (its
        object key), rows, bytes, first, last (keys as text), whole (every row of it belongs to
        that place), distinct (no two rows share a key), time (of its newest row).

        >>> _ = db.compact("readings")
        >>> readings.parts().select(["place", "rows"]).to_pylist()
        [{'place': 'leaf 1', 'rows': 3}]
        """
        return parts(self._handle, self._version.table, self._as_of, self._handle.deadline(timeout))

    def holds(self, *, timeout: float | None = None) -> pa.Table:
        """Who needs history of the table, or objects of it, to stay.

        Columns: hold (its id), kind ("retention", "subscription", …), since (reads from that time
        on stay exact; null: any may go), seqno (what dies at a later one stays), session (with
        whose end it ends; null: it stays until it is closed), epoch, note.

        >>> _ = db.compact("readings")
        >>> readings.holds()["kind"].to_pylist()
        ['retention']
        """
        deadline = self._handle.deadline(timeout)
        return holds_of(self._handle.store, self._version.table, deadline)

    def drop_subscription(self, name: str, *, timeout: float | None = None) -> bool:
        """Ends what `subscribe(name=...)` keeps; False if there is no such subscription.

        >>> with stock.subscribe(name="mail") as changes:
        ...     _ = next(changes)
        >>> stock.drop_subscription("mail"), stock.drop_subscription("mail")
        (True, False)
        """
        store, deadline = self._handle.store, self._handle.deadline(timeout)
        store.check_writable()
        return drop_subscription(store, self._version.table, name, deadline)

    def export(
        self,
        path: Any,
        *,
        columns: Sequence[str] | None = None,
        where: Any = None,
        key_range: Any = None,
        as_of: Any = None,
        format: str | None = None,  # noqa: A002  the word of the interface
        overwrite: bool = False,
        timeout: float | None = None,
    ) -> int:
        """Writes rows, sorted by key, into one file that others read; returns how many.

        `format` is "parquet", "csv" or "json" (a line for each row), or told by the file's name.
        In bounded memory, as of one moment; the file appears whole or not at all. One that is
        there already is replaced only with `overwrite`.

        >>> readings.export("readings.csv", where="sensor = 7")
        2
        """
        rows = self.scan(columns, where, key_range=key_range, as_of=as_of, timeout=timeout)
        return export(rows.to_reader(), path, format, overwrite=overwrite)

    # --- writing

    def append(
        self,
        data: Any,
        *,
        token: tuple[str, int] | None = None,
        metadata: dict[str, str] | None = None,
        timeout: float | None = None,
    ) -> Commit:
        """Adds rows in one commit; in a `keyed` table they replace the rows of their keys.

        `data` is anything that speaks Arrow (tables, batches, readers of any length, datasets),
        pandas, Polars, a DuckDB relation, a dict of columns, a list of dicts, or an iterable of
        Arrow batches. Columns are found by name; those that are missing become null.

        >>> readings.append({"sensor": [8], "at": [1], "value": [1.5]}).rows
        1
        >>> len(readings)
        4
        """
        options = self._options("append", token, metadata, timeout)
        return append(self._handle, self._version, data, options)

    def upsert(
        self,
        data: Any,
        *,
        token: tuple[str, int] | None = None,
        metadata: dict[str, str] | None = None,
        timeout: float | None = None,
    ) -> Commit:
        """Writes rows of a `keyed` table: each replaces the row of its full key, or is new.

        >>> stock.upsert([{"item": "apple", "count": 6}, {"item": "fig", "count": 1}]).rows
        2
        >>> len(stock)
        3
        """
        check_keyed(self._version)
        options = self._options("upsert", token, metadata, timeout)
        return append(self._handle, self._version, data, options)

    def delete(
        self,
        where: Any = None,
        *,
        keys: Any = None,
        key_range: Any = None,
        all: bool = False,  # noqa: A002  the word of the interface
        token: tuple[str, int] | None = None,
        metadata: dict[str, str] | None = None,
        timeout: float | None = None,
    ) -> Commit:
        """Deletes the rows for which `where` is true, or with one of `keys`, or in `key_range`.

        `keys` are full keys or prefixes; a `keyed` table deletes full keys without reading.
        `where` and `key_range` may be given together. Everything goes only with `all=True`.

        >>> readings.delete("value < 10").rows
        1
        >>> stock.delete(keys=["apple"]).rows
        1
        """
        options = self._options("delete", token, metadata, timeout)
        return delete(
            self._handle,
            self._version,
            options,
            where=where,
            keys=keys,
            key_range=key_range,
            everything=all,
        )

    def update(
        self,
        values: dict[str, Any],
        where: Any = None,
        *,
        token: tuple[str, int] | None = None,
        metadata: dict[str, str] | None = None,
        timeout: float | None = None,
    ) -> Commit:
        """Sets columns to SQL expressions over the row, in all rows for which `where` is true.

        `update({"value": "value * 2"}, where="sensor = 7")`. All expressions see the row as it
        was. The keys of a `keyed` table cannot be set.

        >>> readings.update({"value": "value * 2"}, "sensor = 7").rows
        2
        >>> readings.get(7)["value"].to_pylist()
        [41.0, 42.0]
        """
        options = self._options("update", token, metadata, timeout)
        return update(self._handle, self._version, values, where, options)

    def overwrite(
        self,
        data: Any,
        where: Any = None,
        *,
        token: tuple[str, int] | None = None,
        metadata: dict[str, str] | None = None,
        timeout: float | None = None,
    ) -> Commit:
        """Replaces all rows, or those for which `where` is true, by `data` in one commit.

        >>> _ = stock.overwrite([{"item": "plum", "count": 3}], "count < 5")
        >>> stock.scan().to_arrow()["item"].to_pylist()
        ['apple', 'plum']
        """
        options = self._options("overwrite", token, metadata, timeout)
        return overwrite(self._handle, self._version, data, where, options)

    # --- exclusive writing

    def attach(self, worker: str, *, position: Any = None, timeout: float | None = None) -> Lease:
        """Makes `worker` the only one that may write to the table, at once; a `Lease`.

        Whoever held it before is fenced, alive, stopped or dead: nobody waits for it, and nothing
        that it has not committed ever will be. All others get `Held`, which names the worker, when
        they write to this table; upkeep and reads go on for everybody. The lease lasts until
        it is released or another attaches. `position` is where to begin in a log upstream if no
        position was ever committed (`Lease.position`).

        To move work without a pause, let the new worker read up to where the old one is, and
        attach when it has caught up: what the old one commits until then counts, and the rest is
        refused.

        >>> with stock.attach("worker-1", position=40) as lease:
        ...     lease.position, lease.upsert([{"item": "fig", "count": 1}], position=41).rows
        (40, 1)
        """
        if self._as_of is not None:
            raise UsageError(
                f"this is table {self._version.name!r} as of one time; attach the table itself"
            )
        return _attached(self._handle, self._version, worker, position, timeout)

    def safe_to_prune(self, *, timeout: float | None = None) -> Any:
        """Up to where a log upstream may be pruned: the position that the last commit with one
        brought along, and None if none did. Positions that were refused do not count.

        >>> with stock.attach("worker-1") as lease:
        ...     _ = lease.delete(keys=["pear"], position={"offset": 41})
        >>> stock.safe_to_prune()
        {'offset': 41}
        """
        look = self._handle.store.txns.look(self._handle.deadline(timeout))
        holder = look.ask(lambda s: s.holders.get((self._version.table,)))
        return None if holder is None or not holder.position else json.loads(holder.position)

    # --- inside

    def _options(
        self, operation: str, token: Any, metadata: Any, timeout: float | None
    ) -> WriteOptions:
        if self._as_of is not None:
            raise UsageError(
                f"this is table {self._version.name!r} as of an earlier time, which cannot change; "
                "write to the table itself"
            )
        options = WriteOptions.of(self._handle, operation, token, metadata, timeout)
        if self._position is None:
            return options
        return replace(options, positions={self._version.table: self._position})


class Writing(TypedDict, total=False):
    """What every write takes besides its data."""

    token: tuple[str, int] | None
    metadata: dict[str, str] | None
    timeout: float | None


class Deleting(Writing, total=False):
    """What a delete takes besides its condition."""

    keys: Any
    key_range: Any
    all: bool


class Lease:
    """A table that this worker alone may write to. Made by `Table.attach`; thread-safe.

    It has a handle of its own on the database, and so a session of its own. Whatever is written to
    the table through it, by `table` too, is granted only as long as nobody else has attached:
    after that every write raises `Fenced`, which names who did, and nothing of it was committed.
    Reads go on. The end of a `with` block releases.

    Writes take `position=`: up to where they go in the log that the worker reads, as any JSON
    value. It is committed with them, or not at all.

    In the examples of its methods, `lease` is `stock.attach("worker-1")`.

    >>> with stock.attach("worker-1") as lease:
    ...     _ = lease.delete(keys=["pear"], position=41)
    >>> with stock.attach("worker-2") as lease:
    ...     lease.epoch, lease.position
    (2, 41)
    """

    def __init__(
        self, handle: Handle, version: TableVersion, holder: Holder, position: Any
    ) -> None:
        self._handle = handle
        self._version = version
        self._holder = holder
        self._release = handle.store.pulse.hold(handle.store.txns.machine)
        self._over = False
        self.position = json.loads(holder.position) if holder.position else position
        """The position that was last committed when the table was attached; what `attach` was
        given if there was none."""

    @property
    def table(self) -> Table:
        """The table, to be read and written under this lease."""
        return Table(self._handle, self._version)

    @property
    def epoch(self) -> int:
        """How often the table has been attached: the greatest one holds it."""
        return self._holder.epoch

    @property
    def worker(self) -> str:
        """What the holder calls itself."""
        return self._holder.worker

    @property
    def session(self) -> SessionId:
        """The session that commits; objects that it wrote begin with it."""
        return self._handle.store.session

    # --- writing

    def append(self, data: Any, *, position: Any = NOWHERE, **options: Unpack[Writing]) -> Commit:
        """As `Table.append`.

        >>> lease.append([{"item": "fig", "count": 1}], position=41).rows
        1
        >>> stock.safe_to_prune()
        41
        """
        return self._at(position).append(data, **options)

    def upsert(self, data: Any, *, position: Any = NOWHERE, **options: Unpack[Writing]) -> Commit:
        """As `Table.upsert`.

        >>> lease.upsert([{"item": "pear", "count": 1}], position=41).rows
        1
        """
        return self._at(position).upsert(data, **options)

    def delete(
        self, where: Any = None, *, position: Any = NOWHERE, **options: Unpack[Deleting]
    ) -> Commit:
        """As `Table.delete`.

        >>> lease.delete("count < 3", position=41).rows
        1
        """
        return self._at(position).delete(where, **options)

    def update(
        self,
        values: dict[str, Any],
        where: Any = None,
        *,
        position: Any = NOWHERE,
        **options: Unpack[Writing],
    ) -> Commit:
        """As `Table.update`.

        >>> lease.update({"count": "count + 1"}, "item = 'pear'", position=41).rows
        1
        """
        return self._at(position).update(values, where, **options)

    def overwrite(
        self, data: Any, where: Any = None, *, position: Any = NOWHERE, **options: Unpack[Writing]
    ) -> Commit:
        """As `Table.overwrite`.

        >>> lease.overwrite([{"item": "fig", "count": 1}], position=41).tables
        ('stock',)
        """
        return self._at(position).overwrite(data, where, **options)

    def transaction(
        self,
        *,
        position: Any = NOWHERE,
        isolation: str = "strict serializable",
        token: tuple[str, int] | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Transaction:
        """As `Database.transaction`, for this table and any others that nobody holds.

        >>> with lease.transaction(position=42) as tx:
        ...     tx["stock"].delete(keys=["pear"]), tx["readings"].delete("sensor = 9")
        (1, 1)
        >>> stock.safe_to_prune()
        42
        """
        text = _encoded(position)
        return Transaction(
            self._handle,
            isolation=isolation,
            token=token,
            metadata=metadata,
            timeout=timeout,
            positions=None if text is None else {self._version.table: text},
        )

    def check(self, *, timeout: float | None = None) -> None:
        """`Fenced`, naming the new holder, if the table is not this worker's any more.

        >>> with stock.attach("worker-2"):
        ...     lease.check()
        Traceback (most recent call last):
        strandline.errors.Fenced: table 'stock' is no longer held by this lease (epoch 1): ...
        """
        deadline = self._handle.deadline(timeout)
        self._handle.store.txns.check_holder(self._version.table, deadline)

    # --- its end

    def release(self, *, timeout: float | None = None) -> None:
        """Gives the table back, so that anyone may write to it, and closes the lease's handle.

        Harmless when another has it, and when it is repeated.

        >>> lease.release()
        >>> stock.delete(keys=["pear"]).rows
        1
        """
        if self._over:
            return
        deadline = self._handle.deadline(timeout)
        self._over = True
        self._release()
        command = Release(self._version.table, self._holder.epoch)
        try:
            self._handle.store.txns.machine.submit(command, deadline)
        finally:
            self._handle.close(timeout=max(deadline.remaining(), 0.001))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        name, epoch = self._version.name, self.epoch
        return f"<strandline.Lease of {name!r}, worker {self.worker!r}, epoch {epoch}>"

    def _at(self, position: Any) -> Table:
        return Table(self._handle, self._version, position=_encoded(position))


def _attached(
    handle: Handle, version: TableVersion, worker: str, position: Any, timeout: float | None
) -> Lease:
    """Makes a new handle the holder of the table, whoever was it before. Waits for nobody."""
    given: Any = worker
    if not isinstance(given, str) or not given:
        raise UsageError(f"worker={worker!r}: pass a name that says who holds the table")
    _encoded(position)  # what cannot be committed later is refused now
    handle.store.check_writable()
    handle.deadline(timeout)  # and no other timeout than one
    own = handle.another()
    deadline = own.deadline(timeout)
    try:
        txns = own.store.txns
        command = Attach(version.table, worker)
        holder = txns.machine.submit(command, deadline, note=worker)
        txns.epochs[version.table] = holder.epoch
        return Lease(own, version, holder, position)
    except BaseException:
        # Where it is not known whether it happened, closing gives back what it may hold.
        own.close(timeout=max(deadline.remaining(), 1.0))
        raise


def _encoded(position: Any) -> str | None:
    if position is NOWHERE:
        return None
    try:
        return json.dumps(position, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise UsageError(f"position={position!r} is no JSON value: {error}") from error
