"""Every Consensus adapter keeps the contract."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from strandline.env import RealEnv
from strandline.location.consensus import Consensus
from strandline.location.memory import MemoryConsensus, MemoryStore
from strandline.location.retry import RetryingConsensus
from strandline.location.sqlite.consensus import SqliteConsensus
from strandline.testing.consensus_contract import ConsensusContract
from strandline.testing.faults import Faults, FaultyConsensus
from strandline.testing.killing import Killer, KillingConsensus


class TestMemoryConsensus(ConsensusContract):
    @pytest.fixture(autouse=True)
    def _place(self) -> None:
        self.opener = functools.partial(MemoryConsensus, MemoryStore())


def test_a_named_store_is_one_per_process() -> None:
    first = MemoryConsensus(MemoryStore.named("one-per-process"))
    second = MemoryConsensus(MemoryStore.named("one-per-process"))
    assert first.compare_and_set("s", 0, b"x", timeout=60)
    assert not second.compare_and_set("s", 0, b"y", timeout=60)
    assert MemoryConsensus(MemoryStore.named("another")).head("s", timeout=60) is None


def open_sqlite(path: Path) -> Consensus:
    return SqliteConsensus(path, RealEnv())


def open_sqlite_again(path: Path) -> Consensus:
    return RetryingConsensus(open_sqlite(path), RealEnv())


class TestSqliteConsensus(ConsensusContract):
    processes = True

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.opener = functools.partial(open_sqlite, tmp_path / "new" / "log.sqlite")


class TestRetryingConsensus(ConsensusContract):
    @pytest.fixture(autouse=True)
    def _place(self) -> None:
        store, env = MemoryStore(), RealEnv()
        self.opener = lambda: RetryingConsensus(MemoryConsensus(store), env)


class TestRetryingConsensusThatQueues(ConsensusContract):
    """One that offers more than the port has."""

    processes = True

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.opener = functools.partial(open_sqlite_again, tmp_path / "log.sqlite")


class TestFaultyConsensusWithoutFaults(ConsensusContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        faults = Faults()
        path = tmp_path / "log.sqlite"
        self.opener = lambda: FaultyConsensus(SqliteConsensus(path, RealEnv()), faults)


class TestKillingConsensusThatIsNotArmed(ConsensusContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        path = tmp_path / "log.sqlite"
        self.opener = lambda: KillingConsensus(SqliteConsensus(path, RealEnv()), Killer())
