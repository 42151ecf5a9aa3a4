"""How the values of one key column are encoded: comparing the bytes compares the values.

=====================  ======================================================================
integers               9 bytes, big endian, of `value + 2**63`: every width has the same, signed
                       or not
dates, timestamps      8 bytes, big endian, of `days or units + 2**63`
decimals               16 bytes, big endian, of `unscaled value + 2**127`: every precision of
                       one scale has the same (32 bytes and `2**255` beyond 38 digits)
booleans               1 byte
strings, binary        the (UTF-8) bytes with `00` written as `00 ff`, then `00 00`
=====================  ======================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from operator import index
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import types

from strandline.errors import UsageError

__all__ = ["OFFSET", "KeyType", "key_type", "outside"]

OFFSET = 1 << 63
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1
_END = b"\0\0"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_NAIVE = datetime(1970, 1, 1)  # noqa: DTZ001  a column without a zone has naive values
_EPOCH_DATE = date(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_UNIT_MICROS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_DIGITS = Context(prec=90)


class KeyType(NamedTuple):
    """How the values of one key column are encoded, decoded, checked, and taken out of Arrow."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes, int], tuple[Any, int]]
    normalize: Callable[[Any], Any]
    raw: Callable[[Any], Any]
    """An Arrow scalar's value, in the form that `encode` takes."""
    column: Callable[[Any], list[Any]]
    """The same of a whole Arrow column."""


def _as_py(scalar: pa.Scalar) -> Any:
    return scalar.as_py()


def _value(scalar: pa.Scalar) -> Any:
    return scalar.value


def _values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    return column.to_pylist()  # type: ignore[no-any-return]  # pyarrow has no types


