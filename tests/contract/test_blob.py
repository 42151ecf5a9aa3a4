"""Every Blob adapter keeps the contract."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from strandline.env import RealEnv
from strandline.location.blob import Blob
from strandline.location.files import FileBlob
from strandline.location.memory import MemoryBlob, MemoryStore
from strandline.testing.blob_contract import BlobContract


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
