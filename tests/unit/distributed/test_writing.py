"""What a task of a write does, run in this process."""

from pathlib import Path

import pyarrow as pa
import pytest

from strandline.connect import connect
from strandline.database import Database
from strandline.distributed import Handover, site, writing
from strandline.env import RealEnv
from strandline.parts.schema import TableSchema
from strandline.settings import Settings
from strandline.state.model import EVERYTHING
from tests.spark.helpers import rows
from tests.support.deadlines import within

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


class Slow(RealEnv):
    """Two hours pass whenever a name is drawn: with each part."""

    def __init__(self, *, threads: int) -> None:
        super().__init__(threads=threads)
        self._passed = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._passed

    def token_hex(self, nbytes: int) -> str:
        self._passed += 7_200
        return super().token_hex(nbytes)


def test_a_task_may_take_as_long_as_its_rows_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "RealEnv", Slow)
    settings = Settings(background=False, part_rows_target=40, row_group_rows=16)
    with connect(tmp_path / "slow", settings=settings) as db:
        table = db.create_table("t", SCHEMA, row_keys="k")
        writer = Handover.begin(db, table._version, "append").writer
        assert len(writer(shuffled(200).to_batches()).parts) == 5


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
