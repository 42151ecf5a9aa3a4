"""Who lives in a simulated database: writers, readers, and those who look after it.

Every actor checks what it is told against the reference model, at once. What it has to remember
over a crash is kept in the actor; what a process knows dies with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

import pyarrow as pa

from strandline.database import Database
from strandline.errors import (
    AsOfTooOld,
    Fenced,
    LocationError,
    TransactionConflict,
    UnknownTable,
)
from strandline.table import Table
from strandline.testing.reference import Delete, Operation, Overwrite, Put, Reference, Row, Test
from strandline.testing.simulation import World
from strandline.times import Micros

__all__ = ["COLUMNS", "Ddl", "Keeper", "Play", "Reader", "Truncator", "Writer", "rows_of"]

COLUMNS = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("s", pa.int64(), nullable=False),
        pa.field("v", pa.int64()),
        pa.field("text", pa.string()),
    ]
)
_KEYS = 24
"""Values of the row key: few, so that writers meet."""


class Play(Protocol):
    """What actors need of the history that they are in."""

    reference: Reference

    @property
    def closing(self) -> bool:
        """Whether to come to an end."""

    def open(self, world: World, *, read_only: bool = False) -> Database:
        """A handle of the process's own."""

    def table_id(self, name: str, as_of: int | None = None) -> str | None:
        """The id of the table that really has that name."""

    def latest(self) -> int:
        """The latest time that there really is."""

    def times(self) -> list[int]:
        """Times worth reading at, ascending."""

    def since(self, table: str) -> int:
        """The earliest time of the table that is really kept."""

    def fail(self, text: str) -> None:
        """Ends the history."""


def rows_of(table: pa.Table) -> list[Row]:
    """The rows as tuples."""
    columns = [table.column(name).to_pylist() for name in COLUMNS.names]
    return list(zip(*columns, strict=True))


def _arrow(rows: Sequence[Row]) -> pa.Table:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
    arrays = [pa.array(c, field.type) for c, field in zip(columns, COLUMNS, strict=True)]
    return pa.Table.from_arrays(arrays, schema=COLUMNS)


@dataclass(frozen=True)
class _Job:
    """One write, to be asked for until its outcome is settled as far as it can be."""

    name: str
    table: str
    operation: Operation
    call: Callable[[Table, dict[str, Any]], Any]
    token: tuple[str, int] | None


class Writer:
    """Appends, upserts, deletes and overwrites, some of it with tokens."""

    def __init__(self, play: Play, name: str, random: Random, *, jobs: int) -> None:
        self._play = play
        self._name = name
        self._random = random
        self._left = jobs
        self._made = 0
        self._job: _Job | None = None

    def live(self, world: World) -> None:
        """Works through the jobs."""
        db = self._opened(world)
        while self._job is not None or (self._left and not self._play.closing):
            if self._job is None:
                self._job = self._next()
                self._left -= 1
            try:
                self._do(db, self._job)
            except Fenced:
                # Nobody ends sessions here; but a session whose first record was truncated past
                # while its outcome was unknown goes for one that was ended.
                db = self._opened(world)
            world.env.sleep(self._random.random() * 0.05)
        try:
            db.close()
        except LocationError:
            return

    def _opened(self, world: World) -> Database:
        while True:
            try:
                return self._play.open(world)
            except LocationError:
                world.env.sleep(0.1)

    def _do(self, db: Database, job: _Job) -> None:
        """Asks once. The job is done with when its outcome is final, or will never be known."""
        reference = self._play.reference
        reference.begin(job.name, self._id_of(job.table), job.operation)
        if job.token is None:
            self._job = None  # should the process die now, nobody asks again
            reference.unknown(job.name)
        more: dict[str, Any] = {"metadata": {"op": job.name}, "token": job.token}
        try:
            commit = job.call(db[job.table], more)
        except (TransactionConflict, Fenced):
            self._refused(job)
            raise
        except LocationError as error:
            if not error.may_have_happened:
                self._refused(job)
            return
        self._job = None
        self._play.latest()
        reference.acknowledged(job.name, commit.micros)

    def _refused(self, job: _Job) -> None:
        # With a token this try says nothing of the tries before it.
        if job.token is None:
            self._play.latest()
            self._play.reference.refused(job.name)

    def _id_of(self, name: str) -> str:
        found = self._play.table_id(name)
        assert found is not None
        return found

    def _next(self) -> _Job:
        self._made += 1
        random = self._random
        name = f"{self._name}#{self._made}"
        table = random.choice(["events", "items"])
        token = (self._name, self._made) if random.random() < 0.4 else None
        operation, call = self._operation(table)
        return _Job(name, table, operation, call, token)

    def _operation(self, table: str) -> tuple[Operation, Callable[[Table, dict[str, Any]], Any]]:
        random = self._random
        kind = random.choices(["put", "keys", "where", "overwrite"], [12, 3, 2, 1])[0]
        if kind == "put":
            rows = self._rows(random.choice([1, 1, 1, 2, 2, 3, 3, 8, 20, 60]))
            if table == "items" and random.random() < 0.5:
                return Put(rows), lambda t, more: t.upsert(_arrow(rows), **more)
            return Put(rows), lambda t, more: t.append(_arrow(rows), **more)
        if kind == "keys":
            width = random.choice([1, 2]) if table == "items" else 1
            found = {self._row()[:width] for _ in range(random.choice([1, 1, 3]))}
            keys = tuple(sorted(found))
            return Delete(keys=keys), lambda t, more: t.delete(keys=list(keys), **more)
        bound = random.randrange(_KEYS)
        where = f"k >= {bound} and k < {bound + 3}"

        def test(row: Row) -> bool:
            return row[0] in range(bound, bound + 3)

        if kind == "where":
            return Delete(where=test), lambda t, more: t.delete(where=where, **more)
        rows = self._rows(3)
        return Overwrite(rows, test), lambda t, more: t.overwrite(_arrow(rows), where, **more)

    def _rows(self, count: int) -> tuple[Row, ...]:
        return tuple(self._row() for _ in range(count))

    def _row(self) -> Row:
        random = self._random
        value = None if random.random() < 0.1 else self._made
        return random.randrange(_KEYS), random.randrange(3), value, f"{self._name}-{self._made}"


