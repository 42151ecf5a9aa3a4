"""What eight processes that are killed at any moment saw, held against what isolation promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.txn.histories import Run


def check(path: Path, *, transactions: int, kills: int, seed: int) -> None:
    played = Run(path, transactions=transactions, kills=kills, seed=seed).play()
    assert played.found == []
    committed = sum(did.outcome == "committed" for did in played.history)
    assert committed > transactions / 10


def test_what_processes_saw_is_what_their_isolation_promises(tmp_path: Path) -> None:
    check(tmp_path, transactions=480, kills=6, seed=1)


@pytest.mark.slow
def test_ten_thousand_transactions_are_what_their_isolation_promises(tmp_path: Path) -> None:
    check(tmp_path, transactions=10_000, kills=100, seed=2)
