"""The reference model: what a database has to show, as plain dicts of updates.

A `DatabaseModel` is told of every write before it is made, and of its outcome: acknowledged (it
happened, at a time), refused (it did not and never will), or unknown. Where somebody watches the
log, `committed` says what really happened, and the outcomes are held against it; an unknown
outcome may go either way, but once a read or the log has shown which, it stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = [
    "Computed",
    "Copied",
    "DatabaseModel",
    "Deleted",
    "Mismatch",
    "Operation",
    "Overwrite",
    "Put",
    "Row",
    "TableModel",
    "Updated",
]

Row = tuple[Any, ...]
"""The values of all columns in the table's order; the keys come first."""

Test = Callable[[Row], bool]


class Mismatch(AssertionError):
    """The database says something else than the model."""


@dataclass(frozen=True)
class Put:
    """Append or upsert: in a keyed table the last row of a key counts."""

    rows: tuple[Row, ...]

    def gone(self, row: Row) -> bool:
        """Whether a row that was there goes."""
        return False


@dataclass(frozen=True)
class Deleted:
    """Delete by keys (prefixes of the keys) and by a condition."""

    keys: tuple[Row, ...] = ()
    where: Test | None = None
    rows: tuple[Row, ...] = ()

    def gone(self, row: Row) -> bool:
        """Whether a row that was there goes."""
        if self.where is not None and self.where(row):
            return True
        return any(row[: len(key)] == key for key in self.keys)


@dataclass(frozen=True)
class Overwrite:
    """New rows in place of all rows, or of those for which the condition holds."""

    rows: tuple[Row, ...]
    where: Test | None = None

    def gone(self, row: Row) -> bool:
        """Whether a row that was there goes."""
        return self.where is None or self.where(row)


@dataclass(frozen=True)
class Updated:
    """Rows changed in place."""

    where: Test
    change: Callable[[Row], Row]
    rows: tuple[Row, ...] = ()

    def gone(self, row: Row) -> bool:
        """Whether a row that was there goes."""
        return self.where(row)


@dataclass(frozen=True)
class Copied:
    """The rows of another table for which the condition holds, added as they are there."""

    source: str
    where: Test
    rows: tuple[Row, ...] = ()

    def gone(self, row: Row) -> bool:
        """Whether a row that was there goes."""
        return False


@dataclass(frozen=True)
class Computed:
    """Rows that are made of what the tables show at the time of the commit, added or upserted."""

    make: Callable[[Callable[[str], Counter[Row]]], tuple[Row, ...]]
    """Is given what reads a table, by its id."""
    rows: tuple[Row, ...] = ()

    def gone(self, row: Row) -> bool:
        """Whether a row that was there goes."""
        return False


Operation = Put | Deleted | Overwrite | Updated | Copied | Computed


