"""What a read is to give: of a user's arguments, checked, and as keys that are looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from strandline.engine.comparisons import key_ranges as ranges_of
from strandline.engine.conditions import Condition, compile_where
from strandline.errors import UsageError
from strandline.parts.keys import KeyCodec, KeyRange
from strandline.parts.schema import DIFF, TIME, TableSchema
from strandline.parts.typed import typed
from strandline.state.model import Interval, TableVersion
from strandline.state.plan import united

__all__ = ["Want", "arrow_of", "columns_of", "implied_by", "intervals_of", "want_of"]


@dataclass(frozen=True, slots=True)
class Want:
    """What a read is to give."""

    columns: tuple[str, ...] | None = None
    """User columns, in order; None: all."""
    ranges: tuple[KeyRange, ...] | None = None
    """Only keys in any of these; None: all."""
    condition: Condition | None = None
    ordered: bool = True
    """Whether rows have to come out sorted by full key."""
    raw: bool = False
    """Whether to give all updates up to the time as they are stored, with `__time` and `__diff`."""


def want_of(
    version: TableVersion,
    *,
    columns: Sequence[str] | None,
    where: Any,
    key_range: Any,
    key_ranges: Any,
    raw: bool,
) -> Want:
    """What a user's arguments ask for, checked; `UsageError` names what is wrong with them."""
    schema, codec = typed(version)
    ranges: tuple[KeyRange, ...] | None = None
    if key_range is not None and key_ranges is not None:
        raise UsageError("pass key_range= or key_ranges=, not both")
    if key_range is not None:
        ranges = (_range(key_range, codec),)
    elif key_ranges is not None:
        if isinstance(key_ranges, str | bytes | dict) or not hasattr(key_ranges, "__iter__"):
            raise UsageError(f"key_ranges={key_ranges!r}: pass a list of (lower, upper) pairs")
        ranges = tuple(_range(pair, codec) for pair in key_ranges)
    if raw and where is not None:
        raise UsageError("raw=True gives stored updates, to which where= does not apply; leave one")
    return Want(
        columns=None if columns is None else columns_of(version, columns),
        ranges=ranges,
        condition=compile_where(where, schema, version.name),
        raw=raw,
    )


def columns_of(version: TableVersion, columns: Sequence[str]) -> tuple[str, ...]:
    """The columns of a table that a user names; `UsageError` for others."""
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    known, table = typed(version)[0].arrow.names, version.name
    unknown = set(names).difference(known)
    for name in names:
        if name in unknown:
            raise UsageError(f"table {table!r} has no column {name!r}; its columns are {known}")
    if len(set(names)) < len(names):
        raise UsageError(f"columns={list(names)} names one twice")
    if not names:
        raise UsageError(f"columns=[] names none; the columns of table {table!r} are {known}")
    return names


def _range(pair: Any, codec: KeyCodec) -> KeyRange:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise UsageError(
            f"{pair!r} is no range of keys: pass (lower, upper), each a key, a tuple of keys, or "
            "None for an open end"
        )
    lower, upper = (None if end is None else codec.normalize(end) for end in pair)
    return KeyRange(lower or None, upper or None)


_arrows: dict[tuple[str, int, tuple[str, ...] | None, bool], pa.Schema] = {}
_ARROWS_MAX = 1_024
"""Selections of columns that a process remembers the types of."""


def arrow_of(want: Want, version: TableVersion) -> pa.Schema:
    """The schema of what a read gives; made once per process."""
    key = (version.table, version.version, want.columns, want.raw)
    found = _arrows.get(key)
    if found is None:
        schema = typed(version)[0]
        stored = schema.stored(time=want.raw, diff=want.raw)
        names = schema.arrow.names if want.columns is None else want.columns
        names = [*names, TIME, DIFF] if want.raw else names
        found = pa.schema([stored.field(name).remove_metadata() for name in names])
        if len(_arrows) >= _ARROWS_MAX:
            _arrows.clear()
        _arrows[key] = found
    return found


def implied_by(condition: Condition | None, schema: TableSchema) -> list[KeyRange] | None:
    """The keys that rows have for which the condition holds; None: it says nothing of them."""
    return None if condition is None else ranges_of(condition.comparisons, schema)


def intervals_of(
    asked: Sequence[KeyRange] | None, implied: Sequence[KeyRange] | None, codec: KeyCodec
) -> list[Interval] | None:
    """The encoded keys that are in a range of both; None stands for all keys."""
    first = None if asked is None else united(r.interval(codec) for r in asked)
    if implied is None:
        return first
    second = united(r.interval(codec) for r in implied)
    if first is None:
        return second
    return united(both for a in first for i in second if (both := a.intersect(i)))
