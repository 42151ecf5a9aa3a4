"""Txns shards run in memory, in a directory, and over a network that loses answers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import strandline as sl
from strandline.location import Location
from tests.txn.helpers import lossy


@pytest.fixture(params=["memory", "directory", "lossy"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Location]:
    place = str(tmp_path / "shards")
    where = place if request.param == "directory" else f"memory://{tmp_path}"
    with sl.open_location(where) as found:
        yield lossy(found) if request.param == "lossy" else found
