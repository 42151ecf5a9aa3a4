"""Those who die between upload and commit, and those who clear up after them.

What was staged by a process that died is committed by another, or is refused once its session has
ended; its delayed requests arrive when they arrive, after a sweep too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from random import Random

from strandline.database import Database
from strandline.env import Deadline
from strandline.errors import ClockSkew, Fenced, LocationError, UsageError
from strandline.ids import ObjectKey, new_part_id, session_of
from strandline.state.model import Entry
from strandline.state.sessions import is_open
from strandline.testing.actors import Play, close, opened
from strandline.testing.jobs import KEYS, arrow_of
from strandline.testing.reference import Put, Row
from strandline.testing.scheduler import Killed
from strandline.testing.simulation import Simulation, World
from strandline.testing.watch import LATEST_MICROS, Broken, Seen
from strandline.write.staged import Staged

__all__ = ["Litterer", "Sweeper", "check_parts_of_open_sessions"]

_Left = tuple[str, dict[str, tuple[Row, ...]], bytes]
"""A name, the rows by table, and what was staged."""


def check_parts_of_open_sessions(seen: Seen) -> None:
    """Broken if a record of the txns shard commits a part of a session that is not open."""
    for diff in seen.record.diffs:
        if not isinstance(diff.after, Entry):
            continue
        for part in diff.after.batch.parts:
            session = session_of(part.key)
            if session == seen.record.session or is_open(seen.before.sessions.get((session,))):
                continue
            raise Broken(f"the commit at {diff.after.time} names {part.key}, of an ended session")


class Litterer:
    """Stages rows and dies; commits later what another process of it had staged."""

    def __init__(
        self,
        play: Play,
        simulation: Simulation,
        sweeper: Sweeper,
        random: Random,
        *,
        name: str,
        turns: int,
    ) -> None:
        self._play = play
        self._simulation = simulation
        self._sweeper = sweeper
        self._random = random
        self._name = name
        self._turns = turns
        self._made = 0
        self._left: deque[_Left] = deque()
        self.committed = 0
        self.refused = 0

    def live(self, world: World) -> None:
        """Works through its turns, most of which end in a death."""
        db = opened(self._play, world)
        while self._turns and not self._play.closing:
            self._turns -= 1
            try:
                if self._left and self._random.random() < 0.6:
                    self._commit(db, self._left.popleft())
                else:
                    self._litter(world, db)
            except Fenced:
                db = opened(self._play, world)
            except (ClockSkew, LocationError):
                pass
            world.env.sleep(self._random.choice([0.05, 0.5, 10.0]))
        close(db)

    def _litter(self, world: World, db: Database) -> None:
        self._made += 1
        name = f"{self._name}#{self._made}"
        tables = self._random.choice([["events"], ["items"], ["events", "items"]])
        rows = {table: self._rows(name) for table in tables}
        if self._random.random() < 0.3:
            transaction = db.transaction(timeout=20)
            for table, each in rows.items():
                transaction[table].append(arrow_of(each))
            self._die(world, db)
        staged = db.stage({table: arrow_of(each) for table, each in rows.items()}, timeout=20)
        self._left.append((name, rows, staged.to_bytes()))
        if self._random.random() < 0.7:
            self._die(world, db)

    def _die(self, world: World, db: Database) -> None:
        """With a request under way, which arrives at some time; and somebody knows that it died."""
        store = db._handle.store  # noqa: SLF001  below what users hold
        table = _id(self._play, "events")
        machine = store.txns.machine
        session = machine.live_session(Deadline(world.env, 5))
        key = str(ObjectKey(session, store.data(table).shard, "part", new_part_id(world.env)))
        self._simulation.scheduler.later(
            self._random.randrange(LATEST_MICROS),
            f"the network: put {key} arrives",
            lambda: self._simulation.outside.location.blob.put(key, b"late", timeout=1),
        )
        self._sweeper.dead.append(session)
        self._simulation.scheduler.kill(world.process, "between upload and commit")
        raise Killed

    def _commit(self, db: Database, left: _Left) -> None:
        """Asks once: a second commit of the same would write the rows twice."""
        name, rows, data = left
        play = self._play
        parts = [(_id(play, table), Put(each)) for table, each in rows.items()]
        play.reference.begin_together(name, parts)
        play.reference.unknown(name)
        try:
            with db.transaction(metadata={"op": name}, timeout=20) as transaction:
                transaction.merge(Staged.from_bytes(data))
        except (ClockSkew, Fenced, LocationError) as error:
            play.latest()
            if not isinstance(error, LocationError) or not error.may_have_happened:
                play.reference.refused(name)
                self.refused += 1
            raise
        play.latest()
        assert transaction.committed is not None
        play.reference.acknowledged(name, transaction.committed.micros)
        self.committed += 1

    def _rows(self, name: str) -> tuple[Row, ...]:
        random = self._random
        return tuple(
            (random.randrange(KEYS), random.randrange(3), self._made, name)
            for _ in range(random.choice([1, 40, 60]))
        )


class Sweeper:
    """Vacuums, and now and then says of a session that its owner is gone, right or wrong."""

    def __init__(self, play: Play, random: Random, *, turns: int) -> None:
        self._play = play
        self._random = random
        self._turns = turns
        self.dead: list[str] = []
        """Sessions of which it was told that their owners are gone."""
        self.forced: set[str] = set()
        """Sessions that it ended, perhaps while their owners were writing."""

    def live(self, world: World) -> None:
        """Works through its turns."""
        db = opened(self._play, world)
        while self._turns and not self._play.closing:
            self._turns -= 1
            try:
                while self.dead and self._random.random() < 0.7:
                    self._force(db, self.dead.pop())
                if self._random.random() < 0.2:
                    self._force_any(db)
                db.vacuum(timeout=25)
            except Fenced:
                db = opened(self._play, world)
            except LocationError:
                pass
            world.env.sleep(self._random.choice([0.5, 2.0, 2.0, 40.0]))
        close(db)

    def _force_any(self, db: Database) -> None:
        rows: list[Mapping[str, str]] = db.sessions().to_pylist()
        if not rows:
            return
        session = self._random.choice(rows)["session"]
        self.forced.add(session)
        self._force(db, session)

    def _force(self, db: Database, session: str) -> None:
        try:
            db.force_ack(session=session)
        except UsageError:
            return  # its own, or one that is at work, or gone by now


def _id(play: Play, name: str) -> str:
    table = play.table_id(name)
    assert table is not None
    return table
