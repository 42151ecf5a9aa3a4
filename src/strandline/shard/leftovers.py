"""What processes that died left of objects that they did not finish."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.env import Deadline, Env
from strandline.location import BlobInfo, Location
from strandline.shard.machine import Machine
from strandline.shard.probe import location_time

__all__ = ["clear_leftovers"]


def clear_leftovers(
    location: Location,
    machine: Machine,
    env: Env,
    *,
    delay_micros: int,
    deadline: Deadline,
    dry_run: bool = False,
) -> Sequence[BlobInfo]:
    """Deletes what did not change for that long and nobody writes to; what it was.

    `machine`: whose session looks at the location's clock, if there is anything. With `dry_run`
    nothing is written. Errors: LocationError; what was deleted until then was nobody's.
    """
    now = env.now_micros()
    if dry_run:
        return _before(location, now - delay_micros, deadline, delete=False)
    # Most locations have none, and need not be asked for their time.
    if not _before(location, now, deadline, delete=False):
        return ()
    machine.live_session(deadline, brief=True)
    now = location_time(location, machine, env, deadline)
    return _before(location, now - delay_micros, deadline, delete=True)


def _before(
    location: Location, time: int, deadline: Deadline, *, delete: bool
) -> Sequence[BlobInfo]:
    return location.blob.leftovers(time, delete=delete, timeout=deadline.remaining())
