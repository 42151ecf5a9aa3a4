"""Holds on the history of a table: what a subscription still needs, and who needs what."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from strandline.env import Deadline
from strandline.errors import Fenced, LocationError, StrandlineError, UsageError
from strandline.shard.machine import Machine
from strandline.state.commands import CloseHold, MoveHold, OpenHold, Retain, TakeHold
from strandline.state.holding import RETENTION
from strandline.state.model import Hold
from strandline.txn.store import Store

__all__ = ["HOLDS", "Place", "drop_subscription", "hold_place", "holds_of"]

HOLDS = pa.schema(
    [
        ("hold", pa.string()),
        ("kind", pa.string()),
        ("since", pa.timestamp("us", "UTC")),
        ("seqno", pa.int64()),
        ("session", pa.string()),
        ("epoch", pa.int64()),
        ("note", pa.string()),
    ]
)
"""What `holds_of` gives."""

_KIND = "subscription"
_log = logging.getLogger("strandline")

_left: WeakKeyDictionary[Store, deque[tuple[Machine, str, int]]] = WeakKeyDictionary()
"""Leased holds whose subscriptions were let go of without being closed."""


class Place:
    """Where a subscription stands: what came later is kept for it. For one thread at a time.

    A leased one ends with the session of the handle. A named one stays, whoever goes; who takes it
    over fences the one before.
    """

    def __init__(self, store: Store, machine: Machine, hold_id: str, hold: Hold) -> None:
        self._store = store
        self._machine = machine
        self._id = hold_id
        self._hold: Hold | None = hold
        self._leased = bool(hold.session)
        self._release: Callable[[], None] = store.pulse.hold(machine) if self._leased else _nothing

    def move(self, since: int, deadline: Deadline) -> None:
        """Gives up what is needed for nothing but times before `since`.

        A leased one that is lost is not missed: then the history may go, as it may for readers
        without a hold. Fenced if a named one was taken over or dropped.
        """
        _close_left(self._store, deadline)
        hold = self._hold
        if hold is None or (hold.since is not None and since <= hold.since):
            return
        seqno = None if hold.seqno is None else self._machine.state.seqno
        command = MoveHold(self._id, hold.epoch, since, seqno)
        try:
            self._hold = self._machine.submit(command, deadline)
        except Fenced as error:
            if not self._leased:
                raise
            _log.warning("a subscription goes on without a hold on its history: %s", error)
            self._hold = None
        except LocationError as error:
            # What is held is held; the next move is as good.
            _log.warning("the hold of a subscription stays where it is: %s", error)

    def close(self, deadline: Deadline) -> None:
        """Ends a leased hold; a named one stays. Raises nothing: its lease ends it, too."""
        self._release()
        hold, self._hold = self._hold, None
        if hold is not None and self._leased:
            _closed(self._machine, self._id, hold.epoch, deadline)

    def leave(self) -> None:
        """Does what `close` does without a request; a later one of the handle makes up for it."""
        self._release()
        hold, self._hold = self._hold, None
        if hold is not None and self._leased:
            left = _left.setdefault(self._store, deque())
            left.append((self._machine, self._id, hold.epoch))


def _nothing() -> None:
    pass


def hold_place(
    store: Store, table: str, since: int, *, name: str | None, note: str, deadline: Deadline
) -> Place:
    """Holds the history of a table from `since` on. AsOfTooOld if it is not kept that far back.

    With a name the hold outlives the handle; one of that name is taken over, and moved.
    """
    _close_left(store, deadline)
    machine = store.data(table)
    _keep_all(machine, deadline)
    if name is None:
        hold_id = f"{_KIND}-{store.env.token_hex(8)}"
        asked = Hold(since, seqno=0, kind=_KIND, note=note)
        opened = machine.submit(OpenHold(hold_id, asked, leased=True, exact=True), deadline)
        return Place(store, machine, hold_id, opened)
    hold_id = _id_of(name)
    asked = Hold(since, kind=_KIND, note=note)
    while True:
        look = machine.look(deadline)
        known = look.ask(lambda s: s.holds.get((hold_id,)))
        if known is not None:
            taken = machine.submit(TakeHold(hold_id), deadline)
            place = Place(store, machine, hold_id, replace(taken, session=""))
            place.move(since, deadline)
            return place
        try:
            opened = machine.submit(OpenHold(hold_id, asked, leased=False, exact=True), deadline)
        except UsageError:
            again = machine.look(deadline)
            if again.ask(lambda s: s.holds.get((hold_id,))) is None:
                raise
            continue  # another opened it just now
        return Place(store, machine, hold_id, opened)


def _keep_all(machine: Machine, deadline: Deadline) -> None:
    """Sees to it that the table's retention is among the holds.

    SUBTLE: since is the least of the holds. Were this the first one, opening it would give up all
    history before it, which nobody has asked for: a compaction alone moves what retention keeps.
    """
    look = machine.look(deadline)
    if look.ask(lambda s: s.holds.get((RETENTION,))) is None:
        machine.submit(Retain(0), deadline)


def drop_subscription(store: Store, table: str, name: str, deadline: Deadline) -> bool:
    """Ends a named hold; False if there was none. Whoever held it is fenced."""
    machine = store.data(table)
    look = machine.look(deadline)
    hold_id = _id_of(name)
    known = look.ask(lambda s: s.holds.get((hold_id,)))
    if known is None:
        return False
    taken = machine.submit(TakeHold(hold_id), deadline)
    machine.submit(CloseHold(hold_id, taken.epoch), deadline)
    return True


def holds_of(store: Store, table: str, deadline: Deadline) -> pa.Table:
    """The holds on a table's shard, as a table `HOLDS`."""
    machine = store.data(table)
    look = machine.look(deadline)
    found = look.ask(lambda s: list(s.holds.range()))
    rows = [
        (key[0], h.kind, h.since, h.seqno, h.session or None, h.epoch, h.note) for key, h in found
    ]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in HOLDS]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, HOLDS, strict=True)]
    return pa.Table.from_arrays(arrays, schema=HOLDS)


def _id_of(name: str) -> str:
    given: Any = name
    if not isinstance(given, str) or not given or not given.isprintable():
        raise UsageError(f"name={name!r}: a subscription has a name that is a printable text")
    return f"{_KIND}:{name}"


def _close_left(store: Store, deadline: Deadline) -> None:
    left = _left.get(store)
    while left:
        _closed(*left.popleft(), deadline)


def _closed(machine: Machine, hold_id: str, epoch: int, deadline: Deadline) -> None:
    try:
        machine.submit(CloseHold(hold_id, epoch), deadline)
    except StrandlineError as error:
        _log.warning("the hold of a subscription ends with its session: %s", error)
