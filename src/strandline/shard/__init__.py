"""One shard: the only code that does I/O on state.

The names here are for people who build systems of their own on shards, without a database. They
load when they are first asked for: most processes use tables, and need none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strandline.shard.batches import Batch, BatchBuilder
    from strandline.shard.compacting import ShardCompaction, compact
    from strandline.shard.handles import open_shard
    from strandline.shard.listen import Listen, ListenEvent
    from strandline.shard.read import ReadHandle, ShardHold, list_holds, release_hold
    from strandline.shard.shards import new_shard_id
    from strandline.shard.snapshots import SnapshotSplit, read_split
    from strandline.shard.vacuum import ShardVacuum
    from strandline.shard.vacuuming import vacuum_shard
    from strandline.shard.write import WriteHandle

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
    "Batch": "batches",
    "BatchBuilder": "batches",
    "Listen": "listen",
    "ListenEvent": "listen",
    "ReadHandle": "read",
    "ShardCompaction": "compacting",
    "ShardHold": "read",
    "ShardVacuum": "vacuum",
    "SnapshotSplit": "snapshots",
    "WriteHandle": "write",
    "compact": "compacting",
    "list_holds": "read",
    "new_shard_id": "shards",
    "open_shard": "handles",
    "read_split": "snapshots",
    "release_hold": "read",
    "vacuum_shard": "vacuuming",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"strandline.shard.{module}"), name)
