"""Writes: from a user's data to one commit, once, however often it has to be tried.

A blind write (append, upsert, delete of full keys) is a batch and a commit; it never conflicts. A
write that was computed from a read (delete and update by condition, overwrite) is committed on the
condition that nobody wrote to the table since that read, and computed again when somebody did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from strandline.env import Deadline, retry_delays
from strandline.errors import AsOfTooOld, LocationError, TransactionConflict, UsageError
from strandline.parts.files.batch import build_batch
from strandline.parts.typed import typed
from strandline.read.reading import anew
from strandline.state.commands import Read, TableChange, Write
from strandline.state.model import EVERYTHING, Batch, Interval, TableVersion
from strandline.state.plan import leaf_bounds, united
from strandline.state.tokens import token_of
from strandline.times import Commit
from strandline.txn.handle import Handle
from strandline.txn.history import commit_at
from strandline.txn.right_of_way import Tries
from strandline.txn.staging import Staging
from strandline.txn.store import Store
from strandline.txn.view import View, view_of

__all__ = [
    "Token",
    "WriteOptions",
    "build",
    "commit_computed",
    "commit_writes",
    "first_commit",
    "unchanged",
]

Token = tuple[str, int]


class Pending(Protocol):
    """A transaction that is open: where reads and writes within it go."""

    def view(self, table: str, deadline: Deadline) -> View:
        """The table with that id, with what the transaction wrote; reads of it are remembered."""

    def tables(self) -> list[TableVersion]:
        """The tables that there are."""

    def version(self, table: str) -> TableVersion:
        """The one with that id; UnknownTable once the transaction dropped it."""

    def options(self, operation: str, deadline: Deadline) -> WriteOptions:
        """The options of a write within it."""

    def add(self, writes: Sequence[tuple[TableVersion, Write]]) -> Commit:
        """Takes up writes that are committed later; says how many rows they have."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What every write takes besides its data, checked."""

    operation: str
    token: Token | None
    metadata: Mapping[str, str]
    deadline: Deadline
    staging: Staging
    transaction: Pending | None = None
    """What the write is a piece of; None: it is a commit of its own."""
    positions: Mapping[str, str] | None = None
    """Per table, by id, up to where the write goes in a log upstream, as JSON."""
    merged: Sequence[str] = ()
    """Ids of what was staged before and is in the write."""

    @classmethod
    def of(
        cls,
        handle: Handle,
        operation: str,
        token: Any,
        metadata: Any,
        timeout: float | None,
    ) -> WriteOptions:
        """The options in a user's arguments; `UsageError` says what is wrong with them."""
        store, deadline = handle.store, handle.deadline(timeout)
        store.check_writable()
        staging = Staging(store, deadline)
        return cls(operation, token_of(token), _metadata(metadata), deadline, staging)

    @property
    def token_text(self) -> str:
        """The token as the footers of parts have it."""
        return "" if self.token is None else f"{self.token[0]}:{self.token[1]}"


def _metadata(metadata: Any) -> Mapping[str, str]:
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping) or not all(
        isinstance(k, str) and isinstance(v, str) for k, v in metadata.items()
    ):
        raise UsageError(f"metadata={metadata!r}: pass a dict of strings to strings")
    return metadata


def first_commit(handle: Handle, options: WriteOptions) -> Commit | None:
    """The commit that the token stands for already, None if it is new.

    Asked before anything is evaluated: data may be a stream that can be read once, and a
    condition may by now match other rows.
    """
    if options.token is None:
        return None
    scope, number = options.token
    look = handle.store.txns.look(options.deadline)
    window = look.ask(lambda s: s.tokens.get((scope,)))
    if window is None:
        return None
    time = dict(window.results).get(number)
    return None if time is None else commit_at(handle.store, time, options.deadline)


def build(
    handle: Handle, version: TableVersion, data: Any, options: WriteOptions, *, diff: bool = False
) -> Batch:
    """A batch of the data, parts written where they have to be; nothing is committed yet.

    `diff`: the data has a `__diff` column.
    """
    store = handle.store
    try:
        return build_batch(
            data,
            typed(version)[0],
            blob=store.location.blob,
            new_key=lambda: options.staging.new_key(version.table),
            identity=lambda: options.staging.identity(version, options.token_text),
            settings=store.settings,
            env=store.env,
            deadline=options.deadline,
            diff=diff,
            cuts=lambda: _leaf_bounds(store, version, options.deadline),
        )
    except LocationError as error:
        # What it may have left are rows that nothing refers to: nothing was sent that commits.
        error.may_have_happened = False
        raise


def _leaf_bounds(store: Store, version: TableVersion, deadline: Deadline) -> list[bytes]:
    """Where the table's leaves begin, so that large parts fall into one leaf each."""
    return store.data(version.table).look(deadline).ask(leaf_bounds)


