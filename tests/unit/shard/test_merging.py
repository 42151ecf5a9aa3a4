"""A compaction's jobs: as long as their data need, each step in its time."""

from __future__ import annotations

import pyarrow as pa
import pytest

import strandline as sl
from strandline.parts.files.read import PartReader
from strandline.settings import Settings
from strandline.shard import merging
from strandline.state.plan import plan_compaction
from strandline.txn.apply import apply_table
from strandline.upkeep.compaction import workshop
from tests.support.deadlines import within

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


@pytest.mark.parametrize("in_memory", [0, 1 << 30])
def test_each_step_of_a_job_has_the_time_that_was_left_at_first(
    in_memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(*args: object, **options: object) -> object:
        found = read(*args, **options)  # type: ignore[arg-type]  # as it was called
        now = env.monotonic() + 50
        monkeypatch.setattr(env, "monotonic", lambda: now)
        return found

    read = PartReader._decode
    settings = Settings(background=False, inline_bytes_max=0, small_parts_max=1_000)
    with sl.connect("memory://", settings=settings) as db:
        table = db.create_table("t", SCHEMA, row_keys="k", kind="keyed")
        store = table._handle.store
        for number in range(4):
            table.append({"k": [number], "v": [number]})
        apply_table(store, table.id, within(60))
        state, env = store.data(table.id).state, store.env
        [job] = plan_compaction(state, "full", parts_max=10, keyed=True)
        deadline = within(60, env)
        shop = workshop(store, table._version, deadline, threads=1)
        monkeypatch.setattr(merging, "_IN_MEMORY_BYTES", in_memory)
        monkeypatch.setattr(PartReader, "_decode", decode)
        [output] = merging.run_job(shop, job, deadline)
    assert output.part.rows == 4
