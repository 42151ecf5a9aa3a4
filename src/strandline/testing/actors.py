"""Who lives in a simulated database: writers, readers, and those who look after it.

Every actor checks what it is told against the reference model, at once. What it has to remember
over a crash is kept in the actor; what a process knows dies with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Protocol, cast

from strandline.database import Database
from strandline.errors import (
    AsOfTooOld,
    ClockSkew,
    Fenced,
    LocationError,
    TransactionConflict,
    UnknownTable,
)
from strandline.table import Table
from strandline.testing.jobs import COLUMNS, KEYS, Job, Jobs, arrow_of, rows_of
from strandline.testing.reference import Copied, DatabaseModel, Operation, Put, Row, Test
from strandline.testing.simulation import World
from strandline.times import Commit, Micros

__all__ = [
    "Crowd",
    "Ddl",
    "JobWriter",
    "Keeper",
    "Member",
    "Play",
    "Reader",
    "Truncator",
    "between",
    "close",
    "opened",
]


class Play(Protocol):
    """What actors need of the history that they are in."""

    reference: DatabaseModel
    kept: Sequence[str]
    """The tables that are there from the beginning to the end."""

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


def table_id_of(table: Table) -> str:
    """What the model knows the table by."""
    return table._version.table  # noqa: SLF001  users go by names


def opened(play: Play, world: World, *, read_only: bool = False) -> Database:
    """A handle of the process's own, however often it has to try."""
    while True:
        try:
            return play.open(world, read_only=read_only)
        except LocationError:
            world.env.sleep(0.1)


def close(db: Database) -> None:
    """Ends the handle; a session that could not be ended is left as after a crash."""
    try:
        db.close()
    except LocationError:
        return


class JobWriter:
    """Appends, upserts, deletes, updates and overwrites, some of it with tokens."""

    def __init__(
        self, play: Play, name: str, random: Random, *, jobs: int, shared: bool = False
    ) -> None:
        self._play = play
        self._random = random
        self._left = jobs
        # Through a shared handle nobody could tell whose record one is that SQL wrote.
        self._jobs = Jobs(name, random, sql=not shared)
        self._job: Job | None = None

    def live(self, world: World) -> None:
        """Works through the jobs on a handle of its own."""
        close(self.work(world, opened(self._play, world)))

    def work(self, world: World, db: Database) -> Database:
        """Works through the jobs; the handle that it had in the end."""
        while self._job is not None or (self._left and not self._play.closing):
            if self._job is None:
                self._job = self._jobs.next()
                self._left -= 1
            try:
                self._do(db, self._job)
            except Fenced:
                # Nobody ends sessions here; but a session whose first record was truncated past
                # while its outcome was unknown goes for one that was ended.
                db = opened(self._play, world)
            except ClockSkew:
                pass  # until an operator has seen to it
            if self._random.random() < 0.02:
                world.process.clock_offset = self._random.choice([-60, 2, 200]) * 1_000_000
            world.env.sleep(self._random.random() * 0.05)
        return db

    def _do(self, db: Database, job: Job) -> None:
        """Asks once. The job is done with when its outcome is final, or will never be known."""
        reference = self._play.reference
        try:
            table = db[job.table]
        except LocationError:
            return
        except UnknownTable:
            self._job = None  # dropped, or not made yet
            return
        reference.begin(job.name, table_id_of(table), self._bound(job.operation))
        if job.token is None:
            self._job = None  # should the process die now, nobody asks again
            reference.unknown(job.name)
        try:
            commit = self._asked(db, table, job)
        except UnknownTable:
            assert job.table == "ddl-a", "nobody drops the other tables"
            self._refused(job)
            return
        except (TransactionConflict, Fenced, ClockSkew):
            self._refused(job)
            raise
        except LocationError as error:
            if not error.may_have_happened:
                self._refused(job)
            return
        self._job = None
        self._play.latest()
        reference.acknowledged(job.name, commit.micros)

    def _asked(self, db: Database, table: Table, job: Job) -> Commit:
        if not job.sql:
            more = {"metadata": {"op": job.name}, "token": job.token}
            return cast("Commit", job.call(db, table, more))
        # SQL has no room for metadata, and the record has to say which job it is of.
        txns = db._handle.store.txns  # noqa: SLF001  below what users hold
        commit = txns.commit
        named = {"metadata": {"op": job.name}}
        txns.commit = lambda **more: commit(  # type: ignore[method-assign]  # for this one call
            **{**more, **named}
        )
        try:
            return cast("Commit", job.call(db, table, {}))
        finally:
            del txns.commit  # the class's own is back

    def _bound(self, operation: Operation) -> Operation:
        """With the id of the table that it copies from, which the model knows it by."""
        if not isinstance(operation, Copied):
            return operation
        source = self._play.table_id(operation.source)
        assert source is not None
        return replace(operation, source=source)

    def _refused(self, job: Job) -> None:
        # With a token this try says nothing of the tries before it.
        if job.token is None:
            self._play.latest()
            self._play.reference.refused(job.name)


