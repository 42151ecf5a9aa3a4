"""A database that other processes reach."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.connect import connect
from strandline.database import Database
from strandline.settings import Settings


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """An empty database in a directory. Nothing happens in the background."""
    with connect(tmp_path / "lake", settings=Settings(background=False)) as db:
        yield db
