"""COPY: files become rows in one commit or not at all, and rows a file, in bounded memory."""

from __future__ import annotations

import csv
import datetime as dt
import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.connect import connect
from strandline.database import Database
from strandline.errors import (
    Corruption,
    LocationError,
    SchemaMismatch,
    StrandlineError,
    UnknownTable,
    UsageError,
)
from strandline.times import Commit
from tests.tables.helpers import QUIET, apply, rows

T = pa.schema(
    [("k", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("v", pa.float64()), ("s", pa.string())]
)
ROWS = """(1, '2026-11-20 10:00:00+02', 1.5, 'a "b",
c'), (2, NULL, NULL, NULL), (9007199254740993, '2026-11-20', -0.25, '')"""


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, in which the test runs."""
    place = tmp_path / "there"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def db(tmp_path: Path, there: Path) -> Any:
    assert there.exists()
    with connect(tmp_path / "lake", settings=QUIET) as found:
        found.create_table("t", T, row_keys="k")
        columns = pa.schema([("k", pa.int32()), ("name", pa.string())])
        found.create_table("select", columns, row_keys="k", kind="keyed")
        yield found


def count(db: Database, table: str = "t") -> int:
    return len(db[table])


def copied(db: Database, statement: str) -> int:
    """The rows of a COPY … FROM, which is a commit."""
    commit = db.sql(statement)
    assert isinstance(commit, Commit)
    return commit.rows or 0


def refusal(db: Database, statement: str, kind: type[StrandlineError] = UsageError) -> str:
    """What a statement is refused with, which changes nothing."""
    before, files = db.history().num_rows, sorted(Path().rglob("*"))
    with pytest.raises(kind) as caught:
        db.sql(statement)
    assert db.history().num_rows == before
    assert sorted(Path().rglob("*")) == files
    return str(caught.value)


# --- there and back


@pytest.mark.parametrize(
    "file",
    ["f.parquet", "f.csv", "f.json", "f.csv.gz", "f.json.zst", "it's [1]*.csv", "é ü.ndjson"],
)
def test_what_was_written_is_read_again_as_it_was(db: Database, file: str) -> None:
    db.sql(f"INSERT INTO t VALUES {ROWS}")
    before = rows(db["t"].scan().to_arrow())
    quoted = file.replace("'", "''")
    assert db.sql(f"COPY t TO '{quoted}'").fetchall() == [(3,)]
    db["t"].delete(all=True)
    commit = db.sql(f"COPY t FROM '{quoted}'")
    assert (commit.rows, commit.tables) == (3, ("t",))
    assert rows(db["t"].scan().to_arrow()) == before
    assert db.history(1)["operation"].to_pylist() == ["copy"]


def test_options_that_one_copy_writes_with_another_reads_with(db: Database) -> None:
    db.sql(f"INSERT INTO t VALUES {ROWS}")
    before = rows(db["t"].scan().to_arrow())
    db["t"].export("f.csv")
    options = "FORMAT csv, HEADER false, DELIMITER '|', NULL 'nix', QUOTE '''', ESCAPE ''''"
    db.sql(f"COPY t TO 'g.txt' ({options}, FORCE_QUOTE (k, s))")
    assert Path("g.txt").read_text(encoding="utf-8").startswith("'1'|")
    for statement in (
        "COPY t FROM 'f.csv'",
        f"COPY t FROM 'g.txt' WITH ({options})",
        f"copy T (K, at, V, s) from 'g.txt' ({options});",
    ):
        db["t"].delete(all=True)
        db.sql(statement)
        assert rows(db["t"].scan().to_arrow()) == before


def test_the_words_of_old_postgresql_do_too(db: Database) -> None:
    Path("f").write_text("k;v\n1;2.5\n", encoding="utf-8")
    assert copied(db, "COPY t FROM 'f' WITH CSV HEADER DELIMITER AS ';' NULL 'x'") == 1
    assert db["t"].get(1)["v"].to_pylist() == [2.5]


def test_options_of_parquet_are_those_of_duckdb(db: Database) -> None:
    db.sql(f"INSERT INTO t VALUES {ROWS}")
    db.sql("COPY t (v, k) TO 'f.parquet' (CODEC zstd, KV_METADATA {note: 'it''s me'})")
    found = pq.ParquetFile("f.parquet")
    assert found.schema_arrow.names == ["v", "k"]
    assert found.metadata.row_group(0).column(0).compression == "ZSTD"
    assert found.metadata.metadata[b"note"] == b"it's me"
    assert 'option "bogus"' in refusal(db, "COPY t TO 'g.parquet' (BOGUS 1)")


def test_a_table_is_written_sorted_and_a_query_as_it_is_ordered(db: Database) -> None:
    db.sql("INSERT INTO t (k, v) SELECT (range * 7919) % 300007, range FROM range(300007)")
    assert db.sql("COPY t (k) TO 'k.parquet'").fetchall() == [(300_007,)]
    assert pq.read_table("k.parquet")["k"].to_pylist() == list(range(300_007))
    db.sql("COPY (SELECT t.v AS x FROM t ORDER BY k DESC) TO 'x.csv' (HEADER)")
    found = Path("x.csv").read_text(encoding="utf-8").split()
    assert found[:2] == ["x", str(float(pow(7919, -1, 300_007) * 300_006 % 300_007))]
    assert len(found) == 300_008


def test_a_query_may_join_and_see_no_file(db: Database) -> None:
    db.sql("INSERT INTO t (k, v) VALUES (1, 1.5), (2, 2.5)")
    db.sql("""INSERT INTO "select" VALUES (2, 'two')""")
    query = """SELECT name, v FROM t JOIN "select" USING (k)"""
    result = db.sql(f"COPY ({query}) TO 'out.json' (FORMAT json)")
    assert (result.columns, result.fetchall()) == (["Count"], [(1,)])
    assert json.loads(Path("out.json").read_text(encoding="utf-8")) == {"name": "two", "v": 2.5}
    for text in ("FROM 'out.json'", "SELECT * FROM read_text('/etc/passwd')"):
        refusal(db, f"COPY ({text}) TO 'x.csv'")
    stolen = "{a: (SELECT content FROM read_text('/etc/passwd'))}"
    assert "disabled" in refusal(db, f"COPY t TO 'x.parquet' (KV_METADATA {stolen})")
    refusal(
        db, "COPY t FROM 'out.json' (DATEFORMAT (SELECT content FROM read_text('/etc/passwd')))"
    )


# --- what is read


def test_columns_with_names_go_by_name_and_missing_ones_are_null(db: Database) -> None:
    Path("a.csv").write_text("V,k\n2.5,1\n", encoding="utf-8")
    pq.write_table(pa.table({"v": [3], "k": [2]}), "a.parquet")
    Path("a.json").write_text('{"v": 4}\n{"k": 3, "v": 4.5}\n', encoding="utf-8")
    copied(db, "COPY t FROM 'a.csv'")
    copied(db, "COPY t FROM 'a.parquet'")
    assert rows(db["t"].scan(["k", "v", "s"]).to_arrow()) == [(1, 2.5, None), (2, 3.0, None)]
    assert "a.json: column 'k' is null in row 0" in refusal(db, "COPY t FROM 'a.json'")
    Path("b.csv").write_text("v\n1\n", encoding="utf-8")
    assert "column 'k' is missing, but it is a key" in refusal(db, "COPY t FROM 'b.csv'")


def test_a_list_of_columns_is_the_order_of_a_csv_and_the_choice_of_others(db: Database) -> None:
    Path("n.csv").write_text("1,x\n", encoding="utf-8")
    Path("h.csv").write_text("number,text\n2,y\n", encoding="utf-8")
    pq.write_table(pa.table({"more": [1], "s": ["z"], "k": [3]}), "c.parquet")
    assert copied(db, "COPY t (k, s) FROM 'n.csv' (HEADER false)") == 1
    assert copied(db, "COPY t (k, s) FROM 'h.csv' (HEADER)") == 1
    assert copied(db, "COPY t (k, s) FROM 'c.parquet'") == 1
    assert rows(db["t"].scan(["k", "s"]).to_arrow()) == [(1, "x"), (2, "y"), (3, "z")]
    assert "column 'more' is not in the table" in refusal(db, "COPY t FROM 'c.parquet'")
    assert "no column 'v' in it" in refusal(db, "COPY t (k, v) FROM 'c.parquet'")
    assert "list the columns" in refusal(db, "COPY t FROM 'h.csv' (HEADER)")
    assert "3 are listed" in refusal(db, "COPY t (k, s, v) FROM 'h.csv' (HEADER)").replace(
        "['k', 's', 'v']", "3"
    )


def test_a_list_of_columns_against_the_names_in_the_file_is_refused(db: Database) -> None:
    Path("h.csv").write_text("v,k\n2,1\n", encoding="utf-8")
    assert "are in the order ['v', 'k']" in refusal(db, "COPY t (k, v) FROM 'h.csv' (HEADER)")
    assert copied(db, "COPY t (v, k) FROM 'h.csv' (HEADER)") == 1
    assert db["t"].get(1)["v"].to_pylist() == [2.0]


def test_a_first_line_that_may_be_names_is_not_guessed(db: Database) -> None:
    Path("text.csv").write_text("Kiel,Husum\nx,y\n", encoding="utf-8")
    said = refusal(db, "COPY t (s, k) FROM 'text.csv'")
    assert "may be names or a row: write (HEADER) or (HEADER false)" in said
    Path("names.csv").write_text("k,s\n1,y\n", encoding="utf-8")
    assert copied(db, "COPY t FROM 'names.csv'") == 1


def test_delimiters_and_ends_of_lines_are_found(db: Database) -> None:
    for number, (delimiter, end) in enumerate([(",", "\n"), (";", "\r\n"), ("\t", "\n")]):
        text = end.join([f"k{delimiter}s", f'{number}{delimiter}"a{delimiter}b"', ""])
        Path(f"{number}.csv").write_bytes(text.encode())
    assert copied(db, "COPY t FROM '?.csv'") == 3
    assert db["t"].scan(["s"]).to_arrow()["s"].to_pylist() == ["a,b", "a;b", "a\tb"]


@pytest.mark.parametrize("form", ["csv", "json"])
def test_times_come_in_the_format_that_is_told(db: Database, form: str) -> None:
    texts = {"csv": "k;at;v\n1;20.11.2026 10:00;1,5\n", "json": '{"k":1,"at":"20.11.2026 10:00"}'}
    Path(f"eu.{form}").write_text(texts[form], encoding="utf-8")
    more = ", DECIMAL_SEPARATOR ','" if form == "csv" else ""
    copied(db, f"COPY t FROM 'eu.{form}' (TIMESTAMPFORMAT '%d.%m.%Y %H:%M'{more})")
    assert db["t"].get(1)["at"].to_pylist() == [dt.datetime(2026, 11, 20, 10, tzinfo=dt.UTC)]
    assert db["t"].get(1)["v"].to_pylist() == [1.5 if form == "csv" else None]
    Path("zone.csv").write_text("k,at\n2,20.11.2026 10:00 +02\n", encoding="utf-8")
    copied(db, "COPY t FROM 'zone.csv' (TIMESTAMPFORMAT '%d.%m.%Y %H:%M %z')")
    assert db["t"].get(2)["at"].to_pylist() == [dt.datetime(2026, 11, 20, 8, tzinfo=dt.UTC)]


def test_a_query_of_a_file_is_told_of_copy(db: Database) -> None:
    Path("a.csv").write_text("k\n1\n", encoding="utf-8")
    said = refusal(db, "INSERT INTO t SELECT * FROM read_csv('a.csv')")
    assert "COPY table FROM 'file'" in said


def test_a_quote_after_thousands_of_rows_without_is_one(db: Database) -> None:
    lines = "".join(f"{k},plain\n" for k in range(50_000))
    Path("q.csv").write_text(f'k,s\n{lines}50000,"a, ""b"" # c"\n', encoding="utf-8")
    assert copied(db, "COPY t FROM 'q.csv'") == 50_001
    assert db["t"].get(50_000)["s"].to_pylist() == ['a, "b" # c']


def test_files_of_a_pattern_are_one_commit(db: Database) -> None:
    Path("d/e").mkdir(parents=True)
    for number in range(3):
        columns = {"k": [number], "s": ["x"]} if number else {"k": [number]}
        pq.write_table(pa.table(columns), f"d/{number}.parquet")
    pq.write_table(pa.table({"k": [7]}), "d/e/7.parquet")
    assert copied(db, "COPY t FROM 'd/*.parquet'") == 3
    assert copied(db, "COPY t FROM 'd/**/*.parquet'") == 4
    assert copied(db, "COPY t FROM 'd/[12].parquet'") == 2
    assert db.history(3)["rows"].to_pylist() == [2, 4, 3]


def test_json_may_be_lines_or_an_array_and_late_names_are_not_lost(db: Database) -> None:
    Path("a.json").write_text('[{"k": 1, "s": "x"},\n {"k": 2}]', encoding="utf-8")
    assert copied(db, "COPY t FROM 'a.json'") == 2
    assert copied(db, "COPY t FROM 'a.json' (ARRAY)") == 2
    lines = '{"k": 5}\n' * 30_000
    Path("late.json").write_text(f'{lines}{{"k": 5, "s": "late"}}\n', encoding="utf-8")
    copied(db, "COPY t FROM 'late.json'")
    assert db.sql("SELECT count(*) FROM t WHERE s = 'late'").fetchall() == [(1,)]
    Path("more.json").write_text(f'{lines}{{"k": 5, "w": 1}}\n', encoding="utf-8")
    assert "column 'w' is not in the table" in refusal(db, "COPY t FROM 'more.json'")
    assert copied(db, "COPY t (k) FROM 'more.json'") == 30_001


def test_in_a_keyed_table_the_last_row_of_a_key_counts(db: Database) -> None:
    db.sql("""INSERT INTO "select" VALUES (1, 'old'), (2, 'kept')""")
    Path("a.csv").write_text("k,name\n1,new\n3,first\n3,last\n", encoding="utf-8")
    assert copied(db, """COPY "select" FROM 'a.csv'""") == 2
    found = rows(db["select"].scan().to_arrow())
    assert found == [(1, "new"), (2, "kept"), (3, "last")]
    db.sql("""COPY "select" TO 'b.csv'""")
    with Path("b.csv").open(encoding="utf-8") as file:
        assert list(csv.reader(file))[1:] == [[str(k), name] for k, name in found]


@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_the_last_row_counts_in_large_files_too(db: Database, form: str) -> None:
    query = "SELECT range % 1000 AS k, range::VARCHAR AS name FROM range(1000000)"
    db.sql(f"COPY ({query}) TO 'many.{form}'")
    assert copied(db, f"""COPY "select" FROM 'many.{form}'""") == 1_000
    found = db.sql("""SELECT count(*) FROM "select" WHERE name::BIGINT = 999000 + k""").fetchall()
    assert found == [(1_000,)]


def test_lists_structs_and_bytes_go_there_and_back(db: Database) -> None:
    schema = pa.schema(
        [
            ("k", pa.decimal128(12, 2)),
            ("l", pa.list_(pa.int32())),
            ("m", pa.struct([("a", pa.int64()), ("b", pa.string())])),
            ("d", pa.date32()),
            ("u", pa.uint64()),
            ("f", pa.bool_()),
        ]
    )
    table = db.create_table("kinds", schema, row_keys="k")
    query = "(1.25, [1, NULL], {'a': 2, 'b': 'x, y'}, '2026-11-20', 18446744073709551615, true)"
    db.sql(f"INSERT INTO kinds VALUES {query}")
    before = rows(table.scan().to_arrow())
    for form in ("parquet", "csv", "json"):
        db.sql(f"COPY kinds TO 'kinds.{form}'")
        table.delete(all=True)
        db.sql(f"COPY kinds FROM 'kinds.{form}'")
        assert rows(table.scan().to_arrow()) == before


def test_no_rows_are_no_commit(db: Database) -> None:
    before = db.history().num_rows
    for name, text in (("empty.csv", ""), ("names.csv", "k,v\n"), ("empty.json", "")):
        Path(name).write_text(text, encoding="utf-8")
        assert copied(db, f"COPY t FROM '{name}'") == 0
    assert db.sql("COPY t TO 'none.parquet'").fetchall() == [(0,)]
    assert pq.read_table("none.parquet").column_names == T.names
    assert copied(db, "COPY t FROM 'none.parquet'") == 0
    assert db.history().num_rows == before


# --- all or nothing

GOOD = "".join(f"{k},1\n" for k in range(200_000))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.csv", f"k,v\n{GOOD}7,many\n{GOOD}", 'x.csv, line 200002: .*column "v".*\'?many'),
        ("x.csv", f"k,v\n{GOOD}7\n{GOOD}", "x.csv, line 200002: Expected Number of Columns: 2"),
        ("x.csv", "k,v\n1,2\n5\n4,5,6\n", "x.csv, line 3: Expected Number of Columns: 2"),
        ("x.csv", f"k,v\n{GOOD},1\n{GOOD}", "x.csv: column 'k' is null in row 200000"),
        ("x.csv", f"k,v\n{GOOD}1.7,1\n", "x.csv: column 'k' is 1.7 in row 200000"),
        ("x.csv", "k,v\n99999999999999999999,1\n", "x.csv: column 'k' is 9999"),
        ("x.csv", "k,k\n1,1\n", "occurs twice|column 'k_1' is not in the table"),
        ("x.json", '{"k": 1}\n{"k": 2, "v": "x"}\n', "x.json, line 2: Failed to cast"),
        ("x.json", '{"k": 1}\n{"k":\n', "x.json, line 3: unexpected end of data"),
        ("x.json", '{"k": 1.7}\n', "x.json: column 'k' is 1.7 in row 0"),
        ("x.json", "5\n", "x.json: "),
        ("x.parquet", "nonsense" * 10, "x.parquet: "),
    ],
)
def test_a_bad_row_commits_nothing_and_is_named(
    db: Database, name: str, text: str, said: str
) -> None:
    Path("w").mkdir()
    Path(f"w/a{Path(name).suffix}").write_text("", encoding="utf-8")
    Path(f"w/{name}").write_text(text, encoding="utf-8")
    for file in (f"w/{name}", f"w/*{Path(name).suffix}"):
        found = refusal(db, f"COPY t FROM '{file}'", SchemaMismatch)
        assert re.search(said, found), found
    assert count(db) == 0


def test_values_of_parquet_that_do_not_fit_are_refused_as_append_does(db: Database) -> None:
    pq.write_table(pa.table({"k": [1.5]}), "f.parquet")
    pq.write_table(pa.table({"k": ["1"]}), "s.parquet")
    for file in ("f", "s"):
        with pytest.raises(SchemaMismatch) as appended:
            db["t"].append(pq.read_table(f"{file}.parquet"))
        assert str(appended.value) in refusal(db, f"COPY t FROM '{file}.parquet'", SchemaMismatch)


def test_a_file_is_whole_or_not_there(db: Database) -> None:
    values = "range, CASE range WHEN 250000 THEN 'x' END"
    db.sql(f"INSERT INTO t (k, s) SELECT {values} FROM range(300000)")
    said = refusal(db, "COPY (SELECT CAST(s AS INT) FROM t ORDER BY k) TO 'x.csv'")
    assert "'x'" in said
    assert "could not be written" in refusal(db, "COPY t TO 'no/x.csv'", LocationError)
    Path("x.csv").write_text("mine", encoding="utf-8")
    assert "write COPY … TO 'x.csv' (OVERWRITE)" in refusal(db, "COPY t TO 'x.csv'")
    refusal(db, "COPY (SELECT CAST(s AS INT) FROM t) TO 'x.csv' (OVERWRITE)")
    assert Path("x.csv").read_text(encoding="utf-8") == "mine"
    assert db.sql("COPY t (k) TO 'x.csv' (OVERWRITE)").fetchall() == [(300_000,)]
    assert sorted(path.name for path in Path().iterdir()) == ["x.csv"]


def test_a_link_is_not_replaced(db: Database) -> None:
    Path("mine.csv").write_text("mine", encoding="utf-8")
    Path("link.csv").symlink_to("mine.csv")
    assert "is a link" in refusal(db, "COPY t TO 'link.csv' (OVERWRITE)")
    assert Path("link.csv").is_symlink()
    assert Path("mine.csv").read_text(encoding="utf-8") == "mine"


def test_damage_in_the_table_is_told_as_such_and_leaves_no_file(
    db: Database, tmp_path: Path
) -> None:
    db.sql("INSERT INTO t (k, s) SELECT range, 'text ' || range FROM range(200000)")
    apply(db["t"])
    part = max((tmp_path / "lake").rglob("*.parquet"), key=lambda path: path.stat().st_size)
    data = bytearray(part.read_bytes())
    data[len(data) // 3] ^= 1
    part.chmod(0o600)
    part.write_bytes(data)
    with connect(tmp_path / "lake", settings=QUIET, mode="r") as again:
        for source in ("t", "(SELECT * FROM t)"):
            refusal(again, f"COPY {source} TO 'x.parquet'", Corruption)


# --- what is refused


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("COPY t FROM 'https://a.org/x.csv'", "is a URL: write the path"),
        ("COPY t FROM 's3://b/x.parquet'", "is a URL"),
        ("COPY t TO 'gs://b/x.parquet'", "is a URL"),
        ("COPY t TO 'file:///tmp/x.parquet'", "is a URL"),
        ("COPY t FROM STDIN", "STDIN is no file: write COPY … FROM 'file.parquet'"),
        ("COPY t TO STDOUT (FORMAT csv)", "STDOUT is no file: write COPY … TO 'file.parquet'"),
        ("COPY t FROM '/dev/null' (FORMAT csv)", "no regular file"),
        ("COPY t FROM '.'", "is a directory: write './*.parquet'"),
        ("COPY t TO '.'", "is a directory: write './file.parquet'"),
        ("COPY t FROM ''", "an empty path"),
        ("COPY t FROM x.csv", "write the path of the file in quotes"),
        ("COPY t FROM 'none.csv'", "there is no file none.csv"),
        ("COPY t FROM 'n*.csv'", "there is no file n*.csv; in a name that has such signs itself"),
        ("COPY t FROM '[a]?.csv'", "write [?] for ?, [[] for ["),
        ("COPY t FROM 'x'", "write (FORMAT csv), one of parquet, csv, json"),
        ("COPY t TO 'x.xlsx'", "what 'x.xlsx' is to be is not clear"),
        ("COPY t TO 'x' (FORMAT text)", "(FORMAT csv), one of"),
        ("COPY t FROM 'x.csv' (FREEZE)", "no option FREEZE for csv; it has ALLOW_QUOTED_NULLS"),
        ("COPY t FROM 'x.parquet' (HEADER)", "no option HEADER for parquet"),
        ("COPY t FROM 'x.csv' (DELIMITER ';', SEP ',')", "under two of its names"),
        ("COPY t TO 'x' (FORMAT csv, PARTITION_BY (k))", "PARTITION_BY does not apply"),
        ("COPY t TO 'x.csv' (PER_THREAD_OUTPUT)", "PER_THREAD_OUTPUT does not apply"),
        ("COPY t (k, nothing) FROM 'x.csv'", "there is no column 'nothing'"),
        ("COPY t (nothing) TO 'x.csv'", "there is no column 'nothing'"),
        ("COPY t (k, K) TO 'x.csv'", "is listed twice"),
        ("COPY main.t TO 'x.csv'", "tables are in no schema"),
        ("COPY (SELECT nothing FROM t) TO 'x.csv'", "nothing"),
        ("COPY (SELECT 1) TO 'x.csv' (HEADER maybe)", ""),
        ("COPY FROM DATABASE a TO b", "db.sql runs"),
        ("COPY t FROM 'x.csv'; SELECT 1", "one statement"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_remedy(
    db: Database, statement: str, said: str
) -> None:
    assert said in refusal(db, statement)


def test_unknown_tables_the_past_and_readers_are_refused(db: Database, tmp_path: Path) -> None:
    Path("a.csv").write_text("k\n1\n", encoding="utf-8")
    assert "'tt'; did you mean" in refusal(db, "COPY tt FROM 'a.csv'", UnknownTable)
    assert "'tt'; did you mean" in refusal(db, "COPY tt TO 'b.csv'", UnknownTable)
    commit = db.sql("COPY t FROM 'a.csv'")
    with pytest.raises(UsageError, match="the past cannot change"):
        db.sql("COPY t FROM 'a.csv'", as_of=commit)
    with connect(tmp_path / "lake", settings=QUIET, mode="r") as reader:
        assert "mode='rw'" in refusal(reader, "COPY t FROM 'a.csv'")
        assert reader.sql("COPY t TO 'c.csv'").fetchall() == [(1,)]


# --- moments and transactions


def test_a_file_is_as_of_one_moment(db: Database) -> None:
    first = db["t"].append({"k": [1]})
    db["t"].append({"k": [2]})
    for n, source in enumerate(["t", "(SELECT * FROM t)"]):
        found = db.sql(f"COPY {source} TO 'then{n}.csv'", as_of=first).fetchall()
        assert found == db.as_of(first).sql(f"COPY {source} TO 'too{n}.csv'").fetchall() == [(1,)]
        assert db.sql(f"COPY {source} TO 'now{n}.csv'").fetchall() == [(2,)]


def test_a_transaction_sees_what_it_copied_and_nobody_else_does(db: Database) -> None:
    Path("a.csv").write_text("k,v\n1,2\n2,3\n", encoding="utf-8")
    with db.transaction() as tx:
        assert tx.sql("COPY t FROM 'a.csv'") == 2
        tx.sql("UPDATE t SET v = v * 2 WHERE k = 1")
        assert tx.sql("COPY t (k, v) TO 'b.csv'").fetchall() == [(2,)]
        assert tx.sql("COPY (SELECT sum(v) AS v FROM t) TO 'c.csv'").fetchall() == [(1,)]
        assert count(db) == 0
    assert Path("b.csv").read_text(encoding="utf-8") == "k,v\n1,4.0\n2,3.0\n"
    assert Path("c.csv").read_text(encoding="utf-8") == "v\n7.0\n"
    assert db.history(1)["operation"].to_pylist() == ["transaction"]
    Path("bad.csv").write_text("k\nx\n", encoding="utf-8")
    with db.transaction() as tx:
        tx["t"].append({"k": [9]})
        with pytest.raises(SchemaMismatch, match=r"bad\.csv, line 2"):
            tx.sql("COPY t FROM 'bad.csv'")
        tx.rollback()
    assert count(db) == 2


def test_copies_beside_each_other_all_count(db: Database) -> None:
    for n in range(8):
        query = f"SELECT range * 8 + {n} AS k, {n} AS v FROM range(20000)"
        db.sql(f"COPY ({query}) TO '{n}.csv'")
    failed: list[Exception] = []

    def one(n: int) -> None:
        try:
            db.sql(f"COPY t FROM '{n}.csv'")
            db.sql(f"COPY (SELECT * FROM t WHERE v = {n}) TO 'out{n}.parquet'")
            db.sql("COPY t TO 'same.json' (OVERWRITE)")
        except Exception as error:  # noqa: BLE001  told below
            failed.append(error)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert db.sql("SELECT count(*), count(DISTINCT k) FROM t").fetchall() == [(160_000, 160_000)]
    assert db.history(8)["rows"].to_pylist() == [20_000] * 8
    assert all(pq.read_metadata(f"out{n}.parquet").num_rows == 20_000 for n in range(8))
    with Path("same.json").open(encoding="utf-8") as lines:
        found = [json.loads(line)["k"] for line in lines]
    assert found == sorted(set(found))
    assert len(found) % 20_000 == 0


# --- memory

_IN_AND_OUT = """
import resource, sys
import strandline as sl
import pyarrow as pa

rows, form = int(sys.argv[1]), sys.argv[2]
schema = pa.schema([("k", pa.int64()), ("v", pa.float64()), ("s", pa.string())])

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

with sl.connect("lake", settings=sl.Settings(background=False)) as db:
    db.create_table("t", schema, row_keys="k")
    db.sql("INSERT INTO t VALUES (1, 1, '')")
    db.sql("COPY t TO 'first.parquet'")
    db.sql("COPY t FROM 'first.parquet'")
    db.sql("DELETE FROM t")
    before = peak()
    query = f"SELECT (range * 7919) % {rows} AS k, range * 1.5 AS v, 'some text ' || range AS s"
    made = db.sql(f"COPY ({query} FROM range({rows})) TO 'in.{form}'").fetchall()
    written = peak()
    assert db.sql(f"COPY t FROM 'in.{form}'").rows == rows
    read = peak()
    assert db.sql(f"COPY t TO 'out.{form}'").fetchall() == made == [(rows,)]
    assert db.sql(f"COPY (SELECT k, v FROM t) TO 'query.{form}'").fetchall() == made
    print(written - before, read - before, peak() - before)
"""


def _growth(count: int, form: str) -> list[int]:
    """MiB of memory that a query written, a file read and all together took at most."""
    command = [sys.executable, "-P", "-c", _IN_AND_OUT, str(count), form]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    return [int(word) for word in said.stdout.split()]


@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_memory_is_bounded(there: Path, form: str) -> None:
    assert there.exists()
    written, _, total = _growth(500_000, form)
    assert written < 150
    assert total < 600


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_memory_is_bounded_with_many_rows(there: Path, form: str) -> None:
    assert there.exists()
    written, read, total = _growth(5_000_000, form)
    assert written < 150
    assert read < 1_024
    assert total < 1_024
