"""Txns shards by themselves, for tests: words as data, and places where requests go wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from strandline.location import Location
from strandline.settings import Settings
from strandline.shard import open_shard
from strandline.testing.faults import (
    FAIL_AFTER,
    LOST,
    Call,
    Fault,
    Faults,
    FaultyBlob,
    FaultyConsensus,
)
from strandline.txn import Committed, TxnsHandle
from tests.shard.helpers import QUIET, WORDS

__all__ = [
    "PARTS",
    "TXNS",
    "Words",
    "commit",
    "counted",
    "described",
    "faulty",
    "handle",
    "lossy",
    "words",
]

TXNS = "s00000000000000ff"
PARTS = replace(QUIET, inline_bytes_max=0)
"""Every write becomes a part."""

Words = dict[str, int]
"""How often each word is there."""


def described(location: Location, *shards: str) -> None:
    """Makes shards of words."""
    for shard in shards:
        for each in open_shard(location, shard, schema=WORDS, settings=QUIET):
            each.close()


def handle(location: Location, settings: Settings = QUIET, **more: Any) -> TxnsHandle:
    """A handle on the txns shard of the test."""
    return TxnsHandle.open(location, TXNS, settings=settings, **more)


def counted(table: Any) -> Words:
    """A snapshot as a dict."""
    found: Words = {}
    for row in table.read_all().to_pylist():
        assert row["word"] not in found
        found[row["word"]] = row["__diff"]
    return found


def words(txns: TxnsHandle, shard: str, as_of: int) -> Words:
    """What a shard has as of a time, by the handle."""
    return counted(txns.snapshot(shard, as_of, timeout=60))


def commit(txns: TxnsHandle, time: int, **writes: Words) -> Committed:
    """Commits to shards, whose ids are the keywords."""
    txn = txns.begin()
    for shard, found in writes.items():
        txn.write(shard, {"word": list(found), "__diff": list(found.values())})
    return txn.commit_at(txns, time)


def faulty(location: Location, decide: Callable[[Call], Fault | None]) -> tuple[Location, Faults]:
    """The same location, and what goes wrong with requests to it."""
    faults = Faults(decide)
    return replace(
        location,
        blob=FaultyBlob(location.blob, faults),
        consensus=FaultyConsensus(location.consensus, faults),
    ), faults


def lossy(location: Location) -> Location:
    """The same location, behind a network that loses requests, and answers, again and again."""
    puts = 0

    def decide(call: Call) -> Fault | None:
        nonlocal puts
        if call.kind != "compare_and_set":
            return None
        puts += 1
        return FAIL_AFTER if puts % 3 == 0 else LOST if puts % 4 == 0 else None

    return faulty(location, decide)[0]