class Reader:
    """Reads now and as of any time, everything, ranges, keys; compares each answer."""

    def __init__(self, play: Play, random: Random, *, reads: int) -> None:
        self._play = play
        self._random = random
        self._left = reads
        self.compared = 0

    def live(self, world: World) -> None:
        """Reads until all reads are done."""
        db: Database | None = None
        while self._left and not self._play.closing:
            self._left -= 1
            try:
                if db is None:
                    db = self._play.open(world, read_only=self._random.random() < 0.5)
                self._read(db)
            except LocationError:
                continue
            world.env.sleep(self._random.random() * 0.05)
        if db is not None:
            self._close(db)

    def _close(self, db: Database) -> None:
        try:
            db.close()
        except LocationError:
            return

    def _read(self, db: Database) -> None:
        play, random = self._play, self._random
        name = random.choice(["events", "items"])
        table_id = play.table_id(name)
        assert table_id is not None
        begun = play.latest()
        past = [time for time in play.times() if time >= play.since(table_id)]
        as_of = random.choice(past) if past and random.random() < 0.5 else None
        try:
            table = db[name] if as_of is None else db[name].as_of(Micros(as_of))
            rows, asked = self._ask(table)
        except AsOfTooOld:
            assert as_of is not None, "the latest time is always kept"
            if play.since(table_id) <= as_of:
                play.fail(f"{name} at {as_of} is refused, its since is {play.since(table_id)}")
            return
        except UnknownTable as error:
            # As of a time before the table was there.
            if as_of is None or play.table_id(name, as_of) is not None:
                play.fail(f"{name} at {as_of}: {error}")
            return
        ended = play.latest()
        times = [begun, *(time for time in play.times() if begun < time <= ended)]
        found = play.reference.check(
            table_id, rows, times if as_of is None else [as_of], asked=asked
        )
        assert found is not None
        self.compared += 1

    def _ask(self, table: Table) -> tuple[list[Row], Test]:
        random = self._random
        key, other = sorted((random.randrange(_KEYS), random.randrange(_KEYS)))
        way = random.choice(["all", "get", "many", "range", "where", "lookup"])
        if way == "get":
            return rows_of(table.get(key)), lambda row: row[0] == key
        if way == "many":
            return rows_of(table.get_many([key, other])), lambda row: row[0] in (key, other)
        if way == "range":
            found = table.scan(key_range=(key, other)).to_arrow()
            return _in_order(rows_of(found)), lambda row: key <= row[0] < other
        if way == "where":
            found = table.scan(where=f"v > {other}").to_arrow()
            return rows_of(found), lambda row: row[2] is not None and row[2] > other
        if way == "lookup" and table.kind == "keyed":
            row = table.get_one(key, 1)
            rows = [] if row is None else [tuple(row[name] for name in COLUMNS.names)]
            return rows, lambda row: row[:2] == (key, 1)
        return _in_order(rows_of(table.scan().to_arrow())), lambda _: True


