"""Every error is one line that names the thing and the remedy, and an exit status that tells."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from strandline.cli import app
from strandline.location.failures import Refused
from strandline.location.local.blob import FileBlob
from tests.cli.helpers import Run


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("frobnicate", "frobnicate"),
        ("get", "TABLE"),
        ("get readings", "KEY"),
        ("get readings 7 --outptu json", "--outptu"),
        ("get readings 7 --output yaml", "yaml"),
        ("get nosuch 7", "nosuch"),
        ("get readings seven", "seven"),
        ("get readings 7 2026-11-20 3", "3 values"),
        ("scan readings --columns sensor,colour", "colour"),
        ("scan readings --where 'drop table readings'", "drop table"),
        ("scan readings --as-of yesterday", "yesterday"),
        ("scan readings --as-of 2026-11-20T10:00:00", "time zone"),
        ("scan readings --key-range a b", "'a'"),
        ("sql 'create table x (i int)'", "CREATE"),
        ("sql 'selec 1'", "selec"),
        ("drop nosuch --yes", "nosuch"),
        ("rename readings a/b", "a/b"),
        ("create readings --schema 'k int64' --row-keys k", "readings"),
        ("create x --row-keys k", "--schema"),
        ("create x --schema 'k int65' --row-keys k", "int65"),
        ("create x --schema 'k double' --row-keys k", "'k'"),
        ("create x --schema 'k int64' --row-keys q", "q"),
        ("create x --schema k --row-keys k", "'k'"),
        ("create x --schema 'k int64' --row-keys k --property retention=soon", "soon"),
        ("ingest readings nosuch.csv", "nosuch.csv"),
        ("ingest readings what.is", "what.is"),
        ("ingest readings wrong.csv", "wrong.csv"),
        ("ingest readings unknown.csv", "colour"),
        ("ingest readings array.json", "jq"),
        ("ingest readings broken.parquet", "broken.parquet"),
        ("ingest readings readings.csv --token nightly", "SCOPE:NUMBER"),
        ("compact nosuch", "nosuch"),
        ("compact readings --strategy none", "none"),
        ("inspect part", "KEY"),
        ("inspect part nosuch", "nosuch"),
        ("inspect log --table nosuch", "nosuch"),
        ("--url elsewhere tables", "strandline init elsewhere"),
    ],
)
def test_what_was_asked_wrongly_ends_with_status_2(
    lake: Run, tmp_path: Path, line: str, named: str
) -> None:
    (tmp_path / "what.is").write_text("this?", encoding="utf-8")
    (tmp_path / "wrong.csv").write_text("sensor,at\nx,2026-01-01\n", encoding="utf-8")
    (tmp_path / "unknown.csv").write_text("sensor,at,colour\n1,2026-01-01,red\n", encoding="utf-8")
    (tmp_path / "array.json").write_text('[{"sensor": 1}]', encoding="utf-8")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 not really PAR1")
    said = lake(*shlex.split(line), status=2)
    assert named in said.error
    assert said.out == b""
    assert lake("scan", "readings", "--count", "-o", "json").json == [{"rows": 4}]


def test_without_a_database_the_message_says_how_to_name_one(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "STRANDLINE_URL" in run("--url", "", "tables", status=2).error


def test_the_database_may_be_named_before_the_command_or_after_it(lake: Run) -> None:
    for line in (
        ("--url", "lake", "tables"),
        ("tables", "--url", "lake"),
        ("--url", "lake", "tables", "--url", "lake"),
    ):
        assert [row["table"] for row in lake(*line, "-o", "json").json] == ["readings"]
    # The environment says `lake`; the command line counts, wherever it says otherwise.
    for line in (("--url", "nosuch", "tables"), ("tables", "--url", "nosuch")):
        assert "nosuch" in lake(*line, status=2).error
    assert "STRANDLINE_URL" in lake("tables", "--url", "", status=2).error


def test_two_databases_at_once_are_refused(lake: Run, tmp_path: Path) -> None:
    for line in (
        ("--url", "lake", "tables", "--url", "other"),
        ("--url", "lake", "init", "other"),
        ("init", "other", "--url", "lake"),
        ("--url", "lake", "get", "--url", "other", "readings", "7"),
    ):
        error = lake(*line, status=2).error
        assert "lake" in error
        assert "other" in error
    assert not (tmp_path / "other").exists()
    assert lake("init", "other", "--url", "other", "-o", "json").json[0]["name"] == "other"


def test_every_command_about_a_database_takes_its_url() -> None:
    program: Any = get_command(app)
    without = {
        name
        for name, command in program.commands.items()
        if "url" not in {parameter.name for parameter in command.params}
    }
    assert without == {"demo"}


def test_damage_ends_with_status_1(lake: Run, tmp_path: Path) -> None:
    (tmp_path / "lake" / "strandline.json").write_text("{}", encoding="utf-8")
    assert "strandline.json" in lake("tables", status=1).error


def test_a_vacuum_that_leaves_objects_behind_ends_with_status_1(
    lake: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = ["--property", "retention=0 seconds", "--property", "deletion_delay=0 seconds"]
    lake("create", "t", "--schema", "sensor int64, at timestamp", "--row-keys", "sensor", *keep)
    for _ in range(2):
        lake("sql", "insert into t select sensor, at from readings")
        lake("compact", "t", "--strategy", "full")

    def refused(_: FileBlob, key: str, *, timeout: float) -> None:
        raise Refused(f"{key}: permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(FileBlob, "delete", refused)
        said = lake("vacuum", "t", "-o", "json", status=1)
    assert said.json[0]["left"] > 0
    assert f"{said.json[0]['left']} objects" in said.err
    said = lake("vacuum", "t", "-o", "json")
    assert said.json[0]["left"] == 0 < said.json[0]["objects"]
    assert said.err == ""


def test_the_demo_removes_nothing_that_it_did_not_make(run: Run, tmp_path: Path) -> None:
    (tmp_path / "demo-lake").mkdir()
    (tmp_path / "demo-lake" / "precious").write_text("!", encoding="utf-8")
    assert "--path" in run("demo", status=2).error
    assert (tmp_path / "demo-lake" / "precious").exists()


def test_no_command_at_all_shows_the_help(run: Run) -> None:
    assert "ingest" in run(status=2).text


def program(*arguments: str, cwd: Path, code: str = "") -> "subprocess.CompletedProcess[str]":
    """The program in a process of its own, which then runs more code."""
    start = (
        "import sys\nfrom strandline.cli import app\n"
        f"try:\n    app({list(arguments)!r})\nexcept SystemExit as end:\n    status = end.code\n"
    )
    return subprocess.run(
        [sys.executable, "-c", start + code + "\nsys.exit(status)"],
        cwd=cwd,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env={"STRANDLINE_URL": "lake", "PATH": ""},
    )


HEAVY = ["duckdb", "pyspark", "polars"]


@pytest.mark.parametrize(
    ("line", "heavy"),
    [
        ("--version", [*HEAVY, "pandas"]),
        ("get readings 7", [*HEAVY, "pandas"]),
        ("scan readings --key-range 7 9", HEAVY),
        ("tables", HEAVY),
        ("status", HEAVY),
    ],
)
def test_quick_commands_load_nothing_heavy(
    lake: Run, tmp_path: Path, line: str, heavy: list[str]
) -> None:
    code = f"print('loaded', *(m for m in {heavy} if m in sys.modules), file=sys.stderr)"
    done = program(*shlex.split(line), cwd=tmp_path, code=code)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert done.stderr.split() == ["loaded"]


def test_debug_shows_where_an_error_was_raised(lake: Run, tmp_path: Path) -> None:
    quiet = program("get", "nosuch", "7", cwd=tmp_path)
    loud = program("--debug", "get", "nosuch", "7", cwd=tmp_path)
    assert (quiet.returncode, loud.returncode) == (2, 2)
    assert len(quiet.stderr.splitlines()) == 1
    assert "Traceback" in loud.stderr


def test_a_reader_of_the_output_may_stop_early(lake: Run, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from strandline.cli import app; app()", "sql"]
    command += ["select range as r from range(3000000)", "--output", "csv"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"STRANDLINE_URL": "lake", "PATH": ""},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == '"r"\n'
        process.stdout.close()
        assert process.stderr.read() == ""


def test_reading_needs_no_permission_to_write(lake: Run, tmp_path: Path) -> None:
    before = sorted((p.name, p.stat().st_mtime_ns) for p in (tmp_path / "lake").rglob("*.parquet"))
    records = lake("status", "-o", "json").json[0]["log_records"]
    lake("scan", "readings")
    lake("get", "readings", "7")
    lake("history")
    assert lake("status", "-o", "json").json[0]["log_records"] == records
    assert before == sorted(
        (p.name, p.stat().st_mtime_ns) for p in (tmp_path / "lake").rglob("*.parquet")
    )