class Reader:
    """Reads now and as of any time, everything, ranges, keys; compares each answer."""

    def __init__(self, play: Play, random: Random, *, reads: int) -> None:
        self._play = play
        self._random = random
        self._left = reads
        self.compared = 0

    def live(self, world: World) -> None:
        """Reads on a handle of its own, which may be for reading only."""
        db = opened(self._play, world, read_only=self._random.random() < 0.5)
        self.work(world, db)
        close(db)

    def work(self, world: World, db: Database) -> None:
        """Reads until all reads are done."""
        while self._left and not self._play.closing:
            self._left -= 1
            try:
                self._read(db)
            except LocationError:
                continue
            world.env.sleep(self._random.random() * 0.05)

    def _read(self, db: Database) -> None:
        play, random = self._play, self._random
        if random.random() < 0.1:
            self._read_together(db)
            return
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
            # The latest is given up only while it is read, its parts deleted long after.
            time = begun if as_of is None else as_of
            if play.since(table_id) <= time:
                play.fail(f"{name} at {time} is refused, its since is {play.since(table_id)}")
            return
        except UnknownTable as error:
            # As of a time before the table was there.
            if as_of is None or play.table_id(name, as_of) is not None:
                play.fail(f"{name} at {as_of}: {error}")
            return
        times = between(play, begun) if as_of is None else [as_of]
        found = play.reference.check(table_id, rows, times, asked=asked)
        assert found is not None
        self.compared += 1

    def _read_together(self, db: Database) -> None:
        """Both tables in one statement are of one moment."""
        begun = self._play.latest()
        columns = ", ".join(COLUMNS.names)
        both = " union all ".join(
            f"select {columns}, '{name}' as name from {name}"  # noqa: S608  of our own names
            for name in ("events", "items")
        )
        try:
            found = db.sql(both).fetchall()
        except AsOfTooOld:
            names = [self._play.table_id(name) for name in ("events", "items")]
            if all(self._play.since(str(table)) <= begun for table in names):
                self._play.fail(f"what was the latest at {begun} or later is refused")
            return
        times = between(self._play, begun)
        tables: dict[str, list[Row]] = {}
        for name in ("events", "items"):
            table = self._play.table_id(name)
            assert table is not None
            tables[table] = [tuple(row[:-1]) for row in found if row[-1] == name]
        self._play.reference.check_together(tables, times)
        self.compared += 1

    def _ask(self, table: Table) -> tuple[list[Row], Test]:
        random = self._random
        key, other = sorted((random.randrange(KEYS), random.randrange(KEYS)))
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


def between(play: Play, begun: int) -> list[int]:
    """The times that a read of the latest may be of, when `begun` was the latest at its begin."""
    ended = play.latest()
    return [begun, *(time for time in play.times() if begun < time <= ended)]


def _in_order(rows: list[Row]) -> list[Row]:
    keys = [row[0] for row in rows]
    assert keys == sorted(keys), "rows come sorted by key"
    return rows


class Member(Protocol):
    """Somebody who can work on a handle that others use, too."""

    def work(self, world: World, db: Database) -> object:
        """Works until all is done."""


class Crowd:
    """Several of them on threads of one process, which share its handle."""

    def __init__(self, play: Play, members: Sequence[Member]) -> None:
        self._play = play
        self._members = members

    def live(self, world: World) -> None:
        """Until all are done; all die together, and go on together in the next process."""
        db = opened(self._play, world)
        at_work = len(self._members)

        def works(member: Member) -> Callable[[], None]:
            def work() -> None:
                nonlocal at_work
                member.work(world, db)
                at_work -= 1

            return work

        for number, member in enumerate(self._members):
            world.env.start_worker(f"thread{number}", works(member)).wake()
        world.env.wait_until(lambda: at_work == 0)
        close(db)


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
                table = self._play.table_id(self._random.choice(self._play.kept))
                assert table is not None
                self._work(db, table, self._random)
            except Fenced:
                db = None
            except LocationError:
                pass
            world.env.sleep(self._random.random() * self._pause_seconds)


class Ddl:
    """Creates, renames, drops and creates again, and looks which tables there are and were."""

    def __init__(
        self, play: Play, random: Random, *, turns: int, properties: dict[str, Any]
    ) -> None:
        self._play = play
        self._random = random
        self._left = turns
        self._properties = properties
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
            except (ClockSkew, LocationError):
                pass
            world.env.sleep(self._random.random() * 0.1)

    def _change(self, db: Database) -> None:
        """One change. What is there is asked outside: earlier ones may have gone either way."""
        play, random = self._play, self._random
        name, other = random.sample(["ddl-a", "ddl-b"], 2)
        there, taken = play.table_id(name), play.table_id(other)
        if there is None:
            kind = random.choice(["rows", "keyed"])
            db.create_table(name, COLUMNS, row_keys="k", kind=kind, properties=self._properties)
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
            commit = db[name].append(arrow_of(rows), metadata={"op": op})
        except (ClockSkew, LocationError) as error:
            self._play.latest()
            unknown = isinstance(error, LocationError) and error.may_have_happened
            (reference.unknown if unknown else reference.refused)(op)
            raise
        self._play.latest()
        reference.acknowledged(op, commit.micros)
        begun = self._play.latest()
        found = rows_of(db[name].scan().to_arrow())
        reference.check(table, found, between(self._play, begun))

    def _check(self, name: str, happened: bool, what: str) -> None:  # noqa: FBT001  the claim
        if not happened:
            self._play.fail(f"{name} was reported to be {what}, and is not")

    def _look(self, db: Database) -> None:
        """The names of some time are those that the tables had then."""
        times = self._play.times()
        if not times:
            return
        time = self._random.choice(times)
        before = self._names(time)  # a vacuum may forget old ones meanwhile
        names = set(db.as_of(Micros(time)).tables())
        if names not in (before, expected := self._names(time)):
            self._play.fail(f"the tables at {time} are {names}, and should be {expected}")

    def _names(self, time: int) -> set[str]:
        known = {"ddl-a", "ddl-b", *self._play.kept}
        return {name for name in known if self._play.table_id(name, time) is not None}


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
