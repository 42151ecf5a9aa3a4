"""What a table's rows look like: Arrow columns with ids, of which some are keys."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, get_args

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from strandline.errors import UsageError
from strandline.parts.plain import int64
from strandline.state.model import Part, TableKind, TableVersion

__all__ = [
    "COLUMN_ID",
    "DIFF",
    "END",
    "TIME",
    "TableSchema",
    "adds_once",
    "column_id",
    "key_columns",
    "new_schema",
    "normal_type",
    "own_columns",
    "validate_table_name",
    "with_times",
    "without_plain_diff",
]

COLUMN_ID = b"strandline.column"
"""Metadata of every field: the column's id, decimal. A name may change, an id does not."""

TIME = "__time"
"""Commit time of each row, int64 µs; only in parts whose rows have several."""

DIFF = "__diff"
"""+1 adds the row, -1 retracts it (rows) or deletes its key (keyed); int64; only where needed."""

END = "__end"
"""The time from which each row is live no more, int64 µs; in parts of history, beside `__time`."""

_NAME_BYTES_MAX = 255

_Rows = TypeVar("_Rows", pa.Table, pa.RecordBatch)


@dataclass(frozen=True)
class TableSchema:
    """The columns of a table, in order, and which of them rows are sorted by."""

    arrow: pa.Schema
    row_keys: tuple[str, ...]
    sort_keys: tuple[str, ...] = ()
    kind: TableKind = "rows"
    version: int = 1

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The full key: row keys, then sort keys."""
        return self.row_keys + self.sort_keys

    @cached_property
    def fields(self) -> tuple[pa.Field, ...]:
        """The columns; Arrow makes new objects each time that it is asked for them."""
        return tuple(self.arrow)

    @cached_property
    def values(self) -> tuple[str, ...]:
        """The columns that are no keys."""
        keys = set(self.keys)
        return tuple(name for name in self.arrow.names if name not in keys)

    @cached_property
    def ids(self) -> dict[int, str]:
        """Column names by column id."""
        return {column_id(field): field.name for field in self.arrow}

    def stored(self, *, time: bool = False, diff: bool = False, end: bool = False) -> pa.Schema:
        """The schema of stored rows: the user's columns, then those of ours that are wanted."""
        extra = [pa.field(TIME, pa.int64(), nullable=False)] if time else []
        extra += [pa.field(DIFF, pa.int64(), nullable=False)] if diff else []
        extra += [pa.field(END, pa.int64(), nullable=False)] if end else []
        return pa.schema([*self.arrow, *extra]) if extra else self.arrow

    def to_bytes(self) -> bytes:
        """The Arrow schema, serialised: what `TableVersion.schema` holds."""
        return self.arrow.serialize().to_pybytes()  # type: ignore[no-any-return]  # pyarrow has no types

    @classmethod
    def from_version(cls, version: TableVersion) -> TableSchema:
        """The schema that a version of a table has."""
        arrow = pa.ipc.read_schema(pa.BufferReader(version.schema))
        return cls(arrow, version.row_keys, version.sort_keys, version.kind, version.version)


def column_id(field: pa.Field) -> int:
    """The id of a column of a `TableSchema`."""
    return int(field.metadata[COLUMN_ID])


def new_schema(
    schema: pa.Schema,
    row_keys: Sequence[str] | str,
    sort_keys: Sequence[str] | str = (),
    kind: TableKind = "rows",
) -> TableSchema:
    """The schema of a new table, checked and with its types in the form that is stored.

    Raises `UsageError` that names the column and the remedy.
    """
    row, sort = _names(row_keys, "row_keys"), _names(sort_keys, "sort_keys")
    if kind not in get_args(TableKind):
        raise UsageError(f"there is no kind of table {kind!r}: choose of {get_args(TableKind)}")
    if not len(schema):
        raise UsageError("a table needs at least one column")
    if not row:
        raise UsageError("a table needs a row key: pass row_keys=, the columns to sort it by")
    _validate_names(schema.names, "column")
    _validate_keys(schema, row + sort)
    keys = set(row + sort)
    fields = [
        pa.field(
            field.name,
            normal_type(field.type, f"column {field.name!r}"),
            nullable=field.nullable and field.name not in keys,
            metadata={COLUMN_ID: str(number).encode()},
        )
        for number, field in enumerate(schema, 1)
    ]
    for field in fields:
        if field.name in keys:
            _validate_key_type(field)
    return TableSchema(pa.schema(fields), row, sort, kind)


