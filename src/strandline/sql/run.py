"""SQL over a whole database: DuckDB asks, our own readers answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pyarrow as pa

from strandline.engine.conditions import SqlCondition
from strandline.engine.copying import Rows, columns_named, copied_from, copy_to
from strandline.engine.duck import (
    Duck,
    Failures,
    bounded,
    drained,
    instance,
    quoted,
    refused,
    usage_errors,
)
from strandline.engine.expressions import (
    Assignments,
    Others,
    quote_columns,
    serialized,
    sql_types,
)
from strandline.engine.statements import (
    Copy,
    Delete,
    Insert,
    Update,
    columns_called,
    names_in,
    parse_copy,
    parse_write,
)
from strandline.env import Deadline
from strandline.errors import UsageError
from strandline.parts.schema import TableSchema
from strandline.parts.typed import typed
from strandline.read.reading import Reading
from strandline.read.want import Want
from strandline.sql.relation import Relation
from strandline.sql.tables import BATCH_ROWS, Tables, batches_of, register
from strandline.state.commands import Write
from strandline.state.model import Batch, TableVersion
from strandline.times import Commit
from strandline.txn.handle import Handle
from strandline.txn.view import View
from strandline.write.commit import Pending, WriteOptions, build, commit_computed, commit_writes
from strandline.write.edits import delete_rows, update_rows

__all__ = ["run_sql"]

A = TypeVar("A")


def run_sql(
    handle: Handle,
    text: object,
    as_of: int | None,
    deadline: Deadline,
    transaction: Pending | None = None,
) -> Relation | Commit:
    """Runs one statement as of a time (None: the latest), or within a transaction."""
    if not isinstance(text, str):
        raise UsageError(f"{text!r} is no SQL: pass a string")
    tables = Tables(handle, as_of, deadline, transaction)
    versions = tables.named_in(text)
    kind, text = _statement(text, versions)
    if kind in {"SELECT", "EXPLAIN"}:
        return _query(handle, text, tables.views(versions), deadline)
    copy = parse_copy(text) if kind == "COPY" else None
    if copy is not None and not copy.is_from:
        return _copy_to(tables, versions, copy)
    if kind not in {"INSERT", "UPDATE", "DELETE", "COPY"}:
        raise UsageError(
            f"db.sql runs SELECT, INSERT, UPDATE, DELETE and COPY, not {kind}; "
            f"{_INSTEAD.get(kind, 'tables are made by create_table')}"
        )
    if as_of is not None:
        raise UsageError(f"{kind} with an as_of: the past cannot change; leave as_of out")
    writing = _Writing(tables, versions)
    return writing.run(parse_write(kind, text)) if copy is None else writing.copy(copy)


_INSTEAD = {
    "MERGE_INTO": "into a keyed table INSERT INTO t SELECT … replaces and adds rows, and DELETE "
    "FROM t WHERE … takes them away; both in one commit are tx.sql(…) in db.transaction()",
    "TRANSACTION": "transactions are `with db.transaction() as tx`, with tx.sql(…) in it",
    "DROP": "tables are dropped by drop_table",
}


def _statement(text: str, versions: Sequence[TableVersion]) -> tuple[str, str]:
    """What kind the one statement in the text is, and the text, keywords quoted if need be."""
    columns = [name for version in versions for name in typed(version)[0].arrow.names]
    why: Exception | None = None
    with closing(instance(ordered=True)) as cursor:
        for candidate in dict.fromkeys([text, quote_columns(text, columns)]):
            try:
                found = cursor.extract_statements(candidate)
            except usage_errors() as error:
                why = why or error
                continue
            if len(found) != 1:
                raise UsageError(f"db.sql runs one statement, not {len(found)}; run them in turn")
            return found[0].type.name, candidate
    raise refused(f"{text!r} is no SQL that DuckDB understands", why or ValueError("empty"))


def _query(handle: Handle, text: str, opened: Sequence[View], deadline: Deadline) -> Relation:
    cursor = instance(ordered=False)
    failures = Failures()
    what = f"the query {_short(text)}"
    try:
        with failures.told(what):
            register(cursor, handle, opened, failures, deadline)
            relation = bounded(lambda: cursor.sql(text), [cursor], deadline, what)
            return Relation(relation, cursor, failures, what, deadline)
    except BaseException:
        cursor.close()
        raise


def _copy_to(tables: Tables, versions: Sequence[TableVersion], copy: Copy) -> Relation:
    """COPY … TO: writes the file, and gives the number of rows as DuckDB does."""
    what = f"COPY {_short(copy.source) if copy.is_query else copy.source} TO"
    rows: Rows = partial(_rows_of_query, tables, versions, copy, what)
    if not copy.is_query:
        version = tables.target(versions, copy.source)
        columns = columns_named(copy, typed(version)[0].arrow.names)
        rows = partial(_rows_of_table, tables, version, columns)
    count = copy_to(copy, rows, tables.deadline, what)
    cursor = instance(ordered=True)
    counted = cursor.sql(f"SELECT {count}::BIGINT AS Count")
    return Relation(counted, cursor, Failures(), what, tables.deadline)


def _rows_of_table(
    tables: Tables,
    version: TableVersion,
    columns: tuple[str, ...] | None,
    failures: Failures,
    _: list[Duck],
) -> pa.RecordBatchReader:
    """Sorted by key, as a scan has them."""
    (view,) = tables.views([version])
    reading = Reading.of(tables.handle, view, Want(columns), tables.deadline)
    batches = failures.watched(batches_of(reading))
    return pa.RecordBatchReader.from_batches(reading.question.arrow, batches)


def _rows_of_query(
    tables: Tables,
    versions: Sequence[TableVersion],
    copy: Copy,
    what: str,
    failures: Failures,
    cursors: list[Duck],
) -> pa.RecordBatchReader:
    """As the query gives them, which sees no file."""
    cursor = instance(ordered=False)
    cursors.append(cursor)  # closed by who writes the rows, once nobody can stop it any more
    inner = Failures()
    with inner.told(what):
        register(cursor, tables.handle, tables.views(versions), inner, tables.deadline)
        reader = cursor.sql(copy.source).to_arrow_reader(BATCH_ROWS)

    def batches() -> Iterator[pa.RecordBatch]:
        with inner.told(what):
            yield from reader

    return pa.RecordBatchReader.from_batches(reader.schema, failures.watched(batches()))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= 80 else line[:79] + "…")


# --- writes


class _Writing:
    """One INSERT, UPDATE or DELETE."""

    def __init__(self, tables: Tables, versions: Sequence[TableVersion]) -> None:
        self._tables = tables
        self._handle = tables.handle
        self._versions = {version.name.casefold(): version for version in versions}

    def run(self, statement: Insert | Update | Delete) -> Commit:
        """Commits it; it is evaluated again when what it read has changed."""
        options = self._tables.options(type(statement).__name__.lower())
        version = self._tables.target(list(self._versions.values()), statement.target)
        if isinstance(statement, Insert):
            return self._insert(version, statement, options)
        texts = [statement.where or ""]
        if isinstance(statement, Update):
            texts += statement.values.values()
        reads = self._reads(" ".join(texts))
        selected = _SqlSelection(self, statement.alias, statement.where, reads)
        if isinstance(statement, Delete):
            return delete_rows(self._handle, version, selected, options, self._ids(reads, version))

        def assigned(view: View) -> Assignments:
            schema = typed(view.version)[0]
            what = f"UPDATE {statement.target}"
            others = self.others(reads, view.as_of, what)
            return Assignments(statement.values, schema, statement.alias, others)

        ids = self._ids(reads, version)
        return update_rows(self._handle, version, selected, assigned, options, ids)

    def copy(self, statement: Copy) -> Commit:
        """Commits the rows of files."""
        options = self._tables.options("copy")
        version = self._tables.target(list(self._versions.values()), statement.source)
        schema = typed(version)[0]
        columns = columns_named(statement, schema.arrow.names)
        return self._add(
            version, copied_from(statement, schema, columns, options.deadline), options
        )

    def others(self, reads: Sequence[TableVersion], as_of: int, what: str) -> Others:
        """The tables that subqueries name, as of a time."""
        opened = self._tables.views(reads, as_of)
        return _Others(self._handle, opened, self._tables.deadline, what)

    def _insert(self, version: TableVersion, statement: Insert, options: WriteOptions) -> Commit:
        reads = self._reads(statement.query)
        schema = typed(version)[0]

        def compute(view: View) -> list[Batch]:
            rows = self._rows(statement, schema, reads, view.as_of)
            return [build(self._handle, view.version, rows, options)]

        if reads:
            ids = self._ids(reads, version)
            return commit_computed(self._handle, version.table, options, compute, ids)
        return self._add(version, self._rows(statement, schema, [], None), options)

    def _add(
        self, version: TableVersion, rows: pa.RecordBatchReader, options: WriteOptions
    ) -> Commit:
        """Commits rows that were read from no table, and conflict with nobody."""
        batch = build(self._handle, version, rows, options)
        return commit_writes(self._handle, [(version, Write(version.table, batch))], options)

    def _rows(
        self,
        statement: Insert,
        schema: TableSchema,
        reads: Sequence[TableVersion],
        as_of: int | None,
    ) -> pa.RecordBatchReader:
        """The query's rows under the names, and in the types, of the table's columns."""
        cursor = instance(ordered=False)
        failures = Failures()
        what = f"INSERT INTO {statement.target}"
        deadline = self._tables.deadline

        def begun() -> pa.RecordBatchReader:
            query = _insertion(cursor, statement, schema, types, what)
            return cursor.sql(query).to_arrow_reader(BATCH_ROWS)

        try:
            with failures.told(what):
                types = sql_types(cursor, schema.arrow)
                if as_of is not None:
                    self.others(reads, as_of, what).register(cursor, failures)
                reader = bounded(begun, [cursor], deadline, what)
        except BaseException:
            cursor.close()
            raise

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                with failures.told(what):
                    yield from drained(reader, [cursor], lambda: deadline, what)
            finally:
                cursor.close()

        return pa.RecordBatchReader.from_batches(reader.schema, batches())

    def _reads(self, text: str) -> list[TableVersion]:
        names = names_in(text)
        return [version for name, version in self._versions.items() if name in names]

    @staticmethod
    def _ids(reads: Sequence[TableVersion], target: TableVersion) -> list[str]:
        return [version.table for version in reads if version.table != target.table]


@dataclass(frozen=True, slots=True)
class _Others:
    """Tables as of their views' time, for the subqueries of `what`."""

    handle: Handle
    opened: Sequence[View]
    deadline: Deadline
    what: str

    def register(self, cursor: Duck, failures: Failures) -> None:
        register(cursor, self.handle, self.opened, failures, self.deadline)

    def bounded(self, function: Callable[[], A], cursor: Duck) -> A:
        return bounded(function, [cursor], self.deadline, self.what)


