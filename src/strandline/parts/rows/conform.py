"""Makes data of every form fit a table's schema, or says what does not fit and where."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from strandline.errors import SchemaMismatch, UsageError
from strandline.parts.keys import KEY_BYTES_MAX
from strandline.parts.layouts import unwound, value_type
from strandline.parts.plain import TRUE, int64s
from strandline.parts.schema import TableSchema, normal_type

__all__ = ["conform", "to_arrow"]

_ACCEPTED = (
    "a pyarrow Table, RecordBatch, RecordBatchReader or Dataset, a pandas or Polars DataFrame, "
    "a DuckDB relation, a dict of columns, a list of dicts, or an iterable of Arrow batches"
)


def to_arrow(data: Any, schema: TableSchema | None = None) -> pa.Table | pa.RecordBatchReader:
    """Data in any accepted form as a table, or as a reader where it may be longer than memory.

    `schema` tells the types of columns that are plain Python values. Raises `UsageError` for
    other forms, `SchemaMismatch` for values that do not fit.
    """
    if isinstance(data, pa.Table | pa.RecordBatchReader):
        return data
    if isinstance(data, Mapping):
        return _from_columns(data, schema)
    arrow = _from_frame(data)
    if arrow is not None:
        return arrow
    if isinstance(data, Iterable) and not isinstance(data, str | bytes):
        return _from_iterable(data, schema)
    raise UsageError(f"{type(data).__name__} is not data that can be stored: pass {_ACCEPTED}")


def _from_frame(data: Any) -> pa.Table | pa.RecordBatchReader | None:
    """What is columns already, of whichever library; None if it is not."""
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    # Loading this module takes 200 ms, and who has no dataset has no need of it.
    ds = sys.modules.get("pyarrow.dataset")
    if ds is not None and isinstance(data, ds.Dataset):
        return data.scanner().to_reader()
    if ds is not None and isinstance(data, ds.Scanner):
        return data.to_reader()
    module = type(data).__module__.partition(".")[0]
    if module == "pandas":
        return _from_pandas(data)
    if module == "polars":  # a LazyFrame has no columns before it is collected
        return pa.table(data.collect() if hasattr(data, "collect") else data)
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    if hasattr(data, "__arrow_c_array__"):
        return pa.Table.from_batches([pa.record_batch(data)])
    return None


def _from_pandas(data: Any) -> pa.Table:
    try:
        return pa.Table.from_pandas(data, preserve_index=False)
    except (pa.ArrowException, TypeError) as error:
        raise SchemaMismatch(f"a pandas column has values of several types: {error}") from error


def _from_columns(data: Mapping[str, Any], schema: TableSchema | None) -> pa.Table:
    names = [str(name) for name in data]
    columns = [_column(n, values, schema) for n, values in zip(names, data.values(), strict=True)]
    lengths = {name: len(column) for name, column in zip(names, columns, strict=True)}
    if len(set(lengths.values())) > 1:
        raise SchemaMismatch(f"the columns have different lengths: {lengths}")
    return pa.table(columns, names=names)


def _column(name: str, values: Any, schema: TableSchema | None) -> pa.Array | pa.ChunkedArray:
    """One column: Python values in the table's type if it is known, else as Arrow infers it."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise SchemaMismatch(
            f"column {name!r} is one value, {values!r}: pass a list of values, also for one row"
        )
    kind = None
    if isinstance(values, list | tuple) and schema is not None:
        at = schema.arrow.get_field_index(name)
        kind = schema.arrow.field(at).type if at >= 0 else None
    try:
        return pa.array(values) if kind is None else _typed(name, values, kind)
    except SchemaMismatch:
        raise
    except (pa.ArrowException, TypeError, OverflowError, ValueError) as error:
        raise _misfit(name, values, kind, error) from error