def _names(given: Any, what: str) -> tuple[str, ...]:
    """The names of columns that were given as one, or as several."""
    try:
        names = (given,) if isinstance(given, str) else tuple(given)
    except TypeError:
        names = (None,)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"{what}={given!r:.200}: pass the name of a column, or a list of names")
    return names


def key_columns(schema: pa.Schema) -> tuple[str, ...]:
    """The names of all columns whose type a key can have, in order."""
    stored = ((f.name, normal_type(f.type, f"column {f.name!r}")) for f in schema)
    return tuple(name for name, kind in stored if any(check(kind) for check in _KEY_TYPES))


def validate_table_name(name: str) -> None:
    """Raises `UsageError` for a name that SQL engines, paths or people would confuse."""
    if not name:
        raise UsageError("a table needs a name that is not empty")
    _validate_text(name, "table")
    if name in {".", ".."} or "/" in name or "\\" in name:
        raise UsageError(f"{name!r} is no name for a table: leave out slashes and lone dots")


def with_times(rows: pa.Table) -> pa.Table:
    """The rows for people: `__time`, if there is one, as a timestamp in UTC; as exact."""
    if TIME not in rows.column_names:
        return rows
    at = rows.column_names.index(TIME)
    return rows.set_column(at, TIME, rows.column(at).cast(pa.timestamp("us", "UTC")))


def own_columns(part: Part) -> list[str]:
    """Which of our columns a part has."""
    there = ((TIME, part.time_max is not None), (DIFF, part.has_diff), (END, part.has_end))
    return [name for name, is_there in there if is_there]


def adds_once(rows: pa.Table | pa.RecordBatch) -> bool:
    """Whether the `__diff` of every row says that it was added once: then it says nothing."""
    return bool(pc.all(pc.equal(rows.column(DIFF), int64(1))).as_py())


def without_plain_diff(rows: _Rows) -> _Rows:
    """The rows without a `__diff` that says nothing."""
    return rows.drop_columns([DIFF]) if DIFF in rows.schema.names and adds_once(rows) else rows


def _validate_text(name: str, what: str) -> None:
    if not unicodedata.is_normalized("NFC", name):
        nfc = unicodedata.normalize("NFC", name)
        raise UsageError(
            f"the {what} name {name!r} is not in Unicode's composed form (NFC): use {nfc!r}"
        )
    if any(unicodedata.category(c) in {"Cc", "Cs"} for c in name):
        raise UsageError(f"the {what} name {name!r} has a control character: leave it out")
    if len(name.encode()) > _NAME_BYTES_MAX:
        raise UsageError(
            f"the {what} name {name[:40]!r}… is longer than {_NAME_BYTES_MAX} UTF-8 bytes"
        )


def _validate_names(names: Iterable[str], what: str) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if not name:
            raise UsageError(f"a {what} has an empty name: give it one")
        _validate_text(name, what)
        if name.startswith("__"):
            raise UsageError(
                f"the {what} name {name!r} is reserved: rename it so that it does not begin with __"
            )
        other = seen.get(name.casefold())
        seen[name.casefold()] = name
        if other is not None:
            how = "twice" if other == name else f"beside {other!r}, which differs only in case"
            raise UsageError(f"the {what} name {name!r} occurs {how}: rename one of them")


def _validate_keys(schema: pa.Schema, keys: tuple[str, ...]) -> None:
    unknown, counts = set(keys).difference(schema.names), Counter(keys)
    for name, count in counts.items():
        if name in unknown:
            raise UsageError(f"the key {name!r} is not a column; columns are {schema.names}")
        if count > 1:
            raise UsageError(f"{name!r} is a key twice: name it once in row_keys or sort_keys")


