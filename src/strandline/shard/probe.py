"""The location's clock: what time it gives to an object that is put now."""

from __future__ import annotations

import logging

from strandline.env import Deadline, Env
from strandline.errors import LocationError
from strandline.ids import ObjectKey, new_probe_id
from strandline.location import Location
from strandline.shard.machine import Machine

__all__ = ["location_time"]

_log = logging.getLogger("strandline")


def location_time(location: Location, machine: Machine, env: Env, deadline: Deadline) -> int:
    """Now, by the clock that the location gives its objects; µs since the Unix epoch.

    Puts a tiny object of the machine's session and deletes it. Errors: LocationError.
    """
    blob = location.blob
    key = str(ObjectKey(machine.session, machine.shard, "probe", new_probe_id(env)))
    was_put = was_deleted = False
    try:
        blob.put(key, b"", timeout=deadline.remaining())
        was_put = True
        for found in blob.list(key, timeout=deadline.remaining()):
            return found.modified
    finally:
        try:
            blob.delete(key, timeout=deadline.remaining())
            was_deleted = True
        except LocationError as error:
            _log.warning("%s, which nobody needs, could not be deleted: %s", key, error)
        if not (was_put and was_deleted):
            # It may be there, or be under way still: the sweep of this session finds it.
            machine.begins(key)
    raise LocationError(
        f"the object {key} was put and is not listed: the location's clock cannot be read",
        may_have_happened=False,
    )
