"""A shard's newest state in memory: kept up with the log, pages loaded when looked at."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from strandline.env import Deadline, Env
from strandline.errors import Corruption, LocationError
from strandline.location import BlobMissing
from strandline.location.consensus import Record
from strandline.shard.chain import follow, record_name, verified
from strandline.shard.opening import SCAN_RECORDS, Log, open_state
from strandline.shard.rolling import Rolling
from strandline.state.codec import LogRecord, decode_page
from strandline.state.pages import Page, PagesNeeded, Slot
from strandline.state.replay import State, initial, replay

__all__ = ["Follower", "StateRetired"]

A = TypeVar("A")

_log = logging.getLogger("strandline")


class StateRetired(LocationError):
    """Pages of a state are gone with the rollups that named them; the newest state is there."""

    kind = "state-retired"


class Follower:
    """Thread-safe. No lock is held across a request, so a slow one stops nobody else."""

    def __init__(self, log: Log, env: Env, rolling: Rolling) -> None:
        self.log = log
        self.newest: State | None = None
        """The newest state that is known, None before the first request."""
        self.pages_read = 0
        """Pages fetched so far."""
        self._env = env
        self._rolling = rolling
        self._avoid: frozenset[str] = frozenset()
        self.moving = threading.Lock()
        """Held while `newest` and the notes about rollups change, never across a request."""

    # --- the log

    @property
    def state(self) -> State:
        """The newest known state; the empty one before the first request."""
        return self.newest or initial()

    def opened(self, deadline: Deadline) -> State:
        """The newest known state; the first time it is fetched."""
        return self.newest or self._open(deadline)

    def catch_up(self, deadline: Deadline) -> State:
        """The newest state that the log tells of: one request if there is little that is new."""
        state = self.newest
        if state is None:
            return self._open(deadline)
        broken: Corruption | None = None
        while True:
            found = self.log.scan(state.seqno + 1, deadline)
            if not found:
                return self.newest or state
            if found[0].seqno > state.seqno + 1:
                return self._open(deadline)  # truncated past us
            try:
                state = self.advance(found)
            except Corruption as error:
                # A listing that is not atomic can show a gap that is none: look once more.
                if broken is not None:
                    raise
                broken = error
                continue
            if len(found) < SCAN_RECORDS:
                return state

    def advance(self, found: Iterable[Record]) -> State:
        """Takes in records from the log, except those that are known."""
        with self.moving:
            state = self._known()
            newer = [record for record in found if record.seqno > state.seqno]
            if newer:
                state, records = follow(state, self.log.shard, newer)
                self._move(state, records, sum(len(record.data) for record in newer))
            return state

    def wrote(self, record: LogRecord, digest: bytes, size: int) -> None:
        """Takes in a record of our own that is in the log, without decoding it."""
        with self.moving:
            state = self._known()
            # A look of another thread may have met it in the log already.
            if state.seqno == record.seqno - 1:
                after = replay(state, record.seqno, digest, record.diffs)
                self._move(after, [record], size)

    def records(self, seqno: int, limit: int | None, deadline: Deadline) -> list[LogRecord]:
        """At most `limit` decoded records, oldest first, from `seqno` or the log's begin on."""
        found: list[LogRecord] = []
        while limit is None or len(found) < limit:
            wanted = SCAN_RECORDS if limit is None else min(SCAN_RECORDS, limit - len(found))
            batch = self.log.scan(seqno, deadline, wanted)
            for record in batch:
                if found and record.seqno != found[-1].seqno + 1:
                    missing = record_name(self.log.shard, found[-1].seqno + 1)
                    raise Corruption(f"{missing} is missing", object=missing)
                found.append(verified(self.log.shard, record))
            if len(batch) < wanted:
                break
            seqno = batch[-1].seqno + 1
        return found

    def _known(self) -> State:
        state = self.newest
        if state is None:  # records are only ever asked for after a state
            raise AssertionError("the shard is not open")
        return state

    def _move(self, state: State, records: list[LogRecord], size: int) -> None:
        # SUBTLE: noted first. Were an interrupt to end this between the two, the records would be
        # met again in the log and noted twice, which changes nothing (diffs are absolute); a
        # record that moved the state and was not noted would be missing from the next rollup.
        self._rolling.note(records, size)
        self.newest = self._rolling.named(state, records)

    def _open(self, deadline: Deadline) -> State:
        while True:
            opened = open_state(self.log, deadline, avoid=self._avoid)
            with self.moving:
                if self.newest is None or self.newest.seqno <= opened.state.seqno:
                    self._rolling.reopened(opened)
                    self.newest = opened.state
                    return opened.state
            deadline.check(f"opening {self.log.title()}", may_have_happened=False)

    # --- pages

    def run(self, function: Callable[[State], A], deadline: Deadline, given: State | None) -> A:
        """`function` of the given or the newest state, called again until its pages are there."""
        while True:
            state = given or self.opened(deadline)
            try:
                return function(state)
            except PagesNeeded as needed:
                slots = needed.slots
            try:
                self.load(state, slots, deadline)
            except BlobMissing as missing:
                lost = self._look_for(missing, deadline)
                if given is not None and lost is not None:
                    raise lost from missing  # as below
                if given is not None:
                    raise StateRetired(
                        f"the state of {self.log.title()} at {given.seqno} is not kept any "
                        "more; read again, as of the same time if it has to be",
                        may_have_happened=False,
                    ) from missing
            except Corruption as error:
                self.avoid(error, deadline)
                if given is not None:
                    raise  # the state that was given needs the page; a fresh one does not

    def load(self, state: State, slots: list[Slot[Any]], deadline: Deadline) -> None:
        """Fetches the pages of these slots, side by side, and fills every slot that needs them."""
        wanted = {slot.ref.key for slot in slots if slot.page is None and slot.ref is not None}
        if not wanted:
            return
        # All slots of the state, as `slots` may belong to one that was derived from it and is
        # thrown away; and of the newest one, which may share what is not loaded.
        states = [state] if self.newest is None else [state, self.newest]
        places = [
            (slot.ref.key, name, slot)
            for each in states
            for name, found in each.maps.items()
            for slot in found.slots
            if slot.ref is not None and slot.ref.key in wanted
        ]
        collections = {key: name for key, name, _ in places}

        def fetch(key: str) -> tuple[str, Page[Any]]:
            data = self.log.get(key, deadline)
            return key, decode_page(collections[key], self.log.shard, data, key)

        pages = dict(self._env.parallel(fetch, sorted(wanted)))
        with self.moving:
            self.pages_read += len(pages)
        for slot in slots:
            if slot.ref is not None and slot.ref.key in pages:
                slot.fill(pages[slot.ref.key])
        for key, _, slot in places:
            slot.fill(pages[key])

    def _look_for(self, missing: BlobMissing, deadline: Deadline) -> Corruption | None:
        """A page is gone: with the rollup that the state in memory came from, or lost.

        Opens the shard anew. If the newest rollup names the page as well, it was lost; then the
        shard is opened without it, and what is to be said of it is returned.
        """
        fresh = self._open(deadline)
        slots = (slot for found in fresh.maps.values() for slot in found.slots)
        if not any(slot.ref is not None and slot.ref.key == missing.key for slot in slots):
            return None
        key = missing.key
        lost = Corruption(f"{key}, a page of state, is missing", object=key)
        self.avoid(lost, deadline)
        return lost

    def reopen(self, deadline: Deadline) -> State:
        """The newest state, from the newest rollup; none of its pages is taken from before."""
        return self._open(deadline)

    def avoid(self, error: Corruption, deadline: Deadline) -> None:
        """Opens the shard from the newest rollup without the damaged page, or raises `error`."""
        if error.object in self._avoid:
            raise error
        _log.warning("%s; looking for a rollup of shard %s without it", error, self.log.shard)
        self._avoid |= {error.object}
        try:
            self._open(deadline)
        except Corruption:
            raise error from None
