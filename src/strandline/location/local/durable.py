"""Files and directories that outlive a loss of power."""

from __future__ import annotations

import fcntl
import os

__all__ = ["make_directories", "sync_directory", "sync_file"]

# On macOS fsync leaves the data in the drive's cache; this command does not.
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


def sync_file(descriptor: int) -> None:
    """Returns when what was written to the file is on its device."""
    if _FULL_SYNC is None:
        os.fsync(descriptor)
    else:
        fcntl.fcntl(descriptor, _FULL_SYNC)


def sync_directory(path: str) -> None:
    """Returns when the names in the directory are on its device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file(descriptor)
    finally:
        os.close(descriptor)


def make_directories(path: str) -> None:
    """Makes the directory and those above it as far as they are missing, durably."""
    parent = os.path.dirname(path)
    if not os.path.isdir(path):
        if parent != path:
            make_directories(parent)
        try:
            os.mkdir(path)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
        sync_directory(parent)
        return
    # Somebody may have made it a moment ago, and not be done with making it durable. Where we may
    # not even look into the directory above, it was made by somebody long before us.
    try:
        sync_directory(parent)
    except PermissionError:
        return
