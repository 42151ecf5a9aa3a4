"""A directory that objects are below of: the way to each, and directories that last."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from strandline.errors import StrandlineError, UsageError
from strandline.location.failures import Lasting, failure
from strandline.location.keys import check_key
from strandline.location.local.durable import make_directories, sync_directory

__all__ = ["ABSENT", "READ", "Root"]

READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})


class Root:
    """What one handle knows of the directory at `path` and of those below it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._durable: set[str] = set()
        self._plain: set[str] = set()
        self._was_there = os.path.isdir(self.path)

    def make_directory(self, directory: str) -> None:
        """Makes a directory at or below the root, so that its name is durable up to the root.

        SUBTLE: that a directory is there does not mean that its name is durable. Another process
        may have made it a moment ago; were it to die with the machine before its sync, the objects
        that this process had put below would go with the name. So a handle syncs the way down to
        every directory once itself.
        """
        if directory in self._durable:
            return
        if directory == self.path:
            make_directories(directory)
            self._was_there = True
        else:
            parent = os.path.dirname(directory)
            self.make_directory(parent)
            with suppress(FileExistsError):
                os.mkdir(directory)
            mode = os.lstat(directory).st_mode
            if stat.S_ISLNK(mode):
                raise self.is_link(directory)
            if not stat.S_ISDIR(mode):
                raise UsageError(
                    f"{directory} cannot hold objects: an object has that name already"
                )
            sync_directory(parent)
        self._durable.add(directory)

    def forget(self) -> None:
        """Somebody removed a directory: none is taken for known any more."""
        self._durable.clear()
        self._plain.clear()

    def file(self, key: str) -> str:
        """The path of the key's file; `UsageError` if the way to it leads through a link."""
        self.check_way(check_key(key))
        return f"{self.path}/{key}"

    def check_way(self, key: str) -> None:
        """`UsageError` if the way to it leads through a link."""
        path = self.path
        for folder in key.split("/")[:-1]:
            path = f"{path}/{folder}"
            if path in self._plain:
                continue
            try:
                mode = os.lstat(path).st_mode
            except OSError:
                return  # the call that needs the path will tell
            if stat.S_ISLNK(mode):
                raise self.is_link(path)
            self._plain.add(path)

    def check_there(self) -> None:
        """An object is certainly absent only while the root is there: a disk may be unmounted."""
        if os.path.isdir(self.path):
            self._was_there = True
        elif self._was_there:
            raise Lasting(
                f"the directory {self.path} is gone; mount or restore it", may_have_happened=False
            )

    def name(self, key: str) -> str:
        """The object for a message."""
        return f"{key} in {self.path}"

    def is_link(self, path: str) -> UsageError:
        """The error of a link where a directory or an object should be."""
        return UsageError(
            f"{path} is a symbolic link, which is not followed below the root of a store;"
            " put the directory itself there"
        )

    def failure(
        self, error: OSError, doing: str, key: str, *, happened: bool = False
    ) -> StrandlineError:
        """The error of a system call that failed while `doing` something to the object."""
        doing = f"{doing} {self.name(key)}"
        return failure(error, doing, may_have_happened=happened, about_a_name=True)
