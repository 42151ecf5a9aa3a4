"""CRC-32 of pieces put together, for many at once.

`zlib.crc32` is that of Parquet's pages. What it lacks is zlib's `crc32_combine`: the checksum of
two byte strings one after the other, from their checksums and the length of the second.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

__all__ = ["combined"]

Array = np.ndarray[tuple[int, ...], np.dtype[np.uint32]]
Lengths = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

_POLYNOMIAL = 0xEDB88320


def combined(first: Array, second: Array, lengths: Lengths) -> Array:
    """The checksums of `a + b` for each pair, where `lengths` are those of the second.

    A checksum is linear over bits: appending n zero bytes multiplies its 32 bits by the n-th
    power of a matrix, and appending b instead adds b's own checksum to that.
    """
    shifted = first.astype(np.uint32)
    remaining, power = lengths.copy(), 0
    while remaining.any():
        tables = _zeros(power)
        moved = tables[0][shifted & 0xFF]
        for byte in range(1, 4):
            moved = moved ^ tables[byte][(shifted >> np.uint32(8 * byte)) & 0xFF]
        shifted = np.where(remaining & 1, moved, shifted)
        remaining >>= 1
        power += 1
    return shifted ^ second.astype(np.uint32)


@lru_cache(maxsize=64)
def _zeros(power: int) -> Array:
    """What 2**power zero bytes make of a checksum: a table for each of its four bytes."""
    columns = _matrix(power)
    tables = np.zeros((4, 256), dtype=np.uint32)
    for byte in range(4):
        for value in range(256):
            result = 0
            for bit in range(8):
                if value >> bit & 1:
                    result ^= columns[8 * byte + bit]
            tables[byte, value] = result
    return tables


@lru_cache(maxsize=64)
def _matrix(power: int) -> tuple[int, ...]:
    """What 2**power zero bytes make of each bit of a checksum."""
    if power == 0:
        return tuple(_one_zero_byte(1 << bit) for bit in range(32))
    half = _matrix(power - 1)
    return tuple(_times(half, column) for column in half)


def _one_zero_byte(checksum: int) -> int:
    for _ in range(8):
        checksum = checksum >> 1 ^ (_POLYNOMIAL if checksum & 1 else 0)
    return checksum


def _times(matrix: tuple[int, ...], vector: int) -> int:
    result = 0
    for bit in range(32):
        if vector >> bit & 1:
            result ^= matrix[bit]
    return result
