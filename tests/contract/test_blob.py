"""Every Blob adapter keeps the contract."""

from __future__ import annotations

import functools

import pytest

from strandline.env import RealEnv
from strandline.location.memory import MemoryBlob, MemoryStore
from strandline.testing.blob_contract import BlobContract


class TestMemoryBlob(BlobContract):
    @pytest.fixture(autouse=True)
    def _place(self) -> None:
        self.opener = functools.partial(MemoryBlob, MemoryStore(), RealEnv())
