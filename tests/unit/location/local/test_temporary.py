"""Files of objects that were never finished: garbage once their process is gone, not before."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from strandline.env import RealEnv
from strandline.errors import LocationError
from strandline.location.local.blob import FileBlob
from strandline.location.local.temporary import TEMPORARY_DIRECTORY
from strandline.location.retry import RetryingBlob

T = 120.0
LATER = 1 << 60

WRITER = """
import sys
from strandline.env import RealEnv
from strandline.errors import LocationError
from strandline.location.local.blob import FileBlob

with FileBlob(sys.argv[1], RealEnv()).upload("late", timeout=60) as sink:
    sink.write(b"half ")
    print("begun", flush=True)
    sys.stdin.readline()
    sink.write(b"done")
print("put", flush=True)
"""


@pytest.fixture(name="blob")
def _blob(tmp_path: Path) -> FileBlob:
    blob = FileBlob(tmp_path, RealEnv())
    blob.put("a/first", b"first", timeout=T)
    return blob


@contextmanager
def writer(root: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, in the middle of an upload of `late`."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", WRITER, str(root)], **pipes) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            yield process
        finally:
            process.kill()


def files(root: Path) -> list[Path]:
    return sorted((root / TEMPORARY_DIRECTORY).iterdir())


def left(root: Path, name: str = "17-4711-00ff00ff00ff00ff.tmp", data: bytes = b"half") -> Path:
    """What a process left that died in the middle of an upload."""
    path = root / TEMPORARY_DIRECTORY / name
    path.write_bytes(data)
    return path


def cleared(blob: FileBlob, before: int = LATER) -> list[tuple[str, int]]:
    return [(info.key, info.size) for info in blob.leftovers(before, delete=True, timeout=T)]


def test_a_place_where_nothing_was_written_has_no_leftovers(tmp_path: Path) -> None:
    assert cleared(FileBlob(tmp_path, RealEnv())) == []


def test_what_a_dead_process_left_is_deleted(blob: FileBlob, tmp_path: Path) -> None:
    with writer(tmp_path) as process:
        (begun,) = files(tmp_path)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=T)
    name = f"{TEMPORARY_DIRECTORY}/{begun.name}"
    told = blob.leftovers(LATER, delete=False, timeout=T)
    assert [(info.key, info.size) for info in told] == [(name, 5)]
    assert told[0].modified == begun.stat().st_mtime_ns // 1_000
    assert files(tmp_path) == [begun]
    assert cleared(blob) == [(name, 5)]
    assert files(tmp_path) == []
    assert cleared(blob) == []
    assert blob.get("a/first", timeout=T) == b"first"


def test_what_changed_lately_stays(blob: FileBlob, tmp_path: Path) -> None:
    path = left(tmp_path)
    changed = path.stat().st_mtime_ns // 1_000
    assert cleared(blob, changed) == []
    assert len(cleared(blob, changed + 1)) == 1


def test_a_process_that_is_stopped_keeps_its_file_and_goes_on(
    blob: FileBlob, tmp_path: Path
) -> None:
    with writer(tmp_path) as process:
        os.kill(process.pid, signal.SIGSTOP)
        assert cleared(blob) == []
        assert len(files(tmp_path)) == 1
        os.kill(process.pid, signal.SIGCONT)
        out, _ = process.communicate("go on\n", timeout=T)
    assert out == "put\n"
    assert blob.get("late", timeout=T) == b"half done"
    assert files(tmp_path) == []


def test_an_upload_of_this_process_keeps_its_file(blob: FileBlob, tmp_path: Path) -> None:
    with blob.upload("late", timeout=T) as sink:
        sink.write(b"late")
        assert cleared(FileBlob(tmp_path, RealEnv())) == []
    assert blob.get("late", timeout=T) == b"late"


def test_an_upload_whose_file_was_deleted_did_not_happen(
    blob: FileBlob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it may be where locks are not seen by all who share the directory."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)

    def late() -> None:
        with blob.upload("late", timeout=T) as sink:
            sink.write(b"late")
            assert len(cleared(blob)) == 1

    with pytest.raises(LocationError, match=r"late.* gone .*write it again") as caught:
        late()
    assert not caught.value.may_have_happened
    assert [info.key for info in blob.list("", timeout=T)] == ["a/first"]
    blob.put("late", b"again", timeout=T)
    assert blob.get("late", timeout=T) == b"again"


def test_a_put_whose_file_was_deleted_is_repeated(
    blob: FileBlob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link
    deleted: list[int] = []

    def link(source: str, target: str) -> None:
        if not deleted:
            with monkeypatch.context() as patched:
                patched.setattr(fcntl, "flock", lambda *_: None)
                deleted.append(len(cleared(blob)))
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    RetryingBlob(blob, RealEnv()).put("late", b"late", timeout=T)
    assert deleted == [1]
    assert blob.get("late", timeout=T) == b"late"


def test_the_second_name_of_an_object_is_all_that_is_deleted(
    blob: FileBlob, tmp_path: Path
) -> None:
    """Its writer died between giving the object its name and taking the other one away."""
    os.link(tmp_path / "a/first", tmp_path / TEMPORARY_DIRECTORY / "17-1-ab.tmp")
    assert cleared(blob) == [(f"{TEMPORARY_DIRECTORY}/17-1-ab.tmp", 0)]
    assert blob.get("a/first", timeout=T) == b"first"


def test_what_does_not_look_like_ours_is_left_alone(blob: FileBlob, tmp_path: Path) -> None:
    left(tmp_path, "notes.txt")
    left(tmp_path, "17-1-ab.tmp.bak")
    (tmp_path / TEMPORARY_DIRECTORY / "17-2-cd.tmp").mkdir()
    (tmp_path / TEMPORARY_DIRECTORY / "17-3-ef.tmp").symlink_to(tmp_path / "a/first")
    before = files(tmp_path)
    assert cleared(blob) == []
    assert files(tmp_path) == before


@pytest.mark.parametrize(("module", "name"), [(os, "unlink"), (fcntl, "flock"), (os, "fstat")])
def test_what_cannot_be_looked_at_or_deleted_is_left_alone(
    blob: FileBlob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    path = left(tmp_path)

    def fail(*args: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(module, name, fail)
        assert cleared(blob) == []
    assert path.exists()
    assert len(cleared(blob)) == 1


def test_what_vanishes_meanwhile_is_not_told(
    blob: FileBlob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = left(tmp_path)
    real = os.unlink

    def unlink(what: str) -> None:
        real(what)
        real(what)

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", unlink)
        assert cleared(blob) == []
    assert not path.exists()


def test_a_listing_that_fails_is_an_error(blob: FileBlob, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> list[str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "listdir", fail)
    with pytest.raises(LocationError, match=r"listing"):
        cleared(blob)
