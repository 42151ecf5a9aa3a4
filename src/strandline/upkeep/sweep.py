"""The sweep of a location's shards: what their ended sessions left, and nothing needs, is deleted.

`shard/sweeping.py` is how; here is where to look for what is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from strandline.env import Deadline
from strandline.ids import ObjectKey
from strandline.location import BlobInfo
from strandline.shard import sweeping
from strandline.shard.look import Look
from strandline.shard.machine import Machine
from strandline.shard.sweeping import Registered, Sweep, entered, registered, sweep_sessions
from strandline.txn.store import Store

__all__ = ["Registered", "Sweep", "all_machines", "listed_of", "needed_of", "registered", "sweep"]


def all_machines(store: Store, deadline: Deadline) -> list[Machine]:
    """The machines of all shards of the location, the txns shard's first."""
    txns = store.txns.machine
    shards = store.location.consensus.keys(timeout=deadline.remaining())
    return [txns, *(store.data(shard) for shard in sorted({*shards} - {txns.shard}))]


def sweep(
    store: Store,
    *,
    delay_micros: int,
    deadline: Deadline,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Sweep:
    """One pass for all ended sessions of all shards. `progress` is told objects deleted, in all.

    A session is forgotten once a pass finds nothing, a deletion delay or longer after one before:
    by then no request of its owner is under way. Errors: LocationError, Corruption; what was
    deleted until then was needed by nobody.
    """
    return sweep_sessions(
        all_machines(store, deadline),
        partial(needed_of, store, deadline=deadline),
        store.location,
        store.env,
        delay_micros=delay_micros,
        deadline=deadline,
        dry_run=dry_run,
        progress=progress,
    )


def listed_of(
    store: Store, sessions: Sequence[str], deadline: Deadline
) -> dict[str, dict[ObjectKey, BlobInfo]]:
    """The objects that each of these sessions wrote, by key."""
    return sweeping.listed_of(store.location, store.env, sessions, deadline)


def needed_of(
    store: Store, keys: Iterable[ObjectKey], deadline: Deadline
) -> tuple[set[str], set[str]]:
    """Which of these objects, listed before, something names; and the shards that named all that
    was listed of their state, because a rollup of them could not be read.
    """

    def check(shard: str, data: Look) -> None:
        store.check_committed(shard, data, deadline)

    return sweeping.needed_by(
        store.txns.machine,
        store.data,
        keys,
        store.location,
        store.env,
        deadline,
        elsewhere=partial(_entered_elsewhere, store, deadline),
        check=check,
    )


def _entered_elsewhere(store: Store, deadline: Deadline) -> set[str]:
    """The same of all other txns shards of the location, which are used by themselves."""
    found: set[str] = set()
    for machine in all_machines(store, deadline)[1:]:
        look = machine.look(deadline)
        if look.meta.origin == "commits":
            found |= set(look.ask(lambda s: list(entered(s))))
    return found
