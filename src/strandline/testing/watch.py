"""Follows the logs of a location from outside, without faults, and checks what must always hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

from strandline.env import Deadline, Env
from strandline.ids import MilestoneKey, session_of
from strandline.location import Blob, BlobInfo, Location
from strandline.location.memory import MemoryConsensus, MemoryStore
from strandline.shard.chain import follow
from strandline.shard.opening import Log, open_state
from strandline.state.codec import LogRecord, decode_page, decode_rollup
from strandline.state.garbage import is_part
from strandline.state.invariants import broken
from strandline.state.model import Dead, Entry, Reference, Rollup, Session
from strandline.state.pages import Page, PagesNeeded
from strandline.state.replay import State, initial
from strandline.state.sessions import is_open

__all__ = ["LATEST_MICROS", "Broken", "Guarded", "GuardedLogs", "Seen", "Watch"]

LATEST_MICROS = 10_000_000
"""How long a request may be under way after its caller was told that it may have happened."""


class Broken(AssertionError):
    """Something that must always hold does not."""


@dataclass(frozen=True, slots=True)
class _Death:
    shard: str
    seqno: int
    referenced: bool
    """Whether it ever belonged to the table: not what a discarded compaction wrote."""
    at: int
    """By the location's clock; µs."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A record that just got into a log, and the states around it."""

    shard: str
    record: LogRecord
    before: State
    after: State

    @property
    def commits(self) -> list[dict[str, Any]]:
        """What the record says of its commits: the time and the metadata of each."""
        try:
            said = json.loads(self.record.note)
        except ValueError:
            return []  # a word for people, or nothing
        found: list[dict[str, Any]] = said.get("commits", []) if isinstance(said, dict) else []
        return found


