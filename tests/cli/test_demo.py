"""What the demo says besides its story, which needs Spark: see test_spark.py."""

from __future__ import annotations

import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from strandline.cli import demo as demo_module
from strandline.cli.app import called
from strandline.cli.story import Story
from tests.cli.helpers import Run, said_last

PROGRAM = Path(sys.executable).with_name("strandline")


def outcome(line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A line as a shell runs it, in a directory."""
    return subprocess.run(
        line, shell=True, cwd=cwd, check=False, capture_output=True, text=True, timeout=300
    )


@pytest.fixture
def demo_lake(run: Run, tmp_path: Path) -> Path:
    """A database with orders, as the demo leaves it, in a directory with a space."""
    (tmp_path / "demo lake").mkdir()
    (tmp_path / "orders.csv").write_text("o_orderkey\n7\n", encoding="utf-8")
    url = ("--url", "demo lake/lake")
    run(*url, "init")
    run(*url, "create", "orders", "--schema", "o_orderkey int64", "--row-keys", "o_orderkey")
    run(*url, "ingest", "orders", "orders.csv")
    return Path("demo lake/lake")


def last_words(lake: Path) -> list[str]:
    """What the demo names in the end, on a narrow screen."""
    console = Console(file=StringIO(), width=40)
    demo_module._farewell(Story(console), lake)
    assert isinstance(console.file, StringIO)
    return said_last(console.file.getvalue())


def test_the_commands_that_the_demo_names_in_the_end_work_as_printed(
    demo_lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bin").symlink_to(PROGRAM.parent)
    monkeypatch.setattr(sys, "argv", [".venv/bin/strandline", "demo"])
    monkeypatch.setenv("PATH", os.defpath)
    lines = last_words(demo_lake)
    assert len(lines) == 3
    for line in lines:
        assert line.startswith(".venv/bin/strandline ")
        done = outcome(line, tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout


@pytest.mark.parametrize(
    ("path", "found", "name"),
    [
        (str(PROGRAM), True, "strandline"),
        (str(PROGRAM), False, str(PROGRAM)),
        ("strandline", False, "{cwd}/strandline"),
        ("my environment/strandline", False, "'my environment/strandline'"),
        ("-c", True, f"{sys.executable} -m strandline"),
        ("/usr/lib/python3/pytest", True, f"{sys.executable} -m strandline"),
    ],
)
def test_the_program_is_named_as_it_was_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, found: bool, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [path])
    monkeypatch.setenv("PATH", str(PROGRAM.parent) if found else str(tmp_path / "nothing"))
    assert called() == name.format(cwd=tmp_path)


def test_the_package_runs_as_a_module(tmp_path: Path) -> None:
    done = outcome(f"{sys.executable} -m strandline --version", tmp_path)
    assert done.stdout.startswith("strandline ")
