"""Sorted maps in pages: how a state of any size is loaded, shared and changed in small pieces.

A `PagedMap` is immutable to its users. Changing it copies the pages that the change falls in (at
most `PAGE_ITEMS` items each) and the tuple of page slots, nothing larger. A page that came from a
rollup and was not read yet is only a `PageRef`; changes to it wait beside it, so that replay never
needs a page, and looking into it raises `PagesNeeded`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from strandline.state.model import Key

__all__ = ["PAGE_ITEMS", "TOP", "Page", "PageRef", "PagedMap", "PagesNeeded", "Slot"]

PAGE_ITEMS = 1_000
"""Items at which a page in memory is split in two halves."""

V = TypeVar("V")


class _Top:
    """Sorts after everything: `(*prefix, TOP)` is the upper bound of all keys with that prefix."""

    __slots__ = ()

    def __lt__(self, other: object) -> bool:
        return False

    def __gt__(self, other: object) -> bool:
        return True


TOP = _Top()


@dataclass(frozen=True, slots=True)
class PageRef:
    """A page as an object in Blob."""

    key: str
    first: Key
    """Everything in the page sorts at or after this (the first page of a map has `()`)."""
    items: int
    size: int
    """Bytes of the object."""


class PagesNeeded(Exception):
    """A pure function looked at pages that are not loaded: fill them, then call it again."""

    def __init__(self, slots: list[Slot[Any]]) -> None:
        super().__init__(f"{len(slots)} pages of state have to be loaded")
        self.slots = slots


class Page(Generic[V]):
    """Up to a thousand items, sorted. Never changed once it can be seen by others."""

    __slots__ = ("items", "order")

    def __init__(self, items: dict[Key, V], order: list[Key] | None = None) -> None:
        self.items = items
        self.order = sorted(items) if order is None else order

    def changed(self, changes: Mapping[Key, V | None]) -> Page[V]:
        """A copy with the changes made; None removes."""
        items = dict(self.items)
        order = list(self.order)
        if len(changes) > 64:  # sorting once is then cheaper than moving the tail each time
            for key, after in changes.items():
                if after is None:
                    items.pop(key, None)
                else:
                    items[key] = after
            return Page(items)
        for key, after in changes.items():
            if after is None:
                if items.pop(key, None) is not None:
                    del order[bisect_left(order, key)]
            else:
                if key not in items:
                    insort(order, key)
                items[key] = after
        return Page(items, order)


class Slot(Generic[V]):
    """The place of one page in a map.

    Loaded when `page` is set. `ref` names the stored object that the page is equal to; a changed
    page has none. `pending` holds the changes to a page that is not loaded.
    """

    __slots__ = ("first", "page", "pending", "ref")

    def __init__(
        self,
        first: Key,
        page: Page[V] | None,
        ref: PageRef | None,
        pending: Mapping[Key, V | None] | None = None,
    ) -> None:
        self.first = first
        self.page = page
        self.ref = ref
        self.pending = pending

    @property
    def clean(self) -> bool:
        """Whether the stored object, if any, is all there is to know."""
        return self.ref is not None and not self.pending

    def fill(self, stored: Page[V]) -> None:
        """Gives the slot the page that `ref` names. Idempotent, and safe beside other threads.

        This changes what is known here, not what the state is: every reader sees the same items.
        """
        # SUBTLE: `pending` stays as it is, so two threads that fill one slot compute the same page.
        if self.page is None:
            self.page = stored.changed(self.pending) if self.pending else stored


class PagedMap(Generic[V]):
    """A sorted map from key tuples to values. All methods but the constructors are pure."""

    __slots__ = ("_firsts", "slots")

    def __init__(self, slots: tuple[Slot[V], ...]) -> None:
        self.slots = slots
        self._firsts = [slot.first for slot in slots]

    @classmethod
    def of(cls, items: Mapping[Key, V] | None = None) -> PagedMap[V]:
        """A map of these items, all in memory."""
        empty: PagedMap[V] = cls((Slot((), Page({}, []), None),))
        return empty.changed(dict(items)) if items else empty

    @classmethod
    def stored(cls, refs: Iterable[PageRef]) -> PagedMap[V]:
        """A map whose pages are in Blob."""
        slots: tuple[Slot[V], ...] = tuple(Slot(ref.first, None, ref) for ref in refs)
        return cls(slots) if slots else cls.of()

    def get(self, key: Key) -> V | None:
        """The value at `key`."""
        slot = self.slots[bisect_right(self._firsts, key) - 1]
        page = slot.page
        if page is None:
            pending = slot.pending
            if pending and key in pending:
                return pending[key]
            raise PagesNeeded([slot])
        return page.items.get(key)

    def floor(self, key: Key) -> tuple[Key, V] | None:
        """The item with the greatest key <= `key`."""
        index = bisect_right(self._firsts, key) - 1
        while index >= 0:
            page = self._page(index)
            at = bisect_right(page.order, key)
            if at:
                found = page.order[at - 1]
                return found, page.items[found]
            index -= 1
        return None

    def range(self, lower: Key = (), upper: Key | None = None) -> Iterator[tuple[Key, V]]:
        """Items with `lower <= key < upper`, ascending. Asks for all missing pages at once."""
        for page in self._pages(lower, upper):
            start = bisect_left(page.order, lower)
            stop = len(page.order) if upper is None else bisect_left(page.order, upper)
            for key in page.order[start:stop]:
                yield key, page.items[key]

    def prefix(self, prefix: Key) -> Iterator[tuple[Key, V]]:
        """Items whose keys begin with `prefix`, ascending."""
        return self.range(prefix, (*prefix, TOP))

    def count(self, lower: Key = (), upper: Key | None = None) -> int:
        """How many items `range` would give, without looking at each."""
        total = 0
        for page in self._pages(lower, upper):
            stop = len(page.order) if upper is None else bisect_left(page.order, upper)
            total += max(0, stop - bisect_left(page.order, lower))
        return total

    def changed(self, changes: Mapping[Key, V | None]) -> PagedMap[V]:
        """A map with the changes made; None removes. Needs no page."""
        if not changes:
            return self
        per_slot: dict[int, dict[Key, V | None]] = {}
        for key, after in changes.items():
            index = bisect_right(self._firsts, key) - 1
            per_slot.setdefault(index, {})[key] = after
        slots: list[Slot[V]] = list(self.slots)
        # from the end, so that splitting or dropping a slot leaves earlier indexes as they are
        for index in sorted(per_slot, reverse=True):
            slots[index : index + 1] = _change_slot(slots[index], per_slot[index])
        if not slots:
            return PagedMap.of()
        if slots[0].first != ():
            slots[0] = _with_first(slots[0], ())
        return PagedMap(tuple(slots))

    def dirty(self) -> list[Slot[V]]:
        """The slots whose pages no stored object is equal to."""
        return [slot for slot in self.slots if not slot.clean]

    def _page(self, index: int) -> Page[V]:
        slot = self.slots[index]
        page = slot.page
        if page is None:
            raise PagesNeeded([slot])
        return page

    def _pages(self, lower: Key, upper: Key | None) -> list[Page[V]]:
        first = bisect_right(self._firsts, lower) - 1
        last = len(self.slots) if upper is None else bisect_left(self._firsts, upper)
        slots = self.slots[first : max(last, first + 1)]
        pages = [slot.page for slot in slots]
        missing = [slot for slot, page in zip(slots, pages, strict=True) if page is None]
        if missing:
            raise PagesNeeded(missing)
        return [page for page in pages if page is not None]


def _change_slot(slot: Slot[V], changes: dict[Key, V | None]) -> list[Slot[V]]:
    page = slot.page
    if page is None:
        return [Slot(slot.first, None, slot.ref, {**(slot.pending or {}), **changes})]
    page = page.changed(changes)
    if not page.items:
        return []
    if len(page.order) <= PAGE_ITEMS:
        return [Slot(slot.first, page, None)]
    size = PAGE_ITEMS // 2
    pieces = []
    for start in range(0, len(page.order), size):
        order = page.order[start : start + size]
        items = {key: page.items[key] for key in order}
        pieces.append(Slot(slot.first if start == 0 else order[0], Page(items, order), None))
    return pieces


def _with_first(slot: Slot[V], first: Key) -> Slot[V]:
    # A stored page may move to the front of the map: `first` is the map's word, the object's
    # content does not depend on it.
    return Slot(first, slot.page, slot.ref, slot.pending)
