"""The same values in Arrow's plainest layout, whichever one they came in.

Arrow has many layouts of one type: dictionaries, runs, views, lists of a fixed size. Its casts
between them know only some combinations, and of slices of views of lists they make other rows
(pyarrow 26). So what is not plain is taken apart here, by nothing but offsets and indices.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from strandline.parts.plain import int64s, numbers_of, truths_of

__all__ = ["unwound", "value_type"]


def value_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values of a dictionary, of runs, or of an extension; any other as it is."""
    while True:
        if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
            kind = kind.value_type
        elif isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        else:
            return kind


def unwound(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The column without dictionaries, runs, views, lists of a fixed size and extensions inside.

    It has at least one row. Raises `pa.ArrowException` where indices or offsets point nowhere.
    """
    if _is_plain(column.type):
        return column
    column.validate()
    if isinstance(column, pa.Array):
        return _unwound(column)
    return pa.chunked_array([_unwound(chunk) for chunk in column.chunks])


_NESTED_PLAIN = (types.is_struct, types.is_map, types.is_list, types.is_large_list)


def _is_plain(kind: pa.DataType) -> bool:
    if any(check(kind) for check in _NESTED_PLAIN):
        return all(_is_plain(kind.field(i).type) for i in range(kind.num_fields))
    views = types.is_string_view(kind) or types.is_binary_view(kind)
    return not (types.is_nested(kind) or views or value_type(kind) != kind)


def _unwound(array: pa.Array) -> pa.Array:
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _unwound(array.storage)
    if _is_plain(kind):
        return array
    if types.is_dictionary(kind):
        return _taken(_unwound(array.dictionary), array.indices)
    if types.is_run_end_encoded(kind):
        return _of_runs(array)
    if types.is_string_view(kind):
        return array.cast(pa.large_string())
    if types.is_binary_view(kind):
        return array.cast(pa.large_binary())
    if types.is_struct(kind):
        return _of_struct(array)
    return _of_lists(array)


def _taken(values: pa.Array, indices: pa.Array) -> pa.Array:
    return values.take(indices.cast(pa.int64()))


def _of_runs(array: pa.Array) -> pa.Array:
    ends = numbers_of(array.run_ends)
    rows = np.arange(array.offset, array.offset + len(array))
    return _taken(_unwound(array.values), int64s(np.searchsorted(ends, rows, "right")))


def _of_struct(array: pa.Array) -> pa.Array:
    fields = [array.type.field(i) for i in range(array.type.num_fields)]
    children = [_unwound(array.field(i)) for i in range(len(fields))]
    named = [field.with_type(c.type) for field, c in zip(fields, children, strict=True)]
    return pa.StructArray.from_arrays(children, fields=named, mask=_nulls(array))


def _of_lists(array: pa.Array) -> pa.Array:
    """Lists of every layout, and maps: where each begins, how long it is, what is in it."""
    kind, valid = array.type, truths_of(array.is_valid())
    if types.is_fixed_size_list(kind):
        starts = (array.offset + np.arange(len(array))) * kind.list_size
        lengths = np.full(len(array), kind.list_size)
    elif types.is_map(kind) or types.is_list(kind) or types.is_large_list(kind):
        offsets = numbers_of(array.offsets).astype(np.int64)
        starts, lengths = offsets[:-1], np.diff(offsets)
    else:
        starts = numbers_of(array.offsets).astype(np.int64)
        lengths = numbers_of(array.sizes).astype(np.int64)
    lengths = np.where(valid, lengths, 0)
    bounds = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])
    # Row by row: where its list begins, plus how far into it.
    places = np.repeat(starts - bounds[:-1], lengths) + np.arange(bounds[-1])
    ends, nulls = int64s(bounds), _nulls(array)
    if not types.is_map(kind):
        return pa.LargeListArray.from_arrays(ends, _elements(array.values, places), mask=nulls)
    keys, items = _elements(array.keys, places), _elements(array.items, places)
    return pa.MapArray.from_arrays(ends.cast(pa.int32()), keys, items, mask=nulls)


def _elements(values: pa.Array, places: Any) -> pa.Array:
    """What is at those places; nothing else of the values is looked at."""
    if not len(places):
        return _unwound(values.slice(0, 0))
    first = int(places.min())
    found = values.slice(first, int(places.max()) + 1 - first)
    return _taken(_unwound(found), int64s(places - first))


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None
