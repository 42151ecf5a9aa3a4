"""Tables to be: what a user says of one, checked, as the version that a commit begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from strandline.env import Env
from strandline.errors import UsageError
from strandline.ids import new_shard_id
from strandline.parts.keys import KEY_BYTES_MAX, KeyCodec
from strandline.parts.rows.conform import to_arrow
from strandline.parts.schema import TableSchema, new_schema, validate_table_name
from strandline.state.model import TableVersion
from strandline.txn.properties import check_properties

__all__ = ["NewTable", "name_of", "new_table"]


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table that shall be."""

    version: TableVersion
    points: tuple[bytes, ...]
    """Encoded row keys at which it is split from the start."""
    data: Any
    """Its first rows in a form of Arrow; None: there are none."""


def new_table(  # noqa: PLR0917  each is a word about the table
    env: Env,
    name: Any,
    schema: Any,
    row_keys: Sequence[str] | str,
    sort_keys: Sequence[str] | str,
    kind: str,
    split_points: Sequence[Any],
    properties: Mapping[str, Any] | None,
) -> NewTable:
    """A table with an id of its own; arguments as those of `Database.create_table`."""
    validate_table_name(name_of(name))
    data = None if isinstance(schema, pa.Schema) else to_arrow(schema)
    typed = new_schema(
        schema if data is None else data.schema,
        row_keys,
        sort_keys,
        kind,  # type: ignore[arg-type]  # checked there
    )
    version = TableVersion(
        table=new_shard_id(env),
        version=1,
        name=name,
        valid_from=0,
        valid_until=None,
        created=0,
        kind=typed.kind,
        schema=typed.to_bytes(),
        row_keys=typed.row_keys,
        sort_keys=typed.sort_keys,
        properties=check_properties(properties or {}),
    )
    return NewTable(version, _points(split_points, typed), data)


def name_of(name: Any) -> str:
    """The name, if it is a string."""
    if not isinstance(name, str):
        raise UsageError(f"{name!r} is no name of a table: pass a string")
    return name


def _short(encoded: bytes, point: Any) -> bytes:
    if len(encoded) > KEY_BYTES_MAX:
        raise UsageError(
            f"split point {str(point)[:40]}… takes {len(encoded)} bytes, where {KEY_BYTES_MAX} are "
            "the most"
        )
    return encoded


def _points(points: Sequence[Any], schema: TableSchema) -> tuple[bytes, ...]:
    """Split points as encoded row keys, ascending, each once."""
    if isinstance(points, str | bytes) or not hasattr(points, "__iter__"):
        raise UsageError(f"split_points={points!r}: pass a list of row keys")
    codec = KeyCodec(schema)
    encoded = set()
    for point in points:
        values = codec.normalize(point)
        if not 0 < len(values) <= len(schema.row_keys):
            raise UsageError(
                f"split point {point!r}: pass a row key, or a prefix of one; row keys are "
                f"{schema.row_keys}"
            )
        encoded.add(_short(codec.encode(values), point))
    return tuple(sorted(encoded))
