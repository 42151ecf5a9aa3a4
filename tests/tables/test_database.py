"""Tables come, go, change names and are used from many sides at once."""

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from strandline.database import Database
from strandline.errors import UnknownTable, UsageError
from tests.tables.helpers import apply, rows

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


def test_a_table_is_made_from_a_schema_or_from_data(db: Database) -> None:
    empty = db.create_table("empty", SCHEMA, row_keys="k")
    full = db.create_table("full", {"k": [2, 1], "v": ["b", "a"]}, row_keys=["k"])
    assert len(empty) == 0
    assert rows(full.scan().to_arrow()) == [(1, "a"), (2, "b")]
    assert db.tables() == list(db) == ["empty", "full"]
    assert "full" in db
    assert "none" not in db
    assert full.history().num_rows == 1


def test_a_table_that_is_there_is_refused_unless_it_may_be(db: Database) -> None:
    first = db.create_table("t", SCHEMA, row_keys="k")
    for name in ("t", "T"):
        with pytest.raises(UsageError, match="already"):
            db.create_table(name, SCHEMA, row_keys="k")
    again = db.create_table("t", SCHEMA, row_keys="k", exist_ok=True)
    again.append({"k": [1], "v": ["a"]})
    assert len(first) == 1
    db.create_table("t", {"k": [2], "v": ["b"]}, row_keys="k", exist_ok=True)
    assert len(first) == 2
    others: list[tuple[pa.Schema, dict[str, Any]]] = [
        (SCHEMA, {"kind": "keyed", "row_keys": "k"}),
        (SCHEMA, {"row_keys": "v"}),
        (SCHEMA, {"row_keys": "k", "sort_keys": "v"}),
        (SCHEMA.append(pa.field("w", pa.int64())), {"row_keys": "k"}),
    ]
    for schema, options in others:
        with pytest.raises(UsageError, match=r"already, with another"):
            db.create_table("t", schema, exist_ok=True, **options)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"kind": "aggregate"}, "later release"),
        ({"aggregate": {"v": "max"}}, "later release"),
        ({"merge": "module:function"}, "later release"),
        ({"keep": "k > 1"}, "later release"),
        ({"kind": "heap"}, "kind"),
        ({"row_keys": []}, "row key"),
        ({"row_keys": "nothing"}, "nothing"),
        ({"row_keys": "f"}, "'f'"),
        ({"row_keys": ["k", "k"]}, "twice"),
        ({"sort_keys": "k"}, "twice"),
        ({"split_points": 5}, "list of row keys"),
        ({"split_points": ["a"]}, "'a'"),
        ({"split_points": [(1, "a")]}, "'k'"),
        ({"split_points": [()]}, "prefix"),
        ({"properties": {"nothing": 1}}, "no table property"),
        ({"properties": {"retention": "long"}}, "retention"),
        ({"timeout": 0}, "timeout"),
    ],
    ids=str,
)
def test_bad_tables_are_refused_and_nothing_is_made(
    db: Database, arguments: dict[str, Any], why: str
) -> None:
    schema = SCHEMA.append(pa.field("f", pa.float64()))
    with pytest.raises(UsageError, match=why):
        db.create_table("t", schema, **{"row_keys": "k", **arguments})
    assert db.tables() == []


