"""Tables that are created, dropped, renamed and set: in a commit of their own, or in a transaction.

Whoever changes a table that another changes at the same time is refused, and tries again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa

from strandline.env import Deadline, Env, retry_delays
from strandline.errors import TransactionConflict, UnknownTable, UsageError
from strandline.ids import new_shard_id
from strandline.parts.keys import KEY_BYTES_MAX, KeyCodec
from strandline.parts.rows.conform import to_arrow
from strandline.parts.schema import TableSchema, new_schema, validate_table_name
from strandline.shard.look import Look
from strandline.state.commands import Split, TableChange, Write
from strandline.state.model import TableVersion
from strandline.times import Commit
from strandline.txn.handle import Handle
from strandline.txn.properties import check_properties
from strandline.txn.txns import named
from strandline.write.commit import WriteOptions, build, commit_writes

__all__ = [
    "NewTable",
    "SeenTables",
    "create_table",
    "drop_table",
    "name_of",
    "new_table",
    "rename_table",
    "set_properties",
]

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table that shall be."""

    version: TableVersion
    points: tuple[bytes, ...]
    """Encoded row keys at which it is split from the start."""
    data: Any
    """Its first rows in a form of Arrow; None: there are none."""


def new_table(  # noqa: PLR0917  each is a word about the table
    env: Env,
    name: Any,
    schema: Any,
    row_keys: Sequence[str] | str,
    sort_keys: Sequence[str] | str,
    kind: str,
    split_points: Sequence[Any],
    properties: Mapping[str, Any] | None,
) -> NewTable:
    """A table with an id of its own; arguments as those of `Database.create_table`."""
    validate_table_name(name_of(name))
    data = None if isinstance(schema, pa.Schema) else to_arrow(schema)
    typed = new_schema(
        schema if data is None else data.schema,
        row_keys,
        sort_keys,
        kind,  # type: ignore[arg-type]  # checked there
    )
    version = TableVersion(
        table=new_shard_id(env),
        version=1,
        name=name,
        valid_from=0,
        valid_until=None,
        created=0,
        kind=typed.kind,
        schema=typed.to_bytes(),
        row_keys=typed.row_keys,
        sort_keys=typed.sort_keys,
        properties=check_properties(properties or {}),
    )
    return NewTable(version, _points(split_points, typed), data)


def name_of(name: Any) -> str:
    """The name, if it is a string."""
    if not isinstance(name, str):
        raise UsageError(f"{name!r} is no name of a table: pass a string")
    return name


def _short(encoded: bytes, point: Any) -> bytes:
    if len(encoded) > KEY_BYTES_MAX:
        raise UsageError(
            f"split point {str(point)[:40]}… takes {len(encoded)} bytes, where {KEY_BYTES_MAX} are "
            "the most"
        )
    return encoded


def _points(points: Sequence[Any], schema: TableSchema) -> tuple[bytes, ...]:
    """Split points as encoded row keys, ascending, each once."""
    if isinstance(points, str | bytes) or not hasattr(points, "__iter__"):
        raise UsageError(f"split_points={points!r}: pass a list of row keys")
    codec = KeyCodec(schema)
    encoded = set()
    for point in points:
        values = codec.normalize(point)
        if not 0 < len(values) <= len(schema.row_keys):
            raise UsageError(
                f"split point {point!r}: pass a row key, or a prefix of one; row keys are "
                f"{schema.row_keys}"
            )
        encoded.add(_short(codec.encode(values), point))
    return tuple(sorted(encoded))


# --- each in a commit of its own


def create_table(
    handle: Handle, new: NewTable, options: WriteOptions, *, exist_ok: bool
) -> TableVersion:
    """Creates the table with its first rows; with `exist_ok` one like it may be there already."""
    name, txns = new.version.name, handle.store.txns
    there = _find(handle, name, options.deadline)
    if there is None:
        _split_ahead(handle, new.version.table, new.points, options.deadline)
        writes = _first_rows(handle, new.version, new.data, options)
        try:
            commit_writes(handle, writes, options, [TableChange(new.version, None)])
        except UsageError:
            there = _find(handle, name, options.deadline) if exist_ok else None
            if there is None:
                raise
        else:
            return txns.table(txns.look(), name)
    if not exist_ok:
        raise UsageError(f"there is a table {name!r} already; drop it first, or pass exist_ok=True")
    for what in ("kind", "row_keys", "sort_keys", "schema"):
        if getattr(there, what) != getattr(new.version, what):
            raise UsageError(
                f"there is a table {name!r} already, with another {what}; choose another name or "
                "drop it first"
            )
    if new.data is not None:
        commit_writes(handle, _first_rows(handle, there, new.data, options), options)
    return there


def drop_table(
    handle: Handle, name: str, options: WriteOptions, *, missing_ok: bool
) -> Commit | None:
    """Ends a table; None where there is none of that name and none has to be."""

    def dropped(look: Look) -> Commit | None:
        try:
            version = handle.store.txns.table(look, name_of(name))
        except UnknownTable:
            if missing_ok:
                return None
            raise
        change = TableChange(version, version.version, dropped=True)
        return commit_writes(handle, [], options, [change])

    return _until_unaltered(handle, options, f"drop_table of {name!r}", dropped)


def rename_table(handle: Handle, name: str, to: str, options: WriteOptions) -> Commit:
    """Gives a table another name."""

    def renamed(look: Look) -> Commit:
        version = handle.store.txns.table(look, name_of(name))
        change = TableChange(replace(version, name=to), version.version)
        return commit_writes(handle, [], options, [change])

    return _until_unaltered(handle, options, f"rename_table of {name!r}", renamed)


