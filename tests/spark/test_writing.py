"""What a task of an import writes, run in this process."""

from pathlib import Path

import pyarrow as pa
import pytest

from strandline.database import Database
from strandline.parts.schema import TableSchema
from strandline.pipeline import importing
from strandline.pipeline.importing import write_rows
from strandline.pipeline.site import Site, handle_of
from strandline.state.model import EVERYTHING
from tests.spark.helpers import rows
from tests.support.deadlines import within

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def shuffled(count: int) -> pa.Table:
    keys = [(i * 7919) % 1_000 for i in range(count)]
    return pa.table({"k": keys, "v": range(count)}, SCHEMA)


@pytest.mark.parametrize("held", [1_000, 1 << 30])
@pytest.mark.parametrize("kind", ["rows", "keyed"])
def test_a_task_sorts_what_memory_holds_and_what_it_does_not(
    db: Database, monkeypatch: pytest.MonkeyPatch, kind: str, held: int
) -> None:
    monkeypatch.setattr(importing, "_IN_MEMORY_BYTES", held)
    table = db.create_table("t", SCHEMA, row_keys="k", kind=kind)
    handle = handle_of(db)
    site = Site.of(handle, table._version)
    data = shuffled(5_000)
    batch = write_rows(site, data.to_batches(max_chunksize=100))
    schema = TableSchema.from_version(table._version)
    found = pa.concat_tables(
        handle.store.reader.read(
            part, schema, columns=None, interval=EVERYTHING, deadline=within(60.0)
        )
        for part in batch.parts
    )
    last = dict(zip(data["k"].to_pylist(), data["v"].to_pylist(), strict=True))
    assert rows(found) == (rows(data) if kind == "rows" else sorted(last.items(), key=repr))
    assert found["k"].to_pylist() == sorted(found["k"].to_pylist())
    assert all(Path(db.url, part.key).exists() for part in batch.parts)
