"""Keys as bytes whose order is the order of the keys, and ranges of keys.

A tuple is encoded as its values one after another (`strandline.parts.keytypes`). Since no value's
encoding is a proper prefix of another's, a prefix of the keys encodes to a prefix of the bytes,
and one `bisect` serves every key type.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from strandline.errors import SchemaMismatch, UsageError
from strandline.parts.keytypes import OFFSET, key_type
from strandline.parts.plain import int64s, numbers_of
from strandline.parts.schema import TableSchema
from strandline.state.model import Interval

__all__ = [
    "KEY_BYTES_MAX",
    "KeyCodec",
    "KeyRange",
    "at_least",
    "at_most",
    "clip",
    "locate",
    "places",
    "separating",
    "separator",
    "successor",
]

KEY_BYTES_MAX = 64 * 1024
"""Texts and binaries in one row's keys take at most so many bytes together: enough for a URL or a
path many times over, and little beside the row group that a footer names a key of."""

BOUND_BYTES_MAX = 512
"""Bounds that are longer are cut: they are in the log, in every page of state that names the part,
and in memory while the table is open; keys that are that long are seldom told apart by their ends.
"""


class KeyCodec:
    """The order-preserving encoding of one table's keys. Immutable; share it between threads."""

    def __init__(self, schema: TableSchema) -> None:
        self.keys = schema.keys
        self.row_key_count = len(schema.row_keys)
        self.arrow_types = tuple(schema.arrow.field(name).type for name in schema.keys)
        self._types = tuple(key_type(kind) for kind in self.arrow_types)
        self._encoders = tuple(t.encode for t in self._types)

    def encode(self, values: tuple[Any, ...]) -> bytes:
        """The bytes of a full key or of any prefix of one. `values` as `normalize` returns them."""
        if len(values) == 1:
            return self._encoders[0](values[0])
        return b"".join([f(v) for f, v in zip(self._encoders, values, strict=False)])

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """The key, or prefix of one, that `data` is the encoding of.

        Dates and timestamps outside Python's range come as an int of days or of the column's
        unit, which `encode` takes as well. Raises `ValueError` if `data` is no encoding.
        """
        values: list[Any] = []
        at = 0
        try:
            for kind in self._types:
                if at == len(data):
                    break
                value, at = kind.decode(data, at)
                values.append(value)
        except (IndexError, ValueError) as error:
            raise ValueError(f"{data!r} is not an encoded key of {self.keys}") from error
        if at != len(data):
            raise ValueError(f"{data!r} is not an encoded key of {self.keys}")
        return tuple(values)

    def normalize(self, values: Any) -> tuple[Any, ...]:
        """What a user passes for a key or prefix, one value or a tuple, as a checked tuple.

        Raises `UsageError` that names the column and what it takes.
        """
        given = tuple(values) if isinstance(values, tuple | list) else (values,)
        if len(given) > len(self.keys):
            raise UsageError(
                f"the key {given!r} has {len(given)} values, but the keys are {self.keys}"
            )
        return tuple(self._checked(i, value) for i, value in enumerate(given))

    def _checked(self, at: int, value: Any) -> Any:
        if isinstance(value, pa.Scalar):
            value = value.as_py()
        name, kind = self.keys[at], self.arrow_types[at]
        why = ""
        if value is None:
            raise UsageError(f"the key {name!r} is None: keys are never null; pass a {kind}")
        try:
            return self._types[at].normalize(value)
        except ArithmeticError:  # OverflowError, and decimal's own
            why = ": it is out of range"
        except (TypeError, UnicodeEncodeError):
            pass
        except ValueError as error:
            why = f": {error}"
        raise UsageError(f"{value!r} is no value for the key {name!r} of type {kind}{why}")

    def first_last(self, table: pa.Table) -> tuple[bytes, bytes]:
        """The encoded full keys of the first and last row of a table that has rows."""
        first = self._encoded(table, 0)
        return first, self._encoded(table, table.num_rows - 1) if table.num_rows > 1 else first

    def _encoded(self, table: pa.Table, row: int) -> bytes:
        # Of a single row, scalars cost a tenth of what taking rows out of columns does.
        scalars = [table.column(name)[row] for name in self.keys]
        if not all(scalar.is_valid for scalar in scalars):
            raise SchemaMismatch("a row has a null key: keys are never null")
        values = zip(self._types, scalars, strict=True)
        return self.encode(tuple([kind.raw(scalar) for kind, scalar in values]))

    def encode_rows(self, table: pa.Table | pa.RecordBatch, rows: Sequence[int]) -> list[bytes]:
        """The encoded full keys of the given rows. Meant for few: about a µs each."""
        if not rows:
            return []
        wanted = int64s(np.array(rows, dtype=np.int64))
        columns = [
            kind.column(table.column(name).take(wanted))
            for name, kind in zip(self.keys, self._types, strict=True)
        ]
        if any(None in column for column in columns):
            raise SchemaMismatch("a row has a null key: keys are never null")
        if len(columns) == 1:
            encode = self._encoders[0]
            return [encode(value) for value in columns[0]]
        return [self.encode(values) for values in zip(*columns, strict=True)]


