"""FileBlob when the file system fails, and when a path tries to lead elsewhere."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strandline.env import RealEnv
from strandline.errors import DeadlineExceeded, LocationError, UsageError
from strandline.location.blob import BlobExists, BlobMissing
from strandline.location.failures import Lasting, Refused
from strandline.location.local.blob import FileBlob
from strandline.location.local.temporary import TEMPORARY_DIRECTORY

T = 120.0


@pytest.fixture(name="blob")
def _blob(tmp_path: Path) -> FileBlob:
    blob = FileBlob(tmp_path, RealEnv())
    blob.put("a/first", b"first", timeout=T)
    return blob


def keys(blob: FileBlob, prefix: str = "") -> list[str]:
    return [info.key for info in blob.list(prefix, timeout=T)]


def failing(
    monkeypatch: pytest.MonkeyPatch, name: str, code: int, when: Callable[..., bool]
) -> list[int]:
    """Lets `os.<name>` fail with `code` where `when(*args)`; counts its failures in the list."""
    real = getattr(os, name)
    failures: list[int] = []

    def call(*args: Any, **more: Any) -> Any:
        if when(*args):
            failures.append(code)
            raise OSError(code, os.strerror(code))
        return real(*args, **more)

    monkeypatch.setattr(os, name, call)
    return failures


def is_directory(descriptor: int) -> bool:
    return stat.S_ISDIR(os.fstat(descriptor).st_mode)


def temporary_files(root: Path) -> list[str]:
    return [file.name for file in (root / TEMPORARY_DIRECTORY).iterdir()]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_failed_write_did_not_happen_and_leaves_nothing(
    blob: FileBlob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    failures = failing(monkeypatch, "write", code, lambda *_: True)
    with pytest.raises(LocationError, match="a/b") as caught:
        blob.put("a/b", b"x", timeout=T)
    assert failures
    assert caught.value.may_have_happened is False
    assert isinstance(caught.value, Refused) == (code != errno.EIO)
    monkeypatch.undo()
    assert keys(blob) == ["a/first"]
    assert temporary_files(tmp_path) == []


def test_a_short_write_is_completed(blob: FileBlob, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:3]))
    blob.put("a/b", b"0123456789", timeout=T)
    assert blob.get("a/b", timeout=T) == b"0123456789"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failed_sync_of_the_file_did_not_happen(
    blob: FileBlob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    failing(monkeypatch, "fsync", code, lambda fd: not is_directory(fd))
    with pytest.raises(LocationError) as caught:
        blob.put("a/b", b"x", timeout=T)
    assert caught.value.may_have_happened is False
    monkeypatch.undo()
    assert keys(blob) == ["a/first"]
    assert temporary_files(tmp_path) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failed_sync_of_the_directory_may_have_happened(
    blob: FileBlob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    failing(monkeypatch, "fsync", code, is_directory)
    with pytest.raises(LocationError) as caught:
        blob.put("a/b", b"x", timeout=T)
    assert caught.value.may_have_happened is True
    # While the directory cannot be synced, nobody is told that the object exists either.
    with pytest.raises(LocationError) as caught:
        blob.put("a/b", b"x", timeout=T)
    assert not isinstance(caught.value, BlobExists)
    assert caught.value.may_have_happened is True
    monkeypatch.undo()
    with pytest.raises(BlobExists):
        blob.put("a/b", b"x", timeout=T)
    assert blob.get("a/b", timeout=T) == b"x"
    assert temporary_files(tmp_path) == []


@pytest.mark.parametrize(
    ("code", "happened", "kind"),
    [
        (errno.ENOSPC, False, Refused),
        (errno.EACCES, False, Refused),
        (errno.EROFS, False, Refused),
        (errno.EPERM, False, Refused),
        (errno.EXDEV, False, Refused),
        (errno.EIO, True, Lasting),
        (errno.ETIMEDOUT, True, Lasting),
    ],
)
def test_a_failed_link_tells_whether_it_may_have_happened(
    blob: FileBlob,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    happened: bool,
    kind: type[LocationError],
) -> None:
    failing(monkeypatch, "link", code, lambda *_: True)
    with pytest.raises(kind) as caught:
        blob.put("a/b", b"x", timeout=T)
    assert caught.value.may_have_happened is happened
    assert temporary_files(tmp_path) == []


@pytest.mark.parametrize("name", ["mkdir", "open"])
def test_what_fails_before_the_link_did_not_happen(
    blob: FileBlob, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    failing(monkeypatch, name, errno.EROFS, lambda *_: True)
    with pytest.raises(Refused) as caught:
        blob.put("new/b", b"x", timeout=T)
    assert caught.value.may_have_happened is False
    monkeypatch.undo()
    assert keys(blob) == ["a/first"]


def test_a_directory_whose_sync_failed_is_synced_by_the_next_put(
    blob: FileBlob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory counts as durable only once a sync of the one above it succeeded."""
    failures = failing(monkeypatch, "fsync", errno.EIO, is_directory)
    for _ in range(2):
        with pytest.raises(LocationError) as caught:
            blob.put("new/b", b"x", timeout=T)
        assert caught.value.may_have_happened is False
    assert len(failures) == 2
    monkeypatch.undo()
    blob.put("new/b", b"x", timeout=T)


