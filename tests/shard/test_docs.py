"""What the page on shards shows works when pasted."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.documents import run_python

PAGE = Path(__file__).parents[2] / "docs" / "shards.md"


def test_the_python_of_the_page_on_shards_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = run_python(PAGE)
    said = capsys.readouterr().out.splitlines()
    for name in ("write", "read", "seen", "copy_write", "copy_read", "txns", "location"):
        names[name].close()
    assert (
        "[{'sensor': 'a', 'value': 20, '__diff': 1}, {'sensor': 'b', 'value': 30, '__diff': 1}]"
        in said
    )
    assert "1000 {1}" in said
    assert said[-4:] == [
        "[{'v': 0, '__diff': 1}, {'v': 2, '__diff': 1}]",
        "[{'v': 1, '__diff': -1}]",
        "3",
        "0",
    ]
    assert said[-5] == (
        "[{'word': 'shore', 'n': 1, '__diff': 1}, {'word': 'tide', 'n': 3, '__diff': 1}, "
        "{'word': 'wrack', 'n': 1, '__diff': 1}]"
    )
