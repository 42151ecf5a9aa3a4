"""Files that are not objects yet, and what is left of them when their writer is gone."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress

from strandline.env import Deadline, Env
from strandline.location.blob import BlobInfo
from strandline.location.local.root import ABSENT, READ, Root

__all__ = ["TEMPORARY_DIRECTORY", "TemporaryFiles"]

TEMPORARY_DIRECTORY = ".tmp"
"""Below the root: files that are not objects yet, `<µs since the epoch>-<process>-<random>.tmp`.

One whose process is gone is garbage. The beginning with a dot keeps it apart from every key.
"""

_TEMPORARY_NAME = re.compile(r"[0-9]+-[0-9]+-[0-9a-f]+\.tmp")

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC

_log = logging.getLogger("strandline")


class TemporaryFiles:
    """Those below one root."""

    def __init__(self, root: Root, env: Env) -> None:
        self._root = root
        self._env = env
        self.directory = os.path.join(root.path, TEMPORARY_DIRECTORY)

    def begin(self, key: str) -> tuple[str, int]:
        """A new file to write the object to: its path, and a descriptor that is its writer's."""
        name = f"{self._env.now_micros()}-{os.getpid()}-{self._env.token_hex(8)}.tmp"
        temporary = os.path.join(self.directory, name)
        try:
            for attempt in (1, 2):
                self._root.make_directory(self.directory)
                try:
                    descriptor = os.open(temporary, _CREATE, 0o666)
                except FileNotFoundError:
                    if attempt == 2:
                        raise
                    self._root.forget()
                    continue
                # Shows that its writer lives, until it closes the file or dies. Without it a file
                # that is long in the making may be lost, which ends in an error and no worse.
                with suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return temporary, descriptor
        except OSError as error:
            raise self._root.failure(error, "writing", key) from error
        raise AssertionError("unreachable")

    def leftovers(self, before: int, *, delete: bool, deadline: Deadline) -> Sequence[BlobInfo]:
        """As `Blob.leftovers` says."""
        found = []
        for name in self._names():
            deadline.check(f"looking through {self.directory}", may_have_happened=delete)
            left = self._leftover(name, before, delete=delete)
            if left is not None:
                found.append(left)
        return found

    def _names(self) -> Sequence[str]:
        try:
            names = os.listdir(self.directory)
        except OSError as error:
            if error.errno in ABSENT:
                self._root.check_there()
                return []
            raise self._root.failure(error, "listing", TEMPORARY_DIRECTORY) from error
        return sorted(name for name in names if _TEMPORARY_NAME.fullmatch(name))

    def _leftover(self, name: str, before: int, *, delete: bool) -> BlobInfo | None:
        """A temporary file that is garbage, deleted if asked for; None if it may be needed still.

        SUBTLE: its age alone proves nothing: a process may be stopped, or wait for rows, for any
        time, and then give the file its name. The lock does, on one machine: a process has it as
        long as it lives, and no longer. Where the file system has no locks between those who share
        it, one who lives may lose the file; then its `link` finds nothing, nothing has happened,
        and it says so. A name is never used twice, so nobody links what is another's.
        """
        path = os.path.join(self.directory, name)
        try:
            descriptor = os.open(path, READ)
        except OSError as error:
            if error.errno not in ABSENT:
                _log.warning("%s is left alone: %s", path, error)
            return None
        try:
            status = os.fstat(descriptor)
            modified = status.st_mtime_ns // 1_000
            if not stat.S_ISREG(status.st_mode) or modified >= before:
                return None
            # Not shared, so that of two that look at once one leaves it to the other.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if delete:
                os.unlink(path)
        except BlockingIOError:
            return None  # its writer lives
        except FileNotFoundError:
            return None  # its writer was alive, or another has deleted it
        except OSError as error:
            _log.warning("%s is left alone: %s", path, error)
            return None
        finally:
            os.close(descriptor)
        # With a second name it is an object already, and only this name is too much.
        size = status.st_size if status.st_nlink == 1 else 0
        return BlobInfo(f"{TEMPORARY_DIRECTORY}/{name}", size, modified)
