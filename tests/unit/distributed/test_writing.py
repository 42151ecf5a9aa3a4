"""What a task of a write does, run in this process."""

from pathlib import Path

import pyarrow as pa
import pytest

from strandline.database import Database
from strandline.distributed import Handover, writing
from strandline.parts.schema import TableSchema
from strandline.state.model import EVERYTHING
from tests.spark.helpers import rows
from tests.support.deadlines import within

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def shuffled(count: int) -> pa.Table:
    keys = [(i * 7919) % 1_000 for i in range(count)]
    return pa.table({"k": keys, "v": range(count)}, SCHEMA)


@pytest.mark.parametrize("held", [1_000, 1 << 30])
@pytest.mark.parametrize("kind", ["rows", "keyed"])
def test_a_task_sorts_what_memory_holds_and_what_it_does_not(
    db: Database, monkeypatch: pytest.MonkeyPatch, kind: str, held: int
) -> None:
    monkeypatch.setattr(writing, "_IN_MEMORY_BYTES", held)
    table = db.create_table("t", SCHEMA, row_keys="k", kind=kind)
    writer = Handover.begin(db, table._version, "append").writer
    data = shuffled(5_000)
    batch = writer(data.to_batches(max_chunksize=100))
    schema = TableSchema.from_version(table._version)
    found = pa.concat_tables(
        table._handle.store.reader.read(
            part, schema, columns=None, interval=EVERYTHING, deadline=within(60.0)
        )
        for part in batch.parts
    )
    last = dict(zip(data["k"].to_pylist(), data["v"].to_pylist(), strict=True))
    assert rows(found) == (rows(data) if kind == "rows" else sorted(last.items(), key=repr))
    assert found["k"].to_pylist() == sorted(found["k"].to_pylist())
    assert all(Path(db.url, part.key).exists() for part in batch.parts)
