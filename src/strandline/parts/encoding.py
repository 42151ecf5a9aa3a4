"""Chooses, from the first rows of a part, how each of its columns is stored.

Two things decide how fast a part is written and read: a dictionary that does not pay is built,
stored and decoded for nothing, and so is compression of what does not compress. Both are found out
by storing a row group's worth of rows with and without.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

__all__ = ["Encoding", "choose_encoding"]

CODEC = "zstd"
_SAMPLE_ROWS = 8_192
_TRIAL_ROWS_MIN = 512
"""Of fewer rows a trial costs more than it can save."""
_SAVING_MIN = 0.08
"""Compression that saves less than this share costs more time than it saves bytes."""
_STATISTICS_BYTES_MAX = 256
"""Texts longer than this would make footers large: no minimum and maximum per row group."""


@dataclass(frozen=True)
class Encoding:
    """Arguments for `pyarrow.parquet.ParquetWriter`."""

    dictionary: list[str] | bool = False
    compression: dict[str, str] | str = CODEC
    statistics: list[str] | bool = field(default=True)

    def writer(self, sink: Any, schema: pa.Schema) -> pq.ParquetWriter:
        """A writer of a part; every page has its checksum."""
        return pq.ParquetWriter(
            sink,
            schema,
            use_dictionary=self.dictionary,
            compression=self.compression,
            write_statistics=self.statistics,
            write_page_checksum=True,
        )


def choose_encoding(table: pa.Table) -> Encoding:
    """The encoding for a part that begins with the rows of `table`."""
    sample = _sample(table)
    statistics = _statistics(sample)
    if sample.num_rows < _TRIAL_ROWS_MIN:
        return Encoding(statistics=statistics)
    plain = _sizes(sample, Encoding())
    coded = _sizes(sample, Encoding(dictionary=True))
    dictionary = [path for path in plain if coded[path][0] < plain[path][0]]
    compression = {}
    for path in plain:
        stored, raw = coded[path] if path in dictionary else plain[path]
        compression[path] = CODEC if stored < raw * (1 - _SAVING_MIN) else "none"
    return Encoding(dictionary or False, compression, statistics)


def _sample(table: pa.Table) -> pa.Table:
    """A row group's worth of rows from several places: neighbours in a sorted table are alike."""
    pieces = 4
    rows = _SAMPLE_ROWS // pieces
    if table.num_rows <= _SAMPLE_ROWS:
        return table
    step = (table.num_rows - rows) // (pieces - 1)
    return pa.concat_tables([table.slice(i * step, rows) for i in range(pieces)])


def _sizes(sample: pa.Table, encoding: Encoding) -> dict[str, tuple[int, int]]:
    """Bytes that each leaf column takes, compressed and not."""
    sink = pa.BufferOutputStream()
    with encoding.writer(sink, sample.schema) as writer:
        writer.write_table(sample, row_group_size=_SAMPLE_ROWS)
    metadata = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    group = metadata.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    return {c.path_in_schema: (c.total_compressed_size, c.total_uncompressed_size) for c in columns}


def _statistics(sample: pa.Table) -> list[str] | bool:
    """The columns, by path, that have statistics per row group; True: all."""
    long = [
        f.name
        for f, column in zip(sample.schema, sample.columns, strict=True)
        if (types.is_string(f.type) or types.is_binary(f.type))
        and column.nbytes > _STATISTICS_BYTES_MAX * max(len(column), 1)
    ]
    if not long:
        return True
    return [name for name in sample.schema.names if name not in long]
