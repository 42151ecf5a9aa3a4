"""How far the log of commits had come, said by objects beside it: an older log does not go unseen.

A log that goes back as a whole is in itself without a fault. What it lost shows in what lies
elsewhere: a milestone is an object whose key says that the log had a record.
docs/design/0013-milestones.md says what that is worth.
"""

from __future__ import annotations

import logging

from strandline.env import Deadline, Env
from strandline.errors import Corruption, LocationError, UsageError
from strandline.ids import MilestoneKey
from strandline.location import BlobExists, Location
from strandline.shard.chain import record_name
from strandline.shard.machine import Machine
from strandline.shard.patience import reading

__all__ = ["Milestones"]

_SECONDS = 1.0
"""For how long a commit that is done waits for a milestone."""

_KEPT = 4
"""Milestones that stay, the newest: one would do, if no storage ever lost an object."""

_log = logging.getLogger("strandline")


class Milestones:
    """Those of one txns shard, for one handle. Thread-safe."""

    def __init__(self, location: Location, machine: Machine, env: Env, every_records: int) -> None:
        self._location = location
        self._machine = machine
        self._env = env
        self._every = every_records
        self._checked = False
        self._said: int | None = None
        """The newest record that this handle put a milestone for, or tried to."""

    def check(self, deadline: Deadline) -> None:
        """Corruption if the log had come further than it goes. Looked at once, before a write.

        From then on this handle follows the log, and notices itself if that goes back.
        """
        if self._checked:
            return
        ahead = self._ahead(deadline)
        if ahead:
            missing = record_name(ahead[-1].shard, ahead[-1].seqno)
            raise Corruption(
                f"{missing} is missing: the log {self._location.consensus_url} had come there (the "
                f"object {ahead[-1]} says so), and ends with record {self._machine.state.seqno}. "
                "Restore the newest log; or, if what was committed since is lost, go on from this "
                "one after `strandline confirm-restore` (Database.confirm_restore)",
                object=missing,
            )
        self._checked = True

    def _ahead(self, deadline: Deadline) -> list[MilestoneKey]:
        """The milestones beyond the end of the log, ascending."""
        known = self._machine.state.seqno or self._machine.look(deadline).seqno
        found = self._listed(known, deadline)
        if not found:
            return []
        # SUBTLE: others commit beside. But each milestone was put after its record was known to be
        # in the log, and listed before this look at the log begins, which shows the record; or it
        # is lost.
        end = self._machine.look(deadline).seqno
        return [key for key in found if key.seqno > end]

    def _listed(self, after: int, deadline: Deadline) -> list[MilestoneKey]:
        """Those after that record, ascending."""
        shard = self._machine.shard
        infos = reading(
            self._env,
            deadline,
            f"listing the milestones of shard {shard}",
            lambda timeout: list(
                self._location.blob.list(
                    MilestoneKey.prefix(shard),
                    start_after=MilestoneKey.after(shard, after),
                    timeout=timeout,
                )
            ),
        )
        found = []
        for info in infos:
            try:
                found.append(MilestoneKey.parse(info.key))
            except UsageError:
                _log.warning("%s is not the key of a milestone, and is left alone", info.key)
        return sorted(found)

    def passed(self, deadline: Deadline) -> None:
        """Puts a milestone if it is time: once per handle, and then every so many records.

        To be called after a commit, which stands whatever becomes of this: failures are logged.
        """
        # SUBTLE: the newest state that is known came out of the log, or went into it: its record
        # is durable. A milestone of one that might not be would cry wolf.
        state = self._machine.state
        if not state.seqno or (self._said is not None and state.seqno < self._said + self._every):
            return
        self._said = state.seqno
        key = MilestoneKey(self._machine.shard, state.seqno, state.hash.hex()[:16])
        said = f"{record_name(key.shard, key.seqno)} is in the log\n".encode()
        try:
            self._location.blob.put(str(key), said, timeout=min(deadline.remaining(), _SECONDS))
        except BlobExists:
            pass  # another was there at the same time
        except LocationError as error:
            _log.warning("no milestone was put at %s: %s", key, error)

    def confirm(self, deadline: Deadline) -> int:
        """Goes on from the log as it is; returns how many records are given up, at least."""
        # SUBTLE: what has to survive a crash in the middle is the alarm: the milestones go in
        # ascending order, so that the furthest stays until it is the last, and whoever is left
        # with it confirms again. So it is with one that was under way to the storage for all that
        # time and comes later. No delete can hit a milestone of the history that goes on from
        # here, at the same record: its key has another hash.
        ahead = self._ahead(deadline)
        for key in ahead:
            self._location.blob.delete(str(key), timeout=deadline.remaining())
        return ahead[-1].seqno - self._machine.state.seqno if ahead else 0

    def thin_out(self, deadline: Deadline) -> None:
        """Deletes all but the newest; what cannot be deleted is left for another time."""
        for key in self._listed(0, deadline)[:-_KEPT]:
            try:
                self._location.blob.delete(str(key), timeout=deadline.remaining())
            except LocationError as error:
                _log.warning("%s could not be deleted and is tried again later: %s", key, error)
                return
