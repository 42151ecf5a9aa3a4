"""Every command says the same in every form of output."""

import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.main import get_command

from strandline.cli import app
from tests.cli.helpers import CREATE, FILE, Run

PROGRAM: Any = get_command(app)
# These start Spark; tests/cli/test_demo.py and tests/cli/test_spark.py run them.
ON_SPARK = {"demo", "import"}

COMMANDS = [
    "init",
    "create other --schema 'k int64' --row-keys k",
    "drop readings --yes",
    "rename readings others",
    "tables",
    "describe readings",
    "ingest readings readings.csv",
    "get readings 7",
    "scan readings",
    "scan readings --explain",
    "scan readings --count",
    "sql 'select * from readings order by all'",
    "sql 'delete from readings where sensor = 7'",
    "sql \"copy readings from 'readings.csv'\"",
    "sql \"copy (select * from readings) to 'copied.json' (overwrite)\"",
    "subscribe readings --timeout 0.01",
    "history",
    "history readings",
    "export readings out.parquet --overwrite",
    "status",
    "partitions readings",
    "parts readings",
    "compact",
    "compact --dry-run --strategy full",
    "confirm-clock",
    "confirm-restore --yes",
    "vacuum",
    "vacuum readings --dry-run",
    "prune --before 2020-01-01T00:00:00Z --yes",
    "usage",
    "sessions",
    "inspect log",
    "inspect state --table readings",
    "inspect rollups",
    "inspect pages",
    "inspect holds",
]


def test_every_command_is_tested_here() -> None:
    assert {line.split()[0] for line in COMMANDS} | ON_SPARK == PROGRAM.commands.keys()


@pytest.mark.parametrize("line", COMMANDS)
@pytest.mark.parametrize("form", ["json", "csv", "arrow", "table"])
def test_all_forms_of_output_have_the_columns_of_arrow(lake: Run, line: str, form: str) -> None:
    said = lake(*shlex.split(line), "--output", form)
    # Only what did nothing says why.
    assert ("nothing was merged" in said.err) if line == "compact" else (said.err == "")
    if form == "arrow":
        assert said.arrow.num_columns > 0
        return
    names = {
        "init": ["done", "name", "time"],
        "create": ["done", "name", "time"],
        "get": ["sensor", "at", "value"],
        "tables": ["table", "kind", "row_keys", "sort_keys", "columns"],
    }.get(line.split(maxsplit=1)[0], [])
    if form == "json":
        assert all(list(row) == (names or list(row)) for row in said.json)
    elif form == "csv":
        assert all(list(row) == (names or list(row)) for row in said.csv)
    else:
        assert all(name in said.text for name in names)


@pytest.mark.parametrize(
    "line", ["scan readings", "status", "partitions readings", "history", "describe readings"]
)
def test_json_csv_and_arrow_agree(lake: Run, line: str) -> None:
    arrow = lake(*shlex.split(line), "-o", "arrow").arrow
    objects = lake(*shlex.split(line), "-o", "json").json
    text = lake(*shlex.split(line), "-o", "csv").csv
    assert [list(row) for row in objects] == [arrow.column_names] * arrow.num_rows
    assert [list(row) for row in text] == [arrow.column_names] * arrow.num_rows
    for name in arrow.column_names:
        if pa.types.is_integer(arrow.schema.field(name).type):
            values = arrow[name].to_pylist()
            assert [row[name] for row in objects] == values
            assert [row[name] for row in text] == ["" if v is None else str(v) for v in values]


def test_copy_says_how_many_rows_went_in_and_out(lake: Run) -> None:
    (commit,) = lake("sql", "copy readings from 'readings.csv'", "-o", "json").json
    assert (commit["rows"], commit["tables"]) == (4, ["readings"])
    (found,) = lake("sql", "select count(*) as Count from readings", "-o", "json").json
    assert lake("sql", "copy readings to 'copied.csv'", "-o", "json").json == [found]


@pytest.mark.parametrize("name", sorted(PROGRAM.commands.keys() - ON_SPARK))
def test_the_example_in_the_help_of_a_command_runs(lake: Run, name: str) -> None:
    said = lake(name, "--help").text
    example = next(x for x in said.splitlines() if x.strip().startswith("Example:"))
    words = shlex.split(PROGRAM.commands[name].epilog.removeprefix("Example:"))
    assert words[:2] == ["strandline", name]
    assert words[1] in example
    if name == "create":
        lake("drop", "readings", "--yes")
    lake(*words[1:])


