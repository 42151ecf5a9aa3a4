"""One open database, below what users hold: its machines, its readers, its background work."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from strandline.env import Deadline, Env
from strandline.errors import Corruption, StrandlineError, UsageError
from strandline.ids import (
    DatabaseId,
    ObjectKey,
    SessionId,
    ShardId,
    new_part_id,
    new_session_id,
)
from strandline.location import Location
from strandline.parts.files.footer import Identity
from strandline.parts.files.read import PartReader
from strandline.settings import Settings
from strandline.shard.chain import record_name
from strandline.shard.leases import Lookout, Pulse
from strandline.shard.look import Look
from strandline.shard.machine import Machine
from strandline.shard.notebook import Notebook
from strandline.state.model import Meta, TableVersion
from strandline.state.replay import State
from strandline.state.tables import current_table
from strandline.txn.milestones import Milestones
from strandline.txn.right_of_way import RightOfWay
from strandline.txn.txns import Txns

__all__ = ["Store", "Upkeep"]

_log = logging.getLogger("strandline")


class Upkeep(Protocol):
    """Keeps the backlog of the tables that a handle writes to bounded (`upkeep.background`)."""

    def before_write(self, table: str, deadline: Deadline) -> None:
        """Makes room first, if the table's backlog is past its bound."""

    def after_commit(self, written: Iterable[tuple[str, int, bool]], deadline: Deadline) -> None:
        """Takes note of what was committed: (table, inline bytes, has parts) each."""

    def close(self) -> None:
        """Ends what it does beside its callers."""


class Store:
    """Everything that one handle on a database shares. Thread-safe; never crosses a fork.

    `strandline.upkeep.background.open_store` makes one whose `background` works.
    """

    background: Upkeep

    owner = ""
    """What the data shards know the txns shard by, if it is one that is used by itself."""

    def __init__(
        self,
        location: Location,
        database: DatabaseId,
        txns_shard: ShardId,
        env: Env,
        settings: Settings,
    ) -> None:
        self.location = location
        self.database = database
        self.env = env
        self.settings = settings
        self.reader = PartReader(location.blob, settings, env)
        self.way = RightOfWay(location.consensus, env)
        self.txns = Txns(self._machine(txns_shard, lambda: "the database"), env, location)
        self.milestones = Milestones(
            location, self.txns.machine, env, settings.rollup_every_records
        )
        self.pulse = Pulse(env, settings)
        notebook = Notebook(env, location.url, settings.lease_seconds)
        self.lookout = Lookout(env, settings, notebook)
        self._data: dict[str, Machine] = {}
        self._compared: set[str] = set()
        """Data shards that a commit was made to after they were compared with the txns shard."""
        self._lock = threading.Lock()

    @property
    def session(self) -> SessionId:
        """The session that commits: of the txns shard. Each data shard has one of its own, for
        upkeep, so that each is registered, and ends, where its objects are decided on.
        """
        return self.txns.machine.session

    @property
    def read_only(self) -> bool:
        """Whether this handle may not write."""
        return self.location.read_only

    def check_writable(self) -> None:
        """UsageError on a read-only handle."""
        if self.read_only:
            raise UsageError(
                f"{self.location.url} was opened with mode='r'; open it with mode='rw' to write"
            )

    def data(self, table: str) -> Machine:
        """The data shard of a table."""
        machine = self._data.get(table)
        if machine is None:
            with self._lock:
                machine = self._data.get(table)
                if machine is None:
                    machine = self._machine(ShardId(table), lambda: self.txns.title(table))
                    self._data[table] = machine
        return machine

    def machines(self) -> list[Machine]:
        """The machines opened so far, the txns shard's first."""
        with self._lock:
            return [self.txns.machine, *self._data.values()]

    def new_part_key(self, table: str, session: SessionId) -> str:
        """A key for a part of the table that the session is about to write."""
        key = str(ObjectKey(session, ShardId(table), "part", new_part_id(self.env)))
        for machine in (self.txns.machine, self.data(table)):
            machine.own.begins(key)
        return key

    def identity(self, version: TableVersion, session: SessionId, token: str = "") -> Identity:
        """What goes into the footer of the table's parts, so that they speak for themselves."""
        return Identity(
            database=self.database,
            table=version.table,
            name=version.name,
            session=session,
            shard=version.table,
            token=token,
        )

    # --- two logs that have to agree

    def before_commit(self, tables: Iterable[str], deadline: Deadline) -> None:
        """Corruption if the txns shard does not know what the shards of these tables rest on.

        Looked at once per table: from then on this handle follows the logs, and notices itself if
        one goes back.
        """
        for table in tables:
            if table in self._compared:
                continue
            machine = self.data(table)
            known = machine.known(deadline)
            self.check_committed(table, known if known.seqno else machine.look(deadline), deadline)
            self._compared.add(table)

    def check_committed(self, table: str, data: Look, deadline: Deadline) -> None:
        """Corruption if the data shard is ahead of all commits: the txns shard lost the newest.

        It is to be asked wherever the two are put together: rows whose commits are lost would come
        back with the next commits, and those at times that were used before would never be applied.
        """
        machine = self.txns.machine

        def is_ahead(state: State) -> bool:
            return self._is_ahead(state, table, data.meta)

        if not machine.ask(is_ahead, deadline):
            return
        # SUBTLE: others commit and apply beside, and the txns shard is read before the data shard.
        # But what was applied by the time that `data` was read was committed before that; so a
        # look at the txns shard that begins now knows of it, or it is lost.
        self.txns.look(deadline)
        if not machine.ask(is_ahead, deadline):
            return
        known = machine.known(deadline)
        missing = record_name(machine.shard, known.seqno + 1)
        raise Corruption(
            f"{missing} is missing: the log of commits ends before it, but "
            f"{self.txns.called(known, table)} has what was committed later; restore the newest "
            f"log of {self.location.url}",
            object=missing,
        )

    def _is_ahead(self, state: State, table: str, meta: Meta) -> bool:
        """Whether that state of the txns shard cannot be as new as the shard's `meta`."""
        if meta.upper is None:  # a table's shard is finished after the table was dropped
            return current_table(state, table) is not None
        fed_here = (meta.origin, meta.owner) == ("txns", self.owner)
        return fed_here and state.meta.upper is not None and meta.upper > state.meta.upper

    def look_out(self, tables: Iterable[str], deadline: Deadline) -> list[str]:
        """Looks once at the sessions of the txns shard and of these tables; those that it ended.

        A look that fails is logged: it has seen nothing.
        """
        ended: list[str] = []
        for machine in [self.txns.machine, *(self.data(table) for table in tables)]:
            try:
                ended += self.lookout.look(machine, deadline)
            except StrandlineError as error:
                _log.warning("no look at the sessions of shard %s: %s", machine.shard, error)
        return ended

    def close(self, deadline: Deadline) -> None:
        """Ends background work and the sessions that were opened; the handle is then useless."""
        each = deadline.left()
        self.background.close()  # waits for what is under way, however long that takes
        self.pulse.close()
        for machine in self.machines():
            machine.close(each.again())
        self.location.blob.close()
        self.location.consensus.close()

    def _machine(self, shard: ShardId, title: Callable[[], str]) -> Machine:
        session = new_session_id(self.env)
        return Machine(
            self.location,
            shard,
            session,
            self.env,
            self.settings,
            title=title,
            before_write=self._check_log,
        )

    def _check_log(self, deadline: Deadline) -> None:
        self.milestones.check(deadline)