def set_properties(
    handle: Handle, table: TableVersion, properties: Mapping[str, Any], options: WriteOptions
) -> Commit:
    """Changes those properties of a table, by its id, and no others."""
    checked = dict(check_properties(properties))

    def altered(look: Look) -> Commit:
        version = handle.store.txns.table_by_id(look, table.table)
        merged = tuple(sorted({**dict(version.properties), **checked}.items()))
        change = TableChange(replace(version, properties=merged), version.version)
        return commit_writes(handle, [], options, [change])

    return _until_unaltered(handle, options, f"setting properties of {table.name!r}", altered)


def _until_unaltered(
    handle: Handle, options: WriteOptions, what: str, alter: Callable[[Look], A]
) -> A:
    """What `alter` gives for the newest state; anew while others alter the table as well."""
    env, txns, deadline = handle.store.env, handle.store.txns, options.deadline
    pauses = iter(retry_delays(env, first_seconds=0.002, most_seconds=0.25))
    while True:
        try:
            return alter(txns.look(deadline))
        except TransactionConflict:
            deadline.check(what, may_have_happened=False)
            env.sleep(min(next(pauses), deadline.remaining()))


def _find(handle: Handle, name: str, deadline: Deadline) -> TableVersion | None:
    txns = handle.store.txns
    try:
        return txns.table(txns.look(deadline), name)
    except UnknownTable:
        return None


def _split_ahead(handle: Handle, table: str, points: tuple[bytes, ...], deadline: Deadline) -> None:
    """Splits a new table. Before it has a name, so that nobody meets it half split."""
    if points:
        handle.store.data(table).submit(Split(1, b"", points), deadline)


def _first_rows(
    handle: Handle, version: TableVersion, data: Any, options: WriteOptions
) -> list[tuple[TableVersion, Write]]:
    if data is None:
        return []
    return [(version, Write(version.table, build(handle, version, data, options)))]


# --- in a transaction


class SeenTables:
    """The tables that a transaction sees: those of the moment that it reads, and over them what it
    creates, drops and renames.
    """

    def __init__(self, handle: Handle, known: Look) -> None:
        self._handle = handle
        self._known = known
        self._changes: dict[str, TableChange] = {}
        self._versions: dict[str, TableVersion] = {}
        """Tables as they are called here, those that were asked for so far."""
        self._dropped: dict[str, str] = {}
        """The names that tables had when they were dropped here, by id."""
        self._points: dict[str, tuple[bytes, ...]] = {}
        """Of new tables: where they are split from the start."""

    @property
    def changed(self) -> bool:
        """Whether anything is done to a table itself."""
        return bool(self._changes)

    def look(self, deadline: Deadline | None = None) -> Look:
        """The txns shard at the moment that is read; for a call of now."""
        return self._known.by(deadline or self._handle.deadline(None))

    def all(self) -> list[TableVersion]:
        """The tables that there are, by name."""
        known = self._handle.store.txns.tables(self.look())
        if not self._changes:
            return known
        there = {v.table: v for v in known}
        for table, change in self._changes.items():
            if change.dropped:
                there.pop(table, None)
            else:
                there[table] = change.after
        return sorted(there.values(), key=lambda version: version.name)

    def named(self, name: str) -> TableVersion:
        """The table of that name; UnknownTable names those that are near."""
        if self._changes:
            version = named(self.all(), name)
        else:
            version = self._handle.store.txns.table(self.look(), name)
        self._versions[version.table] = version
        return version

    def version(self, table: str) -> TableVersion:
        """The table with that id, by the name that it has here; UnknownTable once it was dropped
        here, or by others before the moment that is read.
        """
        if table in self._dropped:
            raise UnknownTable(f"this transaction dropped the table {self._dropped[table]!r}")
        found = self._versions.get(table)
        if found is None:
            found = self._versions[table] = self._before(table)
        return found

    def new(self, table: str) -> TableVersion | None:
        """The table with that id, if it is created here: nobody else knows of it."""
        change = self._changes.get(table)
        return None if change is None or change.expected_version is not None else change.after

    def create(self, new: NewTable) -> None:
        """A table that is there from now on."""
        self._check_free(new.version.name)
        self._changes[new.version.table] = TableChange(new.version, None)
        self._points[new.version.table] = new.points

    def drop(self, name: str) -> str:
        """Ends a table; its id."""
        version = self.named(name_of(name))
        table = version.table
        self._dropped[table] = version.name
        if self.new(table) is not None:
            self._changes.pop(table)
            self._points.pop(table, None)
        else:
            before = self._before(table)
            self._changes[table] = TableChange(before, before.version, dropped=True)
        return table

    def rename(self, name: str, to: str) -> None:
        """Gives a table another name."""
        validate_table_name(name_of(to))
        version = self.named(name_of(name))
        self._check_free(to, but=version.table)
        after = replace(version, name=to)
        change = self._changes.get(version.table)
        expected = version.version if change is None else change.expected_version
        self._changes[version.table] = TableChange(after, expected)
        self._versions[version.table] = after

    def move_on(self, known: Look) -> None:
        """From now on a later moment is read."""
        self._known = known
        self._versions = {t: v for t, v in self._versions.items() if t in self._changes}

    def begun(self, deadline: Deadline) -> list[TableChange]:
        """The changes to be committed; tables that are new are split as they shall be."""
        for table, points in self._points.items():
            _split_ahead(self._handle, table, points, deadline)
        self._points.clear()
        return list(self._changes.values())

    def _before(self, table: str) -> TableVersion:
        """The table as it was at the moment that is read."""
        return self._handle.store.txns.table_by_id(self.look(), table)

    def _check_free(self, name: str, but: str = "") -> None:
        for version in self.all():
            if version.name.casefold() == name.casefold() and version.table != but:
                raise UsageError(
                    f"there is a table {version.name!r} already; choose another name, or drop or "
                    "rename that one first"
                )
