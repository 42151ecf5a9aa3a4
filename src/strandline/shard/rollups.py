"""Writes rollups of a shard, one at a time, and says which of them a record may name."""

from __future__ import annotations

import logging
import threading
from typing import Any

from strandline.env import Deadline, Env
from strandline.errors import Corruption, StrandlineError
from strandline.ids import ShardId
from strandline.location import Blob
from strandline.settings import Settings
from strandline.shard.follower import Follower
from strandline.shard.rolling import Rolling
from strandline.shard.rollup import RollupWriter, Sealed
from strandline.shard.session import OwnSession
from strandline.state.decide import Decision
from strandline.state.model import Rollup
from strandline.state.replay import State

__all__ = ["Rollups", "may_be_named"]

_log = logging.getLogger("strandline")


class Rollups:
    """The rollups of a shard that this process writes. Thread-safe."""

    def __init__(
        self,
        blob: Blob,
        env: Env,
        settings: Settings,
        follower: Follower,
        rolling: Rolling,
        session: OwnSession,
    ) -> None:
        self._blob = blob
        self._env = env
        self._settings = settings
        self._follower = follower
        self._shard = ShardId(follower.log.shard)
        self._rolling = rolling
        self._session = session
        # Held while a rollup is written.
        self._writing = threading.Lock()

    def is_due(self) -> bool:
        """Whether `write_if_due` would write one now."""
        # Rollups are written by sessions of the shard that registers them.
        return self._session.may_write and self._rolling.is_due(self._follower.state)

    @property
    def sealed(self) -> Sealed | None:
        """One that is written and waits to be named."""
        return self._rolling.sealed

    def write_if_due(self, deadline: Deadline) -> bool:
        """Writes a rollup if one is due; the next record names it. True if it did.

        A failure is logged, and the rollup is due again some records later.
        """
        if not self.is_due() or not self._writing.acquire(blocking=False):
            return False
        try:
            # Asked again: another thread may have written one just now.
            return self.is_due() and self._write(deadline)
        except StrandlineError as error:
            _log.warning("a rollup of shard %s failed and is retried later: %s", self._shard, error)
            with self._follower.moving:
                self._rolling.failed(self._follower.state)
            return False
        finally:
            self._writing.release()

    def write(self, deadline: Deadline) -> bool:
        """Writes a rollup of the newest state, due or not; the next record names it.

        False if another is being written here, or waits to be named. A session that is not
        registered in the shard writes none. Errors: LocationError, Corruption.
        """
        if not self._session.is_registered or not self._writing.acquire(blocking=False):
            return False
        try:
            # SUBTLE: not asked before. If another thread sealed one since, what is noted for it
            # would be begun anew, and the state that is adopted with it would lack records.
            return self.sealed is None and self._write(deadline)
        finally:
            self._writing.release()

    def choose(self, sealed: Sealed | None, state: State, decision: Decision[Any]) -> Rollup | None:
        """The rollup for the record after `state` to name."""
        if sealed is not None and may_be_named(sealed, state):
            return sealed.rollup
        return _retained(state, decision, self._rolling.newest)

    def missed(self, sealed: Sealed, state: State) -> None:
        """Another was chosen for the record after `state`: that one will never be named."""
        if sealed.rollup.seqno <= state.seqno:  # else it is of a newer state, and still may be
            with self._follower.moving:
                self._rolling.drop(sealed)

    def _write(self, deadline: Deadline) -> bool:
        follower = self._follower
        self._leave_retired_pages(deadline)
        with follower.moving:
            state, base, session = follower.state, self._rolling.base, self._session.id
            begun = self._rolling.begin()
        writer = RollupWriter(
            self._blob,
            self._shard,
            session,
            self._env,
            self._settings,
            lambda slots: follower.load(state, slots, deadline),
            deadline,
        )
        begun_as = f"{session}/rollup at {state.seqno}"
        self._session.begins(begun_as)
        try:
            sealed = writer.write(state, base)
        except BaseException as error:
            # Another of the same state may be written and named; this one never is.
            self._session.begins(f"{begun_as}, failed")
            if isinstance(error, Corruption):
                follower.avoid(error, deadline)
            raise
        # Its key stands for all of its objects, until a record names just this one.
        self._session.begins(sealed.rollup.key)
        self._session.entered([begun_as])
        with follower.moving:
            return self._rolling.end(sealed, begun)

    def _leave_retired_pages(self, deadline: Deadline) -> None:
        """Opens the shard anew if the rollup that the pages in memory come from is not kept.

        SUBTLE: what is stored of the state in memory was shared with that rollup, and may be gone
        or going; a rollup that names it would not be named (`may_be_named`).
        """
        base = self._rolling.base
        if base is None:
            return
        if not self._follower.run(lambda s: _is_kept(s, base), deadline, None):
            self._follower.reopen(deadline)


def may_be_named(sealed: Sealed, state: State) -> bool:
    """Whether the record after `state` may name that rollup.

    SUBTLE: the state that the record is decided on says so, and nothing else. What this process
    knows besides may be newer: another thread's look moves it at any time. The compare-and-set
    sees to it that nothing comes between that state and the record.

    None may have been named since the state that the rollup holds. After a newer one, the log's
    head would name an older one, before which, or with which, the log may have been truncated; one
    of the same seqno would lose its place to it, and be found by nobody. And the one that it shares
    pages with has to be kept, because its pages may be gone.
    """
    # What is newer than the state was written by another thread, and the record will lose.
    if sealed.rollup.seqno > state.seqno or _newest(state) != _newest(sealed.state):
        return False
    return sealed.base is None or _is_kept(state, sealed.base)


def _newest(state: State) -> str | None:
    """The key of the newest rollup that was named."""
    found = state.rollups.floor((state.seqno,))
    return None if found is None else found[1].key


def _is_kept(state: State, rollup: Rollup) -> bool:
    """Whether exactly that rollup is one of the state's: another may be of the same seqno."""
    found = state.rollups.get((rollup.seqno,))
    return found is not None and found.key == rollup.key


def _retained(state: State, decision: Decision[Any], newest: Rollup | None) -> Rollup | None:
    """The rollup for a record to name: the newest that this process trusts, if it is kept.

    SUBTLE: a process that could not read a newer one goes on naming an older one, or none. Should
    others have read the newer ones back, retired that and truncated the log, whoever opened the
    shard from its head would meet a rollup that is gone, or none, and no record before it. So it
    names the newest that is kept; the log is there from the oldest of those on. Who names none
    because it trusts none cannot know whether the log is still there from its beginning.
    """
    gone = {diff.key for diff in decision.diffs if diff.collection == "rollups" and not diff.after}
    if newest is not None and (newest.seqno,) not in gone and _is_kept(state, newest):
        return newest
    kept = [rollup for key, rollup in state.rollups.range() if key not in gone]
    return kept[-1] if kept else None
