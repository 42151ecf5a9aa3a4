"""What users hand over as updates, made rows with `__time`, and `__diff` where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import UsageError
from strandline.parts.rows.conform import conform, to_arrow
from strandline.parts.rows.merge import constant
from strandline.parts.schema import DIFF, TIME, TableSchema
from strandline.times import TIME_MAX, whole

__all__ = ["Updates", "check_bound", "check_time", "updates_from"]


@dataclass(frozen=True, slots=True)
class Updates:
    """Updates in any order."""

    arrow: pa.Schema
    """The columns of the shard, `__time`, and `__diff` if the data had one."""
    batches: Iterator[pa.RecordBatch]
    table: pa.Table | None
    """All of them, where they are in memory anyway."""

    def at_or_after(self, time: int) -> Updates:
        """Without those at earlier times."""

        def later() -> Iterator[pa.RecordBatch]:
            for batch in self.batches:
                kept = batch.filter(pc.greater_equal(batch.column(TIME), time))
                if kept.num_rows:
                    yield kept

        return Updates(self.arrow, later(), None)


def updates_from(data: Any, schema: TableSchema, time: int | None) -> Updates:
    """Data in any form that `to_arrow` takes. `time`: that of all rows, which then have none.

    Wherever the updates are read, each is at a time that there can be, or that is a UsageError.

    Updates whose diff is 0 are left out: they say nothing. Raises `SchemaMismatch`, `UsageError`.
    """
    arrow = schema.stored(time=True, diff=True)
    given = arrow.empty_table() if data is None else to_arrow(data, replace(schema, arrow=arrow))
    names = set(given.schema.names)
    if time is not None:
        time = check_time(time, "time")
    nothing = isinstance(given, pa.Table) and not given.num_rows and given.schema == arrow
    if not names or nothing:
        return Updates(arrow, iter(()), arrow.empty_table())
    if time is not None and TIME in names:
        raise UsageError(f"the updates have a column {TIME}, and time={time} is given as well")
    if time is None and TIME not in names:
        raise UsageError(
            f"the updates have no column {TIME}: add it, or pass time=, the time of all of them"
        )
    stored = schema.stored(time=time is None, diff=DIFF in names)
    rows = conform(given, replace(schema, arrow=stored))
    arrow = schema.stored(time=True, diff=DIFF in names)
    if isinstance(rows, pa.Table):
        table = pa.Table.from_batches(_finished(rows.to_batches(), arrow, time), arrow)
        return Updates(arrow, iter(table.to_batches()), table)
    return Updates(arrow, _finished(rows, arrow, time), None)


def _finished(batches: Any, arrow: pa.Schema, time: int | None) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        columns = [
            constant(time or 0, batch.num_rows)
            if name == TIME and time is not None
            else batch.column(name)
            for name in arrow.names
        ]
        whole = pa.RecordBatch.from_arrays(columns, schema=arrow)
        if time is None:
            _check_times(whole)
        if DIFF in arrow.names:
            counts = whole.column(DIFF)
            whole = whole.filter(pc.not_equal(counts, 0))
        if whole.num_rows:
            yield whole


def _check_times(updates: pa.RecordBatch) -> None:
    limits = pc.min_max(updates.column(TIME))
    for time in (limits["min"].as_py(), limits["max"].as_py()):
        if time is not None and not 0 <= time <= TIME_MAX:
            raise UsageError(f"there is an update at {time}: times are from 0 to 2**63 - 2")


def check_time(value: Any, what: str) -> int:
    """The time that a value is: of an update, a since, or an `as_of`. UsageError if it is none."""
    return _check_whole(value, what, TIME_MAX, "2**63 - 2")


def check_bound(value: Any, what: str) -> int:
    """What a value bounds times by, as an upper, which is beyond all of them. UsageError."""
    return _check_whole(value, what, TIME_MAX + 1, "2**63 - 1")


def _check_whole(value: Any, what: str, most: int, most_said: str) -> int:
    number = whole(value)
    if number is None or not 0 <= number <= most:
        raise UsageError(f"{what}={value!r}: pass a time, a whole number from 0 to {most_said}")
    return number
