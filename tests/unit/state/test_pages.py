"""A paged map is a dict that sorts, wherever its pages are."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from strandline.state import pages as pages_module
from strandline.state.pages import TOP, Page, PagedMap, PageRef, PagesNeeded, Slot
from strandline.testing.processes import side_by_side

A = TypeVar("A")
Key = tuple[int, str]

keys = st.tuples(st.integers(0, 9), st.sampled_from("abcdef"))
changes = st.dictionaries(keys, st.none() | st.integers(), max_size=8)


@pytest.fixture(autouse=True, scope="module")
def _small_pages() -> Iterable[None]:
    """Pages of four items, so that maps of a few dozen have many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages_module, "PAGE_ITEMS", 4)
        yield


class Store:
    """Pages by key, and what was fetched of them."""

    def __init__(self) -> None:
        self.pages: dict[str, Page[int]] = {}
        self.fetched: list[str] = []

    def unloaded(self, items: dict[Key, int], size: int) -> PagedMap[int]:
        """A map of these items of which no page is loaded."""
        refs = []
        order = sorted(items)
        for start in range(0, len(order), size):
            piece = order[start : start + size]
            key = f"page {len(self.pages)}"
            self.pages[key] = Page({item: items[item] for item in piece})
            refs.append(PageRef(key, () if start == 0 else piece[0], len(piece), 1))
        return PagedMap.stored(refs)

    def run(self, function: Callable[[], A]) -> A:
        """What `function` returns once the pages that it asks for are there."""
        for _ in range(10_000):
            try:
                return function()
            except PagesNeeded as needed:
                slots = needed.slots
            assert slots
            for slot in slots:
                assert slot.ref is not None
                self.fetched.append(slot.ref.key)
                slot.fill(self.pages[slot.ref.key])
        raise AssertionError("asked for pages again and again")


def apply(model: dict[Key, int], change: dict[Key, int | None]) -> dict[Key, int]:
    after = {**model, **change}
    return {key: value for key, value in after.items() if value is not None}


def assert_well_formed(found: PagedMap[int]) -> None:
    """The first slot begins at the beginning, slots ascend, items are in the right one."""
    assert found.slots
    assert found.slots[0].first == ()
    firsts = [slot.first for slot in found.slots]
    assert firsts == sorted(set(firsts))
    for index, slot in enumerate(found.slots):
        assert slot.page is not None or slot.ref is not None
        known: list[Any] = list(slot.pending or ())
        if slot.page is not None:
            assert slot.page.order == sorted(slot.page.items)
            assert len(slot.page.order) <= 4 or slot.ref is not None
            known += slot.page.order
        assert all(bisect_right(firsts, key) - 1 == index for key in known)


