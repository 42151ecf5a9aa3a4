"""DataFrames for a table: read from files, held against the table's columns, parted by key."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it
from pyspark.sql import types as T  # noqa: N812  the same
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from strandline.errors import SchemaMismatch, UsageError
from strandline.parts.keys import KeyCodec
from strandline.parts.rows.conform import conform
from strandline.parts.schema import TableSchema

__all__ = [
    "arrow_for_spark",
    "fitted",
    "frame_of",
    "quoted",
    "range_number",
    "spark_schema",
    "unsigned",
]

_FORMATS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "csv"}
_FORMATS |= {".json": "json", ".jsonl": "json", ".ndjson": "json"}


def arrow_for_spark(schema: T.StructType) -> pa.Schema:
    """The Arrow schema of what Spark takes and gives as columns of `schema`."""
    return to_arrow_schema(schema, timezone="UTC")


def spark_schema(arrow: pa.Schema) -> T.StructType:
    """Spark's schema for Arrow columns."""
    fields = [pa.field(f.name, _for_spark(f.type), f.nullable) for f in arrow]
    return from_arrow_schema(pa.schema(fields))


def _for_spark(kind: pa.DataType) -> pa.DataType:
    """The nearest type that Spark knows: it has no unsigned integers."""
    wider = {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
    }
    if kind in wider:
        return wider[kind]
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    if pa.types.is_map(kind):
        return pa.map_(_for_spark(kind.key_type), _for_spark(kind.item_type))
    if pa.types.is_struct(kind):
        inner = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([pa.field(f.name, _for_spark(f.type), f.nullable) for f in inner])
    if pa.types.is_list(kind):
        inner = kind.value_field
        return pa.list_(pa.field("element", _for_spark(inner.type), inner.nullable))
    return kind


# --- from files


def frame_of(spark: SparkSession, source: Any, schema: TableSchema) -> DataFrame:
    """A DataFrame of what a user passes as source: itself, or paths of Parquet, CSV or JSON."""
    if isinstance(source, str | os.PathLike):
        source = [source]
    elif not isinstance(source, list | tuple):
        if hasattr(source, "mapInArrow"):
            return source  # type: ignore[no-any-return]  # classic, or of Spark Connect
        raise UsageError(
            f"{type(source).__name__} is no source of an import: pass a DataFrame, or paths of "
            "Parquet, CSV or JSON"
        )
    paths = [os.fspath(path) for path in source]
    formats = {_format(path) for path in paths}
    if len(formats) != 1:
        raise UsageError(
            f"cannot tell one format of {paths[:3]}: pass files of one of {', '.join(_FORMATS)}, "
            "or a DataFrame"
        )
    kind = formats.pop()
    if kind == "parquet":
        return spark.read.parquet(*paths)
    return _csv(spark, paths, schema) if kind == "csv" else _json(spark, paths, schema)


def _format(path: str) -> str | None:
    """The format by a path's ending; of a directory, by the endings in it."""
    stem = path.rstrip("/*").removesuffix(".gz").removesuffix(".zst")
    found = _FORMATS.get(os.path.splitext(stem)[1].lower())  # noqa: PTH122  it may be a URL
    if found is None and os.path.isdir(path):  # noqa: PTH112  the same
        inside = {_format(name) for name in os.listdir(path) if name[0] not in "._"}  # noqa: PTH208  the same
        found = inside.pop() if len(inside) == 1 else None
    return found


def _csv(spark: SparkSession, paths: list[str], schema: TableSchema) -> DataFrame:
    tab = all(path.removesuffix(".gz").endswith(".tsv") for path in paths)
    reader = spark.read.option("header", "true").option("sep", "\t" if tab else ",")
    names = reader.csv(paths).columns
    # Told the types, Spark parses by them, and FAILFAST makes what does not fit an error.
    typed = _typed_columns(names, schema)
    strict = reader.option("mode", "FAILFAST").option("enforceSchema", "false")
    return strict.schema(typed).csv(paths)


def _json(spark: SparkSession, paths: list[str], schema: TableSchema) -> DataFrame:
    names = spark.read.option("primitivesAsString", "true").json(paths).columns
    typed = _typed_columns(names, schema)
    return spark.read.option("mode", "FAILFAST").schema(typed).json(paths)


