"""Plays seeded histories of a whole database.

    python -m strandline.testing.simulator --seeds 1000 --first 1

Writers, transactions, readers, subscribers, DDL, appliers, compactors and vacuums run against each
other on a location in memory where any call may be lost, late, doubled or the last one of its
process. In some histories there are guests: workers that take a table from each other, processes
that die between upload and commit, a clock that jumps. Each answer is held against the reference
model, each record against the invariants, and each delete against all that may still need the
object. A history that fails prints its seed, its last steps and the command that plays it again.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from random import Random

from strandline.database import Database
from strandline.env import Deadline
from strandline.ids import DatabaseId, ShardId, session_of
from strandline.parts.keys import KeyCodec
from strandline.parts.schema import TableSchema
from strandline.settings import Settings
from strandline.state.clocks import SKEW_MICROS
from strandline.state.commands import Split
from strandline.state.garbage import is_part
from strandline.state.model import Meta, TableVersion
from strandline.state.plan import STRATEGIES, leaf_at
from strandline.state.replay import initial
from strandline.testing.actors import Crowd, Ddl, Keeper, Reader, Truncator, Writer
from strandline.testing.followers import LongReader, Subscriber
from strandline.testing.holders import HELD, Attacher, Upstream
from strandline.testing.jobs import COLUMNS, KEYS, rows_of
from strandline.testing.jumps import Jumper, Operator
from strandline.testing.litter import Litterer, Sweeper, check_parts_of_open_sessions
from strandline.testing.reference import Reference
from strandline.testing.simulation import Simulation, World
from strandline.testing.transactors import Transactor
from strandline.testing.watch import Broken, Seen
from strandline.times import Micros
from strandline.txn.apply import apply_table
from strandline.txn.handle import Handle, Origin
from strandline.txn.properties import PROPERTIES, duration_micros
from strandline.txn.store import Store
from strandline.upkeep.background import open_store

__all__ = ["DATABASE", "TXNS", "History", "failure", "main", "story"]

DATABASE = DatabaseId("d" + "0" * 32)
TXNS = ShardId("s" + "0" * 16)

_STEPS = 4_000

_NEVER = 1 << 62

_VACUUMS = 12
"""In which everything dead is gone: sessions that nobody ends take some of them to expire."""

_SWEEPS = 24
"""In which all that nobody needs is gone: sessions are silent, end, and are swept twice."""

Person = Writer | Reader | Transactor


class History:
    """One seed's history of a database with a `rows` and a `keyed` table."""

    def __init__(
        self,
        seed: int,
        *,
        writers: int = 3,
        jobs: int = 9,
        readers: int = 1,
        transactors: int = 2,
        steps: int = _STEPS,
        guests: Collection[str] | None = None,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self.seed = seed
        self.reference = Reference(observed=True)
        self.sim = Simulation(seed, on_record=self._on_record)
        self._steps = steps
        self._commits: list[int] = []
        random = self.sim.character
        self._vacuums = random.random() < 0.7
        self._properties = {
            "retention": random.choice(["0 seconds", "1 second", "7 days"]),
            "deletion_delay": random.choice(["0 seconds", "0 seconds", "1 second", "15 minutes"]),
        }
        self.guests = _guests(seed) if guests is None else guests
        """Who is there besides: "attachers", "litterers", "jumper"."""
        self.kept: Sequence[str] = ["events", "items"]
        if "attachers" in self.guests:
            self.kept = [*self.kept, HELD]
        self.upstream = Upstream()
        self.sweeper = Sweeper(self, self._random("sweeper"), turns=10)
        if "litterers" in self.guests:
            self._vacuums = True
            # Longer than a request of somebody who is gone is under way.
            self._properties["deletion_delay"] = random.choice(["1 minute", "15 minutes"])
        self.sim.watch.deletion_delay = self._deletion_delay
        self.sim.watch.on_news = self._check_shards
        self.settings = Settings(
            timeout_seconds=30.0,
            lease_seconds=random.choice([900.0, 900.0, 900.0, 0.3, 0.05]),
            inline_bytes_max=random.choice([0, 1_500, 1_500, 64_000]),
            rollup_every_records=3,
            page_items_max=random.choice([4, 50]),
            apply_backlog_commits=random.choice([1, 3, 8]),
            backlog_commits_max=random.choice([2, 12]),
            background=random.random() < 0.5,
            small_parts_max=3,
            part_rows_target=40,
            row_group_rows=16,
        )
        if "litterers" in self.guests:
            self.settings = replace(self.settings, lease_seconds=5.0, grace_seconds=5.0)
        if log is not None:
            self.sim.scheduler.listener = log
        self.readers = [
            Reader(self, self._random(f"reader{number}"), reads=16) for number in range(readers)
        ]
        self.transactors = [
            Transactor(self, f"transactor{n}", self._random(f"transactor{n}"), jobs=5)
            for n in range(transactors)
        ]
        self.subscribers = [Subscriber(self, self._random(f"subscriber{n}"), n) for n in range(2)]
        self.long_reader = LongReader(self, self._random("long reader"), turns=3)
        self.crowd: Crowd | None = None
        """Those who share a handle, if some do."""
        self._people(writers, jobs)
        self.attachers: list[Attacher] = []
        self.litterers: list[Litterer] = []
        self.jumper = Jumper(self, self._random("jumper"), turns=8)
        self.operator = Operator(self, self._meta, lambda: self.jumper.over)
        self._welcome()

    # --- Play

    @property
    def closing(self) -> bool:
        return self.sim.closing

    def open(self, world: World, *, read_only: bool = False) -> Database:
        location = replace(world.location, read_only=read_only)
        store = open_store(location, DATABASE, TXNS, world.env, self.settings)
        store.txns.look()
        mode = "r" if read_only else "rw"

        def reopen(_: Origin) -> Store:
            return open_store(location, DATABASE, TXNS, world.env, self.settings)

        origin = Origin("memory://", mode, self.settings, reopen, leaves_process=False)
        return Database(Handle(store, origin))

    def table_id(self, name: str, as_of: int | None = None) -> str | None:
        self.sim.watch.look()
        for version in self._versions():
            if version.name == name and _holds(version, as_of):
                return version.table
        return None

    def latest(self) -> int:
        self.sim.watch.look()
        return (self._meta().upper or 0) - 1

    def times(self) -> list[int]:
        return self._commits

    def since(self, table: str) -> int:
        state = self.sim.watch.states.get(table)
        if state is None:
            return 0
        return _NEVER if state.meta.since is None else state.meta.since

    def fail(self, text: str) -> None:
        raise Broken(text)

    # --- the play

    def play(self) -> str:
        """Plays it to its end; the hash of its trace. Raises what went wrong."""
        world = self.sim.outside
        with self.open(world) as db:
            for name in self.kept:
                kind, sort = ("keyed", ("s",)) if name == "items" else ("rows", ())
                db.create_table(
                    name,
                    COLUMNS,
                    row_keys="k",
                    sort_keys=sort,
                    kind=kind,
                    properties={**self._properties, "compaction_parts": 4},
                )
        self.sim.play(self._steps, at_end=self._at_end)
        return self.sim.scheduler.trace_hash()

    def _deletion_delay(self, shard: str) -> int:
        text = PROPERTIES["deletion_delay"].default
        return duration_micros(text if shard == TXNS else self._properties["deletion_delay"])

    def _random(self, name: str) -> Random:
        return Random(f"{name} of {self.seed}")

    def _people(self, writers: int, jobs: int) -> None:
        act = self.sim.act
        # All but the last writer, who has a process of its own in any case.
        crowded = writers - 1 if self.sim.character.random() < 0.4 else 0
        people: list[Person] = []
        for number in range(writers):
            name = f"writer{number}"
            shared = number < crowded
            people.append(Writer(self, name, self._random(name), jobs=jobs, shared=shared))
        people += self.readers
        people += self.transactors
        together = [*people[:crowded], *self.readers, *self.transactors] if crowded else []
        if together:
            self.crowd = Crowd(self, together)
            act("crowd", self.crowd.live)
        for number, person in enumerate(people):
            if person not in together:
                act(f"person{number}", person.live)
        act("long reader", self.long_reader.live)
        ddl = Ddl(self, self._random("ddl"), turns=6, properties=self._properties)
        act("ddl", ddl.live)
        for number, subscriber in enumerate(self.subscribers):
            act(f"subscriber{number}", subscriber.live, keeper=True)
        applier = Keeper(self, self._random("applier"), _apply, pause_seconds=0.03)
        compactors = [
            Keeper(self, self._random(f"compactor{n}"), _tend, pause_seconds=0.3) for n in (0, 1)
        ]
        act("applier", applier.live, keeper=True)
        for number, keeper in enumerate(compactors):
            act(f"compactor{number}", keeper.live, keeper=True)
        if not self._vacuums:
            act(
                "truncator",
                Truncator(self, self._random("truncator"), self._cuts).live,
                keeper=True,
            )
            return
        for number in range(2):
            random = self._random(f"vacuumer{number}")
            vacuumer = Keeper(self, random, _vacuum, pause_seconds=0.5)
            act(f"vacuumer{number}", vacuumer.live, keeper=True)

    def _welcome(self) -> None:
        """The guests, if any."""
        act, scheduler = self.sim.act, self.sim.scheduler
        if "attachers" in self.guests:
            for number in range(3):
                name = f"attacher{number}"
                random = self._random(name)
                guest = Attacher(self, self.upstream, scheduler, random, name=name, turns=6)
                self.attachers.append(guest)
                act(name, guest.live)
        if "litterers" in self.guests:
            for number in range(2):
                name = f"litterer{number}"
                random = self._random(name)
                litterer = Litterer(self, self.sim, self.sweeper, random, name=name, turns=6)
                self.litterers.append(litterer)
                act(name, litterer.live)
            act("sweeper", self.sweeper.live)
        if "jumper" in self.guests:
            act("jumper", self.jumper.live)
            act("operator", self.operator.live, keeper=True)

    def _meta(self) -> Meta:
        return self.sim.watch.states.get(TXNS, initial()).meta

    def _cuts(self) -> dict[str, int]:
        """Where each log may be cut."""
        cuts = {}
        for shard, state in sorted(self.sim.watch.states.items()):
            rollups = [key[0] for key, _ in state.rollups.range()]
            if len(rollups) > 1:
                cuts[shard] = rollups[-2]
        return cuts

    # --- what really happens

    def _on_record(self, seen: Seen) -> None:
        if seen.shard == TXNS:
            check_parts_of_open_sessions(seen)
            self.upstream.on_record(seen)
            self._on_commit(seen)
        elif seen.after.meta.since != seen.before.meta.since:
            self._check_since(seen)

    def _check_since(self, seen: Seen) -> None:
        """History goes by a time that has come: not by that of a clock which jumped."""
        since = seen.after.meta.since
        retention = duration_micros(self._properties["retention"])
        kept = self.sim.scheduler.now + SKEW_MICROS - retention
        if since is None:  # it was dropped, and is over
            state = self.sim.watch.states[TXNS]
            since = max(v.valid_until or 0 for _, v in state.tables.prefix((seen.shard,)))
        if since > max(kept, seen.before.meta.since or 0):
            raise Broken(f"{seen.shard} gives up what was before {since}; kept is from {kept} on")

    def _check_shards(self) -> None:
        """No table is ahead of the commits, and nothing was tidied that is not applied."""
        states = self.sim.watch.states
        txns = states.get(TXNS)
        if txns is None or txns.meta.upper is None:
            return
        for shard, state in states.items():
            upper = state.meta.upper
            if shard == TXNS or upper is None:  # or dropped, and over
                continue
            if upper > txns.meta.upper:
                raise Broken(f"{shard} is at {upper}, beyond the database at {txns.meta.upper}")
            progress = txns.tidied.get((shard,))
            if progress is not None and progress.tidied_through >= upper:
                raise Broken(f"{shard} is at {upper}, and tidied through {progress.tidied_through}")

    def _on_commit(self, seen: Seen) -> None:
        for diff in seen.record.diffs:
            version = diff.after
            if isinstance(version, TableVersion) and version.table not in self.reference.tables:
                keys = len(version.row_keys) + len(version.sort_keys)
                assert version.kind != "aggregate"
                self.reference.create(version.table, version.kind, keys)
        for said in seen.commits:
            self._commits.append(said["time"])
            op = said.get("metadata", {}).get("op")
            if op is not None:
                self.reference.committed(op, said["time"])

    def _versions(self) -> Sequence[TableVersion]:
        state = self.sim.watch.states.get(TXNS)
        return () if state is None else [version for _, version in state.tables.range()]

    # --- the end

    def _at_end(self) -> None:
        """In calm weather everything can be read as it was, and again when all is settled."""
        with self.open(self.sim.outside) as db:
            self._check_all(db, 5)
            for version in self._versions():
                _apply(db, version.table, self._random("end"))
            self._check_all(db, 2)
            if "attachers" in self.guests:
                self._check_copied(db)
            for subscriber in self.subscribers:
                subscriber.finish(db)
            if self._vacuums:
                self._vacuum_all(db)
                if "litterers" in self.guests:
                    self._sweep_all(db)
                self._check_all(db, 2)

    def _check_copied(self, db: Database) -> None:
        """All of the log upstream is there, once."""
        there = sorted(row[2] for row in rows_of(db[HELD].scan().to_arrow()) if row[1] == 0)
        if there != list(range(1, self.upstream.position + 1)):
            raise Broken(f"copied through {self.upstream.position}, and there is {there}")

    def _sweep_all(self, db: Database) -> None:
        """What nobody needs goes in the end: what was never committed, and what arrived late."""
        for _ in range(_SWEEPS):
            self.sim.scheduler.now += 3_600_000_000
            db.vacuum()
            self.sim.watch.look()
            forced = self.sweeper.forced
            garbage = [k for k in self.sim.watch.unneeded() if session_of(k) not in forced]
            if not garbage:
                return
        raise Broken(f"{_SWEEPS} vacuums, one an hour, leave {garbage}")

    def _vacuum_all(self, db: Database) -> None:
        """What is dead goes in the end, with the sessions that hold it back and are dead, too."""
        for _ in range(_VACUUMS):
            self.sim.scheduler.now += 3_600_000_000
            db.vacuum()
            self.sim.watch.look()
            waiting = [
                key[1]
                for state in self.sim.watch.states.values()
                for key, _ in state.dead.range()
                if is_part(key[1])
            ]
            if not waiting:
                break
        else:
            raise Broken(f"{_VACUUMS} vacuums, one an hour, leave {waiting}")
        dead = {key[1] for state in self.sim.watch.states.values() for key, _ in state.dead.range()}
        forgotten = [key for key in self.sim.watch.left_behind() if key not in dead]
        if forgotten:
            raise Broken(f"nobody remembers that these are dead: {forgotten}")

    def _check_all(self, db: Database, moments: int) -> None:
        times = self.times()
        picked = sorted({times[-1], *times[:: max(1, len(times) // moments)]})
        for version in self._versions():
            for time in [t for t in picked if _holds(version, t)]:
                if time < self.since(version.table):
                    continue
                table = db.as_of(Micros(time))[version.name]
                self.reference.check(version.table, rows_of(table.scan().to_arrow()), [time])
                key = bisect_left(times, time) % KEYS
                self.reference.check(
                    version.table,
                    rows_of(table.get(key)),
                    [time],
                    asked=lambda row, key=key: row[0] == key,  # type: ignore[misc]
                )


def _apply(db: Database, table: str, _: Random) -> None:
    store = db._handle.store  # noqa: SLF001  below what users hold
    apply_table(store, table, Deadline(store.env, 20), commits_max=2)
    store.txns.tidy(Deadline(store.env, 20))


def _tend(db: Database, table: str, random: Random) -> None:
    """Compacts, or splits a leaf anywhere."""
    store = db._handle.store  # noqa: SLF001
    version = store.txns.table_by_id(store.txns.look(Deadline(store.env, 20)), table)
    machine = store.data(table)
    if random.random() < 0.7 or machine.ask(lambda s: s.leaves.count()) > 5:
        strategy = random.choice([None, *STRATEGIES])
        db.compact(version.name, strategy=strategy, timeout=25)
        return
    look = machine.look(Deadline(store.env, 20))
    point = KeyCodec(TableSchema.from_version(version)).encode((random.randrange(KEYS),))
    leaf = look.ask(lambda s: leaf_at(s, point))
    if leaf.interval.lower != point:
        machine.submit(Split(leaf.id, leaf.interval.lower, (point,)), Deadline(store.env, 20))


def _vacuum(db: Database, table: str, random: Random) -> None:
    """Everything, or one table."""
    if random.random() < 0.5:
        db.vacuum(timeout=25)
        return
    store = db._handle.store  # noqa: SLF001
    version = store.txns.table_by_id(store.txns.look(Deadline(store.env, 20)), table)
    db.vacuum(version.name, timeout=25)


def _guests(seed: int) -> list[str]:
    """Who comes: in most histories nobody does."""
    random = Random(f"guests of {seed}")
    chances = {"attachers": 0.25, "litterers": 0.2, "jumper": 0.15}
    return [guest for guest, chance in chances.items() if random.random() < chance]


def _holds(version: TableVersion, as_of: int | None) -> bool:
    if as_of is None:
        return version.valid_until is None
    until = version.valid_until
    return version.valid_from <= as_of and (until is None or as_of < until)


def story(history: History, error: BaseException) -> str:
    """What a person needs to look into a history that failed."""
    steps = list(history.sim.scheduler.recent)[-40:]
    return "\n".join(
        [
            f"seed {history.seed} failed after {history.sim.scheduler.steps} steps. The last ones:",
            *steps,
            f"{type(error).__name__}: {error}",
            "The same history again, with every step and the traceback:",
            f"    python -m strandline.testing.simulator --seeds 1 --first {history.seed} --trace",
        ]
    )


def failure(seed: int) -> str:
    """The story of the seed's history if it fails; empty if all is well."""
    history = History(seed)
    logged = logging.root.manager.disable
    logging.disable(logging.ERROR)  # what goes wrong on purpose is logged as it should be
    try:
        history.play()
    except Exception as error:  # noqa: BLE001  whatever it is, it is the finding
        return story(history, error)
    finally:
        logging.disable(logged)
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns how many histories failed, at most 1."""
    parser = argparse.ArgumentParser(prog="python -m strandline.testing.simulator")
    parser.add_argument("--seeds", type=int, default=1_000, help="histories to play (1000)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (1)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--trace", action="store_true", help="print every step, in one process")
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.seeds)
    if options.trace:
        for seed in seeds:
            History(seed, log=print).play()
        return 0
    failed = []
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        for number, (seed, told) in enumerate(zip(seeds, pool.map(failure, seeds), strict=True), 1):
            if told:
                failed.append(seed)
                print(told, flush=True)  # noqa: T201  a program's output
            if sys.stderr.isatty():
                progress = f"\r{number} of {len(seeds)} histories, {len(failed)} failed"
                print(progress, end="", file=sys.stderr)  # noqa: T201
    seeds_failed = f": seeds {', '.join(map(str, failed))}" if failed else ""
    print(f"\n{len(seeds)} histories played, {len(failed)} failed{seeds_failed}")  # noqa: T201
    return min(1, len(failed))


if __name__ == "__main__":
    sys.exit(main())