def test_what_is_written_as_csv_can_be_read_again(lake: Run, tmp_path: Path) -> None:
    columns = "k int64, t string, d date, at timestamp, p decimal(12, 2), f boolean, n string"
    lake("create", "all_kinds", "--schema", columns, "--row-keys", "k")
    rows = 'k,t,d,at,p,f,n\n1,"a, ""b""\nc",2026-11-20,2026-11-20 01:02:03.000004Z,-1.50,true,\n'
    (tmp_path / "a.csv").write_text(rows + '2,"",,,,,""\n', encoding="utf-8")
    lake("ingest", "all_kinds", "a.csv")
    first = lake("scan", "all_kinds", "-o", "csv")
    (tmp_path / "b.csv").write_bytes(first.out)
    lake("create", "again", "--schema", columns, "--row-keys", "k")
    lake("ingest", "again", "b.csv")
    assert (
        lake("scan", "again", "-o", "arrow").arrow == lake("scan", "all_kinds", "-o", "arrow").arrow
    )
    assert lake("scan", "again", "-o", "arrow").arrow["n"].to_pylist() == [None, ""]


def test_json_has_a_text_for_what_json_has_no_word_for(lake: Run) -> None:
    query = "select 'ab'::blob as b, 'nan'::double as f, 1.50::decimal(9, 2) as p, [1, 2] as l"
    assert lake("sql", query, "-o", "json").json == [
        {"b": "YWI=", "f": None, "p": "1.50", "l": [1, 2]}
    ]


def test_no_rows_are_an_empty_array_and_a_header(lake: Run) -> None:
    assert lake("get", "readings", "100", "-o", "json").json == []
    assert lake("get", "readings", "100", "-o", "csv").text.strip() == '"sensor","at","value"'


def test_a_table_shows_a_hundred_rows_of_a_stream_unless_more_are_asked_for(lake: Run) -> None:
    query = "select range as r from range(250)"
    shown = lake("sql", query)
    assert "first 100 rows" in shown.err
    assert " 99 " in shown.text
    assert " 100 " not in shown.text
    assert " 249 " in lake("sql", query, "--limit", "250").text


def test_a_table_takes_its_columns_from_a_file(lake: Run, tmp_path: Path) -> None:
    data = pa.table({"k": pa.array([1], pa.int32()), "v": pa.array(["x"], pa.string_view())})
    pq.write_table(data, tmp_path / "a.parquet")
    lake("create", "like", "--like", "a.parquet", "--row-keys", "k", "--kind", "keyed")
    assert [row["type"] for row in lake("describe", "like", "-o", "json").json] == [
        "int32",
        "string",
    ]
    lake("ingest", "like", "a.parquet")
    assert lake("get", "like", "1", "-o", "json").json == [{"k": 1, "v": "x"}]


def test_files_of_all_kinds_go_into_one_commit(lake: Run, tmp_path: Path) -> None:
    files = tmp_path / "more"
    files.mkdir()
    (files / "a.jsonl").write_text('{"at": "2026-01-01", "sensor": 1}\n', encoding="utf-8")
    (files / "b.csv").write_text(FILE, encoding="utf-8")
    data = pa.table({"sensor": [2], "at": ["2026-01-01T00:00:00Z"]})
    pq.write_table(
        data.set_column(1, "at", data["at"].cast(pa.timestamp("us", "UTC"))), files / "c.parquet"
    )
    (commit,) = lake("ingest", "readings", "more", "-o", "json").json
    assert commit["rows"] == 6
    assert len(lake("history", "readings", "-o", "json").json) == 3
    assert lake("scan", "readings", "--count", "-o", "json").json == [{"rows": 10}]


def test_a_token_makes_an_ingest_happen_once(lake: Run) -> None:
    again = [
        lake("ingest", "readings", "readings.csv", "--token", "n:1", "-o", "json") for _ in "ab"
    ]
    assert again[0].json == again[1].json
    assert lake("scan", "readings", "--count", "-o", "json").json == [{"rows": 8}]


def test_keys_and_ranges_are_read_by_the_types_of_the_columns(lake: Run) -> None:
    def found(*arguments: str) -> list[int]:
        return [row["sensor"] for row in lake(*arguments, "-o", "json").json]

    assert [r["sensor"] for r in lake("get", "-o", "json", "readings", "--", "-3").json] == [-3]
    assert found("get", "readings", "7", "2026-11-20 10:00:00") == [7]
    assert found("get", "readings", "7", "2026-11-20T11:00:00+01:00") == [7]
    assert found("scan", "readings", "--key-range", "-3", "9") == [-3, 7, 7]
    assert found("scan", "readings", "--key-range", "7,2026-11-20T10:30:00", "") == [7, 9]
    assert found("scan", "readings", "--where", "value > 4", "--limit", "1") == [-3]


