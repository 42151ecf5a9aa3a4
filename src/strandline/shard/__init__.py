"""One shard: the only code that does I/O on state.

The names here are for people who build systems of their own on shards, without a database. They
load when they are first asked for: most processes use tables, and need none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strandline.shard.alone.batches import Batch, BatchBuilder
    from strandline.shard.alone.compaction import ShardCompaction, compact
    from strandline.shard.alone.listen import Listen, ListenEvent
    from strandline.shard.alone.opening import open_shard
    from strandline.shard.alone.read import ReadHandle, ShardHold, list_holds, release_hold
    from strandline.shard.alone.shard import new_shard_id
    from strandline.shard.alone.snapshots import SnapshotSplit, read_split
    from strandline.shard.alone.vacuum import vacuum_shard
    from strandline.shard.alone.write import WriteHandle
    from strandline.shard.vacuum import ShardVacuum

__all__ = [
    "Batch",
    "BatchBuilder",
    "Listen",
    "ListenEvent",
    "ReadHandle",
    "ShardCompaction",
    "ShardHold",
    "ShardVacuum",
    "SnapshotSplit",
    "WriteHandle",
    "compact",
    "list_holds",
    "new_shard_id",
    "open_shard",
    "read_split",
    "release_hold",
    "vacuum_shard",
]

_MODULES = {
    "Batch": "alone.batches",
    "BatchBuilder": "alone.batches",
    "Listen": "alone.listen",
    "ListenEvent": "alone.listen",
    "ReadHandle": "alone.read",
    "ShardCompaction": "alone.compaction",
    "ShardHold": "alone.read",
    "ShardVacuum": "vacuum",
    "SnapshotSplit": "alone.snapshots",
    "WriteHandle": "alone.write",
    "compact": "alone.compaction",
    "list_holds": "alone.read",
    "new_shard_id": "alone.shard",
    "open_shard": "alone.opening",
    "read_split": "alone.snapshots",
    "release_hold": "alone.read",
    "vacuum_shard": "alone.vacuum",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"strandline.shard.{module}"), name)
