"""Hashes of keys: 64 bits that depend on the values alone.

They are stored (in filters), so they are a format: see docs/format.md. Each value of a key is one
or more words, modulo 2**64:

======================  ====================================================================
integers, booleans      the number: every width has the same, signed or not
dates, timestamps       days or units since the epoch
decimals                four words of the unscaled value in two's complement, the lowest first
strings, binary         the sum over the (UTF-8) bytes of `byte * FACTOR**place`; their number
======================  ====================================================================

The hash begins with 0; each word makes it `mix((hash + STEP) ^ word)`, where `mix` is the finaliser
of splitmix64. So keys of one number never share a hash, and other keys do by chance alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from strandline.errors import SchemaMismatch
from strandline.parts.keytypes import OFFSET, key_type
from strandline.parts.plain import numbers_of
from strandline.parts.schema import TableSchema

__all__ = ["Hashes", "hashes_of", "key_hash", "key_hashes"]

Hashes = np.ndarray[tuple[int], np.dtype[np.uint64]]

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_FACTOR = 0xD6E8FEB86659FD93
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

_LIMBS = 4
"""Words of a decimal of any width."""

_BLOCK_BYTES = 1 << 20
"""Bytes of text hashed at once, about: each takes some 30 bytes of memory meanwhile."""


def key_hashes(
    table: pa.Table | pa.RecordBatch, names: Sequence[str], schema: TableSchema
) -> Hashes:
    """A hash per row of the given key columns, as the table's schema has them.

    SchemaMismatch if one of them has a null.
    """
    columns = []
    for name in names:
        column, kind = table.column(name), schema.arrow.field(name).type
        columns.append(column if column.type == kind else column.cast(kind))
    return hashes_of(columns)


def hashes_of(columns: Sequence[pa.Array | pa.ChunkedArray]) -> Hashes:
    """A hash per row of key columns of equal length: at least one, without nulls."""
    hashes: Hashes = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        if column.null_count:
            raise SchemaMismatch("a row has a null key: keys are never null")
        at = 0
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            part = hashes[at : at + len(chunk)]
            for words in _words_in(chunk):
                _mix_in(part, words)
            at += len(chunk)
    return hashes


def key_hash(values: Sequence[Any], kinds: Sequence[pa.DataType]) -> int:
    """The hash of one key, or of the first values of one; `values` as `KeyCodec.normalize` gives.

    The same as `key_hashes` has for it.
    """
    found = 0
    for value, kind in zip(values, kinds, strict=True):
        for word in _words_of(kind)(value):
            found = ((found + _STEP) & _MASK) ^ word
            found = ((found ^ (found >> 30)) * _FIRST) & _MASK
            found = ((found ^ (found >> 27)) * _SECOND) & _MASK
            found ^= found >> 31
    return found


def _mix_in(hashes: Hashes, words: Hashes) -> None:
    hashes += np.uint64(_STEP)
    hashes ^= words
    hashes ^= hashes >> np.uint64(30)
    hashes *= np.uint64(_FIRST)
    hashes ^= hashes >> np.uint64(27)
    hashes *= np.uint64(_SECOND)
    hashes ^= hashes >> np.uint64(31)


# --- columns


def _words_in(column: pa.Array) -> Iterable[Hashes]:
    """The words of each value of an array without nulls, one array per word."""
    kind = column.type
    if types.is_dictionary(kind):
        return _words_in(column.dictionary_decode())
    if types.is_boolean(kind):
        return [numbers_of(column.cast(pa.uint8())).astype(np.uint64)]
    if types.is_integer(kind) or types.is_date32(kind) or types.is_timestamp(kind):
        return [numbers_of(column).astype(np.uint64)]  # widens with the sign, modulo 2**64
    if types.is_decimal(kind):
        return _limbs(column)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return _texts(column.cast(pa.large_binary()))
    key_type(pa.binary() if types.is_large_binary(kind) or types.is_large_string(kind) else kind)
    return _texts(column)


def _limbs(column: pa.Array) -> Iterator[Hashes]:
    width = column.type.bit_width // 8
    data = column.buffers()[1]
    if not len(column) or data is None:
        return
    count = max(1, width // 8)
    numbers = np.frombuffer(
        data,
        dtype=np.int32 if width == 4 else np.int64,
        count=len(column) * count,
        offset=column.offset * width,
    ).reshape(len(column), count)
    for limb in range(_LIMBS):
        # Beyond the width there is nothing but the sign.
        words = numbers[:, limb] if limb < count else numbers[:, -1].astype(np.int64) >> 63
        yield words.astype(np.uint64)


def _texts(column: pa.Array) -> list[Hashes]:
    large = types.is_large_string(column.type) or types.is_large_binary(column.type)
    _, places, data = column.buffers()
    rows = len(column)
    if not rows or places is None:
        return [np.zeros(rows, dtype=np.uint64)] * 2
    kind = np.dtype(np.int64 if large else np.int32)
    ends = np.frombuffer(places, kind, rows + 1, column.offset * kind.itemsize).astype(np.int64)
    text = np.frombuffer(b"" if data is None else data, dtype=np.uint8)
    sums = np.zeros(rows, dtype=np.uint64)
    start = 0
    while start < rows:
        stop = int(np.searchsorted(ends, ends[start] + _BLOCK_BYTES, "right")) - 1
        stop = min(rows, max(stop, start + 1))
        block = ends[start : stop + 1]
        sums[start:stop] = _sums(text[block[0] : block[-1]], block - block[0])
        start = stop
    return [sums, np.diff(ends).astype(np.uint64)]


def _sums(text: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]) -> Hashes:
    """Per text from one of `ends` to the next, the sum of its bytes times powers of the factor."""
    lengths = np.diff(ends)
    powers = np.full(max(int(lengths.max()), 1), _FACTOR, dtype=np.uint64)
    powers[0] = 1
    np.multiply.accumulate(powers, out=powers)
    place = np.arange(len(text)) - np.repeat(ends[:-1], lengths)
    # Differences of a running sum, unlike reduceat, are right for empty texts.
    running = np.zeros(len(text) + 1, dtype=np.uint64)
    np.cumsum(text * powers[place], out=running[1:])
    found: Hashes = running[ends[1:]] - running[ends[:-1]]
    return found


# --- single values


@lru_cache(maxsize=256)
def _words_of(kind: pa.DataType) -> Callable[[Any], tuple[int, ...]]:
    """What gives the words of one value of that type."""
    encode = key_type(kind).encode
    if types.is_integer(kind) or types.is_boolean(kind):
        return lambda value: (int(value) & _MASK,)
    if types.is_string(kind):
        return lambda value: _text_words(value.encode())
    if types.is_binary(kind):
        return _text_words
    if types.is_decimal(kind):

        def words(value: Any) -> tuple[int, ...]:
            data = encode(value)
            unscaled = int.from_bytes(data, "big") - (1 << (len(data) * 8 - 1))
            return tuple((unscaled >> (64 * limb)) & _MASK for limb in range(_LIMBS))

        return words
    return lambda value: ((int.from_bytes(encode(value), "big") - OFFSET) & _MASK,)


def _text_words(data: bytes) -> tuple[int, int]:
    total = 0
    for byte in reversed(data):
        total = (total * _FACTOR + byte) & _MASK
    return total, len(data)
