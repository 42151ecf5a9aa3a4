"""Many processes and kills on one database; what they saw is held against what isolation promises.

python -m tests.txn.histories [--transactions 10000] [--kills 100] [--seed 1]
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import strandline as sl
from strandline.testing.isolation.check import violations
from strandline.testing.isolation.history import Did, Predicate, Saw, Violation
from tests.txn.worker import SETTINGS, TABLES, as_did, create, seen

PROCESSES = 8
THREADS = (1, 1, 3, 1, 2, 1, 1, 4)
"""How many threads of each process share its handle: their commits fall together."""


@dataclass
class Slot:
    """One of the processes, over its restarts."""

    threads: int
    left: int
    process: subprocess.Popen[bytes] | None = None


@dataclass
class Played:
    """What came of it."""

    history: list[Did]
    found: list[Violation]
    kills: int
    unknown: int
    """Transactions that a kill left without an answer, and of them those that had happened."""
    happened: int
    outcomes: Counter[str] = field(default_factory=Counter)


class Run:
    """Workers beside a process that maintains; all of them are killed now and then."""

    def __init__(self, path: Path, *, transactions: int, kills: int, seed: int) -> None:
        self._lake = path / "lake"
        self._journals = path / "journals"
        self._journals.mkdir(parents=True)
        self._errors = path / "errors"
        self._random = random.Random(seed)
        self._kills = kills
        self._number = 0
        self._read_to: Counter[Path] = Counter()
        self._ended = 0
        share = transactions // PROCESSES
        self._slots = [Slot(threads, share // threads * threads) for threads in THREADS]
        self._maintainer = Slot(0, 0)

    def play(self) -> Played:
        """All of it, and what is wrong with its history."""
        with sl.connect(self._lake, settings=SETTINGS) as db:
            create(db)
        killed = 0
        planned = sum(slot.left for slot in self._slots)
        try:
            self._start(self._maintainer)
            for slot in self._slots:
                self._start(slot)
            while any(slot.process is not None for slot in self._slots):
                for slot in (*self._slots, self._maintainer):
                    self._look(slot)
                # At any moment, but evenly over the run, however fast that is.
                done = self._done()
                if killed < self._kills and done >= planned * (killed + 0.5) / self._kills:
                    time.sleep(self._random.random() * 0.02)
                    self._kill(self._random.choice([*self._slots, self._maintainer]))
                    killed += 1
                time.sleep(0.02)
        finally:
            for slot in (*self._slots, self._maintainer):
                if slot.process is not None:
                    slot.process.kill()
                    slot.process.wait()
        return self._judge(killed)

    def _start(self, slot: Slot) -> None:
        self._number += 1
        arguments = ["maintain"]
        if slot.threads:
            seed = self._random.randrange(1 << 30)
            numbers = self._number, seed, slot.threads, slot.left
            arguments = [str(self._journals), *map(str, numbers)]
        with self._errors.open("ab") as errors:
            slot.process = subprocess.Popen(
                [sys.executable, "-m", "tests.txn.worker", str(self._lake), *arguments],
                stderr=errors,
                cwd=Path(__file__).parents[2],
            )

    def _look(self, slot: Slot) -> None:
        if slot.process is None or slot.process.poll() is None:
            return
        if slot.process.returncode:
            raise AssertionError(f"a worker failed: {self._errors.read_text()[-5_000:]}")
        slot.process = None

    def _kill(self, slot: Slot) -> None:
        if slot.process is None or slot.process.poll() is not None:
            return
        if slot.threads and self._random.random() < 0.7:
            self._await_commit(slot)
        slot.process.send_signal(signal.SIGKILL)
        slot.process.wait()
        if not slot.threads:
            self._start(slot)
            return
        # The next one has what is left to do, and another name.
        done = sum(len(_ended(path)) for path in self._journals_of(slot))
        slot.left = max(0, slot.left - done) // slot.threads * slot.threads
        slot.process = None
        if slot.left:
            self._start(slot)

    def _await_commit(self, slot: Slot) -> None:
        """Returns while a commit of it is under way, or what it is told of that."""
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            for path in self._journals_of(slot):
                with path.open("rb") as file:
                    file.seek(max(0, path.stat().st_size - 20))
                    if file.read().endswith(b'"asked": true}\n'):
                        time.sleep(self._random.random() * 0.003)
                        return

    def _journals_of(self, slot: Slot) -> list[Path]:
        assert slot.process is not None
        arguments: Any = slot.process.args
        return list(self._journals.glob(f"p{arguments[5]}.*"))

    def _done(self) -> int:
        """How many transactions ended, about: each look reads what is new."""
        for path in self._journals.iterdir():
            with path.open("rb") as file:
                file.seek(self._read_to[path])
                new = file.read()
            self._read_to[path] += len(new)
            self._ended += new.count(b'"ended"')
        return self._ended

    def _judge(self, kills: int) -> Played:
        history: list[Did] = []
        unknown = happened = 0
        with sl.connect(self._lake) as db:
            for path in sorted(self._journals.iterdir()):
                for did, token in _told(path):
                    known = did
                    if did.outcome == "unknown":
                        unknown += 1
                        known = _asked(db, did, token)
                        happened += known.counts
                    history.append(known)
            history.append(_last(db))
        played = Played(history, violations(history), kills, unknown, happened)
        for did in history:
            played.outcomes[f"{did.isolation}: {did.outcome}"] += 1
        return played


def _ended(path: Path) -> dict[str, dict[str, Any]]:
    """By name, what became of the transactions of a journal, as far as its writer came to know."""
    return {line["ended"]: line for line in _lines(path) if "ended" in line}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):  # else it was killed while it wrote that, before it went on
            yield json.loads(line)


def _told(path: Path) -> Iterator[tuple[Did, tuple[str, int] | None]]:
    ended = _ended(path)
    for found in _lines(path):
        if "did" not in found:
            continue
        did = as_did(found["did"])
        token = None if found["token"] is None else (found["token"][0], found["token"][1])
        known = ended.get(did.name)
        if known is not None:
            time = known.get("time") if token is not None else None
            did = replace(did, outcome=known["outcome"], end=known["end"], time=time)
        elif token is None or not found["asked"]:
            did = replace(did, outcome="aborted")
        yield did, token


def _asked(db: sl.Database, did: Did, token: tuple[str, int] | None) -> Did:
    """The same with what became of it: a second try with its token tells, and settles it."""
    assert token is not None
    transaction = db.transaction(token=token)
    time = transaction.commit().micros
    if time <= transaction.read_time:
        return replace(did, outcome="committed", time=time)
    return replace(did, outcome="aborted")


def _last(db: sl.Database) -> Did:
    """Everything that is there in the end. Who comes last has to see all that was acknowledged."""
    begin = time.monotonic_ns()
    with db.transaction() as transaction:
        found = [(name, transaction[name].scan().to_arrow()) for name in TABLES]
    end = time.monotonic_ns()
    saw = tuple(Saw(Predicate(name), seen(name, rows)) for name, rows in found)
    return Did("last", "last", "strict serializable", begin, end, saw, at=transaction.read_time)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="where the database and the journals stay")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="strandline-histories-") as scratch:
        begun = time.monotonic()
        path = given.keep or Path(scratch)
        run = Run(path, transactions=given.transactions, kills=given.kills, seed=given.seed)
        played = run.play()
        took = time.monotonic() - begun
    count = len(played.history)
    print(f"{count} transactions of {PROCESSES} processes, {played.kills} kills, {took:.0f} s")
    print(f"{played.unknown} left unknown by kills, of which {played.happened} had happened")
    for outcome, count in sorted(played.outcomes.items()):
        print(f"{outcome:<36} {count}")
    for violation in played.found:
        print(violation)
    print(f"{len(played.found)} violations")
    return int(bool(played.found))


if __name__ == "__main__":
    sys.exit(main())