class Watch:
    """Everything that is in the logs of a store, as of the last `look`."""

    def __init__(
        self,
        store: MemoryStore,
        location: Location,
        env: Env,
        *,
        on_record: Callable[[Seen], None] = lambda _: None,
        has_parts: bool = True,
    ) -> None:
        self.states: dict[str, State] = {}
        """The newest state of each shard, replayed from its first record on."""
        self._store = store
        self._location = location
        self._env = env
        self._on_record = on_record
        self._has_parts = has_parts
        self.deletion_delay: Callable[[str], int] = lambda _: 0
        """How long what is dead in a shard has to stay; µs."""
        self.on_news: Callable[[], None] = lambda: None
        """Is called when all that is new was taken in, of all logs."""
        self.deletes = 0
        """Objects that were deleted, probes aside."""
        self._deaths: dict[str, _Death] = {}
        self._deleted: set[str] = set()
        self._sessions: set[str] = set()
        """All that there ever were."""
        self._ended: set[str] = set()
        """Sessions that were seen to end."""
        self._acknowledged: set[str] = set()
        """Those of which it was said that their owners write no objects any more."""
        self._pages: dict[str, frozenset[str]] = {}
        """The pages of each rollup, by key."""
        self._broken: list[str] = []

    def look(self) -> None:
        """Takes in what is new in the logs. Raises `Broken` for what should not be."""
        if self._broken:
            raise Broken(self._broken[0])
        news = False
        for shard, log in list(self._store.logs.items()):
            state = self.states.get(shard) or initial()
            if log[-1].seqno == state.seqno:
                continue
            news = True
            new = [record for record in log if record.seqno > state.seqno]
            for found in new:
                after, (record,) = follow(state, shard, [found])
                self._check(shard, record, after)
                self._remember(shard, record, state)
                self.states[shard] = after
                self._on_record(Seen(shard, record, state, after))
                state = after
        if news:
            self.on_news()

    def put(self, key: str) -> None:
        """An object is about to be put. Raises `Broken` for a milestone that would cry wolf."""
        if not key.startswith("milestone/"):
            return
        self.look()
        said = MilestoneKey.parse(key)
        state = self.states.get(said.shard)
        if state is None or state.seqno < said.seqno:
            raise Broken(f"{key} is put, and the log had not come there")

    def delete(self, key: str) -> None:
        """An object is about to be deleted. Raises `Broken` if anybody may still need it."""
        if "/probe/" in key:
            return
        self.look()
        needed = self._needed(key)
        if needed:
            # For a delete that nobody waits for any more, too.
            self._broken.append(f"{key} is deleted, but {needed}")
            raise Broken(self._broken[-1])
        self._deleted.add(key)
        self.deletes += 1

    def _needed(self, key: str) -> str:
        """What for; empty if it is not."""
        if key.startswith("milestone/"):
            said = MilestoneKey.parse(key)
            later = (k for k in self._store.objects if k.startswith(said.prefix(said.shard)))
            return "" if max(later, default="") > key else "it is the newest milestone"
        named = self._named(key)
        if named:
            return named
        death = self._deaths.get(key)
        if death is not None:
            return self._too_early(key, death)
        if session_of(key) not in self._ended:
            return "no record says that it is dead, and its session was not ended"
        if session_of(key) not in self._acknowledged:
            return "no record says that it is dead, and its session may still write"
        return ""

    def _named(self, key: str) -> str:
        """What names it; empty if nothing does."""
        for shard, state in self.states.items():
            if state.parts.get((key,)) is not None:
                return f"references of {shard} name it"
            if any(receipt.key == key for _, receipt in state.receipts.range()):
                return f"it is a receipt of {shard}"
            for _, rollup in state.rollups.range():
                if key == rollup.key or key in self._pages_of(rollup):
                    return f"the rollup of {shard} at {rollup.seqno} names it"
            for _, entry in state.entries.range():
                data = self.states.get(entry.table)
                upper = 0 if data is None else data.meta.upper
                unapplied = upper is not None and entry.time >= upper
                if unapplied and any(part.key == key for part in entry.batch.parts):
                    return f"the commit at {entry.time} to {entry.table} is not applied"
        return ""

    def _too_early(self, key: str, death: _Death) -> str:
        state = self.states[death.shard]
        said = f"it died at {death.seqno} of {death.shard}"
        for (hold_id,), hold in state.holds.range():
            if hold.seqno is not None and hold.seqno < death.seqno:
                return f"{said}, and the hold {hold_id} is at {hold.seqno}"
        verified = max((r.seqno for _, r in state.rollups.range() if r.verified), default=-1)
        if is_part(key) and verified < death.seqno:
            return f"{said}, and the newest rollup that was read back is at {verified}"
        if self._env.now_micros() - death.at < self.deletion_delay(death.shard):
            return f"{said}, only {self._env.now_micros() - death.at} microseconds ago"
        copied = max((receipt.last for _, receipt in state.receipts.range()), default=0)
        if death.referenced and copied < death.seqno:
            return f"{said}, and receipts reach {copied}"
        return ""

    def unneeded(self) -> list[str]:
        """Objects that are there, of sessions that are over, and that nothing names.

        Of a session that never wrote a record there is nothing but a probe, if its process died.
        """
        states = self.states.values()
        kept = {key[1] for state in states for key, _ in state.dead.range()}
        at_work = {
            name for state in states for (name,), each in state.sessions.range() if is_open(each)
        }
        over = self._sessions - at_work
        return sorted(
            key
            for key in self._store.objects
            if key not in kept and session_of(key) in over and not self._named(key)
        )

    def left_behind(self) -> list[str]:
        """Objects that are dead, or were, and are still there.

        A put may have been under way for so long that it came after the delete. That is for the
        deletion delay to be longer than; where it is none, nobody can tell.
        """
        there = [key for key in self._deaths if key in self._store.objects]
        return sorted(key for key in there if not self._came_back(key))

    def _came_back(self, key: str) -> bool:
        delay = self.deletion_delay(self._deaths[key].shard)
        return key in self._deleted and delay < LATEST_MICROS

    def _remember(self, shard: str, record: LogRecord, before: State) -> None:
        now = self._env.now_micros()
        for diff in record.diffs:
            if isinstance(diff.after, Dead):
                referenced = is_part(diff.after.key) and diff.after.born < diff.after.dead
                self._deaths[diff.after.key] = _Death(shard, record.seqno, referenced, now)
            elif diff.collection == "dead" and diff.key[1] not in self._deleted:
                raise Broken(
                    f"record {record.seqno} of {shard} forgets {diff.key[1]}, not deleted yet"
                )
            elif diff.collection == "sessions":
                (session,) = diff.key
                self._sessions.add(session)
                after = diff.after if isinstance(diff.after, Session) else None
                if not is_open(after) and is_open(before.sessions.get(diff.key)):
                    self._ended.add(session)
                if after is None or after.acknowledged is not None:
                    self._acknowledged.add(session)

    def _pages_of(self, rollup: Rollup) -> frozenset[str]:
        found = self._pages.get(rollup.key)
        if found is None:
            manifest = decode_rollup(self._store.objects[rollup.key][0], rollup.key)
            found = self._pages[rollup.key] = frozenset(
                ref.key
                for pages in manifest.pages.values()
                if not isinstance(pages, Page)
                for ref in pages
            )
        return found

    def check_rollups(self) -> None:
        """What a newcomer would open is what the log says, for every shard."""
        for shard in self.states:
            self._check_opening(shard)

    def _check(self, shard: str, record: LogRecord, after: State) -> None:
        violations = broken(after)
        if violations:
            raise Broken(f"shard {shard} after record {record.seqno}: {'; '.join(violations)}")
        if self._has_parts:
            for key in _parts_named(record):
                if key not in self._store.objects:
                    raise Broken(f"record {record.seqno} of {shard} names {key}, which is missing")
        for diff in record.diffs:
            if isinstance(diff.after, Rollup):
                self._check_pages(shard, diff.after, after)
                self._check_opening(shard)

    def _check_pages(self, shard: str, rollup: Rollup, after: State) -> None:
        """All that a rollup names is there, and is not about to be deleted."""
        dead = {key[1] for key, _ in after.dead.range()}
        for key in (rollup.key, *sorted(self._pages_of(rollup))):
            if key not in self._store.objects or key in dead:
                what = "dead" if key in self._store.objects else "missing"
                raise Broken(f"the rollup of {shard} at {rollup.seqno} names {key}: it is {what}")

    def _check_opening(self, shard: str) -> None:
        """A process that opens the shard from its newest rollup sees the very same state."""
        log = Log(self._location, shard, self._env)
        deadline = Deadline(self._env, 60)
        opened = open_state(log, deadline).state
        known = self.states.get(shard)
        if known is None or known.seqno != opened.seqno:
            return  # looked at between two records; the next look compares
        for name, expected in known.maps.items():
            found = self._items(shard, name, opened)
            if found != list(expected.range()):
                raise Broken(
                    f"{name} of shard {shard} opened at {opened.seqno} is {found}, but the log "
                    f"says {list(expected.range())}"
                )

    def _items(self, shard: str, name: str, state: State) -> list[tuple[object, object]]:
        while True:
            try:
                return list(state.maps[name].range())
            except PagesNeeded as needed:
                for slot in needed.slots:
                    assert slot.ref is not None
                    data = self._store.objects[slot.ref.key][0]
                    slot.fill(decode_page(name, shard, data, slot.ref.key))


