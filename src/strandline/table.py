"""A table as its users hold it."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from strandline.changes.differences import Wanted
from strandline.changes.subscription import Subscription, seconds_of, start_of, subscribed
from strandline.engine.conditions import compile_where
from strandline.engine.exporting import export
from strandline.engine.expressions import Assignments
from strandline.env import Deadline
from strandline.errors import UsageError
from strandline.parts.keys import KeyRange
from strandline.parts.typed import typed
from strandline.query import Scan
from strandline.read.reading import Reading, anew
from strandline.read.want import Want, columns_of, want_of
from strandline.reports.storage import partitions, parts
from strandline.state.commands import Write
from strandline.state.model import TableVersion
from strandline.times import Commit, datetime_of, parse_as_of
from strandline.txn.handle import Handle, limit_of
from strandline.txn.history import history
from strandline.txn.holds import drop_subscription, holds_of
from strandline.txn.properties import PROPERTIES, property_of
from strandline.txn.view import View, view_of
from strandline.write.commit import Pending, WriteOptions, build, commit_writes, first_commit
from strandline.write.ddl import set_properties
from strandline.write.edits import Selection, delete_keys, delete_rows, overwrite, update_rows

__all__ = ["Table", "changes_wanted", "register_attach"]

Attaching = Callable[[Handle, TableVersion, str, Any, float | None], Any]
"""Makes the `Lease` of `Table.attach`: handle, table, worker, position, timeout."""

_attaching: list[Attaching] = []


def register_attach(function: Attaching) -> None:
    """Says how tables are attached. `strandline.lease`, which stands above tables, calls this."""
    _attaching.append(function)


class Table:
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
        transaction: Pending | None = None,
        position: str | None = None,
    ) -> None:
        self._handle = handle
        self._version = version
        self._as_of = as_of
        self._transaction = transaction
        self._position = position
        """What the commits made through this object say of a log upstream, as JSON."""

    # --- what it is

    @property
    def name(self) -> str:
        """The table's name."""
        return self._fresh().name

    @property
    def id(self) -> str:
        """The table's id, which no other table ever has; the id of its shard, too."""
        return self._version.table

    @property
    def schema(self) -> pa.Schema:
        """The table's columns."""
        return pa.schema([field.remove_metadata() for field in typed(self._version)[0].arrow])

    @property
    def row_keys(self) -> tuple[str, ...]:
        """The columns that the table is partitioned and sorted by."""
        return self._version.row_keys

    @property
    def sort_keys(self) -> tuple[str, ...]:
        """The columns that rows with equal row keys are sorted by."""
        return self._version.sort_keys

    @property
    def kind(self) -> str:
        """`rows`: a multiset of rows. `keyed`: one row per full key, the latest written."""
        return self._version.kind

    @property
    def properties(self) -> dict[str, str]:
        """All properties of the table; `Database.create_table` says what they are."""
        version = self._fresh()
        return {name: property_of(version, name) for name in PROPERTIES}

    def set(self, *, timeout: float | None = None, **properties: Any) -> Commit:
        """Changes properties, those named and no others."""
        options = self._options("set", None, None, timeout)
        return set_properties(self._handle, self._version, properties, options)

    def history(self, limit: int | None = None, *, timeout: float | None = None) -> pa.Table:
        """The commits that touched the table, newest first, at most `limit`.

        Columns: commit, time, operation, tables, rows (of this table, as `Commit.rows` counts
        them), metadata, session.
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
        """
        deadline = self._handle.deadline(timeout)
        return partitions(self._handle, self._version.table, self._as_of, deadline)

    def parts(self, *, timeout: float | None = None) -> pa.Table:
        """The parts of the table, each as often as it is referenced.

        Columns: place ("leaf 3", "L0", or "entry" for a commit that is not applied yet), part (its
        object key), rows, bytes, first, last (keys as text), whole (every row of it belongs to
        that place), distinct (no two rows share a key), time (of its newest row).
        """
        return parts(self._handle, self._version.table, self._as_of, self._handle.deadline(timeout))

    def as_of(self, moment: Any) -> Table:
        """The table as of a moment; it can be read and not written.

        `moment` is an aware datetime, an ISO string with a zone, `Micros` or a `Commit`. Raises
        `UnknownTable` if the table was not there then.
        """
        return self._at(parse_as_of(moment))

    # --- reading

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Any = None,
        *,
        key_range: Any = None,
        key_ranges: Any = None,
        limit: int | None = None,
        as_of: Any = None,
        raw: bool = False,
        timeout: float | None = None,
    ) -> Scan:
        """What to read, as a `Scan`; nothing is read before that is asked for rows.

        `where` is a SQL expression over one row or a `pyarrow.compute.Expression`. `key_range` is
        `(lower, upper)`, half-open, each a key, a tuple, a prefix, or None for an open end;
        `key_ranges` is a list of such pairs, which may overlap. `raw=True` gives the stored
        updates up to `as_of`, with `__time` and `__diff`. Raises `UsageError` for unknown columns,
        statements in `where`, and keys of the wrong type.
        """
        rows = limit_of(limit)
        if as_of is not None:
            return self.as_of(as_of).scan(
                columns,
                where,
                key_range=key_range,
                key_ranges=key_ranges,
                limit=limit,
                raw=raw,
                timeout=timeout,
            )
        want = want_of(
            self._version,
            columns=columns,
            where=where,
            key_range=key_range,
            key_ranges=key_ranges,
            raw=raw,
        )
        return Scan(self._handle, self._view, self._version, want, limit=rows, timeout=timeout)

    def get(
        self,
        *key: Any,
        columns: Sequence[str] | None = None,
        as_of: Any = None,
        timeout: float | None = None,
    ) -> pa.Table:
        """All rows whose keys begin with `key`, sorted; an empty table if there are none.

        `key` is a value of the first key, or of several: `get(7)`, `get(7, noon)` or as a tuple.
        """
        if as_of is not None:
            return self.as_of(as_of).get(*key, columns=columns, timeout=timeout)
        return self._rows([self._prefix(key)], columns, timeout)

    def get_one(
        self, *key: Any, as_of: Any = None, timeout: float | None = None
    ) -> dict[str, Any] | None:
        """The row of one full key of a `keyed` table as a dict, or None."""
        if as_of is not None:
            return self.as_of(as_of).get_one(*key, timeout=timeout)
        if self.kind != "keyed":
            raise UsageError(
                f"table {self._version.name!r} is of kind {self.kind!r}, where a key may have any "
                "number of rows: use get"
            )
        prefix = self._prefix(key)
        keys = self.row_keys + self.sort_keys
        if len(prefix) != len(keys):
            raise UsageError(f"get_one takes a value for every key, {keys}; use get for a prefix")
        rows = self._rows([prefix], None, timeout).to_pylist()
        return rows[0] if rows else None

    def get_many(
        self,
        keys: Any,
        *,
        columns: Sequence[str] | None = None,
        as_of: Any = None,
        timeout: float | None = None,
    ) -> pa.Table:
        """All rows whose keys begin with any of `keys`, sorted, each once."""
        if as_of is not None:
            return self.as_of(as_of).get_many(keys, columns=columns, timeout=timeout)
        codec = typed(self._version)[1]
        prefixes = [codec.normalize(key) for key in _listed(keys)]
        if any(not prefix for prefix in prefixes):
            raise UsageError("an empty key would be all rows: use scan")
        return self._rows(prefixes, columns, timeout)

    def head(self, rows: int = 10, *, timeout: float | None = None) -> pa.Table:
        """The first rows by key."""
        return self.scan(limit=rows, timeout=timeout).to_arrow()

    def subscribe(
        self,
        start: Any = "snapshot",
        until: Any = None,
        columns: Sequence[str] | None = None,
        where: Any = None,
        *,
        with_old: bool = False,
        timeout: float | None = None,
        poll: float = 0.1,
        name: str | None = None,
    ) -> Subscription:
        """An iterator over every change of the table, in whole commit times, each exactly once.

        `start`: "snapshot" gives the rows as of now first, as changes at that time, and then what
        comes; "now" only what comes; a time, or the `progress` of an earlier change (or its text),
        what came after it. `until`: a time after which it ends. `timeout`: seconds without a
        change after which it ends. `poll`: the longest pause between two looks, in seconds; after
        a change it looks each millisecond, and then less and less often.

        A `Change` has `rows`, `progress` and `complete`. rows: the user's columns, `__time` and
        `__diff`, net per row and time. keyed: `__time` and `__op`; of a "delete" the keys, other
        columns null. What was not there is not deleted. `with_old=True` (keyed) adds `__old`, a
        struct: the row before. About once a second, and at the end, a change without rows tells
        that time has passed.

        To get each change once over restarts, keep `progress` together with what the rows brought
        about, at `complete` changes only, and pass it as `start`. Many changes at one time come in
        several: only the last is `complete` and moves `progress`. So does a snapshot.

        `where` is a condition on the row. keyed: a row that ceases to match comes as a delete.
        `columns` are chosen after rows were netted; in a keyed table the keys always come along.

        While a subscription is open, a handle that may write keeps the history that it needs,
        until the handle or the subscription is closed. With a `name` it is kept over restarts,
        until `drop_subscription`; asking for a change says that those before were dealt with, and
        who subscribes under the same name takes over. Errors: AsOfTooOld if the changes after
        `start` are not kept any more, UnknownTable once the table was dropped and all before that
        was given, Fenced if another took over.
        """
        if self._as_of is not None:
            raise UsageError(
                f"this is table {self._version.name!r} as of an earlier time, which has no changes "
                "to come; subscribe to the table itself"
            )
        return subscribed(
            self._handle,
            changes_wanted(self._version, columns, where, with_old=with_old),
            start=start_of(start),
            until=None if until is None else parse_as_of(until),
            timeout=seconds_of(timeout, "timeout"),
            poll=seconds_of(poll, "poll") or 0.0,
            name=name,
        )

    def drop_subscription(self, name: str, *, timeout: float | None = None) -> bool:
        """Ends what `subscribe(name=...)` keeps; False if there is no such subscription."""
        store, deadline = self._handle.store, self._handle.deadline(timeout)
        store.check_writable()
        return drop_subscription(store, self._version.table, name, deadline)

    def holds(self, *, timeout: float | None = None) -> pa.Table:
        """Who needs history of the table, or objects of it, to stay.

        Columns: hold (its id), kind ("retention", "subscription", …), since (reads from that time
        on stay exact; null: any may go), seqno (what dies at a later one stays), session (with
        whose end it ends; null: it stays until it is closed), epoch, note.
        """
        deadline = self._handle.deadline(timeout)
        return holds_of(self._handle.store, self._version.table, deadline)

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
        """
        rows = self.scan(columns, where, key_range=key_range, as_of=as_of, timeout=timeout)
        return export(rows.to_reader(), path, format, overwrite=overwrite)

    def __len__(self) -> int:
        return self.scan().count()

    def __bool__(self) -> bool:
        # Else `if table:` would count rows, and an empty table be taken for none.
        return True

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.scan().to_reader().__arrow_c_stream__(requested_schema)

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
        """
        return self._append("append", data, token, metadata, timeout)

    def upsert(
        self,
        data: Any,
        *,
        token: tuple[str, int] | None = None,
        metadata: dict[str, str] | None = None,
        timeout: float | None = None,
    ) -> Commit:
        """Writes rows of a `keyed` table: each replaces the row of its full key, or is new."""
        if self.kind != "keyed":
            raise UsageError(
                f"table {self._version.name!r} is of kind {self.kind!r}, whose rows have no key of "
                "their own: use append, or create the table with kind='keyed'"
            )
        return self._append("upsert", data, token, metadata, timeout)

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
        """
        options = self._options("delete", token, metadata, timeout)
        given = [where is not None or key_range is not None, keys is not None, all is True]
        if sum(given) != 1:
            raise UsageError(
                "delete takes where= and/or key_range=, or keys=, or all=True for every row"
            )
        before = first_commit(self._handle, options)
        if before is not None:
            return before
        if keys is not None:
            schema, codec = typed(self._version)
            prefixes = [codec.normalize(key) for key in _listed(keys)]
            if any(not prefix for prefix in prefixes):
                raise UsageError("an empty key would be all rows: pass all=True for that")
            full = _all_full(prefixes, len(schema.keys))
            if self.kind == "keyed" and full:
                return delete_keys(self._handle, self._fresh(options.deadline), prefixes, options)
            want = Want(ranges=tuple(KeyRange(p, p, closed=True) for p in prefixes))
        else:
            want = self._want(where, key_range)
        return delete_rows(self._handle, self._version, Selection(want), options)

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
        """
        options = self._options("update", token, metadata, timeout)
        before = first_commit(self._handle, options)
        if before is not None:
            return before
        want = self._want(where, None)
        assignments = Assignments(values, typed(self._version)[0], self._version.name)
        return update_rows(
            self._handle, self._version, Selection(want), lambda _: assignments, options
        )

    def overwrite(
        self,
        data: Any,
        where: Any = None,
        *,
        token: tuple[str, int] | None = None,
        metadata: dict[str, str] | None = None,
        timeout: float | None = None,
    ) -> Commit:
        """Replaces all rows, or those for which `where` is true, by `data` in one commit."""
        options = self._options("overwrite", token, metadata, timeout)
        before = first_commit(self._handle, options)
        if before is not None:
            return before
        want = self._want(where, None)
        return overwrite(self._handle, self._version, Selection(want), data, options)

    # --- exclusive writing

    def attach(self, worker: str, *, position: Any = None, timeout: float | None = None) -> Any:
        """Makes `worker` the only one that may write to the table, at once; a `Lease`.

        Whoever held it before is fenced, alive, stopped or dead: nobody waits for it, and nothing
        that it has not committed ever will be. All others get `Held`, which names the worker, when
        they write to this table; maintenance and reads go on for everybody. The lease lasts until
        it is released or another attaches. `position` is where to begin in a log upstream if no
        position was ever committed (`Lease.position`).

        To move work without a pause, let the new worker read up to where the old one is, and
        attach when it has caught up: what the old one commits until then counts, and the rest is
        refused.
        """
        if self._as_of is not None or self._transaction is not None:
            raise UsageError(
                f"this is table {self._version.name!r} as of one time; attach the table itself"
            )
        return _attaching[-1](self._handle, self._version, worker, position, timeout)

    def safe_to_prune(self, *, timeout: float | None = None) -> Any:
        """Up to where a log upstream may be pruned: the position that the last commit with one
        brought along, and None if none did. Positions that were refused do not count.
        """
        deadline = self._handle.deadline(timeout)
        txns = self._handle.store.txns
        look = txns.look(deadline)
        holder = look.ask(lambda s: s.holders.get((self._version.table,)))
        return None if holder is None or not holder.position else json.loads(holder.position)

    # --- how it looks

    def __repr__(self) -> str:
        keys = ", ".join([*self.row_keys, *(f"{key} (sort)" for key in self.sort_keys)])
        when = "" if self._as_of is None else f" as of {datetime_of(self._as_of).isoformat()}"
        columns = "".join(f"\n  {field.name}: {field.type}" for field in self.schema)
        return f"<strandline.Table {self._version.name!r}{when}, {self.kind}, by {keys}>{columns}"

    def _repr_html_(self) -> str:
        head = self.head(10)
        first, *_ = repr(self).splitlines()
        names = "".join(f"<th>{html.escape(name)}</th>" for name in head.column_names)
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(str(v))}</td>" for v in row.values()) + "</tr>"
            for row in head.to_pylist()
        )
        return (
            f"<p>{html.escape(first)}</p><table><thead><tr>{names}</tr></thead>"
            f"<tbody>{rows}</tbody></table>"
        )

    def __reduce__(self) -> tuple[type[Table], tuple[Handle, TableVersion, int | None]]:
        return Table, (self._handle, self._version, self._as_of)

    # --- inside

    def _at(self, as_of: int) -> Table:
        deadline = self._handle.deadline(None)
        txns = self._handle.store.txns
        look = txns.look(deadline)
        version = txns.table_by_id(look, self._version.table, as_of)
        return Table(self._handle, version, as_of)

    def _fresh(self, deadline: Deadline | None = None) -> TableVersion:
        """The table as it is called and set now; UnknownTable once it was dropped."""
        if self._transaction is not None:
            # What the transaction made or renamed nobody else knows yet.
            return self._transaction.version(self._version.table)
        txns = self._handle.store.txns
        look = txns.look(deadline or self._handle.deadline(None))
        return txns.table_by_id(look, self._version.table, self._as_of)

    def _view(self, deadline: Deadline) -> View:
        if self._transaction is not None:
            return self._transaction.view(self._version.table, deadline)
        store = self._handle.store
        return view_of(store, self._version.table, self._as_of, deadline)

    def _options(
        self, operation: str, token: Any, metadata: Any, timeout: float | None
    ) -> WriteOptions:
        if self._as_of is not None:
            raise UsageError(
                f"this is table {self._version.name!r} as of an earlier time, which cannot change; "
                "write to the table itself"
            )
        if self._transaction is not None:
            self._transaction.version(self._version.table)  # before anything is staged for it
            return self._transaction.options(operation, self._handle.deadline(timeout))
        options = WriteOptions.of(self._handle, operation, token, metadata, timeout)
        if self._position is None:
            return options
        return replace(options, positions={self._version.table: self._position})

    def _append(
        self, operation: str, data: Any, token: Any, metadata: Any, timeout: float | None
    ) -> Commit:
        options = self._options(operation, token, metadata, timeout)
        before = first_commit(self._handle, options)
        if before is not None:
            return before
        batch = build(self._handle, self._version, data, options)
        write = Write(self._version.table, batch)
        return commit_writes(self._handle, [(self._version, write)], options)

    def _want(self, where: Any, key_range: Any) -> Want:
        return want_of(
            self._version,
            columns=None,
            where=where,
            key_range=key_range,
            key_ranges=None,
            raw=False,
        )

    def _prefix(self, key: tuple[Any, ...]) -> tuple[Any, ...]:
        given = key[0] if len(key) == 1 and isinstance(key[0], tuple | list) else key
        if not given:
            raise UsageError(f"pass a value of the first key, {self.row_keys[0]!r}")
        return typed(self._version)[1].normalize(tuple(given))

    def _rows(
        self,
        prefixes: list[tuple[Any, ...]],
        columns: Sequence[str] | None,
        timeout: float | None,
    ) -> pa.Table:
        deadline = self._handle.deadline(timeout)
        chosen = None if columns is None else columns_of(self._version, columns)
        want = Want(chosen, tuple([KeyRange(p, p, closed=True) for p in prefixes]))

        def rows(view: View) -> pa.Table:
            return Reading.of(self._handle, view, want, deadline).table()

        return anew(self._view(deadline), lambda: self._view(deadline), rows)