def test_every_new_directory_is_synced_into_the_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[int] = set()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        real(descriptor)

    # Made by somebody who died before the sync; it is on us.
    (tmp_path / "store" / "x").mkdir(parents=True)
    monkeypatch.setattr(os, "fsync", fsync)
    FileBlob(tmp_path / "store", RealEnv()).put("x/y/z", b"1", timeout=T)
    for path in ["", "store", "store/x", "store/x/y", "store/x/y/z"]:
        assert (tmp_path / path).stat().st_ino in synced, path


def test_a_put_whose_time_is_up_did_not_happen(blob: FileBlob, tmp_path: Path) -> None:
    with pytest.raises(DeadlineExceeded) as caught:
        blob.put("a/b", b"x", timeout=0.0)
    assert caught.value.may_have_happened is False
    assert keys(blob) == ["a/first"]
    assert temporary_files(tmp_path) == []


def test_a_directory_that_was_removed_is_made_again(blob: FileBlob, tmp_path: Path) -> None:
    blob.delete("a/first", timeout=T)
    (tmp_path / "a").rmdir()
    (tmp_path / TEMPORARY_DIRECTORY).rmdir()
    blob.put("a/b", b"x", timeout=T)
    assert keys(blob) == ["a/b"]


def test_a_failed_read_is_not_taken_for_absence(
    blob: FileBlob, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("open", "pread"):
        failing(monkeypatch, name, errno.EIO, lambda *_: True)
        with pytest.raises(LocationError) as caught:
            blob.get("a/first", timeout=T)
        assert not isinstance(caught.value, BlobMissing)
        monkeypatch.undo()
    failing(monkeypatch, "scandir", errno.EIO, lambda *_: True)
    with pytest.raises(LocationError):
        keys(blob)


def test_a_root_that_vanished_is_not_an_empty_store(blob: FileBlob, tmp_path: Path) -> None:
    tmp_path.rename(tmp_path.with_name("elsewhere"))
    calls: list[Callable[[], object]] = [
        lambda: blob.get("a/first", timeout=T),
        lambda: blob.open("a/first", timeout=T),
        lambda: blob.delete("a/first", timeout=T),
        lambda: keys(blob),
    ]
    for call in calls:
        with pytest.raises(LocationError, match="is gone") as caught:
            call()
        assert not isinstance(caught.value, BlobMissing)


def test_a_root_that_never_was_is_an_empty_store(tmp_path: Path) -> None:
    blob = FileBlob(tmp_path / "new", RealEnv())
    assert keys(blob) == []
    with pytest.raises(BlobMissing):
        blob.get("a", timeout=T)
    assert not (tmp_path / "new").exists()


def test_links_are_not_followed(blob: FileBlob, tmp_path: Path) -> None:
    outside = tmp_path.with_name("outside")
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (tmp_path / "link").symlink_to(outside)
    (tmp_path / "file").symlink_to(outside / "secret")
    (tmp_path / "dangling").symlink_to(outside / "nothing")
    for key in ("link/secret", "file"):
        with pytest.raises(UsageError, match="symbolic link"):
            blob.get(key, timeout=T)
        with pytest.raises(UsageError, match="symbolic link"):
            blob.get_range(key, 0, 1, timeout=T)
        with pytest.raises(UsageError, match="symbolic link"):
            blob.open(key, timeout=T)
    for key in ("link/secret", "link/new", "file", "dangling"):
        with pytest.raises(UsageError, match="symbolic link"):
            blob.put(key, b"x", timeout=T)
        with pytest.raises(UsageError, match="symbolic link"):
            blob.delete(key, timeout=T)
    with pytest.raises(UsageError, match="symbolic link"):
        keys(blob, "link/")
    assert keys(blob) == ["a/first"]
    assert list(outside.iterdir()) == [outside / "secret"]
    assert (outside / "secret").read_bytes() == b"secret"


def test_a_name_is_an_object_or_holds_objects(blob: FileBlob) -> None:
    with pytest.raises(UsageError, match="holds others"):
        blob.put("a", b"x", timeout=T)
    with pytest.raises(UsageError, match="has that name"):
        blob.put("a/first/b", b"x", timeout=T)
    assert keys(blob) == ["a/first"]


def test_a_name_that_the_file_system_cannot_hold_is_the_callers_mistake(blob: FileBlob) -> None:
    for key in ("x" * 300, "a/" + "y" * 300, "z" * 300 + "/b"):
        with pytest.raises(UsageError, match="cannot hold"):
            blob.put(key, b"x", timeout=T)
    assert keys(blob) == ["a/first"]


def test_a_listing_shows_objects_only(blob: FileBlob, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / ".DS_Store").write_bytes(b"")
    (tmp_path / "a" / ".nfs0001").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).write_bytes(b"")
    with blob.upload("a/under-way", timeout=T) as sink:
        sink.write(b"x")
        assert keys(blob) == ["a/first"]
        assert len(temporary_files(tmp_path)) == 1
    assert keys(blob) == ["a/first", "a/under-way"]
    with pytest.raises(BlobMissing):
        blob.get("fifo", timeout=T)


def test_a_listing_survives_files_that_vanish(blob: FileBlob, tmp_path: Path) -> None:
    for name in ("b", "c", "d/e"):
        blob.put(f"a/{name}", b"", timeout=T)
    listing = blob.list("", timeout=T)
    assert next(listing).key == "a/b"
    (tmp_path / "a" / "c").unlink()
    (tmp_path / "a" / "d" / "e").unlink()
    (tmp_path / "a" / "d").rmdir()
    assert [info.key for info in listing] == ["a/first"]
