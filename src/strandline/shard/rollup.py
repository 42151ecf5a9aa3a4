"""Rollups: the whole state of a shard at one seqno, as objects in Blob.

Only what no stored page is equal to is written; everything else is named again. A small
collection is written inside the manifest. The next ordinary record names the rollup; until then
it is nothing but objects that nobody looks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from strandline.env import Deadline, Env
from strandline.ids import ObjectKey, SessionId, ShardId, new_page_id, new_rollup_id
from strandline.location import Blob
from strandline.settings import Settings
from strandline.state.codec import Manifest, encode_item, encode_rollup, seal_page
from strandline.state.model import Key, Rollup
from strandline.state.pages import Page, PagedMap, PageRef, Slot
from strandline.state.replay import State

__all__ = ["INLINE_BYTES_MAX", "RollupWriter", "Sealed"]

INLINE_BYTES_MAX = 16 * 1024
"""A collection of at most this many encoded bytes is kept inside the manifest."""

_BUFFER_BYTES = 16 * 1024 * 1024
"""Encoded pages that wait to be put side by side: bounds memory when very much is new."""

_SMALL = 4
"""A stored page of less than a quarter of the bounds is rewritten along with a changed neighbour,
so that a map that shrinks does not end as a long list of nearly empty pages."""

Load = Callable[[list[Slot[Any]]], None]


class Sealed(NamedTuple):
    """A rollup that is written and not named yet."""

    rollup: Rollup
    state: State
    """The same state, its pages known to be equal to stored objects."""
    base: Rollup | None
    """The rollup that the pages which were not written anew come from."""


class _Item(NamedTuple):
    key: Key
    value: Any
    encoded: bytes


@dataclass(slots=True)
class _Run:
    """Neighbouring items that go into new pages."""

    first: Key
    items: list[_Item] = field(default_factory=list)
    size: int = 0

    def take(self, other: _Run) -> None:
        """Appends what follows."""
        self.items += other.items
        self.size += other.size


@dataclass(slots=True)
class RollupWriter:
    """Writes one rollup of an immutable state, beside whatever else goes on in the shard."""

    blob: Blob
    shard: ShardId
    session: SessionId
    env: Env
    settings: Settings
    load: Load
    """Fills slots whose pages are not loaded."""
    deadline: Deadline
    _waiting: list[tuple[str, bytes]] = field(default_factory=list)
    _waiting_bytes: int = 0

    def write(self, state: State, base: Rollup | None) -> Sealed:
        """Pages first, the manifest last: a rollup that can be read is whole."""
        pages: dict[str, tuple[PageRef, ...] | Page[Any]] = {}
        maps: dict[str, PagedMap[Any]] = {}
        for name, found in state.maps.items():
            maps[name], stored = self._collection(name, found)
            if stored:
                pages[name] = stored
        self._flush()
        rollup_id = new_rollup_id(self.env)
        key = str(ObjectKey(self.session, self.shard, "rollup", rollup_id, state.seqno))
        data = encode_rollup(Manifest(self.shard, key, state.seqno, state.hash, pages))
        self.blob.put(key, data, timeout=self.deadline.remaining())
        rollup = Rollup(state.seqno, key, len(data))
        return Sealed(rollup, State(state.seqno, state.hash, maps), base)

    def _collection(
        self, name: str, found: PagedMap[Any]
    ) -> tuple[PagedMap[Any], tuple[PageRef, ...] | Page[Any]]:
        """The map as it is stored afterwards, and what the manifest says of it."""
        self.load([slot for slot in found.slots if slot.page is None and not slot.clean])
        pieces = [slot if slot.clean else _encoded(name, slot) for slot in found.slots]
        if sum(map(_size, pieces)) <= INLINE_BYTES_MAX:
            self.load([slot for slot in found.slots if slot.page is None])
            items = dict(found.range())
            page = Page(items, list(items))
            # SUBTLE: none of it counts as stored any more, unchanged pages included. This rollup
            # does not name them, so a vacuum takes them with those that do; a later one, for which
            # the collection has grown again, would name them as if they were there.
            return PagedMap((Slot((), page, None),)), page if items else ()
        slots: list[Slot[Any]] = []
        for piece in self._merged(name, pieces):
            slots += [piece] if isinstance(piece, Slot) else self._stored(name, piece)
        if slots[0].first != ():  # what came before it turned out to be empty
            slots[0] = Slot((), slots[0].page, slots[0].ref)
        # Where a page begins is the map's word, not the page's: see `pages._with_first`.
        refs = tuple(
            PageRef(slot.ref.key, slot.first, slot.ref.items, slot.ref.size)
            for slot in slots
            if slot.ref is not None
        )
        return PagedMap(tuple(slots)), refs

    def _merged(self, name: str, pieces: Sequence[Slot[Any] | _Run]) -> list[Slot[Any] | _Run]:
        """The same with small neighbours of new runs, stored ones too, made one run."""
        bytes_max, items_max = self.settings.page_bytes_max, self.settings.page_items_max
        merged: list[Slot[Any] | _Run] = []
        for index, piece in enumerate(pieces):
            after = pieces[index + 1] if index + 1 < len(pieces) else None
            beside_new = isinstance(after, _Run) or (merged and isinstance(merged[-1], _Run))
            run = piece
            if isinstance(piece, Slot) and beside_new and self._is_small(piece):
                run = _encoded(name, piece)
            last = merged[-1] if merged else None
            if (
                isinstance(run, _Run)
                and isinstance(last, _Run)
                and last.size + run.size <= bytes_max // 2
                and len(last.items) + len(run.items) <= items_max // 2
            ):
                last.take(run)
            else:
                merged.append(run)
        return merged

    def _is_small(self, slot: Slot[Any]) -> bool:
        ref = slot.ref
        return (
            ref is not None
            and slot.page is not None
            and ref.size < self.settings.page_bytes_max // _SMALL
            and ref.items < self.settings.page_items_max // _SMALL
        )

    def _stored(self, name: str, run: _Run) -> list[Slot[Any]]:
        """The run as pages of about equal size, each within the bounds, waiting to be put."""
        slots: list[Slot[Any]] = []
        first = run.first
        for items in self._cut(run):
            page_id = new_page_id(self.env)
            key = str(ObjectKey(self.session, self.shard, "page", page_id))
            data = seal_page(name, self.shard, key, [item.encoded for item in items])
            self._put(key, data)
            page = Page({item.key: item.value for item in items}, [item.key for item in items])
            first = first if not slots else items[0].key
            slots.append(Slot(first, page, PageRef(key, first, len(items), len(data))))
        return slots

    def _cut(self, run: _Run) -> Iterable[list[_Item]]:
        by_size = -(-run.size // self.settings.page_bytes_max)
        by_count = -(-len(run.items) // self.settings.page_items_max)
        count = max(by_size, by_count, 1)
        most_bytes, most_items = run.size / count, -(-len(run.items) // count)
        piece: list[_Item] = []
        size = 0
        for item in run.items:
            if piece and (size >= most_bytes or len(piece) >= most_items):
                yield piece
                piece, size = [], 0
            piece.append(item)
            size += len(item.encoded)
        if piece:
            yield piece

    def _put(self, key: str, data: bytes) -> None:
        self._waiting.append((key, data))
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= _BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        def put(item: tuple[str, bytes]) -> None:
            self.blob.put(*item, timeout=self.deadline.remaining())

        self.env.parallel(put, self._waiting)
        self._waiting = []
        self._waiting_bytes = 0


def _size(piece: Slot[Any] | _Run) -> int:
    if isinstance(piece, _Run):
        return piece.size
    return 0 if piece.ref is None else piece.ref.size


def _encoded(name: str, slot: Slot[Any]) -> _Run:
    page = slot.page
    if page is None:  # callers load first
        raise AssertionError("a page that is not loaded cannot be encoded")
    run = _Run(slot.first)
    for key in page.order:
        value = page.items[key]
        encoded = encode_item(name, key, value)
        run.items.append(_Item(key, value, encoded))
        run.size += len(encoded)
    return run
