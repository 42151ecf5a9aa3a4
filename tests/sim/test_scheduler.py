"""The scheduler: one seed is one history, locks and clocks are simulated, the dead stay dead."""

from __future__ import annotations

import sys
import threading
import types
from functools import partial

import pytest

from strandline.errors import LocationError
from strandline.location import Consensus, Location
from strandline.location.memory import MemoryBlob, MemoryConsensus, MemoryStore
from strandline.testing.scheduler import Killed, Lock, Scheduler, Stuck, cooperative_locks
from strandline.testing.simenv import SimEnv
from strandline.testing.weather import Weather, stormy


def play(scheduler: Scheduler) -> None:
    """Runs until nothing is left, and raises what went wrong."""
    try:
        scheduler.run(until=lambda: False)
        if scheduler.failure is not None:
            raise scheduler.failure[1]
    finally:
        scheduler.end()


def interleaved(seed: int) -> tuple[list[str], str]:
    """Which of three tasks wrote when, and the hash of the trace."""
    scheduler = Scheduler(seed)
    written: list[str] = []

    def writes(name: str) -> None:
        for number in range(5):
            scheduler.switch(f"step {number}", seconds=scheduler.random.random() / 1000)
            written.append(name)

    process = scheduler.process("p")
    for name in "abc":
        scheduler.spawn(process, name, partial(writes, name))
    play(scheduler)
    return written, scheduler.trace_hash()


def test_one_seed_is_one_history_and_another_seed_another() -> None:
    assert interleaved(1) == interleaved(1)
    assert len({interleaved(seed)[1] for seed in range(10)}) == 10
    assert len({tuple(interleaved(seed)[0]) for seed in range(10)}) > 5


def test_a_step_of_a_task_is_never_interrupted() -> None:
    for seed in range(10):
        scheduler = Scheduler(seed)
        inside: list[str] = []

        def critical(scheduler: Scheduler = scheduler, inside: list[str] = inside) -> None:
            for _ in range(5):
                inside.append("in")
                assert inside == ["in"]
                inside.pop()
                scheduler.switch("between")

        for name in "abc":
            scheduler.spawn(scheduler.process(name), name, critical)
        play(scheduler)


def test_a_sleeper_wakes_when_its_time_has_come_and_nobody_really_waits() -> None:
    scheduler = Scheduler(1)
    env = SimEnv(scheduler, scheduler.process("p"))
    woken: list[str] = []

    def sleeps(name: str, seconds: float) -> None:
        env.sleep(seconds)
        woken.append(name)

    began = scheduler.now
    scheduler.spawn(scheduler.process("p"), "long", lambda: sleeps("long", 3600))
    scheduler.spawn(scheduler.process("p"), "short", lambda: sleeps("short", 60))
    play(scheduler)
    assert woken == ["short", "long"]
    assert 3600 <= (scheduler.now - began) / 1e6 < 3601


def test_a_lock_is_held_across_switch_points_and_waiting_for_it_can_time_out() -> None:
    for seed in range(20):
        scheduler = Scheduler(seed)
        lock = Lock(scheduler)
        inside: list[int] = []
        gave_up: list[int] = []

        def enters(
            number: int,
            scheduler: Scheduler = scheduler,
            lock: Lock = lock,
            inside: list[int] = inside,
            gave_up: list[int] = gave_up,
        ) -> None:
            if not lock.acquire(timeout=2.5):
                gave_up.append(number)
                return
            inside.append(number)
            scheduler.switch("in the lock", seconds=1)
            assert inside == [number]
            inside.clear()
            lock.release()

        for number in range(4):
            scheduler.spawn(
                scheduler.process("p"),
                str(number),
                partial(enters, number),
            )
        play(scheduler)
        assert len(gave_up) == 1
        assert not lock.locked()


def test_modules_under_test_get_locks_of_the_scheduler_and_their_own_back() -> None:
    module = types.ModuleType("strandline.made_for_this_test")
    module.threading = threading  # type: ignore[attr-defined]  # made here
    sys.modules[module.__name__] = module
    try:
        with cooperative_locks(Scheduler(1)):
            assert isinstance(module.threading.Lock(), Lock)
            with pytest.raises(AssertionError, match="does not know"):
                _ = module.threading.Event
        assert module.threading is threading
    finally:
        del sys.modules[module.__name__]


def test_a_killed_process_never_gets_past_another_switch_point() -> None:
    scheduler = Scheduler(3)
    process = scheduler.process("p")
    seen: list[str] = []

    def stubborn(name: str) -> None:
        try:
            while True:
                scheduler.switch("goes on")
                assert process.alive
        except Killed:
            seen.append(name)
            scheduler.switch("clings to life")
            seen.append("got past it")

    def killer() -> None:
        for _ in range(5):
            scheduler.switch("waits")
        scheduler.kill(process, "by the killer")

    scheduler.spawn(process, "a", lambda: stubborn("a"))
    scheduler.spawn(process, "b", lambda: stubborn("b"))
    scheduler.spawn(scheduler.process("killer"), "killer", killer)
    play(scheduler)
    assert sorted(seen) == ["a", "b"]


