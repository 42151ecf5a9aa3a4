"""The types of a table's version, made once per process: every read and write begins with them."""

from __future__ import annotations

from strandline.parts.keys import KeyCodec
from strandline.parts.schema import TableSchema
from strandline.state.model import TableVersion

__all__ = ["typed"]

_typed: dict[tuple[str, int], tuple[TableSchema, KeyCodec]] = {}
_TYPED_MAX = 1_024
"""Versions of tables that a process remembers the types of."""


def typed(version: TableVersion) -> tuple[TableSchema, KeyCodec]:
    """The schema of a version of a table and the codec of its keys, made once per process."""
    found = _typed.get((version.table, version.version))
    if found is None:
        schema = TableSchema.from_version(version)
        found = (schema, KeyCodec(schema))
        if len(_typed) >= _TYPED_MAX:
            _typed.clear()
        _typed[version.table, version.version] = found
    return found
