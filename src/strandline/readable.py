"""What can be read of a table: now, as of one time, or within a transaction."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any, Self, TypedDict

import pyarrow as pa

from strandline.changes.differences import changes_wanted
from strandline.changes.subscription import Subscription, seconds_of, start_of, subscribed
from strandline.env import Deadline
from strandline.errors import UsageError
from strandline.parts.keys import KeyRange
from strandline.parts.typed import typed
from strandline.query import Scan
from strandline.read.reading import Reading, anew
from strandline.read.want import Want, columns_of, want_of
from strandline.state.model import TableVersion
from strandline.times import datetime_of, parse_as_of
from strandline.txn.handle import Handle, limit_of
from strandline.txn.view import View, view_of
from strandline.write.commit import Pending
from strandline.write.rows import prefixes_of

__all__ = ["Getting", "ReadableTable", "Scanning"]


class Getting(TypedDict, total=False):
    """How rows are read by key."""

    as_of: Any
    timeout: float | None


class Scanning(Getting, total=False):
    """Which rows a scan reads, besides its columns and its condition."""

    key_range: Any
    key_ranges: Any
    limit: int | None
    raw: bool


class ReadableTable:
    """A table that can be read. `Table` can be written, too. Thread-safe."""

    def __init__(
        self,
        handle: Handle,
        version: TableVersion,
        as_of: int | None = None,
        transaction: Pending | None = None,
    ) -> None:
        self._handle = handle
        self._version = version
        self._as_of = as_of
        self._transaction = transaction

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

    def as_of(self, moment: Any) -> Self:
        """The table as of a moment; it can be read and not written.

        `moment` is an aware datetime, an ISO string with a zone, `Micros` or a `Commit`. Raises
        `UnknownTable` if the table was not there then.

        >>> before = stock.append([{"item": "fig", "count": 1}])
        >>> _ = stock.delete(all=True)
        >>> len(stock.as_of(before)), len(stock)
        (3, 0)
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

        >>> readings.scan(["at", "value"], "value > 20", key_range=(7, 9)).to_arrow().to_pylist()
        [{'at': 1, 'value': 20.5}, {'at': 2, 'value': 21.0}]
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

        >>> readings.get(7)["value"].to_pylist()
        [20.5, 21.0]
        >>> readings.get(7, 2)["value"].to_pylist()
        [21.0]
        """
        if as_of is not None:
            return self.as_of(as_of).get(*key, columns=columns, timeout=timeout)
        return self._rows([self._prefix(key)], columns, timeout)

    def get_one(
        self, *key: Any, as_of: Any = None, timeout: float | None = None
    ) -> dict[str, Any] | None:
        """The row of one full key of a `keyed` table as a dict, or None.

        >>> stock.get_one("pear")
        {'item': 'pear', 'count': 2}
        """
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
        """All rows whose keys begin with any of `keys`, sorted, each once.

        >>> stock.get_many(["pear", "fig", "apple"])["item"].to_pylist()
        ['apple', 'pear']
        """
        if as_of is not None:
            return self.as_of(as_of).get_many(keys, columns=columns, timeout=timeout)
        return self._rows(prefixes_of(self._version, keys, "use scan"), columns, timeout)

    def head(self, rows: int = 10, *, timeout: float | None = None) -> pa.Table:
        """The first rows by key.

        >>> readings.head(1).to_pylist()
        [{'sensor': 7, 'at': 1, 'value': 20.5}]
        """
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

        >>> before = stock.append([{"item": "fig", "count": 1}])
        >>> changes = stock.subscribe(before, until=stock.delete(keys=["fig"]))
        >>> [row for change in changes for row in change.rows.select(["item", "__op"]).to_pylist()]
        [{'item': 'fig', '__op': 'delete'}]
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

    def __len__(self) -> int:
        return self.scan().count()

    def __bool__(self) -> bool:
        # Else `if table:` would count rows, and an empty table be taken for none.
        return True

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.scan().to_reader().__arrow_c_stream__(requested_schema)

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

    def __reduce__(self) -> tuple[type[Self], tuple[Handle, TableVersion, int | None]]:
        return type(self), (self._handle, self._version, self._as_of)

    # --- inside

    def _at(self, as_of: int) -> Self:
        txns = self._handle.store.txns
        version = txns.table_by_id(txns.look(), self._version.table, as_of)
        return type(self)(self._handle, version, as_of)

    def _fresh(self) -> TableVersion:
        """The table as it is called and set now; UnknownTable once it was dropped."""
        if self._transaction is not None:
            # What the transaction made or renamed nobody else knows yet.
            return self._transaction.version(self._version.table)
        txns = self._handle.store.txns
        return txns.table_by_id(txns.look(), self._version.table, self._as_of)

    def _view(self, deadline: Deadline) -> View:
        if self._transaction is not None:
            return self._transaction.view(self._version.table, deadline)
        return view_of(self._handle.store, self._version.table, self._as_of, deadline)

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
