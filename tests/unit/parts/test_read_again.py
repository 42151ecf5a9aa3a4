"""What a second reading of the same chunks by the same handle notices."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from strandline.env import RealEnv
from strandline.errors import Corruption
from strandline.location.files import FileBlob
from strandline.parts.footer import Identity
from strandline.parts.read import PartReader
from strandline.parts.schema import new_schema
from strandline.parts.write import write_part
from strandline.settings import Settings
from strandline.state.model import EVERYTHING

SETTINGS = Settings(row_group_rows=1_000)


def test_damage_after_a_scan_is_found_by_the_next_one(tmp_path: Path) -> None:
    env = RealEnv()
    blob = FileBlob(str(tmp_path), env)
    schema = new_schema(pa.schema([("k", pa.int64()), ("v", pa.float64())]), ("k",))
    numbers = list(range(5_000))
    table = pa.table({"k": numbers, "v": [n / 7 for n in numbers]}, schema=schema.stored())
    identity = Identity(
        database="d" + "0" * 32,
        table="s" + "0" * 16,
        name="t",
        session="w" + "0" * 16,
        shard="s" + "0" * 16,
    )
    key = f"w{'0' * 16}/s{'0' * 16}/part/p{'0' * 24}.parquet"
    part = write_part(blob, key, table, schema, identity=identity, settings=SETTINGS, timeout=9)
    reader = PartReader(blob, SETTINGS, env)

    def scan() -> pa.Table:
        loads = reader.chunks(part, schema, columns=None, intervals=[EVERYTHING], timeout=9)
        return pa.concat_tables([load(9) for load in loads])

    assert scan().equals(scan())
    column = reader.opened(part, timeout=9).metadata.row_group(2).column(1)
    inside_a_page = column.data_page_offset + column.total_compressed_size - 100
    path = tmp_path / key
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[inside_a_page] ^= 16
    path.write_bytes(data)
    with pytest.raises(Corruption, match=part.key):
        scan()