def test_a_read_as_of_an_earlier_time_sees_what_was_there(lake: Run) -> None:
    (commit,) = lake("sql", "delete from readings where sensor = 7", "-o", "json").json
    before = lake("history", "readings", "-o", "json").json[1]["time"]
    assert lake("get", "readings", "7", "-o", "json").json == []
    assert len(lake("get", "readings", "7", "--as-of", before, "-o", "json").json) == 2
    assert lake("get", "readings", "7", "--as-of", commit["time"], "-o", "json").json == []
    ids = [row["commit"] for row in lake("history", "readings", "-o", "json").json]
    found = [lake("get", "readings", "7", "--as-of", each, "-o", "json").json for each in ids[:2]]
    assert [len(rows) for rows in found] == [0, 2]
    query = "select count(*) as n from readings where sensor = 7"
    assert lake("sql", query, "--as-of", ids[1], "-o", "json").json == [{"n": 2}]


def test_the_time_of_a_change_is_exact_for_programs_and_a_time_for_people(lake: Run) -> None:
    (commit,) = lake("ingest", "readings", "readings.csv", "-o", "json").json
    line = ("subscribe", "readings", "--start", "snapshot", "--timeout", "0.01")
    exact = {row["__time"] for row in lake(*line, "-o", "json").json}
    assert exact == {int(commit["commit"][1:], 16)}
    shown = lake(*line).text
    assert commit["time"] in shown
    assert str(exact.pop()) not in shown


def test_inspect_looks_into_a_part(lake: Run) -> None:
    lake("compact", "readings")
    (part,) = {row["part"] for row in lake("parts", "readings", "-o", "json").json}
    whole = {r["name"]: r["value"] for r in lake("inspect", "part", part, "-o", "json").json}
    assert whole["rows"] == "4"
    short = part.rpartition("/")[2].removesuffix(".parquet")
    assert lake("inspect", "part", short, "-o", "json").json[0]["value"] == part


def test_a_compaction_that_did_nothing_says_so(lake: Run) -> None:
    lake("compact", "readings", "--strategy", "full")
    said = lake("compact", "readings", "--strategy", "full", "-o", "json")
    assert "readings: nothing was merged: no leaf has more than one part" in said.error
    assert "no leaf has more than one part" in said.json[0]["why_nothing"]


def test_status_begins_with_the_whole_database(lake: Run) -> None:
    lake("create", "other", *CREATE[1:])
    first, *tables = lake("status", "-o", "json").json
    assert first["table"] is None
    assert [row["table"] for row in tables] == ["other", "readings"]
    assert first["rows"] == sum(row["rows"] for row in tables) == 4
    assert first["log_records"] > sum(row["log_records"] for row in tables)


def test_a_subscription_goes_on_where_the_one_before_ended(lake: Run, tmp_path: Path) -> None:
    line = ("subscribe", "readings", "--progress", "mark", "--timeout", "0.01", "-o")
    assert [row["__diff"] for row in lake(*line, "json").json] == [1, 1, 1, 1]
    assert lake(*line, "json").json == []
    lake("sql", "delete from readings where sensor = 9")
    assert [(row["sensor"], row["__diff"]) for row in lake(*line, "csv").csv] == [("9", "-1")]
    assert lake(*line, "arrow").arrow.num_rows == 0
    mark = (tmp_path / "mark").read_text(encoding="utf-8").strip()
    lake("ingest", "readings", "readings.csv")
    found = lake(
        "subscribe",
        "readings",
        "--start",
        mark,
        "--where",
        "sensor < 9",
        *line[-3:-1],
        "-o",
        "json",
    )
    assert [row["sensor"] for row in found.json] == [-3, 7, 7]


def test_changes_of_several_tables_say_to_which_they_belong(lake: Run) -> None:
    lake("create", "other", "--schema", "k int64", "--row-keys", "k")
    lake("sql", "insert into other values (3)")
    said = lake("subscribe", "readings", "other", "--timeout", "0.01", "-o", "json").json
    assert {each["table"] for each in said} == {"readings", "other"}
    assert [each["row"]["k"] for each in said if each["table"] == "other"] == [3]
    told = lake("subscribe", "readings", "other", "--timeout", "0.01").text
    assert "readings" in told
    assert "other" in told
