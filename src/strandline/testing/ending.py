"""What has to hold at the end of a history, when the weather is calm."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection

from strandline.database import Database
from strandline.ids import session_of
from strandline.state.garbage import is_part
from strandline.testing.holders import HELD, Upstream
from strandline.testing.jobs import KEYS, rows_of
from strandline.testing.observed import Observed, holds
from strandline.testing.reference import Test
from strandline.testing.simulation import Simulation
from strandline.testing.watch import Broken
from strandline.times import Micros

__all__ = ["check_all", "check_copied", "sweep_all", "vacuum_all"]

_VACUUMS = 12
"""In which everything dead is gone: sessions that nobody ends take some of them to expire."""

_SWEEPS = 24
"""In which all that nobody needs is gone: sessions are silent, end, and are swept twice."""


def check_all(db: Database, observed: Observed, moments: int) -> None:
    """Every table, at so many moments, is as the model has it."""
    times = observed.times()
    picked = sorted({times[-1], *times[:: max(1, len(times) // moments)]})
    for version in observed.versions():
        for time in [t for t in picked if holds(version, t)]:
            if time < observed.since(version.table):
                continue
            table = db.as_of(Micros(time))[version.name]
            observed.reference.check(version.table, rows_of(table.scan().to_arrow()), [time])
            key = bisect_left(times, time) % KEYS
            observed.reference.check(
                version.table,
                rows_of(table.get(key)),
                [time],
                asked=_has_key(key),
            )


def _has_key(key: int) -> Test:
    return lambda row: row[0] == key


def check_copied(db: Database, upstream: Upstream) -> None:
    """All of the log upstream is there, once."""
    there = sorted(row[2] for row in rows_of(db[HELD].scan().to_arrow()) if row[1] == 0)
    if there != list(range(1, upstream.position + 1)):
        raise Broken(f"copied through {upstream.position}, and there is {there}")


def vacuum_all(db: Database, sim: Simulation) -> None:
    """What is dead goes in the end, with the sessions that hold it back and are dead, too."""
    for _ in range(_VACUUMS):
        sim.scheduler.now += 3_600_000_000
        db.vacuum()
        sim.watch.look()
        waiting = [
            key[1]
            for state in sim.watch.states.values()
            for key, _ in state.dead.range()
            if is_part(key[1])
        ]
        if not waiting:
            break
    else:
        raise Broken(f"{_VACUUMS} vacuums, one an hour, leave {waiting}")
    dead = {key[1] for state in sim.watch.states.values() for key, _ in state.dead.range()}
    forgotten = [key for key in sim.watch.left_behind() if key not in dead]
    if forgotten:
        raise Broken(f"nobody remembers that these are dead: {forgotten}")


def sweep_all(db: Database, sim: Simulation, forced: Collection[str]) -> None:
    """What nobody needs goes in the end: what was never committed, and what arrived late."""
    for _ in range(_SWEEPS):
        sim.scheduler.now += 3_600_000_000
        db.vacuum()
        sim.watch.look()
        garbage = [k for k in sim.watch.unneeded() if session_of(k) not in forced]
        if not garbage:
            return
    raise Broken(f"{_SWEEPS} vacuums, one an hour, leave {garbage}")
