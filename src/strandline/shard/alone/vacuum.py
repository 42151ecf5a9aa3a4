"""Vacuum of a shard that is used by itself."""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from strandline.env import LONG_SECONDS, Deadline, Env
from strandline.errors import UsageError
from strandline.ids import ObjectKey
from strandline.location import Location
from strandline.settings import Settings
from strandline.shard.alone.shard import Shard
from strandline.shard.leftovers import clear_leftovers
from strandline.shard.sweeping import Sweep, needed_by, sweep_sessions
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
    a shard that is finished and that nobody reads any more, all parts go. Readers and writers that
    were silent for the lease time (`Settings.lease_seconds`) are ended, and what ended sessions
    wrote that nothing needs is deleted. What processes that died
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
            shard.machine.look(deadline)
            shard.look_out(deadline)
            _clear(shard, deadline)
        vacuum = Vacuum(shard.machine, location, shard.env, delay_micros=delay, deadline=deadline)
        if dry_run:
            plan = vacuum.plan()
            return replace(plan, swept=_swept(shard, delay, deadline, dry_run=True))
        done = vacuum.run()
        swept = _swept(shard, delay, deadline, dry_run=False)
        clear_leftovers(
            location,
            shard.machine,
            shard.env,
            delay_micros=max(delay, int(shard.settings.grace_seconds * 1_000_000)),
            deadline=deadline,
        )
        return replace(done, swept=swept)
    finally:
        shard.close()


def _swept(shard: Shard, delay_micros: int, deadline: Deadline, *, dry_run: bool) -> Sweep | None:
    """Deletes what ended sessions left, and nothing needs; None for a shard of a database."""
    if shard.is_of_database:
        return None

    def needed(keys: Iterable[ObjectKey]) -> tuple[set[str], set[str]]:
        location, env = shard.location, shard.env
        return needed_by(shard.machine, shard.another, keys, location, env, deadline)

    return sweep_sessions(
        [shard.machine],
        needed,
        shard.location,
        shard.env,
        delay_micros=delay_micros,
        deadline=deadline,
        dry_run=dry_run,
    )


def _clear(shard: Shard, deadline: Deadline) -> None:
    """Lets go of the parts of a shard that is over; nothing where it is not."""
    look = shard.machine.look(deadline)
    if look.meta.upper is not None or look.meta.since is not None:
        return
    keys = look.ask(_needless)
    for start in range(0, len(keys), _CLEARED):
        command = Clear(tuple(keys[start : start + _CLEARED]))
        shard.machine.submit(command, deadline)


def _needless(state: State) -> list[Key]:
    if next(state.holds.range(), None) is not None:
        return []
    return [key for key, _ in state.references.range()]
