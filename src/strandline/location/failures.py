"""What a failed system call means: whose fault it is, and whether trying again can help."""

from __future__ import annotations

import errno

from strandline.errors import LocationError, StrandlineError, UsageError

__all__ = ["Lasting", "Refused", "failure"]


class Lasting(LocationError):
    """A failure that does not pass by itself, or a call that must not be made again."""


class Refused(Lasting):
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

# A disk that fails goes on failing, and its driver has tried again long before it says so. What is
# short for a moment, and what a network file system loses for a moment, comes back.
_PASSING = frozenset(
    {
        errno.EAGAIN,
        errno.EBUSY,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)

_IMPOSSIBLE_NAMES = frozenset({errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL})


def failure(
    error: OSError, doing: str, *, may_have_happened: bool, about_a_name: bool = False
) -> StrandlineError:
    """The error to raise for `error`, which came up while `doing` (a clause with the object in it).

    `about_a_name` says that the failed call took a name of the caller's choosing.
    """
    message = f"{doing} failed: {error.strerror or error}"
    if may_have_happened:
        # SUBTLE: mostly a sync that failed. The system reports that once, and takes what it could
        # not write for written: the same put, made again, would find the object, sync it without
        # an error, and call durable what is only in memory.
        return Lasting(message, may_have_happened=True)
    if about_a_name and error.errno in _IMPOSSIBLE_NAMES:
        return UsageError(f"{message}; this file system cannot hold such a name")
    remedy = _REMEDIES.get(error.errno or 0)
    if remedy is not None:
        return Refused(f"{message}; {remedy}")
    kind = LocationError if error.errno in _PASSING else Lasting
    return kind(message, may_have_happened=False)
