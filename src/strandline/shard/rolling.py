"""When a rollup is due, what happened since it was begun, and what its pages are good for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strandline.settings import Settings
from strandline.shard.opening import Opened, replay_cost
from strandline.shard.rollup import Sealed
from strandline.state.codec import LogRecord
from strandline.state.model import Diff, Rollup
from strandline.state.pages import PagedMap, Slot
from strandline.state.replay import State, replay

__all__ = ["REPLAY_COST_MAX", "Rolling"]

REPLAY_COST_MAX = 16 * 1024 * 1024
"""Cost of replaying the records after the newest rollup at which the next one is due, however few
they are: 4,000 diffs, or 16 MiB of rows inline; 40 ms."""

_RETRY_RECORDS = 16
"""Records to wait after a rollup that failed."""

_NOTED_MAX = 100_000
"""Diffs kept for a rollup that nobody names, before it is given up."""


class Rolling:
    """What one process notes about the rollups of a shard. The follower's `moving` guards it."""

    def __init__(self, settings: Settings, session: str) -> None:
        self.newest: Rollup | None = None
        """The newest rollup that the log names and that is not known to be damaged."""
        self.base: Rollup | None = None
        """The rollup that the stored pages of the state in memory come from."""
        self.sealed: Sealed | None = None
        """Written here, waiting for a record to name it."""
        self._settings = settings
        self._session = session
        self._damaged: frozenset[str] = frozenset()
        self._since: list[Diff] | None = None
        self._cost = 0
        self._cost_begun = 0
        self._responsible = False
        self._not_before = 0

    def is_due(self, state: State) -> bool:
        """Whether this process should write a rollup of `state`."""
        if self.sealed is not None or state.seqno < self._not_before:
            return False
        # Whoever writes the record that makes it due does the work. Should that process be gone,
        # the others step in half a period later.
        every = self._settings.rollup_every_records
        patience = 0 if self._responsible else every // 2
        return self._behind(state.seqno) >= every + patience or self._cost >= REPLAY_COST_MAX

    def begin(self) -> list[Diff]:
        """From now on the diffs of records are noted. What it returns is for `end`."""
        self._since = []
        self._cost_begun = self._cost
        return self._since

    def end(self, sealed: Sealed, begun: list[Diff]) -> bool:
        """The rollup is written; the next record may name it. False: it came too late."""
        # Another was named meanwhile, or the state was opened anew, or its records were not noted.
        if self._since is not begun:
            return False
        self.sealed = sealed
        return True

    def failed(self, state: State) -> None:
        """Writing the rollup failed; it is due again some records later."""
        self._not_before = state.seqno + _RETRY_RECORDS
        self._since = None

    def drop(self, sealed: Sealed) -> None:
        """That rollup will not be named: its objects are garbage of this session."""
        if self.sealed is sealed:
            self.sealed = None
            self._since = None

    def renewed(self, session: str) -> None:
        """This process goes on under another session. Of the ended one no rollup may be named."""
        self._session = session
        self.sealed = None
        self._since = None

    def reopened(self, opened: Opened) -> None:
        """The state in memory was replaced by one that does not come from the one before."""
        self.newest = opened.newest
        self.base = opened.base
        self._cost = opened.cost
        self._cost_begun = 0
        self._damaged |= set(opened.damaged)
        self.sealed = None
        self._since = None

    def note(self, records: Sequence[LogRecord], size: int) -> None:
        """The state is about to move over these records, of `size` bytes in all."""
        self._cost += replay_cost(records, size)
        for record in records:
            if self._since is not None:
                self._since += record.diffs
            if self._behind(record.seqno) == self._settings.rollup_every_records:
                self._responsible = record.session == self._session
        if self._since is not None and len(self._since) > _NOTED_MAX:
            self.sealed = None
            self._since = None

    def named(self, state: State, records: Sequence[LogRecord]) -> State:
        """The same state, its pages known to be stored if these records named our rollup."""
        for record in records:
            rollup = record.rollup
            if rollup is None or rollup.key in self._damaged:
                continue
            if self.newest is not None and rollup.seqno <= self.newest.seqno:
                continue
            self.newest = rollup
            self._responsible = False
            sealed = self.sealed
            if sealed is not None and sealed.rollup.key == rollup.key:
                state = self._adopted(sealed, state)
                self._cost -= self._cost_begun
            else:
                self._cost = 0
            self._cost_begun = 0
            # One that waits, or is under way, is of a state that does not know this one: it would
            # not be named (`rollups.may_be_named`).
            self.sealed = None
            self._since = None
        return state

    def _behind(self, seqno: int) -> int:
        return seqno - (0 if self.newest is None else self.newest.seqno)

    def _adopted(self, sealed: Sealed, state: State) -> State:
        # SUBTLE: the rollup is of a state that is some records old, and commands went on beside
        # it. Marking pages of the newest state would have to find out which of them changed
        # since. Instead the records since are replayed onto the rollup's own state: it equals the
        # old one item by item, so the outcome equals the newest state, and exactly the pages that
        # changed since are not known to be stored. Not before the rollup is named: until then
        # nothing keeps its pages from being collected.
        if self._since is None:
            return state
        self.base = sealed.rollup
        adopted = replay(sealed.state, state.seqno, state.hash, self._since)
        maps = dict(adopted.maps)
        maps["rollups"] = _without_old_pages(maps["rollups"])
        return State(state.seqno, state.hash, maps)


def _without_old_pages(rollups: PagedMap[Any]) -> PagedMap[Any]:
    """The list of rollups only grows between two vacuums, and only its end is looked at.

    What is stored of the rest is not kept in memory.
    """
    *old, last = rollups.slots
    slots = [Slot(slot.first, None, slot.ref) if slot.clean else slot for slot in old]
    return PagedMap((*slots, last))
