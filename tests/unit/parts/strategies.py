"""What the tests of parts draw from: key types, values and whole tables."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from strandline.parts.schema import TableSchema, new_schema
from strandline.state.model import TableKind

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

TEXTS = st.one_of(
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=6),
    st.sampled_from(
        ["", "\0", "\0\0", "a", "a\0", "a\0b", "\x01", "\x7f", "\x80", "\xff", "\u0800", "\uffff",
         "\U00010000", "\U0010ffff", "z" * 40]
    ),
)  # fmt: skip
BINARIES = st.one_of(
    st.binary(max_size=5),
    st.sampled_from([b"", b"\0", b"\0\0", b"\0\xff", b"\xff", b"\xff\xff", b"\x80", b"\xff\0"]),
)


def ints(kind: pa.DataType) -> st.SearchStrategy[int]:
    signed = pa.types.is_signed_integer(kind)
    least = -(1 << (kind.bit_width - 1)) if signed else 0
    most = (1 << (kind.bit_width - signed)) - 1
    edges = [least, least + 1, 0, 1, most - 1, most]
    return st.one_of(st.integers(least, most), st.sampled_from(edges), st.integers(0, 3))


def moments(unit: str, zone: str | None) -> st.SearchStrategy[datetime]:
    micros = {"s": 1_000_000, "ms": 1_000, "us": 1}[unit]
    reach = 60_000_000_000_000_000 // micros
    zero = EPOCH if zone else EPOCH.replace(tzinfo=None)
    return st.integers(-reach, reach).map(lambda n: zero + timedelta(microseconds=n * micros))


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    edges = st.sampled_from([-most, -1, 0, 1, most])
    return st.one_of(st.integers(-most, most), edges).map(
        lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale))
    )


KEY_VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    **{kind: ints(kind) for kind in map(pa.type_for_alias, INTEGERS)},
    pa.string(): TEXTS,
    pa.binary(): BINARIES,
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(date(1, 1, 2), date(9999, 12, 30)),
    **{
        pa.timestamp(unit, zone): moments(unit, zone)
        for unit in ("s", "ms", "us")
        for zone in (None, "UTC", "Asia/Kolkata")
    },
    pa.decimal128(5, 2): decimals(5, 2),
    pa.decimal128(38, 0): decimals(38, 0),
    pa.decimal128(38, 38): decimals(38, 38),
}
KEY_TYPES = st.sampled_from(list(KEY_VALUES))


def keys_schema(*kinds: pa.DataType, sort: int = 0, kind: TableKind = "rows") -> TableSchema:
    """A table of key columns k0, k1, … alone, of which the last `sort` are sort keys."""
    names = [f"k{i}" for i in range(len(kinds))]
    cut = len(kinds) - sort
    return new_schema(
        pa.schema(list(zip(names, kinds, strict=True))), names[:cut], names[cut:], kind
    )


def key_tuples(kinds: tuple[pa.DataType, ...]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(*(KEY_VALUES[kind] for kind in kinds))


KEYS = st.lists(KEY_TYPES, min_size=1, max_size=3).map(tuple)