_KEY_TYPES: tuple[Callable[[pa.DataType], bool], ...] = (
    types.is_integer,
    types.is_string,
    types.is_binary,
    types.is_date32,
    types.is_timestamp,
    types.is_decimal,
    types.is_boolean,
)


def _validate_key_type(field: pa.Field) -> None:
    if not any(check(field.type) for check in _KEY_TYPES):
        raise UsageError(
            f"column {field.name!r} of type {field.type} cannot be a key: keys are integers, "
            "strings, binary, dates, timestamps, decimals or booleans; convert it, or take another"
        )


_SCALARS: tuple[Callable[[pa.DataType], bool], ...] = (
    types.is_boolean,
    types.is_integer,
    types.is_float32,
    types.is_float64,
    types.is_string,
    types.is_binary,
    types.is_date32,
)

_SAME: tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...] = (
    (types.is_large_string, pa.string()),
    (types.is_string_view, pa.string()),
    (types.is_large_binary, pa.binary()),
    (types.is_binary_view, pa.binary()),
    (types.is_fixed_size_binary, pa.binary()),
    (types.is_date64, pa.date32()),
    (types.is_time32, pa.time64("us")),
)
"""Types that differ only in layout from one that is stored."""


def normal_type(kind: pa.DataType, where: str) -> pa.DataType:
    """The type that is stored for values of `kind`; `UsageError`, beginning with `where`, if none.

    Every type that comes out is held by Arrow, Parquet, DuckDB and Spark alike.
    """
    if any(check(kind) for check in _SCALARS):
        return kind
    for check, same in _SAME:
        if check(kind):
            return same
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return normal_type(kind.value_type, where)
    if isinstance(kind, pa.BaseExtensionType):
        return normal_type(kind.storage_type, where)
    if types.is_timestamp(kind) or types.is_time64(kind):
        if kind.unit == "ns":
            raise UsageError(f"{where} has nanoseconds, which Spark does not hold: cast to us")
        return kind
    if types.is_decimal(kind):
        return _normal_decimal(kind, where)
    if types.is_nested(kind):
        return _normal_nested(kind, where)
    raise UsageError(f"{where} has type {kind}, which cannot be stored: {_remedy(kind)}")


def _normal_decimal(kind: pa.DataType, where: str) -> pa.DataType:
    if kind.precision > 38 or not 0 <= kind.scale <= kind.precision:
        raise UsageError(
            f"{where} has type {kind}: cast to a decimal of at most 38 digits whose scale is "
            "between 0 and its precision"
        )
    return pa.decimal128(kind.precision, kind.scale)


def _normal_nested(kind: pa.DataType, where: str) -> pa.DataType:
    def inner(field: pa.Field, name: str) -> pa.Field:
        stored = normal_type(field.type, f"{where}, in {name},")
        return pa.field(field.name, stored, nullable=field.nullable)

    if types.is_map(kind):
        return pa.map_(
            inner(kind.key_field, "the map's key"), inner(kind.item_field, "the map's item")
        )
    if types.is_struct(kind):
        if not kind.num_fields:
            raise UsageError(f"{where} is a struct without fields, which Parquet does not hold")
        names = [kind.field(i).name for i in range(kind.num_fields)]
        if len({name.casefold() for name in names}) < len(names) or not all(names):
            raise UsageError(
                f"{where} has struct fields {names} without a name or that differ only in case: "
                "rename them"
            )
        return pa.struct([inner(kind.field(i), name) for i, name in enumerate(names)])
    if hasattr(kind, "value_field"):  # every layout of lists
        element = inner(kind.value_field, "the list")
        return pa.list_(pa.field("element", element.type, nullable=element.nullable))
    raise UsageError(f"{where} has type {kind}, which cannot be stored: {_remedy(kind)}")


def _remedy(kind: pa.DataType) -> str:
    if types.is_null(kind):
        return "all its values are null, so say which type it shall have, with a pyarrow schema"
    if types.is_float16(kind):
        return "cast to float32"
    if types.is_duration(kind):
        return "cast to int64"
    return "cast to a number, a string, a date or timestamp, a list, a struct or a map"
