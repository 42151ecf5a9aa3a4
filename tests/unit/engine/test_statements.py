"""Statements that write are taken apart where they join, and refused where they are odd."""

import pytest

from strandline.engine.statements import Delete, Insert, Update, names_in, parse_write
from strandline.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("INSERT INTO t VALUES (1, 'a')", Insert("t", None, False, "VALUES (1, 'a')")),
        (
            'insert into T (a, "b c") select 1, 2;',
            Insert("T", ("a", "b c"), False, "select 1, 2"),
        ),
        ("INSERT INTO t (SELECT 1)", Insert("t", None, False, "(SELECT 1)")),
        ("INSERT INTO t AS x BY NAME FROM u", Insert("t", None, True, "FROM u")),
        (
            "WITH c AS (SELECT 1) INSERT INTO t SELECT * FROM c",
            Insert("t", None, False, "WITH c AS (SELECT 1) SELECT * FROM c"),
        ),
        ('INSERT INTO "a""b" SELECT \';\' -- end', Insert('a"b', None, False, "SELECT ';'")),
    ],
)
def test_inserts(text: str, expected: Insert) -> None:
    assert parse_write("INSERT", text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("UPDATE t SET a = 1", Update("t", "t", {"a": "1"}, None)),
        (
            'UPDATE t AS x SET a = f(b, c), "d" = (1, 2)[1] WHERE x.a IN (1, 2);',
            Update("t", "x", {"a": "f(b, c)", "d": "(1, 2)[1]"}, "x.a IN (1, 2)"),
        ),
        (
            "UPDATE t y SET a = b IS DISTINCT FROM c, b = (SELECT 1 FROM u WHERE 1 = 1)",
            Update(
                "t",
                "y",
                {"a": "b IS DISTINCT FROM c", "b": "(SELECT 1 FROM u WHERE 1 = 1)"},
                None,
            ),
        ),
        (
            "UPDATE t SET a = 'x, y' || b::TEXT /* , */ WHERE c",
            Update("t", "t", {"a": "'x, y' || b::TEXT"}, "c"),
        ),
    ],
)
def test_updates(text: str, expected: Update) -> None:
    assert parse_write("UPDATE", text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("DELETE FROM t", Delete("t", "t", None)),
        ("DELETE FROM t WHERE a = ';' -- all", Delete("t", "t", "a = ';'")),
        ("delete from t AS x where x.a > 1 and not (b)", Delete("t", "x", "x.a > 1 and not (b)")),
    ],
)
def test_deletes(text: str, expected: Delete) -> None:
    assert parse_write("DELETE", text) == expected


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("INSERT", "INSERT OR IGNORE INTO t VALUES (1)"),
        ("INSERT", "INSERT INTO main.t VALUES (1)"),
        ("INSERT", "INSERT INTO 't' VALUES (1)"),
        ("INSERT", "INSERT INTO t (a b) VALUES (1)"),
        ("INSERT", "INSERT INTO t DEFAULT VALUES"),
        ("INSERT", "INSERT INTO t VALUES (1) RETURNING a"),
        ("INSERT", "INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING"),
        ("UPDATE", "UPDATE t SET a = 1 FROM u"),
        ("UPDATE", "UPDATE t SET (a, b) = (1, 2)"),
        ("UPDATE", "UPDATE t SET a = 1, a = 2"),
        ("UPDATE", "UPDATE t SET a = 1 WHERE b RETURNING a"),
        ("UPDATE", "WITH c AS (SELECT 1) UPDATE t SET a = 1"),
        ("DELETE", "DELETE FROM t USING u WHERE a = b"),
        ("DELETE", "DELETE FROM t WHERE a RETURNING a"),
        ("DELETE", "TRUNCATE t"),
        ("DELETE", "DELETE FROM"),
    ],
)
def test_clauses_that_are_not_supported_are_refused(kind: str, text: str) -> None:
    with pytest.raises(UsageError):
        parse_write(kind, text)


def test_names_are_found_quoted_or_not() -> None:
    names = names_in("SELECT a FROM T, \"Two Words\" WHERE 'not' = b -- comment")
    assert {"t", "two words", "a", "b"} <= names
    assert not {"not", "comment"} & names
