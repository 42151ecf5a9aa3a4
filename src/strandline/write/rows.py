"""Rows as users write them: arguments checked, and one commit, or that which their token has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from strandline.engine.expressions import Assignments
from strandline.errors import UsageError
from strandline.parts.keys import KeyRange
from strandline.parts.typed import typed
from strandline.read.want import Want, want_of
from strandline.state.commands import Write
from strandline.state.model import TableVersion
from strandline.times import Commit
from strandline.txn.handle import Handle
from strandline.write import edits
from strandline.write.commit import WriteOptions, build, commit_writes, first_commit
from strandline.write.edits import Selection, delete_keys, delete_rows, update_rows

__all__ = ["append", "check_keyed", "delete", "overwrite", "prefixes_of", "update"]


def append(handle: Handle, version: TableVersion, data: Any, options: WriteOptions) -> Commit:
    """Adds rows; in a keyed table they replace the rows of their keys."""
    before = first_commit(handle, options)
    if before is not None:
        return before
    batch = build(handle, version, data, options)
    return commit_writes(handle, [(version, Write(version.table, batch))], options)


def delete(
    handle: Handle,
    version: TableVersion,
    options: WriteOptions,
    *,
    where: Any,
    keys: Any,
    key_range: Any,
    everything: Any,
) -> Commit:
    """Deletes what a condition or a range of keys is true of, or some keys, or everything."""
    given = [where is not None or key_range is not None, keys is not None, everything is True]
    if sum(given) != 1:
        raise UsageError(
            "delete takes where= and/or key_range=, or keys=, or all=True for every row"
        )
    before = first_commit(handle, options)
    if before is not None:
        return before
    if keys is None:
        want = _selected(version, where, key_range)
    else:
        prefixes = prefixes_of(version, keys, "pass all=True for that")
        count = len(typed(version)[0].keys)
        if version.kind == "keyed" and all(len(prefix) == count for prefix in prefixes):
            return delete_keys(handle, _fresh(handle, version, options), prefixes, options)
        want = Want(ranges=tuple(KeyRange(p, p, closed=True) for p in prefixes))
    return delete_rows(handle, version, Selection(want), options)


def update(
    handle: Handle,
    version: TableVersion,
    values: Mapping[str, Any],
    where: Any,
    options: WriteOptions,
) -> Commit:
    """Sets columns of the rows that a condition is true of."""
    before = first_commit(handle, options)
    if before is not None:
        return before
    selection = Selection(_selected(version, where))
    assignments = Assignments(values, typed(version)[0], version.name)
    return update_rows(handle, version, selection, lambda _: assignments, options)


def overwrite(
    handle: Handle, version: TableVersion, data: Any, where: Any, options: WriteOptions
) -> Commit:
    """Replaces the rows that a condition is true of."""
    before = first_commit(handle, options)
    if before is not None:
        return before
    selection = Selection(_selected(version, where))
    return edits.overwrite(handle, version, selection, data, options)


def check_keyed(version: TableVersion) -> None:
    """UsageError if rows of the table have no key of their own, by which they could be replaced."""
    if version.kind != "keyed":
        raise UsageError(
            f"table {version.name!r} is of kind {version.kind!r}, whose rows have no key of "
            "their own: use append, or create the table with kind='keyed'"
        )


def prefixes_of(version: TableVersion, keys: Any, instead: str) -> list[tuple[Any, ...]]:
    """Keys, or prefixes of them, that a user lists; `instead` is said of one that is empty."""
    if isinstance(keys, pa.Array | pa.ChunkedArray):
        keys = keys.to_pylist()
    elif isinstance(keys, str | bytes | dict) or not hasattr(keys, "__iter__"):
        raise UsageError(f"keys={keys!r}: pass a list of keys")
    codec = typed(version)[1]
    prefixes = [codec.normalize(key) for key in keys]
    if any(not prefix for prefix in prefixes):
        raise UsageError(f"an empty key would be all rows: {instead}")
    return prefixes


def _selected(version: TableVersion, where: Any, key_range: Any = None) -> Want:
    return want_of(
        version, columns=None, where=where, key_range=key_range, key_ranges=None, raw=False
    )


def _fresh(handle: Handle, version: TableVersion, options: WriteOptions) -> TableVersion:
    """The table as it is now; UnknownTable once it was dropped."""
    if options.transaction is not None:
        return options.transaction.version(version.table)
    txns = handle.store.txns
    return txns.table_by_id(txns.look(options.deadline), version.table)
