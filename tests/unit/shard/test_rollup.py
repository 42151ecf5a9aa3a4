"""A rollup holds the whole state, costs what changed, and is never the only way to it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from strandline.env import Deadline
from strandline.errors import Corruption, LocationError
from strandline.ids import ObjectKey
from strandline.location import Location
from strandline.settings import Settings
from strandline.shard.look import Look
from strandline.shard.machine import Decide, Machine
from strandline.shard.opening import SCAN_RECORDS
from strandline.shard.vacuum import ShardVacuum, Vacuum
from strandline.state.codec import decode_rollup
from strandline.state.commands import AdvanceUpper, Apply, Commit, Heartbeat, Tidy, Write
from strandline.state.decide import Decision, decide
from strandline.state.invariants import broken
from strandline.state.model import COLLECTIONS, Batch, Diff, Part, Rollup, Session
from strandline.state.pages import Page, PagesNeeded
from strandline.state.replay import State, replay
from tests.support.deadlines import within
from tests.support.shards import SHARD, TABLE, Place, create, everything, texts, write
from tests.unit.state_values import ITEMS

EVERY = 8
SMALL = Settings(
    background=False, rollup_every_records=EVERY, page_items_max=20, page_bytes_max=8_000
)
PAYLOAD = b"x" * 900


@pytest.fixture(name="place")
def _place() -> Place:
    return Place(SMALL)


def fill(place: Place, commits: int) -> Machine:
    """A machine that has written a table and so many commits of about a kilobyte."""
    machine = place.machine()
    create(machine)
    for n in range(commits):
        write(machine, b"%06d" % n + PAYLOAD)
    return machine


def rollups(place: Place) -> list[str]:
    """Keys of the rollups written, oldest first."""
    return [key for key, _ in place.blob.puts if key.endswith(".rollup")]


def pages(place: Place) -> list[str]:
    return [key for key, _ in place.blob.puts if key.endswith(".page")]


def named(machine: Machine) -> Rollup | None:
    """The rollup that the newest record names."""
    return machine.records(machine.look().seqno)[0].rollup


def equal(place: Place, machine: Machine) -> None:
    """A process that comes new finds what `machine` knows."""
    fresh = place.machine()
    machine.look()
    fresh.look()
    assert everything(fresh) == everything(machine)
    assert fresh.state.hash == machine.state.hash
    assert broken(fresh.state) == []


# --- what is written, and when


def test_a_rollup_is_written_every_so_many_records_and_named_by_the_next(place: Place) -> None:
    machine = fill(place, EVERY - 2)
    assert rollups(place) == []
    write(machine)
    assert len(rollups(place)) == 1
    assert named(machine) is None
    write(machine)
    rollup = named(machine)
    assert rollup is not None
    assert [rollup.key] == rollups(place)
    assert ObjectKey.parse(rollup.key).seqno == rollup.seqno == EVERY
    assert machine.state.rollups.get((rollup.seqno,)) == rollup
    for _ in range(3 * EVERY):
        write(machine)
    assert [ObjectKey.parse(key).seqno for key in rollups(place)] == [8, 16, 24, 32]
    equal(place, machine)


def test_opening_reads_the_rollup_and_only_the_pages_that_are_looked_at(place: Place) -> None:
    machine = fill(place, 20 * EVERY)
    assert len(machine.state.entries.slots) > 15
    fresh = place.machine()
    place.blob.gets.clear()
    fresh.look()
    rollup = named(machine)
    assert rollup is not None
    assert place.blob.gets == [rollup.key]
    assert fresh.pages_read == 0
    time = machine.state.meta.upper
    assert time is not None
    found = fresh.ask(lambda s: s.entries.get((TABLE, time // 2, 0)))
    assert found is not None
    assert fresh.pages_read == 1
    fresh.ask(lambda s: s.entries.get((TABLE, time // 2, 0)))
    assert fresh.pages_read == 1
    assert len(place.blob.gets) == 2


def test_pages_that_are_asked_for_together_are_read_together(place: Place) -> None:
    fill(place, 20 * EVERY)
    fresh = place.machine()
    fresh.look()
    asked: list[int] = []

    def count(state: State) -> int:
        asked.append(0)
        return state.entries.count()

    assert fresh.ask(count) == 20 * EVERY
    assert len(asked) == 2
    assert fresh.pages_read > 15


def test_a_writer_that_came_new_writes_without_reading_the_pages(place: Place) -> None:
    fill(place, 20 * EVERY)
    fresh = place.machine()
    write(fresh, b"new")
    assert fresh.pages_read <= 1  # the end of the entries, to check against
    equal(place, fresh)


def test_what_did_not_change_is_not_written_again(place: Place) -> None:
    machine = fill(place, 20 * EVERY)
    known = set(pages(place))
    place.blob.puts.clear()
    for n in range(EVERY):
        write(machine, b"y%05d" % n + PAYLOAD)
    assert len(rollups(place)) == 1
    assert len(pages(place)) <= 3
    assert not set(pages(place)) & known
    equal(place, machine)


def test_small_collections_are_inside_the_manifest(place: Place) -> None:
    machine = place.machine()
    create(machine)
    for n in range(3 * EVERY):
        write(machine, b"%d" % n)
    assert len(rollups(place)) == 3
    assert pages(place) == []
    fresh = place.machine()
    assert len(fresh.ask(texts)) == 3 * EVERY
    assert fresh.pages_read == 0


def test_pages_keep_to_their_bounds(place: Place) -> None:
    machine = fill(place, 20 * EVERY)
    sizes = [size for key, size in place.blob.puts if key.endswith(".page")]
    assert max(sizes) <= SMALL.page_bytes_max * 1.25
    stored = [slot.ref for slot in machine.state.entries.slots if slot.ref is not None]
    assert all(ref.items <= SMALL.page_items_max for ref in stored)
    # Neither do they stay small: on average they are half full.
    assert sum(ref.size for ref in stored) / len(stored) > SMALL.page_bytes_max / 3


def test_a_collection_that_shrinks_has_few_pages_again(place: Place) -> None:
    machine = fill(place, 20 * EVERY)
    before = len(machine.state.entries.slots)
    keys = [key for key, _ in machine.state.entries.range()]
    for start in range(0, len(keys), 10):  # of ten one remains
        machine.submit(Tidy(tuple(keys[start + 1 : start + 10])))
    for _ in range(2 * EVERY):
        write(machine, PAYLOAD)
    assert len(machine.state.entries.slots) < before / 2
    equal(place, machine)


def test_a_collection_that_shrinks_page_by_page_has_few_pages_again(place: Place) -> None:
    machine = fill(place, 20 * EVERY)
    before = len(machine.state.entries.slots)
    for slot in machine.state.entries.slots[:-1]:
        assert slot.page is not None
        machine.submit(Tidy(tuple(slot.page.order[1:])))
        for _ in range(EVERY):
            machine.submit(AdvanceUpper((machine.state.meta.upper or 0) + 1))
    # Of one item of a kilobyte each they would stay; two of them are a quarter of a page.
    assert len(machine.state.entries.slots) < before * 0.6
    equal(place, machine)


def test_a_collection_may_become_empty(place: Place) -> None:
    machine = fill(place, 6 * EVERY)
    fresh = place.machine()  # its pages are not loaded
    keys = tuple(machine.ask(lambda s: [key for key, _ in s.entries.range()]))
    fresh.submit(Tidy(keys))
    for _ in range(2 * EVERY):
        fresh.submit(Tidy(()))
        write(fresh, b"z")
    assert fresh.ask(texts) == [b"z"] * (2 * EVERY)
    equal(place, fresh)


@pytest.mark.parametrize("by_newcomer", [True, False])
def test_a_map_begins_at_the_beginning_though_its_first_page_is_gone(
    place: Place, by_newcomer: bool
) -> None:
    machine = fill(place, 20 * EVERY + EVERY // 2)
    newcomer = place.machine()
    newcomer.look()  # none of its pages are loaded, and following needs none
    first = machine.state.entries.slots[1].first
    machine.submit(Tidy(tuple(key for key, _ in machine.state.entries.range((), first))))
    writer = newcomer if by_newcomer else machine
    before = len(rollups(place))
    for n in range(2 * EVERY):  # no entries come after it, which would set it right
        writer.submit(AdvanceUpper(10_000 + n))
    assert len(rollups(place)) > before
    fresh = place.machine()
    for each in (fresh.look().state, writer.state):
        assert each.entries.slots[0].first == ()
        assert len({slot.first for slot in each.entries.slots}) == len(each.entries.slots)
    assert fresh.ask(lambda s: s.entries.floor((TABLE, -1, 0))) is None
    equal(place, writer)


def test_pages_are_found_for_a_state_that_a_function_derives(place: Place) -> None:
    fill(place, 20 * EVERY)
    fresh = place.machine()
    fresh.look()
    asked: list[int] = []

    def derive(state: State) -> Any:
        asked.append(0)
        assert len(asked) < 5, "the page that was loaded is thrown away with the derived state"
        gone = [Diff("entries", (TABLE, 0, 9), None)]
        return replay(state, state.seqno + 1, b"", gone).entries.floor((TABLE, 3, 0))

    found = fresh.ask(derive)
    assert found is not None
    assert fresh.pages_read == 1


@pytest.mark.parametrize("inline_bytes", [10**9, 0], ids=["inside", "in pages"])
@settings(max_examples=3, deadline=None, phases=[Phase.generate])
@given(items=st.fixed_dictionaries({name: ITEMS[name] for name in ITEMS if name != "rollups"}))
def test_a_rollup_has_every_collection(inline_bytes: int, items: dict[str, Any]) -> None:
    place = Place(Settings())
    added = [Diff(name, key, value) for name, (key, value) in items.items()]

    def adding(state: State, command: Any, author: Any) -> Decision[Any]:
        decided = decide(state, command, author)
        return Decision((*added, *decided.diffs), decided.result)

    machine = place.machine(decide=adding)
    machine.submit(Heartbeat())
    added.clear()
    with patch("strandline.shard.rollup.INLINE_BYTES_MAX", inline_bytes):
        rolled_up(machine)
        rolled_up(machine)  # which has the first one
    newest = named(machine)
    assert newest is not None
    place.consensus.truncate(SHARD, newest.seqno + 1, timeout=1)
    fresh = place.machine()
    fresh.look()
    wanted = everything(machine)
    assert all(wanted[name] for name in COLLECTIONS)
    assert everything(fresh) == wanted


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_is_written_by_whom_a_newcomer_finds_it(data: Any) -> None:
    place = Place(
        Settings(background=False, rollup_every_records=3, page_items_max=4, page_bytes_max=9_000)
    )
    machines = [place.machine()]
    create(machines[0])
    for n in range(data.draw(st.integers(1, 40))):
        machine = data.draw(st.sampled_from(machines))
        keys = machine.ask(lambda s: [key for key, _ in s.entries.range()])
        if keys and data.draw(st.booleans()):
            some = data.draw(st.lists(st.sampled_from(keys), max_size=6, unique=True))
            machine.submit(Tidy(tuple(some)))
        else:
            write(machine, b"%d" % n + b"x" * data.draw(st.sampled_from([0, 900, 6_000])))
        if data.draw(st.integers(0, 5)) == 0:
            machines.append(place.machine())  # whose pages are not loaded
    for machine in machines:
        equal(place, machine)


# --- beside everything else


def test_commands_that_go_on_while_a_rollup_is_written_are_not_lost(place: Place) -> None:
    background = Settings(rollup_every_records=EVERY, page_items_max=20, page_bytes_max=8_000)
    machine = place.machine(background)
    other = place.machine(background)
    create(machine)
    for n in range(12 * EVERY):
        write(machine, b"%06d" % n + PAYLOAD)
    assert machine.rollup_due
    # In the middle of it: commits of its own, of another, removals, a read.
    old = [key for key, _ in machine.state.entries.range()]
    place.blob.before_put = [
        lambda: write(machine, b"beside 1"),
        lambda: write(other, b"beside 2"),
        lambda: machine.submit(Tidy(tuple(old[:5]))),
    ]
    assert machine.maybe_rollup()
    assert place.blob.before_put == []
    assert not machine.rollup_due
    write(machine, b"names it")
    assert named(machine) is not None
    entries = machine.ask(texts)
    assert entries[-3:] == [b"beside 1", b"beside 2", b"names it"]
    assert len(entries) == 12 * EVERY - 5 + 3
    equal(place, machine)
    # And it knows which pages are stored: the next one writes little.
    for _ in range(EVERY):
        write(machine, b"more")
    stored = len(pages(place))
    place.blob.puts.clear()
    assert machine.maybe_rollup()
    assert stored >= 12
    assert len(pages(place)) <= 4


def test_a_state_that_somebody_holds_is_not_disturbed(place: Place) -> None:
    machine = fill(place, EVERY - 1)
    held = machine.state
    contents = texts(held)
    for n in range(5 * EVERY):
        write(machine, b"later %d" % n + PAYLOAD)
    assert texts(held) == contents


def test_the_first_to_be_late_rolls_up_and_others_only_when_it_does_not() -> None:
    background = Settings(rollup_every_records=EVERY)
    place = Place(background)
    one, two = place.machine(), place.machine()
    create(one)
    write(two)
    for _ in range(EVERY - 2):
        write(one)
    two.look()
    assert one.rollup_due
    assert not two.rollup_due
    for _ in range(EVERY // 2):  # one does nothing about it
        write(two)
    assert two.rollup_due


def test_anothers_rollup_takes_the_place_of_ones_own(place: Place) -> None:
    background = Settings(rollup_every_records=EVERY)
    one, two = place.machine(background), place.machine(background)
    create(one)
    write(two)
    for _ in range(2 * EVERY):
        write(one)
    assert one.maybe_rollup()  # written, not named
    two.look()
    assert two.maybe_rollup()
    write(two)
    one.look()
    _, second = rollups(place)
    write(one)
    rollup = named(one)
    assert rollup is not None
    assert rollup.key == second
    assert one.ask(lambda s: [r.key for _, r in s.rollups.range()]) == [second]
    equal(place, one)


def test_who_never_wrote_writes_no_rollup(place: Place) -> None:
    background = Settings(rollup_every_records=EVERY)
    writer, reader = place.machine(background), place.machine(background)
    create(writer)
    for _ in range(3 * EVERY):
        write(writer)
    reader.look()
    assert not reader.rollup_due
    assert not reader.maybe_rollup()


def test_many_bytes_make_a_rollup_due_before_many_records(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.shard.rolling.REPLAY_COST_MAX", 500_000)
    machine = place.machine()
    create(machine)
    for _ in range(EVERY - 2):
        write(machine, b"x" * 200_000)
    assert [ObjectKey.parse(key).seqno for key in rollups(place)] == [4, 7]


def many_parts(first: int) -> tuple[tuple[int, Part], ...]:
    names = [f"{first + n:06d}" for n in range(30)]
    return tuple((0, Part(f"p{name}", 1, 1, name.encode(), name.encode())) for name in names)


def test_many_diffs_make_a_rollup_due_before_many_records(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.shard.rolling.REPLAY_COST_MAX", 500_000)
    machine = place.machine()
    for upper in range(EVERY - 2):
        parts = tuple((upper, part) for _, part in many_parts(100 * upper))
        machine.submit(Apply(upper, upper + 1, parts))
        machine.maybe_rollup()
    seqnos = [ObjectKey.parse(key).seqno for key in rollups(place)]
    assert seqnos == list(range(2, EVERY - 1, 2)), "each record has 60 diffs, for 240 KB"


def test_who_opens_a_shard_knows_what_its_replay_cost(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = place.machine()
    for upper in range(2):
        parts = tuple((upper, part) for _, part in many_parts(100 * upper))
        writer.submit(Apply(upper, upper + 1, parts))
    monkeypatch.setattr("strandline.shard.rolling.REPLAY_COST_MAX", 450_000)
    assert rollups(place) == []
    other = place.machine()
    other.submit(Heartbeat())
    other.maybe_rollup()
    assert [ObjectKey.parse(key).seqno for key in rollups(place)] == [3]
    other.submit(Heartbeat())
    third = place.machine()
    third.submit(Heartbeat())
    third.maybe_rollup()
    assert len(rollups(place)) == 1


def test_the_list_of_rollups_is_not_kept_in_memory() -> None:
    place = Place(
        Settings(background=False, rollup_every_records=2, page_items_max=20, page_bytes_max=4_000)
    )
    machine = fill(place, 0)
    for n in range(700):
        write(machine, b"%d" % n)
    slots = machine.state.rollups.slots
    assert len(slots) > 10
    assert sum(slot.page is not None for slot in slots) <= 3
    machine.look()
    assert machine.ask(lambda s: s.rollups.count()) >= 340
    equal(place, machine)


# --- failures


def test_a_rollup_that_fails_fails_no_commit_and_is_retried(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.blob.fail_after = 0
    with caplog.at_level(logging.WARNING, logger="strandline"):
        machine = fill(place, 2 * EVERY)
    assert "retried later" in caplog.text
    assert len(machine.ask(texts)) == 2 * EVERY
    assert rollups(place) == []
    place.blob.fail_after = None
    for _ in range(2 * EVERY):
        write(machine)
    assert len(rollups(place)) >= 1
    assert named(machine) is not None
    equal(place, machine)


@settings(max_examples=40, deadline=None)
@given(fail_after=st.integers(0, 12), commits=st.integers(20, 60))
def test_a_crash_anywhere_in_a_rollup_loses_nothing(fail_after: int, commits: int) -> None:
    place = Place(SMALL)
    background = Settings(rollup_every_records=EVERY, page_items_max=4, page_bytes_max=2_000)
    machine = place.machine(background)
    create(machine)
    for n in range(commits):
        write(machine, b"%06d" % n + PAYLOAD)
    place.blob.fail_after = fail_after
    completed = machine.maybe_rollup()
    place.blob.fail_after = None
    # The process ends here, between two puts; others go on.
    other = place.machine()
    write(other, b"after")
    assert len(other.ask(texts)) == commits + 1
    assert named(other) is None  # what was written half is never named, nor is what was not named
    for _ in range(2 * EVERY):
        write(other, b"after")
    assert named(other) is not None
    equal(place, other)
    assert completed == (fail_after >= len([k for k in pages(place) if machine.session in k]) + 1)


def test_a_damaged_newest_rollup_is_replaced_by_the_one_before_it(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    machine = fill(place, 10 * EVERY)
    newest = named(machine)
    assert newest is not None
    for harm in (place.damage, place.remove):
        harm(newest.key)
        with caplog.at_level(logging.WARNING, logger="strandline"):
            equal(place, machine)
        assert f"rollup {newest.key} of shard {SHARD} cannot be used" in caplog.text
    # Whoever goes on writing makes a new one, and names no damaged one meanwhile.
    fresh = place.machine()
    write(fresh)
    rollup = named(fresh)
    assert rollup is not None
    assert rollup.key != newest.key
    for _ in range(2 * EVERY):
        write(fresh)
    place.blob.gets.clear()
    equal(place, fresh)
    assert newest.key not in place.blob.gets


def test_a_damaged_rollup_is_not_named_again_though_others_name_it(place: Place) -> None:
    unaware = fill(place, 10 * EVERY)
    newest = named(unaware)
    assert newest is not None
    place.damage(newest.key)
    aware = place.machine(Settings())
    aware.look()
    write(unaware)
    assert named(unaware) == newest
    write(aware)
    rollup = named(aware)
    assert rollup is not None
    assert rollup.seqno < newest.seqno


def test_all_rollups_damaged_leave_the_log_from_the_beginning(place: Place) -> None:
    machine = fill(place, 5 * EVERY)
    for key in rollups(place):
        place.damage(key)
    equal(place, machine)


def test_no_rollup_and_no_log_before_it_is_corruption_that_names_the_rollup(place: Place) -> None:
    fill(place, 5 * EVERY)
    second, newest = rollups(place)[-2:]
    seqno = ObjectKey.parse(newest).seqno
    assert seqno is not None
    place.consensus.truncate(SHARD, seqno - EVERY, timeout=1)
    place.damage(newest)
    assert place.machine().look().seqno == 5 * EVERY + 1  # from the one before
    place.damage(second)
    with pytest.raises(Corruption) as caught:
        place.machine().look()
    assert caught.value.object in (second, newest)


def test_a_truncated_log_is_read_from_the_rollup(place: Place) -> None:
    behind = fill(place, EVERY)
    held = behind.state
    writer = place.machine()
    for n in range(5 * EVERY):
        write(writer, b"%d" % n)
    newest = named(writer)
    assert newest is not None
    place.consensus.truncate(SHARD, newest.seqno, timeout=1)
    assert behind.look().seqno == writer.state.seqno
    assert everything(behind) == everything(writer)
    assert held.seqno == EVERY + 1
    write(behind, b"and on")
    equal(place, writer)


@pytest.mark.parametrize("harm", ["damage", "remove"])
def test_a_damaged_page_is_healed_from_an_older_rollup(place: Place, harm: str) -> None:
    machine = fill(place, 20 * EVERY)
    wanted = machine.ask(texts)
    ref = machine.state.entries.slots[-2].ref
    assert ref is not None
    getattr(place, harm)(ref.key)
    fresh = place.machine()
    pinned = fresh.look()
    assert fresh.ask(texts) == wanted
    with pytest.raises(Corruption) as caught:  # a state that was taken before still needs it
        replace(_untouched(pinned), _follower=place.machine()._follower).ask(texts)
    assert caught.value.object == ref.key
    for _ in range(2 * EVERY):
        write(fresh)
    place.blob.gets.clear()
    equal(place, fresh)
    assert ref.key not in place.blob.gets


def _untouched(look: Look) -> Look:
    with pytest.raises(PagesNeeded):
        texts(look.state)
    return look


def test_a_page_that_every_rollup_needs_is_corruption_that_names_it(place: Place) -> None:
    machine = fill(place, 20 * EVERY)
    newest = named(machine)
    assert newest is not None
    place.consensus.truncate(SHARD, newest.seqno, timeout=1)
    ref = machine.state.entries.slots[2].ref
    assert ref is not None
    place.damage(ref.key)
    fresh = place.machine()
    with pytest.raises(Corruption) as caught:
        fresh.ask(texts)
    assert caught.value.object == ref.key
    # What does not need it works.
    assert fresh.ask(lambda s: s.meta.upper) == machine.state.meta.upper


def test_a_page_that_is_swapped_for_another_is_noticed(place: Place) -> None:
    fill(place, 20 * EVERY)
    fresh = place.machine()
    fresh.look()
    one, two = (slot.ref for slot in fresh.state.entries.slots[:2])
    assert one is not None
    assert two is not None
    objects = place.store.objects
    objects[one.key], objects[two.key] = objects[two.key], objects[one.key]
    place.consensus.truncate(SHARD, fresh.state.seqno, timeout=1)
    with pytest.raises(Corruption, match="another page"):
        fresh.known().ask(texts)


def test_a_rollup_whose_base_is_no_longer_kept_is_not_named(place: Place) -> None:
    background = Settings(rollup_every_records=EVERY, page_items_max=20, page_bytes_max=8_000)
    machine = place.machine(background)
    create(machine)
    for n in range(3 * EVERY):
        write(machine, b"%06d" % n + PAYLOAD)
    assert machine.maybe_rollup()
    write(machine)
    for _ in range(2 * EVERY):
        write(machine)
    assert machine.maybe_rollup()
    _, late = rollups(place)
    forgetting = place.machine(decide=_forget_rollups)
    forgetting.submit(Tidy(()))
    write(machine)
    assert late not in [r.rollup.key for r in machine.records() if r.rollup is not None]
    assert machine.rollup_due


@pytest.mark.parametrize("others", ["one of the same state", "a later one", "a shorter log"])
def test_a_rollup_that_another_overtook_is_not_named(others: str) -> None:
    place = Place(Settings())  # background: each rollup is asked for
    steps: list[Callable[[], object]] = []
    slow, fast = place.machine(decide=_between(steps)), place.machine()
    create(fast)
    write(slow)
    write(fast)
    slow.look()
    assert slow.roll_up()
    (late,) = rollups(place)

    def overtake() -> None:
        if others != "one of the same state":
            write(fast)
        for _ in range(3 if others == "a shorter log" else 1):
            rolled_up(fast)
        if others == "a shorter log":
            vacuumed(place, fast)
            assert place.log[0].seqno > len(texts(slow.state))
        slow.look()

    steps.append(overtake)
    write(slow, b"names none")
    fast.look()
    assert late not in fast.ask(lambda s: [rollup.key for _, rollup in s.rollups.range()])
    newest = named(fast)
    assert newest is not None
    assert newest.key == rollups(place)[-1]
    equal(place, slow)
    # Neither does it stand in the way of the next one.
    rolled_up(slow)
    newest = named(slow)
    assert newest is not None
    assert newest.key == rollups(place)[-1]
    equal(place, slow)


def _between(steps: list[Callable[[], object]]) -> Decide:
    """Decides; but while pages are fetched for the first decision, other threads take the steps."""

    def decided(state: State, command: Any, author: Any) -> Decision[Any]:
        if steps:
            steps.pop(0)()
            raise PagesNeeded([])
        return decide(state, command, author)

    return decided


def test_a_rollup_is_not_begun_while_one_that_another_thread_wrote_waits(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    background = Settings()
    machine, other = place.machine(background), place.machine(background)
    create(machine)

    class Lock:
        """Another thread had it until a moment ago."""

        lock = threading.Lock()

        def acquire(self, *, blocking: bool) -> bool:
            with monkeypatch.context() as patch:
                patch.setattr(machine._rollups, "_writing", self.lock)
                assert machine.roll_up()
            write(other, b"beside")
            machine.look()
            return self.lock.acquire(blocking=blocking)

        def release(self) -> None:
            self.lock.release()

    monkeypatch.setattr(machine._rollups, "_writing", Lock())
    assert not machine.roll_up()
    write(machine, b"names it")
    assert named(machine) is not None
    assert texts(machine.state) == [b"beside", b"names it"]
    equal(place, machine)


def test_a_rollup_that_is_never_named_is_litter_though_one_of_the_same_state_is() -> None:
    place = Place(Settings())  # background: each rollup is asked for
    machine = place.machine()
    create(machine)
    assert machine.roll_up()
    machine.distrust("a page", "it is damaged")  # opens the shard anew
    assert machine.roll_up()
    write(machine)
    assert [r.key for _, r in machine.state.rollups.range()] == rollups(place)[1:]
    assert machine.own.is_littered
    machine.close()
    (session,) = place.machine().look().state.sessions.range()
    assert session[1].acknowledged is not None, "its prefix is swept"


def test_a_rollup_that_is_named_is_no_litter(place: Place) -> None:
    machine = fill(place, 2 * EVERY)
    assert len(rollups(place)) == machine.state.rollups.count()
    assert not machine.own.is_littered


def _forget_rollups(state: State, command: Any, author: Any) -> Any:
    """What a vacuum will decide, one day."""
    gone = [Diff("rollups", key, None) for key, _ in state.rollups.range()]
    session = Diff("sessions", (author.session,), Session(1, state.seqno + 1))
    return Decision((*gone, session), None)


def rolled_up(machine: Machine) -> None:
    """A rollup of the newest state, and the record that names it."""
    assert machine.roll_up()
    machine.submit(Heartbeat())


def vacuumed(place: Place, machine: Machine, delay_seconds: int = 0) -> ShardVacuum:
    """One run over the shard, a little later."""
    place.env.seconds += 10
    location = Location(place.blob, place.consensus, "memory://", "memory://")
    deadline = Deadline(place.env, 1_000)
    delay = delay_seconds * 1_000_000
    return Vacuum(machine, location, place.env, delay_micros=delay, deadline=deadline).run()


def named_pages(place: Place, rollup: Rollup) -> set[str]:
    """The keys of the pages that a rollup names."""
    manifest = decode_rollup(place.blob.get(rollup.key, timeout=1), rollup.key)
    return {
        ref.key for refs in manifest.pages.values() if not isinstance(refs, Page) for ref in refs
    }


@pytest.mark.parametrize("trusted", [1, 0], ids=["an older one", "none"])
def test_who_could_not_read_the_newest_rollups_names_none_that_others_retired(trusted: int) -> None:
    place = Place(Settings())
    machine = place.machine()
    create(machine)
    for _ in range(3):
        write(machine)
        rolled_up(machine)
    wary = place.machine()
    for key in rollups(place)[trusted:]:
        place.damage(key)
    wary.look()
    for key in rollups(place)[trusted:]:
        place.damage(key)  # it was read badly
    assert vacuumed(place, machine).rollups == 1
    assert place.log[0].seqno == ObjectKey.parse(rollups(place)[1]).seqno
    write(wary, b"by whom")
    equal(place, wary)


def test_the_log_is_there_from_each_rollup_that_could_not_be_retired() -> None:
    place = Place(Settings())
    machine = place.machine()
    create(machine)
    for _ in range(2):
        write(machine)
        rolled_up(machine)
    vacuumed(place, machine)
    for _ in range(2):
        rolled_up(machine)
    oldest, second, third, fourth = rollups(place)
    wary = place.machine()
    for key in (second, third, fourth):
        place.damage(key)
    wary.look()
    for key in (second, fourth):
        place.damage(key)  # it was read badly
    found = vacuumed(place, machine)
    assert (found.rollups, found.damaged) == (0, (third,))
    assert [r.key for r in known_rollups(machine) if r.verified] == [oldest, second, fourth]
    write(wary)
    rollup = named(wary)
    assert rollup is not None
    assert rollup.key == oldest
    equal(place, wary)


def test_a_damaged_rollup_is_replaced_by_one_before_it_that_its_record_does_not_name() -> None:
    place = Place(Settings())
    machine = place.machine()
    create(machine)
    for _ in range(2):
        write(machine)
        rolled_up(machine)
    oldest, second = rollups(place)
    wary = place.machine()
    place.damage(second)
    write(wary, b"names the oldest")
    assert getattr(named(wary), "key", None) == oldest
    place.damage(second)  # it was read badly
    machine.look()
    rolled_up(machine)
    for _ in range(2):
        vacuumed(place, machine)
    assert [r.key for r in known_rollups(machine)] == rollups(place)[1:]
    assert place.log[0].seqno > (ObjectKey.parse(oldest).seqno or 0)
    place.damage(rollups(place)[2])
    equal(place, machine)
    place.damage(second)
    with pytest.raises(Corruption, match="was truncated past the record"):
        place.machine().look()


def test_nothing_is_retired_while_a_rollup_that_is_kept_cannot_be_read() -> None:
    place = Place(replace(SMALL, rollup_every_records=10_000))
    one, two = fill(place, 100), place.machine()
    write(two)  # before there is a rollup: it shares no page with the first
    one.look()
    rolled_up(one)
    two.look()
    rolled_up(two)
    vacuumed(place, two)
    one.look()
    rolled_up(one)
    two.look()
    rolled_up(two)
    first, second, third, fourth = known_rollups(two)
    pages_of = {r.key: named_pages(place, r) for r in (first, second, third, fourth)}
    shared = pages_of[first.key] & pages_of[third.key]
    assert shared - pages_of[second.key] - pages_of[fourth.key]
    place.damage(third.key)
    assert vacuumed(place, two).damaged == (third.key,)
    place.damage(third.key)  # it was read badly
    for _ in range(3):
        vacuumed(place, two)
    assert [r.key for r in known_rollups(two)] == [third.key, fourth.key]
    there = place.store.objects.keys()
    assert pages_of[third.key] | pages_of[fourth.key] <= there
    assert not (pages_of[first.key] - shared) & there, "what no rollup needs goes in the end"
    place.damage(fourth.key)
    equal(place, two)


def known_rollups(machine: Machine) -> list[Rollup]:
    machine.look()
    return machine.ask(lambda s: [rollup for _, rollup in s.rollups.range()])


# --- very many


def shrunk_to_fit_inside(place: Place) -> Machine:
    """A machine whose entries were in pages and are so few that its rollup has them inside.

    Most of the pages went whole: of those that are left, nothing changed.
    """
    machine = fill(place, 100)
    rolled_up(machine)
    keys = [key for key, _ in machine.state.entries.range()]
    machine.submit(Tidy(tuple(keys[:-12])))
    assert any(slot.clean for slot in machine.state.entries.slots)
    rolled_up(machine)
    return machine


def test_nothing_counts_as_stored_that_the_newest_rollup_of_its_own_does_not_name() -> None:
    place = Place(replace(SMALL, rollup_every_records=10_000))
    machine = shrunk_to_fit_inside(place)
    rollup = named(machine)
    assert rollup is not None
    slots = [slot for found in machine.state.maps.values() for slot in found.slots]
    assert {slot.ref.key for slot in slots if slot.ref} <= named_pages(place, rollup)
    equal(place, machine)


@pytest.mark.parametrize("read_back_before", [True, False])
def test_a_collection_that_grows_again_names_no_page_that_a_vacuum_takes(
    *, read_back_before: bool
) -> None:
    # Such a page dies with the rollup that named it. If it is still there when a later one is read
    # back that names it again, logs are shortened for that one, and then the page goes.
    place = Place(replace(SMALL, rollup_every_records=10_000))
    machine = shrunk_to_fit_inside(place)
    for _ in range(3):
        vacuumed(place, machine, 10_000 if read_back_before else 0)
        rolled_up(machine)
    for number in range(40):
        write(machine, b"%06d" % number + PAYLOAD)
    for _ in range(2):
        rolled_up(machine)
        vacuumed(place, machine, 10_000 if read_back_before else 0)
    for _ in range(3):
        vacuumed(place, machine)
    assert place.log[0].seqno > 1, "the vacuum was to shorten the log"
    for _, rollup in machine.state.rollups.range():
        assert named_pages(place, rollup) <= place.store.objects.keys()
    equal(place, machine)


def test_bytes_per_rollup_do_not_grow_in_20000_commits() -> None:
    place = Place(Settings(background=False))
    machine = place.machine()
    create(machine)
    batch = Batch(inline=b"x" * 100, rows=1)
    keys: list[Any] = []
    for n in range(20_000):
        tidies: tuple[Any, ...] = ()
        if len(keys) >= 300:
            tidies, keys = tuple(keys[:128]), keys[128:]
        result = machine.submit(Commit(n, (Write(TABLE, batch),), tidies=tidies))
        keys.append((TABLE, result.time, 0))
    sizes: list[int] = []
    for key, size in place.blob.puts:
        if key.endswith(".rollup"):
            sizes.append(size)
        elif sizes:
            sizes[-1] += size
    assert len(sizes) == 156
    early, late = sorted(sizes[10:40])[15], sorted(sizes[-30:])[15]
    assert late < early * 1.5
    fresh = place.machine()
    place.blob.gets.clear()
    fresh.look()
    assert len(place.blob.gets) == 1
    assert everything(fresh) == everything(machine)


def test_a_rollup_of_many_references_writes_only_what_changed() -> None:
    place = Place(Settings(background=False, rollup_every_records=4))
    machine = place.machine()

    def add(start: int, count: int) -> None:
        upper = machine.state.meta.upper
        assert upper is not None
        parts = [
            (upper, Part(f"part {n:08d}", 1, 1, b"%08d" % n, b"%08d" % n))
            for n in range(start, start + count)
        ]
        machine.submit(Apply(upper, upper + 1, tuple(parts)))

    for n in range(9):
        add(2_000 * n, 2_000)
    place.blob.puts.clear()
    before = place.env.seconds
    for n in range(8):
        add(50_000 + n, 1)
    assert place.env.seconds == before
    assert len(rollups(place)) == 2
    first, second = (
        sum(size for key, size in place.blob.puts if f"/{kind}" in key) for kind in ("page", "rol")
    )
    assert first < 700_000  # of about 4 MB
    assert second < 40_000
    equal(place, machine)


def test_opening_replays_more_records_than_one_scan_brings() -> None:
    place = Place(Settings())  # background: nobody writes the rollups here
    machine = place.machine()
    create(machine)
    for n in range(2 * SCAN_RECORDS + 5):
        write(machine, b"%d" % n)
    assert rollups(place) == []
    equal(place, machine)


def test_a_definite_failure_of_a_look_is_an_error_not_a_fallback(place: Place) -> None:
    fill(place, 3 * EVERY)
    place.consensus.failing_scans = 10**9
    with pytest.raises(LocationError):
        place.machine().look(within(2, place.env))
