"""SQL sees every table at one moment, writes in one transaction, and reaches nothing else."""

import inspect
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.database import Database
from strandline.errors import UnknownTable, UsageError
from strandline.sql.relation import Relation
from strandline.table import Table
from strandline.times import Commit
from tests.tables.helpers import apply, rows

Settle = Callable[[Table], None]

T = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("v", pa.float64())])
U = pa.schema([("k", pa.int64()), ("name", pa.string())])


@pytest.fixture
def two(db: Database, settle: Settle) -> Database:
    """Two tables that can be joined."""
    t = db.create_table("t", T, row_keys="k")
    u = db.create_table("u", U, row_keys="k", kind="keyed")
    t.append({"k": [1, 2], "at": [None, None], "v": [1.5, 2.5]})
    settle(t)
    t.append({"k": [2, 3], "at": [None, None], "v": [3.5, None]})
    u.append({"k": [1, 2], "name": ["one", "old"]})
    settle(u)
    u.append({"k": [2], "name": ["two"]})
    settle(t)
    return db


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT count(*) FROM t", [(4,)]),
        ("SELECT sum(v) FROM t", [(7.5,)]),
        ("SELECT k, count(*) FROM t GROUP BY k ORDER BY k", [(1, 1), (2, 2), (3, 1)]),
        (
            "SELECT name, sum(v) FROM t JOIN u USING (k) GROUP BY 1 ORDER BY 1",
            [("one", 1.5), ("two", 6.0)],
        ),
        (
            "WITH c AS (FROM u) SELECT name FROM c WHERE k IN (SELECT k FROM t WHERE v > 3)",
            [("two",)],
        ),
        ("SELECT v FROM T WHERE K = 2 AND v > 3", [(3.5,)]),
        ("SELECT k FROM t WHERE v IS NULL", [(3,)]),
        ("SELECT k FROM t WHERE v IN (1.5, 2.5) ORDER BY k", [(1,), (2,)]),
        ("FROM u ORDER BY k LIMIT 1", [(1, "one")]),
        ("SELECT count(*) FROM t WHERE at IS NULL", [(4,)]),
        ("SELECT max(at) FROM t", [(None,)]),
        ("SELECT 1 + 1", [(2,)]),
        ("SELECT name FROM u WHERE name LIKE 't%'", [("two",)]),
        ("SELECT a.k FROM u a, u b WHERE a.k = b.k ORDER BY 1;", [(1,), (2,)]),
    ],
)
def test_queries_see_what_is_committed(two: Database, query: str, expected: list[Any]) -> None:
    assert two.sql(query).fetchall() == expected


def test_a_result_stays_usable_and_comes_in_every_form(two: Database) -> None:
    relation = two.sql("SELECT k, name FROM u ORDER BY k")
    expected = {"k": [1, 2], "name": ["one", "two"]}
    two["u"].delete(all=True)
    for _ in range(2):
        assert relation.fetchall() == [(1, "one"), (2, "two")]
        assert relation.to_arrow_table().to_pydict() == expected
        assert relation.df().to_dict("list") == expected
        assert relation.pl().to_dict(as_series=False) == expected
        assert pa.table(relation).to_pydict() == expected
    assert relation.filter("k = 2").fetchall() == [(2, "two")]
    assert relation.columns == ["k", "name"]
    assert list(relation) == [(1, "one"), (2, "two")]
    assert two.sql("SELECT * FROM u").fetchall() == []


def test_all_tables_are_read_at_one_moment(two: Database) -> None:
    before = two["t"].append({"k": [9], "v": [9.0]})
    two["u"].append({"k": [9], "name": ["nine"]})
    query = "SELECT count(*) FROM t JOIN u USING (k) WHERE k = 9"
    assert two.sql(query).fetchall() == [(1,)]
    assert two.sql(query, as_of=before).fetchall() == [(0,)]
    assert two.as_of(before).sql("SELECT count(*) FROM t WHERE k = 9").fetchall() == [(1,)]


