"""Whatever happens to an object, every way of reading says which one, and none gives wrong rows."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.connect import LOG_FILE, connect
from strandline.database import Database
from strandline.env import Deadline
from strandline.errors import Corruption
from strandline.shard.look import Look
from strandline.table import Table
from tests.support.deadlines import within
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


# --- two logs that do not agree

USES: dict[str, Callable[[Database], Any]] = {
    "get": lambda db: db["t"].get(1),
    "scan": lambda db: db["t"].scan().to_arrow(),
    "sql": lambda db: db.sql("SELECT count(*) FROM t"),
    "append": lambda db: db["t"].append({"k": [5], "v": [5]}),
    "update": lambda db: db["t"].update({"v": "v + 1"}),
    "transaction": lambda db: db.transact(lambda tx: tx["t"].append({"k": [5], "v": [5]})),
    "blind beside another": lambda db: db.sql("INSERT INTO t SELECT 5, 5"),
    "rename": lambda db: db.rename_table("t", "u"),
    "drop": lambda db: db.drop_table("t"),
    "compact": lambda db: db.compact(),
    "vacuum": lambda db: db.vacuum(),
}


@pytest.mark.parametrize("use", USES)
def test_commits_that_the_log_lost_and_a_table_kept_are_missed_by_whoever_uses_it(
    tmp_path: Path, use: str
) -> None:
    with connect(tmp_path, settings=QUIET) as db:
        table = db.create_table("t", {"k": [1], "v": [1]}, row_keys="k", kind="keyed")
        before = db._handle.store.txns.machine.state.seqno
        table.append({"k": [2], "v": [2]})
        apply(table)
        txns = db._handle.store.txns.machine.shard
    lose_records(tmp_path, txns, before)
    for mode in ("r", "rw") if use in ("get", "scan", "sql") else ("rw",):
        with connect(tmp_path, mode=mode, settings=QUIET) as db:
            told = "table 't' has what was committed later; restore the newest log"
            with pytest.raises(Corruption, match=told) as caught:
                USES[use](db)
            assert caught.value.object == f"record {before + 1} of shard {txns}"
            assert db._handle.store.txns.look(within(9)).seqno == before, "nothing is written"


def test_a_table_that_ended_although_the_log_has_it_is_missed(tmp_path: Path) -> None:
    with connect(tmp_path, settings=QUIET) as db:
        db.create_table(
            "t",
            {"k": [1]},
            row_keys="k",
            properties={"retention": "0 seconds", "deletion_delay": "0 seconds"},
        )
        before = db._handle.store.txns.machine.state.seqno
        txns = db._handle.store.txns.machine.shard
        db.drop_table("t")
        db.vacuum()
        assert db._handle.store.machines()[1].state.meta.upper is None
    lose_records(tmp_path, txns, before)
    with connect(tmp_path, settings=QUIET) as db, pytest.raises(Corruption, match="is missing"):
        db["t"].scan().count()


def lose_records(path: Path, shard: str, after: int) -> None:
    """The log of one shard ends there from now on."""
    with closing(sqlite3.connect(path / LOG_FILE, isolation_level=None)) as log:
        gone = log.execute("DELETE FROM record WHERE shard = ? AND seqno > ?", (shard, after))
        assert gone.rowcount > 0


@pytest.mark.parametrize("use", ["scan", "append", "apply"])
def test_what_is_applied_between_two_looks_is_no_damage(tmp_path: Path, use: str) -> None:
    """The commits are read first, and then a table that is further."""
    with connect(tmp_path, settings=QUIET) as other:
        other.create_table("t", {"k": [1]}, row_keys="k")
        with connect(tmp_path, settings=QUIET) as db:
            table = db["t"]
            machine = db._handle.store.data(table.id)
            look = machine.look
            met = []

            def meanwhile(deadline: Deadline | None = None) -> Look:
                other["t"].append({"k": [2]})
                apply(other["t"])
                met.append(look(deadline).meta.upper or 0)
                assert met[-1] > (db._handle.store.txns.machine.state.meta.upper or 0)
                return machine.known(deadline)

            machine.look = meanwhile  # type: ignore[method-assign]
            uses: dict[str, Callable[[], Any]] = {
                "scan": table.scan().count,
                "append": lambda: table.append({"k": [2]}),
                "apply": lambda: apply(table),
            }
            uses[use]()
            assert met
        rows = other["t"].scan().count()
        assert rows == 1 + len(met) + (use == "append")


def data() -> pa.Table:
    return pa.table({"k": range(COUNT), "v": range(COUNT), "s": ["text"] * COUNT})
