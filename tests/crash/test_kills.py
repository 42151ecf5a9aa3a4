"""Processes killed at calls that were counted; see `tests.crash.kills`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.kills import kill_at_calls


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
