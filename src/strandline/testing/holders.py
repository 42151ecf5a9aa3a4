"""Workers that take a table from each other, stop, die and come back; and the log they copy.

Each attaches, goes on where the last committed position is, and commits what it copies together
with the position. `Upstream` looks at what really gets into the log: no two commits of one
position, none under an epoch that is over, none of a session that was doomed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from strandline.database import Database
from strandline.errors import ClockSkew, Fenced, Held, LocationError
from strandline.ids import session_of
from strandline.state.model import Entry, Holder, TableVersion
from strandline.state.sessions import is_open
from strandline.table import Lease
from strandline.testing.actors import Play, between, close, opened
from strandline.testing.jobs import KEYS, arrow_of, rows_of
from strandline.testing.reference import Operation, Put, Row
from strandline.testing.scheduler import Killed, Scheduler
from strandline.testing.simulation import World
from strandline.testing.watch import Broken, Seen

__all__ = ["HELD", "Attacher", "Upstream"]

HELD = "held"
"""The table that is attached to."""

_NOBODY = Holder(0, "", "")


class Upstream:
    """The log that workers copy, and who really holds the table that they copy it into."""

    def __init__(self) -> None:
        self.position = 0
        """Up to where it was really copied."""
        self.pruned = 0
        """Up to where it is gone, because somebody was told that it may."""
        self.holder = _NOBODY
        self.doomed = 0
        """Sessions that were replaced while they held the table."""
        self._table = ""
        self._doomed: set[str] = set()
        self._at_attach: dict[int, int] = {}

    def at_attach(self, epoch: int) -> int:
        """The position that was committed when that epoch began."""
        return self._at_attach[epoch]

    def is_over(self, epoch: int) -> bool:
        """Whether another has attached since, or the table was given back."""
        return self.holder.epoch != epoch or not self.holder.session

    def on_record(self, seen: Seen) -> None:
        """A record got into the txns shard. Raises `Broken` for what no holder may do."""
        for said in seen.commits:
            self._on_commit(said.get("metadata", {}))
        for diff in seen.record.diffs:
            if isinstance(diff.after, TableVersion) and diff.after.name == HELD:
                self._table = diff.after.table
            elif isinstance(diff.after, Entry):
                self._on_entry(diff.after)
        for diff in seen.record.diffs:
            if diff.collection == "holders" and diff.key == (self._table,):
                assert isinstance(diff.after, Holder), "nobody drops the table"
                self._on_holder(diff.after, seen)

    def _on_commit(self, said: Mapping[str, str]) -> None:
        if "outside" in said and self.holder.session:
            raise Broken(f"{said['op']} holds nothing, and {self.holder.worker} has the table")
        if "through" not in said:
            return
        epoch, after = int(said["epoch"]), int(said["after"])
        if self.is_over(epoch):
            raise Broken(f"{said['op']} committed under epoch {epoch}; now it is {self.holder}")
        if after != self.position:
            raise Broken(f"{said['op']} goes on at {after}; copied so far is {self.position}")
        self.position = int(said["through"])

    def _on_entry(self, entry: Entry) -> None:
        writers = {entry.session, *(session_of(part.key) for part in entry.batch.parts)}
        for session in writers & self._doomed:
            raise Broken(f"the commit at {entry.time} is of session {session}, which is doomed")

    def _on_holder(self, holder: Holder, seen: Seen) -> None:
        position, before = _decoded(holder.position), self.holder
        if position != self.position:
            raise Broken(f"the position is {position}, and copied was {self.position}")
        replaced = before.session and before.session != holder.session
        if holder.epoch > before.epoch:
            self._at_attach[holder.epoch] = position
            if position < self.pruned:
                raise Broken(f"{holder} is to begin at {position}; upstream was pruned beyond")
            if replaced:
                self._doomed.add(before.session)
                self.doomed += 1
        elif holder.epoch < before.epoch:
            raise Broken(f"epoch {holder.epoch} comes after epoch {before.epoch}")
        elif replaced and holder.session and is_open(seen.before.sessions.get((before.session,))):
            raise Broken(f"{holder} goes on for {before}, whose session was open")
        self.holder = holder


class Attacher:
    """Copies a log into a table that it holds, as long as it holds it."""

    def __init__(
        self,
        play: Play,
        upstream: Upstream,
        scheduler: Scheduler,
        random: Random,
        *,
        name: str,
        turns: int,
    ) -> None:
        self._play = play
        self._upstream = upstream
        self._scheduler = scheduler
        self._random = random
        self._name = name
        self._left = turns
        self._made = 0
        self.fenced = 0
        """How often it learned that another has the table."""

    def live(self, world: World) -> None:
        """Works through its turns."""
        db = opened(self._play, world)
        old: list[Lease] = []
        while self._left and not self._play.closing:
            self._left -= 1
            try:
                self._turn(world, db, old)
            except Fenced:
                db = opened(self._play, world)
            except (ClockSkew, LocationError):
                pass
            world.env.sleep(self._random.random() * 0.1)
        close(db)

    def _turn(self, world: World, db: Database, old: list[Lease]) -> None:
        way = self._random.choices(["outside", "prune", "back", "attach"], [1, 2, 2, 6])[0]
        if way == "outside":
            self._outside(db)
        elif way == "prune":
            self._prune(db)
        elif way == "back" and old:
            self._comes_back(old.pop(), db)
        else:
            self._hold(world, db, old)

    def _hold(self, world: World, db: Database, old: list[Lease]) -> None:
        lease: Lease = db[HELD].attach(self._name, position=0, timeout=20)
        self._play.latest()
        upstream = self._upstream
        if lease.position != upstream.at_attach(lease.epoch):
            self._play.fail(f"{lease} is told {lease.position}")
        try:
            self._copy(world, lease)
        except Fenced:
            self.fenced += 1
        except ClockSkew:
            pass
        except LocationError:
            old.append(lease)  # whether it holds the table: it does not know
            return
        end = self._random.choice(["release", "release", "dies", "stops"])
        if end == "release":
            self._release(lease)
        elif end == "stops":
            old.append(lease)
        else:
            self._scheduler.kill(world.process, "with a table attached")
            raise Killed

    def _copy(self, world: World, lease: Lease) -> None:
        position = lease.position
        for _ in range(self._random.choice([1, 2, 4])):
            if self._random.random() < 0.3:
                world.env.sleep(self._random.choice([0.05, 0.5, 5.0]))
            if self._random.random() < 0.3:
                self._look(lease)
            position = self._commit(lease, position)

    def _comes_back(self, lease: Lease, db: Database) -> None:
        """Goes on as if nothing had happened since, with its own table or with another."""
        self._play.latest()
        over = self._upstream.is_over(lease.epoch)
        try:
            # Where it still holds the table, only who attaches again knows where to go on.
            if over and self._random.random() < 0.6:
                self._commit(lease, lease.position)
            else:
                self._written(lease, [("events", self._rows(self._random.choice([1, 40])))], {})
            lease.check(timeout=5)
        except Fenced:
            self.fenced += 1
            self._prune(db)  # what it was refused does not count
        else:
            if over:
                self._play.fail(f"{lease} goes on, though {self._upstream.holder} has the table")

    def _look(self, lease: Lease) -> None:
        """Who is doomed may read on."""
        begun = self._play.latest()
        found = rows_of(lease.table.scan().to_arrow())
        self._play.reference.check(lease.table.id, found, between(self._play, begun))

    def _release(self, lease: Lease) -> None:
        lease.release(timeout=20)
        self._play.latest()
        if not self._upstream.is_over(lease.epoch):
            self._play.fail(f"{lease} was released, and is not")

    def _prune(self, db: Database) -> None:
        self._play.latest()
        before = self._upstream.position
        safe = db[HELD].safe_to_prune() or 0
        self._play.latest()
        if not before <= safe <= self._upstream.position:
            self._play.fail(f"{safe} may be pruned; copied is {self._upstream.position}")
        self._upstream.pruned = max(self._upstream.pruned, safe)

    # --- writing

    def _commit(self, lease: Lease, position: int) -> int:
        """Copies a piece; where it ends."""
        through = position + self._random.choice([1, 1, 2, 3, 40])
        numbers = range(position + 1, through + 1)
        parts = [(HELD, tuple((n % KEYS, 0, n, f"upstream-{n}") for n in numbers))]
        if self._random.random() < 0.3:
            parts.append(("events", self._rows(2)))
        said = {"after": str(position), "through": str(through), "epoch": str(lease.epoch)}
        self._written(lease, parts, said)
        return through

    def _rows(self, count: int) -> tuple[Row, ...]:
        random = self._random
        return tuple((random.randrange(KEYS), 0, self._made, self._name) for _ in range(count))

    def _written(
        self, lease: Lease, parts: Sequence[tuple[str, tuple[Row, ...]]], said: Mapping[str, str]
    ) -> None:
        """One commit under the lease, asked for again with its token while nothing is known."""
        self._made += 1
        op = f"{self._name}#{self._made}"
        token = (self._name, self._made) if self._random.random() < 0.5 else None
        options: dict[str, Any] = {"token": token, "metadata": {"op": op, **said}, "timeout": 5}
        if "through" in said:
            options["position"] = int(said["through"])
        for last in (token is None, False, True):
            try:
                self._asked(lease, op, parts, options)
            except LocationError as error:
                if token is None or last or not error.may_have_happened:
                    raise
            else:
                return

    def _asked(
        self,
        lease: Lease,
        op: str,
        parts: Sequence[tuple[str, tuple[Row, ...]]],
        options: Mapping[str, Any],
    ) -> None:
        reference, token = self._play.reference, options["token"]
        self._begin(op, [(name, Put(rows)) for name, rows in parts])
        try:
            if parts[0][0] == HELD and len(parts) == 1 and self._random.random() < 0.5:
                commit = lease.append(arrow_of(parts[0][1]), **options)
            else:
                with lease.transaction(**options) as transaction:
                    for name, rows in parts:
                        transaction[name].append(arrow_of(rows))
                assert transaction.committed is not None
                commit = transaction.committed
        except (ClockSkew, Fenced, LocationError) as error:
            self._play.latest()
            definite = not isinstance(error, LocationError) or not error.may_have_happened
            if definite and token is None:  # with one it says nothing of the tries before
                reference.refused(op)
            raise
        self._play.latest()
        reference.acknowledged(op, commit.micros)

    def _outside(self, db: Database) -> None:
        """Writes to the table without holding it."""
        self._made += 1
        op = f"{self._name}#{self._made}"
        rows: tuple[Row, ...] = ((self._random.randrange(KEYS), 1, self._made, op),)
        self._play.latest()
        before = self._upstream.holder
        self._begin(op, [(HELD, Put(rows))])
        try:
            commit = db[HELD].append(arrow_of(rows), metadata={"op": op, "outside": "yes"})
        except Held:
            self._play.latest()
            self._play.reference.refused(op)
            if not before.session and self._upstream.holder.epoch == before.epoch:
                self._play.fail(f"{op} was refused as held, and nobody held the table")
            return
        except (ClockSkew, Fenced, LocationError) as error:
            self._play.latest()
            if not isinstance(error, LocationError) or not error.may_have_happened:
                self._play.reference.refused(op)
            raise
        self._play.latest()
        self._play.reference.acknowledged(op, commit.micros)

    def _begin(self, op: str, parts: Sequence[tuple[str, Operation]]) -> None:
        """Should the process die now, its outcome is unknown for ever."""
        tables = [(self._id(name), operation) for name, operation in parts]
        self._play.reference.begin_together(op, tables)
        self._play.reference.unknown(op)

    def _id(self, name: str) -> str:
        table = self._play.table_id(name)
        assert table is not None
        return table


def _decoded(position: str) -> int:
    return int(json.loads(position)) if position else 0