def _parts_named(record: LogRecord) -> list[str]:
    """The parts that the record makes part of a table."""
    keys: list[str] = []
    for diff in record.diffs:
        if isinstance(diff.after, Entry):
            keys += [part.key for part in diff.after.batch.parts]
        elif isinstance(diff.after, Reference):
            keys.append(diff.after.part.key)
    return keys


class Guarded:
    """A Blob that asks a `Watch` before it puts or deletes."""

    def __init__(self, inner: Blob, watch: Watch) -> None:
        self._inner = inner
        self._watch = watch

    @property
    def near(self) -> bool:
        return self._inner.near

    def get(self, key: str, *, timeout: float) -> bytes:
        return self._inner.get(key, timeout=timeout)

    def get_range(self, key: str, start: int, length: int, *, timeout: float) -> bytes:
        return self._inner.get_range(key, start, length, timeout=timeout)

    def put(self, key: str, data: bytes, *, timeout: float) -> None:
        self._watch.put(key)
        self._inner.put(key, data, timeout=timeout)

    def upload(self, key: str, *, timeout: float) -> AbstractContextManager[BinaryIO]:
        return self._inner.upload(key, timeout=timeout)

    def open(self, key: str, *, timeout: float) -> pa.NativeFile:
        return self._inner.open(key, timeout=timeout)

    def delete(self, key: str, *, timeout: float) -> bool:
        self._watch.delete(key)
        return self._inner.delete(key, timeout=timeout)

    def leftovers(self, before: int, *, delete: bool, timeout: float) -> Sequence[BlobInfo]:
        return self._inner.leftovers(before, delete=delete, timeout=timeout)

    def list(
        self, prefix: str, *, start_after: str | None = None, timeout: float
    ) -> Iterator[BlobInfo]:
        return self._inner.list(prefix, start_after=start_after, timeout=timeout)

    def close(self) -> None:
        """The inner one belongs to its maker."""


class GuardedLogs(MemoryConsensus):
    """A Consensus of whose records a `Watch` misses none."""

    def __init__(self, store: MemoryStore, watch: Watch) -> None:
        super().__init__(store)
        self._watch = watch

    def truncate(self, shard: str, before_seqno: int, *, timeout: float) -> int:
        self._watch.look()
        return super().truncate(shard, before_seqno, timeout=timeout)
