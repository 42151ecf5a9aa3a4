"""Another user of the machine, who may read a database and not write it, in another process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.connect import connect
from strandline.database import Database
from tests.tables.helpers import QUIET, apply

NOBODY = 65_534

pytestmark = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user"
)

# Everything is loaded, and used once, before the user changes: the interpreter's own files may be
# out of the other user's reach.
SCRIPT = f"""
import json, os, sys
import pyarrow as pa
import strandline as sl
from strandline.errors import StrandlineError

warm = sl.connect("memory://")
table = warm.create_table("t", pa.schema([("k", pa.int64()), ("v", pa.string())]), row_keys="k")
table.append({{"k": [1], "v": ["a"]}})
table.scan(where="k = 1").to_arrow(), table.get(1), warm.sql("SELECT * FROM t").fetchall()

os.setgid({NOBODY})
os.setuid({NOBODY})
for line in sys.stdin:
    try:
        with sl.connect(sys.argv[1], mode=json.loads(line)["mode"], create=False) as db:
            table = db["t"]
            told = json.loads(line)
            if "append" in told:
                table.append({{"k": [told["append"]], "v": ["b"]}})
            answer = [
                sorted(table.scan().to_arrow()["k"].to_pylist()),
                table.get(1)["v"].to_pylist(),
                db.sql("SELECT count(*) FROM t").fetchall()[0][0],
            ]
    except StrandlineError as error:
        answer = [error.kind, str(error)]
    print(json.dumps(answer), flush=True)
"""


class Other:
    """A process of the other user."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", SCRIPT, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def asks(self, mode: str = "r", **more: Any) -> list[Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"mode": mode, **more}) + "\n")
        self._process.stdin.flush()
        answer: list[Any] = json.loads(self._process.stdout.readline())
        return answer

    def end(self) -> None:
        self._process.communicate(timeout=300)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory whose way down everybody may go."""
    path = Path(tempfile.mkdtemp(prefix="strandline-"))
    path.chmod(0o755)
    yield path / "lake"
    shutil.rmtree(path)


@pytest.fixture
def other(place: Path) -> Iterator[Other]:
    process = Other(place)
    yield process
    process.end()


def opened(place: Path) -> Database:
    before = os.umask(0o022)
    try:
        return connect(place, settings=QUIET)
    finally:
        os.umask(before)


def filled(db: Database) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    table = db.create_table("t", schema, row_keys="k", exist_ok=True)
    table.append({"k": [1], "v": ["a"]})
    apply(table)
    table.append({"k": [2], "v": ["c"]})


def files(place: Path) -> dict[str, tuple[int, int]]:
    found = [path for path in place.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


def test_who_may_only_read_sees_all_that_a_living_writer_committed(
    place: Path, other: Other
) -> None:
    with opened(place) as db:
        filled(db)
        assert other.asks() == [[1, 2], ["a"], 2]
        for key in range(3, 9):
            db["t"].append({"k": [key], "v": ["d"]})
            assert other.asks()[2] == key


def test_who_may_only_read_sees_everything_when_no_writer_is_there(
    place: Path, other: Other
) -> None:
    with opened(place) as db:
        filled(db)
    before = files(place)
    assert other.asks() == [[1, 2], ["a"], 2]
    assert other.asks() == [[1, 2], ["a"], 2]
    assert files(place) == before, "reading leaves no trace"


def test_writers_that_come_and_go_are_seen(place: Path, other: Other) -> None:
    for turn in range(3):
        with opened(place) as db:
            filled(db)
            assert other.asks()[2] == 2 * turn + 2
        assert other.asks()[2] == 2 * turn + 2


def test_who_may_not_write_is_told_so_and_changes_nothing(place: Path, other: Other) -> None:
    with opened(place) as db:
        filled(db)
        for _ in range(2):
            kind, message = other.asks("rw", append=9)
            assert kind == "refused"
            assert "permission" in message
        assert db["t"].scan().count() == 2
    assert other.asks("rw", append=9)[0] == "refused"
    assert other.asks() == [[1, 2], ["a"], 2]


def test_a_directory_that_may_not_be_entered_is_named(place: Path, other: Other) -> None:
    with opened(place) as db:
        filled(db)
    place.chmod(0o700)
    kind, message = other.asks()
    assert kind == "refused"
    assert str(place) in message
