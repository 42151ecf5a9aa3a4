"""What the README shows works when pasted."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.documents import python_blocks, run_python

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to be in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def close_all(names: dict[str, Any]) -> None:
    for value in names.values():
        if hasattr(value, "close"):
            value.close()


def test_the_python_of_the_readme_runs(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run_python(README)
    said = capsys.readouterr().out
    close_all(names)
    assert "3 4" in said.splitlines()
    assert (empty / "lake" / "strandline.json").exists()


def test_its_first_screen_shows_both_commands_and_python() -> None:
    screen = README.read_text(encoding="utf-8").splitlines()[:45]
    assert any(line.startswith("make demo") for line in screen)
    assert any(line.startswith("make test") for line in screen)
    assert python_blocks(README)[0][0] < 20


def test_the_python_of_the_tutorial_runs(empty: Path) -> None:
    close_all(run_python(README.parent / "docs" / "tutorial.md"))


def test_the_python_of_the_page_on_upkeep_runs(empty: Path) -> None:
    close_all(run_python(README.parent / "docs" / "upkeep.md"))


def test_the_python_of_the_page_on_transactions_runs(empty: Path) -> None:
    close_all(run_python(README.parent / "docs" / "transactions.md"))
