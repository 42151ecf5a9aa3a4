"""Follows the logs of a location from outside, without faults, and checks what must always hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strandline.env import Deadline, Env
from strandline.location import Location
from strandline.location.memory import MemoryStore
from strandline.shard.chain import follow
from strandline.shard.opening import Log, open_state
from strandline.state.codec import LogRecord, decode_page
from strandline.state.invariants import broken
from strandline.state.model import Entry, Reference, Rollup
from strandline.state.pages import PagesNeeded
from strandline.state.replay import State, initial

__all__ = ["Broken", "Seen", "Watch"]


class Broken(AssertionError):
    """Something that must always hold does not."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A record that just got into a log, and the states around it."""

    shard: str
    record: LogRecord
    before: State
    after: State


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

    def look(self) -> None:
        """Takes in what is new in the logs. Raises `Broken` for what should not be."""
        for shard, log in list(self._store.logs.items()):
            state = self.states.get(shard) or initial()
            if log[-1].seqno == state.seqno:
                continue
            new = [record for record in log if record.seqno > state.seqno]
            for found in new:
                after, (record,) = follow(state, shard, [found])
                self._check(shard, record, after)
                self.states[shard] = after
                self._on_record(Seen(shard, record, state, after))
                state = after

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
        if any(isinstance(diff.after, Rollup) for diff in record.diffs):
            self._check_opening(shard)

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
