"""A txns shard that is used by itself, as one process sees it, and the shards registered there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from strandline.env import Deadline, Env, retry_delays
from strandline.errors import DeadlineExceeded, UsageError
from strandline.ids import DatabaseId, ShardId, new_session_id, parse_id
from strandline.location import Location
from strandline.settings import Settings
from strandline.shard.alone.shard import Shard
from strandline.shard.look import Look
from strandline.shard.machine import Machine
from strandline.state.commands import Commit, CommitResult, InitTxns, TableChange
from strandline.state.model import Key, Meta
from strandline.state.pages import TOP
from strandline.state.replay import State
from strandline.state.tables import current_table, newest_version
from strandline.txn.apply import apply_table
from strandline.txn.store import Store

__all__ = ["LoneStore"]


class LoneStore(Store):
    """What one handle on such a txns shard shares. Thread-safe.

    There is no database and nothing goes on in the background, but for heartbeats; and the data
    shards are their users' own.
    """

    def __init__(self, location: Location, txns_id: str, env: Env, settings: Settings) -> None:
        txns = ShardId(parse_id(txns_id, "s"))
        super().__init__(location, DatabaseId(""), txns, env, settings)
        self.owner = txns
        self.closed = False
        self._shards: dict[str, Shard] = {}
        self._shards_lock = threading.Lock()

    def _machine(self, shard: ShardId, title: Callable[[], str]) -> Machine:
        # Whoever uses it by itself knows its shards by their ids, which they chose.
        # Who writes the record that makes a rollup due writes the rollup: nobody else is there.
        settings = replace(self.settings, background=False)
        return Machine(self.location, shard, new_session_id(self.env), self.env, settings)

    # --- the beginning and the end

    def open(self, init_time: int, deadline: Deadline) -> None:
        """Makes the shard a txns shard if it is new. UsageError if it is something else."""
        look = self.txns.look(deadline)
        if look.meta.origin == "commits":
            return
        if self.location.txns == self.owner:
            raise UsageError(
                f"shard {self.owner} belongs to the database {self.location.url}; open that with "
                "strandline.connect"
            )
        if self.read_only:
            raise UsageError(
                f"there is no txns shard {self.owner} at {self.location.url}; open the location "
                "for writing to make it"
            )
        self.txns.machine.submit(InitTxns(init_time), deadline)

    def close(self, deadline: Deadline) -> None:
        """Ends the sessions that were opened. The location stays open."""
        each = deadline.left()
        self.closed = True
        self.pulse.close()
        try:
            for machine in self.machines():
                machine.close(each.again())
        finally:
            for shard in self._shards.values():
                shard.reader.close()

    def check_open(self) -> None:
        """UsageError once it is closed."""
        if self.closed:
            raise UsageError("this handle is closed; open the txns shard again")

    # --- shards

    def shard(self, shard_id: str, deadline: Deadline) -> Shard:
        """The shard with that id, whose rows were described. UsageError if there is none."""
        found = self._shards.get(parse_id(shard_id, "s"))
        if found is not None:
            return found
        machine = self.data(shard_id)
        look = machine.look(deadline)
        if not look.seqno:
            raise UsageError(
                f"there is no shard {shard_id} at {self.location.url}; make it with "
                "strandline.shard.open_shard(location, shard_id, schema=...)"
            )
        shard = Shard(self.location, shard_id, self.settings, self.env, machine)
        shard.describe_from(deadline)
        with self._shards_lock:
            return self._shards.setdefault(shard_id, shard)

    def is_registered(self, shard_id: str, deadline: Deadline) -> bool:
        """Whether it is now. No request if this process knows that it was."""
        machine = self.txns.machine
        if machine.ask(lambda s: current_table(s, shard_id)) is not None:
            return True
        look = self.txns.look(deadline)
        return look.ask(lambda s: current_table(s, shard_id)) is not None

    def _is_ahead(self, state: State, table: str, meta: Meta) -> bool:
        newest = newest_version(state, table)
        if newest is None:
            return False  # it may be joined, and about to be registered
        given_back = meta.owner != self.owner
        if newest.valid_until is None and (meta.joins, given_back) > (newest.version, False):
            return True  # it is given back, or joined anew, only after it was forgotten here
        # SUBTLE: of a shard that is joined and not registered yet, upper says nothing: it had
        # writers of its own, and the time of its registration is not taken yet. Nor of one whose
        # join was spent (`Withdraw`) and that is not given back yet: it never will be registered.
        if newest.valid_until == newest.valid_from:
            return False
        return meta.joins == newest.version and super()._is_ahead(state, table, meta)

    # --- times

    def settled(self, time: int, deadline: Deadline) -> Look:
        """A look at the txns shard whose upper is beyond that time; waits for it."""
        delays = iter(retry_delays(self.env, first_seconds=0.005, most_seconds=0.25))
        while True:
            look = self.txns.look(deadline)
            upper = look.meta.upper
            if upper is None or time < upper:
                return look
            if deadline.remaining() <= 0:
                raise DeadlineExceeded(
                    f"what txns shard {self.owner} commits at {time} is not known in time: its "
                    f"upper is {upper}; ask for an earlier time, wait longer with timeout=, or "
                    "commit nothing there: begin().commit_at(txns, time)",
                    may_have_happened=False,
                )
            self.env.sleep(min(next(delays), deadline.remaining()))

    def commit(
        self, time: int, operation: str, deadline: Deadline, changes: Sequence[TableChange] = ()
    ) -> CommitResult:
        """A commit without writes, at exactly that time."""
        command = Commit(0, changes=tuple(changes), at=time)
        return self.txns.commit_at(command, operation=operation, deadline=deadline)

    # --- what is committed and not applied

    def unapplied(self, look: Look, through: int | None = None) -> list[str]:
        """The shards with entries, at times up to that one, that are not known to be applied."""
        found = look.ask(
            lambda s: dict.fromkeys(
                entry.table
                for _, entry in s.entries.range()
                if entry.batch.rows and (through is None or entry.time <= through)
            )
        )
        return list(found)

    def apply(self, shards: Sequence[str], through: int | None, deadline: Deadline) -> int:
        """Applies what is committed to these shards at times up to that one; how many commits."""

        def moved(shard: str) -> int:
            return apply_table(self, shard, deadline, through=through).commits

        return sum(self.env.parallel(moved, shards))

    def tidy(self, deadline: Deadline, shards: Sequence[str] | None = None) -> int:
        """Retracts every entry (of these shards) that is applied, whoever applied it; how many."""
        # SUBTLE ◆: the txns shard first, then each data shard. An entry below the upper of its
        # shard is applied: while the shard is registered only applies move that, whole times at
        # once, and before it was registered it was not beyond the time of that.
        look = self.txns.look(deadline)
        for shard in self.unapplied(look) if shards is None else shards:
            data = self.data(shard).look(deadline)
            self.check_committed(shard, data, deadline)
            self.txns.to_be_tidied(self._applied(look, shard, data.meta.upper))
        return self.txns.tidy(deadline)

    def _applied(self, look: Look, shard: str, upper: int | None) -> list[Key]:
        end: Key = (shard, TOP if upper is None else upper)
        return look.ask(
            lambda s: [k for k, entry in s.entries.range((shard,), end) if entry.batch.rows]
        )