BAD_NAMES = ["", ".", "..", "a/b", "a\\b", "a\0b", "a\nb", "e\u0301", "x" * 256, 5, None]
ODD_NAMES = [
    "select", "a b", 'quo"te', "it's", "semi;colon", "--", "Größe", "表", "information_schema",
    "main.t", "sqlite_master", "rows", "x" * 255, "-", "%s", "$1", "😀",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_names_that_confuse_are_refused(db: Database, name: Any) -> None:
    with pytest.raises(UsageError):
        db.create_table(name, SCHEMA, row_keys="k")
    db.create_table("t", SCHEMA, row_keys="k")
    with pytest.raises(UsageError):
        db.rename_table("t", name)
    assert db.tables() == ["t"]


@pytest.mark.parametrize("name", ODD_NAMES, ids=repr)
def test_odd_names_work_everywhere(db: Database, name: str) -> None:
    schema = pa.schema([(name, pa.int64()), ("v", pa.int64())])
    table = db.create_table(name, schema, row_keys=name)
    table.append({name: [1, 2], "v": [10, 20]})
    assert db[name].get(2)["v"].to_pylist() == [20]
    quoted = '"' + name.replace('"', '""') + '"'
    query = f"SELECT sum({quoted}) FROM {quoted} WHERE {quoted} > 1"
    assert db.sql(query).fetchall() == [(2,)]
    assert table.scan(where=f"{quoted} > 1").count() == 1
    db.sql(f"DELETE FROM {quoted} WHERE {quoted} = 1")
    assert len(table) == 1
    db.drop_table(name)
    assert db.tables() == []


def test_split_points_make_leaves_before_the_table_is_named(db: Database) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("v", pa.int64())])
    table = db.create_table("t", schema, row_keys=["a", "b"], split_points=[(5, "m"), 3, (3,), 9])
    assert table.scan().explain().leaves_total == 4
    table.append({"a": [1, 3, 5, 5, 9], "b": ["x", "x", "a", "z", "x"], "v": [1, 2, 3, 4, 5]})
    for _ in range(2):
        assert table.scan(["v"]).to_arrow()["v"].to_pylist() == [1, 2, 3, 4, 5]
        assert table.get(5)["v"].to_pylist() == [3, 4]
        apply(table)


def test_leaves_are_split_at_medians_and_every_row_stays_readable(db: Database) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.int64()), ("v", pa.int64())])
    table = db.create_table("t", schema, row_keys=["a", "b"], properties={"split_rows": 20})
    for start in (0, 1):
        numbers = range(start, 100, 2)
        table.append({"a": ["same"] * 50, "b": numbers, "v": numbers})
    (report,) = db.split("t")
    assert (report.leaves_before, report.leaves_after, report.too_large) == (1, 8, 0)
    assert table.scan().explain().leaves_total == 8
    assert table.scan(["v"]).to_arrow()["v"].to_pylist() == list(range(100))
    assert table.scan(key_range=(("same", 12), ("same", 25))).explain().leaves == 1
    assert db.split()[0].leaves_after == 8
    db.compact("t")
    assert table.get("same", 37)["v"].to_pylist() == [37]
    hot = db.create_table(
        "hot", {"a": ["one"] * 50, "b": [1] * 50, "v": range(50)}, row_keys=["a", "b"],
        properties={"split_rows": 20},
    )  # fmt: skip
    (report,) = db.split(["hot"])
    assert (report.leaves_after, report.too_large) == (1, 1)
    assert hot.scan().count() == 50


def test_a_dropped_table_is_unknown_to_its_handles_for_ever(db: Database) -> None:
    table = db.create_table("t", {"k": [1], "v": ["old"]}, row_keys="k")
    before = db.history(1)["time"][0].as_py()
    db.drop_table("t")
    new = db.create_table("t", {"k": [1, 2], "v": ["new", "new"]}, row_keys="k")
    uses: list[Callable[[], Any]] = [
        lambda: table.get(1),
        lambda: table.scan().to_arrow(),
        lambda: len(table),
        lambda: table.append({"k": [3], "v": ["x"]}),
        lambda: table.append({"k": [], "v": []}),
        lambda: table.delete(all=True),
        lambda: table.update({"v": "'x'"}),
        lambda: table.set(online=False),
        lambda: table.name,
        lambda: table.properties,
    ]
    for use in uses:
        with pytest.raises(UnknownTable):
            use()
    assert rows(new.scan().to_arrow()) == [(1, "new"), (2, "new")]
    assert rows(db.as_of(before)["t"].scan().to_arrow()) == [(1, "old")]
    assert rows(table.as_of(before).scan().to_arrow()) == [(1, "old")]
    with pytest.raises(UnknownTable):
        db.drop_table("nothing")
    assert db.drop_table("nothing", missing_ok=True) is None


