"""One shard used by itself: what its handles share, and what its rows look like."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from strandline import ids
from strandline.env import Deadline, Env, RealEnv
from strandline.errors import SchemaMismatch, StrandlineError, UsageError
from strandline.ids import ObjectKey, SessionId, ShardId, new_part_id, new_session_id, parse_id
from strandline.location import Location
from strandline.parts.files.footer import Identity
from strandline.parts.files.read import PartReader
from strandline.parts.schema import TableSchema, key_columns, new_schema
from strandline.settings import Settings
from strandline.shard.leases import Lookout, Pulse
from strandline.shard.look import Look
from strandline.shard.machine import Machine
from strandline.shard.notebook import Notebook
from strandline.state.commands import Describe
from strandline.state.model import TableVersion

__all__ = ["Shard", "check_name", "check_place", "new_shard_id"]

_NAME_MAX = 1_000
_log = logging.getLogger("strandline")


def new_shard_id() -> str:
    """An id for a new shard, that no other call returns."""
    return ids.new_shard_id(RealEnv())


def check_name(name: Any, what: str) -> None:
    """UsageError unless that is a name: a printable text that is not too long."""
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= _NAME_MAX:
        raise UsageError(
            f"{what}={name!r:.200}: pass a name, a printable text of at most {_NAME_MAX} characters"
        )


def check_place(location: Any, settings: Any) -> None:
    """UsageError unless these are a location, and settings or None."""
    if not isinstance(location, Location):
        raise UsageError(
            f"location={location!r:.200}: pass a location, as strandline.open_location returns it"
        )
    if settings is not None and not isinstance(settings, Settings):
        raise UsageError(f"settings={settings!r:.200}: pass strandline.Settings, or leave them out")


class Shard:
    """A shard as one process uses it. Thread-safe; not for use in a fork of the process."""

    schema: TableSchema

    def __init__(
        self,
        location: Location,
        shard_id: str,
        settings: Settings | None,
        env: Env | None,
        machine: Machine | None = None,
    ) -> None:
        """`machine`: the one to use, if the process has one; it is closed with this shard."""
        self.id = ShardId(parse_id(shard_id, "s"))
        check_place(location, settings)
        self.location = location
        self.env = env or RealEnv()
        self.settings = settings or Settings()
        self.machine = machine or self._machine(self.id)
        self.reader = PartReader(location.blob, self.settings, self.env)
        self.pulse = Pulse(self.env, self.settings)
        notebook = Notebook(self.env, location.url, self.settings.lease_seconds)
        self._lookout = Lookout(self.env, self.settings, notebook)
        self.closed = False
        self._users = 0
        self._lock = threading.Lock()

    def _machine(self, shard: ShardId) -> Machine:
        # Without background work of its own: who writes the record that makes a rollup due writes
        # the rollup.
        settings = replace(self.settings, background=False)
        return Machine(self.location, shard, new_session_id(self.env), self.env, settings)

    # --- what it is

    def open(
        self,
        schema: pa.Schema | None,
        row_keys: Sequence[str] | str | None,
        deadline: Deadline,
    ) -> None:
        """Finds out what the rows look like, or says it, if nobody did so far.

        UsageError, SchemaMismatch as told at `open_shard`.
        """
        given: Any = schema
        if given is not None and not isinstance(given, pa.Schema):
            raise UsageError(f"schema={given!r:.200}: pass an Arrow schema, or leave it out")
        look = self.machine.look(deadline)
        if look.meta.upper is None and look.meta.since is None:
            raise UsageError(f"shard {self.id} is finished and deleted: nothing of it is left")
        version = self._described(look)
        if version is None:
            self._check_free(look, deadline)
            version = self._describe(schema, row_keys, deadline)
        self.schema = TableSchema.from_version(version)
        if schema is not None:
            self._check_same(schema, row_keys)

    def describe_from(self, deadline: Deadline) -> None:
        """The same for a shard that has to be there."""
        self.open(None, None, deadline)

    def _described(self, look: Look) -> TableVersion | None:
        key = (str(self.id), 1)
        return look.ask(lambda s: s.tables.get(key))

    def _check_free(self, look: Look, deadline: Deadline) -> None:
        """UsageError if the shard is a database's, or a txns shard: those are not opened here."""
        if look.meta.origin == "commits":
            raise UsageError(
                f"shard {self.id} is a txns shard; open it with strandline.txn.TxnsHandle"
            )
        owner = look.meta.origin == "txns" or self.id == self.location.txns
        if not owner and self.location.txns:
            # A new table's shard has no record yet; only the database knows of it.
            txns = self._machine(ShardId(self.location.txns))
            seen = txns.look(deadline)
            found = seen.ask(lambda s: next(iter(s.tables.prefix((str(self.id),))), None))
            owner = found is not None
        if owner:
            raise UsageError(
                f"shard {self.id} belongs to the database {self.location.url}; open that with "
                "strandline.connect, and read and write the table"
            )

    def _describe(
        self,
        schema: pa.Schema | None,
        row_keys: Sequence[str] | str | None,
        deadline: Deadline,
    ) -> TableVersion:
        if schema is None:
            raise UsageError(
                f"there is no shard {self.id} at {self.location.url} yet; pass schema=, the Arrow "
                "schema of its rows, to make it"
            )
        new = new_schema(schema, key_columns(schema) if row_keys is None else row_keys)
        version = TableVersion(self.id, 1, "", 0, None, 0, "rows", new.to_bytes(), new.row_keys)
        # Of several that say so at once, one is first.
        return self.machine.submit(Describe(version), deadline)

    def _check_same(self, schema: pa.Schema, row_keys: Sequence[str] | str | None) -> None:
        mine = self.schema
        given: pa.Schema = schema
        keys: tuple[str, ...] = ()
        if set(schema.names) == set(mine.arrow.names):
            same = new_schema(schema, mine.row_keys if row_keys is None else row_keys)
            given, keys = same.arrow, same.row_keys
        if given == mine.arrow and keys == mine.row_keys:
            return
        raise SchemaMismatch(
            f"shard {self.id} has the columns {_shown(mine.arrow)} and the row keys "
            f"{mine.row_keys}, not {_shown(given)} and {keys}; leave schema= out to "
            "take it as it is"
        )

    # --- what handles need

    def deadline(self, timeout: float | None, default: float | None = None) -> Deadline:
        """By when a call that was given `timeout=` has to be done. UsageError if it is no time."""
        seconds = self.settings.timeout_seconds if default is None else default
        return Deadline.of(self.env, timeout, seconds)

    def look_out(self, deadline: Deadline) -> None:
        """Looks once at who has been silent for long: readers and writers that died end so.

        A look that fails is logged: it has seen nothing. A database looks after its own.
        """
        if self.location.read_only or self.is_of_database:
            return
        try:
            self._lookout.look(self.machine, deadline)
        except StrandlineError as error:
            _log.warning("no look at the sessions of shard %s: %s", self.id, error)

    @property
    def is_of_database(self) -> bool:
        """Whether a database has the shard, as far as its newest known state tells."""
        meta = self.machine.state.meta
        return self.id == self.location.txns or (meta.origin == "txns" and not meta.owner)

    def another(self, shard_id: str) -> Machine:
        """Another shard of the location, to read its state."""
        return self._machine(ShardId(shard_id))

    def new_part_key(self, session: SessionId) -> str:
        """A key for a part that the session is about to write."""
        key = str(ObjectKey(session, self.id, "part", new_part_id(self.env)))
        self.machine.own.begins(key)
        return key

    def identity(self, session: SessionId, token: str = "") -> Identity:
        """What goes into the footers of the shard's parts. They belong to no database."""
        return Identity("", self.id, "", session, self.id, token)

    def use(self) -> None:
        """One more handle needs what is open here."""
        with self._lock:
            self._users += 1

    def let_go(self, deadline: Deadline) -> None:
        """One handle less: after the last one the session ends."""
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self.close(deadline)

    def close(self, deadline: Deadline | None = None) -> None:
        """Ends the session, if there is one, and lets go of files. The location stays open."""
        self.closed = True
        self.pulse.close()
        self.machine.close(deadline)
        self.reader.close()


def _shown(schema: pa.Schema) -> str:
    each = (f"{f.name} {f.type}{'' if f.nullable else ' not null'}" for f in schema)
    return f"({', '.join(each)})"
