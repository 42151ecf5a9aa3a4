"""Kills processes before and after every kind of call that a script makes, at many places each.

    python -m tests.crash.kills --kills 300 --seed 1

A first run counts the calls. Then databases are made anew, a few at once. On each, process after
process goes on with the script where the one before was killed, and is killed itself. What is
there is compared with what the script must give: after every kill, and when it is through.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import strandline as sl
from strandline.state.invariants import broken
from strandline.testing.killing import Kill, Kind
from tests.crash.script import STEPS, Model, found_in, models
from tests.support.deadlines import within

ROOT = Path(__file__).parents[2]
END = len(STEPS) - 1
MODELS = models()

Calls = list[dict[Kind, int]]
"""How many calls of each kind each step takes where nobody is killed."""


@dataclass(frozen=True)
class Placed:
    """A kill, and the step of the script in which its calls are counted."""

    step: int
    kill: Kill

    def __str__(self) -> str:
        when = "after" if self.kill.after else "before"
        return f"{when} {self.kill.kind} {self.kill.nth} of step {self.step}"


@dataclass
class Acknowledged:
    """What processes said of the steps that they had done."""

    steps: int = 0
    """How many, from the first one on."""
    commits: dict[int, int] = field(default_factory=dict)
    """Times of commits by step."""
    calls: Calls = field(default_factory=list)

    def hear(self, line: str) -> None:
        said = json.loads(line)
        assert said["step"] == self.steps
        self.steps += 1
        self.calls.append(said["calls"])
        if said["commit"] is not None:
            self.commits[said["step"]] = said["commit"]


def work(path: Path, heard: Acknowledged, last: int, placed: Placed | None = None) -> bool:
    """Works through the steps from the first unacknowledged to `last`; whether it was killed."""
    command = [sys.executable, "-m", "tests.crash.worker", path, heard.steps, last]
    if placed is not None:
        kill = placed.kill
        command += [placed.step, kill.kind, kill.nth, "after" if kill.after else "before"]
    done = subprocess.run(
        list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    for line in done.stdout.splitlines():
        heard.hear(line)
    killed = done.returncode == -signal.SIGKILL
    assert killed or done.returncode == 0, f"{placed}: {done.stderr}"
    if killed:
        assert placed is not None
        assert placed.step in (heard.steps, 0)
    else:
        assert heard.steps == last + 1
    return killed


def check(path: Path, heard: Acknowledged) -> None:
    """What was acknowledged is there, the step after it as a whole or not at all, all once.

    The moments of earlier commits are looked at in the end.
    """
    if not (path / "log.sqlite").exists() or not (path / "strandline.json").exists():
        assert heard.steps == 0
        return
    with sl.connect(path, mode="r") as db:
        assert _broken(db) == []
        found = {name: found_in(db[name]) for name in ("events", "items") if name in db}
        possible = [MODELS[heard.steps], MODELS[min(heard.steps + 1, END + 1)]]
        assert any(_is(found, model) for model in possible), _differences(found, possible)
        moments = [*heard.commits.items()]
        _check_history(db, moments if heard.steps > END else moments[-1:])


def _is(found: dict[str, Counter[Any]], model: Model) -> bool:
    return all(found.get(name, Counter()) == model.rows(name) for name in ("events", "items"))


def _differences(found: dict[str, Counter[Any]], possible: Iterable[Model]) -> str:
    lines = []
    for model in possible:
        for name, rows in found.items():
            lines.append(f"{name}: missing {model.rows(name) - rows}, too many"
                         f" {rows - model.rows(name)}")  # fmt: skip
    return "\n".join(lines)


def _check_history(db: sl.Database, moments: Iterable[tuple[int, int]]) -> None:
    """The table that keeps its history shows the moments of acknowledged commits as they were."""
    for step, time in moments:
        found = found_in(db["events"].as_of(sl.Micros(time)))
        assert found == MODELS[step + 1].rows("events"), f"the moment of step {step}"


def _broken(db: sl.Database) -> list[str]:
    store = db._handle.store
    shards = [store.txns.machine, *(store.data(db[name].id) for name in db)]
    return [text for machine in shards for text in machine.look(within(60)).ask(broken)]


# --- where to kill


def counted(path: Path) -> Calls:
    """The calls of a run that nobody kills, which has to come out right."""
    heard = Acknowledged()
    assert not work(path, heard, END)
    check(path, heard)
    return heard.calls


def plan(calls: Calls, kills: int, chance: random.Random) -> list[Placed]:
    """So many places: before and after each kind as often as each other kind, where there are
    enough calls of it, and spread over its calls.
    """
    places: dict[tuple[Kind, bool], list[Placed]] = defaultdict(list)
    for step, counts in enumerate(calls):
        for kind, count in sorted(counts.items()):
            for after in (False, True):
                places[kind, after] += [
                    Placed(step, Kill(kind, nth, after=after)) for nth in range(1, count + 1)
                ]
    shares = dict.fromkeys(places, 0)
    while sum(shares.values()) < min(kills, sum(map(len, places.values()))):
        room = [key for key in places if shares[key] < len(places[key])]
        shares[min(room, key=lambda key: shares[key])] += 1
    return [one for key, share in shares.items() for one in _spread(places[key], share, chance)]


def _spread(places: Sequence[Placed], count: int, chance: random.Random) -> list[Placed]:
    """One from each of so many stretches of about equal length."""
    ends = [number * len(places) // count for number in range(count + 1)]
    return [places[chance.randrange(*stretch)] for stretch in pairwise(ends)]


def chains(placed: list[Placed], length: int, chance: random.Random) -> list[list[Placed]]:
    """The kills dealt out to databases: some are killed again in the step they recover in."""
    dealt = [*placed]
    chance.shuffle(dealt)
    count = -(-len(dealt) // length)
    return [sorted(dealt[number::count], key=lambda p: p.step) for number in range(count)]


# --- killing


def play(path: Path, chain: Sequence[Placed]) -> list[Placed]:
    """One database, whose processes are killed one after another; those that were.

    A place can be missed by a process that goes on where another was killed: it need not do the
    same calls again.
    """
    heard = Acknowledged()
    story: list[Placed] = []
    try:
        for placed in chain:
            if placed.step and placed.step < heard.steps:
                continue  # passed already
            if work(path, heard, max(placed.step, heard.steps), placed):
                story.append(placed)
            check(path, heard)
        if heard.steps <= END:
            work(path, heard, END)
            check(path, heard)
    except Exception as error:
        error.add_note(f"Killed on the way: {', '.join(map(str, story)) or 'nobody'}.")
        raise
    return story


@dataclass
class Report:
    """How often processes were killed, by kind of call."""

    before: Counter[str] = field(default_factory=Counter)
    after: Counter[str] = field(default_factory=Counter)

    def add(self, killed: Iterable[Placed]) -> None:
        for placed in killed:
            (self.after if placed.kill.after else self.before)[placed.kill.kind] += 1

    @property
    def kills(self) -> int:
        return self.before.total() + self.after.total()

    def __str__(self) -> str:
        kinds = sorted(self.before.keys() | self.after.keys())
        lines = [f"{kind:16}{self.before[kind]:8}{self.after[kind]:8}" for kind in kinds]
        lines.append(f"{'all':16}{self.before.total():8}{self.after.total():8}")
        return "\n".join([f"{'killed at':16}{'before':>8}{'after':>8}", *lines])


def kill_at_calls(
    path: Path, *, kills: int, seed: int, length: int = 10, workers: int = 3
) -> tuple[Report, set[str]]:
    """Kills as often as that; what was hit, and the kinds of calls that there are."""
    chance = random.Random(seed)
    calls = counted(path / "counted")
    placed = plan(calls, kills, chance)
    report = Report()

    def hit(named: tuple[int, list[Placed]]) -> list[Placed]:
        return play(path / f"chain{named[0]}", named[1])

    with ThreadPoolExecutor(workers) as pool:
        missed = Counter(placed)
        for killed in pool.map(hit, enumerate(chains(placed, length, chance))):
            report.add(killed)
            missed -= Counter(killed)
        # Alone, in a process that does what the counted one did, none can be missed.
        alone = [[one] for one in missed.elements()]
        for one, killed in zip(alone, pool.map(hit, enumerate(alone, len(placed))), strict=True):
            assert killed == one
            report.add(killed)
    return report, {cast("str", kind) for counts in calls for kind in counts}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns 1 if a kind of call was not hit on both sides."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.kills")
    parser.add_argument("--kills", type=int, default=300, help="processes to kill (300)")
    parser.add_argument("--seed", type=int, default=1, help="decides where (1)")
    parser.add_argument("--workers", type=int, default=3, help="databases at once (3)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        report, kinds = kill_at_calls(
            Path(folder), kills=options.kills, seed=options.seed, workers=options.workers
        )
    print(report)
    complete = set(report.before) == set(report.after) == kinds
    print(f"{report.kills} kills, nothing lost, nothing doubled", end="")
    print("" if complete else "; some kinds of calls were not hit on both sides")
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
