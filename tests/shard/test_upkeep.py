"""Compaction and vacuum of shards: what stays, what goes, and when."""

import importlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
import strandline.shard
from strandline.errors import DeadlineExceeded, Fenced, UpperMismatch, UsageError
from strandline.location import Location
from strandline.shard import (
    ShardVacuum,
    compact,
    list_holds,
    new_shard_id,
    release_hold,
    vacuum_shard,
)
from strandline.shard.sweeping import Sweep
from strandline.txn import TxnsHandle
from tests.shard.helpers import QUIET, SHARD, Meddling, Pair, listed, opened, rows, updates


def part_keys(location: Location) -> list[str]:
    return [i.key for i in location.blob.list("", timeout=60) if "/part/" in i.key]


def test_what_was_replaced_goes_once_no_reader_is_behind(location: Location, pair: Pair) -> None:
    write, read = pair
    for time in range(3):
        write.compare_and_append(updates((f"w{time}", time, 1)), time, time + 1)
    before = part_keys(location)
    assert compact(location, SHARD, strategy="full", settings=QUIET).parts_after == 1
    held = vacuum_shard(location, SHARD, delay_seconds=0, settings=QUIET)
    assert held.objects == 0
    assert held.waiting["hold"] == 3
    assert set(before) < set(part_keys(location))
    read.fetch_upper()
    read.downgrade_since(0)
    assert vacuum_shard(location, SHARD, delay_seconds=0, settings=QUIET).objects >= 3
    assert len(part_keys(location)) == 1
    assert rows(location, read, 2) == {"w0": 1, "w1": 1, "w2": 1}
    again = vacuum_shard(location, SHARD, delay_seconds=0, settings=QUIET, dry_run=True)
    assert not [key for key in part_keys(location) if key in before]
    assert again.objects == 0


def test_of_a_shard_that_is_over_all_parts_go(location: Location, pair: Pair) -> None:
    write, read = pair
    write.compare_and_append(updates(("a", 0, 1)), 0, 1)
    write.finish()
    read.downgrade_since(None)
    vacuum_shard(location, SHARD, delay_seconds=0, settings=QUIET)
    assert len(part_keys(location)) == 1  # the reader is there still
    read.close()
    write.close()
    vacuum_shard(location, SHARD, delay_seconds=0, settings=QUIET)
    assert part_keys(location) == []
    with pytest.raises(UsageError, match="finished and deleted"):
        opened(location)


def test_a_job_whose_inputs_were_replaced_is_discarded(location: Location, pair: Pair) -> None:
    """S11, for shards."""
    write, read = pair
    for time in range(3):
        write.compare_and_append(updates((f"w{time}", time, 1)), time, time + 1)
    compacting = importlib.import_module("strandline.shard.alone.compaction")
    shard = write._shard
    (job,) = compacting.plan_jobs(shard.machine.look().state, "full")
    compact(location, SHARD, strategy="full", settings=QUIET)
    assert compacting._run(shard, job, shard.deadline(None)) is False
    assert rows(location, read, 2) == {"w0": 1, "w1": 1, "w2": 1}


def test_a_sum_that_cannot_be_told_is_refused_and_nothing_is_rewritten(
    location: Location, pair: Pair
) -> None:
    write, read = pair
    most = 2**63 - 1
    write.compare_and_append(updates(("a", 0, most), ("b", 0, 1)), 0, 1)
    write.compare_and_append(updates(("a", 1, 1), ("b", 1, 1)), 1, 2)
    write.compare_and_append(updates(("a", 2, -5)), 2, 3)
    with pytest.raises(UsageError, match="'a'"):
        read.read(1).read_all()
    read.downgrade_since(1)
    before = listed(next(read.listen(1)).updates)
    with pytest.raises(UsageError, match="'a'"):
        write.compact("full")
    assert listed(next(read.listen(1)).updates) == before
    assert rows(location, read, 2) == {"a": most - 4, "b": 2}
    read.downgrade_since(2)
    write.compact("full")
    assert rows(location, read, 2) == {"a": most - 4, "b": 2}