def test_a_worker_runs_once_for_wakes_that_fall_together_and_ends_when_stopped() -> None:
    scheduler = Scheduler(5)
    env = SimEnv(scheduler, scheduler.process("p"))
    runs: list[int] = []

    def owner() -> None:
        worker = env.start_worker("worker", lambda: runs.append(scheduler.steps))
        worker.wake()
        worker.wake()
        env.sleep(1)
        assert len(runs) == 1
        worker.wake()
        env.sleep(1)
        assert len(runs) == 2
        worker.stop()

    scheduler.spawn(scheduler.process("p"), "owner", owner)
    play(scheduler)
    assert len(runs) == 2


def test_tasks_that_wait_for_one_another_are_reported_by_name() -> None:
    scheduler = Scheduler(1)
    one, two = Lock(scheduler), Lock(scheduler)

    def takes(first: Lock, second: Lock) -> None:
        with first:
            scheduler.switch("has one", seconds=1)
            with second:
                pass

    scheduler.spawn(scheduler.process("p"), "left", lambda: takes(one, two))
    scheduler.spawn(scheduler.process("p"), "right", lambda: takes(two, one))
    with pytest.raises(Stuck, match=r"left \(waits for a lock\), right \(waits for a lock\)"):
        play(scheduler)


def test_an_error_in_a_task_ends_the_run() -> None:
    scheduler = Scheduler(1)

    def fails() -> None:
        scheduler.switch("about to fail")
        raise ValueError("on purpose")

    scheduler.spawn(scheduler.process("p"), "bad", fails)
    scheduler.spawn(scheduler.process("p"), "good", lambda: scheduler.switch("ok", seconds=9))
    with pytest.raises(ValueError, match="on purpose"):
        play(scheduler)


# --- the weather


def location_of(scheduler: Scheduler, store: MemoryStore) -> Location:
    env = SimEnv(scheduler, scheduler.process("the location"))
    return Location(MemoryBlob(store, env), MemoryConsensus(store), "memory://", "memory://")


def storms(seed: int, weather: Weather) -> dict[str, int]:
    """How often what was answered to puts whose objects were there afterwards, or were not."""
    scheduler = Scheduler(seed)
    store = MemoryStore()
    process = scheduler.process("p")
    blob = stormy(location_of(scheduler, store), scheduler, process, weather).blob
    counts: dict[str, int] = {}

    def puts() -> None:
        for number in range(40):
            key = f"o{number}"
            try:
                blob.put(key, b"x", timeout=10)
                answer = "done"
            except LocationError as error:
                answer = f"{type(error).__name__} {error.may_have_happened}"
            there = "there" if key in store.objects else "absent"
            counts[f"{answer}, {there}"] = counts.get(f"{answer}, {there}", 0) + 1

    scheduler.spawn(process, "putter", puts)
    play(scheduler)
    counts["in the end"] = len(store.objects)
    counts["alive"] = process.alive
    return counts


def test_good_weather_harms_nothing() -> None:
    assert storms(1, Weather()) == {"done, there": 40, "in the end": 40, "alive": True}


def test_bad_weather_brings_every_kind_of_outcome_and_never_a_false_certainty() -> None:
    total: dict[str, int] = {}
    for seed in range(10):
        for name, count in storms(seed, Weather(faults=0.7)).items():
            total[name] = total.get(name, 0) + count
    assert total.keys() - {"in the end", "alive"} == {
        "done, there",
        "LocationError False, absent",
        "LocationError True, absent",
        "LocationError True, there",
        "BlobExists False, there",  # met its own first delivery
    }
    absent = total["LocationError False, absent"] + total["LocationError True, absent"]
    assert 400 - absent < total["in the end"] < 400, "some arrive late"


def test_crashes_end_the_process_at_some_call() -> None:
    ends = [storms(seed, Weather(crashes=0.1)) for seed in range(20)]
    assert sum(not end["alive"] for end in ends) >= 15
    reached = {end["in the end"] for end in ends}
    assert len(reached) > 5


def test_a_late_compare_and_set_lands_only_where_it_still_fits() -> None:
    for seed in range(30):
        scheduler = Scheduler(seed)
        store = MemoryStore()
        process = scheduler.process("p")
        weather = Weather(faults=0.6)
        location = stormy(location_of(scheduler, store), scheduler, process, weather)
        won: list[int] = []

        def appends(
            who: int, consensus: Consensus = location.consensus, won: list[int] = won
        ) -> None:
            for number in range(6):
                try:
                    if consensus.compare_and_set("s", number, b"%d" % who, timeout=9):
                        won.append(number)
                except LocationError:
                    pass

        for who in range(3):
            scheduler.spawn(process, str(who), partial(appends, who))
        play(scheduler)
        log = store.logs.get("s", [])
        assert [record.seqno for record in log] == list(range(1, len(log) + 1))
        assert len(set(won)) == len(won)
        assert all(number < len(log) for number in won)


def test_a_simulated_worker_runs_when_its_time_has_come_or_sooner_if_asked_again() -> None:
    scheduler = Scheduler(1)
    process = scheduler.process("p")
    env = SimEnv(scheduler, process)
    runs: list[float] = []

    def main() -> None:
        begun = env.monotonic()
        worker = env.start_worker("worker", lambda: runs.append(env.monotonic() - begun))
        worker.wake(after=100)
        env.sleep(150)
        worker.wake(after=100)
        worker.wake(after=10)
        env.sleep(50)
        worker.wake(after=100)
        worker.stop()

    scheduler.spawn(process, "main", main)
    play(scheduler)
    assert [round(run, -1) for run in runs] == [100, 160]
