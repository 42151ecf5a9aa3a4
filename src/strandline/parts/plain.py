"""Arrow values made without `pa.array` and `pa.scalar`.

Those ask whether they were given something of pandas, and load it to find out, where it is
installed: 170 ms, of the 400 in which a fresh process shall have looked up a key.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

__all__ = ["TRUE", "int64", "int64s"]

TRUE: pa.Scalar = pa.Array.from_buffers(pa.bool_(), 1, [None, pa.py_buffer(b"\1")])[0]


def int64s(values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
    """The numbers as an Arrow array, which shares their memory."""
    return pa.Array.from_buffers(
        pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))]
    )


def int64(value: int) -> pa.Scalar:
    """The number as an Arrow scalar."""
    return int64s(np.array([value], dtype=np.int64))[0]
