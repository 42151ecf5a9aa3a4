"""Staged transactions: stored, not committed; whoever has one commits it, also elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from strandline.env import given_seconds
from strandline.errors import UsageError
from strandline.state.codec import decode_staged, encode_staged
from strandline.state.commands import Read, Write
from strandline.state.model import TableVersion
from strandline.txn.handle import Handle
from strandline.txn.staging import Staging
from strandline.txn.txns import named
from strandline.write.commit import WriteOptions, build

__all__ = ["Staged", "new_id", "stage"]


class Staged:
    """Rows for several tables that are stored and that nobody sees. Made by `Database.stage`.

    `Transaction.merge` takes it up, in this process or, by way of `to_bytes` and `from_bytes`, in
    another; any number of them go into one commit. That is refused (`Fenced`) once a session that
    wrote parts of it has ended: here it is kept alive for as long as this object is there; after
    `to_bytes` nobody does, and what is not committed within its lease (`Settings.lease_seconds`)
    may be lost. It is committed once at most: a second commit with it, by whomever, is refused
    (UsageError, with the time of the first one), unless both have the same token.
    """

    def __init__(
        self,
        database: str,
        writes: Sequence[Write],
        reads: Sequence[Read],
        ids: Sequence[str],
        staging: Staging | None = None,
    ) -> None:
        self._database = database
        self._writes = tuple(writes)
        self._reads = tuple(reads)
        self._staging = staging
        self.ids = tuple(ids)
        """By which a commit is known to have it: its own, then those of what was merged into it."""

    @property
    def rows(self) -> int:
        """Rows that it adds, changes or takes away."""
        return sum(write.rows for write in self._writes)

    def to_bytes(self, *, timeout: float = 60.0) -> bytes:
        """All of it for another process: what is small itself, and where the rest is stored.

        Hands its session over. Errors: LocationError.
        """
        limit = given_seconds(timeout, "timeout")
        if self._staging is not None and any(write.batch.parts for write in self._writes):
            self._staging.hand_over(limit)
        return encode_staged(self._database, self._writes, self._reads, self.ids)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The inverse of `to_bytes`. Errors: Corruption, UsageError (of a newer format)."""
        return cls(*decode_staged(data))

    def taken(self, database: str) -> tuple[tuple[Write, ...], tuple[Read, ...]]:
        """The writes, and what they were computed from; UsageError if it is of another database."""
        if self._database != database:
            raise UsageError(
                f"this was staged for database {self._database}, and this one is {database}; "
                "stage it there"
            )
        return self._writes, self._reads

    def __repr__(self) -> str:
        tables = len({write.table for write in self._writes})
        return f"<strandline.Staged: {self.rows} rows for {tables} tables>"


def stage(handle: Handle, data: Mapping[str, Any], options: WriteOptions) -> Staged:
    """Writes data, a table's name each, without a commit. As `Table.append` does, if committed."""
    if not isinstance(data, Mapping):
        raise UsageError(f"stage takes a dict of tables' names and data, not {type(data).__name__}")
    txns = handle.store.txns
    versions = txns.tables(txns.look(options.deadline))
    found: list[tuple[TableVersion, Any]] = [(named(versions, name), data[name]) for name in data]
    writes = []
    for version, rows in found:
        batch = build(handle, version, rows, options)
        if batch.rows:
            writes.append(Write(version.table, batch))
    return Staged(handle.store.database, writes, (), [new_id(handle)], options.staging)


def new_id(handle: Handle) -> str:
    """An id for something staged, which is also the scope of a token."""
    return f"staged/{handle.store.env.token_hex(16)}"
