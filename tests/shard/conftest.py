"""Every test of shards runs in memory and in a directory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import strandline as sl
from strandline.location import Location
from tests.shard.helpers import Pair, opened


@pytest.fixture(params=["memory", "directory"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Location]:
    where = f"memory://{tmp_path}" if request.param == "memory" else str(tmp_path / "shards")
    with sl.open_location(where) as found:
        yield found


@pytest.fixture
def pair(location: Location) -> Iterator[Pair]:
    """Handles on a new shard of words."""
    write, read = opened(location)
    yield write, read
    read.close()
    write.close()