def test_what_cannot_be_merged_does_not_keep_the_rest_from_it(
    location: Location, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, read = pair
    for time in range(3):
        write.compare_and_append({"word": ["a"]}, time, time + 1, time=time)
    compacting = importlib.import_module("strandline.shard.alone.compaction")
    jobs = compacting.plan_jobs
    wrong = 2 * jobs(write._shard.machine.state, "full")

    def refused(*_: object) -> object:
        monkeypatch.undo()
        raise UsageError("cannot be told")

    monkeypatch.setattr(compacting, "plan_jobs", lambda *_: wrong)
    monkeypatch.setattr(compacting, "_merged", refused)
    with pytest.raises(UsageError, match="cannot be told"):
        write.compact("full")
    assert compact(location, SHARD, settings=QUIET).parts_after == 1
    assert rows(location, read, 2) == {"a": 3}


class Slow:
    """A Blob to which each object takes more than a minute."""

    def __init__(self, inner: Any, env: Meddling) -> None:
        self._inner = inner
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def put(self, key: str, data: bytes, *, timeout: float) -> None:
        self._env.slept += 70.0
        assert timeout > 0
        self._inner.put(key, data, timeout=timeout)

    def upload(self, key: str, *, timeout: float) -> Any:
        self._env.slept += 70.0
        assert timeout > 0
        return self._inner.upload(key, timeout=timeout)


def test_a_compaction_has_the_time_that_its_jobs_take(location: Location, pair: Pair) -> None:
    """All of its jobs had one minute, that of a small call; and so had a vacuum."""
    write, read = pair
    for time in range(30):
        write.compare_and_append(updates((f"w{time}", time, 1)), time, time + 1)
    env = Meddling()
    slow = replace(location, blob=Slow(location.blob, env))
    with pytest.raises(DeadlineExceeded, match="within 60 s"):
        compact(slow, SHARD, strategy="basic", settings=QUIET, env=env, timeout=60)
    write.compact("full")
    for time in range(30, 60):
        write.compare_and_append(updates((f"w{time}", time, 1)), time, time + 1)
    done = compact(slow, SHARD, strategy="basic", settings=QUIET, env=env)
    assert done.jobs > 1
    assert done.discarded == 0
    assert rows(location, read, 59) == {f"w{time}": 1 for time in range(60)}
    read.fetch_upper()
    read.downgrade_since(59)
    assert vacuum_shard(slow, SHARD, delay_seconds=0, settings=QUIET, env=env).objects > 0


def test_strategies_and_delays_are_checked(location: Location, pair: Pair) -> None:
    write, _ = pair
    with pytest.raises(UsageError, match="choose of basic, full, size-ratio"):
        write.compact("some")  # type: ignore[arg-type]
    for delay in (-1, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="delay_seconds"):
            vacuum_shard(location, SHARD, delay_seconds=delay)


def test_every_public_name_of_the_shard_level_is_there(tmp_path: Path) -> None:
    names = strandline.shard.__all__
    assert names == sorted(names)
    for name in names:
        assert callable(getattr(strandline.shard, name))
    assert sl.open_location(f"memory://{tmp_path}").read_only is False


# --- who died, and what they left


LEASE = QUIET.lease_seconds


def looked(location: Location, env: Meddling, times: int, **more: Any) -> ShardVacuum:
    """What the last of so many vacuums did, each a quarter of the lease after the one before."""
    for _ in range(times):
        env.slept += LEASE / 4
        done = vacuum_shard(location, SHARD, settings=QUIET, env=env, delay_seconds=0, **more)
    return done


def sessions(location: Location) -> list[str]:
    """The sessions that the shard knows, but for those of whoever looks."""
    _, read = opened(location)
    mine = read._shard.machine
    state = mine.look()
    found = [key[0] for key, _ in state.state.sessions.range() if key[0] != mine.session]
    read.close()
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Location]:
    """Where observations are kept between processes."""
    with sl.open_location(tmp_path / "shards") as found:
        yield found


def test_what_a_process_held_that_died_is_given_up_and_what_it_left_is_swept(
    directory: Location,
) -> None:
    """Nobody looked: since, log and objects stayed for ever, against docs/shards.md."""
    write, read = opened(directory)
    write.compare_and_append(updates(("a", 0, 1), ("b", 1, 1)), 0, 10)
    builder = write.batch_builder()
    builder.add({"word": ["never appended"]}, time=10)
    builder.finish(11)
    env = Meddling()
    other_write, other = opened(directory, env=env)
    other.downgrade_since(9)
    # And then the process of `write` and `read` is gone.
    for at, look in enumerate(
        (
            lambda: [each.close() for each in opened(directory, env=env)],
            lambda: compact(directory, SHARD, settings=QUIET, env=env),
            lambda: looked(directory, env, 1),
        ),
        10,
    ):
        other_write.advance_upper(at)  # any record says that this one lives
        env.slept += LEASE / 4
        look()  # type: ignore[no-untyped-call]
    assert min(list_holds(directory, SHARD)["since"].to_pylist()) == 0, "not for an outage"
    for upper in range(13, 15):
        other_write.advance_upper(upper)
        looked(directory, env, 1)
    assert other._shard.machine.state.meta.since == 9
    assert len(part_keys(directory)) == 2, "its owner may still be writing"
    for upper in range(15, 21):
        other_write.advance_upper(upper)
        looked(directory, env, 1)
    assert len(part_keys(directory)) == 1
    assert write._shard.machine.session not in sessions(directory)
    assert rows(directory, other, 9) == {"a": 1, "b": 1}
    with pytest.raises(Fenced, match="open the shard again"):
        read.snapshot(9)
    other.close()
    other_write.close()


