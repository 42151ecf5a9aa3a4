"""The commands of garbage, in any shard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from strandline.state.commands.command import Command
from strandline.state.model import Dead, Key, Mark, Receipt

__all__ = [
    "Collect",
    "KeepReceipts",
    "RetireRollups",
]


@dataclass(frozen=True, slots=True)
class Collect(Command[int]):
    """Forgets dead objects that were deleted, keys (seqno, object key), and notes the time.

    `mark`: what the location's clock showed after this seqno was known. `marks` are forgotten.
    Result: how many dead objects were there.
    """

    dead: tuple[Key, ...] = ()
    mark: tuple[int, Mark] | None = None
    marks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RetireRollups(Command[bool]):
    """Drops rollups, and says which were read back whole; all by their keys.

    `objects` are what only the dropped ones name; they are dead from here on. `kept` are all others
    that there were when the objects were gathered: if another has come meanwhile, which may share
    their pages, nothing happens. Result: whether it did.
    """

    dropped: tuple[str, ...]
    kept: tuple[str, ...]
    objects: tuple[Dead, ...] = ()
    verified: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeepReceipts(Command[int]):
    """Enters receipts that were written; drops others, whose objects are dead from here on."""

    added: tuple[tuple[int, Receipt], ...] = ()
    dropped: tuple[int, ...] = ()

    def enters(self) -> Iterator[str]:
        yield from (receipt.key for _, receipt in self.added)