@dataclass
class TableModel:
    """One table: its updates by time, added in order of time."""

    kind: Literal["rows", "keyed"]
    keys: int
    """Columns of the full key."""
    updates: list[tuple[int, Counter[Row]]] = field(default_factory=list)

    def read(self, as_of: int | None = None) -> Counter[Row]:
        """The rows at `as_of` (None: now), with how often each is there."""
        rows: Counter[Row] = Counter()
        for time, change in self.updates:
            if as_of is None or time <= as_of:
                rows.update(change)
        return +rows

    def effect(self, operation: Operation, before: Counter[Row]) -> Counter[Row]:
        """The difference that the operation makes to these rows."""
        after: Counter[Row] = Counter(
            {row: count for row, count in before.items() if not operation.gone(row)}
        )
        rows = list(operation.rows)
        if isinstance(operation, Updated):
            changed = [row for row in before.elements() if operation.where(row)]
            rows += [operation.change(row) for row in changed]
        if self.kind == "rows":
            after.update(rows)
        else:
            last = {row[: self.keys]: row for row in rows}
            after = Counter({row: n for row, n in after.items() if row[: self.keys] not in last})
            after.update(last.values())
        change = Counter(after)
        change.subtract(before)
        return Counter({row: diff for row, diff in change.items() if diff})

    def write(self, time: int, operation: Operation) -> None:
        """The operation happened at `time`, after everything that is here."""
        if self.updates and time < self.updates[-1][0]:
            raise Mismatch(f"a commit at {time} comes after one at {self.updates[-1][0]}")
        self.updates.append((time, self.effect(operation, self.read())))

    def times(self) -> list[int]:
        """The times at which something happened."""
        return sorted({time for time, _ in self.updates})

    def by_keys(self, change: Counter[Row]) -> Counter[Row]:
        """Of a keyed table: the rows that it writes (+1), and the keys that it deletes (-1)."""
        written = Counter({row: 1 for row, diff in change.items() if diff > 0})
        keys = {row[: self.keys] for row in written}
        gone = {row[: self.keys] for row, diff in change.items() if diff < 0} - keys
        written.update(dict.fromkeys(gone, -1))
        return written

    def changes(self, after: int, through: int) -> dict[int, Counter[Row]]:
        """What happened at times in (`after`, `through`]: per time the rows' net differences."""
        found: dict[int, Counter[Row]] = {}
        for time, change in self.updates:
            if after < time <= through:
                found.setdefault(time, Counter()).update(change)
        net = {
            time: Counter({row: diff for row, diff in change.items() if diff})
            for time, change in found.items()
        }
        return {time: change for time, change in net.items() if change}


@dataclass
class _Write:
    parts: Sequence[tuple[str, Operation]]
    """Table and operation, one after the other, all at one time."""
    outcome: Literal["begun", "acknowledged", "refused", "unknown"] = "begun"
    time: int | None = None