def successor(prefix: bytes) -> bytes | None:
    """The least bytes above everything that starts with `prefix`; None if there are none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def at_most(key: bytes) -> bytes:
    """A short lower bound: not above `key`, and `key` itself if that is short."""
    return key[:BOUND_BYTES_MAX]


def at_least(key: bytes) -> bytes:
    """A short upper bound: not below `key`, nor below anything that begins as it does."""
    if len(key) <= BOUND_BYTES_MAX:
        return key
    # Nothing is above what begins with nothing but ff; then it stays as it is.
    return successor(key[:BOUND_BYTES_MAX]) or key


def separator(last: bytes, first: bytes) -> bytes:
    """The shortest bytes above the key `last`, and not above `first`, which is not below it."""
    different = (i for i, (a, b) in enumerate(zip(last, first, strict=False)) if a != b)
    return first[: next(different, len(last)) + 1]


def separating(last: bytes, first: bytes) -> bytes:
    """Where to part the keys up to the row key `last` from those from the next, `first`, on.

    The row key `first`, or something shorter if that is long. The rows of one row key stay
    together: a key between whose rows it fell would begin `first`, and no row key does that.
    """
    return first if len(first) <= BOUND_BYTES_MAX else separator(last, first)


def locate(table: pa.Table | pa.RecordBatch, bound: bytes, codec: KeyCodec) -> int:
    """The first row of a table sorted by full key whose encoded key is at or above `bound`.

    `bound` may be any bytes, not only an encoded key. Takes O(log rows).
    """
    columns = [_contiguous(table.column(name)) for name in codec.keys]
    return _Located(columns, codec).at(bound)


def clip(table: pa.Table, intervals: Sequence[Interval], codec: KeyCodec) -> pa.Table:
    """The rows of a table sorted by full key that lie in any of the ascending, disjoint intervals.

    Slices, without copying where it is one piece.
    """
    keys = [table.column(name) for name in codec.keys]
    pieces = [table.slice(start, end - start) for start, end in places(keys, intervals, codec)]
    if len(pieces) == 1:
        return pieces[0]
    return pa.concat_tables(pieces) if pieces else table.slice(0, 0)


def places(
    keys: Sequence[pa.ChunkedArray], intervals: Sequence[Interval], codec: KeyCodec
) -> list[tuple[int, int]]:
    """Where in sorted key columns the rows of the intervals are: from which row to before which.

    `intervals` as in `clip`. Those without rows are left out.
    """
    rows = len(keys[0])
    if not rows:
        return []
    located = _Located([_contiguous(column) for column in keys], codec)
    found = []
    for lower, upper in intervals:
        start = located.at(lower) if lower else 0
        end = rows if upper is None else located.at(upper)
        if end > start:
            found.append((start, end))
    return found


def _contiguous(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    if isinstance(column, pa.ChunkedArray) and column.num_chunks == 1:
        return column.chunk(0)
    return column


_LIMITS = {
    np.dtype(name): (int(np.iinfo(name).min), int(np.iinfo(name).max))
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
}


class _Located:
    """Searches the sorted key columns of one table."""

    def __init__(self, columns: list[Any], codec: KeyCodec) -> None:
        self._columns = columns
        self._codec = codec
        self._raws = [kind.raw for kind in codec._types]  # noqa: SLF001  of this module
        self._numbers: Any = None
        kind = codec.arrow_types[0]
        numeric = types.is_integer(kind) or types.is_timestamp(kind)
        if numeric and isinstance(columns[0], pa.Array):
            self._numbers = numbers_of(columns[0])

    def at(self, bound: bytes) -> int:
        start, end = 0, len(self._columns[0])
        if self._numbers is not None and bound:
            start, end = self._narrow(bound)
            if start == end:
                return start
        return bisect.bisect_left(range(end), bound, start, end, key=self._encoded)

    def _narrow(self, bound: bytes) -> tuple[int, int]:
        width = 9 if types.is_integer(self._codec.arrow_types[0]) else 8
        # Every encoded number has that many bytes: zeros behind a shorter bound change nothing.
        value = int.from_bytes(bound[:width].ljust(width, b"\0"), "big") - OFFSET
        least, greatest = _LIMITS[self._numbers.dtype]
        if not least <= value <= greatest:
            end = 0 if value < least else len(self._numbers)
            return end, end
        number = self._numbers.dtype.type(value)
        start = int(np.searchsorted(self._numbers, number, "left"))
        if len(bound) <= width:
            return start, start
        return start, int(np.searchsorted(self._numbers, number, "right"))

    def _encoded(self, row: int) -> bytes:
        values = tuple(
            raw(column[row]) for raw, column in zip(self._raws, self._columns, strict=True)
        )
        return self._codec.encode(values)


@dataclass(frozen=True)
class KeyRange:
    """A half-open range over any prefix of the keys: typed values, None is an open end."""

    lower: tuple[Any, ...] | None
    upper: tuple[Any, ...] | None
    closed: bool = False
    """Everything that begins with the prefix `upper` is included: `get(7)` is
    `KeyRange((7,), (7,), True)`."""

    def interval(self, codec: KeyCodec) -> Interval:
        """The same range over encoded keys."""
        lower = b"" if self.lower is None else codec.encode(self.lower)
        if self.upper is None:
            return Interval(lower, None)
        upper = codec.encode(self.upper)
        return Interval(lower, successor(upper) if self.closed else upper)