def commit_writes(
    handle: Handle,
    writes: Sequence[tuple[TableVersion, Write]],
    options: WriteOptions,
    changes: Sequence[TableChange] = (),
    reads: Sequence[Read] = (),
) -> Commit:
    """One commit of all of it, if what `reads` names is unchanged. Durable and visible when this
    returns. Within a transaction, the transaction takes it up.
    """
    if options.transaction is not None:
        return options.transaction.add(writes)
    store = handle.store
    real = [(version, write) for version, write in writes if write.batch.rows]
    if not real and not changes and options.token is None and not options.positions:
        return _nothing(handle, writes, options)
    # The data may have taken their time, and what is small is sent with a single request.
    options.deadline.check(f"the {options.operation}", may_have_happened=False)
    written = [write for _, write in real]
    made = {change.after.table for change in changes if change.expected_version is None}
    touched = {write.table for write in written} | {change.after.table for change in changes}
    store.before_commit(sorted(touched - made), options.deadline)
    for write in written:
        store.background.before_write(write.table, options.deadline)
    store.way.give(options.deadline)
    result = store.txns.commit(
        writes=written,
        changes=changes,
        reads=reads,
        token=options.token,
        positions=options.positions,
        merged=options.merged,
        operation=options.operation,
        metadata=options.metadata,
        deadline=options.deadline,
    )
    if result.repeated:
        return commit_at(store, result.time, options.deadline)
    store.background.after_commit(
        [(w.table, len(w.batch.inline), bool(w.batch.parts)) for w in written],
        options.deadline,
    )
    rows = sum(write.rows for write in written)
    names = dict.fromkeys(version.name for version, _ in real)
    return Commit(result.time, rows, tuple(names))


def unchanged(table: str, as_of: int, intervals: Sequence[Interval] = (EVERYTHING,)) -> Read:
    """The condition that nobody wrote to these keys of the table after `as_of`."""
    return Read(table, as_of + 1, tuple(intervals))


def _nothing(
    handle: Handle, writes: Sequence[tuple[TableVersion, Write]], options: WriteOptions
) -> Commit:
    """The commit of no rows: none is written, it is the latest that there is."""
    txns = handle.store.txns
    look = txns.look(options.deadline)
    for version, _ in writes:
        txns.table_by_id(look, version.table)  # a table that was dropped takes not even nothing
    return Commit(txns.latest(look), 0, ())


def commit_computed(
    handle: Handle,
    table: str,
    options: WriteOptions,
    compute: Callable[[View], Sequence[Batch]],
    reads: Sequence[str] = (),
    *,
    updates_per_row: int = 1,
) -> Commit:
    """Commits what `compute` makes of the table, if the table is still what it was computed from.

    `updates_per_row`: so many of the batches' make one row that is added, changed or taken away.
    `reads` are ids of other tables that have to be, too. Else it is computed again, until the
    deadline. Where nothing is to be changed and there is no token to remember, nothing is
    written, and the commit is that of the read.
    """
    store = handle.store

    def made(batch: Batch) -> Write:
        return Write(table, batch, batch.rows // updates_per_row)

    if options.transaction is not None:
        # It remembers what is read, and is the one that is begun anew if that changes.
        transaction = options.transaction

        def added(within: View) -> Commit:
            return transaction.add(
                [(within.version, write) for write in map(made, compute(within))]
            )

        def within() -> View:
            return transaction.view(table, options.deadline)

        return anew(within(), within, added)
    with Tries(store.way, store.env, options.deadline) as tries:
        return _tried(handle, table, options, compute, reads, made, tries=tries)


def _tried(
    handle: Handle,
    table: str,
    options: WriteOptions,
    compute: Callable[[View], Sequence[Batch]],
    reads: Sequence[str],
    made: Callable[[Batch], Write],
    *,
    tries: Tries,
) -> Commit:
    store = handle.store
    # Short ones, as in `transact`.
    pauses = iter(retry_delays(store.env, first_seconds=0.001, most_seconds=0.008))
    given_up: int | None = None
    while True:
        tries.begin()
        seen: list[Interval] = []

        def saw(intervals: Sequence[Interval] | None, seen: list[Interval] = seen) -> None:
            seen += [EVERYTHING] if intervals is None else intervals

        view = view_of(store, table, None, options.deadline)
        view = replace(view, seen=saw)
        try:
            batches = [batch for batch in compute(view) if batch.rows]
        except AsOfTooOld:
            # Another table that it reads, with a short retention, was compacted since the view was
            # made, and its history given up to beyond this latest time. By now there is a later.
            if view.as_of == given_up:
                raise
            given_up = view.as_of
            options.deadline.check(options.operation, may_have_happened=False)
            continue
        if not batches and options.token is None and not options.positions:
            return Commit(view.as_of, 0, ())
        writes = [(view.version, write) for write in map(made, batches)]
        # Also where there is nothing to write: a token's commit says so of its own, later time.
        looked_at = [unchanged(each, view.as_of) for each in reads]
        looked_at.append(unchanged(table, view.as_of, united(seen)))
        try:
            return commit_writes(handle, writes, options, reads=looked_at)
        except TransactionConflict:
            options.deadline.check(
                f"{options.operation} on table {view.version.name!r}, which others keep changing,",
                may_have_happened=False,
            )
            store.env.sleep(min(next(pauses), options.deadline.remaining()))
