"""Processes killed at any moment: what was acknowledged is there once, and nothing by half."""

from __future__ import annotations

import random
import select
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import strandline as sl
from tests.crash.appender import size_of

APPENDER = Path(__file__).with_name("appender.py")


class Child:
    """A process that appends every `step`-th batch from `first` on, until it is killed."""

    def __init__(self, path: Path, first: int, step: int, *more: str) -> None:
        self.acknowledged: list[int] = []
        self.next = first
        self._step = step
        self._process = subprocess.Popen(
            [sys.executable, str(APPENDER), str(path), str(first), str(step), *more],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._out = self._process.stdout

    def run(self, acknowledgements: int, then_seconds: float) -> None:
        """Lets it come to so many acknowledgements, and then go on for some moments."""
        for _ in range(acknowledgements):
            self._take(self._out.readline())
        # Not to wait for anything: the moment of its death shall be any.
        select.select([], [], [], then_seconds)

    def kill(self) -> None:
        """Kills it, and takes in what it had said until then."""
        self._process.send_signal(signal.SIGKILL)
        for line in self._out.readlines():
            self._take(line)
        assert self._end() == -signal.SIGKILL

    def _end(self) -> int:
        self._out.close()
        return self._process.wait(timeout=300)

    def _take(self, line: str) -> None:
        if not line:
            raise AssertionError(f"the appender ended by itself, with status {self._end()}")
        number = int(line)
        assert number == self.next
        self.acknowledged.append(number)
        self.next += self._step


def check(path: Path, acknowledged: set[int]) -> set[int]:
    """Holds the table against what was acknowledged; the batches that are there."""
    with sl.connect(path, mode="r") as db:
        found = db["rows"].scan().to_arrow()
    rows = Counter(zip(found["batch"].to_pylist(), found["row"].to_pylist(), strict=True))
    doubled = [row for row, count in rows.items() if count > 1]
    assert doubled == []
    sizes = Counter(number for number, _ in rows)
    assert {n: size for n, size in sizes.items() if size != size_of(n)} == {}
    assert acknowledged <= sizes.keys()
    return set(sizes)


def kill_in_a_loop(path: Path, *, kills: int, seed: int) -> None:
    """One process at a time; each goes on where nobody knows how far the one before came."""
    moments = random.Random(seed)
    acknowledged: set[int] = set()
    first = 0
    for _ in range(kills):
        child = Child(path, first, 1)
        child.run(moments.randrange(1, 25), moments.random() * 0.03)
        child.kill()
        acknowledged |= set(child.acknowledged)
        there = check(path, acknowledged)
        assert max(there) <= child.next
        first = child.next + 1


def kill_with_tokens(path: Path, *, kills: int, seed: int) -> None:
    """Each process begins with the batch that the one before may or may not have committed."""
    moments = random.Random(seed)
    first = 0
    for _ in range(kills):
        child = Child(path, first, 1, "tokens")
        child.run(moments.randrange(1, 25), moments.random() * 0.03)
        child.kill()
        first = child.next
        there = check(path, set(range(first)))
        assert there <= set(range(first + 1))


def kill_one_of_two(path: Path, *, kills: int, seed: int) -> None:
    """Two processes at once; the one goes on whenever the other is killed."""
    moments = random.Random(seed)
    acknowledged: set[int] = set()
    children = [Child(path, 0, 2), Child(path, 1, 2)]
    children[0].run(1, 0)
    for _ in range(kills):
        which = moments.randrange(2)
        for child in children:
            child.run(moments.randrange(1, 8), 0)
        victim = children[which]
        victim.run(0, moments.random() * 0.02)
        victim.kill()
        acknowledged |= set(victim.acknowledged)
        check(path, acknowledged)
        children[which] = Child(path, victim.next + 2, 2)
    for child in children:
        child.run(1, 0)
        child.kill()
        acknowledged |= set(child.acknowledged)
    check(path, acknowledged)


def test_a_killed_process_leaves_what_it_was_told_and_no_half_of_a_batch(tmp_path: Path) -> None:
    kill_in_a_loop(tmp_path / "db", kills=5, seed=1)


def test_with_tokens_every_batch_is_there_once_however_often_it_was_sent(tmp_path: Path) -> None:
    kill_with_tokens(tmp_path / "db", kills=4, seed=2)


def test_a_killed_process_does_not_harm_the_one_beside_it(tmp_path: Path) -> None:
    kill_one_of_two(tmp_path / "db", kills=3, seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 13))
def test_many_processes_are_killed_one_after_the_other(tmp_path: Path, seed: int) -> None:
    kill_in_a_loop(tmp_path / "plain", kills=40, seed=seed)
    kill_with_tokens(tmp_path / "tokens", kills=40, seed=seed)
    kill_one_of_two(tmp_path / "two", kills=25, seed=seed)
