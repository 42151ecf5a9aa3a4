"""Words of a command line as what they mean: columns, keys, ranges, names."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
from pyarrow import types

import strandline as sl

__all__ = ["key_of", "names_of", "pairs_of", "points_of", "range_of", "schema_of", "token_of"]

_TYPES = {
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "bool": pa.bool_(),
    "boolean": pa.bool_(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "double": pa.float64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "int": pa.int32(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "int8": pa.int8(),
    "integer": pa.int32(),
    "smallint": pa.int16(),
    "string": pa.string(),
    "text": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "tinyint": pa.int8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "uint8": pa.uint8(),
    "varchar": pa.string(),
}
_COLUMN = re.compile(
    r"^(?P<name>\"(?:[^\"]|\"\")+\"|\S+)\s+(?P<type>.+?)(?P<null>\s+not\s+null)?$", re.IGNORECASE
)
_DECIMAL = re.compile(r"^decimal\s*\(\s*(\d+)\s*,\s*(\d+)\s*\)$")
_COMMA = re.compile(r",(?![^()]*\))")


def schema_of(text: str) -> pa.Schema:
    """The schema that a text such as `k int64 not null, at timestamp, price decimal(12, 2)` names.

    `timestamp` is in UTC, `timestamp_ntz` has no time zone; `TYPE[]` is a list.
    """
    fields = []
    for column in _COMMA.split(text):
        found = _COLUMN.match(column.strip())
        if found is None:
            raise sl.UsageError(
                f"{column.strip()!r} is no column: write a name and a type, such as "
                "'k int64, at timestamp, v double'"
            )
        name = found["name"]
        if name.startswith('"'):
            name = name[1:-1].replace('""', '"')
        fields.append(pa.field(name, _type_of(found["type"]), nullable=found["null"] is None))
    return pa.schema(fields)


def _type_of(text: str) -> pa.DataType:
    word = text.strip().lower()
    if word.endswith("[]"):
        return pa.list_(_type_of(word[:-2]))
    decimal = _DECIMAL.match(word)
    if decimal is not None and 0 < int(decimal[1]) <= 38:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if word not in _TYPES:
        raise sl.UsageError(
            f"{text!r} is no type; there are {', '.join(sorted(_TYPES))}, decimal(p, s), and "
            "TYPE[] for lists"
        )
    return _TYPES[word]


def names_of(texts: Iterable[str]) -> list[str]:
    """Names from options that may be repeated, and may each hold several with commas between."""
    return [name.strip() for text in texts for name in _split(text) if name.strip()]


def pairs_of(texts: Iterable[str]) -> dict[str, str]:
    """`name=value` options as a dict."""
    pairs = [text.partition("=") for text in texts]
    for name, equals, _ in pairs:
        if not equals or not name:
            raise sl.UsageError(f"{name!r} says nothing: write NAME=VALUE")
    return {name: value for name, _, value in pairs}


def token_of(text: str | None) -> tuple[str, int] | None:
    """`SCOPE:NUMBER` as a token."""
    if text is None:
        return None
    scope, colon, number = text.rpartition(":")
    if not colon or not scope or not number.isdigit():
        raise sl.UsageError(f"the token {text!r} is not SCOPE:NUMBER, such as nightly:42")
    return scope, int(number)


# --- keys


def key_of(texts: Sequence[str], schema: pa.Schema, keys: Sequence[str]) -> tuple[Any, ...]:
    """A key, or a prefix of one, from one text per key column, by the types of the columns."""
    if len(texts) > len(keys):
        raise sl.UsageError(
            f"{len(texts)} values for a key of {len(keys)} columns, {', '.join(keys)}"
        )
    return tuple(
        _value(text, name, schema.field(name).type) for text, name in zip(texts, keys, strict=False)
    )


def range_of(lower: str, upper: str, schema: pa.Schema, keys: Sequence[str]) -> tuple[Any, Any]:
    """A range from two texts; the values of several key columns have commas between them.

    An empty text is an open end.
    """
    ends = [key_of(_split(text), schema, keys) if text else None for text in (lower, upper)]
    return ends[0], ends[1]


def points_of(texts: Iterable[str], schema: pa.Schema, keys: Sequence[str]) -> list[Any]:
    """Split points; those of several key columns have `|` between their values."""
    return [key_of(text.split("|"), schema, keys) for text in names_of(texts)]


def _split(text: str) -> list[str]:
    """The values of one line of CSV, so that what holds a comma can be quoted."""
    return next(csv.reader([text], skipinitialspace=True), [])


def _value(text: str, name: str, kind: pa.DataType) -> Any:
    try:
        return _parsed(text, kind)
    except (ValueError, InvalidOperation):
        raise sl.UsageError(f"{text!r} is no value for the key {name!r} of type {kind}") from None


def _parsed(text: str, kind: pa.DataType) -> Any:
    if types.is_integer(kind):
        return int(text)
    if types.is_boolean(kind):
        return {"true": True, "false": False}.get(text.lower(), text)
    if types.is_binary(kind):
        return bytes.fromhex(text[2:]) if text.startswith("0x") else text.encode()
    if types.is_decimal(kind):
        return Decimal(text)
    if types.is_date(kind):
        return date.fromisoformat(text)
    if types.is_timestamp(kind):
        moment = datetime.fromisoformat(text)
        # As in files: a time without a zone is in UTC where the column has one.
        in_utc = kind.tz is not None and moment.tzinfo is None
        return moment.replace(tzinfo=UTC) if in_utc else moment
    return text