def test_a_handle_that_stays_ends_others_wherever_it_is(location: Location, pair: Pair) -> None:
    """Also where nothing can be kept on disk."""
    write, read = pair
    write.advance_upper(5)
    env = Meddling()
    other_write, other = opened(location, env=env)
    other.downgrade_since(4)
    for _ in range(6):
        env.slept += LEASE / 4
        other_write.compact()
    assert other._shard.machine.state.meta.since == 4
    with pytest.raises(Fenced):
        read.snapshot(4)
    other.close()
    other_write.close()


def test_what_was_not_appended_goes_once_its_handle_is_closed(
    location: Location, pair: Pair
) -> None:
    write, read = pair
    other_write, other = opened(location)
    for time in range(2):
        with other_write.batch_builder(time) as builder:
            builder.add({"word": [f"w{time}"]}, time=time)
            batch = builder.finish(time + 1)
        if not time:
            write.compare_and_append(batch, 0, 1)
    mine = other_write._shard.machine.session
    assert looked(location, Meddling(), 2).swept == Sweep()
    assert len(part_keys(location)) == 2, "it may be appended still"
    other.close()
    other_write.close()
    would = vacuum_shard(location, SHARD, settings=QUIET, delay_seconds=0, dry_run=True).swept
    first = looked(location, Meddling(), 1).swept
    assert first is not None
    assert (first.sessions, first.objects, first.finished) == (1, 1, 0)
    assert would == replace(first, finished=0)
    assert rows(location, read, 0) == {"w0": 1}
    second = looked(location, Meddling(), 1).swept
    assert second is not None
    assert (second.objects, second.finished) == (0, 1)
    assert mine not in sessions(location)


def test_holds_are_listed_and_any_of_them_is_released(location: Location, pair: Pair) -> None:
    write, read = pair
    write.advance_upper(9)
    mine = read.hold("job", 3)
    other_write, other = opened(location)
    other.downgrade_since(5)
    held = list_holds(location, SHARD).to_pylist()
    said = sorted((h["since"], h["kind"], h["session"] is None) for h in held)
    assert said == [(0, "reader", False), (3, "hold", True), (5, "reader", False)]
    (silent,) = [h["hold"] for h in held if h["since"] == 0]
    assert release_hold(location, SHARD, silent, settings=QUIET)
    assert read._shard.machine.look().meta.since == 3
    with pytest.raises(Fenced):
        read.snapshot(8)
    assert release_hold(location, SHARD, "job", settings=QUIET)
    assert not release_hold(location, SHARD, "job", settings=QUIET)
    assert read._shard.machine.look().meta.since == 5
    with pytest.raises(Fenced):
        mine.downgrade_since(4)
    other.close()
    other_write.close()
    assert len(list_holds(location, SHARD)) == 0


def test_what_a_transaction_stored_and_nobody_committed_is_swept(location: Location) -> None:
    txns_id, settings = new_shard_id(), replace(QUIET, inline_bytes_max=0)
    for each in opened(location):
        each.close()
    txns = TxnsHandle.open(location, txns_id, settings=settings)
    txns.register(SHARD, 1)
    for time, ends in enumerate(("applied", "committed", "left"), 2):
        txn = txns.begin()
        txn.write(SHARD, {"word": [ends]})
        if ends == "left":
            with pytest.raises(UpperMismatch):
                txn.commit_at(txns, 2)
        else:
            done = txn.commit_at(txns, time)
        if ends == "applied":
            done.apply(txns)
    txns.close()
    before = part_keys(location)
    swept = vacuum_shard(location, txns_id, settings=QUIET, delay_seconds=0).swept
    assert swept is not None
    assert swept.objects == 1
    assert len(part_keys(location)) == len(before) - 1
    with TxnsHandle.open(location, txns_id, settings=settings) as again:
        found = again.snapshot(SHARD, 3).read_all().column("word").to_pylist()
    assert found == ["applied", "committed"]


def test_sessions_of_a_database_are_left_to_it(tmp_path: Path) -> None:
    with sl.connect(tmp_path / "lake", settings=QUIET) as db:
        table = db.create_table("t", {"k": [1]}, row_keys="k")
        db.compact("t")
        with sl.open_location(tmp_path / "lake") as place:
            for shard in (table._version.table, place.txns):
                assert vacuum_shard(place, shard, settings=QUIET).swept is None
            with pytest.raises(UsageError, match="belongs to the database"):
                release_hold(place, table._version.table, "retention")
