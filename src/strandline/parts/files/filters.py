"""Filters: which small parts cannot hold a key, told from a few bytes in the part's reference.

A Bloom filter over the hashes of the row keys (`strandline.parts.hashes`), for parts of some
thousands of rows: many of them may lie over one another before they are merged, and a lookup is to
open those alone that have its key. About one in ten thousand others is opened for nothing, one in
thirty of the largest that have a filter. docs/format.md has the bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np

from strandline.parts.hashes import Hashes, key_hash
from strandline.parts.keys import KeyCodec, KeyRange
from strandline.state.model import Part

__all__ = [
    "FILTER_KEYS_MAX",
    "Probes",
    "make_filter",
    "may_contain",
    "may_contain_any",
    "probes_of",
]

_BITS_PER_KEY = 20
_BITS_PER_KEY_MIN = 8
"""Of a part for which a full filter would be larger than `_BYTES_MAX`."""
_BYTES_MIN = 8
_BYTES_MAX = 16 * 1024
_BITS_SET = 10
"""Bits set per key. 14 would let the fewest others pass (0.7 in 10,000 instead of 0.9); with fewer,
more looks end at the first bit."""

FILTER_KEYS_MAX = _BYTES_MAX * 8 // _BITS_PER_KEY_MIN
"""Keys of a part that still gets a filter. Larger parts are few."""

_MASK = (1 << 64) - 1
_FACTOR = 0xF1357AEA2E62A9C5
_ADD = 0x9E3779B97F4A7C15

_FEW = 6
"""Hashes that are looked up one by one: more are faster in NumPy."""


def make_filter(hashes: Hashes) -> bytes:
    """A filter over these hashes; empty, which holds everything, if they are too many."""
    keys = np.unique(hashes)
    if not 0 < len(keys) <= FILTER_KEYS_MAX:
        return b""
    size = min(_BYTES_MAX, max(_BYTES_MIN, -(-len(keys) * _BITS_PER_KEY // 8)))
    bits = np.zeros(size * 8, dtype=np.uint8)
    for _ in range(_BITS_SET):
        keys = keys * np.uint64(_FACTOR) + np.uint64(_ADD)
        bits[_places(keys, size * 8)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def may_contain(filter_bytes: bytes, key: int) -> bool:
    """Whether a key of this hash may be among those that the filter was made of."""
    # Plain Python: most looks end at the first bit or the second.
    bits = len(filter_bytes) * 8
    if not bits:
        return True
    for _ in range(_BITS_SET):
        key = (key * _FACTOR + _ADD) & _MASK
        place = (key >> 32) * bits >> 32
        if not filter_bytes[place >> 3] >> (place & 7) & 1:
            return False
    return True


def may_contain_any(filter_bytes: bytes, keys: Hashes) -> bool:
    """Whether a key of any of these hashes may be among those that the filter was made of."""
    if not filter_bytes:
        return bool(len(keys))
    data = np.frombuffer(filter_bytes, dtype=np.uint8)
    for _ in range(_BITS_SET):
        keys = keys * np.uint64(_FACTOR) + np.uint64(_ADD)
        places = _places(keys, len(data) * 8)
        keys = keys[(data[places >> 3] >> (places & 7).astype(np.uint8)) & 1 == 1]
        if not len(keys):
            return False
    return True


def _places(keys: Hashes, bits: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    high = keys >> np.uint64(32)
    return ((high * np.uint64(bits)) >> np.uint64(32)).astype(np.int64)


class Probes:
    """The complete row keys that a lookup asks for. Immutable."""

    def __init__(self, keys: Sequence[tuple[bytes, int]]) -> None:
        """Keys as they are encoded, each with its hash."""
        ordered = sorted(keys)
        self._lowers = [encoded for encoded, _ in ordered]
        self._hashes = [key for _, key in ordered]
        self._array: Hashes = np.array(self._hashes, dtype=np.uint64)

    def __len__(self) -> int:
        return len(self._lowers)

    def may_be_in(self, part: Part) -> bool:
        """Whether any of the keys may be in the part, by its span and, if it has one, its filter.

        Of a single key the span is not looked at: whoever plans a read does that.
        """
        # The row key is a prefix of the part's full keys: of all those from it on, up to its
        # successor, so it may be a little below the first.
        lowers, found = self._lowers, part.filter
        if len(lowers) == 1:
            return not found or may_contain(found, self._hashes[0])
        end = bisect_left(lowers, part.upper + b"\0")
        start = max(0, bisect_left(lowers, part.lower, hi=end) - 1)
        if not found or end <= start:
            return end > start
        if end - start <= _FEW:
            return any(may_contain(found, key) for key in self._hashes[start:end])
        return may_contain_any(found, self._array[start:end])


def probes_of(ranges: Sequence[KeyRange] | None, codec: KeyCodec) -> Probes | None:
    """What a read of these ranges asks for, if it is complete row keys alone; None if it is not."""
    if not ranges:
        return None
    count = codec.row_key_count
    keys = []
    kinds = codec.arrow_types[:count]
    for wanted in ranges:
        lower, upper = wanted.lower, wanted.upper
        if lower is None or upper is None or len(lower) < count or lower[:count] != upper[:count]:
            return None
        values = lower[:count]
        keys.append((codec.encode(values), key_hash(values, kinds)))
    return Probes(keys)