def test_insert_gives_a_commit_and_casts_like_sql(two: Database) -> None:
    commit = two.sql("INSERT INTO t VALUES (5, '2026-11-20 10:00:00+00', 7), (6, NULL, '8.5')")
    assert isinstance(commit, Commit)
    assert (commit.rows, commit.tables) == (2, ("t",))
    assert two["t"].get(5)["v"].to_pylist() == [7.0]
    assert two.history(1)["operation"].to_pylist() == ["insert"]
    two.sql("INSERT INTO t (v, k) SELECT k * 2, k + 100 FROM t WHERE k = 1")
    assert two["t"].get(101)["v"].to_pylist() == [2.0]
    two.sql("INSERT INTO t BY NAME SELECT 1.0 AS v, 200 AS k")
    assert two["t"].get(200)["v"].to_pylist() == [1.0]
    two.sql("WITH big AS (SELECT max(k) AS k FROM t) INSERT INTO u SELECT k, 'big' FROM big")
    assert two["u"].get_one(200) == {"k": 200, "name": "big"}


def test_update_and_delete_run_as_one_transaction(two: Database, settle: Settle) -> None:
    commit = two.sql("UPDATE t SET v = v * 2, at = TIMESTAMPTZ '2026-11-20 10:00:00Z' WHERE k = 2")
    assert isinstance(commit, Commit)
    settle(two["t"])
    assert two.sql("SELECT v FROM t WHERE k = 2 ORDER BY v").fetchall() == [(5.0,), (7.0,)]
    two.sql("UPDATE u AS x SET name = upper(x.name) WHERE x.k IN (SELECT k FROM t WHERE v > 4)")
    assert two["u"].scan(["name"]).to_arrow()["name"].to_pylist() == ["one", "TWO"]
    two.sql("UPDATE u SET name = (SELECT CAST(max(v) AS VARCHAR) FROM t WHERE t.k = u.k)")
    assert two["u"].scan(["name"]).to_arrow()["name"].to_pylist() == ["1.5", "7.0"]
    two.sql("DELETE FROM t WHERE k IN (SELECT k FROM u WHERE name = '7.0') OR v IS NULL;")
    assert rows(two["t"].scan(["k"]).to_arrow()) == [(1,)]
    two.sql("DELETE FROM u")
    assert len(two["u"]) == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        "nonsense",
        "SELECT 1; SELECT 2",
        "SELECT nothing FROM t",
        "SELECT * FROM nothing",
        "CREATE TABLE x AS SELECT 1",
        "CREATE VIEW x AS SELECT 1",
        "DROP TABLE t",
        "ALTER TABLE t ADD COLUMN x INTEGER",
        "ATTACH '{path}'",
        "PRAGMA database_list",
        "SET threads = 1",
        "INSTALL httpfs",
        "LOAD httpfs",
        "CALL pragma_version()",
        "EXPORT DATABASE '{path}'",
        "BEGIN",
        "VACUUM",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM read_blob('/etc/passwd')",
        "SELECT * FROM frame",
        "INSERT INTO t SELECT * FROM read_csv('/etc/passwd')",
        "DELETE FROM t WHERE k IN (SELECT size FROM read_blob('/etc/passwd'))",
        "INSERT INTO t VALUES (1)",
        "INSERT INTO t (k, nothing) VALUES (1, 2)",
        "INSERT INTO t (k) VALUES ('many')",
        "INSERT INTO t (v) VALUES (1.0)",
        "INSERT INTO t DEFAULT VALUES",
        "INSERT INTO t (k) VALUES (1) RETURNING k",
        "INSERT INTO u VALUES (1, 'x') ON CONFLICT DO NOTHING",
        "INSERT OR REPLACE INTO u VALUES (1, 'x')",
        "UPDATE t SET nothing = 1",
        "UPDATE t SET v = 'many'",
        "UPDATE t SET v = 1, v = 2",
        "UPDATE t SET (v, at) = (1, NULL)",
        "UPDATE t SET v = u.k FROM u",
        "UPDATE t SET v = 1 RETURNING v",
        "UPDATE u SET k = 5",
        "DELETE FROM t USING u WHERE t.k = u.k",
        "DELETE FROM t WHERE nothing = 1",
        "DELETE FROM main.t",
        "WITH x AS (SELECT 1) DELETE FROM t",
    ],
)
def test_everything_else_is_refused_and_changes_nothing(
    two: Database, text: str, tmp_path: Path
) -> None:
    frame = pa.table({"x": [1]})  # a variable of the caller is no table
    before = two.history().num_rows
    with pytest.raises(UsageError):
        two.sql(text.replace("{path}", str(tmp_path / "out"))).fetchall()
    assert not (tmp_path / "out").exists()
    assert two.history().num_rows == before
    assert frame.num_rows == 1


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("UPDATE t SET v = u.k FROM u WHERE u.k = t.k", "write UPDATE t SET column = (SELECT"),
        ("DELETE FROM t USING u WHERE t.k = u.k", "write DELETE FROM t WHERE EXISTS (SELECT"),
        ("INSERT INTO u VALUES (1, 'x') ON CONFLICT DO NOTHING", "NOT EXISTS (SELECT 1 FROM t"),
        (
            "INSERT INTO u VALUES (1, 'x') ON CONFLICT (k) DO UPDATE SET name = excluded.name",
            "into a keyed table INSERT replaces by itself",
        ),
        ("INSERT OR REPLACE INTO u VALUES (1, 'x')", "into a keyed table INSERT replaces"),
        ("INSERT OR IGNORE INTO u VALUES (1, 'x')", "NOT EXISTS (SELECT 1 FROM t"),
        ("INSERT INTO t (k) VALUES (1) RETURNING k", "SELECT in the same transaction"),
        ("UPDATE t SET v = 1 RETURNING *", "SELECT in the same transaction"),
        ("DELETE FROM t RETURNING k", "SELECT in the same transaction"),
        (
            "MERGE INTO u USING t ON t.k = u.k WHEN MATCHED THEN DELETE",
            "INSERT INTO t SELECT … replaces and adds rows",
        ),
        ("BEGIN", "with db.transaction() as tx"),
        ("DROP TABLE t", "drop_table"),
        ("CREATE TABLE x (k INT)", "create_table"),
    ],
)
def test_what_is_refused_says_what_to_write_instead(two: Database, text: str, instead: str) -> None:
    before = two.history().num_rows
    with pytest.raises(UsageError) as refused:
        two.sql(text)
    assert instead in str(refused.value)
    assert two.history().num_rows == before