def _typed(name: str, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Python values as a column of type `kind`.

    Told a type, Arrow takes much for it: True for 1, bytes for text, a time without a zone for
    one in UTC. So what it makes of the values by itself has to fit first.
    """
    if types.is_nested(kind):  # a dict may be a struct or a map: only the type knows
        return pa.array(values, kind)
    try:
        inferred = pa.array(values)
    except (pa.ArrowException, OverflowError):
        if not types.is_integer(kind) or not all(type(v) in (int, type(None)) for v in values):
            raise
        return pa.array(values, kind)  # integers of which some are beyond int64
    if inferred.type == kind:
        return inferred
    _check_types(inferred.type, kind, f"column {name!r}", inside=False)
    return pa.array(values, kind)


def _misfit(name: str, values: Any, kind: pa.DataType | None, error: Exception) -> SchemaMismatch:
    if kind is None:
        return SchemaMismatch(f"column {name!r} cannot be made an Arrow array: {error}")
    row = next((i for i, value in enumerate(values) if not _fits(value, kind)), None)
    value = "" if row is None else f" {values[row]!r} in row {row}"
    return SchemaMismatch(
        f"column {name!r} is of type {kind}, which does not hold{value or ' its values'}: {error}"
    )


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.array([value], kind)
    except (pa.ArrowException, TypeError, OverflowError, ValueError):
        return False
    return True


def _from_iterable(
    data: Iterable[Any], schema: TableSchema | None
) -> pa.Table | pa.RecordBatchReader:
    """A list of dicts, or Arrow batches and tables one after the other."""
    iterator = iter(data)
    first = next(iterator, None)
    if first is None:
        return schema.arrow.empty_table() if schema is not None else pa.table({})
    if isinstance(first, Mapping):
        return _from_rows([first, *iterator], schema)
    if isinstance(first, pa.Table | pa.RecordBatch):
        batches = _batches(first, iterator)
        return pa.RecordBatchReader.from_batches(first.schema, batches)
    raise UsageError(f"an iterable of {type(first).__name__} cannot be stored: pass {_ACCEPTED}")


def _from_rows(rows: Sequence[Any], schema: TableSchema | None) -> pa.Table:
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise SchemaMismatch(f"row {number} is a {type(row).__name__}, not a dict")
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    return _from_columns({name: [row.get(name) for row in rows] for name in names}, schema)


def _batches(first: Any, rest: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    item, number = first, 0
    while item is not None:
        if not isinstance(item, pa.Table | pa.RecordBatch):
            raise UsageError(f"item {number} of the iterable is a {type(item).__name__}, not Arrow")
        if not item.schema.equals(first.schema):
            raise SchemaMismatch(f"item {number} of the iterable has another schema than the first")
        yield from item.to_batches() if isinstance(item, pa.Table) else [item]
        item, number = next(rest, None), number + 1


def conform(
    data: pa.Table | pa.RecordBatchReader, schema: TableSchema
) -> pa.Table | pa.RecordBatchReader:
    """The same rows with exactly the columns of `schema.arrow`, in its order and types.

    Columns are matched by name; one that is missing and may be null is filled with nulls. Only
    casts that keep every value are made. A reader is conformed while it is read. Raises
    `SchemaMismatch` that names the column, the row (from 0) where it is known, and the remedy.
    """
    plan = _Plan(data.schema, schema)
    if isinstance(data, pa.Table):
        return pa.Table.from_arrays(plan.columns(data, 0), schema=schema.arrow)
    return pa.RecordBatchReader.from_batches(schema.arrow, plan.batches(data))


class _Plan:
    """How the columns of one incoming schema become those of a table."""

    def __init__(self, given: pa.Schema, schema: TableSchema) -> None:
        self._schema = schema
        keys = set(schema.keys)
        self._texts = [
            at
            for at, field in enumerate(schema.fields)
            if field.name in keys and (types.is_string(field.type) or types.is_binary(field.type))
        ]
        """The places of keys that may be long."""
        self._same = given.equals(schema.arrow)
        """Whether the columns are the table's already; what is in them is looked at anyway."""
        if self._same:
            self._sources = tuple(range(len(schema.arrow)))
            return
        names = given.names
        self._sources = tuple(given.get_field_index(name) for name in schema.arrow.names)
        found = len(names) - self._sources.count(-1)
        if len(names) != len(schema.arrow) or found != len(names):
            self._explain(names)
        for field, source in zip(schema.arrow, self._sources, strict=True):
            if source >= 0:
                _check_types(
                    given.field(source).type, field.type, f"column {field.name!r}", inside=False
                )

    def _explain(self, names: list[str]) -> None:
        """Raises for unknown, repeated and missing columns; missing ones that may be null pass."""
        every = self._schema.arrow.names
        known, given, keys = set(every), Counter(names), set(self._schema.keys)
        for name in given:
            if name.startswith("__") and name not in known:
                raise SchemaMismatch(f"column {name!r}: names that begin with __ are reserved")
            if name not in known:
                raise SchemaMismatch(
                    f"column {name!r} is not in the table, whose columns are {every}: "
                    "leave it out, or add it to the table first"
                )
            if given[name] > 1:
                raise SchemaMismatch(f"column {name!r} occurs twice: rename one of them")
        for name in every:
            if name not in given and not self._schema.arrow.field(name).nullable:
                what = "a key" if name in keys else "not nullable"
                raise SchemaMismatch(f"column {name!r} is missing, but it is {what}: pass it")

    def columns(self, data: pa.Table | pa.RecordBatch, base: int) -> list[Any]:
        """The table's columns out of `data`, whose first row is number `base` of all."""
        out = []
        for field, source in zip(self._schema.fields, self._sources, strict=True):
            if source < 0:
                out.append(pa.nulls(data.num_rows, field.type))
                continue
            column = data.column(source)
            if not field.nullable and column.null_count:
                self._refuse_null(field.name, column, base)
            if not self._same and column.type != field.type:
                column = _cast(column, field, base)
            _validate(column, field)
            out.append(column)
        self._check_keys(out, base)
        return out

    def _check_keys(self, columns: list[Any], base: int) -> None:
        """Raises for the first row whose keys are too long."""
        lengths = {
            self._schema.fields[at].name: pc.binary_length(columns[at]) for at in self._texts
        }
        if sum(pc.max(each).as_py() or 0 for each in lengths.values()) <= KEY_BYTES_MAX:
            return
        total = np.sum([np.asarray(each, dtype=np.int64) for each in lengths.values()], axis=0)
        row = int(np.argmax(total > KEY_BYTES_MAX))
        size = int(total[row])
        if size <= KEY_BYTES_MAX:
            return
        name = max(lengths, key=lambda each: lengths[each][row].as_py())
        raise SchemaMismatch(
            f"the key column {name!r} has {lengths[name][row]} bytes in row {base + row}, and "
            f"texts and binaries in a row's keys take at most {KEY_BYTES_MAX} together: take a "
            "hash of it as the key, and keep it as a value"
        )

    def batches(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        base = 0
        for batch in reader:
            arrays = self.columns(batch, base)
            base += batch.num_rows
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema.arrow)

    def _refuse_null(self, name: str, column: Any, base: int) -> None:
        row = base + pc.index(pc.is_null(column), TRUE).as_py()
        what = "keys are never null" if name in self._schema.keys else "the column is not nullable"
        raise SchemaMismatch(f"column {name!r} is null in row {row}: {what}; fill it, or drop it")


_FAMILIES: tuple[tuple[Callable[[pa.DataType], bool], ...], ...] = (
    (types.is_integer, types.is_decimal, types.is_floating),
    (types.is_floating,),
    (types.is_decimal,),
    (types.is_boolean,),
    (types.is_string,),
    (types.is_binary,),
    (types.is_date32, types.is_timestamp),
    (types.is_time64,),
)
"""A type may become the family's first, or any other in its line, if every value stays the same."""


def _check_types(given: pa.DataType, wanted: pa.DataType, where: str, *, inside: bool) -> None:
    """Raises `SchemaMismatch` where no value of one type can be one of the other."""
    given = value_type(given)
    if given == wanted or types.is_null(given) or _check_nested(given, wanted, where):
        return
    plain = _plain(given, where)
    if types.is_timestamp(plain) and types.is_timestamp(wanted):
        if (plain.tz is None) == (wanted.tz is None):
            return
        zone = "has no time zone" if plain.tz is None else f"is in zone {plain.tz}"
        raise SchemaMismatch(
            f"{where} is of type {wanted}, and the data {zone}: cast it, saying which zone is meant"
        )
    # What is rounded inside of a list goes unseen, so no narrowing there.
    narrowed = inside and types.is_float64(plain) and types.is_float32(wanted)
    for family in _FAMILIES:
        if not narrowed and family[0](plain) and any(check(wanted) for check in family):
            return
    raise SchemaMismatch(f"{where} is of type {wanted}, and the data of type {given}: cast it")


def _plain(kind: pa.DataType, where: str) -> pa.DataType:
    """The stored type nearest to one that is not nested."""
    # Nanoseconds, as pandas makes them, are taken as long as no value has any.
    if types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if types.is_time64(kind):
        return pa.time64("us")
    if types.is_float16(kind):
        return pa.float32()
    if types.is_nested(kind):
        return kind
    try:
        return normal_type(kind, where)
    except UsageError as error:
        raise SchemaMismatch(str(error)) from error


def _check_nested(given: pa.DataType, wanted: pa.DataType, where: str) -> bool:
    """Whether both are lists, structs or maps; raises where what is inside does not fit."""
    if types.is_struct(given) and types.is_struct(wanted):
        _check_structs(given, wanted, where)
        return True
    if types.is_map(given) and types.is_map(wanted):
        _check_types(given.key_type, wanted.key_type, f"{where}, in the map's keys,", inside=True)
        _check_types(
            given.item_type, wanted.item_type, f"{where}, in the map's items,", inside=True
        )
        return True
    if _is_list(given) and _is_list(wanted):
        _check_types(given.value_type, wanted.value_type, f"{where}, in the list,", inside=True)
        return True
    return False


def _is_list(kind: pa.DataType) -> bool:
    return hasattr(kind, "value_field") and not types.is_map(kind)


def _check_structs(given: pa.DataType, wanted: pa.DataType, where: str) -> None:
    fields = [given.field(i) for i in range(given.num_fields)]
    counts = Counter(field.name for field in fields)
    known = [wanted.field(i) for i in range(wanted.num_fields)]
    unknown = counts.keys() - {field.name for field in known}
    for name, count in counts.items():
        if name in unknown or count > 1:
            how = "unknown" if name in unknown else "twice"
            raise SchemaMismatch(f"{where} of type {wanted} is given the field {name!r}, {how}")
    inner = {field.name: field.type for field in fields}
    for field in known:
        if field.name in inner:
            _check_types(
                inner[field.name], field.type, f"{where}, field {field.name!r},", inside=True
            )
        elif not field.nullable:
            raise SchemaMismatch(f"{where} lacks the field {field.name!r}: pass it")


def _cast(column: Any, field: pa.Field, base: int) -> Any:
    """The column in the field's type; raises for the first value that would change."""
    if not len(column):
        return pa.nulls(0, field.type)
    try:
        column = unwound(column)
    except pa.ArrowException as error:
        raise SchemaMismatch(
            f"column {field.name!r}, given as {column.type}, is not valid: {error}; make it anew, "
            f"or cast it to {field.type}"
        ) from error
    try:
        return _exact(column, field.type)
    except pa.ArrowException:
        # Of a slice Arrow casts also what is nested outside of it; a copy has nothing outside.
        column = column.take(int64s(np.arange(len(column))))
    try:
        return _exact(column, field.type)
    except pa.ArrowException as error:
        row = _first_misfit(column, field.type)
        raise SchemaMismatch(
            f"column {field.name!r} is of type {field.type}, which does not hold "
            f"{_shown(column[row])} in row {base + row} without loss: {error}"
        ) from error


def _shown(scalar: pa.Scalar) -> str:
    try:
        return str(scalar)
    except (OverflowError, ValueError):  # Arrow's times reach further than Python's
        return f"{scalar.value} {scalar.type}"


def _exact(column: Any, kind: pa.DataType) -> Any:
    if types.is_integer(column.type) and types.is_decimal(kind):
        # Arrow wants room for the integers' whole range, whatever the values are.
        column = column.cast(pa.decimal256(20 + kind.scale, kind.scale))
    cast = column.cast(kind, safe=True)
    # Arrow's safe casts between floats round without a word.
    if types.is_float32(kind) and types.is_float64(column.type):
        same = pc.or_kleene(pc.equal(cast.cast(column.type), column), pc.is_nan(column))
        if pc.all(same, min_count=0).as_py() is False:
            raise pa.ArrowInvalid("it would be rounded; cast it to float32 to accept that")
    return cast


def _first_misfit(column: Any, kind: pa.DataType) -> int:
    """The first row whose value does not survive the cast; found by halving."""
    start, end = 0, len(column)
    while end - start > 1:
        middle = (start + end) // 2
        try:
            _exact(column.take(int64s(np.arange(start, middle))), kind)
            start = middle
        except pa.ArrowException:
            end = middle
    return start


def _validate(column: Any, field: pa.Field) -> None:
    """Raises if text is not UTF-8 or nested offsets are wrong: foreign memory may hold anything."""
    if types.is_string(field.type) or types.is_nested(field.type):
        try:
            column.validate(full=True)
        except pa.ArrowException as error:
            raise SchemaMismatch(f"column {field.name!r} is not valid: {error}") from error
