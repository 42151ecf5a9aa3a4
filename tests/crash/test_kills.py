"""Processes killed at calls that were counted; see `tests.crash.kills`."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

import strandline as sl
from tests.crash.kills import Acknowledged, Calls, chains, check, kill_at_calls, plan, work
from tests.crash.script import arrow_of


def test_a_process_that_dies_at_any_kind_of_call_loses_nothing_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    report, kinds = kill_at_calls(tmp_path, kills=30, seed=1)
    assert report.kills == 30
    assert set(report.before) == set(report.after) == kinds


@pytest.mark.slow
def test_processes_that_die_at_hundreds_of_calls_lose_nothing_and_double_nothing(
    tmp_path: Path,
) -> None:
    report, kinds = kill_at_calls(tmp_path, kills=250, seed=2)
    assert report.kills == 250
    assert set(report.before) == set(report.after) == kinds
    assert kinds >= {"get", "put", "upload begin", "upload write", "upload commit", "open", "list"}
    assert kinds >= {"head", "compare_and_set", "scan"}


@pytest.mark.parametrize("table", ["events", "items"])
def test_a_row_that_is_lost_or_doubled_after_the_kill_is_noticed(
    tmp_path: Path, table: str
) -> None:
    heard = Acknowledged()
    assert not work(tmp_path, heard, 6)
    check(tmp_path, heard)
    with sl.connect(tmp_path) as db:
        row = db[table].scan(limit=1).to_arrow()
        if table == "events":
            db[table].append(row)
        else:
            db[table].append(arrow_of([(1_000, 0, 0)]))
    with pytest.raises(AssertionError, match="too many"):
        check(tmp_path, heard)
    with sl.connect(tmp_path) as db:
        db[table].overwrite(row)
    with pytest.raises(AssertionError, match="missing"):
        check(tmp_path, heard)


def test_kills_are_dealt_out_evenly_over_kinds_and_sides_and_none_is_placed_twice() -> None:
    calls: Calls = [{"put": 3}, {"put": 40, "scan": 100}, {"list": 1, "scan": 7}]
    placed = plan(calls, 42, random.Random(1))
    assert len(placed) == len(set(placed)) == 42
    sides = Counter((one.kill.kind, one.kill.after) for one in placed)
    assert sides == {
        (kind, after): 1 if kind == "list" else 10
        for kind in ("put", "scan", "list")
        for after in (False, True)
    }
    assert {one.step for one in placed if one.kill.kind == "put"} == {0, 1}
    assert all(1 <= one.kill.nth <= calls[one.step][one.kill.kind] for one in placed)
    dealt = chains(placed, 10, random.Random(1))
    assert [len(chain) for chain in dealt] == [9, 9, 8, 8, 8]
    assert Counter(one for chain in dealt for one in chain) == Counter(placed)
    assert all([one.step for one in c] == sorted(one.step for one in c) for c in dealt)
    everything = plan(calls, 10_000, random.Random(1))
    assert len(set(everything)) == len(everything) == 2 * (43 + 107 + 1)
