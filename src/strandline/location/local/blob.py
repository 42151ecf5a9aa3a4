"""Blob in a local directory: an object is a file, its key the file's path below the root."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO, cast

import pyarrow as pa

from strandline.env import Deadline, Env
from strandline.errors import LocationError, StrandlineError, UsageError
from strandline.location.blob import BlobExists, BlobInfo, BlobMissing
from strandline.location.failures import failure
from strandline.location.keys import is_key, range_of
from strandline.location.local.durable import sync_directory, sync_file
from strandline.location.local.root import ABSENT, READ, Root
from strandline.location.local.temporary import TemporaryFiles

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["FileBlob"]

# After these `link` has certainly not made the name. After others, EIO say, it may have.
_LINK_DID_NOT_HAPPEN = frozenset(
    {
        errno.EACCES,
        errno.EDQUOT,
        errno.EILSEQ,
        errno.EINVAL,
        errno.ELOOP,
        errno.EMLINK,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.ENOSYS,
        errno.ENOTDIR,
        errno.EOPNOTSUPP,
        errno.EPERM,
        errno.EROFS,
        errno.EXDEV,
    }
)


class FileBlob:
    """Objects as files below `root`, durable and created by exactly one.

    A deadline is looked at before an object gets its name, the last moment at which nothing has
    happened; a call into the file system that hangs cannot be interrupted.
    """

    near = True

    def __init__(self, root: str | os.PathLike[str], env: Env) -> None:
        self._root = Root(root)
        self._env = env
        self._temporary = TemporaryFiles(self._root, env)

    def get(self, key: str, *, timeout: float) -> bytes:
        descriptor, size = self._open(key)
        try:
            return self._read(descriptor, 0, size, key)
        finally:
            os.close(descriptor)

    def get_range(self, key: str, start: int, length: int, *, timeout: float) -> bytes:
        descriptor, size = self._open(key)
        try:
            begin, end = range_of(size, start, length)
            return self._read(descriptor, begin, end - begin, key)
        finally:
            os.close(descriptor)

    def put(self, key: str, data: bytes, *, timeout: float) -> None:
        with self.upload(key, timeout=timeout) as sink:
            sink.write(data)

    @contextmanager
    def upload(self, key: str, *, timeout: float) -> Iterator[BinaryIO]:
        target = self._root.file(key)
        temporary, descriptor = self._temporary.begin(key)
        try:
            yield cast("BinaryIO", _Sink(descriptor, f"writing {self._root.name(key)}"))
            deadline = Deadline(self._env, timeout)
            try:
                sync_file(descriptor)
            except OSError as error:
                raise self._root.failure(error, "writing", key) from error
            self._publish(temporary, target, key, deadline)
        finally:
            # What cannot be removed now is garbage that can be recognised.
            with suppress(OSError):
                os.close(descriptor)
            with suppress(OSError):
                os.unlink(temporary)

    def open(self, key: str, *, timeout: float) -> pa.NativeFile:
        # A memory map is no faster (one key of a file of 1M rows, zstd: 534 µs by reads, 590 by
        # a map; opening 12 µs against 20), and a file cut off while it is mapped kills the process
        # where a read reports an error.
        descriptor, _ = self._open(key)
        os.close(descriptor)
        try:
            return pa.OSFile(self._root.file(key), mode="rb")
        except FileNotFoundError as error:
            raise BlobMissing(key) from error
        except OSError as error:
            raise self._root.failure(error, "opening", key) from error

    def delete(self, key: str, *, timeout: float) -> bool:
        path = self._root.file(key)
        there = True
        try:
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                raise self._root.is_link(path)
            if not stat.S_ISREG(mode):
                return False
            os.unlink(path)
        except OSError as error:
            if error.errno not in ABSENT:
                happened = error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS)
                raise self._root.failure(error, "deleting", key, happened=happened) from error
            self._root.check_there()
            there = False
        # Also when it was gone: who removed it may not have got as far as making that durable,
        # and False must mean that it does not come back.
        try:
            sync_directory(os.path.dirname(path))
        except OSError as error:
            if error.errno not in ABSENT:
                raise self._root.failure(error, "deleting", key, happened=True) from error
        return there

    def list(
        self, prefix: str, *, start_after: str | None = None, timeout: float
    ) -> Iterator[BlobInfo]:
        folder = prefix.rpartition("/")[0]
        if folder:
            if not is_key(folder):
                return  # no key begins so
            self._root.check_way(f"{folder}/")
        yield from self._walk(f"{folder}/" if folder else "", prefix, start_after or "")

    def leftovers(self, before: int, *, delete: bool, timeout: float) -> Sequence[BlobInfo]:
        deadline = Deadline(self._env, timeout)
        return self._temporary.leftovers(before, delete=delete, deadline=deadline)

    def close(self) -> None:
        """Nothing is held between calls."""

    # Reading

    def _open(self, key: str) -> tuple[int, int]:
        path = self._root.file(key)
        try:
            descriptor = os.open(path, READ)
        except OSError as error:
            if error.errno in ABSENT:
                self._root.check_there()
                raise BlobMissing(key) from error
            if error.errno == errno.ELOOP:
                raise self._root.is_link(path) from error
            raise self._root.failure(error, "reading", key) from error
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise BlobMissing(key)
        return descriptor, status.st_size

    def _read(self, descriptor: int, begin: int, length: int, key: str) -> bytes:
        pieces = []
        try:
            while length > 0:
                piece = os.pread(descriptor, length, begin)
                if not piece:
                    break
                pieces.append(piece)
                begin += len(piece)
                length -= len(piece)
        except OSError as error:
            raise self._root.failure(error, "reading", key) from error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _walk(self, folder: str, prefix: str, start_after: str) -> Iterator[BlobInfo]:
        """The objects below `folder`, which is empty or ends in a slash.

        Python compares strings by code point, which is the order of their UTF-8 bytes. A folder
        takes its place among its neighbours by its name with the slash: "a-b" is before "a/c".
        """
        found: list[tuple[str, os.DirEntry[str]]] = []
        for entry in self._entries(folder):
            path = folder + entry.name
            if entry.is_dir(follow_symlinks=False):
                path += "/"
                wanted = path.startswith(prefix) or prefix.startswith(path)
                if wanted and (path > start_after or start_after.startswith(path)):
                    found.append((path, entry))
            elif path.startswith(prefix) and path > start_after:
                found.append((path, entry))
        for path, entry in sorted(found, key=lambda pair: pair[0]):
            if path.endswith("/"):
                yield from self._walk(path, prefix, start_after)
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise self._root.failure(error, "listing", path) from error
            if stat.S_ISREG(status.st_mode):
                yield BlobInfo(path, status.st_size, status.st_mtime_ns // 1_000)

    def _entries(self, folder: str) -> Sequence[os.DirEntry[str]]:
        """What is in the folder and could be, or hold, an object; nothing if it vanished."""
        try:
            with os.scandir(os.path.join(self._root.path, folder)) as entries:
                return [entry for entry in entries if is_key(entry.name)]
        except OSError as error:
            if error.errno in ABSENT:
                self._root.check_there()
                return []
            raise self._root.failure(error, "listing", folder or "the objects") from error

    # Writing

    def _publish(self, temporary: str, target: str, key: str, deadline: Deadline) -> None:
        """Gives the temporary file its name, once and durably."""
        directory = os.path.dirname(target)
        for attempt in (1, 2):
            try:
                self._root.make_directory(directory)
            except OSError as error:
                raise self._root.failure(error, "writing", key) from error
            deadline.check(f"writing {self._root.name(key)}", may_have_happened=False)
            try:
                # One call that creates or fails. To look whether the name is free and then to
                # rename loses objects: another process can come between the two.
                os.link(temporary, target)
                break
            except FileExistsError as error:
                raise self._taken(target, key) from error
            except FileNotFoundError as error:
                # Somebody removed an empty directory that this handle had seen, or the file.
                if not os.path.lexists(temporary):
                    raise self._lost(key) from error
                self._root.forget()
                if attempt == 2:
                    raise self._root.failure(error, "writing", key) from error
            except OSError as error:
                happened = error.errno not in _LINK_DID_NOT_HAPPEN
                raise self._root.failure(error, "writing", key, happened=happened) from error
        try:
            sync_directory(directory)
        except OSError as error:
            # The name stays: others may have seen it.
            raise self._root.failure(error, "making durable", key, happened=True) from error

    def _lost(self, key: str) -> LocationError:
        return LocationError(
            f"writing {self._root.name(key)} failed: what was written is gone from "
            f"{self._temporary.directory}, deleted as if its writer had died; write it again",
            may_have_happened=False,
        )

    def _taken(self, target: str, key: str) -> StrandlineError:
        """The error for a name that something has already."""
        # SUBTLE: who made the name may have died, or have failed, before the directory was synced;
        # perhaps it was this very writer, which tries again and will take the equal bytes for its
        # own. "Exists" is believed, so it has to be as durable as a put.
        try:
            mode = os.lstat(target).st_mode
            if stat.S_ISLNK(mode):
                return self._root.is_link(target)
            if not stat.S_ISREG(mode):
                return UsageError(
                    f"{self._root.name(key)} cannot be an object: a directory of that name holds"
                    " others"
                )
            descriptor = os.open(target, READ)
            try:
                sync_file(descriptor)
            finally:
                os.close(descriptor)
            sync_directory(os.path.dirname(target))
        except FileNotFoundError:
            pass  # deleted since; it was there, which is all that "exists" says
        except OSError as error:
            return self._root.failure(error, "making durable", key, happened=True)
        return BlobExists(key)


class _Sink(io.RawIOBase):
    """Writes to a file that belongs to the upload: closing the sink leaves it open."""

    def __init__(self, descriptor: int, doing: str) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._doing = doing
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: ReadableBuffer) -> int:
        view = memoryview(data).cast("B")
        written = 0
        try:
            while written < len(view):
                written += os.write(self._descriptor, view[written:])
        except OSError as error:
            raise failure(error, self._doing, may_have_happened=False) from error
        self._position += written
        return written
