"""A process whose clock jumps, by years forward or by minutes back, and who mends what it does."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from strandline.database import Database
from strandline.errors import ClockSkew, Fenced, LocationError
from strandline.state.clocks import check_clock
from strandline.state.model import Meta
from strandline.testing.actors import Play, close, opened
from strandline.testing.jobs import KEYS, arrow_of
from strandline.testing.reference import Put, Row
from strandline.testing.simulation import World

__all__ = ["Jumper", "Operator"]

_MINUTE = 60 * 1_000_000
_YEAR = 365 * 86_400 * 1_000_000


class Jumper:
    """Appends under a clock that is right, years ahead, or minutes behind."""

    def __init__(self, play: Play, random: Random, *, turns: int) -> None:
        self._play = play
        self._random = random
        self._turns = turns
        self._made = 0
        # One wrong clock: times that two of them give could bear each other out.
        self._years = random.choice([1, 3, 50]) * _YEAR
        self.over = False
        self.refused = 0
        """Commits that were refused because of the clock."""

    def live(self, world: World) -> None:
        """Works through its turns."""
        world.process.clock_offset = 0
        db = opened(self._play, world)
        while self._turns and not self._play.closing:
            self._turns -= 1
            back = -self._random.choice([1, 4, 6, 45]) * _MINUTE
            world.process.clock_offset = self._random.choice([0, self._years, self._years, back])
            try:
                if self._random.random() < 0.5:  # one that has not compared its clock yet
                    close(db)
                    db = opened(self._play, world)
                self._append(db)
            except Fenced:
                db = opened(self._play, world)
            except ClockSkew:
                self.refused += 1
            except LocationError:
                pass
            world.env.sleep(self._random.choice([0.05, 0.3, 30.0]))
        world.process.clock_offset = 0
        self.over = True
        close(db)

    def _append(self, db: Database) -> None:
        self._made += 1
        play, op = self._play, f"jumper#{self._made}"
        name = self._random.choice(["events", "items"])
        rows: tuple[Row, ...] = ((self._random.randrange(KEYS), 2, self._made, op),)
        table = play.table_id(name)
        assert table is not None
        play.reference.begin(op, table, Put(rows))
        play.reference.unknown(op)
        try:
            commit = db[name].append(arrow_of(rows), metadata={"op": op}, timeout=20)
        except (ClockSkew, Fenced, LocationError) as error:
            play.latest()
            if not isinstance(error, LocationError) or not error.may_have_happened:
                play.reference.refused(op)
            raise
        play.latest()
        play.reference.acknowledged(op, commit.micros)


class Operator:
    """Says that the clocks are right where the log is ahead of them, so that writers go on."""

    def __init__(self, play: Play, meta: Callable[[], Meta], over: Callable[[], bool]) -> None:
        self._play = play
        self._meta = meta
        self._over = over
        self.confirmed = 0

    def live(self, world: World) -> None:
        """Works until no clock can jump any more and the log is not ahead."""
        db = opened(self._play, world)
        while True:
            world.process.clock_offset = 0
            ahead = self._is_ahead(world.env.now_micros())
            if not ahead and self._play.closing and self._over():
                break
            try:
                if ahead:
                    db.confirm_clock(timeout=20)
                    self.confirmed += 1
            except Fenced:
                db = opened(self._play, world)
            except LocationError:
                pass
            world.env.sleep(1.0)
        close(db)

    def _is_ahead(self, clock: int) -> bool:
        self._play.latest()
        try:
            check_clock(self._meta(), clock)
        except ClockSkew:
            return True
        return False
