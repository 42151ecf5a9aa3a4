"""What a failed system call means: whose fault it is, and whether trying again can help."""

from __future__ import annotations

import errno

from strandline.errors import LocationError, StrandlineError, UsageError

__all__ = ["Refused", "failure"]


class Refused(LocationError):
    """The storage said no, and will go on saying so until somebody does something about it.

    Nothing was changed. It is not retried.
    """

    kind = "refused"

    def __init__(self, message: str) -> None:
        super().__init__(message, may_have_happened=False)


_REMEDIES = {
    errno.ENOSPC: "free some space on that file system",
    errno.EDQUOT: "free some space or have the quota raised",
    errno.EACCES: "have read and write permission granted, or open it for reading only",
    errno.EPERM: "have read and write permission granted; a file system without hard links is"
    " not supported",
    errno.EROFS: "mount the file system for writing, or open it for reading only",
    errno.EMLINK: "use a file system that allows a file two names",
    errno.EXDEV: "let the whole store be on one file system",
    errno.EOPNOTSUPP: "use a file system that has hard links",
    errno.ENOSYS: "use a file system that has hard links",
}

_IMPOSSIBLE_NAMES = frozenset({errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL})


def failure(
    error: OSError, doing: str, *, may_have_happened: bool, about_a_name: bool = False
) -> StrandlineError:
    """The error to raise for `error`, which came up while `doing` (a clause with the object in it).

    `about_a_name` says that the failed call took a name of the caller's choosing.
    """
    message = f"{doing} failed: {error.strerror or error}"
    if may_have_happened:
        return LocationError(message, may_have_happened=True)
    if about_a_name and error.errno in _IMPOSSIBLE_NAMES:
        return UsageError(f"{message}; this file system cannot hold such a name")
    remedy = _REMEDIES.get(error.errno or 0)
    if remedy is not None:
        return Refused(f"{message}; {remedy}")
    return LocationError(message, may_have_happened=False)
