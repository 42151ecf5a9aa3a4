"""What may be a key of an object, in every adapter alike."""

from __future__ import annotations

from strandline.errors import UsageError

__all__ = ["KEY_BYTES_MAX", "check_key", "is_key", "range_of"]

KEY_BYTES_MAX = 1_024
"""S3's limit, the tightest of the object stores."""


def check_key(key: str) -> str:
    """The key itself; `UsageError` for one that some location could not hold or could confuse.

    A key is a path of non-empty segments, none of which begins with a dot: so `..` cannot leave
    a directory, and the files that tools leave about (`.DS_Store`, `.nfs0001`) are never objects.
    """
    try:
        encoded = key.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{key!r} is not a key: it is not valid Unicode") from error
    if not 0 < len(encoded) <= KEY_BYTES_MAX:
        raise UsageError(f"{key[:80]!r} is not a key: a key has 1 to {KEY_BYTES_MAX} bytes")
    if b"\0" in encoded:
        raise UsageError(f"{key!r} is not a key: it contains a zero byte")
    # With a slash in front, one look finds empty segments and such that begin with a dot, at the
    # key's beginning too.
    rooted = "/" + key
    if "//" in rooted or "/." in rooted or rooted.endswith("/"):
        raise UsageError(
            f"{key!r} is not a key: its segments may neither be empty nor begin with a dot"
        )
    return key


def is_key(text: str) -> bool:
    """Whether `check_key` would accept it."""
    try:
        check_key(text)
    except UsageError:
        return False
    return True


def range_of(size: int, start: int, length: int) -> tuple[int, int]:
    """Where a range of an object of `size` bytes begins and ends, cut off at the object's ends."""
    if length < 0:
        raise UsageError(f"a range has a length of at least 0 bytes, not {length}")
    begin = max(0, size + start) if start < 0 else min(start, size)
    return begin, min(size, begin + length)
