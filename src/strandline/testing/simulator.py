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
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from random import Random

from strandline.database import Database
from strandline.env import Deadline
from strandline.parts.keys import KeyCodec
from strandline.parts.schema import TableSchema
from strandline.settings import Settings
from strandline.state.commands import Split
from strandline.state.plan import STRATEGIES, leaf_at
from strandline.testing.actors import Crowd, Ddl, JobWriter, Keeper, Reader, Truncator
from strandline.testing.ending import check_all, check_copied, sweep_all, vacuum_all
from strandline.testing.followers import LongReader, Subscriber
from strandline.testing.holders import HELD, Attacher
from strandline.testing.jobs import COLUMNS, KEYS
from strandline.testing.jumps import Jumper, Operator
from strandline.testing.litter import Litterer, Sweeper
from strandline.testing.observed import DATABASE, TXNS, Observed
from strandline.testing.simulation import World
from strandline.testing.transactors import Transactor
from strandline.testing.watch import Broken
from strandline.txn.apply import apply_table
from strandline.txn.handle import Handle, Origin
from strandline.txn.store import Store
from strandline.upkeep.background import open_store

__all__ = ["History", "failure", "main", "story"]

_STEPS = 4_000

Person = JobWriter | Reader | Transactor


class History(Observed):
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
        super().__init__(seed, _guests(seed) if guests is None else guests)
        self._steps = steps
        self.kept: Sequence[str] = ["events", "items"]
        if "attachers" in self.guests:
            self.kept = [*self.kept, HELD]
        self.settings = _settings(self.sim.character)
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
        self.sweeper = Sweeper(self, self._random("sweeper"), turns=10)
        self.attachers: list[Attacher] = []
        self.litterers: list[Litterer] = []
        self.jumper = Jumper(self, self._random("jumper"), turns=8)
        self.operator = Operator(self, self.meta, lambda: self.jumper.over)
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
                    properties={**self.properties, "compaction_parts": 4},
                )
        self.sim.play(self._steps, at_end=self._at_end)
        return self.sim.scheduler.trace_hash()

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
            people.append(JobWriter(self, name, self._random(name), jobs=jobs, shared=shared))
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
        ddl = Ddl(self, self._random("ddl"), turns=6, properties=self.properties)
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
        if not self.vacuums:
            act(
                "truncator",
                Truncator(self, self._random("truncator"), self.cuts).live,
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

    # --- the end

    def _at_end(self) -> None:
        """In calm weather everything can be read as it was, and again when all is settled."""
        with self.open(self.sim.outside) as db:
            check_all(db, self, 5)
            for version in self.versions():
                _apply(db, version.table, self._random("end"))
            check_all(db, self, 2)
            if "attachers" in self.guests:
                check_copied(db, self.upstream)
            for subscriber in self.subscribers:
                subscriber.finish(db)
            if self.vacuums:
                vacuum_all(db, self.sim)
                if "litterers" in self.guests:
                    sweep_all(db, self.sim, self.sweeper.forced)
                check_all(db, self, 2)


def _apply(db: Database, table: str, _: Random) -> None:
    store = db._handle.store  # noqa: SLF001  below what users hold
    apply_table(store, table, Deadline(store.env, 20), commits_max=2)
    store.txns.tidy(Deadline(store.env, 20))


def _tend(db: Database, table: str, random: Random) -> None:
    """Compacts, or splits a leaf anywhere."""
    store = db._handle.store  # noqa: SLF001  below what users hold
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
    store = db._handle.store  # noqa: SLF001  below what users hold
    version = store.txns.table_by_id(store.txns.look(Deadline(store.env, 20)), table)
    db.vacuum(version.name, timeout=25)


def _settings(random: Random) -> Settings:
    return Settings(
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


def _guests(seed: int) -> list[str]:
    """Who comes: in most histories nobody does."""
    random = Random(f"guests of {seed}")
    chances = {"attachers": 0.25, "litterers": 0.2, "jumper": 0.15}
    return [guest for guest, chance in chances.items() if random.random() < chance]


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
                print(progress, end="", file=sys.stderr)  # noqa: T201  as above
    seeds_failed = f": seeds {', '.join(map(str, failed))}" if failed else ""
    print(f"\n{len(seeds)} histories played, {len(failed)} failed{seeds_failed}")  # noqa: T201  as above
    return min(1, len(failed))


if __name__ == "__main__":
    sys.exit(main())
