"""The tables that a statement may name, and what DuckDB is given for them.

Each is a dataset of ours, which DuckDB asks for just the columns and rows that it needs. So page
checksums are verified and commits that are not applied yet are seen, which DuckDB, left with the
files, would do neither of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa

from strandline.engine.conditions import ArrowCondition
from strandline.engine.duck import Duck, Failures
from strandline.engine.statements import names_in
from strandline.env import Deadline
from strandline.parts.typed import typed
from strandline.read.reading import Reading
from strandline.read.want import Want, arrow_of
from strandline.state.model import TableVersion
from strandline.txn.handle import Handle
from strandline.txn.staging import Staging
from strandline.txn.txns import named
from strandline.txn.view import View, views
from strandline.write.commit import Pending, WriteOptions

__all__ = ["BATCH_ROWS", "Tables", "batches_of", "register"]

BATCH_ROWS = 131_072


_LISTS = {"show", "information_schema", "duckdb_tables", "duckdb_columns", "duckdb_views"}
"""What tells of all tables."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables that a statement may name, and how they look to it."""

    handle: Handle
    as_of: int | None
    deadline: Deadline
    transaction: Pending | None

    def known(self) -> list[TableVersion]:
        """All of them."""
        if self.transaction is not None:
            return self.transaction.tables()
        txns = self.handle.store.txns
        return txns.tables(txns.look(self.deadline), self.as_of)

    def named_in(self, text: str) -> list[TableVersion]:
        """Those that the text may name. A column of the same name opens one too many."""
        known, names = self.known(), names_in(text)
        if names & _LISTS:
            return known
        return [version for version in known if version.name.casefold() in names]

    def target(self, versions: Sequence[TableVersion], name: str) -> TableVersion:
        """The table of that name, in any case; UnknownTable with the names that are near."""
        for version in versions:
            if version.name.casefold() == name.casefold():
                return version
        return named(self.known(), name)

    def views(self, versions: Sequence[TableVersion], as_of: int | None = None) -> list[View]:
        """Some of them, all at one time: `as_of`, or the statement's."""
        if self.transaction is not None:
            while True:
                opened = [self.transaction.view(v.table, self.deadline) for v in versions]
                # As long as it has read nothing, a table with a short retention moves it on.
                if len({view.as_of for view in opened}) <= 1:
                    return opened
        moment = self.as_of if as_of is None else as_of
        names = [version.name for version in versions]
        return views(self.handle.store, names, moment, self.deadline)

    def options(self, operation: str) -> WriteOptions:
        """The options of a write."""
        if self.transaction is not None:
            return self.transaction.options(operation, self.deadline)
        store = self.handle.store
        store.check_writable()
        return WriteOptions(operation, None, {}, self.deadline, Staging(store, self.deadline))


def register(
    cursor: Duck, handle: Handle, opened: Sequence[View], failures: Failures, deadline: Deadline
) -> None:
    """Makes tables, each as of its view's time, known to a connection under their names.

    What is read of them has as much time as the deadline gives, each time anew.
    """
    dataset = _dataset_class()
    for view in opened:
        cursor.register(view.version.name, dataset(handle, view, failures, deadline))


@dataclass(frozen=True, slots=True)
class _Scanned:
    """What DuckDB takes for a scanner of Arrow: it asks for nothing but a reader.

    A real one reads ahead, without a bound, when DuckDB is slower: a table of 30 million rows took
    1 GiB.
    """

    stream: pa.RecordBatchReader

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows, as they are asked for."""
        return self.stream


@cache
def _dataset_class() -> type:
    """A class that DuckDB takes for an Arrow dataset; made when first needed.

    Loading `pyarrow.dataset` takes 200 ms, which a process that runs no SQL can spare.
    """
    import pyarrow.dataset as ds

    class TableDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
        """One table as of one time. DuckDB asks for columns and rows with `scanner`."""

        def __init__(
            self, handle: Handle, view: View, failures: Failures, deadline: Deadline
        ) -> None:
            self._handle = handle
            self._view = view
            self._failures = failures
            self._deadline = deadline

        @property
        def schema(self) -> pa.Schema:
            return arrow_of(Want(), self._view.version)

        def scanner(
            self,
            columns: Sequence[str] | None = None,
            filter: Any = None,  # noqa: A002  pyarrow's word
            batch_size: int = BATCH_ROWS,
            **_: Any,
        ) -> Any:
            schema = typed(self._view.version)[0]
            condition = None if filter is None else ArrowCondition(filter, schema.arrow)
            chosen = None if columns is None else tuple(columns)
            want = Want(chosen, None, condition, ordered=False)
            deadline = self._deadline.again()
            with self._failures.keeping():  # what it reads may be given up by now
                reading = Reading.of(self._handle, self._view, want, deadline)
            batches = self._failures.watched(batches_of(reading, batch_size))
            stream = pa.RecordBatchReader.from_batches(reading.question.arrow, batches)
            return _Scanned(stream)

    return TableDataset


def batches_of(reading: Reading, rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """What it reads, in batches of so many rows at most."""
    for table in reading.tables():
        yield from table.to_batches(max_chunksize=rows)
