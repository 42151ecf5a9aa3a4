"""Least and greatest value and number of nulls of a part's columns, as the catalog keeps them.

Stored by column id, so that renaming a column changes nothing, and with a letter for the kind of
type, so that a widened column keeps its statistics. After a version byte, for each column: id,
nulls, length of the least and of the greatest value plus one (0: unknown) as varints, the letter,
the two values. Long texts are cut: the least downwards, the greatest upwards.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from strandline.parts.keytypes import KeyType, key_type
from strandline.parts.plain import text_of
from strandline.parts.schema import TableSchema, column_id

__all__ = [
    "ColumnStats",
    "Comparison",
    "StatisticsBuilder",
    "decode_statistics",
    "may_match",
]

_VERSION = 1
_CUT = 32
"""Characters of a text, and bytes of a binary, that are kept."""


class ColumnStats(NamedTuple):
    """All values but nulls are in `[min, max]`; None: not known, as with NaN among them."""

    min: Any
    max: Any
    nulls: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """`column op value` holds for every row that matches; with "in", one of the values."""

    column: str
    op: str
    """One of = < <= > >= in."""
    values: tuple[Any, ...]


class StatisticsBuilder:
    """Gathers the statistics of a part while its rows pass by."""

    def __init__(
        self, schema: TableSchema, columns_max: int, *, texts_from_footer: bool = False
    ) -> None:
        """`texts_from_footer`: of texts and binaries `add_footer` will tell the bounds."""
        self._texts_from_footer = texts_from_footer
        names = [*schema.keys, *schema.arrow.names[:columns_max]]
        self._fields = [schema.arrow.field(name) for name in dict.fromkeys(names)]
        self._nulls = [0] * len(self._fields)
        self._bounds: list[list[pa.Scalar] | None] = [[] for _ in self._fields]

    def add(self, table: pa.Table) -> None:
        """Takes the next rows into account."""
        for at, field in enumerate(self._fields):
            column = table.column(field.name)
            self._nulls[at] += column.null_count
            bounds = self._bounds[at]
            if bounds is None or column.null_count == len(column) or self._left_out(field):
                continue
            if _letter(field.type) is None or _has_nan(column):
                self._bounds[at] = None
                continue
            found = pc.min_max(column)
            bounds += [found["min"], found["max"]]
            if len(bounds) > 64:
                self._bounds[at] = self._narrowed(bounds)

    def add_footer(self, metadata: pq.FileMetaData) -> None:
        """Takes the bounds of texts and binaries from where Parquet's writer put them.

        Comparing texts once more would take a tenth of the time in which a part is written.
        """
        leaves = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        for at, field in enumerate(self._fields):
            if not self._left_out(field):
                continue
            found: list[Any] = []
            for group in groups:
                statistics = group.column(leaves[field.name]).statistics
                if statistics is not None and statistics.has_min_max:
                    found += [statistics.min, statistics.max]
                elif statistics is None or statistics.null_count != group.num_rows:
                    found = []
                    break
            # Of texts Python's order is that of their bytes, as Parquet's is.
            bounds = [min(found), max(found)] if found else []
            self._bounds[at] = [text_of(value, field.type) for value in bounds]

    def _left_out(self, field: pa.Field) -> bool:
        return self._texts_from_footer and _letter(field.type) in {"s", "y"}

    def to_bytes(self) -> bytes:
        """What `Part.statistics` holds."""
        out = bytearray([_VERSION])
        for field, nulls, bounds in zip(self._fields, self._nulls, self._bounds, strict=True):
            letter = _letter(field.type)
            least = greatest = None
            if bounds and letter is not None:
                low, high = self._narrowed(bounds)
                least = _encoded(letter, field.type, low, up=False)
                greatest = _encoded(letter, field.type, high, up=True)
            for number in (column_id(field), nulls, _length(least), _length(greatest)):
                out += _varint(number)
            out += (letter or "?").encode() + (least or b"") + (greatest or b"")
        return bytes(out)

    @staticmethod
    def _narrowed(bounds: Sequence[pa.Scalar]) -> list[pa.Scalar]:
        # Scalars to an array without passing through Python, whose times have narrower limits.
        found = pc.min_max(pa.concat_arrays([pa.repeat(bound, 1) for bound in bounds]))
        return [found["min"], found["max"]]


def decode_statistics(data: bytes, schema: TableSchema) -> dict[str, ColumnStats]:
    """Statistics by the names that the columns have in `schema`; unknown columns are left out."""
    found: dict[str, ColumnStats] = {}
    if not data or data[0] != _VERSION:
        return found
    at = 1
    while at < len(data):
        number, at = _read_varint(data, at)
        nulls, at = _read_varint(data, at)
        least, at = _read_varint(data, at)
        greatest, at = _read_varint(data, at)
        letter = chr(data[at])
        middle = at + 1 + max(least - 1, 0)
        end = middle + max(greatest - 1, 0)
        name = schema.ids.get(number)
        if name is not None:
            kind = schema.arrow.field(name).type
            known = _letter(kind) == letter
            low = _decoded(letter, kind, data[at + 1 : middle]) if known and least else None
            high = _decoded(letter, kind, data[middle:end]) if known and greatest else None
            found[name] = ColumnStats(low, high, nulls)
        at = end
    return found


def may_match(data: bytes, comparisons: Iterable[Comparison], schema: TableSchema) -> bool:
    """Whether a row may satisfy all of the comparisons; False only if certainly none does."""
    known = decode_statistics(data, schema)
    for comparison in comparisons:
        stats = known.get(comparison.column)
        if stats is None or stats.min is None or stats.max is None:
            continue
        kind = schema.arrow.field(comparison.column).type
        values = [v for value in comparison.values for v in _comparable(value, stats.min, kind)]
        if any(value is _UNKNOWN for value in values):
            continue
        if not any(_may_hold(comparison.op, stats.min, stats.max, value) for value in values):
            return False
    return True


def _may_hold(op: str, low: Any, high: Any, value: Any) -> bool:
    """Whether `x op value` holds for some x of `[low, high]`; True for operators not known."""
    if op in {"=", "in"}:
        return bool(low <= value <= high)
    if op in {"<", "<="}:
        return bool(low < value or (op == "<=" and low == value))
    if op in {">", ">="}:
        return bool(high > value or (op == ">=" and high == value))
    return True


_UNKNOWN = object()


def _comparable(value: Any, bound: Any, kind: pa.DataType) -> list[Any]:
    """The value in the form that an engine compares with the column; `_UNKNOWN` if in doubt.

    SUBTLE: an engine casts one side before it compares, and a cast may round. A float32 column is
    compared in float32 by one engine and in double by another, so both forms count; a decimal is
    not compared with a float here at all.
    """
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if isinstance(bound, float):
        return _comparable_floats(value, kind)
    if isinstance(bound, Decimal) and type(value) is int:
        return [Decimal(value)]
    if type(value) is not type(bound):
        return [_UNKNOWN]
    if isinstance(value, datetime) and (value.tzinfo is None) != (bound.tzinfo is None):
        return [_UNKNOWN]
    return [value]


def _comparable_floats(value: Any, kind: pa.DataType) -> list[Any]:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return [_UNKNOWN]
    try:
        number = float(value)
    except OverflowError:
        return [_UNKNOWN]
    if math.isnan(number):
        return [_UNKNOWN]
    if types.is_float32(kind):
        with np.errstate(over="ignore"):
            return [number, float(np.float32(number))]
    return [number]


# --- values as bytes


def _letter(kind: pa.DataType) -> str | None:
    """What of a type has to stay the same for its statistics to be read; None: it has none."""
    if types.is_integer(kind):
        return "i"
    if types.is_floating(kind):
        return "f"
    if types.is_timestamp(kind):
        return {"s": "1", "ms": "2", "us": "3"}.get(kind.unit)
    if types.is_decimal(kind):
        return "n"
    for check, letter in (
        (types.is_date32, "d"),
        (types.is_boolean, "b"),
        (types.is_string, "s"),
        (types.is_binary, "y"),
    ):
        if check(kind):
            return letter
    return None


def _has_nan(column: pa.ChunkedArray) -> bool:
    if not types.is_floating(column.type):
        return False
    return pc.any(pc.is_nan(column)).as_py() is True


def _encoded(letter: str, kind: pa.DataType, scalar: pa.Scalar, *, up: bool) -> bytes | None:
    if letter == "f":
        return struct.pack("<d", scalar.as_py())
    if letter == "n":
        # Digits, because precision may be widened; the scale never changes without them.
        return str(scalar.as_py()).encode()
    raw = _key_type(kind).raw(scalar)
    if letter in "sy" and len(raw) > _CUT:
        raw = _cut_up(raw) if up else raw[:_CUT]
    if raw is None:
        return None
    if letter in "sy":
        return raw.encode() if letter == "s" else bytes(raw)
    return _key_type(kind).encode(raw)


def _decoded(letter: str, kind: pa.DataType, data: bytes) -> Any:
    if letter == "f":
        return struct.unpack("<d", data)[0]
    if letter == "n":
        return Decimal(data.decode())
    if letter in "sy":
        return data.decode() if letter == "s" else data
    value = _key_type(kind).decode(data, 0)[0]
    # A date or timestamp that Python cannot hold is no use as a bound.
    wanted = date if letter in "d123" else int
    return value if isinstance(value, wanted) else None


def _key_type(kind: pa.DataType) -> KeyType:
    return key_type(kind)


def _cut_up(value: Any) -> Any:
    """The least short text or binary above everything that starts as `value` does; None: none."""
    if isinstance(value, bytes):
        kept = value[:_CUT].rstrip(b"\xff")
        return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
    text = value[:_CUT].rstrip("\U0010ffff")
    if not text:
        return None
    following = ord(text[-1]) + 1
    if 0xD800 <= following <= 0xDFFF:  # surrogates are no characters
        following = 0xE000
    return text[:-1] + chr(following)


def _length(value: bytes | None) -> int:
    return 0 if value is None else len(value) + 1


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
