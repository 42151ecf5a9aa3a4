"""What is shown on a screen: whole values, however narrow it is."""

from __future__ import annotations

import re
import shlex

import pyarrow as pa
import pytest

import strandline as sl
from strandline.cli.tables import show
from tests.cli.helpers import Run
from tests.cli.test_output import COMMANDS

STYLES = re.compile(r"\x1b\[[0-9;]*m")
CHANGING: tuple[str, ...] = ("drop", "rename", "compact", "vacuum", "prune", "confirm-clock")
CHANGING += ("sql 'delete", "ingest", 'sql "copy', "export", "create")
REPORTS = [line for line in COMMANDS if not line.startswith(CHANGING) or "--dry-run" in line]


def words(value: object, name: str) -> list[str]:
    """What has to be seen of a value, each whole."""
    if value is None or isinstance(value, bool) or name in {"bytes", "__time"}:
        return []
    if isinstance(value, list | dict):
        parts = value if isinstance(value, list) else [*value.keys(), *value.values()]
        return [word for each in parts for word in words(each, "")]
    return [word for word in str(value).replace(",", "").split() if not word.startswith("{")]


@pytest.mark.parametrize("screen", [80, 200])
def test_no_report_cuts_anything(lake: Run, screen: int) -> None:
    lake("compact")
    for _ in range(3):
        lake("ingest", "readings", "readings.csv")
    with sl.connect("lake") as db, db.table("readings").attach("worker-of-a-rather-long-name"):
        for line in REPORTS:
            shown = lake(*shlex.split(line), screen=screen)
            assert "…" not in shown.text, line
            lines = STYLES.sub("", shown.text).replace(",", "").splitlines()
            assert all(len(line) <= screen for line in lines if line[:1] in set("┏┃┡│└"))
            noted = re.search(r"no room for (.+); a wider", shown.err)
            left_out = noted[1].split(", ") if noted else []
            for row in lake(*shlex.split(line), "--output", "json").json:
                kept = list(row)[: len(row) - len(left_out)]
                assert [*kept, *left_out] == list(row)
                whole = {word for line in lines for word in line.split()}
                missing = [w for name in kept for w in words(row[name], name) if w not in whole]
                assert (line, missing) == (line, [])


def shown(capsys: pytest.CaptureFixture[str], rows: list[dict[str, str]]) -> tuple[list[str], str]:
    """The lines of a table, and the notes."""
    schema = pa.schema([(name, pa.string()) for name in rows[0]])
    notes = show(schema, iter(rows), data=True)
    return [
        line.rstrip() for line in STYLES.sub("", capsys.readouterr().out).splitlines()
    ], "".join(notes)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 40 columns."""
    for name, value in {"COLUMNS": "40", "TTY_COMPATIBLE": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("narrow")
def test_of_several_rows_columns_are_left_out_from_the_right_and_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [{"a": "x" * 10, "b": "y" * 20, "c": "z" * 10, "d": "w"}] * 2
    lines, said = shown(capsys, rows)
    assert "x" * 10 in lines[3]
    assert "y" * 20 in lines[3]
    assert not any("z" in line or "w" in line for line in lines)
    assert "no room for c, d;" in said
    assert "--output json" in said


@pytest.mark.usefixtures("narrow")
def test_text_is_broken_between_words_before_a_column_is_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines, said = shown(
        capsys, [{"id": "i" * 17, "says": "one two three four five", "n": "12"}] * 2
    )
    assert said == ""
    assert "i" * 17 in lines[3]
    assert all(any(word in line for line in lines) for word in ["one", "two", "three", "four"])


@pytest.mark.usefixtures("narrow")
def test_a_row_alone_stands_upright(capsys: pytest.CaptureFixture[str]) -> None:
    lines, said = shown(capsys, [{"name": "x" * 30, "value": "y" * 60, "more": "two\nlines"}])
    assert said == ""
    assert lines == [f"name   {'x' * 30}", f"value  {'y' * 60}", "more   two", "       lines"]


@pytest.mark.usefixtures("narrow")
def test_rows_of_which_hardly_a_column_has_room_stand_upright(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines, said = shown(capsys, [{"k": "1", "v": "y" * 60, "w": "2"}, {"k": "2", "v": "", "w": ""}])
    assert said == ""
    assert lines == ["k  1", f"v  {'y' * 60}", "w  2", "", "k  2", "v", "w"]


@pytest.mark.usefixtures("narrow")
def test_names_and_values_are_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    lines, _ = shown(capsys, [{"name": "a", "value": "y" * 60}, {"name": "bb", "value": "2"}])
    assert lines == ["name  value", f"a     {'y' * 60}", "bb    2"]