def test_handles_follow_a_renamed_table(db: Database) -> None:
    table = db.create_table("old", {"k": [1], "v": ["a"]}, row_keys="k")
    before = table.append({"k": [2], "v": ["b"]})
    db.create_table("taken", SCHEMA, row_keys="k")
    for name in ("taken", "TAKEN"):
        with pytest.raises(UsageError, match="already"):
            db.rename_table("old", name)
    db.rename_table("old", "new")
    assert table.name == "new"
    table.append({"k": [3], "v": ["c"]})
    assert len(db["new"]) == 3
    with pytest.raises(UnknownTable):
        db["old"]
    assert len(db.as_of(before)["old"]) == 2
    db.rename_table("new", "New")
    assert db.tables() == ["New", "taken"]


def test_status_and_usage_tell_what_is_stored(db: Database) -> None:
    small = db.create_table("small", {"k": [1], "v": ["a"]}, row_keys="k")
    large = db.create_table("large", {"k": range(20_000), "v": ["x"] * 20_000}, row_keys="k")
    apply(large)
    small.append({"k": [2], "v": ["b"]})
    found = {row["table"]: row for row in db.status().to_pylist()}
    assert list(found) == ["large", "small"]
    assert (found["large"]["rows"], found["large"]["parts"], found["large"]["leaves"]) == (
        20_000,
        1,
        1,
    )
    assert (found["small"]["rows"], found["small"]["parts"], found["small"]["backlog"]) == (2, 0, 2)
    assert found["small"]["latest"] == db.history(1)["time"][0].as_py()
    used = db.usage().to_pylist()
    (part,) = [row for row in used if row["kind"] == "part"]
    assert (part["table"], part["objects"], part["bytes"]) == ("large", 1, found["large"]["bytes"])
    assert part["use"] == "live"
    assert [row["objects"] for row in used if row["kind"] == "marker"] == [1]
    assert not [row for row in used if row["use"] == "unknown"]
    (waiting,) = [row for row in used if row["use"] == "not applied"]
    assert (waiting["table"], waiting["kind"], waiting["objects"]) == ("small", "inline", 2)
    logs = {row["table"]: row["objects"] for row in used if row["use"] == "log"}
    assert logs.keys() == {None, "large"}
    assert logs[None] == 3


def test_two_handles_see_each_others_commits_at_once(
    open_database: Callable[..., Database],
) -> None:
    one, two = open_database(), open_database()
    mine = one.create_table("t", SCHEMA, row_keys="k")
    theirs = two["t"]
    for number in range(20):
        mine.append({"k": [number], "v": ["mine"]})
        assert theirs.get(number)["v"].to_pylist() == ["mine"]
        theirs.append({"k": [number], "v": ["theirs"]})
        assert sorted(mine.get(number)["v"].to_pylist()) == ["mine", "theirs"]
        if number % 7 == 0:
            apply(mine if number % 2 else theirs)
    assert len(mine) == len(theirs) == 40


def test_threads_share_a_handle(db: Database) -> None:
    table = db.create_table("t", SCHEMA, row_keys="k")
    failures: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            for number in range(20):
                key = worker * 1_000 + number
                table.append({"k": [key], "v": [str(key)]})
                assert table.get(key)["v"].to_pylist() == [str(key)]
        except BaseException as error:  # noqa: BLE001  told to the thread that asks
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        apply(table)
    for thread in threads:
        thread.join()
    assert failures == []
    assert table.scan(["k"]).to_arrow()["k"].to_pylist() == [
        worker * 1_000 + number for worker in range(6) for number in range(20)
    ]


def test_writers_that_read_first_never_lose_an_update(db: Database) -> None:
    table = db.create_table("t", {"k": [1], "n": [0]}, row_keys="k", kind="keyed")
    failures: list[BaseException] = []

    def count() -> None:
        try:
            for _ in range(8):
                table.update({"n": "n + 1"}, where="k = 1")
        except BaseException as error:  # noqa: BLE001  told to the thread that asks
            failures.append(error)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert table.get_one(1) == {"k": 1, "n": 32}


def test_a_row_is_retracted_once_whoever_deletes_it(db: Database) -> None:
    table = db.create_table("t", {"k": list(range(50)), "v": ["x"] * 50}, row_keys="k")
    deleted: list[int | None] = []

    def delete() -> None:
        deleted.append(table.delete("v = 'x'").rows)

    threads = [threading.Thread(target=delete) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(n or 0 for n in deleted) == [0, 0, 0, 50]
    apply(table)
    assert len(table) == 0
