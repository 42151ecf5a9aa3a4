"""Chooses, from rows of a part, how each of its columns is stored.

How fast a part is written and read is decided by this: a dictionary that does not pay is built,
stored and decoded for nothing, and so is compression of what hardly compresses; sorted numbers
take little room as differences, without any compression. What suits a column is found out by
storing a row group's worth of rows in each way. Only encodings that Spark's and DuckDB's readers
know are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

__all__ = ["Encoding", "choose_encoding"]

_SAMPLE_ROWS = 8_192
_TRIAL_ROWS_MIN = 8_192
"""Of fewer rows a trial costs more than it can save: twice the time for a tenth of the bytes, and
so few rows are soon merged with others."""

_SAMPLE_SHARE = 8
"""A trial stores its rows three times, so that is no more than such a share of what is written."""

_ZSTD_PRICE = 1.08
"""Compression has to save this much to be worth its time."""

_STATISTICS_BYTES_MAX = 256
"""Texts longer than this would make footers large: no minimum and maximum per row group."""

_DELTAS = {
    "INT32": "DELTA_BINARY_PACKED",
    "INT64": "DELTA_BINARY_PACKED",
    "BYTE_ARRAY": "DELTA_LENGTH_BYTE_ARRAY",
}
"""Per physical type, the encoding that stores differences: of numbers, or of lengths."""


@dataclass(frozen=True)
class Encoding:
    """Arguments for `pyarrow.parquet.ParquetWriter`; columns are named by their paths."""

    dictionary: list[str] | bool = False
    encodings: Mapping[str, str] = field(default_factory=dict)
    compression: Mapping[str, str] | str = "zstd"
    statistics: list[str] | bool = True

    def writer(self, sink: Any, schema: pa.Schema) -> pq.ParquetWriter:
        """A writer of a part; every page has its checksum."""
        return pq.ParquetWriter(
            sink,
            schema,
            use_dictionary=self.dictionary,
            column_encoding=dict(self.encodings) or None,
            compression=self.compression,
            write_statistics=self.statistics,
            write_page_checksum=True,
            # Of up to 18 digits they are as fast as numbers then: as bytes, each is swapped and
            # widened by itself.
            store_decimal_as_integer=True,
        )


class _Stored(NamedTuple):
    """What one way of storing makes of a column: bytes with and without compression."""

    compressed: int
    raw: int
    physical: str


class _Way(NamedTuple):
    """A way of storing a column, and its price: bytes, and time as if it were bytes."""

    price: float
    encoding: str
    codec: str


def choose_encoding(table: pa.Table) -> Encoding:
    """The encoding for a part of rows like those of `table`."""
    if table.num_rows < _TRIAL_ROWS_MIN:
        return Encoding(statistics=_statistics(table))
    sample = _sample(table)
    statistics = _statistics(sample)
    plain = _stored(sample, Encoding())
    coded = _stored(sample, Encoding(dictionary=True))
    deltas = {path: _DELTAS[c.physical] for path, c in plain.items() if c.physical in _DELTAS}
    changes = _stored(sample, Encoding(encodings=deltas)) if deltas else {}
    chosen = {path: min(_ways(plain[path], coded[path], changes.get(path))) for path in plain}
    return Encoding(
        [path for path, way in chosen.items() if way.encoding == "dictionary"] or False,
        {path: deltas[path] for path, way in chosen.items() if way.encoding == "delta"},
        {path: way.codec for path, way in chosen.items()},
        statistics,
    )


def _ways(plain: _Stored, coded: _Stored, changes: _Stored | None) -> Iterator[_Way]:
    stored = [("plain", plain), ("dictionary", coded)]
    if changes is not None and changes.raw != plain.raw:  # the same: it does not apply
        stored.append(("delta", changes))
    for encoding, size in stored:
        yield _Way(size.raw, encoding, "none")
        yield _Way(size.compressed * _ZSTD_PRICE, encoding, "zstd")


def _sample(table: pa.Table) -> pa.Table:
    """Rows from several places, because neighbours in a sorted table are alike: a row group's
    worth, but no more than a share of all.
    """
    pieces = 4
    rows = min(_SAMPLE_ROWS, table.num_rows // _SAMPLE_SHARE) // pieces
    step = (table.num_rows - rows) // (pieces - 1)
    return pa.concat_tables([table.slice(i * step, rows) for i in range(pieces)])


def _stored(sample: pa.Table, encoding: Encoding) -> dict[str, _Stored]:
    """What becomes of each column."""
    sink = pa.BufferOutputStream()
    with encoding.writer(sink, sample.schema) as writer:
        writer.write_table(sample, row_group_size=_SAMPLE_ROWS)
    metadata = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    group = metadata.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    return {
        c.path_in_schema: _Stored(
            c.total_compressed_size, c.total_uncompressed_size, c.physical_type
        )
        for c in columns
    }


def _statistics(sample: pa.Table) -> list[str] | bool:
    """The columns, by path, that have statistics per row group; True: all."""
    long = {
        f.name
        for f, column in zip(sample.schema, sample.columns, strict=True)
        if (types.is_string(f.type) or types.is_binary(f.type))
        and column.nbytes > _STATISTICS_BYTES_MAX * max(len(column), 1)
    }
    if not long:
        return True
    return [name for name in sample.schema.names if name not in long]
