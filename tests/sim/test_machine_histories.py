"""Many sessions on one shard in bad weather: every command happens once, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from strandline.env import Deadline
from strandline.errors import Conflict, Fenced, LocationError, StrandlineError, UsageError
from strandline.ids import ShardId, new_session_id
from strandline.settings import Settings
from strandline.shard.machine import Machine
from strandline.shard.rolling import Rolling
from strandline.shard.rollup import Sealed
from strandline.shard.settling import Settling
from strandline.state.commands import Commit, TableChange, Write
from strandline.state.replay import State
from strandline.state.tables import current_table
from strandline.testing.simulation import Simulation, World
from strandline.testing.watch import Broken, Seen
from tests.support.states import batch, table

SHARD = ShardId("s" + "0" * 16)
SETTINGS = Settings(rollup_every_records=3, page_items_max=4, background=False, timeout_seconds=30)


class History:
    """Writers that count their commits; the note of each record says whose and which it is."""

    def __init__(self, seed: int, *, writers: int = 3, commits: int = 8) -> None:
        self.sim = Simulation(seed, on_record=self.on_record, has_parts=False)
        self.commits = commits
        self.times: dict[str, int] = {}
        """When each commit happened, by its note."""
        self.refused: set[str] = set()
        self.unknown: set[str] = set()
        self.done: dict[str, int] = {}
        """How many commits each writer is through with, whatever came of them."""
        for number in range(writers):
            name = f"writer{number}"
            self.sim.act(name, partial(self.write, name=name))
        self.sim.act("truncator", self.truncate, keeper=True)

    def on_record(self, seen: Seen) -> None:
        note = seen.record.note
        if not note:
            return
        if note in self.times:
            raise Broken(f"commit {note} is in the log twice")
        if note in self.refused:
            raise Broken(f"commit {note} was refused, and is in the log now")
        upper = seen.after.meta.upper
        assert upper is not None
        self.times[note] = upper - 1

    def write(self, world: World, name: str) -> None:
        with_tokens = name.endswith("1")
        machine = machine_in(world)
        unknown = False
        while self.done.get(name, 0) < self.commits:
            number = self.done.get(name, 0)
            note = f"{name}/{number}"
            token = (name, number) if with_tokens else None
            if not with_tokens:
                self.done[name] = number + 1  # should the process die, nobody knows any more
                self.unknown.add(note)
            try:
                machine.look()
                change = () if machine.ask(lambda s: current_table(s, "t")) else _CREATE
                command = Commit(
                    world.env.now_micros(), (Write("t", batch()),), change, token=token
                )
                result = machine.submit(command, note=note)
            except (Conflict, UsageError) as error:
                if change:  # another made the table first
                    self.settled(note, refused=True)
                    continue
                raise AssertionError(f"{note}: {error}") from error
            except Fenced as error:
                # Nobody ends sessions here. But when the log was truncated past a session's
                # first record while its outcome was unknown, the session cannot be told from one
                # that was ended, and goes for one.
                if not unknown:
                    raise AssertionError(f"{note}: {error}") from error
                self.settled(note, refused=True)
                machine = machine_in(world)
                unknown = False
                continue
            except LocationError as error:
                self.settled(note, refused=not error.may_have_happened)
                unknown = unknown or error.may_have_happened
                continue
            self.settled(note, refused=False, time=result.time, repeated=result.repeated)
            self.done[name] = number + 1
        machine.close()

    def settled(
        self, note: str, *, refused: bool, time: int | None = None, repeated: bool = False
    ) -> None:
        self.sim.watch.look()
        if refused and note not in self.times and not note.startswith("writer1"):
            self.refused.add(note)
        elif refused and not note.startswith("writer1"):
            raise Broken(f"commit {note} is in the log, and was refused")
        if time is not None and self.times.get(note) != time:
            raise Broken(f"commit {note} was acknowledged at {time}, not {self.times.get(note)}")
        assert not repeated or note.startswith("writer1")
        if refused or time is not None:
            self.unknown.discard(note)

    def truncate(self, world: World) -> None:
        """Cuts the log as vacuum will: below the newest rollup but one."""
        while not self.sim.closing:
            world.env.sleep(world.env.random() * 0.02)
            state = self.sim.watch.states.get(SHARD)
            rollups = [] if state is None else [key[0] for key, _ in state.rollups.range()]
            if len(rollups) > 1:
                try:
                    world.location.consensus.truncate(SHARD, rollups[-2], timeout=1)
                except LocationError:
                    continue

    def play(self, steps: int = 1500) -> str:
        self.sim.play(steps, at_end=self.at_end)
        return self.sim.scheduler.trace_hash()

    def at_end(self) -> None:
        for number in range(self.commits):
            assert f"writer1/{number}" in self.times, "a token's commit happens in the end"


def machine_in(world: World) -> Machine:
    return Machine(world.location, SHARD, new_session_id(world.env), world.env, SETTINGS)


_CREATE = (TableChange(table("t", "t"), None),)


def histories(seeds: range) -> Iterator[History]:
    for seed in seeds:
        history = History(seed)
        history.play()
        yield history


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_no_history_doubles_loses_or_misreports_a_commit(first: int) -> None:
    played = list(histories(range(first, first + 20)))
    assert sum(len(history.times) for history in played) > 20 * 12
    assert any(history.unknown for history in played), "no fault was ever met"


def test_one_seed_replays_one_history() -> None:
    hashes = [History(seed).play() for seed in (5, 5, 6)]
    assert hashes[0] == hashes[1]
    assert hashes[0] != hashes[2]


# --- rules that are broken on purpose have to be noticed


def first_failure(seeds: range) -> str:
    """What the first history that fails says."""
    for seed in seeds:
        try:
            History(seed).play()
        except (AssertionError, StrandlineError) as error:
            return str(error)
    return ""


def test_an_unknown_outcome_that_goes_for_a_failure_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lost(self: Settling, attempt: Any, deadline: Deadline) -> bool:
        self.unsettled = None
        self._follower.catch_up(deadline)
        self._session.count = (
            attempt.record.count
        )  # else it takes its own record for a copy's, and ends
        return False

    monkeypatch.setattr(Settling, "_settle", lost)
    assert "is in the log twice" in first_failure(range(40))


def test_a_slot_below_the_boundary_that_goes_for_a_failure_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lost(self: Settling, attempt: Any, deadline: Deadline) -> bool:
        self.unsettled = None
        self._follower.catch_up(deadline)
        self._session.count = (
            attempt.record.count
        )  # else it takes its own record for a copy's, and ends
        return False

    monkeypatch.setattr(Settling, "_settled_by_state", lost)
    assert "is in the log twice" in first_failure(range(150))


def test_a_newcomer_that_opens_a_wrong_state_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    adopted = Rolling._adopted

    def too_early(self: Rolling, sealed: Sealed, state: State) -> State:
        self._since = []  # what was committed beside the rollup is forgotten
        return adopted(self, sealed, state)

    monkeypatch.setattr(Rolling, "_adopted", too_early)
    assert first_failure(range(60)) != ""
