"""Vacuum of a shard that is used by itself."""

from __future__ import annotations

import numbers
from typing import Any

from strandline.env import LONG_SECONDS, Deadline, Env
from strandline.errors import UsageError
from strandline.location import Location
from strandline.settings import Settings
from strandline.shard.leftovers import clear_leftovers
from strandline.shard.shards import Shard
from strandline.shard.vacuum import ShardVacuum, Vacuum
from strandline.state.commands import Clear
from strandline.state.model import Key
from strandline.state.replay import State

__all__ = ["vacuum_shard"]

_DELAY_SECONDS_MAX = 1e9
_CLEARED = 1_000
"""References of a shard that is gone that are let go of in one record."""


def vacuum_shard(
    location: Location,
    shard_id: str,
    *,
    delay_seconds: float = 900.0,
    dry_run: bool = False,
    settings: Settings | None = None,
    timeout: float | None = None,
    env: Env | None = None,
) -> ShardVacuum:
    """Deletes the shard's objects that nobody can need any more, and shortens its log.

    That is what died, by a compaction for the most part, `delay_seconds` ago or longer by the
    location's clock, and is held by no reader: one run notes what is dead, one after the delay
    deletes it. Readers without permission to write hold nothing, and have the delay to finish. Of
    a shard that is finished and that nobody reads any more, all parts go. What processes that died
    left of objects that they did not finish goes as well, whichever shard it was for. `timeout`
    (seconds) defaults to a day. Errors: LocationError, Corruption; what was done until then stands.
    """
    given: Any = delay_seconds
    good = isinstance(given, numbers.Real) and not isinstance(given, bool)
    if not good or not 0 <= given < _DELAY_SECONDS_MAX:  # NaN is neither
        raise UsageError(f"delay_seconds={given!r:.200}: pass the seconds to wait, 0 or more")
    shard = Shard(location, shard_id, settings, env)
    deadline = shard.deadline(timeout, LONG_SECONDS)
    try:
        delay = int(delay_seconds * 1_000_000)
        if not dry_run:
            _clear(shard, deadline)
        vacuum = Vacuum(shard.machine, location, shard.env, delay_micros=delay, deadline=deadline)
        if dry_run:
            return vacuum.plan()
        done = vacuum.run()
        clear_leftovers(
            location,
            shard.machine,
            shard.env,
            delay_micros=max(delay, int(shard.settings.grace_seconds * 1_000_000)),
            deadline=deadline,
        )
        return done
    finally:
        shard.close(timeout=shard.settings.timeout_seconds)


def _clear(shard: Shard, deadline: Deadline) -> None:
    """Lets go of the parts of a shard that is over; nothing where it is not."""
    state = shard.machine.refresh(timeout=deadline.remaining())
    if state.meta.upper is not None or state.meta.since is not None:
        return
    keys = shard.machine.run(_needless, state=state, timeout=deadline.remaining())
    for start in range(0, len(keys), _CLEARED):
        command = Clear(tuple(keys[start : start + _CLEARED]))
        shard.machine.submit(command, timeout=deadline.remaining())


def _needless(state: State) -> list[Key]:
    if next(state.holds.range(), None) is not None:
        return []
    return [key for key, _ in state.references.range()]