def changes_wanted(
    version: TableVersion, columns: Sequence[str] | None, where: Any, *, with_old: bool
) -> Wanted:
    """Which changes of a table a user's arguments ask for; `UsageError` says what is wrong."""
    schema, name = typed(version)[0], version.name
    chosen = tuple(schema.arrow.names) if columns is None else columns_of(version, columns)
    if schema.kind == "keyed":
        missing = set(schema.keys).difference(chosen)
        chosen = (*(key for key in schema.keys if key in missing), *chosen)
    elif with_old:
        raise UsageError(
            f"table {name!r} is of kind 'rows', whose changes are whole rows: an "
            "old row comes with __diff -1; leave with_old out"
        )
    return Wanted(version, chosen, compile_where(where, schema, name), with_old)


def _listed(keys: Any) -> list[Any]:
    if isinstance(keys, pa.Array | pa.ChunkedArray):
        return keys.to_pylist()  # type: ignore[no-any-return]
    if isinstance(keys, str | bytes | dict) or not hasattr(keys, "__iter__"):
        raise UsageError(f"keys={keys!r}: pass a list of keys")
    return list(keys)


def _all_full(prefixes: Sequence[tuple[Any, ...]], count: int) -> bool:
    """Whether each of the keys has all its values."""
    return all(len(prefix) == count for prefix in prefixes)
