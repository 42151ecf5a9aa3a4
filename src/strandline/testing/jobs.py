"""The writes that simulated writers ask for: each as a call, and as what the model makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa

from strandline.database import Database
from strandline.table import Table
from strandline.testing.reference import Copied, Deleted, Operation, Overwrite, Put, Row, Updated

__all__ = ["COLUMNS", "KEYS", "Job", "Jobs", "arrow_of", "rows_of"]

COLUMNS = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("s", pa.int64(), nullable=False),
        pa.field("v", pa.int64()),
        pa.field("text", pa.string()),
    ]
)
KEYS = 24
"""Values of the row key: few, so that writers meet."""

Call = Callable[[Database, Table, dict[str, Any]], Any]
Made = tuple[Operation, Call]


def rows_of(table: pa.Table) -> list[Row]:
    """The rows as tuples."""
    columns = [table.column(name).to_pylist() for name in COLUMNS.names]
    return list(zip(*columns, strict=True))


def arrow_of(rows: Sequence[Row]) -> pa.Table:
    """The rows as a table."""
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
    arrays = [pa.array(c, field.type) for c, field in zip(columns, COLUMNS, strict=True)]
    return pa.Table.from_arrays(arrays, schema=COLUMNS)


@dataclass(frozen=True)
class Job:
    """One write, to be asked for until its outcome is settled as far as it can be."""

    name: str
    table: str
    operation: Operation
    call: Call
    token: tuple[str, int] | None
    sql: bool = False
    """Whether it is asked for in SQL, which takes neither token nor metadata."""


class Jobs:
    """Makes up jobs, each with rows that say whose they are."""

    def __init__(self, name: str, random: Random, *, sql: bool) -> None:
        self._name = name
        self._sql = sql
        self._random = random
        self._made = 0

    def next(self) -> Job:
        """Another one."""
        self._made += 1
        random = self._random
        name = f"{self._name}#{self._made}"
        # A table that somebody else renames, drops and makes again gets plain appends.
        table = random.choices(["events", "items", "ddl-a"], [9, 9, 2])[0]
        kinds = {self._put: 12, self._by_keys: 3, self._by_condition: 2}
        kinds |= {self._overwrite: 1, self._update: 1, self._insert_select: int(self._sql)}
        make = self._put
        if table != "ddl-a":
            make = random.choices(list(kinds), list(kinds.values()))[0]
        if make == self._insert_select:
            return Job(name, "events", *make("events"), token=None, sql=True)
        token = (self._name, self._made) if table != "ddl-a" and random.random() < 0.4 else None
        return Job(name, table, *make(table), token)

    def _put(self, table: str) -> Made:
        rows = self._rows(self._random.choice([1, 1, 1, 2, 2, 3, 3, 8, 20, 60]))
        if table == "items" and self._random.random() < 0.5:
            return Put(rows), lambda _, t, more: t.upsert(arrow_of(rows), **more)
        return Put(rows), lambda _, t, more: t.append(arrow_of(rows), **more)

    def _by_keys(self, table: str) -> Made:
        width = self._random.choice([1, 2]) if table == "items" else 1
        found = {self._row()[:width] for _ in range(self._random.choice([1, 1, 3]))}
        keys = tuple(sorted(found))
        return Deleted(keys=keys), lambda _, t, more: t.delete(keys=list(keys), **more)

    def _by_condition(self, table: str) -> Made:
        few, where = self._few()
        return Deleted(where=few), lambda _, t, more: t.delete(where=where, **more)

    def _overwrite(self, table: str) -> Made:
        few, where = self._few()
        rows = self._rows(3)
        return Overwrite(rows, few), lambda _, t, more: t.overwrite(arrow_of(rows), where, **more)

    def _update(self, table: str) -> Made:
        few, where = self._few()

        def change(row: Row) -> Row:
            return (*row[:2], None if row[2] is None else row[2] + 100, row[3])

        return Updated(few, change), lambda _, t, more: t.update({"v": "v + 100"}, where, **more)

    def _insert_select(self, table: str) -> Made:
        few, where = self._few()
        text = f"insert into events select * from items where {where}"  # noqa: S608  of words above
        return Copied("items", few), lambda db, _, __: db.sql(text)

    def _few(self) -> tuple[Callable[[Row], bool], str]:
        """A condition that few keys fulfil, for the model and in SQL."""
        keys = range(bound := self._random.randrange(KEYS), bound + 3)
        return lambda row: row[0] in keys, f"k >= {keys[0]} and k <= {keys[-1]}"

    def _rows(self, count: int) -> tuple[Row, ...]:
        return tuple(self._row() for _ in range(count))

    def _row(self) -> Row:
        random = self._random
        value = None if random.random() < 0.1 else self._made
        return random.randrange(KEYS), random.randrange(3), value, f"{self._name}-{self._made}"
