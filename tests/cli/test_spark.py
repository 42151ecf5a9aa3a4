"""Commands that run on Spark, each in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.helpers import Run, said_last

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def strandline(*arguments: str, cwd: Path) -> list[dict[str, object]]:
    """What the program says as JSON."""
    found: list[dict[str, object]] = json.loads(run(*arguments, cwd=cwd).stdout)
    return found


def run(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """The program, which works."""
    done = subprocess.run(
        [sys.executable, "-c", "from strandline.cli import app; app()", *arguments, "-o", "json"],
        cwd=cwd,
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "STRANDLINE_URL": "lake"},
    )
    assert done.returncode == 0, done.stderr
    return done


def test_the_demo_tells_its_whole_story(tmp_path: Path) -> None:
    told = run("demo", "--scale", "0.005", cwd=tmp_path)
    figures = {row["step"]: row["seconds"] for row in json.loads(told.stdout)}
    steps = ["import of lineitem", "one lookup", "second import", "one append", "compaction"]
    assert [step for step in steps if step not in figures] == []
    assert all(isinstance(seconds, float) and seconds > 0 for seconds in figures.values())
    lake = str(tmp_path / "demo-lake" / "lake")
    _, lines, orders = strandline("--url", lake, "status", cwd=tmp_path)
    assert (lines["table"], orders["table"], orders["rows"]) == ("lineitem", "orders", 7500)
    assert lines["parts"] == lines["leaves"]
    last = said_last(told.stderr)
    assert len(last) == 3
    for line in last:
        assert subprocess.run(
            line, shell=True, cwd=tmp_path, check=True, capture_output=True
        ).stdout


def test_files_are_imported_and_compacted_on_spark(lake: Run, tmp_path: Path) -> None:
    (commit,) = strandline("import", "readings", "readings.csv", cwd=tmp_path)
    assert commit["rows"] == 4
    (report,) = strandline(
        "compact", "readings", "--engine", "spark", "--strategy", "full", cwd=tmp_path
    )
    assert report["discarded"] == 0
    assert lake("scan", "readings", "--count", "-o", "json").json == [{"rows": 8}]
    assert all(row["distinct"] is False for row in lake("parts", "readings", "-o", "json").json)