class DatabaseModel:
    """All tables of a database, and every write that was ever asked for.

    `observed`: `committed` is called for every commit that is in the log, in order. Otherwise
    what is acknowledged is what happened.
    """

    def __init__(self, *, observed: bool) -> None:
        self.tables: dict[str, TableModel] = {}
        self.writes: dict[str, _Write] = {}
        self._observed = observed

    def create(self, table: str, kind: Literal["rows", "keyed"], keys: int) -> None:
        """A new table; `table` is what later calls name it by."""
        self.tables[table] = TableModel(kind, keys)

    def begin(self, name: str, table: str, operation: Operation) -> None:
        """A write is about to be asked for; asking again for the same one changes nothing."""
        self.begin_together(name, [(table, operation)])

    def begin_together(self, name: str, parts: Sequence[tuple[str, Operation]]) -> None:
        """The same for several operations at one time, each of which sees those before it."""
        self.writes.setdefault(name, _Write(parts))

    def committed(self, name: str, time: int) -> None:
        """The log has it."""
        write = self.writes.get(name)
        if write is None:
            raise Mismatch(f"{name} is in the log, and nobody asked for it")
        if write.time is not None:
            raise Mismatch(f"{name} is in the log twice, at {write.time} and at {time}")
        if write.outcome == "refused":
            raise Mismatch(f"{name} was refused, and is in the log all the same")
        write.time = time
        for table, operation in write.parts:
            self.tables[table].write(time, self._resolved(operation, time))

    def acknowledged(self, name: str, time: int) -> None:
        """The caller was told that it happened, at `time`."""
        write = self.writes[name]
        if write.outcome == "refused":
            raise Mismatch(f"{name} was refused, and is acknowledged now")
        if not self._observed:
            self.committed(name, time)
        elif write.time is None:
            self._check_nothing(name, write, time)
        elif write.time != time:
            raise Mismatch(f"{name} is acknowledged at {time}, and in the log at {write.time}")
        write.outcome = "acknowledged"

    def refused(self, name: str) -> None:
        """The caller was told that it did not happen."""
        write = self.writes[name]
        if write.outcome == "acknowledged":
            raise Mismatch(f"{name} was acknowledged, and is refused now")
        if write.time is not None:
            raise Mismatch(f"{name} is in the log at {write.time}, and was refused")
        write.outcome = "refused"

    def unknown(self, name: str) -> None:
        """The caller was told that it may have happened, or was told nothing."""
        write = self.writes[name]
        if write.outcome == "begun":
            write.outcome = "unknown"

    def read(self, table: str, as_of: int | None = None) -> Counter[Row]:
        """What a read of the table at `as_of` has to show."""
        return self.tables[table].read(as_of)

    def check(
        self, table: str, found: Iterable[Row], times: Sequence[int], *, asked: Test | None = None
    ) -> int:
        """The earliest of `times` at which the table shows exactly `found`.

        `asked`: only rows for which it holds were asked for.
        """
        rows = Counter(found)
        nearest: tuple[int, int, Counter[Row]] | None = None
        for time in times:
            expected = self.read(table, time)
            if asked is not None:
                expected = Counter({row: n for row, n in expected.items() if asked(row)})
            if rows == expected:
                return time
            off = _differing(rows, expected)
            if nearest is None or off < nearest[0]:
                nearest = (off, time, expected)
        if nearest is None:
            raise ValueError("no time to compare with")
        _, time, expected = nearest
        missing, extra = expected - rows, rows - expected
        raise Mismatch(
            f"table {table} at {time} (or any of {len(times)} times): "
            f"missing {_few(missing)}, too many {_few(extra)}"
        )

    def check_together(self, found: Mapping[str, Iterable[Row]], times: Sequence[int]) -> int:
        """The earliest of `times` at which all of the tables show exactly what was found."""
        rows = {table: Counter(each) for table, each in found.items()}
        for time in times:
            if all(self.read(table, time) == each for table, each in rows.items()):
                return time
        for table, each in rows.items():
            self.check(table, each.elements(), times)
        raise Mismatch(f"each of {', '.join(rows)} is right at a time, but not at one time")

    def check_changes(
        self, table: str, found: Mapping[int, Mapping[Row, int]], after: int, through: int
    ) -> None:
        """`found` is all that happened at times in (`after`, `through`], by time.

        Of `rows`: by how much the number of each row changed. Of a `keyed` table: +1 of each row
        that was written, -1 of each key that was deleted; a row may be said to be written that was
        there as it was.
        """
        model = self.tables[table]
        expected = model.changes(after, through)
        for time in sorted(expected.keys() | found.keys()):
            if not after < time <= through:
                raise Mismatch(f"table {table}: a change at {time}, not in ({after}, {through}]")
            wanted, given = expected.get(time, Counter()), Counter(dict(found.get(time, {})))
            if model.kind == "keyed":
                wanted = model.by_keys(wanted)
                there = self.read(table, time)
                for row in [row for row in given if row not in wanted and there[row]]:
                    del given[row]
            if given != wanted:
                raise Mismatch(f"table {table} at {time}: {given} was told, and it is {wanted}")

    def _resolved(self, operation: Operation, time: int) -> Operation:
        """What is computed from reads, at that time: it is void if those changed after them."""
        if isinstance(operation, Computed):
            return Put(operation.make(lambda table: self.read(table, time)))
        if not isinstance(operation, Copied):
            return operation
        found = self.read(operation.source, time)
        return Put(tuple(row for row in found.elements() if operation.where(row)))

    def _check_nothing(self, name: str, write: _Write, time: int) -> None:
        """Acknowledged without a record: then there was nothing to change at that time."""
        for table, operation in write.parts:
            model = self.tables[table]
            change = model.effect(self._resolved(operation, time), model.read(time))
            if change:
                raise Mismatch(f"{name} is acknowledged at {time}, and not in the log: {change}")


def _differing(one: Counter[Row], other: Counter[Row]) -> int:
    return (one - other).total() + (other - one).total()


def _few(rows: Counter[Row]) -> str:
    shown = ", ".join(f"{row} x {count}" for row, count in list(rows.items())[:5])
    return f"{rows.total()} rows ({shown})" if rows else "none"
