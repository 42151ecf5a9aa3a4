"""Those who change and read several tables in one transaction, at every isolation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, get_args

from strandline.database import Database
from strandline.errors import AsOfTooOld, ClockSkew, Fenced, LocationError, TransactionConflict
from strandline.testing.actors import Play, close, opened
from strandline.testing.jobs import KEYS, arrow_of, rows_of
from strandline.testing.reference import Computed, Deleted, Operation, Put, Row, Updated
from strandline.testing.simulation import World
from strandline.times import Commit
from strandline.transaction import Isolation, Transaction

__all__ = ["Transactor"]

_COUNTER, _TALLY = 7, 8
"""Sort keys that no ordinary write uses."""

Step = Callable[[Transaction], object]
_Made = tuple[str, Operation, Step]
"""The table, what it is to the model, and what it is in a transaction."""


@dataclass(frozen=True)
class _Deal:
    """One transaction, to be asked for until its outcome is settled as far as it can be."""

    name: str
    isolation: str
    parts: Sequence[tuple[str, Operation]]
    """What each step is to the model."""
    steps: Sequence[Step]
    token: tuple[str, int] | None


class Transactor:
    """Raises counters, counts rows of one table into another, writes to both, at one time."""

    def __init__(self, play: Play, name: str, random: Random, *, jobs: int) -> None:
        self._play = play
        self._name = name
        self._random = random
        self._left = jobs
        self._made = 0
        self._deal: _Deal | None = None
        self.committed = 0

    def live(self, world: World) -> None:
        """Works through its transactions on a handle of its own."""
        close(self.work(world, opened(self._play, world)))

    def work(self, world: World, db: Database) -> Database:
        """Works through the transactions; the handle that it had in the end."""
        while self._deal is not None or (self._left and not self._play.closing):
            if self._deal is None:
                self._left -= 1
                self._deal = self._next()
            try:
                self._do(db, self._deal)
            except Fenced:
                db = opened(self._play, world)
            except ClockSkew:
                pass  # until an operator has seen to it
            world.env.sleep(self._random.random() * 0.05)
        return db

    def _do(self, db: Database, deal: _Deal) -> None:
        """Asks once; the deal is done with when its outcome is final, or will never be known."""
        play = self._play
        parts = []
        for name, operation in deal.parts:
            table = play.table_id(name)
            assert table is not None
            parts.append((table, operation))
        play.reference.begin_together(deal.name, parts)
        if deal.token is None:
            self._deal = None  # should the process die now, nobody asks again
            play.reference.unknown(deal.name)
        begun: list[Transaction] = []

        def run(transaction: Transaction) -> None:
            begun.append(transaction)
            self._look(transaction)
            for step in deal.steps:
                step(transaction)

        try:
            db.transact(
                run,
                isolation=deal.isolation,
                token=deal.token,
                metadata={"op": deal.name},
                timeout=5,
            )
        except AsOfTooOld:
            # With a short retention, what it reads at is given up while it is under way.
            if not self._is_too_old(begun[-1].read_time):
                play.fail(f"{deal.name} reads at {begun[-1].read_time}, which is kept")
            self._refused(deal)
        except (TransactionConflict, Fenced, ClockSkew):
            self._refused(deal)
            raise
        except LocationError as error:
            if not error.may_have_happened:
                self._refused(deal)
        else:
            self._acknowledged(deal, begun[-1].committed)

    def _acknowledged(self, deal: _Deal, commit: Commit | None) -> None:
        assert commit is not None
        self._deal = None
        self._play.latest()
        self._play.reference.acknowledged(deal.name, commit.micros)
        self.committed += 1

    def _refused(self, deal: _Deal) -> None:
        # With a token this try says nothing of the tries before it.
        if deal.token is None:
            self._play.latest()
            self._play.reference.refused(deal.name)

    def _is_too_old(self, time: int) -> bool:
        tables = [self._play.table_id(name) for name in ("events", "items")]
        return any(table is not None and time < self._play.since(table) for table in tables)

    # --- what it reads, which is all of one moment

    def _look(self, transaction: Transaction) -> None:
        """Before it writes anything, it sees the tables as they were at its read time."""
        random, reference = self._random, self._play.reference
        way = random.choice(["nothing", "get", "all", "both"])
        names = ["events", "items"] if way == "both" else [random.choice(["events", "items"])]
        key = random.randrange(KEYS)
        for name in names if way != "nothing" else ():
            table = transaction.table(name)
            found = rows_of(table.get(key) if way == "get" else table.scan().to_arrow())
            table_id = self._play.table_id(name)
            assert table_id is not None
            asked = (lambda row: row[0] == key) if way == "get" else None
            reference.check(table_id, found, [transaction.read_time], asked=asked)

    # --- what it writes

    def _next(self) -> _Deal:
        random = self._random
        self._made += 1
        name = f"{self._name}#{self._made}"
        isolation = random.choice(get_args(Isolation))
        makers: list[Callable[[str], _Made]] = [self._raised, self._raised, self._put]
        if isolation != "snapshot":
            # These rest on reads of what they do not write.
            makers += [self._tallied, self._erased, self._updated]
        made = [random.choice(makers)(name) for _ in range(random.choice([1, 1, 2, 3]))]
        made.append(self._put(name))
        token = (self._name, self._made) if random.random() < 0.4 else None
        parts = [(table, operation) for table, operation, _ in made]
        return _Deal(name, isolation, parts, [step for _, _, step in made], token)

    def _put(self, name: str) -> _Made:
        random = self._random
        table = random.choice(["events", "items"])
        count = random.choice([1, 1, 2, 30])
        rows = tuple(
            (random.randrange(KEYS), random.randrange(3), self._made, name) for _ in range(count)
        )
        return table, Put(rows), lambda transaction: transaction[table].append(arrow_of(rows))

    def _raised(self, name: str) -> _Made:
        """A counter goes up by one: none of two that do this at once may be lost."""
        key = self._random.randrange(3)

        def raised(value: int | None) -> Row:
            return key, _COUNTER, (value or 0) + 1, name

        def step(transaction: Transaction) -> None:
            row = transaction["items"].get_one(key, _COUNTER)
            transaction["items"].upsert(arrow_of([raised(None if row is None else row["v"])]))

        def make(read: Callable[[str], Counter[Row]]) -> tuple[Row, ...]:
            table = self._id("items")
            there = [row for row in read(table) if row[:2] == (key, _COUNTER)]
            return (raised(there[0][2] if there else None),)

        return "items", Computed(make), step

    def _tallied(self, name: str) -> _Made:
        """How many rows some keys have in the one table goes into the other: no phantoms."""
        first = self._random.randrange(KEYS)
        keys = range(first, first + self._random.choice([1, 4]))

        def step(transaction: Transaction) -> None:
            events = transaction["events"]
            count = events.scan(key_range=(first, keys[-1] + 1)).count()
            transaction["items"].upsert(arrow_of([(first, _TALLY, count, name)]))

        def make(read: Callable[[str], Counter[Row]]) -> tuple[Row, ...]:
            table = self._id("events")
            count = sum(n for row, n in read(table).items() if row[0] in keys)
            return ((first, _TALLY, count, name),)

        return "items", Computed(make), step

    def _erased(self, _: str) -> _Made:
        table = self._random.choice(["events", "items"])
        key = (self._random.randrange(KEYS),)
        return table, Deleted(keys=(key,)), lambda t: t[table].delete(keys=[key])

    def _updated(self, _: str) -> _Made:
        key = self._random.randrange(KEYS)

        def change(row: Row) -> Row:
            return (*row[:2], None if row[2] is None else row[2] + 1_000, row[3])

        def step(transaction: Transaction) -> Any:
            return transaction["items"].update({"v": "v + 1000"}, f"k = {key}")

        return "items", Updated(lambda row: row[0] == key, change), step

    def _id(self, name: str) -> str:
        table = self._play.table_id(name)
        assert table is not None
        return table
