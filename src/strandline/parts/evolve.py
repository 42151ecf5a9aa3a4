"""Rows that were stored with one version of a schema, in the columns of another.

Columns are matched by id: a renamed one is found, one that was added later is null, one that was
widened is cast, one that was dropped is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from strandline.parts.schema import COLUMN_ID, DIFF, END, TIME, TableSchema

__all__ = ["Mapping"]

_EXTRA = {name: pa.field(name, pa.int64()) for name in (TIME, DIFF, END)}


class Mapping:
    """How columns as stored become columns of a schema. Immutable."""

    def __init__(
        self, stored: pa.Schema, schema: TableSchema, columns: Sequence[str] | None
    ) -> None:
        """`columns`: user columns, and any of ours (`__time`, …), which are left out if not stored.

        None means all user columns.
        """
        places = dict(_places(stored))
        fields, sources = [], []
        for name in schema.arrow.names if columns is None else columns:
            extra = _EXTRA.get(name)
            field = extra if extra is not None else schema.arrow.field(name)
            source = places.get(name if extra is not None else field.metadata[COLUMN_ID])
            if extra is None or source is not None:
                fields.append(field)
                sources.append(source)
        self.arrow = pa.schema(fields)
        """The schema of what comes out."""
        self.needed = sorted({source for source in sources if source is not None})
        """Which of the stored columns are read, ascending."""
        places_read = {source: at for at, source in enumerate(self.needed)}
        self._sources = [None if s is None else places_read[s] for s in sources]
        as_stored = [s is not None and stored.field(s).type for s in sources]
        self._names = self.arrow.names
        self._as_stored = as_stored == self.arrow.types and self._sources == list(
            range(len(self._sources))
        )

    def table(self, data: pa.Table) -> pa.Table:
        """The rows of a table that has exactly the columns `needed`."""
        return pa.Table.from_arrays(self._columns(data), schema=self.arrow)

    def columns(self, data: pa.Table) -> dict[str, Any]:
        """The same as columns by name."""
        return dict(zip(self._names, self._columns(data), strict=True))

    def _columns(self, data: pa.Table) -> list[Any]:
        if self._as_stored:
            return data.columns  # type: ignore[no-any-return]  # pyarrow has no types
        columns = []
        for field, source in zip(self.arrow, self._sources, strict=True):
            if source is None:
                columns.append(pa.nulls(data.num_rows, field.type))
            else:
                column = data.column(source)
                columns.append(column if column.type == field.type else column.cast(field.type))
        return columns


def _places(stored: pa.Schema) -> Iterator[tuple[Any, int]]:
    """Where each column is: by id, or by name for those that no user has."""
    for at, field in enumerate(stored):
        if field.name in _EXTRA:
            yield field.name, at
        else:
            yield (field.metadata or {}).get(COLUMN_ID), at
