"""Compaction and vacuum of shards: what stays, what goes, and when."""

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
import strandline.shard
from strandline.errors import DeadlineExceeded, UsageError
from strandline.location import Location
from strandline.shard import compact, vacuum_shard
from tests.shard.helpers import QUIET, SHARD, Meddling, Pair, listed, opened, rows, updates


def part_keys(location: Location) -> list[str]:
    return [i.key for i in location.blob.list("", timeout=5) if "/part/" in i.key]


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
    compacting = importlib.import_module("strandline.shard.compacting")
    shard = write._shard
    (job,) = compacting.plan_jobs(shard.machine.refresh(), "full")
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
    compacting = importlib.import_module("strandline.shard.compacting")
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
