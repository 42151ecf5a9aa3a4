"""What a lookout saw, kept between short-lived processes of one user on one machine.

One small file per location and shard in the user's cache directory: a line of JSON and its
checksum. It only ever saves time: a file that is missing, damaged, of another boot (whose monotonic
clock meant something else), of another lease time or of another shard is no observation, and one
that cannot be written is left out.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from strandline.env import Env

__all__ = ["Notebook", "Observation"]

_FORMAT = 1
_log = logging.getLogger("strandline")


@dataclass(frozen=True, slots=True)
class Observation:
    """What one looker knows of a session."""

    count: int
    """How many records it had written."""
    seconds: float
    """The silence since then that is credited."""
    looked: float
    """When the last look was answered, on the looker's monotonic clock."""


class Notebook:
    """Observations on disk. Two processes may use one at once: the later one's file stays."""

    def __init__(self, env: Env, location: str, lease_seconds: float) -> None:
        """`location` is the location's URL; what is in a process's memory is not kept."""
        self._env = env
        self._lease = lease_seconds
        self._location = location
        self._boot = env.boot_id()
        base = env.cache_dir()
        keeps = base is not None and self._boot and not location.startswith("memory:")
        self._folder = base / "lookout" if base is not None and keeps else None

    def read(self, shard: str) -> dict[str, Observation]:
        """What is noted of the shard's sessions; empty where that is not worth anything."""
        path = self._path(shard)
        if path is None:
            return {}
        try:
            data, _, checksum = path.read_bytes().partition(b"\n")
            if checksum != _checksum(data):
                return {}
            noted = json.loads(data)
            if {key: noted[key] for key in self._header(shard)} != self._header(shard):
                return {}
            return {
                str(session): _observation(values, self._env.monotonic())
                for session, values in noted["sessions"].items()
            }
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return {}

    def write(self, shard: str, observations: Mapping[str, Observation]) -> None:
        """Notes what is known of the shard's sessions, in place of what was noted before."""
        path = self._path(shard)
        if path is None:
            return
        try:
            if not observations:
                path.unlink(missing_ok=True)
                return
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            sessions = {s: [o.count, o.seconds, o.looked] for s, o in observations.items()}
            data = json.dumps({**self._header(shard), "sessions": sessions}).encode()
            whole = data + b"\n" + _checksum(data)
            _replace(path, path.with_suffix(f".{self._env.token_hex(8)}"), whole)
        except OSError as error:
            _log.info("observations of shard %s are not kept: %s", shard, error)

    def _header(self, shard: str) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "boot": self._boot,
            "lease": self._lease,
            "location": sha256(self._location.encode()).hexdigest(),
            "shard": shard,
        }

    def _path(self, shard: str) -> Path | None:
        if self._folder is None:
            return None
        name = sha256(f"{self._location}\n{shard}".encode()).hexdigest()[:32]
        return self._folder / f"{name}.json"


def _checksum(data: bytes) -> bytes:
    return sha256(data).hexdigest().encode()


def _observation(values: Any, now: float) -> Observation:
    """The observation; ValueError or TypeError if it cannot be one that was made before now."""
    count, seconds, looked = values
    if type(count) is not int or type(seconds) is not float or type(looked) is not float:
        raise TypeError(values)
    if not (count > 0 and 0.0 <= seconds < float("inf") and looked <= now):  # NaN is none
        raise ValueError(values)
    return Observation(count, seconds, looked)


def _replace(path: Path, temporary: Path, data: bytes) -> None:
    """Puts the file in place as a whole. What a loss of power makes of it is seen."""
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
