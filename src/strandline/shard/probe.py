"""The location's clock: what time it gives to an object that is put now."""

from __future__ import annotations

import logging

from strandline.env import Deadline, Env
from strandline.errors import LocationError
from strandline.ids import ObjectKey, new_probe_id
from strandline.location import Blob, Location
from strandline.location.retry import each_try
from strandline.shard.machine import Machine

__all__ = ["location_time"]

_log = logging.getLogger("strandline")


def location_time(location: Location, machine: Machine, env: Env, deadline: Deadline) -> int:
    """Now, by the clock that the location gives its objects; µs since the Unix epoch.

    Puts a tiny object of the machine's session and deletes it. Errors: LocationError.
    """
    blob = location.blob

    def put(once: Blob, left: float) -> str:
        # SUBTLE: a try that was not answered may arrive after all, also behind a later one and the
        # deletion. So each has a name of its own, and the sweep of this session looks for those.
        key = str(ObjectKey(machine.session, machine.shard, "probe", new_probe_id(env)))
        try:
            once.put(key, b"", timeout=left)
        except BaseException as error:
            if not isinstance(error, LocationError) or error.may_have_happened:
                machine.own.begins(key)
            raise
        return key

    key = each_try(blob, put, deadline.remaining())
    try:
        for found in blob.list(key, timeout=deadline.remaining()):
            return found.modified
    finally:
        try:
            blob.delete(key, timeout=deadline.remaining())
        except LocationError as error:
            _log.warning("%s, which nobody needs, could not be deleted: %s", key, error)
            machine.own.begins(key)
    raise LocationError(
        f"the object {key} was put and is not listed: the location's clock cannot be read",
        may_have_happened=False,
    )
