"""Where tasks work: the driver's database, and in each worker what is opened by its address."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from strandline.connect import connect, decode_marker, open_blob
from strandline.database import Database
from strandline.env import Deadline, RealEnv
from strandline.errors import UsageError
from strandline.ids import MARKER_KEY, ObjectKey, SessionId, ShardId, new_part_id
from strandline.location import Blob, BlobMissing
from strandline.parts.files.footer import Identity
from strandline.parts.files.read import PartReader
from strandline.parts.schema import TableSchema
from strandline.parts.typed import typed
from strandline.settings import Settings
from strandline.shard.merging import Workshop
from strandline.state.model import TableVersion
from strandline.times import parse_as_of
from strandline.txn.handle import Handle
from strandline.txn.store import Store

__all__ = [
    "PATIENCE_SECONDS",
    "Site",
    "TableVersion",
    "TaskRunner",
    "Workplace",
    "check_reachable",
    "checked_database",
    "deadline_of",
    "for_tasks",
    "handle_of",
    "moment_of",
    "opened",
    "schema_of",
    "table_of",
    "workplace",
]

_IO_SECONDS = 3600.0
"""For one part to be read or written in a task; the engine itself sees to tasks that hang."""

PATIENCE_SECONDS = 7 * 86_400.0
"""How long a job may take that is given no `timeout=`: as long as its data need."""

R = TypeVar("R")


class TaskRunner(Protocol):
    """What an engine has to bring: it runs tasks side by side, wherever it likes."""

    def __call__(self, tasks: Sequence[Callable[[], R]], /) -> Iterable[R]:
        """The tasks' results, in any order; raises the error of a task. Both go through pickles. A
        task may be tried again: of several attempts one result counts.
        """


# --- on the driver


def checked_database(db: object) -> Database:
    """What was passed as a database; UsageError if it is none."""
    if not isinstance(db, Database):
        raise UsageError(f"{db!r} is no database: pass what strandline.connect returned")
    return db


def handle_of(db: object) -> Handle:
    """The open database behind what users hold."""
    return checked_database(db)._handle  # noqa: SLF001  here users' objects are opened, and only here


def moment_of(db: Database, as_of: object = None) -> int | None:
    """The time to read as of, in µs: what a user passed, or that of `db`; None: the latest."""
    return db._as_of if as_of is None else parse_as_of(as_of)  # noqa: SLF001  as above


def deadline_of(db: Database, timeout: float | None) -> Deadline:
    """By when a call has to be done that was given `timeout=` (seconds; None: the database's)."""
    return handle_of(db).deadline(timeout)


def table_of(
    db: Database, name: str, *, as_of: object = None, deadline: Deadline | None = None
) -> TableVersion:
    """A table as it is at a moment (None: that of `db`), as plain data. Errors: UnknownTable."""
    moment, txns = moment_of(db, as_of), handle_of(db).store.txns
    return txns.table(txns.look(deadline), name, moment)


def schema_of(version: TableVersion) -> TableSchema:
    """The columns of a table and which of them are its keys."""
    return typed(version)[0]


def check_reachable(url: str) -> None:
    """UsageError if no other process reaches the database at that address."""
    if url.lower().startswith("memory:"):
        raise UsageError(
            f"the database {url} lives in the memory of this process, where tasks in others do not "
            "reach it; use a directory"
        )


# --- in a task


@dataclass(frozen=True)
class Site:
    """A table's place and the session that tasks write under, as plain data."""

    url: str
    settings: Settings
    version: TableVersion
    identity: Identity

    @classmethod
    def of(cls, store: Store, version: TableVersion, session: SessionId, token: str = "") -> Site:
        """The site of a table whose parts are written under that session, which somebody keeps
        alive; UsageError if no other process can reach it.
        """
        url = store.location.url
        check_reachable(url)
        identity = store.identity(version, session, token)
        for machine in (store.txns.machine, store.data(version.table)):
            if machine.session == session:
                machine.own.lends()  # of several attempts of a task one counts
        return cls(url, for_tasks(store.settings), version, identity)

    def workplace(self) -> Workplace:
        """The site in this process."""
        return workplace(self.url, self.settings)

    def new_part_key(self) -> str:
        """A key that no other attempt of any task draws, under the driver's session."""
        env = self.workplace().env
        session, shard = SessionId(self.identity.session), ShardId(self.version.table)
        return str(ObjectKey(session, shard, "part", new_part_id(env)))

    def workshop(self) -> Workshop:
        """What a compaction job needs here."""
        place = self.workplace()
        return Workshop(
            blob=place.blob,
            reader=place.reader,
            env=place.env,
            settings=self.settings,
            version=self.version,
            identity=self.identity,
            new_key=self.new_part_key,
            threads=1,
        )


def for_tasks(settings: Settings) -> Settings:
    """The settings of a driver for its tasks: they run side by side, each on one core."""
    return replace(settings, threads=1)


@dataclass(frozen=True)
class Workplace:
    """The objects of one location as a worker process has them open."""

    env: RealEnv
    blob: Blob
    reader: PartReader

    def deadline(self) -> Deadline:
        """By when the next part has to be read or written."""
        return Deadline(self.env, _IO_SECONDS)


_workplaces: dict[str, Workplace] = {}
os.register_at_fork(after_in_child=_workplaces.clear)  # threads do not go along


def workplace(url: str, settings: Settings) -> Workplace:
    """The objects of the database at that address, opened once per process."""
    found = _workplaces.get(url)
    if found is None:
        env = RealEnv(threads=4)
        blob = open_blob(url, env)
        found = _workplaces[url] = Workplace(env, blob, PartReader(blob, settings, env))
    return found


_opened: dict[str, Database] = {}


def opened(url: str) -> Database:
    """The database at that address, for reading, opened once per process."""
    found = _opened.get(url)
    if found is not None and not _is_there(handle_of(found)):
        del _opened[url]
        found.close()
        found = None
    if found is None:
        found = _opened[url] = connect(url, mode="r", create=False)
    return found


def _is_there(handle: Handle) -> bool:
    """Whether the place still has the same database: a worker may outlive a directory."""
    store = handle.store
    try:
        data = store.location.blob.get(MARKER_KEY, timeout=store.settings.timeout_seconds)
    except BlobMissing:
        return False
    return decode_marker(data, handle.origin.url).database == store.database
