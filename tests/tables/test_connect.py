"""What `connect` opens, makes and refuses, and that a reader leaves no trace."""

import json
import os
import pickle
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.connect import LOG_FILE, Marker, connect, decode_marker, encode_marker
from strandline.database import Database
from strandline.errors import Corruption, UnknownTable, UsageError
from strandline.ids import MARKER_KEY, DatabaseId, ShardId
from strandline.settings import Settings

QUIET = Settings(background=False)
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


def make(path: Path) -> Database:
    db = connect(path, settings=QUIET)
    db.create_table("t", SCHEMA, row_keys="k").append({"k": [1, 2], "v": ["a", "b"]})
    return db


def snapshot(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything under a directory: names, times, contents."""
    return {
        str(p.relative_to(root)): (p.stat().st_mtime_ns, p.stat().st_mode, p.read_bytes())
        for p in sorted(root.rglob("*"))
        if p.is_file()
    }


@pytest.mark.parametrize("form", ["path", "text", "url", "escaped"])
def test_every_form_of_a_path_opens_the_same_database(tmp_path: Path, form: str) -> None:
    place = tmp_path / "a lake"
    with make(place):
        pass
    url: Any = {
        "path": place,
        "text": str(place),
        "url": f"file://{place}",
        "escaped": f"file://{tmp_path}/a%20lake",
    }[form]
    with connect(url, create=False) as db:
        assert db["t"].scan().count() == 2


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "no place"),
        (5, "no place"),
        (b"lake", "no place"),
        ("a\0b", "no place"),
        ("s3://bucket/lake", r"s3:// is not supported; supported are memory://"),
        ("http://host/lake", "http:// is not supported"),
        ("file://host/lake", "no path on this machine"),
        ("file://", "no path on this machine"),
        ("file:///lake?x=1", "no path on this machine"),
    ],
)
def test_other_places_are_refused_with_what_is_supported(url: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        connect(url)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "w"},
        {"mode": None},
        {"consensus": "postgresql://host/db"},
        {"storage_options": {"region": "x"}},
    ],
    ids=str,
)
def test_options_that_mean_nothing_here_are_refused(tmp_path: Path, options: Any) -> None:
    with pytest.raises(UsageError):
        connect(tmp_path / "lake", **options)
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("options", [{"mode": "r"}, {"create": False}], ids=str)
def test_a_missing_database_is_refused_and_not_made(tmp_path: Path, options: Any) -> None:
    for place in (tmp_path / "absent", tmp_path):
        with pytest.raises(UsageError, match="there is no database at"):
            connect(place, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_other_things_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").write_text("mine")
    with pytest.raises(UsageError, match=r"is not a database: it has no .* holds thesis.doc"):
        connect(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.doc"]


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="is a file"):
        connect(tmp_path / "file")


def test_what_a_stopped_creator_left_is_no_obstacle(tmp_path: Path) -> None:
    with connect(tmp_path / "lake"):
        pass
    (tmp_path / "lake" / MARKER_KEY).unlink()
    with pytest.raises(UsageError, match="there is no database"):
        connect(tmp_path / "lake", create=False)
    with connect(tmp_path / "lake") as db:
        assert db.tables() == []


@pytest.mark.parametrize("options", [{}, {"create": False}, {"mode": "r"}])
def test_a_lost_marker_does_not_make_an_empty_database(tmp_path: Path, options: Any) -> None:
    with make(tmp_path / "lake"):
        pass
    (tmp_path / "lake" / MARKER_KEY).unlink()
    for path in (tmp_path / "lake").glob("w*"):
        subprocess.run(["rm", "-r", path], check=True)
    with pytest.raises(Corruption, match=MARKER_KEY):
        connect(tmp_path / "lake", **options)
    assert not (tmp_path / "lake" / MARKER_KEY).exists()


def test_the_marker_that_is_there_wins(tmp_path: Path) -> None:
    with make(tmp_path) as first, connect(tmp_path) as second:
        assert first._handle.store.database == second._handle.store.database
        assert second.tables() == ["t"]


def test_a_marker_round_trips() -> None:
    marker = Marker(DatabaseId("d" + "0" * 32), ShardId("s" + "1" * 16))
    assert decode_marker(encode_marker(marker), "x") == marker


def damaged_markers() -> dict[str, bytes]:
    good = encode_marker(Marker(DatabaseId("d" + "0" * 32), ShardId("s" + "1" * 16)))
    fields = json.loads(good)
    return {
        "empty": b"",
        "cut": good[: len(good) // 2],
        "flipped": good.replace(b'"s1111', b'"s1101'),
        "format flipped": good.replace(b'"format": 1', b'"format": 3'),
        "a list": b"[1, 2]",
        "a number": b"7",
        "not text": b"\xff\xfe" + good,
        "no checksum": json.dumps({k: v for k, v in fields.items() if k != "checksum"}).encode(),
    }


@pytest.mark.parametrize("name", damaged_markers())
def test_a_damaged_marker_is_corruption_that_names_it(tmp_path: Path, name: str) -> None:
    with make(tmp_path):
        pass
    (tmp_path / MARKER_KEY).write_bytes(damaged_markers()[name])
    with pytest.raises(Corruption, match=MARKER_KEY) as caught:
        connect(tmp_path)
    assert caught.value.object == MARKER_KEY


def test_a_newer_format_is_refused_clearly(tmp_path: Path) -> None:
    newer = Marker(DatabaseId("d" + "0" * 32), ShardId("s" + "1" * 16), format=99)
    (tmp_path / MARKER_KEY).write_bytes(encode_marker(newer))
    with pytest.raises(UsageError, match=r"has format 99, .* install a newer version"):
        connect(tmp_path)


def test_a_lost_log_is_corruption_and_never_an_empty_database(tmp_path: Path) -> None:
    with make(tmp_path):
        pass
    for path in tmp_path.glob(f"{LOG_FILE}*"):
        path.unlink()
    for options in ({"mode": "rw"}, {"mode": "r"}):
        with pytest.raises(Corruption, match=r"log .* is missing"):
            connect(tmp_path, **options)  # type: ignore[arg-type]
    assert not (tmp_path / LOG_FILE).exists()


def test_a_reader_writes_nothing_and_needs_no_permission(tmp_path: Path) -> None:
    place = tmp_path / "lake"
    with make(place):
        pass
    before = snapshot(place)
    folders = [place, *(p for p in place.rglob("*") if p.is_dir())]
    for folder in folders:
        folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with connect(place, mode="r") as db:
            assert db["t"].get(1).num_rows == 1
            assert db.sql("SELECT count(*) FROM t").fetchall() == [(2,)]
            assert db.history().num_rows == 2
            assert snapshot(place) == before
    finally:
        for folder in folders:
            folder.chmod(stat.S_IRWXU)
    assert snapshot(place) == before


def test_a_reader_sees_what_a_living_writer_commits(tmp_path: Path) -> None:
    with make(tmp_path / "lake") as writer, connect(tmp_path / "lake", mode="r") as reader:
        table = reader["t"]
        assert table.scan().count() == 2
        writer["t"].append({"k": [3], "v": ["c"]})
        assert table.get(3)["v"].to_pylist() == ["c"]


@pytest.mark.parametrize(
    "write",
    [
        lambda db: db.create_table("u", SCHEMA, row_keys="k"),
        lambda db: db.drop_table("t"),
        lambda db: db.rename_table("t", "u"),
        lambda db: db["t"].append({"k": [3], "v": ["c"]}),
        lambda db: db["t"].delete("k = 1"),
        lambda db: db["t"].update({"v": "'x'"}),
        lambda db: db["t"].overwrite({"k": [3], "v": ["c"]}),
        lambda db: db["t"].set(retention="1 day"),
        lambda db: db.sql("INSERT INTO t VALUES (3, 'c')"),
        lambda db: db.sql("DELETE FROM t"),
    ],
)
def test_a_reader_refuses_every_write(tmp_path: Path, write: Callable[[Database], Any]) -> None:
    with make(tmp_path / "lake"):
        pass
    before = snapshot(tmp_path)
    with connect(tmp_path / "lake", mode="r") as db, pytest.raises(UsageError, match="mode='rw'"):
        write(db)
    assert snapshot(tmp_path) == before


def test_memory_is_one_place_per_name_and_a_new_one_without() -> None:
    with connect("memory://shared-by-name") as one, connect("memory://shared-by-name") as two:
        one.create_table("t", SCHEMA, row_keys="k")
        assert two.tables() == ["t"]
    with connect("memory://") as one, connect("memory://") as two:
        one.create_table("t", SCHEMA, row_keys="k")
        assert two.tables() == []


def test_a_closed_database_refuses_everything(open_database: Callable[..., Database]) -> None:
    db = open_database()
    table = db.create_table("t", SCHEMA, row_keys="k")
    db.close()
    db.close()
    for use in (db.tables, lambda: table.get(1), lambda: table.append({"k": [1]})):
        with pytest.raises(UsageError, match="was closed"):
            use()
    assert "closed" in repr(db)


def test_a_pickle_opens_the_database_again_with_a_session_of_its_own(tmp_path: Path) -> None:
    with make(tmp_path / "lake") as db:
        table, view = pickle.loads(pickle.dumps((db["t"], db)))
        assert view.tables() == ["t"]
        assert table.get(2)["v"].to_pylist() == ["b"]
        table.append({"k": [3], "v": ["c"]})
        assert db["t"].scan().count() == 3
        assert view._handle.store.session != db._handle.store.session
        assert view._handle.store.settings == QUIET
        view.close()


def test_memory_does_not_leave_its_process() -> None:
    with connect("memory://") as db:
        table = db.create_table("t", SCHEMA, row_keys="k")
        for thing in (db, table):
            with pytest.raises(UsageError, match="lives in the memory of this process"):
                pickle.dumps(thing)


FORKED = """
    import os, sys, warnings
    from strandline.connect import connect
    from strandline.errors import UsageError
    warnings.simplefilter("ignore")
    db = connect(sys.argv[1])
    table = db.create_table("t", {"k": [1], "v": ["parent"]}, row_keys="k")
    session = db._handle.store.session
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            table.append({"k": [2], "v": ["child"]})
            os.write(write, b"same" if db._handle.store.session == session else b"own")
        except UsageError as error:
            os.write(write, b"refused")
        os._exit(0)
    os.waitpid(child, 0)
    table.append({"k": [3], "v": ["parent"]})
    print(os.read(read, 99).decode(), table.scan(["v"]).to_arrow()["v"].to_pylist())
    db.close()
"""


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("directory", "own ['parent', 'child', 'parent']"),
        ("memory", "refused ['parent', 'parent']"),
    ],
)
def test_a_fork_gets_a_session_of_its_own_or_is_refused(
    tmp_path: Path, kind: str, expected: str
) -> None:
    url = str(tmp_path / "lake") if kind == "directory" else "memory://"
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORKED), url],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ,
    )
    assert run.stdout.strip() == expected


def test_an_unknown_table_is_a_key_error_that_names_the_near_ones(db: Database) -> None:
    db.create_table("readings", SCHEMA, row_keys="k")
    with pytest.raises(UnknownTable, match="'readngs'; did you mean 'readings'"):
        db["readngs"]
    with pytest.raises(KeyError):
        db["other"]
    for name in (5, None, ("readings",)):
        with pytest.raises(UsageError):
            db[name]  # type: ignore[index]
