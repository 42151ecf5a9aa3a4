"""Proof that the simulator would notice broken rules of holders, sweeps and clocks.

Each test breaks one rule and says in how many seeds the first history shows it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from strandline.env import Deadline
from strandline.ids import ObjectKey
from strandline.shard import sweeping
from strandline.shard.look import Look
from strandline.state import committing, decide
from strandline.state.commands import Attach
from strandline.state.decide import Author
from strandline.state.model import Meta
from strandline.state.replay import State
from strandline.testing.simulator import History
from strandline.txn.store import Store
from strandline.upkeep import compaction, sweep, vacuum

Patch = pytest.MonkeyPatch


def noticed_with(guests: Iterable[str], seeds: range, saying: str) -> str:
    """What the first history with these guests fails with, if it says that."""
    logging.disable(logging.ERROR)  # what goes wrong on purpose
    try:
        for seed in seeds:
            try:
                History(seed, guests=[*guests]).play()
            except Exception as error:  # noqa: BLE001  whatever it is
                if saying in str(error):
                    return f"seed {seed}: {error}"
    finally:
        logging.disable(logging.NOTSET)
    return ""


# --- holders


def test_a_commit_that_checks_no_epochs_is_noticed(monkeypatch: Patch) -> None:
    monkeypatch.setattr(committing, "check_holders", lambda *_: None)
    assert noticed_with(["attachers"], range(1, 10), "committed under epoch")
    assert noticed_with(["attachers"], range(1, 10), "holds nothing")


@pytest.mark.slow
def test_an_attach_that_dooms_nobody_is_noticed(monkeypatch: Patch) -> None:
    transitions: dict[type, Callable[..., Any]] = decide._TRANSITIONS
    attach = transitions[Attach]

    def alone(state: State, command: Attach, author: Author) -> Any:
        diffs, holder = attach(state, command, author)
        return [diff for diff in diffs if diff.collection == "holders"], holder

    monkeypatch.setitem(transitions, Attach, alone)
    assert noticed_with(["attachers"], range(1, 20), "which is doomed")


def test_an_attach_that_forgets_the_position_is_noticed(monkeypatch: Patch) -> None:
    transitions: dict[type, Callable[..., Any]] = decide._TRANSITIONS
    attach = transitions[Attach]

    def forgetful(state: State, command: Attach, author: Author) -> Any:
        diffs, holder = attach(state, command, author)
        fresh = replace(holder, position="")
        changed = [
            diff._replace(after=fresh) if diff.collection == "holders" else diff for diff in diffs
        ]
        return changed, fresh

    monkeypatch.setitem(transitions, Attach, forgetful)
    assert noticed_with(["attachers"], range(1, 10), "and copied was")


# --- sweeps


def test_a_sweep_that_ignores_what_is_dead_is_noticed(monkeypatch: Patch) -> None:
    named = sweeping._named

    def living(state: State, names: Any) -> tuple[set[str], list[str]]:
        found, rollups = named(state, names)
        return found - {dead.key for _, dead in state.dead.range()}, rollups

    monkeypatch.setattr(sweeping, "_named", living)
    assert noticed_with(["litterers"], range(1, 10), "it died at")


@pytest.mark.slow
def test_a_sweep_that_ignores_the_pages_of_rollups_is_noticed(monkeypatch: Patch) -> None:
    def pages(*_: Any) -> Iterator[str]:
        yield from ()

    monkeypatch.setattr(sweeping, "_pages", pages)
    assert noticed_with(["litterers"], range(1, 60), "the rollup of")


def test_a_sweep_that_deletes_before_the_end_was_acknowledged_is_noticed(
    monkeypatch: Patch,
) -> None:
    registered = sweeping.registered

    def hasty(*arguments: Any) -> Any:
        found = registered(*arguments)
        return [
            replace(each, session=replace(each.session, acknowledged=each.session.expired))
            for each in found
        ]

    monkeypatch.setattr(sweeping, "registered", hasty)
    assert noticed_with(["litterers"], range(1, 20), "its session may still write")


class _As:
    """Something with some of its attributes replaced."""

    def __init__(self, what: Any, **more: Any) -> None:
        self._what = what
        self.__dict__ |= more

    def __getattr__(self, name: str) -> Any:
        return getattr(self._what, name)


def test_a_sweep_that_reads_the_txns_shard_before_it_knows_who_has_ended_is_noticed(
    monkeypatch: Patch,
) -> None:
    needed_of, look_out = sweep.needed_of, Store.look_out
    early: dict[int, Look] = {}

    def look_first(store: Store, *arguments: Any, **more: Any) -> None:
        look_out(store, *arguments, **more)
        early[id(store)] = store.txns.machine.known()

    def stale(store: Store, keys: Iterable[ObjectKey], deadline: Deadline) -> Any:
        machine = _As(store.txns.machine, look=early[id(store)].by)
        return needed_of(_As(store, txns=_As(store.txns, machine=machine)), keys, deadline)  # type: ignore[arg-type]  # a proxy

    monkeypatch.setattr(Store, "look_out", look_first)
    monkeypatch.setattr(sweep, "needed_of", stale)
    assert noticed_with(["litterers"], range(1, 100), "is deleted, but")


@pytest.mark.slow
def test_a_sweep_that_reads_data_shards_before_the_txns_shard_is_noticed(
    monkeypatch: Patch,
) -> None:
    needed_of, look_out = sweep.needed_of, Store.look_out
    early: dict[tuple[int, str], Look] = {}

    def look_first(store: Store, *arguments: Any, **more: Any) -> None:
        look_out(store, *arguments, **more)
        for machine in store.machines()[1:]:
            early[id(store), machine.shard] = machine.known()

    def stale(store: Store, keys: Iterable[ObjectKey], deadline: Deadline) -> Any:
        def data(shard: str) -> Any:
            machine = store.data(shard)
            look = early.get((id(store), shard))
            return machine if look is None else _As(machine, look=look.by)

        return needed_of(_As(store, data=data), keys, deadline)  # type: ignore[arg-type]  # a proxy

    monkeypatch.setattr(sweeping, "_check_reaches", lambda *_: None)
    monkeypatch.setattr(Store, "look_out", look_first)
    monkeypatch.setattr(sweep, "needed_of", stale)
    assert noticed_with(["litterers"], range(1, 100), "is deleted, but")


@pytest.mark.slow
def test_a_session_that_is_forgotten_after_one_sweep_is_noticed(monkeypatch: Patch) -> None:
    monkeypatch.setattr(sweeping.Registered, "comes_again", lambda *_: True)
    monkeypatch.setattr(sweeping.Registered, "is_due", lambda *_: True)
    assert noticed_with(["litterers"], range(1, 60), "one an hour, leave")


# --- clocks


@pytest.mark.slow
def test_a_jump_of_a_clock_that_moves_since_is_noticed(monkeypatch: Patch) -> None:
    def latest(meta: Meta) -> int:
        return (meta.upper or 0) - 1

    monkeypatch.setattr(compaction, "settled_time", latest)
    assert noticed_with(["jumper"], range(1, 100), "gives up what was before")


@pytest.mark.slow
def test_a_jump_of_a_clock_that_ends_dropped_tables_is_noticed(monkeypatch: Patch) -> None:
    monkeypatch.setattr(vacuum, "settled_time", lambda _: 1 << 62)
    assert noticed_with(["jumper"], range(40, 100), "gives up what was before")