def _typed_columns(names: Sequence[str], schema: TableSchema) -> T.StructType:
    known = {field.name: field for field in spark_schema(schema.arrow)}
    # A column that the table has not got is refused with the others, once all names are known.
    return T.StructType(
        [T.StructField(n, known[n].dataType if n in known else T.StringType()) for n in names]
    )


# --- against the table


def fitted(frame: DataFrame, schema: TableSchema) -> DataFrame:
    """The frame's columns that the table has, in its order, names exact, strings in byte order.

    Raises `SchemaMismatch` where columns are unknown, missing, twice, or of a type that never
    fits. Whether each value fits is seen when it is read.
    """
    names = frame.columns
    doubled = sorted(name for name, count in Counter(names).items() if count > 1)
    if doubled:
        raise SchemaMismatch(f"column {doubled[0]!r} occurs twice: rename one of them")
    try:
        arrow = to_arrow_schema(frame.schema, timezone="UTC")
    except Exception as error:
        raise SchemaMismatch(f"the DataFrame has a column that Arrow lacks: {error}") from error
    conform(unsigned(arrow.empty_table(), schema.arrow), schema)
    fields = {field.name: field for field in frame.schema}
    return frame.select(
        *[_column(frame, fields[name]) for name in schema.arrow.names if name in fields]
    )


def unsigned(data: pa.Table, columns: pa.Schema) -> pa.Table:
    """The data with whole decimals as unsigned integers where `columns` have those: Spark has none.

    Raises `SchemaMismatch` for one out of range.
    """
    for number, field in enumerate(data.schema):
        at = columns.get_field_index(field.name)
        kind = field.type
        if at < 0 or columns.field(at).type != pa.uint64() or not pa.types.is_decimal(kind):
            continue
        if kind.scale == 0:
            try:
                column = data.column(number).cast(pa.uint64())
            except pa.ArrowException as error:
                raise SchemaMismatch(f"column {field.name!r} is of type uint64: {error}") from error
            data = data.set_column(number, field.name, column)
    return data


def _column(frame: DataFrame, field: T.StructField) -> Column:
    column = frame[quoted(field.name)]
    kind = field.dataType
    if isinstance(kind, T.StringType) and getattr(kind, "collation", "UTF8_BINARY") not in {
        None,
        "UTF8_BINARY",
    }:
        # Strandline's order of strings is that of their bytes.
        return F.collate(column, "UTF8_BINARY").alias(field.name)
    return column


def quoted(name: str) -> str:
    """The name as Spark's SQL takes any name."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


# --- by key


def range_number(schema: TableSchema, bounds: Sequence[bytes]) -> Column:
    """Which of the ranges between the ascending encoded row keys a row falls in, from 0.

    A decision tree of comparisons, which Spark compiles; its order is Strandline's.
    """
    codec = KeyCodec(schema)
    usable = [
        (number, key)
        for number, key in enumerate(map(codec.decode, bounds), 1)
        if _has_literals(key, codec.arrow_types)
    ]

    def tree(low: int, high: int, number: int) -> Column:
        """For a row that is known to be at or above bound `low - 1` and below bound `high`."""
        if low == high:
            return F.lit(number)
        middle = (low + high) // 2
        place, key = usable[middle]
        below = tree(low, middle, number)
        return F.when(_before(codec.keys, key), below).otherwise(tree(middle + 1, high, place))

    return tree(0, len(usable), 0)


def _has_literals(key: tuple[Any, ...], kinds: Sequence[pa.DataType]) -> bool:
    """Whether Spark's literals reach the key. Without one of its bounds a range is larger."""
    # Dates and times outside of Python's range are decoded as ints.
    return not any(
        isinstance(value, int) and pa.types.is_temporal(kind)
        for value, kind in zip(key, kinds, strict=False)
    )


def _before(names: Sequence[str], key: tuple[Any, ...]) -> Column:
    column, literal = F.col(quoted(names[0])), _literal(key[0])
    less = column < literal
    if len(key) == 1:
        return less
    return less | ((column == literal) & _before(names[1:], key[1:]))


def _literal(value: Any) -> Column:
    if isinstance(value, datetime):
        text = value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
        zoned = value.tzinfo is not None
        return F.expr(f"TIMESTAMP'{text} UTC'" if zoned else f"TIMESTAMP_NTZ'{text}'")
    if isinstance(value, date):
        return F.expr(f"DATE'{value.isoformat()}'")
    if isinstance(value, bytes):
        return F.lit(bytearray(value))
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return F.lit(Decimal(value))
    return F.lit(value)
