"""Every test of tables runs in memory and in a directory, and can ask for what lies between."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.connect import connect
from strandline.database import Database
from strandline.table import Table
from tests.tables.helpers import QUIET, READINGS, apply


@pytest.fixture(params=["memory", "directory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a database may be made; the same place each time within one test."""
    if request.param == "memory":
        return f"memory://{tmp_path}"
    return str(tmp_path / "lake")


@pytest.fixture
def open_database(url: str) -> Iterator[Callable[..., Database]]:
    """Opens the test's database, any number of times; all are closed in the end."""
    opened: list[Database] = []

    def open_it(**options: Any) -> Database:
        opened.append(connect(url, **{"settings": QUIET, **options}))
        return opened[-1]

    yield open_it
    for database in opened:
        database.close()


@pytest.fixture
def db(open_database: Callable[..., Database]) -> Database:
    return open_database()


@pytest.fixture
def readings(db: Database) -> Table:
    """An empty table of kind rows with two keys."""
    return db.create_table("readings", READINGS, row_keys="sensor", sort_keys="at")


@pytest.fixture
def stock(db: Database) -> Table:
    """An empty keyed table."""
    schema = pa.schema([("item", pa.string()), ("size", pa.int32()), ("count", pa.int64())])
    return db.create_table("stock", schema, row_keys=["item"], sort_keys=["size"], kind="keyed")


@pytest.fixture(params=["overlay", "applied", "both"])
def settle(request: pytest.FixtureRequest) -> Callable[[Table], None]:
    """What a test does between its writes and its reads.

    Rows are read the same whether they are in entries, in the data shard, or in both: then the
    first half of what is written has been applied.
    """
    calls = 0

    def settle_it(table: Table) -> None:
        nonlocal calls
        calls += 1
        if request.param == "applied" or (request.param == "both" and calls % 2):
            apply(table)

    return settle_it
