"""Whatever is passed where: a public call does what it says, or refuses before anything happens."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import strandline as sl
from strandline.errors import Corruption, StrandlineError, UsageError
from strandline.shard import (
    Batch,
    SnapshotSplit,
    compact,
    list_holds,
    open_shard,
    read_split,
    release_hold,
    vacuum_shard,
)
from strandline.txn import Txn, TxnsHandle
from tests.shard.helpers import QUIET, SHARD, WORDS, opened

TXNS = "s00000000000000ff"
D0 = "s00000000000000d0"
LONG = "x" * 1_000_000

JUNK: list[Any] = [
    None,
    True,
    0,
    -1,
    -1.0,
    1.5,
    float("nan"),
    float("inf"),
    -float("inf"),
    2**63 - 1,
    2**63,
    10**400,
    "",
    " ",
    "x\0y",
    "\ud800",
    SHARD + "\n",
    LONG,
    b"x",
    b"",
    [],
    [1],
    {},
    {"": 1},
    ("", 0),
    ("\ud800", 1),
    (LONG, 1),
    ("job", -1),
    ("job", True),
    set(),
    object(),
    np.array([1, 2]),
    pa.scalar(1),
    pa.table({}),
    lambda: None,
    WORDS,
]


def shown(value: Any) -> str:
    return repr(value)[:30].encode("ascii", "replace").decode().split(" at 0x")[0]


class World:
    """Handles on a shard and on a txns shard, and what has become of the location."""

    def __init__(self) -> None:
        self.location = location = sl.open_location(f"memory://{secrets.token_hex(8)}")
        self.write, self.read = opened(location)
        self.write.compare_and_append({"word": ["a"]}, 0, 5, time=0)
        self.hold = self.read.hold("mine")
        for each in opened(location, D0):
            each.close()
        self.txns = TxnsHandle.open(location, TXNS, settings=QUIET)
        self.txns.register(D0, 1)
        self.split = self.read.snapshot(0)[0]

    def contents(self) -> Any:
        records = {
            key: self.location.consensus.head(key, timeout=5)
            for key in self.location.consensus.keys(timeout=5)
        }
        return records, sorted(i.key for i in self.location.blob.list("", timeout=5))

    def close(self) -> None:
        for each in (self.read, self.write, self.txns, self.location):
            each.close()


def builder(world: World) -> Any:
    return world.write.batch_builder(5)


def wrote(world: World) -> Any:
    txn = world.txns.begin()
    txn.write(D0, {"word": ["a"]})
    return txn


def options(**more: Any) -> dict[str, Any]:
    return {"settings": QUIET, **more}


Call = Callable[[World, Any], Any]
CALLS: dict[str, Call] = {
    "open_shard location": lambda _, x: open_shard(x, SHARD, **options()),
    "open_shard shard_id": lambda w, x: open_shard(w.location, x, **options(schema=WORDS)),
    "open_shard schema": lambda w, x: open_shard(w.location, "s" + "5" * 16, **options(schema=x)),
    "open_shard row_keys": lambda w, x: open_shard(
        w.location, "s" + "6" * 16, **options(schema=WORDS, row_keys=x)
    ),
    "open_shard settings": lambda w, x: open_shard(w.location, SHARD, settings=x),
    "open_shard timeout": lambda w, x: open_shard(w.location, SHARD, **options(timeout=x)),
    "compact location": lambda _, x: compact(x, SHARD, **options()),
    "compact shard_id": lambda w, x: compact(w.location, x, **options()),
    "compact strategy": lambda w, x: compact(w.location, SHARD, **options(strategy=x)),
    "compact timeout": lambda w, x: compact(w.location, SHARD, **options(timeout=x)),
    "vacuum_shard location": lambda _, x: vacuum_shard(x, SHARD, **options()),
    "vacuum_shard shard_id": lambda w, x: vacuum_shard(w.location, x, **options()),
    "vacuum_shard delay": lambda w, x: vacuum_shard(w.location, SHARD, **options(delay_seconds=x)),
    "vacuum_shard timeout": lambda w, x: vacuum_shard(w.location, SHARD, **options(timeout=x)),
    "list_holds location": lambda _, x: list_holds(x, SHARD, **options()),
    "list_holds shard_id": lambda w, x: list_holds(w.location, x, **options()),
    "list_holds timeout": lambda w, x: list_holds(w.location, SHARD, **options(timeout=x)),
    "release_hold shard_id": lambda w, x: release_hold(w.location, x, "mine", **options()),
    "release_hold name": lambda w, x: release_hold(w.location, SHARD, x, **options()),
    "release_hold timeout": lambda w, x: release_hold(
        w.location, SHARD, "mine", **options(timeout=x)
    ),
    "read_split location": lambda w, x: read_split(x, w.split, **options()),
    "read_split split": lambda w, x: read_split(w.location, x, **options()),
    "read_split timeout": lambda w, x: read_split(w.location, w.split, **options(timeout=x)),
    "append updates": lambda w, x: w.write.append(x, 9, time=5),
    "append new_upper": lambda w, x: w.write.append({"word": ["a"]}, x, time=5),
    "append lower": lambda w, x: w.write.append({"word": ["a"]}, 9, lower=x, time=5),
    "append time": lambda w, x: w.write.append({"word": ["a"]}, 9, time=x),
    "append token": lambda w, x: w.write.append({"word": ["a"]}, 9, time=5, token=x),
    "append timeout": lambda w, x: w.write.append({"word": ["a"]}, 9, time=5, timeout=x),
    "cas updates": lambda w, x: w.write.compare_and_append(x, 5, 9, time=5),
    "cas expected": lambda w, x: w.write.compare_and_append({"word": ["a"]}, x, 9, time=5),
    "cas new_upper": lambda w, x: w.write.compare_and_append({"word": ["a"]}, 5, x, time=5),
    "cas time": lambda w, x: w.write.compare_and_append({"word": ["a"]}, 5, 9, time=x),
    "cas token": lambda w, x: w.write.compare_and_append({"word": ["a"]}, 5, 9, time=5, token=x),
    "cas timeout": lambda w, x: w.write.compare_and_append(None, 5, 9, timeout=x),
    "advance_upper": lambda w, x: w.write.advance_upper(x),
    "advance_upper timeout": lambda w, x: w.write.advance_upper(9, timeout=x),
    "finish timeout": lambda w, x: w.write.finish(timeout=x),
    "fetch_upper timeout": lambda w, x: w.write.fetch_upper(timeout=x),
    "batch_builder lower": lambda w, x: w.write.batch_builder(x),
    "builder add": lambda w, x: builder(w).add(x, time=5),
    "builder add time": lambda w, x: builder(w).add({"word": ["a"]}, time=x),
    "builder finish": lambda w, x: builder(w).finish(x),
    "builder finish timeout": lambda w, x: builder(w).finish(9, timeout=x),
    "handle compact": lambda w, x: w.write.compact(x),
    "handle compact timeout": lambda w, x: w.write.compact(timeout=x),
    "write close timeout": lambda w, x: w.write.close(timeout=x),
    "read close timeout": lambda w, x: w.read.close(timeout=x),
    "snapshot as_of": lambda w, x: w.read.snapshot(x, timeout=0.001),
    "snapshot splits": lambda w, x: w.read.snapshot(0, x),
    "snapshot timeout": lambda w, x: w.read.snapshot(0, timeout=x),
    "read as_of": lambda w, x: w.read.read(x, timeout=0.001),
    "read timeout": lambda w, x: w.read.read(0, timeout=x),
    "listen as_of": lambda w, x: w.read.listen(x),
    "listen until": lambda w, x: w.read.listen(0, until=x),
    "listen timeout": lambda w, x: w.read.listen(0, timeout=x),
    "downgrade_since": lambda w, x: w.read.downgrade_since(x),
    "downgrade_since timeout": lambda w, x: w.read.downgrade_since(0, timeout=x),
    "hold name": lambda w, x: w.read.hold(x),
    "hold since": lambda w, x: w.read.hold("more", x),
    "hold timeout": lambda w, x: w.read.hold("more", timeout=x),
    "take name": lambda w, x: w.read.take(x),
    "take timeout": lambda w, x: w.read.take("mine", timeout=x),
    "held downgrade": lambda w, x: w.hold.downgrade_since(x),
    "held downgrade timeout": lambda w, x: w.hold.downgrade_since(0, timeout=x),
    "held close timeout": lambda w, x: w.hold.close(timeout=x),
    "Batch.from_bytes": lambda _, x: Batch.from_bytes(x),
    "SnapshotSplit.from_bytes": lambda _, x: SnapshotSplit.from_bytes(x),
    "Txn.from_bytes": lambda _, x: Txn.from_bytes(x),
    "Staged.from_bytes": lambda _, x: sl.Staged.from_bytes(x),
    "txns location": lambda _, x: TxnsHandle.open(x, TXNS, **options()),
    "txns id": lambda w, x: TxnsHandle.open(w.location, x, **options()),
    "txns init_time": lambda w, x: TxnsHandle.open(
        w.location, "s" + "7" * 16, **options(init_time=x)
    ),
    "txns settings": lambda w, x: TxnsHandle.open(w.location, TXNS, settings=x),
    "txns timeout": lambda w, x: TxnsHandle.open(w.location, TXNS, **options(timeout=x)),
    "register shard": lambda w, x: w.txns.register(x, 2),
    "register time": lambda w, x: w.txns.register(D0, x),
    "register timeout": lambda w, x: w.txns.register(D0, 2, timeout=x),
    "forget shard": lambda w, x: w.txns.forget(x, 2),
    "forget time": lambda w, x: w.txns.forget(D0, x),
    "forget timeout": lambda w, x: w.txns.forget(D0, 2, timeout=x),
    "registered as_of": lambda w, x: w.txns.registered(x, timeout=0.001),
    "apply_le": lambda w, x: w.txns.apply_le(x),
    "apply_le timeout": lambda w, x: w.txns.apply_le(1, timeout=x),
    "tidy timeout": lambda w, x: w.txns.tidy(timeout=x),
    "tidy_at": lambda w, x: w.txns.tidy_at(x),
    "compact_to": lambda w, x: w.txns.compact_to(x),
    "compact_to timeout": lambda w, x: w.txns.compact_to(0, timeout=x),
    "txns snapshot shard": lambda w, x: w.txns.snapshot(x, 1),
    "txns snapshot as_of": lambda w, x: w.txns.snapshot(D0, x, timeout=0.001),
    "txns snapshot timeout": lambda w, x: w.txns.snapshot(D0, 1, timeout=x),
    "latest_write shard": lambda w, x: w.txns.latest_write(x, 1),
    "latest_write time": lambda w, x: w.txns.latest_write(D0, x, timeout=0.001),
    "txns close timeout": lambda w, x: w.txns.close(timeout=x),
    "txn write shard": lambda w, x: w.txns.begin().write(x, {"word": ["a"]}),
    "txn write": lambda w, x: w.txns.begin().write(D0, x),
    "txn write timeout": lambda w, x: w.txns.begin().write(D0, {"word": ["a"]}, timeout=x),
    "txn merge": lambda w, x: w.txns.begin().merge(x),
    "txn to_bytes timeout": lambda w, x: wrote(w).to_bytes(timeout=x),
    "txn commit_at txns": lambda w, x: wrote(w).commit_at(x, 2),
    "txn commit_at time": lambda w, x: wrote(w).commit_at(w.txns, x),
    "txn commit_at timeout": lambda w, x: wrote(w).commit_at(w.txns, 2, timeout=x),
}


TAKEN = {
    "timeout": [None, 1.5, float("inf"), 2**63 - 1, 2**63, 10**400],
    "hold name": [" "],
    "token": [None],
    "strategy": [],
    "delay": [0, 1.5],
    "splits": [pa.scalar(1)],  # a whole number, of Arrow's
}
"""For arguments whose names end so, what is taken of `JUNK`."""


@pytest.mark.parametrize("name", CALLS)
def test_an_argument_is_taken_or_refused_before_anything_happens(name: str) -> None:
    world = None
    taken = []
    for value in JUNK:
        world = world or World()
        before = world.contents()
        try:
            made = CALLS[name](world, value)
        except (UsageError, Corruption):
            assert world.contents() == before, shown(value)
            continue
        except StrandlineError:
            taken.append(value)  # refused for what is there, not for what it is
            continue
        taken.append(value)
        for handle in made if isinstance(made, tuple) else (made,):
            if hasattr(handle, "close"):
                handle.close()
        world.close()
        world = None
    for ending, good in TAKEN.items():
        if name.endswith(ending):
            assert taken == good
    if world is not None:  # what was refused did no harm
        world.write.advance_upper(6)
        world.txns.fetch_upper()
        world.close()
