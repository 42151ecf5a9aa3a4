"""Between Arrow and NumPy without `pa.array`, `pa.scalar` and `to_numpy`.

Those ask whether they were given something of pandas, and load it to find out, where it is
installed: 170 ms, of the 400 in which a fresh process shall have looked up a key.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["TRUE", "bools", "int64", "int64s", "numbers_of", "text_of", "truths_of"]

TRUE: pa.Scalar = pa.Array.from_buffers(pa.bool_(), 1, [None, pa.py_buffer(b"\1")])[0]


def int64s(values: np.ndarray[tuple[int], np.dtype[np.int64]], valid: Any = None) -> pa.Array:
    """The numbers as an Arrow array, which shares their memory; null where not `valid`."""
    nulls = None if valid is None else _bits(valid)
    return pa.Array.from_buffers(
        pa.int64(), len(values), [nulls, pa.py_buffer(np.ascontiguousarray(values))]
    )


def bools(values: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.Array:
    """The truths as an Arrow array."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])


def _bits(values: Any) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))


def numbers_of(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[Any]]:
    """The numbers of a column of integers, dates or timestamps without nulls, in place."""
    kind = column.type
    name = str(kind) if pa.types.is_integer(kind) else f"int{kind.bit_width}"
    size = kind.bit_width // 8
    data = column.buffers()[1]
    if data is None:
        return np.empty(0, dtype=name)
    return np.frombuffer(data, dtype=name, count=len(column), offset=column.offset * size)


def truths_of(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """The truths of a column of booleans without nulls."""
    return numbers_of(column.cast(pa.uint8())).view(np.bool_)


def int64(value: int) -> pa.Scalar:
    """The number as an Arrow scalar."""
    return int64s(np.array([value], dtype=np.int64))[0]


def text_of(value: str | bytes, kind: pa.DataType) -> pa.Scalar:
    """The string or binary as a scalar of its Arrow type."""
    data = value.encode() if isinstance(value, str) else value
    ends = np.array([0, len(data)], dtype=np.int32)
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])[0]
