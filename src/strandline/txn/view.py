"""Tables as of one time: what is applied, and over it what is committed but not applied yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from strandline.env import Deadline
from strandline.errors import AsOfInFuture, AsOfTooOld, Corruption
from strandline.parts.schema import TableSchema
from strandline.shard.machine import Machine
from strandline.state.model import Entry, Interval, TableVersion
from strandline.state.replay import State
from strandline.times import told
from strandline.txn.store import Store

__all__ = ["View", "data_for", "view_at", "view_of", "views"]

A = TypeVar("A")

_POLL_SECONDS = 0.01
"""How often a read-only handle looks whether the time that it waits for has come."""


@dataclass(frozen=True, slots=True)
class View:
    """One table as of one time: all that a read needs, and nothing that can change under it."""

    version: TableVersion
    schema: TableSchema
    data: State
    machine: Machine
    entries: tuple[Entry, ...]
    """The overlay: `data`'s upper <= time <= `as_of`, ascending by time; then `own`."""
    as_of: int
    own: tuple[Entry, ...] = ()
    """What the transaction wrote that reads here, as if at `as_of`, after everything else."""
    seen: Callable[[Sequence[Interval] | None], None] | None = None
    """Told the intervals of keys (None: all) that are read; a transaction remembers them."""
    given: Callable[[], None] | None = None
    """Called before a read gives its first rows, or says that there are none: from then on the
    transaction is at this time. AsOfTooOld if it has gone on to a later one meanwhile."""


def views(
    store: Store, names: Sequence[str] | None, as_of: int | None, *, timeout: float
) -> list[View]:
    """The named tables (None: all), all of them at one `as_of` (None: the latest time).

    Errors: UnknownTable, AsOfTooOld, AsOfInFuture, DeadlineExceeded.
    """
    deadline = Deadline(store.env, timeout)

    def look(state: State, time: int) -> list[View]:
        if names is None:
            versions = store.txns.tables(state, as_of and time)
        else:
            versions = [store.txns.table(state, name, as_of and time) for name in names]
        return [view_at(store, state, version, time, deadline) for version in versions]

    return _looked(store, as_of, deadline, look)


def view_of(store: Store, table: str, as_of: int | None, *, timeout: float) -> View:
    """The same for one table by its id, whatever its name was."""
    deadline = Deadline(store.env, timeout)

    def look(state: State, time: int) -> View:
        version = store.txns.table_by_id(state, table, as_of and time)
        return view_at(store, state, version, time, deadline)

    return _looked(store, as_of, deadline, look)


def _looked(
    store: Store, as_of: int | None, deadline: Deadline, look: Callable[[State, int], A]
) -> A:
    """What `look` makes of a state of the txns shard and the time to be read."""
    state, time = _settled(store, as_of, deadline)
    while True:
        try:
            return look(state, time)
        except AsOfTooOld:
            # SUBTLE: the data shard is read after the txns shard. With a short retention, a
            # compaction in between may have given up what was the latest time; by now another is.
            before = time
            if as_of is not None:
                raise
            state, time = _settled(store, as_of, deadline)
            if time == before:
                raise
            deadline.check("reading the latest time", may_have_happened=False)


def _settled(store: Store, as_of: int | None, deadline: Deadline) -> tuple[State, int]:
    """A state of the txns shard in which everything at the time to be read is known."""
    txns = store.txns
    state = txns.refresh(timeout=deadline.remaining())
    if as_of is None:
        return state, txns.latest(state)
    if as_of <= txns.latest(state):
        return state, as_of
    if as_of > store.env.now_micros():
        raise AsOfInFuture(
            f"as_of {told(as_of)} lies in the future; the latest time is {told(txns.latest(state))}"
        )
    # An idle database is asked for a time that passed without a commit.
    if not store.read_only:
        txns.commit(at_least=as_of, operation="advance", timeout=deadline.remaining())
        return txns.machine.state, as_of
    while as_of > txns.latest(state):
        deadline.check(
            f"waiting for {told(as_of)} (the latest time is {told(txns.latest(state))}, and a "
            "read-only handle cannot move it)",
            may_have_happened=False,
        )
        store.env.sleep(_POLL_SECONDS)
        state = txns.refresh(timeout=max(deadline.remaining(), _POLL_SECONDS))
    return state, as_of


def view_at(
    store: Store, state: State, version: TableVersion, as_of: int, deadline: Deadline
) -> View:
    """One version of a table as of a time, by a state of the txns shard that knows all of it."""
    machine = store.data(version.table)
    data = data_for(store, state, version, deadline)
    upper, since = data.meta.upper, data.meta.since
    if since is None or upper is None:
        raise AsOfTooOld(f"table {version.name!r} was deleted; nothing of it can be read any more")
    if as_of < since:
        raise AsOfTooOld(
            f"as_of {told(as_of)} is before {told(since)}, the earliest time that table "
            f"{version.name!r} still keeps; a longer retention property keeps more"
        )
    entries = store.txns.overlay(state, version.table, upper, as_of)
    return View(version, TableSchema.from_version(version), data, machine, entries, as_of)


def data_for(store: Store, state: State, version: TableVersion, deadline: Deadline) -> State:
    """A state of the data shard that, with the entries in `state`, leaves no commit out.

    SUBTLE ◆: the txns shard is read first. An entry that was tidied before that read was applied
    before it, so a data state fetched after it has the rows. A cached data state may be older
    than the read: it is good only if it is beyond everything that was tidied.
    """
    machine = store.data(version.table)
    progress = store.txns.machine.run(lambda s: s.tidied.get((version.table,)), state=state)
    tidied = -1 if progress is None else progress.tidied_through
    data = machine.state
    if not data.seqno or not _beyond(data, tidied):
        data = machine.refresh(timeout=deadline.remaining())
    store.check_committed(version.table, data, timeout=deadline.remaining())
    if not _beyond(data, tidied):
        raise Corruption(
            f"the log of table {version.name!r} ends before {told(data.meta.upper or 0)}, but "
            f"commits through {told(tidied)} were tidied as applied: it lost records",
            object=version.table,
        )
    return data


def _beyond(data: State, tidied: int) -> bool:
    return data.meta.upper is None or data.meta.upper > tidied
