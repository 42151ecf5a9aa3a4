"""Histories in which sessions expire all the time, their owners alive or dead, idle or at work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.shard.session import OwnSession
from strandline.testing.simulator import History


@pytest.mark.parametrize(("lease", "first"), [(0.05, 1), (0.3, 100)])
def test_sessions_that_expire_all_the_time_change_nothing_that_anybody_sees(
    lease: float, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew = OwnSession.renew
    renewed: list[str] = []

    def counted(own: OwnSession) -> None:
        renewed.append(own.id)
        renew(own)

    monkeypatch.setattr(OwnSession, "renew", counted)
    for seed in range(first, first + 5):
        history = History(seed, guests=["attachers"])
        history.settings = replace(history.settings, lease_seconds=lease)
        history.play()
    assert len(renewed) == len(set(renewed)) > 5
