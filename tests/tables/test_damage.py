"""Whatever happens to an object, every way of reading says which one, and none gives wrong rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.connect import connect
from strandline.database import Database
from strandline.errors import Corruption
from strandline.table import Table
from tests.tables.helpers import QUIET, apply

COUNT = 20_000

DAMAGE: dict[str, Callable[[Path], Any]] = {
    "removed": lambda path: path.unlink(),
    "emptied": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "flipped": lambda path: path.write_bytes(flipped(path.read_bytes(), 5_000)),
    "footer flipped": lambda path: path.write_bytes(flipped(path.read_bytes(), -300)),
    "replaced": lambda path: path.write_bytes(b"PAR1" + bytes(path.stat().st_size)),
}

READS: dict[str, Callable[[Database, Table], Any]] = {
    "to_arrow": lambda _, t: t.scan().to_arrow(),
    "to_reader": lambda _, t: t.scan().to_reader().read_all(),
    "where": lambda _, t: t.scan(where="v >= 0").count(),
    "get": lambda _, t: [t.get(k) for k in range(0, COUNT, 500)],
    "raw": lambda _, t: t.scan(raw=True).to_arrow(),
    "sql": lambda db, _: db.sql("SELECT sum(k), sum(v), min(s) FROM t").fetchall(),
    "sql where": lambda db, _: db.sql("SELECT sum(k), min(s) FROM t WHERE v >= 0").df(),
    "sql insert": lambda db, _: db.sql("INSERT INTO t SELECT * FROM t"),
    "sql subquery": lambda db, _: db.sql("DELETE FROM t WHERE k IN (SELECT k FROM t WHERE s > '')"),
    "delete": lambda _, t: t.delete("v >= 0"),
    "update": lambda _, t: t.update({"v": "v + 1"}),
}


def flipped(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 0x10
    return bytes(changed)


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "overlay"])
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_corruption_that_names_the_object(
    tmp_path: Path, damage: str, read: str, applied: bool
) -> None:
    with connect(tmp_path, settings=QUIET) as db:
        table = db.create_table("t", data(), row_keys="k")
        if applied:
            apply(table)
        before = db.history().num_rows
        (path,) = tmp_path.glob("w*/s*/part/*.parquet")
        DAMAGE[damage](path)
        key = str(path.relative_to(tmp_path))
        with pytest.raises(Corruption) as caught:
            READS[read](db, table)
        assert caught.value.object == key
        assert key in str(caught.value)
        assert db.history().num_rows == before


def test_what_does_not_need_the_object_goes_on(tmp_path: Path) -> None:
    with connect(tmp_path, settings=QUIET) as db:
        table = db.create_table("t", data(), row_keys="k")
        table.append({"k": [-5], "v": [1], "s": ["a"]})
        (path,) = tmp_path.glob("w*/s*/part/*.parquet")
        path.unlink()
        assert table.get(-5)["v"].to_pylist() == [1]
        assert table.scan(key_range=(None, 0)).count() == 1
        table.append({"k": [-6], "v": [2], "s": ["b"]})
        assert db.sql("SELECT count(*) FROM t WHERE k < 0").fetchall() == [(2,)]


def data() -> pa.Table:
    return pa.table({"k": range(COUNT), "v": range(COUNT), "s": ["text"] * COUNT})
