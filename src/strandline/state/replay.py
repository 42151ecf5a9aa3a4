"""A shard's whole state, and how the diffs of one record change it. Never needs a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from strandline.state.model import (
    COLLECTIONS,
    EVERYTHING,
    Dead,
    Diff,
    Entry,
    Hold,
    Holder,
    Key,
    Leaf,
    Mark,
    Meta,
    PartUse,
    Receipt,
    Reference,
    Rollup,
    Session,
    TableVersion,
    Tidied,
    TokenWindow,
    Value,
)
from strandline.state.pages import PagedMap

__all__ = ["State", "initial", "replay"]

NO_HASH = b"\0" * 32
"""What the first record of a log names as its predecessor's hash."""


@dataclass(frozen=True, slots=True)
class State:
    """The state after record `seqno`. Immutable; shares its pages with its neighbours."""

    seqno: int
    hash: bytes
    """SHA-256 of record `seqno`, which the next record has to name."""
    maps: Mapping[str, PagedMap[Any]]

    @property
    def meta(self) -> Meta:
        found = self.maps["meta"].get(())
        return Meta() if found is None else cast("Meta", found)

    @property
    def sessions(self) -> PagedMap[Session]:
        return self.maps["sessions"]

    @property
    def holds(self) -> PagedMap[Hold]:
        return self.maps["holds"]

    @property
    def holders(self) -> PagedMap[Holder]:
        return self.maps["holders"]

    @property
    def marks(self) -> PagedMap[Mark]:
        return self.maps["marks"]

    @property
    def receipts(self) -> PagedMap[Receipt]:
        return self.maps["receipts"]

    @property
    def leaves(self) -> PagedMap[Leaf]:
        return self.maps["leaves"]

    @property
    def references(self) -> PagedMap[Reference]:
        return self.maps["references"]

    @property
    def parts(self) -> PagedMap[PartUse]:
        return self.maps["parts"]

    @property
    def dead(self) -> PagedMap[Dead]:
        return self.maps["dead"]

    @property
    def rollups(self) -> PagedMap[Rollup]:
        return self.maps["rollups"]

    @property
    def tables(self) -> PagedMap[TableVersion]:
        return self.maps["tables"]

    @property
    def entries(self) -> PagedMap[Entry]:
        return self.maps["entries"]

    @property
    def tidied(self) -> PagedMap[Tidied]:
        return self.maps["tidied"]

    @property
    def tokens(self) -> PagedMap[TokenWindow]:
        return self.maps["tokens"]


@cache
def initial() -> State:
    """The state of a shard that has no record yet: empty, one leaf that covers every key."""
    maps: dict[str, PagedMap[Any]] = {name: PagedMap.of() for name in COLLECTIONS}
    maps["leaves"] = PagedMap.of({(b"",): Leaf(1, EVERYTHING, None)})
    return State(0, NO_HASH, maps)


def replay(state: State, seqno: int, digest: bytes, diffs: Iterable[Diff]) -> State:
    """The state after record `seqno`, whose bytes hash to `digest` and whose diffs these are."""
    grouped: dict[str, dict[Key, Value | None]] = {}
    for collection, key, after in diffs:
        grouped.setdefault(collection, {})[key] = after
    maps = dict(state.maps)
    for collection, changes in grouped.items():
        maps[collection] = maps[collection].changed(changes)
    return State(seqno, digest, maps)
