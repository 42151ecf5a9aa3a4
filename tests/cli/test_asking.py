"""What cannot be undone is asked about first, and only a person at a terminal can answer."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.helpers import Run

PROGRAM = [sys.executable, "-c", "from strandline.cli import main; main()"]
MANY_SECONDS = 300.0
"""Bounds a process that hangs, on the slowest machine."""

DESTRUCTIVE = [
    "drop readings",
    "drop nosuch --missing-ok",
    "prune --before 2020-01-01T00:00:00Z",
    "confirm-restore",
    "sessions --force-ack w0123456789abcdef",
    "sessions --force-ack-worker worker-1",
]


@pytest.mark.parametrize("line", DESTRUCTIVE)
def test_without_a_terminal_only_yes_will_do(lake: Run, line: str) -> None:
    before = lake("history", "-o", "json").json
    said = lake(*shlex.split(line), status=2, stdin="y\n")
    assert "--yes" in said.error
    assert said.out == b""
    assert lake("history", "-o", "json").json == before


def test_what_is_piped_into_a_process_is_no_answer(lake: Run, tmp_path: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, "--url", "lake", "drop", "readings"],
        cwd=tmp_path,
        input="n\n",
        check=False,
        capture_output=True,
        text=True,
        timeout=MANY_SECONDS,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "--yes" in done.stderr
    assert lake("tables", "-o", "json").json != []


@pytest.mark.parametrize(("answer", "dropped"), [("y", True), ("", False)])
def test_at_a_terminal_a_person_is_asked_and_nothing_is_done_by_default(
    lake: Run, tmp_path: Path, answer: str, dropped: bool
) -> None:
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [*PROGRAM, "--url", "lake", "drop", "readings"],
            cwd=tmp_path,
            stdin=theirs,
            stderr=theirs,
            stdout=subprocess.DEVNULL,
        ) as process:
            os.close(theirs)
            asked = b""
            while b"[y/N]" not in asked:
                asked += os.read(ours, 1024)
            os.write(ours, f"{answer}\n".encode())
            assert process.wait(MANY_SECONDS) == (0 if dropped else 1)
    finally:
        os.close(ours)
    assert b"Drop table 'readings'?" in asked
    assert (lake("tables", "-o", "json").json == []) is dropped


def test_nobody_is_asked_a_question_that_cannot_be_seen(lake: Run, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [*PROGRAM, "--url", "lake", "drop", "readings"],
            cwd=tmp_path,
            stdin=theirs,
            check=False,
            capture_output=True,
            text=True,
            timeout=MANY_SECONDS,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 2
    assert "--yes" in done.stderr