def _days(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    return column.cast(pa.int32()).to_pylist()  # type: ignore[no-any-return]  # pyarrow has no types


def _units(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    return column.cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]  # pyarrow has no types


def _encode_int(value: int) -> bytes:
    return (value + OFFSET).to_bytes(9, "big")


def _number(data: bytes, at: int, width: int) -> int:
    if len(data) < at + width:
        raise ValueError("it ends inside of a value")
    return int.from_bytes(data[at : at + width], "big")


def _decode_int(data: bytes, at: int) -> tuple[int, int]:
    return _number(data, at, 9) - OFFSET, at + 9


def _normalize_int(value: Any) -> int:
    if isinstance(value, bool | np.bool_):
        raise TypeError
    number = index(value)
    if not _INT_MIN <= number <= _INT_MAX:
        raise OverflowError
    return number


def _encode_bool(value: bool) -> bytes:  # noqa: FBT001  it is the value
    return b"\1" if value else b"\0"


def _decode_bool(data: bytes, at: int) -> tuple[bool, int]:
    return data[at] != 0, at + 1


def _normalize_bool(value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError
    return bool(value)


def _encode_bytes(value: bytes) -> bytes:
    return value.replace(b"\0", b"\0\xff") + _END


def _encode_text(value: str) -> bytes:
    return value.encode().replace(b"\0", b"\0\xff") + _END


def _decode_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    # The first 00 that no ff follows ends the value, because inside every 00 is followed by ff.
    end = data.index(b"\0", at)
    while data[end + 1] == 0xFF:
        end = data.index(b"\0", end + 2)
    return data[at:end].replace(b"\0\xff", b"\0"), end + 2


def _decode_text(data: bytes, at: int) -> tuple[str, int]:
    value, end = _decode_bytes(data, at)
    return value.decode(), end


def _normalize_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode()  # a lone surrogate is no text
    return str(value)


def _normalize_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError
    return bytes(value)


def _encode_moment(value: int) -> bytes:
    return (value + OFFSET).to_bytes(8, "big")


def _date_type() -> KeyType:
    def encode(value: date | int) -> bytes:
        return _encode_moment(value if isinstance(value, int) else (value - _EPOCH_DATE).days)

    def decode(data: bytes, at: int) -> tuple[Any, int]:
        days = _number(data, at, 8) - OFFSET
        try:
            return _EPOCH_DATE + timedelta(days=days), at + 8
        except OverflowError:  # Arrow's dates reach further than Python's
            return days, at + 8

    def normalize(value: Any) -> date:
        if isinstance(value, str):
            return date.fromisoformat(value)
        if isinstance(value, np.datetime64):
            value = value.astype("datetime64[D]").item()
        if not isinstance(value, date) or isinstance(value, datetime):
            raise TypeError
        return value

    return KeyType(encode, decode, normalize, _value, _days)


def _timestamp_type(kind: pa.TimestampType) -> KeyType:
    micros = _UNIT_MICROS[kind.unit]
    epoch = _EPOCH if kind.tz is not None else _EPOCH_NAIVE

    def encode(value: datetime | int) -> bytes:
        if isinstance(value, int):
            return _encode_moment(value)
        return _encode_moment((value - epoch) // _MICROSECOND // micros)

    def decode(data: bytes, at: int) -> tuple[Any, int]:
        units = _number(data, at, 8) - OFFSET
        try:
            return epoch + timedelta(microseconds=units * micros), at + 8
        except OverflowError:  # Arrow's timestamps reach further than Python's
            return units, at + 8

    def normalize(given: Any) -> datetime:
        value = datetime.fromisoformat(given) if isinstance(given, str) else given
        if not isinstance(value, datetime):
            raise TypeError
        if getattr(value, "nanosecond", 0):  # pandas has more digits than its parent class
            raise ValueError("it has nanoseconds")
        if (value.tzinfo is None) != (kind.tz is None):
            raise ValueError("it needs a time zone" if kind.tz else "it may not have a time zone")
        if value.tzinfo is not None:
            value = value.astimezone(UTC)
        if (value - epoch) // _MICROSECOND % micros:
            raise ValueError(f"it is finer than the column's unit {kind.unit}")
        return value

    return KeyType(encode, decode, normalize, _value, _units)


def _decimal_type(kind: pa.DataType) -> KeyType:
    scale = kind.scale
    width, digits = (16, 38) if types.is_decimal128(kind) else (32, 76)
    offset = 1 << (width * 8 - 1)

    def encode(value: Decimal) -> bytes:
        return (int(_DIGITS.scaleb(value, scale)) + offset).to_bytes(width, "big")

    def decode(data: bytes, at: int) -> tuple[Decimal, int]:
        unscaled = _number(data, at, width) - offset
        return _DIGITS.scaleb(Decimal(unscaled), -scale), at + width

    def normalize(value: Any) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, Decimal | int | np.integer):
            raise TypeError
        number = value if isinstance(value, Decimal) else Decimal(int(value))
        if not number.is_finite():
            raise ValueError("it is not finite")
        unscaled = _DIGITS.scaleb(number, scale)
        if unscaled.copy_abs() >= 10**digits:  # abs() would round
            raise OverflowError
        if len(number.as_tuple().digits) > 2 * digits or unscaled != int(unscaled):
            raise ValueError(f"it has more than {scale} digits after the point")
        return _DIGITS.scaleb(Decimal(int(unscaled)), -scale)

    return KeyType(encode, decode, normalize, _as_py, _values)


def key_type(kind: pa.DataType) -> KeyType:
    """The encoding of a key column's type; `UsageError` for types that cannot be keys."""
    if types.is_integer(kind):
        return KeyType(_encode_int, _decode_int, _normalize_int, _as_py, _values)
    if types.is_string(kind):
        return KeyType(_encode_text, _decode_text, _normalize_text, _as_py, _values)
    if types.is_binary(kind):
        return KeyType(_encode_bytes, _decode_bytes, _normalize_bytes, _as_py, _values)
    if types.is_boolean(kind):
        return KeyType(_encode_bool, _decode_bool, _normalize_bool, _as_py, _values)
    if types.is_date32(kind):
        return _date_type()
    if types.is_timestamp(kind):
        return _timestamp_type(kind)
    if types.is_decimal(kind):
        return _decimal_type(kind)
    raise UsageError(f"values of type {kind} cannot be keys")


def outside(kind: pa.DataType, value: Any) -> int:
    """-1 or 1 if the value is below or above all that a column of that type can hold, else 0."""
    if types.is_decimal(kind):
        most = _DIGITS.scaleb(Decimal(10**kind.precision - 1), -kind.scale)
        return bool(value > most) - bool(value < most.copy_negate())
    if not types.is_integer(kind):
        return 0
    signed = types.is_signed_integer(kind)
    bits: int = kind.bit_width
    least = -(1 << (bits - 1)) if signed else 0
    return int(value >= 1 << (bits - signed)) - int(value < least)
