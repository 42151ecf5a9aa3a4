"""What the tests on Spark share besides fixtures."""

from typing import Any

import pyarrow as pa

from strandline.settings import Settings

# Nothing happens in the background, and small tables have several parts and row groups.
QUIET = Settings(background=False)


def rows(data: Any) -> list[tuple[Any, ...]]:
    """Rows as a sorted list of tuples, of a DataFrame or an Arrow table."""
    table = data if isinstance(data, pa.Table) else data.toArrow()
    return sorted(zip(*(c.to_pylist() for c in table.columns), strict=True), key=repr)
