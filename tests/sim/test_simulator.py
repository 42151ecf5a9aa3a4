"""Histories of whole databases in bad weather, and proof that broken rules would be noticed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from strandline.env import Deadline
from strandline.shard.follower import Follower
from strandline.shard.look import Look
from strandline.shard.settling import Settling
from strandline.state import decide
from strandline.state.commands import Compact, Read
from strandline.state.decide import Author
from strandline.state.model import Entry, TableVersion
from strandline.state.replay import State
from strandline.testing.simulator import History, failure, main
from strandline.txn import apply, view
from strandline.txn.store import Store
from strandline.txn.txns import Txns
from strandline.write import commit as writing

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("first", range(1, 19, 3))
def test_no_history_shows_anything_that_the_model_does_not(first: int) -> None:
    stories = [failure(seed) for seed in range(first, first + 3)]
    assert [story for story in stories if story] == []


def test_one_seed_replays_one_history_in_any_process() -> None:
    program = (
        "import logging; logging.disable(50)\n"
        "from strandline.testing.simulator import History\n"
        "print(*[History(seed).play() for seed in (3, 12)])"
    )
    hashes = set()
    for hash_seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        hashes.add(run.stdout)
    hashes.add(f"{History(3).play()} {History(12).play()}\n")
    assert len(hashes) == 1


def test_histories_meet_what_they_are_there_for() -> None:
    histories = [History(seed) for seed in (1, 3, 4, 9, 12)]
    for history in histories:
        history.play()
    reference_outcomes = {w.outcome for h in histories for w in h.reference.writes.values()}
    assert reference_outcomes >= {"acknowledged", "unknown"}
    assert any(actor.lives > 1 for h in histories for actor in h.sim.actors)
    crowded = {h.crowd is not None for h in histories}
    assert crowded == {True, False}, "some share a handle and some do not"
    assert sum(reader.compared for h in histories for reader in h.readers) > 50
    states = [state for h in histories for state in h.sim.watch.states.values()]
    assert any(state.meta.since for state in states), "nothing was ever given up"
    assert any(sum(1 for _ in state.leaves.range()) > 1 for state in states), "nothing was split"
    assert any(list(state.dead.range()) for state in states), "nothing was compacted"
    assert any(log[0].seqno > 1 for h in histories for log in h.sim.store.logs.values())


# --- rules that are broken on purpose


def noticed(seeds: range, saying: str = "") -> str:
    """The story of the first history that fails and says that."""
    for seed in seeds:
        story = failure(seed)
        if story and saying in story:
            return story
    return ""


def test_an_unknown_outcome_that_goes_for_a_failure_is_noticed(monkeypatch: Patch) -> None:
    def lost(self: Settling, attempt: Any, deadline: Deadline) -> bool:
        self.unsettled = None
        self._follower.catch_up(deadline)
        self._session.count = (
            attempt.record.count
        )  # else it takes its own record for a copy's, and ends
        return False

    monkeypatch.setattr(Settling, "_settle", lost)
    # Other histories show it in other ways: a table that was made is made again, and refused.
    assert noticed(range(1, 46), "is in the log twice")


def test_an_overlay_without_the_filter_by_time_is_noticed(monkeypatch: Patch) -> None:
    overlay = Txns.overlay

    def unfiltered(
        self: Txns, look: Look, table: str, upper: int, as_of: int | None = None
    ) -> tuple[Entry, ...]:
        return overlay(self, look, table, upper if as_of is None else 0, as_of)

    monkeypatch.setattr(Txns, "overlay", unfiltered)
    # Others show it in other ways: a row is retracted more often than it was added.
    assert noticed(range(1, 46), "too many")


def test_a_cached_data_state_that_is_older_than_what_was_tidied_is_noticed(
    monkeypatch: Patch,
) -> None:
    data_for = view.data_for

    def cached(store: Store, look: Look, version: TableVersion, deadline: Deadline) -> Look:
        known = store.data(version.table).known(deadline)
        return known if known.seqno else data_for(store, look, version, deadline)

    monkeypatch.setattr(view, "data_for", cached)
    assert noticed(range(1, 46)) != ""


def test_a_data_shard_that_is_read_before_the_txns_shard_is_noticed(monkeypatch: Patch) -> None:
    settled, data_for = view._settled, view.data_for
    early: dict[tuple[int, str], Look] = {}

    def data_first(store: Store, as_of: int | None, deadline: Deadline) -> tuple[Look, int]:
        for machine in store.machines()[1:]:
            early[id(store), machine.shard] = machine.look(deadline)
        return settled(store, as_of, deadline)

    def read_early(store: Store, look: Look, version: TableVersion, deadline: Deadline) -> Look:
        known = early.get((id(store), version.table))
        return known or data_for(store, look, version, deadline)

    monkeypatch.setattr(view, "_settled", data_first)
    monkeypatch.setattr(view, "data_for", read_early)
    assert noticed(range(1, 200), "Mismatch")


def test_an_apply_that_splits_one_time_is_noticed(monkeypatch: Patch) -> None:
    bite = apply._bite

    def by_entries(entries: tuple[Entry, ...], commits: int) -> list[Entry]:
        whole = bite(entries, commits)
        return whole[:-1] if whole and whole[-1].ordinal else whole

    monkeypatch.setattr(apply, "_bite", by_entries)
    assert noticed(range(1, 46), "missing")


@pytest.mark.slow
def test_a_compaction_that_is_applied_though_an_input_is_gone_is_noticed(
    monkeypatch: Patch,
) -> None:
    transitions: dict[type, Callable[..., Any]] = decide._TRANSITIONS
    compact = transitions[Compact]

    def with_what_is_left(state: State, command: Compact, author: Author) -> Any:
        there = [key for key in command.inputs if state.references.get(key) is not None]
        return compact(state, replace(command, inputs=tuple(there)), author)

    monkeypatch.setitem(transitions, Compact, with_what_is_left)
    assert noticed(range(1, 100), "too many")


def test_a_write_that_is_not_computed_again_after_a_change_is_noticed(monkeypatch: Patch) -> None:
    monkeypatch.setattr(writing, "unchanged", lambda table, *_: Read(table, 1 << 62))
    assert noticed(range(1, 46), "Mismatch")


@pytest.mark.slow
def test_a_look_at_the_log_that_is_shared_with_one_begun_before_is_noticed(
    monkeypatch: Patch,
) -> None:
    catch_up = Follower.catch_up
    looking: set[int] = set()

    def shared(self: Follower, deadline: Deadline) -> State:
        if id(self) in looking and self.newest is not None:
            return self.newest
        looking.add(id(self))
        try:
            return catch_up(self, deadline)
        finally:
            looking.discard(id(self))

    monkeypatch.setattr(Follower, "catch_up", shared)
    # Only threads that share a handle can meet this.
    assert noticed(range(1, 46), "missing")


# --- the program


def test_the_program_tells_how_to_play_a_failed_history_again(
    monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    def forgetful(self: Txns, *arguments: Any) -> tuple[Entry, ...]:
        return ()

    monkeypatch.setattr(Txns, "overlay", forgetful)
    story = failure(1)
    assert story.startswith("seed 1 failed after ")
    assert len(story.splitlines()) > 20
    assert story.endswith("--seeds 1 --first 1 --trace")
    monkeypatch.undo()
    assert main(["--seeds", "1", "--first", "3", "--trace"]) == 0
    assert "the storm is over" in capsys.readouterr().out
