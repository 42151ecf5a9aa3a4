"""Trying again: what may be repeated, how often, until when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from strandline.env import Deadline, Env, retry_delays
from strandline.errors import LocationError
from strandline.location.blob import BlobExists, BlobMissing
from strandline.location.failures import Refused

__all__ = ["is_final", "pauses", "reading"]

A = TypeVar("A")


def is_final(error: LocationError) -> bool:
    """Whether asking again would bring the same answer."""
    return isinstance(error, Refused | BlobMissing | BlobExists)


def pauses(env: Env, deadline: Deadline) -> Iterator[float]:
    """Endless growing delays with jitter, in seconds, none longer than the time that is left."""
    for delay in retry_delays(env, first_seconds=0.005, most_seconds=1.0):
        yield min(delay, deadline.remaining())


def reading(env: Env, deadline: Deadline, doing: str, operation: Callable[[float], A]) -> A:
    """What `operation(timeout)` returns, tried again on errors that may pass.

    Only for what changes nothing. `DeadlineExceeded` with the last error as its cause.
    """
    delays = pauses(env, deadline)
    while True:
        try:
            return operation(deadline.remaining())
        except LocationError as error:
            if is_final(error):
                raise
            env.sleep(next(delays))
            try:
                deadline.check(doing, may_have_happened=False)
            except LocationError as late:
                raise late from error
