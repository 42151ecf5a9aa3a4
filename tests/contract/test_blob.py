"""Every Blob adapter keeps the contract."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from strandline.env import RealEnv
from strandline.location.blob import Blob
from strandline.location.local.blob import FileBlob
from strandline.location.memory import MemoryBlob, MemoryStore
from strandline.location.retry import RetryingBlob
from strandline.testing.blob_contract import BlobContract
from strandline.testing.faults import FAIL_AFTER, Call, Fault, Faults, FaultyBlob
from strandline.testing.killing import Killer, KillingBlob


def open_files(root: Path) -> Blob:
    return FileBlob(root, RealEnv())


class TestMemoryBlob(BlobContract):
    @pytest.fixture(autouse=True)
    def _place(self) -> None:
        self.opener = functools.partial(MemoryBlob, MemoryStore(), RealEnv())


class TestFileBlob(BlobContract):
    processes = True

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.opener = functools.partial(open_files, tmp_path / "new" / "store")


class TestRetryingBlob(BlobContract):
    @pytest.fixture(autouse=True)
    def _place(self) -> None:
        store, env = MemoryStore(), RealEnv()
        self.opener = lambda: RetryingBlob(MemoryBlob(store, env), env)


class TestRetryingBlobThatOftenFails(BlobContract):
    """The answers of every other call that only reads are lost."""

    @pytest.fixture(autouse=True)
    def _place(self) -> None:
        store, env = MemoryStore(), NoWaiting()

        def fail_every_other(call: Call) -> Fault | None:
            if call.kind in ("upload", "put", "delete") or call.number % 2:
                return None
            return FAIL_AFTER

        faults = Faults(fail_every_other)
        self.opener = lambda: RetryingBlob(FaultyBlob(MemoryBlob(store, env), faults), env)


class TestFaultyBlobWithoutFaults(BlobContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        faults = Faults()
        self.opener = lambda: FaultyBlob(FileBlob(tmp_path, RealEnv()), faults)


class TestKillingBlobThatIsNotArmed(BlobContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.opener = lambda: KillingBlob(FileBlob(tmp_path, RealEnv()), Killer())


class NoWaiting(RealEnv):
    def sleep(self, seconds: float) -> None:
        """Returns at once."""
