"""What a query gives: DuckDB's relation, within the time and the errors of Strandline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyarrow as pa

from strandline.engine.duck import Duck, Failures, bounded, busy_errors, drained
from strandline.env import Deadline
from strandline.errors import UsageError
from strandline.sql.tables import BATCH_ROWS

__all__ = ["Relation"]

A = TypeVar("A")


class Relation:
    """The result of a query: DuckDB's relation, with the connection that it needs kept open.

    It may be read many times, from one thread at a time, and gives the same rows each time, for as
    long as the tables keep what they were then. While a reader of it is open, other calls that
    compute rows are a `UsageError`. Each such call has the whole timeout of the query for itself,
    and so has each batch of a stream; `DeadlineExceeded` when it is over.

    Beside the methods that are written here it has all that DuckDB's relation has, with the same
    names and arguments: `order(…)`, `join(…)`, `max(…)`, `fetchnumpy()`, and so on.
    """

    def __init__(
        self, relation: Any, cursor: Duck, failures: Failures, what: str, deadline: Deadline
    ) -> None:
        self._relation = relation
        self._cursor = cursor
        self._failures = failures
        self._what = what
        self._deadline = deadline

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return self._run(lambda: self._relation.columns)

    @property
    def types(self) -> list[Any]:
        """The types of the columns, as DuckDB has them."""
        return self._run(lambda: self._relation.types)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and of columns."""
        return self._run(lambda: tuple(self._relation.shape))

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows."""
        return self._run(self._relation.fetchall)

    def iter_rows(self, batch_size: int = 1024) -> Iterator[tuple[Any, ...]]:
        """All rows, one by one, of which so many are held at a time."""
        return self._following(self._run(lambda: self._relation.iter_rows(batch_size)))

    def df(self, *, date_as_object: bool = False) -> Any:
        """All rows as a pandas DataFrame."""
        return self._run(lambda: self._relation.df(date_as_object=date_as_object))

    def pl(self, batch_size: int = BATCH_ROWS, *, lazy: bool = False) -> Any:
        """All rows as a polars DataFrame; with `lazy` as a LazyFrame."""
        return self._run(lambda: self._relation.pl(batch_size, lazy=lazy))

    def arrow(self, batch_size: int = BATCH_ROWS) -> pa.RecordBatchReader:
        """The rows as a stream of Arrow batches; another name of `to_arrow_reader`."""
        return self.to_arrow_reader(batch_size)

    def to_arrow_reader(self, batch_size: int = BATCH_ROWS) -> pa.RecordBatchReader:
        """The rows as a stream of Arrow batches of so many rows, computed while it is read."""
        reader = self._run(lambda: self._relation.to_arrow_reader(batch_size))
        return pa.RecordBatchReader.from_batches(reader.schema, self._following(reader))

    def to_arrow_table(self, batch_size: int = BATCH_ROWS) -> pa.Table:
        """All rows as an Arrow table."""
        return self._run(lambda: self._relation.to_arrow_table(batch_size))

    def filter(self, filter_expr: object) -> Relation:
        """The rows for which a condition is true: text, or an expression of DuckDB's."""
        return self._another(self._run(lambda: self._relation.filter(filter_expr)))

    def limit(self, n: int, offset: int = 0) -> Relation:
        """The first rows, so many, after `offset` others."""
        return self._another(self._run(lambda: self._relation.limit(n, offset)))

    def show(self, **options: Any) -> None:
        """Prints the first rows; options are those of DuckDB's, `max_rows=` for one."""
        self._run(lambda: self._relation.show(**options))

    def __getattr__(self, name: str) -> Any:
        """What else DuckDB's relation has under that name: about 100 methods, or a column.

        What they are is DuckDB's to say, and grows with it: written out here they would be a copy
        that is right for one version, and without them queries that users have would break. Hence
        `Any`.
        """
        if name.startswith("__"):  # what copies or pickles asks before there is anything
            raise AttributeError(f"a Relation has no {name}")
        if isinstance(getattr(type(self._relation), name, None), property):
            return self._run(lambda: getattr(self._relation, name))
        found = getattr(self._relation, name)
        return self._guarded(found) if callable(found) else found

    def __getitem__(self, name: str) -> Relation:
        return self._another(self._relation[name])

    def __len__(self) -> int:
        return self._run(lambda: len(self._relation))

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.fetchall())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_arrow_reader().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return self._run(lambda: repr(self._relation))

    def _guarded(self, method: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            plain = [_plain(given) for given in args]
            named = {name: _plain(given) for name, given in options.items()}
            return self._wrapped(self._run(lambda: method(*plain, **named)))

        return call

    def _run(self, function: Callable[[], A]) -> A:
        try:
            with self._failures.told(self._what):
                return bounded(function, [self._cursor], self._deadline.again(), self._what)
        except busy_errors() as error:
            raise UsageError(
                f"{self._what} is being read, by a reader that is not at its end or by another "
                "thread: take all that the reader gives, or let go of it (to close it is not "
                "enough), or run db.sql once for each"
            ) from error

    def _another(self, relation: Any) -> Relation:
        return Relation(relation, self._cursor, self._failures, self._what, self._deadline)

    def _wrapped(self, result: Any) -> Any:
        if type(result) is type(self._relation):
            return self._another(result)
        if isinstance(result, pa.RecordBatchReader):
            return pa.RecordBatchReader.from_batches(result.schema, self._following(result))
        if isinstance(result, Iterator):
            return self._following(result)
        return result

    def _following(self, result: Iterator[Any]) -> Iterator[Any]:
        with self._failures.told(self._what):
            yield from drained(result, [self._cursor], self._deadline.again, self._what)


def _plain(given: Any) -> Any:
    """What takes another relation takes DuckDB's."""
    return vars(given)["_relation"] if isinstance(given, Relation) else given
