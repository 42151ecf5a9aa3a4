"""Shards for tests: what is in them as plain lists, and a place where requests go wrong as told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from strandline.env import RealEnv
from strandline.location import Location
from strandline.location.memory import MemoryStore
from strandline.settings import Settings
from strandline.shard import ReadHandle, WriteHandle, open_shard, read_split
from tests.support.shards import PlannedConsensus

__all__ = [
    "QUIET",
    "SHARD",
    "WORDS",
    "Meddling",
    "Pair",
    "listed",
    "opened",
    "planned",
    "rows",
    "updates",
]

WORDS = pa.schema([pa.field("word", pa.string(), nullable=False)])
SHARD = "s0123456789abcdef"
QUIET = Settings(background=False, timeout_seconds=120.0)

Pair = tuple[WriteHandle, ReadHandle]
Update = tuple[str, int, int]


class Meddling(RealEnv):
    """Sleeping takes no time, though the clock moves; the next of `meanwhile` happens then."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: list[Callable[[], object]] = []
        self.slept = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.slept

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        if self.meanwhile:
            self.meanwhile.pop(0)()


def opened(location: Location, shard: str = SHARD, **options: Any) -> Pair:
    """Handles on a shard of words."""
    return open_shard(location, shard, **{"schema": WORDS, "settings": QUIET, **options})


def updates(*each: Update) -> pa.Table:
    """Updates `(word, time, diff)` as they are handed over."""
    words, times, diffs = zip(*each, strict=True) if each else ((), (), ())
    return pa.table(
        {
            "word": pa.array(words, pa.string()),
            "__time": pa.array(times, pa.int64()),
            "__diff": pa.array(diffs, pa.int64()),
        }
    )


def rows(location: Location, read: ReadHandle, as_of: int, splits: int = 1) -> dict[str, int]:
    """How often each word is there, read split by split."""
    found: dict[str, int] = {}
    for split in read.snapshot(as_of, splits, timeout=60):
        for row in read_split(location, split, settings=QUIET).read_all().to_pylist():
            assert row["word"] not in found
            found[row["word"]] = row["__diff"]
    return found


def listed(table: pa.Table) -> list[Update]:
    """Updates as sorted tuples."""
    return sorted((r["word"], r["__time"], r["__diff"]) for r in table.to_pylist())


def planned(location: Location, words: Iterable[str]) -> tuple[Location, PlannedConsensus]:
    """The same location, its next compare-and-sets going as the words say."""
    consensus = PlannedConsensus(MemoryStore())
    consensus.inner = location.consensus  # type: ignore[assignment]  # any adapter will do
    consensus.plan = list(words)
    return replace(location, consensus=consensus), consensus
