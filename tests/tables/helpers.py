"""What the tests of tables share besides fixtures."""

from typing import Any

import pyarrow as pa

from strandline.settings import Settings
from strandline.table import Table
from strandline.txn.apply import apply_table
from tests.support.deadlines import within

# Nothing happens in the background: what a test did not do has not been done.
QUIET = Settings(background=False)

READINGS = pa.schema(
    [("sensor", pa.int64()), ("at", pa.int64()), ("name", pa.string()), ("value", pa.float64())]
)


def apply(table: Table) -> int:
    """Moves what is committed to a table into its data shard; returns how many commits."""
    handle = table._handle
    return apply_table(handle.store, table._version.table, deadline=within(60.0)).commits


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows as tuples."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
