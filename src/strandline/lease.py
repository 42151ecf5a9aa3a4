"""Exclusive writing to a table: a lease says who may, until it is released or another attaches."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from strandline.errors import UsageError
from strandline.ids import SessionId
from strandline.state.commands import Attach, Release
from strandline.state.model import Holder, TableVersion
from strandline.table import Table, register_attach
from strandline.times import Commit
from strandline.transaction import Transaction
from strandline.txn.handle import Handle

__all__ = ["Lease", "attach"]

NOWHERE = object()
"""The position of one who says nothing of a log upstream."""


class Lease:
    """A table that this worker alone may write to. Made by `Table.attach`; thread-safe.

    It has a handle of its own on the database, and so a session of its own. Whatever is written to
    the table through it, by `table` too, is granted only as long as nobody else has attached:
    after that every write raises `Fenced`, which names who did, and nothing of it was committed.
    Reads go on. The end of a `with` block releases.

    Writes take `position=`: up to where they go in the log that the worker reads, as any JSON
    value. It is committed with them, or not at all.
    """

    def __init__(
        self, handle: Handle, version: TableVersion, holder: Holder, position: Any
    ) -> None:
        self._handle = handle
        self._version = version
        self._holder = holder
        self._release = handle.store.pulse.hold(handle.store.txns.machine)
        self._over = False
        self.position = json.loads(holder.position) if holder.position else position
        """The position that was last committed when the table was attached; what `attach` was
        given if there was none."""

    @property
    def table(self) -> Table:
        """The table, to be read and written under this lease."""
        return Table(self._handle, self._version)

    @property
    def epoch(self) -> int:
        """How often the table has been attached: the greatest one holds it."""
        return self._holder.epoch

    @property
    def worker(self) -> str:
        """What the holder calls itself."""
        return self._holder.worker

    @property
    def session(self) -> SessionId:
        """The session that commits; objects that it wrote begin with it."""
        return self._handle.store.session

    # --- writing

    def append(self, data: Any, *, position: Any = NOWHERE, **options: Any) -> Commit:
        """As `Table.append`."""
        return self._at(position).append(data, **options)

    def upsert(self, data: Any, *, position: Any = NOWHERE, **options: Any) -> Commit:
        """As `Table.upsert`."""
        return self._at(position).upsert(data, **options)

    def delete(self, where: Any = None, *, position: Any = NOWHERE, **options: Any) -> Commit:
        """As `Table.delete`."""
        return self._at(position).delete(where, **options)

    def update(
        self,
        values: dict[str, Any],
        where: Any = None,
        *,
        position: Any = NOWHERE,
        **options: Any,
    ) -> Commit:
        """As `Table.update`."""
        return self._at(position).update(values, where, **options)

    def overwrite(
        self, data: Any, where: Any = None, *, position: Any = NOWHERE, **options: Any
    ) -> Commit:
        """As `Table.overwrite`."""
        return self._at(position).overwrite(data, where, **options)

    def transaction(
        self,
        *,
        position: Any = NOWHERE,
        isolation: str = "strict serializable",
        token: tuple[str, int] | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Transaction:
        """As `Database.transaction`, for this table and any others that nobody holds."""
        text = _encoded(position)
        return Transaction(
            self._handle,
            isolation=isolation,
            token=token,
            metadata=metadata,
            timeout=timeout,
            positions=None if text is None else {self._version.table: text},
        )

    def check(self, *, timeout: float | None = None) -> None:
        """`Fenced`, naming the new holder, if the table is not this worker's any more."""
        deadline = self._handle.deadline(timeout)
        self._handle.store.txns.check_holder(self._version.table, deadline)

    # --- its end

    def release(self, *, timeout: float | None = None) -> None:
        """Gives the table back, so that anyone may write to it, and closes the lease's handle.

        Harmless when another has it, and when it is repeated.
        """
        if self._over:
            return
        deadline = self._handle.deadline(timeout)
        self._over = True
        self._release()
        command = Release(self._version.table, self._holder.epoch)
        try:
            self._handle.store.txns.machine.submit(command, deadline)
        finally:
            self._handle.close(timeout=max(deadline.remaining(), 0.001))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        name, epoch = self._version.name, self.epoch
        return f"<strandline.Lease of {name!r}, worker {self.worker!r}, epoch {epoch}>"

    def _at(self, position: Any) -> Table:
        return Table(self._handle, self._version, position=_encoded(position))


def attach(
    handle: Handle, version: TableVersion, worker: str, position: Any, timeout: float | None
) -> Lease:
    """Makes a new handle the holder of the table, whoever was it before. Waits for nobody."""
    given: Any = worker
    if not isinstance(given, str) or not given:
        raise UsageError(f"worker={worker!r}: pass a name that says who holds the table")
    _encoded(position)  # what cannot be committed later is refused now
    handle.store.check_writable()
    handle.deadline(timeout)  # and no other timeout than one
    own = handle.another()
    deadline = own.deadline(timeout)
    try:
        txns = own.store.txns
        command = Attach(version.table, worker)
        holder = txns.machine.submit(command, deadline, note=worker)
        txns.epochs[version.table] = holder.epoch
        return Lease(own, version, holder, position)
    except BaseException:
        # Where it is not known whether it happened, closing gives back what it may hold.
        own.close(timeout=max(deadline.remaining(), 1.0))
        raise


def _encoded(position: Any) -> str | None:
    if position is NOWHERE:
        return None
    try:
        return json.dumps(position, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise UsageError(f"position={position!r} is no JSON value: {error}") from error


register_attach(attach)
