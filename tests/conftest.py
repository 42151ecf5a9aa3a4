"""What all tests share."""

import os

import pytest
from hypothesis import HealthCheck, settings

# Machines are shared and slow at times: an example may take as long as it takes, and so may
# drawing it. What has to be fast is measured by the benchmarks.
settings.register_profile("strandline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("strandline")


@pytest.fixture(autouse=True, scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What tests leave in a cache is not left in the user's."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


# First, because xdist reads the groups in the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Send the Spark tests to one worker: they share one Java process."""
    for item in items:
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))
