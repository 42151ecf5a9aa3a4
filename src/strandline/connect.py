"""Opens databases: from a URL to a location, whose marker is checked or put.

Only this module names adapters. docs/design/0003-directory-layout.md says what lies where.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import unquote, urlsplit

from strandline.database import Database
from strandline.env import Deadline, Env, RealEnv, given_seconds
from strandline.errors import Corruption, LocationError, StrandlineError, UsageError
from strandline.ids import (
    MARKER_KEY,
    DatabaseId,
    ShardId,
    new_database_id,
    new_shard_id,
    parse_id,
)
from strandline.location import Blob, BlobExists, BlobMissing, Consensus, Location
from strandline.location.local.blob import FileBlob
from strandline.location.local.temporary import TEMPORARY_DIRECTORY
from strandline.location.memory import MemoryBlob, MemoryConsensus, MemoryStore
from strandline.location.retry import RetryingBlob, RetryingConsensus
from strandline.location.sqlite.consensus import SqliteConsensus
from strandline.settings import Settings
from strandline.state.model import FORMAT
from strandline.txn.handle import Handle, Origin
from strandline.txn.store import Store
from strandline.upkeep.background import open_store

__all__ = [
    "LOG_FILE",
    "Marker",
    "connect",
    "decode_marker",
    "encode_marker",
    "open_blob",
    "open_location",
]

LOG_FILE = "log.sqlite"
"""The log of a database in a directory, beside the objects. No key of an object ends like this."""

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
_SUPPORTED = "memory://NAME, a path, and file://PATH"


def connect(
    url: str | os.PathLike[str],
    *,
    consensus: str | None = None,
    mode: Literal["rw", "r"] = "rw",
    create: bool = True,
    settings: Settings | None = None,
    storage_options: Mapping[str, Any] | None = None,
    timeout: float | None = None,
) -> Database:
    """Opens the database at `url`; an empty or missing directory becomes one.

    `url` is a path, `file://PATH`, or `memory://NAME` (one per name and process; `memory://` alone
    is a new one each time). `mode="r"` writes nothing at all, not even a missing database, and
    needs no permission to. `create=False` refuses where there is none. `consensus` and
    `storage_options` are for locations in object stores, which are not there yet. `timeout` is in
    seconds, for opening; later calls take `settings.timeout_seconds`.

    Raises `UsageError` for a place that is not a database or of a newer format, `Corruption` for
    a damaged marker or a lost log, `LocationError` where the storage fails.
    """
    _check_options(mode, consensus, storage_options)
    chosen = settings or Settings()
    place = _place(url)
    # What is in memory has no address, where it has no name: it is opened again by itself.
    reopen = _reopen if place.leaves_process else partial(_reopen_at, place)
    origin = Origin(place.url, mode, chosen, reopen, place.leaves_process)
    limit = chosen.timeout_seconds if timeout is None else given_seconds(timeout, "timeout")
    return Database(Handle(_open(place, origin, create=create, timeout=limit), origin))


def _check_options(
    mode: str, consensus: str | None, storage_options: Mapping[str, object] | None
) -> None:
    if mode not in {"rw", "r"}:
        raise UsageError(f'mode={mode!r}: pass "rw" to read and write, or "r" to read only')
    if storage_options:
        raise UsageError(f"storage_options are for object stores; supported are {_SUPPORTED}")
    if consensus is not None:
        raise UsageError(
            f"consensus={consensus!r}: the log of a directory is a file in it, and that of "
            "memory:// in memory; leave consensus= out"
        )


def open_location(
    url: str | os.PathLike[str],
    *,
    consensus: str | None = None,
    mode: Literal["rw", "r"] = "rw",
    create: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    timeout: float | None = None,
) -> Location:
    """The place at `url` for shards by themselves (`strandline.shard`): no database is made.

    Arguments as those of `connect`; an empty or missing directory becomes a location. Where there
    is a database it is that one's location: shards of your own may lie beside its tables. To be
    closed when all that was opened in it is.

    Raises `UsageError` for a place that holds something else or, with `create=False` or
    `mode="r"`, nothing; `Corruption` for a damaged marker or a lost log; `LocationError`.
    """
    _check_options(mode, consensus, storage_options)
    env = RealEnv()
    deadline = Deadline.of(env, timeout, Settings().timeout_seconds)
    place = _place(url)
    read_only = mode == "r"
    blob = _blob(place, env)
    marker = _marker(place, blob, deadline)
    if not place.log_is_there():
        _check_making(place, "nothing", "pass create=True", read_only=read_only, create=create)
    # Without a marker the log may be one that somebody was stopped in making.
    make = marker is None and create and not read_only
    log = _log(place, env, deadline, read_only=read_only, create=make)
    txns = "" if marker is None else marker.txns
    return Location(blob, log, place.url, place.consensus_url, read_only, txns)


def _reopen(origin: Origin) -> Store:
    """The same database, opened once more, perhaps by another process."""
    return _reopen_at(_place(origin.url), origin)


def _reopen_at(place: _Place, origin: Origin) -> Store:
    return _open(place, origin, create=False, timeout=origin.settings.timeout_seconds)


def open_blob(url: str, env: Env) -> Blob:
    """The objects of the database at `url`, without its log: for workers that only move data."""
    return _blob(_place(url), env)


# --- places


class _Place(Protocol):
    """Where a database is or shall be: what each kind of location knows to do."""

    url: str
    consensus_url: str
    leaves_process: bool
    """Whether another process can reach it."""

    def blob(self, env: Env) -> Blob:
        """The objects."""

    def consensus(self, env: Env, *, read_only: bool, create: bool, timeout: float) -> Consensus:
        """The log."""

    def log_is_there(self) -> bool:
        """Whether the log of a database that has a marker is where it has to be."""

    def check_free(self) -> None:
        """UsageError where there is no marker but something else: that is no database to be."""


class _Memory:
    """Objects and log in this process."""

    leaves_process = False

    def __init__(self, url: str, name: str) -> None:
        self.url = self.consensus_url = url
        self._store = MemoryStore.named(name) if name else MemoryStore()

    def blob(self, env: Env) -> Blob:
        return MemoryBlob(self._store, env)

    def consensus(self, env: Env, *, read_only: bool, create: bool, timeout: float) -> Consensus:
        return MemoryConsensus(self._store)

    def log_is_there(self) -> bool:
        return True

    def check_free(self) -> None:
        """Nothing else can be in memory."""


class _Directory:
    """Objects as files in a directory, and the log as one more beside them."""

    leaves_process = True

    def __init__(self, path: str) -> None:
        # Not by pathlib, which keeps "..", and raises where no home directory is known.
        self.url = os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111  as said
        self._log = str(Path(self.url, LOG_FILE))
        self.consensus_url = f"sqlite:{self._log}"

    def blob(self, env: Env) -> Blob:
        return FileBlob(self.url, env)

    def consensus(self, env: Env, *, read_only: bool, create: bool, timeout: float) -> Consensus:
        mode: Literal["r", "w"] = "r" if read_only else "w"
        return SqliteConsensus(self._log, env, mode=mode, create=create, timeout=timeout)

    def log_is_there(self) -> bool:
        return os.path.exists(self._log)  # noqa: PTH110  a Path raises where it may not look

    def check_free(self) -> None:
        try:
            names = [path.name for path in Path(self.url).iterdir()]
        except FileNotFoundError:
            return
        except NotADirectoryError:
            raise UsageError(
                f"{self.url} is a file; a database is a directory, pass another path"
            ) from None
        except OSError as error:
            raise LocationError(
                f"cannot look into {self.url}: {error.strerror}", may_have_happened=False
            ) from error
        # Left by one who was stopped while making a database here, or is just making it.
        ours = {MARKER_KEY, TEMPORARY_DIRECTORY}
        others = sorted(n for n in names if n not in ours and not n.startswith(LOG_FILE))
        if others:
            shown = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
            raise UsageError(
                f"{self.url} is not a database: it has no {MARKER_KEY}, but holds {shown}; "
                "pass an empty or new directory"
            )


def _place(url: object) -> _Place:
    text = os.fspath(url) if isinstance(url, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise UsageError(f"{url!r} is no place for a database; supported are {_SUPPORTED}")
    found = _SCHEME.match(text)
    scheme = found[1].lower() if found and isinstance(url, str) else ""
    if scheme == "memory":
        return _Memory(text, text[len("memory://") :])
    if scheme == "file":
        return _Directory(_path_of(text))
    if scheme:
        raise UsageError(f"{scheme}:// is not supported; supported are {_SUPPORTED}")
    return _Directory(text)


def _path_of(url: str) -> str:
    split = urlsplit(url)
    if split.netloc not in {"", "localhost"} or not split.path or split.query or split.fragment:
        raise UsageError(
            f"{url!r} is no path on this machine; write file:///absolute/path, "
            "with % escapes for ? and #"
        )
    return unquote(split.path)


# --- the marker


@dataclass(frozen=True, slots=True)
class Marker:
    """What makes a place a database: which one it is, and where its history begins."""

    database: DatabaseId
    txns: ShardId
    """The txns shard."""
    format: int = FORMAT


def encode_marker(marker: Marker) -> bytes:
    """The marker as JSON with a checksum of the rest; one line per field, for people."""
    fields = {"database": marker.database, "format": marker.format, "txns": marker.txns}
    fields["checksum"] = _checksum(fields)
    return (json.dumps(fields, indent=1, sort_keys=True) + "\n").encode()


def decode_marker(data: bytes, url: str) -> Marker:
    """The marker of the database at `url`.

    Raises `Corruption` if the bytes are not what was written, `UsageError` for a newer format. The
    checksum's rule is the same in every format, so that damage never looks like a newer one.
    """
    try:
        fields = json.loads(data)
        good = fields.pop("checksum") == _checksum(fields) and isinstance(fields["format"], int)
    except (ValueError, LookupError, TypeError, AttributeError):
        good = False
    if not good:
        raise Corruption(
            f"the object {MARKER_KEY} of {url} is damaged; restore it from a copy",
            object=MARKER_KEY,
        )
    if fields["format"] > FORMAT:
        raise UsageError(
            f"{url} has format {fields['format']}, and this version of Strandline knows formats "
            f"up to {FORMAT}; install a newer version"
        )
    database, txns = parse_id(fields["database"], "d"), parse_id(fields["txns"], "s")
    return Marker(DatabaseId(database), ShardId(txns), fields["format"])


def _checksum(fields: Mapping[str, object]) -> str:
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    return f"crc32:{zlib.crc32(canonical):08x}"


# --- opening


def _open(place: _Place, origin: Origin, *, create: bool, timeout: float) -> Store:
    env = RealEnv()
    deadline = Deadline(env, timeout)
    read_only = origin.mode == "r"
    blob = _blob(place, env)
    marker = _marker(place, blob, deadline) or _marker_of_records(place, blob, env, deadline)
    if marker is None:
        remedy = "connect with create=True"
        _check_making(place, "no database", remedy, read_only=read_only, create=create)
    # SUBTLE: the log is made before the marker, so that a marker without a log is always damage
    # and never the work of somebody who was stopped in between.
    consensus = _log(place, env, deadline, read_only=read_only, create=marker is None)
    try:
        if marker is None:
            marker = _put_marker(place, blob, env, deadline)
        location = Location(blob, consensus, place.url, place.consensus_url, read_only, marker.txns)
        store = open_store(location, marker.database, marker.txns, env, origin.settings)
        store.txns.look(deadline)
    except BaseException:
        consensus.close()
        raise
    return store


def _blob(place: _Place, env: Env) -> Blob:
    """The objects; what fails is tried again where it may pass, as in the simulator."""
    return RetryingBlob(place.blob(env), env)


def _log(
    place: _Place, env: Env, deadline: Deadline, *, read_only: bool, create: bool
) -> Consensus:
    """The log, in the same way."""
    timeout = deadline.remaining()
    log = place.consensus(env, read_only=read_only, create=create, timeout=timeout)
    return RetryingConsensus(log, env)


def _check_making(place: _Place, there: str, remedy: str, *, read_only: bool, create: bool) -> None:
    """UsageError where nothing can be made, or is not to be; `there` is what is at the place."""
    place.check_free()
    if read_only or not create:
        remedy = "open it with mode='rw' first" if create else remedy
        raise UsageError(f"there is {there} at {place.url}; {remedy}")


def _marker(place: _Place, blob: Blob, deadline: Deadline) -> Marker | None:
    """The marker; Corruption if it is there and the log is not."""
    try:
        data = blob.get(MARKER_KEY, timeout=deadline.remaining())
    except BlobMissing:
        return None
    marker = decode_marker(data, place.url)
    if not place.log_is_there():
        raise Corruption(
            f"the log of the database {place.url} is missing: {place.consensus_url}; restore it "
            "from a copy",
            object=LOG_FILE,
        )
    return marker


def _marker_of_records(place: _Place, blob: Blob, env: Env, deadline: Deadline) -> Marker | None:
    """The marker of a place that had none a moment ago; Corruption if its log has records.

    SUBTLE: nobody writes a record before there is a marker. So records without one are a database
    whose marker was lost; were another one put, all that was committed would be gone.
    """
    if not place.log_is_there():
        return None
    try:
        consensus = _log(place, env, deadline, read_only=True, create=False)
    except StrandlineError:
        return None  # not a log, or not one yet: whoever opens it in earnest says so
    try:
        records = bool(consensus.keys(timeout=deadline.remaining()))
    finally:
        consensus.close()
    found = _marker(place, blob, deadline) if records else None
    if records and found is None:
        raise Corruption(
            f"the object {MARKER_KEY} of {place.url} is missing, but its log has records; restore "
            "it from a copy (or, if there are only shards without a database, use open_location)",
            object=MARKER_KEY,
        )
    return found


def _put_marker(place: _Place, blob: Blob, env: Env, deadline: Deadline) -> Marker:
    """Puts a marker; of several that are put at once one wins, and whichever is there counts."""
    mine = Marker(new_database_id(env), new_shard_id(env))
    failed: LocationError | None = None
    try:
        blob.put(MARKER_KEY, encode_marker(mine), timeout=deadline.remaining())
    except BlobExists:
        pass
    except LocationError as error:
        # It may have happened all the same: what is there now says.
        failed = error
    found = _marker(place, blob, deadline)
    if found is None:
        raise failed or LocationError(f"the marker put at {place.url} is gone again")
    return found