def test_what_is_said_to_write_instead_does_it(two: Database) -> None:
    two.sql(
        "UPDATE t SET v = (SELECT o.k * 10 FROM u AS o WHERE o.k = t.k) "
        "WHERE EXISTS (SELECT 1 FROM u AS o WHERE o.k = t.k)"
    )
    assert two.sql("SELECT k, v FROM t ORDER BY ALL").fetchall() == [
        (1, 10.0),
        (2, 20.0),
        (2, 20.0),
        (3, None),
    ]
    two.sql("DELETE FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND u.name = 'two')")
    assert two.sql("SELECT k FROM t ORDER BY k").fetchall() == [(1,), (3,)]
    two.sql(
        "INSERT INTO u SELECT k, name FROM (VALUES (1, 'not new'), (8, 'new')) AS n(k, name) "
        "WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.k = n.k)"
    )
    assert two.sql("SELECT * FROM u ORDER BY k").fetchall() == [(1, "one"), (2, "two"), (8, "new")]
    two.sql("INSERT INTO u VALUES (8, 'replaced'), (9, 'more')")
    assert two["u"].get_one(8) == {"k": 8, "name": "replaced"}
    two.sql("INSERT INTO t BY NAME SELECT 1.5 AS v, 77 AS k")
    assert two["t"].get(77)["v"].to_pylist() == [1.5]


def test_a_value_that_fails_late_is_the_users_mistake(two: Database) -> None:
    two.sql("INSERT INTO t (k, v) SELECT 1000 + range, 0 FROM range(400000)")
    two.sql("INSERT INTO u VALUES (0, 'x')")
    query = "SELECT k, CASE WHEN k = 400000 THEN (SELECT name FROM u WHERE k = 0) END AS c FROM t"
    with pytest.raises(UsageError, match="'x'"):
        two.sql(f"INSERT INTO t (k, v) SELECT k, c::DOUBLE FROM ({query} ORDER BY k)")