def _in_order(rows: list[Row]) -> list[Row]:
    keys = [row[0] for row in rows]
    assert keys == sorted(keys), "rows come sorted by key"
    return rows


class Keeper:
    """Looks after the tables: applies, compacts, splits, beside everybody else who does."""

    def __init__(
        self,
        play: Play,
        random: Random,
        work: Callable[[Database, str, Random], object],
        *,
        pause_seconds: float,
    ) -> None:
        self._play = play
        self._random = random
        self._work = work
        self._pause_seconds = pause_seconds

    def live(self, world: World) -> None:
        """Works until the end."""
        db: Database | None = None
        while not self._play.closing:
            try:
                db = db or self._play.open(world)
                table = self._play.table_id(self._random.choice(["events", "items"]))
                assert table is not None
                self._work(db, table, self._random)
            except Fenced:
                db = None
            except LocationError:
                pass
            world.env.sleep(self._random.random() * self._pause_seconds)


class Ddl:
    """Creates, renames, drops and creates again, and looks which tables there are and were."""

    def __init__(self, play: Play, random: Random, *, turns: int) -> None:
        self._play = play
        self._random = random
        self._left = turns
        self._made = 0

    def live(self, world: World) -> None:
        """Works through its turns."""
        db: Database | None = None
        while self._left and not self._play.closing:
            self._left -= 1
            try:
                db = db or self._play.open(world)
                self._change(db)
                self._look(db)
            except Fenced:
                db = None
            except LocationError:
                pass
            world.env.sleep(self._random.random() * 0.1)

    def _change(self, db: Database) -> None:
        """One change. What is there is asked outside: earlier ones may have gone either way."""
        play, random = self._play, self._random
        name, other = random.sample(["ddl-a", "ddl-b"], 2)
        there, taken = play.table_id(name), play.table_id(other)
        if there is None:
            db.create_table(name, COLUMNS, row_keys="k", kind=random.choice(["rows", "keyed"]))
            self._check(name, play.table_id(name) is not None, "created")
        elif taken is None and random.random() < 0.4:
            db.rename_table(name, other)
            self._check(name, play.table_id(other) == there, "renamed")
        elif random.random() < 0.5:
            db.drop_table(name)
            self._check(name, play.table_id(name) is None, "dropped")
        else:
            self._append(db, name, there)

    def _append(self, db: Database, name: str, table: str) -> None:
        self._made += 1
        op = f"ddl#{self._made}"
        rows: tuple[Row, ...] = ((self._made, 0, self._made, op),)
        reference = self._play.reference
        reference.begin(op, table, Put(rows))
        try:
            commit = db[name].append(_arrow(rows), metadata={"op": op})
        except LocationError as error:
            self._play.latest()
            (reference.unknown if error.may_have_happened else reference.refused)(op)
            raise
        self._play.latest()
        reference.acknowledged(op, commit.micros)
        self._play.reference.check(
            table, rows_of(db[name].scan().to_arrow()), [self._play.latest()]
        )

    def _check(self, name: str, happened: bool, what: str) -> None:  # noqa: FBT001
        if not happened:
            self._play.fail(f"{name} was reported to be {what}, and is not")

    def _look(self, db: Database) -> None:
        """The names of some time are those that the tables had then."""
        times = self._play.times()
        if not times:
            return
        time = self._random.choice(times)
        names = set(db.as_of(Micros(time)).tables())
        known = {"ddl-a", "ddl-b", "events", "items"}
        expected = {name for name in known if self._play.table_id(name, time) is not None}
        if names != expected:
            self._play.fail(f"the tables at {time} are {names}, and should be {expected}")


class Truncator:
    """Cuts logs as vacuum will: below the newest rollup but one."""

    def __init__(self, play: Play, random: Random, cuts: Callable[[], dict[str, int]]) -> None:
        self._random = random
        self._play = play
        self._cuts = cuts

    def live(self, world: World) -> None:
        """Works until the end."""
        while not self._play.closing:
            for shard, seqno in self._cuts().items():
                if self._random.random() < 0.3:
                    try:
                        world.location.consensus.truncate(shard, seqno, timeout=5)
                    except LocationError:
                        continue
            world.env.sleep(self._random.random() * 0.1)