class AgainstADict(RuleBasedStateMachine):
    """Every version of the map ever made goes on being equal to its dict."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.versions: list[tuple[PagedMap[int], dict[Key, int]]] = []

    @initialize(items=st.dictionaries(keys, st.integers(), max_size=30), size=st.integers(1, 6))
    def begin(self, items: dict[Key, int], size: int) -> None:
        self.versions.append((self.store.unloaded(items, size), items))

    def pick(self, data: Any) -> tuple[PagedMap[int], dict[Key, int]]:
        found: tuple[PagedMap[int], dict[Key, int]] = data.draw(st.sampled_from(self.versions))
        return found

    @rule(data=st.data(), change=changes)
    def change(self, data: Any, change: dict[Key, int | None]) -> None:
        found, model = self.pick(data)
        before = len(self.store.fetched)
        self.versions.append((found.changed(change), apply(model, change)))
        assert len(self.store.fetched) == before
        del self.versions[:-6]

    @rule(data=st.data(), key=keys)
    def get(self, data: Any, key: Key) -> None:
        found, model = self.pick(data)
        assert self.store.run(lambda: found.get(key)) == model.get(key)

    @rule(data=st.data(), key=keys)
    def floor(self, data: Any, key: Key) -> None:
        found, model = self.pick(data)
        below = [k for k in model if k <= key]
        wanted = (max(below), model[max(below)]) if below else None
        assert self.store.run(lambda: found.floor(key)) == wanted

    @rule(data=st.data(), lower=keys | st.just(()), upper=st.none() | keys)
    def look_at_a_range(self, data: Any, lower: Any, upper: Key | None) -> None:
        found, model = self.pick(data)
        wanted = [
            (k, model[k]) for k in sorted(model) if lower <= k and (upper is None or k < upper)
        ]
        assert self.store.run(lambda: list(found.range(lower, upper))) == wanted
        assert self.store.run(lambda: found.count(lower, upper)) == len(wanted)

    @rule(data=st.data(), number=st.integers(0, 9))
    def look_at_a_prefix(self, data: Any, number: int) -> None:
        found, model = self.pick(data)
        wanted = [(k, model[k]) for k in sorted(model) if k[0] == number]
        assert self.store.run(lambda: list(found.prefix((number,)))) == wanted

    @rule(data=st.data())
    def fill_one(self, data: Any) -> None:
        found, _ = self.pick(data)
        slot: Slot[int] = data.draw(st.sampled_from(found.slots))
        if slot.ref is not None:
            slot.fill(self.store.pages[slot.ref.key])

    @invariant()
    def all_are_well_formed(self) -> None:
        for found, _ in self.versions:
            assert_well_formed(found)

    def teardown(self) -> None:
        for found, model in self.versions:
            assert dict(self.store.run(lambda f=found: list(f.range()))) == model  # type: ignore[misc]


TestAgainstADict = AgainstADict.TestCase
TestAgainstADict.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def big(n: int = 40) -> dict[Key, int]:
    return {(number, "abcd"[number % 4]): number for number in range(n)}


def test_a_lookup_fetches_one_page_and_a_range_only_its_own() -> None:
    store = Store()
    found = store.unloaded(big(), 4)
    store.run(lambda: found.get((20, "a")))
    assert store.fetched == ["page 5"]
    store.run(lambda: found.get((21, "b")))
    assert store.fetched == ["page 5"]
    store.run(lambda: list(found.range((24,), (32,))))
    assert store.fetched == ["page 5", "page 6", "page 7"]


def test_a_change_copies_only_the_page_that_it_falls_in() -> None:
    found = PagedMap.of(big())
    changed = found.changed({(20, "a"): -1})
    shared = {id(slot) for slot in found.slots} & {id(slot) for slot in changed.slots}
    assert len(shared) == len(found.slots) - 1


def test_changes_to_a_page_that_is_not_loaded_wait_beside_it() -> None:
    store = Store()
    found = store.unloaded(big(), 4).changed({(20, "a"): -1, (21, "b"): None})
    assert found.get((20, "a")) == -1
    assert found.get((21, "b")) is None
    assert store.fetched == []
    assert len(found.dirty()) == 1
    assert store.run(lambda: found.get((22, "c"))) == 22
    assert len(found.dirty()) == 1


def test_what_a_page_is_equal_to_is_known_until_it_changes() -> None:
    store = Store()
    found = store.unloaded(big(), 4)
    assert found.dirty() == []
    store.run(lambda: list(found.range()))
    assert found.dirty() == []
    assert len(found.changed({(20, "a"): 1}).dirty()) == 1


@given(changes, st.integers(1, 5))
@settings(deadline=None)
def test_threads_that_fill_one_map_at_once_see_the_same(
    change: dict[Key, int | None], size: int
) -> None:
    store = Store()
    items = {(number, letter): number for number in range(10) for letter in "abc"}
    found = store.unloaded(items, size).changed(change)
    wanted = sorted(apply(items, change).items())

    def look() -> list[tuple[Any, int]]:
        return store.run(lambda: list(found.range()))

    assert side_by_side([look, look]) == [wanted, wanted]
    assert list(found.range()) == wanted


def test_top_sorts_after_everything() -> None:
    found = PagedMap.of({("a", 2**63 - 1): 1, ("b", 0): 2})
    assert found.floor(("a", TOP)) == (("a", 2**63 - 1), 1)
    assert [key for key, _ in found.prefix(("a",))] == [("a", 2**63 - 1)]