def test_writes_to_unknown_tables_and_to_the_past_are_refused(two: Database) -> None:
    with pytest.raises(UnknownTable, match="'tt'; did you mean"):
        two.sql("DELETE FROM tt")
    commit = two["t"].append({"k": [1]})
    with pytest.raises(UsageError, match="the past cannot change"):
        two.sql("DELETE FROM t", as_of=commit)
    for text in (5, None, b"SELECT 1"):
        with pytest.raises(UsageError, match="no SQL"):
            two.sql(text)  # type: ignore[arg-type]


def test_a_large_table_is_read_in_full_and_by_condition(db: Database) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("s", pa.string())])
    table = db.create_table("big", schema, row_keys="k", split_points=[25_000, 50_000])
    count = 100_000
    table.append(pa.table({"k": range(count), "v": range(count), "s": ["text"] * count}))
    for step in range(3):
        assert db.sql("SELECT sum(v), count(*), min(s) FROM big").fetchall() == [
            (count * (count - 1) // 2, count, "text")
        ]
        assert db.sql("SELECT sum(v) FROM big WHERE k >= 10 AND k < 12").fetchall() == [(21,)]
        assert db.sql("SELECT count(*) FROM big WHERE v > 99990 AND s = 'text'").fetchall() == [
            (9,)
        ]
        if step == 0:
            apply(table)
        if step == 1:
            table.append({"k": [5], "v": [0], "s": ["text"]})
            table.delete(keys=[5])
            table.append({"k": [5], "v": [5], "s": ["text"]})


def test_explain_and_describe_read(two: Database) -> None:
    assert two.sql("EXPLAIN SELECT * FROM t").fetchall()
    assert [row[0] for row in two.sql("DESCRIBE t").fetchall()] == ["k", "at", "v"]
    assert two.sql("SHOW TABLES").fetchall() == [("t",), ("u",)]


def test_a_result_of_which_a_reader_is_open_says_so(two: Database) -> None:
    found = two.sql("SELECT k FROM t ORDER BY k")
    reader = found.to_arrow_reader(1)
    for call in (found.fetchall, found.limit(1).fetchall, found.__len__, found.__repr__):
        with pytest.raises(UsageError, match="'SELECT k FROM t ORDER BY k' is being read, by"):
            call()
    assert found.columns == ["k"]
    assert reader.read_all().num_rows == 4
    assert len(found) == 4
    reader = found.to_arrow_reader(1)
    del reader
    assert len(found) == 4


def test_a_result_takes_another_by_name_and_can_be_copied(two: Database) -> None:
    found = two.sql("SELECT k FROM u WHERE k = 1")
    other = found.filter("k = 1")
    assert found.union(union_rel=other).fetchall() == [(1,), (1,)]
    assert found.union(other).fetchall() == [(1,), (1,)]
    assert copy(found).fetchall() == [(1,)]
    assert not hasattr(found, "__array__")


def test_a_result_has_all_that_duckdbs_has_under_the_same_names(two: Database) -> None:
    found = two.sql("SELECT k FROM t ORDER BY k")
    theirs = type(vars(found)["_relation"])
    for name in (name for name in dir(theirs) if not name.startswith("_")):
        assert name in {"type", "shape"} or getattr(found, name) is not None
        ours = vars(Relation).get(name)
        if inspect.isfunction(ours) and name != "show":  # which takes what DuckDB's takes
            assert _parameters(ours) == _parameters(getattr(theirs, name))


def _parameters(method: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    given = inspect.signature(method).parameters.values()
    return [(each.name, each.kind, each.default) for each in given]


def test_what_is_not_written_out_of_a_result_works(two: Database) -> None:
    found = two.sql("SELECT k, v FROM t")
    assert found.max("k").fetchall() == [(3,)]
    assert found.order("k DESC").limit(1, 1).columns == ["k", "v"]
    assert found["k"].distinct().order("k").fetchall() == [(1,), (2,), (3,)]
    assert list(found.select("k").order("k").iter_rows(2)) == [(1,), (2,), (2,), (3,)]
    assert found.aggregate("sum(v)").fetchall() == [(7.5,)]
    assert found.shape == (4, 2)
    assert [str(kind) for kind in found.types] == ["BIGINT", "DOUBLE"]
    assert found.arrow().read_all().num_rows == 4
