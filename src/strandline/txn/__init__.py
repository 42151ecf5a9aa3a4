"""Many shards, one moment: the txns shard, its entries, and how they get into the data shards.

The names here are for people who build systems of their own on shards, without a database. They
load when they are first asked for: most processes use tables, and need none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strandline.txn.alone.handle import Committed, Txn, TxnsHandle

__all__ = ["Committed", "Txn", "TxnsHandle"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("strandline.txn.alone.handle"), name)
