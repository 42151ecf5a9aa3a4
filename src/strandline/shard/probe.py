"""The location's clock: what time it gives to an object that is put now."""

from __future__ import annotations

import logging

from strandline.env import Deadline, Env
from strandline.errors import LocationError
from strandline.ids import ObjectKey, SessionId, ShardId, new_probe_id
from strandline.location import Location

__all__ = ["location_time"]

_log = logging.getLogger("strandline")


def location_time(
    location: Location, shard: ShardId, session: SessionId, env: Env, deadline: Deadline
) -> int:
    """Now, by the clock that the location gives its objects; µs since the Unix epoch.

    Puts a tiny object of the session and deletes it. Errors: LocationError.
    """
    blob = location.blob
    key = str(ObjectKey(session, shard, "probe", new_probe_id(env)))
    try:
        blob.put(key, b"", timeout=deadline.remaining())
        for found in blob.list(key, timeout=deadline.remaining()):
            return found.modified
    finally:
        try:
            blob.delete(key, timeout=deadline.remaining())
        except LocationError as error:
            # The sweep of this session finds it.
            _log.warning("%s, which nobody needs, could not be deleted: %s", key, error)
    raise LocationError(
        f"the object {key} was put and is not listed: the location's clock cannot be read",
        may_have_happened=False,
    )
