"""Proof that the simulator would notice broken rules of holds, vacuums, subscriptions and commits.

Each test breaks one rule and says in how many seeds the first history shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from strandline.changes import spans as changes
from strandline.shard import deleting
from strandline.state import committing, decide, garbage, updates
from strandline.state.commands import CommitGroup, Compact
from strandline.state.decide import Author
from strandline.state.model import Entry
from strandline.state.replay import State
from strandline.testing.reference import Mismatch
from strandline.testing.simulator import History
from tests.sim.test_simulator import noticed

Patch = pytest.MonkeyPatch


@pytest.mark.slow
def test_a_vacuum_that_ignores_a_hold_is_noticed(monkeypatch: Patch) -> None:
    monkeypatch.setattr(garbage, "_held", lambda state: state.seqno)
    assert noticed(range(1, 200), "and the hold")


def test_a_vacuum_that_waits_for_no_mark_is_noticed(monkeypatch: Patch) -> None:
    bounds = garbage._Passed

    def unmarked(rollup: int, hold: int, _: int, receipt: int) -> Any:
        return bounds(rollup, hold, 1 << 62, receipt)

    monkeypatch.setattr(garbage, "_Passed", unmarked)
    assert noticed(range(1, 40), "microseconds ago")


def test_a_vacuum_that_waits_for_no_rollup_is_noticed(monkeypatch: Patch) -> None:
    bounds = garbage._Passed

    def early(_: int, hold: int, delay: int, receipt: int) -> Any:
        return bounds(1 << 62, hold, delay, receipt)

    monkeypatch.setattr(garbage, "_Passed", early)
    assert noticed(range(1, 40), "the newest rollup that was read back")


def test_a_vacuum_that_waits_for_no_receipt_is_noticed(monkeypatch: Patch) -> None:
    bounds = garbage._Passed

    def uncopied(rollup: int, hold: int, delay: int, _: int) -> Any:
        return bounds(rollup, hold, delay, 1 << 62)

    monkeypatch.setattr(garbage, "_Passed", uncopied)
    assert noticed(range(1, 40), "receipts reach")


def test_a_vacuum_that_forgets_before_it_deletes_is_noticed(monkeypatch: Patch) -> None:
    monkeypatch.setattr(deleting, "_delete", lambda *_: None)
    assert noticed(range(1, 40), "not deleted yet")


def test_ranks_that_a_compaction_forwards_are_noticed(monkeypatch: Patch) -> None:
    transitions: dict[type, Callable[..., Any]] = decide._TRANSITIONS
    compact = transitions[Compact]

    def forwarded(state: State, command: Compact, author: Author) -> Any:
        upper = state.meta.upper or 1
        outputs = tuple(
            replace(output, time=upper - 1) if output.part.time_max is None else output
            for output in command.outputs
        )
        return compact(state, replace(command, outputs=outputs), author)

    monkeypatch.setitem(transitions, Compact, forwarded)
    assert noticed(range(1, 40), "Mismatch")


@pytest.mark.slow
def test_members_of_a_group_that_are_not_checked_against_each_other_are_noticed(
    monkeypatch: Patch,
) -> None:
    check = committing._check_read
    group = committing.commit_group
    begun: list[State] = []

    def alone(state: State, read: Any, touches: Any) -> None:
        check(begun[-1] if begun else state, read, touches)

    def commit_group(state: State, *arguments: Any) -> Any:
        begun.append(state)
        try:
            return group(state, *arguments)
        finally:
            begun.pop()

    monkeypatch.setattr(committing, "_check_read", alone)
    monkeypatch.setitem(decide._TRANSITIONS, CommitGroup, commit_group)
    # Several have to wait for one turn of one handle, and to have read the same.
    with pytest.raises(Mismatch):
        _played_with_many_transactions(range(1, 40))


@pytest.mark.slow
def test_a_commit_that_takes_what_was_tidied_for_unchanged_is_noticed(monkeypatch: Patch) -> None:
    check = committing._check_read

    class Untidied:
        """A state that knows of no entry that was tidied."""

        def __init__(self, state: State) -> None:
            self._state = state
            self.tidied: dict[Any, Any] = {}

        def __getattr__(self, name: str) -> Any:
            return getattr(self._state, name)

    def assumed(state: State, read: Any, touches: Any) -> None:
        check(Untidied(state), read, touches)  # type: ignore[arg-type]  # a proxy

    monkeypatch.setattr(committing, "_check_read", assumed)
    assert noticed(range(1, 100), "Mismatch")


def test_a_subscriber_that_takes_its_entries_for_all_that_happened_is_noticed(
    monkeypatch: Patch,
) -> None:
    # While apply and tidy go on, some of them are gone.
    monkeypatch.setattr(changes, "tidied_through", lambda *_, **__: -1)
    assert noticed(range(1, 40), "was told, and it is")


def test_a_subscriber_that_skips_entries_is_noticed(monkeypatch: Patch) -> None:
    committed = updates.entry_task

    def skipping(entries: list[Entry], intervals: Any) -> Any:
        return committed(entries[:-1] if len(entries) > 1 else entries, intervals)

    monkeypatch.setattr(changes, "entry_task", skipping)
    assert noticed(range(1, 40), "was told, and it is")


def _played_with_many_transactions(seeds: range) -> None:
    for seed in seeds:
        History(seed, transactors=6).play()