@dataclass(frozen=True, slots=True)
class _SqlSelection:
    """The rows for which the WHERE of a statement is true."""

    writing: _Writing
    alias: str
    where: str | None
    reads: Sequence[TableVersion]

    def rows(
        self, handle: Handle, view: View, columns: Sequence[str] | None, options: WriteOptions
    ) -> Iterator[pa.Table]:
        condition = None
        if self.where is not None:
            what = f"{options.operation.upper()} with the condition {_short(self.where)}"
            others = self.writing.others(self.reads, view.as_of, what)
            arrow = typed(view.version)[0].arrow
            condition = SqlCondition(self.where, arrow, self.alias, others)
        want = Want(None if columns is None else tuple(columns), None, condition)
        deadline = options.deadline
        deadline.check(f"reading for {options.operation.upper()}", may_have_happened=False)
        yield from Reading.of(handle, view, want, deadline).tables()


def _insertion(
    cursor: Duck, statement: Insert, schema: TableSchema, types: Mapping[str, str], what: str
) -> str:
    """A query for the rows to insert, under the names and in the types of the table."""
    if serialized(cursor, statement.query)["error"]:
        raise UsageError(f"{what}: {_short(statement.query)} is no query")
    given = cursor.sql(statement.query).columns
    names = _places(statement, given, schema, what)
    places = ", ".join(f"c{i}" for i in range(len(given)))
    items = ", ".join(
        f"CAST(c{i} AS {types[name]}) AS {quoted(name)}" for i, name in enumerate(names)
    )
    return f"SELECT {items} FROM ({statement.query}\n) AS given({places})"  # noqa: S608  parsed


def _places(statement: Insert, given: Sequence[str], schema: TableSchema, what: str) -> list[str]:
    """The table's columns that the query's columns go to."""
    names = given if statement.by_name else statement.columns or schema.arrow.names
    found = columns_called(names, schema.arrow.names, what)
    if len(found) != len(given):
        raise UsageError(
            f"{what}: the query gives {len(given)} columns, and {len(found)} are to be written"
        )
    return found
