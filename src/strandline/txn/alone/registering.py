"""Registers shards with a txns shard that is used by itself, and forgets them.

Two logs have to agree, and a process may end between any two records. The order of the records,
and the number that each join has, keep them so (`state/registering.py`); what was left half done
is finished by whoever asks for the same again.
"""

from __future__ import annotations

from dataclasses import replace

from strandline.env import Deadline
from strandline.errors import TransactionConflict, UpperMismatch
from strandline.ids import parse_id
from strandline.shard.alone.shard import Shard
from strandline.state.commands import Join, Leave, TableChange, Withdraw
from strandline.state.model import TableVersion
from strandline.state.tables import newest_version
from strandline.txn.alone.store import LoneStore

__all__ = ["forget_shard", "register_shard"]


def register_shard(store: LoneStore, shard_id: str, time: int, deadline: Deadline) -> None:
    """Registers the shard at that time, if it is not registered; upper moves beyond it."""
    shard = store.shard(shard_id, deadline)
    while True:
        try:
            _register(store, shard, time, deadline)
        except TransactionConflict:
            # Another gave it back in between: it has to be joined anew.
            deadline.check(f"registering shard {shard_id}", may_have_happened=False)
        except UpperMismatch:
            # So that its writers can go on, whoever registers it later.
            _give_back(store, shard_id, deadline)
            raise
        else:
            return


def _register(store: LoneStore, shard: Shard, time: int, deadline: Deadline) -> None:
    newest = _newest(store, shard.id, deadline)
    if newest is not None and newest.valid_until is None:
        store.commit(time, "register", deadline, [TableChange(newest, None)])
        return
    # Before it is joined, because its writers have to wait from then on.
    _check_time(store, shard, store.txns.machine.state.meta.upper, time)
    upper = shard.machine.look(deadline).meta.upper
    _check_time(store, shard, upper, time)
    over = 0 if newest is None else newest.version
    joined = shard.machine.submit(Join(store.owner, over), deadline)
    _check_time(store, shard, joined.upper, time)
    description = shard.machine.ask(lambda s: s.tables.get((str(shard.id), 1)))
    if description is None:
        raise AssertionError("a shard that is open and not described")
    version = replace(description, version=joined.number, name=str(shard.id))
    store.commit(time, "register", deadline, [TableChange(version, None)])


def _check_time(store: LoneStore, shard: Shard, upper: int | None, time: int) -> None:
    if upper is not None and time < upper:
        raise UpperMismatch(
            f"shard {shard.id} cannot be registered with txns shard {store.owner} at {time}: the "
            f"least time possible is {upper}; register it then, or later",
            upper,
        )


def forget_shard(store: LoneStore, shard_id: str, time: int, deadline: Deadline) -> None:
    """Forgets the shard at that time, if it is registered; upper moves beyond it.

    All that was committed to it is applied before. Its writers have it back afterwards.
    """
    parse_id(shard_id, "s")
    while True:
        try:
            _forget(store, shard_id, time, deadline)
        except TransactionConflict:
            # Another commit to the shard came after everything was applied.
            deadline.check(f"forgetting shard {shard_id}", may_have_happened=False)
        else:
            break
    _give_back(store, shard_id, deadline)


def _forget(store: LoneStore, shard_id: str, time: int, deadline: Deadline) -> None:
    newest = _newest(store, shard_id, deadline)
    if newest is None or newest.valid_until is not None:
        # First: this may be a second try, of one that ended before it was given back.
        _give_back(store, shard_id, deadline)
        store.commit(time, "forget", deadline)
        return
    store.apply([shard_id], None, deadline)
    store.tidy(deadline, [shard_id])
    change = TableChange(newest, newest.version, dropped=True)
    store.commit(time, "forget", deadline, [change])


def _give_back(store: LoneStore, shard_id: str, deadline: Deadline) -> None:
    """Gives a shard back to its writers if it is joined and not registered."""
    machine = store.data(shard_id)
    meta = machine.look(deadline).meta
    if meta.owner != store.owner:
        return
    spent = store.txns.machine.submit(Withdraw(shard_id, meta.joins), deadline)
    newest = _newest(store, shard_id, deadline)
    if not spent or newest is None or newest.version != meta.joins:
        return  # it is registered, or was joined anew meanwhile
    machine.submit(Leave(store.owner, meta.joins, newest.valid_until or 0), deadline)


def _newest(store: LoneStore, shard_id: str, deadline: Deadline) -> TableVersion | None:
    look = store.txns.look(deadline)
    return look.ask(lambda s: newest_version(s, shard_id))
