"""Deletes objects that nobody needs, and says which of them are gone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from strandline.env import Deadline, Env
from strandline.errors import LocationError
from strandline.location import Location

__all__ = ["deletions"]

A = TypeVar("A")

_BITE = 1_000
"""Objects deleted side by side before anybody is told."""

_UNANSWERED_MAX = 100
"""Deletes without an answer after which no more are asked for: not at the first, or one object that
cannot be deleted would keep all others."""

_log = logging.getLogger("strandline")


def deletions(
    location: Location,
    env: Env,
    items: Sequence[A],
    key: Callable[[A], str],
    *,
    deadline: Deadline,
) -> Iterator[Sequence[A]]:
    """Deletes the objects of these items, some at a time; yields those that are gone for certain.

    Only a definite answer counts, "deleted" or "not there". What was not answered may be gone or
    not; it is not yielded, and can be deleted again. Ends early where too many are not answered.
    """
    unanswered = 0
    for start in range(0, len(items), _BITE):
        bite = items[start : start + _BITE]
        errors = env.parallel(partial(_delete, location, deadline), [key(item) for item in bite])
        gone = [item for item, error in zip(bite, errors, strict=True) if error is None]
        yield gone
        failed = [error for error in errors if error is not None]
        if failed:
            unanswered += len(failed)
            _log.warning("%d deletes were not answered: %s", len(failed), failed[0])
        if unanswered >= _UNANSWERED_MAX:
            return


def _delete(location: Location, deadline: Deadline, key: str) -> LocationError | None:
    """Why it is not certain that the object is gone; None if it is."""
    try:
        location.blob.delete(key, timeout=deadline.remaining())
    except LocationError as error:
        return error
    return None
