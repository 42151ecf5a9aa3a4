"""The targets of the Makefile, in a copy whose programs only note that they were run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TARGETS = re.findall(
    r"^\.PHONY: (\S+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
)

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A directory with the Makefile and an environment of programs that fail if told to."""
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "ruff", "mypy", "strandline"):
        program = programs / name
        program.write_text(
            f'#!/bin/sh\necho "{name} $*" >> ran\n[ "$FAILING" != "{name} $1 $2" ]\n',
            encoding="utf-8",
        )
        program.chmod(0o755)
    (tmp_path / ".venv" / ".stamp").touch()
    return tmp_path


def make(checkout: Path, *arguments: str, failing: str = "") -> tuple[int, str, list[str]]:
    """The exit status, what was printed, and what was run in this order."""
    # Nothing of a `make` that runs these tests gets through to this one.
    own = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "WORKERS=1", *arguments],
        cwd=checkout,
        env={**own, "FAILING": failing},
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    ran = checkout / "ran"
    lines = ran.read_text(encoding="utf-8").splitlines() if ran.exists() else []
    return done.returncode, done.stdout, lines


@pytest.mark.parametrize("target", TARGETS)
def test_a_dry_run_prints_what_it_would_do_and_does_nothing(checkout: Path, target: str) -> None:
    before = sorted(checkout.rglob("*"))
    status, said, ran = make(checkout, "-n", target)
    assert (status, ran) == (0, [])
    assert said.strip()
    assert sorted(checkout.rglob("*")) == before


@pytest.mark.parametrize(
    "failing", ["", "ruff check ", "ruff format --check", "mypy  ", "python -m pytest"]
)
@pytest.mark.parametrize("flags", [[], ["-j", "4"]])
def test_all_tests_run_whatever_fails_before_them_and_pytest_is_the_last(
    checkout: Path, failing: str, flags: list[str]
) -> None:
    status, _, ran = make(checkout, *flags, "test", failing=failing)
    assert (status == 0) is (failing == "")
    assert ran[:-1] == ["ruff check", "ruff format --check", "mypy "]
    assert ran[-1].startswith("python -m pytest -n 1 ")


@pytest.mark.parametrize("target", ["lint", "types"])
def test_a_target_alone_fails_with_its_program(checkout: Path, target: str) -> None:
    program = {"lint": "ruff check ", "types": "mypy  "}[target]
    assert make(checkout, target)[0] == 0
    assert make(checkout, target, failing=program)[0] != 0
