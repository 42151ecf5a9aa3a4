"""Tables as of one time: what is applied, and over it what is committed but not applied yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from strandline.env import Deadline
from strandline.errors import AsOfInFuture, AsOfTooOld, Corruption
from strandline.shard.look import Look
from strandline.state.model import Entry, Interval, TableVersion
from strandline.state.tables import tidied_through
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
    data: Look
    """A look at the data shard."""
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
    store: Store, names: Sequence[str] | None, as_of: int | None, deadline: Deadline
) -> list[View]:
    """The named tables (None: all), all of them at one `as_of` (None: the latest time).

    Errors: UnknownTable, AsOfTooOld, AsOfInFuture, DeadlineExceeded.
    """

    def views_at(look: Look, time: int) -> list[View]:
        if names is None:
            versions = store.txns.tables(look, as_of and time)
        else:
            versions = [store.txns.table(look, name, as_of and time) for name in names]
        return [view_at(store, look, version, time, deadline) for version in versions]

    return _looked(store, as_of, deadline, views_at)


def view_of(store: Store, table: str, as_of: int | None, deadline: Deadline) -> View:
    """The same for one table by its id, whatever its name was."""

    def view(look: Look, time: int) -> View:
        version = store.txns.table_by_id(look, table, as_of and time)
        return view_at(store, look, version, time, deadline)

    return _looked(store, as_of, deadline, view)


def _looked(
    store: Store, as_of: int | None, deadline: Deadline, read: Callable[[Look, int], A]
) -> A:
    """What `read` makes of a look at the txns shard and the time to be read."""
    look, time = _settled(store, as_of, deadline)
    while True:
        try:
            return read(look, time)
        except AsOfTooOld:
            # SUBTLE: the data shard is read after the txns shard. With a short retention, a
            # compaction in between may have given up what was the latest time; by now another is.
            before = time
            if as_of is not None:
                raise
            look, time = _settled(store, as_of, deadline)
            if time == before:
                raise
            deadline.check("reading the latest time", may_have_happened=False)


def _settled(store: Store, as_of: int | None, deadline: Deadline) -> tuple[Look, int]:
    """A look at the txns shard in which everything at the time to be read is known."""
    txns = store.txns
    look = txns.look(deadline)
    if as_of is None:
        return look, txns.latest(look)
    if as_of <= txns.latest(look):
        return look, as_of
    if as_of > store.env.now_micros():
        raise AsOfInFuture(
            f"as_of {told(as_of)} lies in the future; the latest time is {told(txns.latest(look))}"
        )
    # An idle database is asked for a time that passed without a commit.
    if not store.read_only:
        txns.commit(at_least=as_of, operation="advance", deadline=deadline)
        return txns.machine.known(deadline), as_of
    while as_of > txns.latest(look):
        deadline.check(
            f"waiting for {told(as_of)} (the latest time is {told(txns.latest(look))}, and a "
            "read-only handle cannot move it)",
            may_have_happened=False,
        )
        store.env.sleep(_POLL_SECONDS)
        look = txns.look(deadline.not_before(_POLL_SECONDS))
    return look, as_of


def view_at(
    store: Store, look: Look, version: TableVersion, as_of: int, deadline: Deadline
) -> View:
    """One version of a table as of a time, by a look at the txns shard that knows all of it."""
    data = data_for(store, look, version, deadline)
    upper, since = data.meta.upper, data.meta.since
    if since is None or upper is None:
        raise AsOfTooOld(f"table {version.name!r} was deleted; nothing of it can be read any more")
    if as_of < since:
        raise AsOfTooOld(
            f"as_of {told(as_of)} is before {told(since)}, the earliest time that table "
            f"{version.name!r} still keeps; a longer retention property keeps more"
        )
    entries = store.txns.overlay(look, version.table, upper, as_of)
    return View(version, data, entries, as_of)


def data_for(store: Store, look: Look, version: TableVersion, deadline: Deadline) -> Look:
    """A look at the data shard that, with the entries in `look`, leaves no commit out.

    SUBTLE ◆: the txns shard is read first. An entry that was tidied before that read was applied
    before it, so a data state fetched after it has the rows. A cached data state may be older
    than the read: it is good only if it is beyond everything that was tidied.
    """
    machine = store.data(version.table)
    tidied = look.ask(lambda s: tidied_through(s, version.table))
    data = machine.known(deadline)
    if not data.seqno or not _beyond(data, tidied):
        data = machine.look(deadline)
    store.check_committed(version.table, data, deadline)
    if not _beyond(data, tidied):
        raise Corruption(
            f"the log of table {version.name!r} ends before {told(data.meta.upper or 0)}, but "
            f"commits through {told(tidied)} were tidied as applied: it lost records",
            object=version.table,
        )
    return data


def _beyond(data: Look, tidied: int) -> bool:
    return data.meta.upper is None or data.meta.upper > tidied
