"""Transactions that are begun anew after each conflict, until one is committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from strandline.env import Deadline, retry_delays
from strandline.errors import LocationError, TransactionConflict
from strandline.txn.handle import Handle
from strandline.txn.right_of_way import Tries

__all__ = ["transact"]

A = TypeVar("A")


class Try(Protocol):
    """A transaction that may have to be made again."""

    @property
    def has_token(self) -> bool:
        """Whether a second commit would find out what became of the first."""

    def commit(self, *, timeout: float) -> object:
        """Commits; TransactionConflict if others changed what was read."""

    def rollback(self) -> None:
        """Discards it."""


T = TypeVar("T", bound=Try)


def transact(
    handle: Handle, begin: Callable[[float], T], function: Callable[[T], A], deadline: Deadline
) -> A:
    """What `function` returns for a transaction that was committed; begun anew after a conflict.

    An unknown outcome is asked for again with the token, if there is one, and raised if not.
    """
    env = handle.store.env
    # Short ones: a conflict says that another got through, and who waits longer the more often it
    # met one would never be the first against those who have just been.
    pauses = iter(retry_delays(env, first_seconds=0.001, most_seconds=0.008))
    with Tries(handle.store.way, env, deadline) as tries:
        while True:
            tries.begin()
            transaction = begin(max(deadline.remaining(), 0.001))
            try:
                result = function(transaction)
                _settled(transaction, deadline, handle)
            except TransactionConflict:
                transaction.rollback()
                deadline.check(
                    "a transaction that others keep changing the reads of", may_have_happened=False
                )
                env.sleep(min(next(pauses), deadline.remaining()))
            except BaseException:
                transaction.rollback()
                raise
            else:
                return result


def _settled(transaction: Try, deadline: Deadline, handle: Handle) -> None:
    """Commits; with a token again and again while the outcome is not known."""
    pauses = iter(retry_delays(handle.store.env, first_seconds=0.002, most_seconds=0.25))
    while True:
        try:
            transaction.commit(timeout=max(deadline.remaining(), 0.001))
        except LocationError as error:
            if not (error.may_have_happened and transaction.has_token and deadline.remaining()):
                raise
            handle.store.env.sleep(min(next(pauses), deadline.remaining()))
        else:
            return
