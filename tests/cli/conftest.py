"""A database in a directory, and the program as a person at a terminal has it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from strandline.cli import app
from tests.cli.helpers import CREATE, FILE, Run, Said


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the program in an empty directory, whose database is `lake`."""
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()

    def run_it(
        *arguments: str, status: int = 0, stdin: str | None = None, screen: int | None = None
    ) -> Said:
        environment = {"STRANDLINE_URL": "lake", "COLUMNS": str(screen or 200)}
        if screen is not None:  # a terminal, without colours, of so many columns
            environment |= {"TTY_COMPATIBLE": "1", "TERM": "xterm", "NO_COLOR": "1"}
        result = runner.invoke(app, list(arguments), input=stdin, env=environment)
        said = Said(result.stdout_bytes, result.stderr)
        assert result.exit_code == status, (arguments, result.exit_code, result.output)
        assert "Traceback" not in result.output
        return said

    return run_it


@pytest.fixture
def lake(run: Run, tmp_path: Path) -> Callable[..., Said]:
    """The same with a table `readings` of four rows in three leaves, and the file they are from."""
    (tmp_path / "readings.csv").write_text(FILE, encoding="utf-8")
    run("init")
    run("create", *CREATE)
    run("ingest", "readings", "readings.csv")
    return run
