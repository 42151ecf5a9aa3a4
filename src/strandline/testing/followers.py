"""Those who follow a table's changes, and those who keep reading what was there long ago."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pyarrow as pa

from strandline.changes.subscription import Change
from strandline.database import Database
from strandline.errors import AsOfTooOld, Fenced, LocationError
from strandline.testing.actors import Play, between, close, opened
from strandline.testing.jobs import COLUMNS, rows_of
from strandline.testing.reference import Row
from strandline.testing.simulation import World
from strandline.times import Micros

__all__ = ["LongReader", "Subscriber"]


class Subscriber:
    """Takes in every change of a table once, over crashes: what it has is what the model has."""

    def __init__(self, play: Play, random: Random, number: int) -> None:
        self._play = play
        self._random = random
        self._table = random.choice(["events", "items"])
        self._name = f"follower{number}" if random.random() < 0.5 else None
        self._with_old = self._table == "items" and random.random() < 0.5
        # What it keeps over a crash, as one who uses a subscription should.
        self._progress: str | None = None
        self._after = -1
        self._pieces: list[pa.Table] = []
        self.changes = 0
        """How many it took in that had rows."""
        self.restarts = 0

    def live(self, world: World) -> None:
        """Follows until the end."""
        read_only = self._name is None and self._random.random() < 0.3
        db: Database | None = None
        while not self._play.closing:
            self.restarts += 1
            try:
                db = db or self._play.open(world, read_only=read_only)
                self._follow(world, db)
            except Fenced:
                db = None
            except LocationError:
                pass
            world.env.sleep(self._random.choice([0.01, 0.1, 3.0]))

    def finish(self, db: Database) -> None:
        """Takes in the rest, in calm weather."""
        latest = self._play.latest()
        while self._after < latest:
            for change in self._subscribed(db, until=Micros(latest)):
                self._take(change)

    def _follow(self, world: World, db: Database) -> None:
        random = self._random
        for change in self._subscribed(db, timeout=0.3):
            self._take(change)
            if self._play.closing or random.random() < 0.05:
                return  # lets go of it without a word
            if random.random() < 0.1:
                world.env.sleep(random.random())

    def _subscribed(self, db: Database, **options: Any) -> Any:
        self._pieces = []
        start = self._progress or "snapshot"
        begun = self._play.latest() if self._progress is None else self._after
        options |= {"name": self._name} if self._name else {}
        options |= {"with_old": True} if self._with_old else {}
        try:
            # Not `yield from`: that would close it, with a request, wherever the loop is left.
            for change in db[self._table].subscribe(start, poll=0.02, **options):  # noqa: UP028  so
                yield change
        except AsOfTooOld:
            since = self._play.since(self._id())
            if since <= begun or self._name:
                self._play.fail(
                    f"{self._table} after {begun} is refused to {self._name or 'somebody'}; "
                    f"its since is {since}"
                )
            self._progress, self._after = None, -1  # from a new snapshot on

    def _take(self, change: Change) -> None:
        self._pieces.append(change.rows)
        if not change.complete:
            return
        pieces, self._pieces = pa.concat_tables(self._pieces), []
        self._play.latest()
        through = change.progress.micros
        found = self._told(pieces)
        reference, table = self._play.reference, self._id()
        if self._progress is None:
            if not found.keys() <= {through}:
                self._play.fail(f"a snapshot at {through} has rows of {sorted(found)}")
            reference.check(table, found.get(through, Counter()).elements(), [through])
        else:
            reference.check_changes(table, found, self._after, through)
        self._progress, self._after = str(change.progress), through
        self.changes += bool(found)

    def _told(self, changes: pa.Table) -> dict[int, Counter[Row]]:
        """By time: the rows and by how much their number changed; of a delete, the key and -1."""
        found: dict[int, Counter[Row]] = {}
        keyed = self._table == "items"
        olds = changes.column("__old").to_pylist() if self._with_old else []
        says = changes.column("__op" if keyed else "__diff").to_pylist()
        times = changes.column("__time").to_pylist()
        for number, (row, time, said) in enumerate(zip(rows_of(changes), times, says, strict=True)):
            what, diff = row, said
            if keyed:
                what, diff = (row, 1) if said == "upsert" else (row[:2], -1)
            found.setdefault(time, Counter())[what] += diff
            if self._with_old and self._progress is not None:
                self._check_old(row[:2], time, olds[number])
        return found

    def _check_old(self, key: Row, time: int, old: dict[str, Any] | None) -> None:
        told = [] if old is None else [tuple(old[name] for name in COLUMNS.names)]
        self._play.reference.check(self._id(), told, [time - 1], asked=lambda row: row[:2] == key)

    def _id(self) -> str:
        table = self._play.table_id(self._table)
        assert table is not None
        return table


class LongReader:
    """Reads from the same view again and again, while what it reads is replaced and deleted."""

    def __init__(self, play: Play, random: Random, *, turns: int) -> None:
        self._play = play
        self._random = random
        self._left = turns
        self.compared = 0

    def live(self, world: World) -> None:
        """Until all turns are done."""
        db = opened(self._play, world)
        while self._left and not self._play.closing:
            self._left -= 1
            try:
                self._random.choice([self._again, self._slowly])(world, db)
            except LocationError:
                continue
        close(db)

    def _again(self, world: World, db: Database) -> None:
        """Whole tables, several times in one transaction that stays open long."""
        with db.transaction() as transaction:
            for _ in range(5):
                name = self._random.choice(["events", "items"])
                try:
                    found = rows_of(transaction.table(name).scan().to_arrow())
                except AsOfTooOld:
                    self._check_too_old(name, transaction.read_time)
                    return
                self._play.reference.check(self._id(name), found, [transaction.read_time])
                self.compared += 1
                world.env.sleep(self._random.choice([0.01, 0.3, 2.0]))

    def _slowly(self, world: World, db: Database) -> None:
        """A table piece by piece, with long pauses."""
        name = self._random.choice(["events", "items"])
        begun = self._play.latest()
        batches = db[name].scan().to_batches()
        times = between(self._play, begun)
        found: list[Row] = []
        while True:
            try:
                batch = next(batches, None)
            except AsOfTooOld:
                self._check_too_old(name, times[0])
                return
            if batch is None:
                break
            found += rows_of(pa.Table.from_batches([batch]))
            world.env.sleep(self._random.choice([0.01, 0.3, 2.0]))
        self._play.reference.check(self._id(name), found, times)
        self.compared += 1

    def _check_too_old(self, name: str, time: int) -> None:
        since = self._play.since(self._id(name))
        if since <= time:
            self._play.fail(f"{name} at {time} is refused, its since is {since}")

    def _id(self, name: str) -> str:
        table = self._play.table_id(name)
        assert table is not None
        return table
