"""What an executor needs to work on a database: where it is, and under whose session it writes.

A `Site` travels with the tasks. In each Python worker it opens the objects once; the log is the
driver's business alone, which plans and commits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from strandline.connect import open_blob
from strandline.database import Database
from strandline.env import Deadline, RealEnv
from strandline.errors import Corruption, SchemaMismatch, StrandlineError, UsageError
from strandline.ids import ObjectKey, SessionId, ShardId, new_part_id
from strandline.location import Blob
from strandline.parts.files.footer import Identity
from strandline.parts.files.read import PartReader
from strandline.settings import Settings
from strandline.shard.merging import Workshop
from strandline.state.model import TableVersion
from strandline.txn.handle import Handle
from strandline.txn.store import Store

__all__ = [
    "PATIENCE_SECONDS",
    "RESULT",
    "Site",
    "Workplace",
    "checked_results",
    "guarded",
    "handle_of",
    "raise_error",
    "result_batch",
]

IO_TIMEOUT_SECONDS = 3600.0
"""For one part to be read or written in a task; Spark itself sees to tasks that hang."""

PATIENCE_SECONDS = 7 * 86_400.0
"""How long a Spark job may take that is given no `timeout=`: as long as its data need."""


@dataclass(frozen=True)
class Site:
    """A table's place, as plain data."""

    url: str
    settings: Settings
    version: TableVersion
    identity: Identity

    @classmethod
    def of(cls, handle: Handle, version: TableVersion) -> Site:
        """The site of a table; `UsageError` if no other process can reach it."""
        return cls.of_store(handle.store, version)

    @classmethod
    def of_store(
        cls,
        store: Store,
        version: TableVersion,
        session: SessionId | None = None,
        token: str = "",
    ) -> Site:
        """The same from what lies below a handle. Tasks write under that session; None: the one
        that commits.
        """
        url = store.location.url
        if url.startswith("memory:"):
            raise UsageError(
                f"the database {url} lives in the memory of this process, where Spark's executors "
                "do not reach it; use a directory"
            )
        # Spark runs tasks side by side; each of them works on one core.
        settings = replace(store.settings, threads=1)
        identity = store.identity(version, session or store.session, token)
        for machine in (store.txns.machine, store.data(version.table)):
            if machine.session == session:
                machine.own.lends()  # of several attempts of a task one counts
        return cls(url, settings, version, identity)

    def workplace(self) -> Workplace:
        """The site in this process; opened once."""
        found = _workplaces.get(self.url)
        if found is None:
            env = RealEnv(threads=4)
            blob = open_blob(self.url, env)
            found = Workplace(env, blob, PartReader(blob, self.settings, env))
            _workplaces[self.url] = found
        return found

    def new_part_key(self) -> str:
        """A key that no other attempt of any task draws, under the driver's session."""
        env = self.workplace().env
        session, shard = SessionId(self.identity.session), ShardId(self.version.table)
        return str(ObjectKey(session, shard, "part", new_part_id(env)))

    def deadline(self) -> Deadline:
        """By when the next part has to be read or written."""
        return Deadline(self.workplace().env, IO_TIMEOUT_SECONDS)

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


@dataclass(frozen=True)
class Workplace:
    """One location as a worker process has it open."""

    env: RealEnv
    blob: Blob
    reader: PartReader


_workplaces: dict[str, Workplace] = {}


def handle_of(db: Database) -> Handle:
    """The open database behind what users hold."""
    if not isinstance(db, Database):
        raise UsageError(f"{db!r} is no database: pass what strandline.connect returned")
    return db._handle  # noqa: SLF001  the shells' one door


_FINAL: dict[str, Callable[[str, str], StrandlineError]] = {
    "schema-mismatch": lambda text, _: SchemaMismatch(text),
    "usage": lambda text, _: UsageError(text),
    "corruption": lambda text, what: Corruption(text, object=what),
}


def guarded(work: Callable[[], bytes]) -> tuple[bytes | None, str | None]:
    """What a task returns: its result, or an error that trying again does not help.

    Such an error is handed over as data, so that Spark does not repeat the task and the driver
    raises the error itself, not Spark's account of it.
    """
    try:
        return work(), None
    except (UsageError, Corruption) as error:
        kind = error.kind if error.kind in _FINAL else "usage"
        return None, f"{kind}\n{getattr(error, 'object', '')}\n{error}"


def raise_error(said: str | None) -> None:
    """Raises the error that a task returned, if it did."""
    if said is not None:
        kind, what, text = said.split("\n", 2)
        raise _FINAL[kind](text, what)


def checked_results(rows: list[Any]) -> list[bytes]:
    """The results of all tasks; raises the first error among them."""
    for row in rows:
        raise_error(row.error)
    return [bytes(row.result) for row in rows if row.result is not None]


def result_batch(result: bytes | None, error: str | None) -> pa.RecordBatch:
    """What a task returns, as Spark takes it."""
    arrays = [pa.array([result], pa.binary()), pa.array([error], pa.string())]
    return pa.RecordBatch.from_arrays(arrays, ["result", "error"])


RESULT = "result binary, error string"
"""The columns in which tasks return results."""
