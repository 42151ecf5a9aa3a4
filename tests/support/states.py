"""States of shards for tests: short values, a driver that checks itself, unloaded pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from strandline.state.commands import (
    Append,
    Apply,
    Command,
    Commit,
    CommitResult,
    Compact,
    Output,
    R,
    TableChange,
    Write,
)
from strandline.state.decide import Author, Decision, decide
from strandline.state.invariants import broken
from strandline.state.model import (
    L0,
    Batch,
    Diff,
    Entry,
    Hold,
    Interval,
    Key,
    Leaf,
    Part,
    Reference,
    TableVersion,
)
from strandline.state.pages import Page, PagedMap, PageRef, PagesNeeded
from strandline.state.replay import State, initial, replay
from strandline.state.tables import current_table

A = TypeVar("A")


def part(key: str, lower: bytes, upper: bytes, *, size: int = 100, rows: int = 1) -> Part:
    """A part whose first and last row have these encoded keys."""
    return Part(key, size, rows, lower, upper)


def batch(lower: bytes = b"a", upper: bytes = b"b", *, rows: int = 1) -> Batch:
    """An inline batch between two keys; what is in it is no business of the state."""
    return Batch(inline=b"rows", rows=rows, lower=lower, upper=upper)


def table(table_id: str, name: str) -> TableVersion:
    """A table as DDL asks for it: times and version are filled in by `decide`."""
    return TableVersion(table_id, 0, name, 0, None, 0, "rows", b"schema", ("k",))


def creates(table_id: str, name: str) -> TableChange:
    return TableChange(table(table_id, name), expected_version=None)


def write(table_id: str) -> Write:
    return Write(table_id, batch())


def appends(lower: int, upper: int | None, *parts: Part, **more: object) -> Append:
    """An append at the shard's upper."""
    return Append(lower, upper, parts, expected_upper=lower, **more)  # type: ignore[arg-type]


def reader(since: int | None = None) -> Hold:
    return Hold(since, seqno=0, kind="reader")


@dataclass
class Shard:
    """A shard without I/O: what the machine does, in a loop without failures.

    After every record all invariants hold, or `do` raises.
    """

    state: State = field(default_factory=initial)
    log: list[tuple[Command[Any], Decision[Any]]] = field(default_factory=list)

    def do(self, command: Command[R], session: str = "w1") -> R:
        """The command's result, its record written where it has one."""
        first = not any(_wrote(decision, session) for _, decision in self.log)
        decision = decide(self.state, command, Author(session, first))
        if decision.diffs:
            self.log.append((command, decision))
            seqno = self.state.seqno + 1
            self.state = replay(self.state, seqno, seqno.to_bytes(32, "big"), decision.diffs)
            assert broken(self.state) == []
        return decision.result

    def commit(self, *writes: Write, clock: int = 0, **more: Any) -> CommitResult:
        return self.do(Commit(clock, tuple(writes), **more))

    def apply(self, upper: int, *parts: tuple[int, Part]) -> None:
        """Applies from wherever the upper is."""
        expected = self.state.meta.upper
        assert expected is not None
        self.do(Apply(expected, upper, tuple(parts)))

    def finish(self) -> None:
        """Makes upper the empty frontier, as the end of a shard will."""
        done = Diff("meta", (), replace(self.state.meta, upper=None))
        self.state = replay(self.state, self.state.seqno + 1, b"", [done])

    def last(self) -> tuple[Diff, ...]:
        """The diffs of the newest record."""
        return self.log[-1][1].diffs

    def leaves(self) -> list[Leaf]:
        return [leaf for _, leaf in self.state.leaves.range()]

    def references(self) -> list[Reference]:
        return [reference for _, reference in self.state.references.range()]

    def key_of(self, reference: int) -> Key:
        """The key of the reference with that id."""
        return next(key for key, ref in self.state.references.range() if ref.id == reference)

    def entries(self) -> list[Entry]:
        return [entry for _, entry in self.state.entries.range()]

    def dead(self) -> list[str]:
        """The keys of the dead objects, oldest first."""
        return [dead.key for _, dead in self.state.dead.range()]


def shard_at(upper: int) -> Shard:
    """A shard of its own writers, with nothing before that upper."""
    shard = Shard()
    shard.do(appends(0, upper))
    return shard


def database(*names: str) -> Shard:
    """A txns shard with tables t1, t2, …, created at times 0, 1, …"""
    shard = Shard()
    for number, name in enumerate(names, 1):
        shard.commit(changes=(creates(f"t{number}", name),))
    return shard


def drop(shard: Shard, table_id: str) -> TableChange:
    now = current_table(shard.state, table_id)
    assert now is not None
    return TableChange(now, expected_version=now.version, dropped=True)


def _wrote(decision: Decision[Any], session: str) -> bool:
    return any(diff.collection == "sessions" and diff.key == (session,) for diff in decision.diffs)


def where(references: Iterable[Reference]) -> set[tuple[str, int, Interval]]:
    """(part, leaf, interval) of each, the ids left out."""
    return {(ref.part.key, ref.leaf, ref.interval) for ref in references}


def in_l0(references: Iterable[Reference]) -> list[str]:
    """The parts that are in L0."""
    return [ref.part.key for ref in references if ref.leaf == L0]


def replaces(inputs: Iterable[Key], *outputs: Output) -> Compact:
    return Compact(tuple(inputs), tuple(outputs))


# --- states whose pages are not in memory


@dataclass
class Unloaded:
    """A state of which every page has to be fetched, and the store to fetch them from."""

    state: State
    pages: dict[str, Page[Any]]
    fetched: list[str] = field(default_factory=list)

    def run(self, function: Callable[[State], A]) -> A:
        """`function(state)`, evaluated again until all pages that it looks at are there."""
        while True:
            try:
                return function(self.state)
            except PagesNeeded as needed:
                self._load(needed)

    def _load(self, needed: PagesNeeded) -> None:
        assert needed.slots, "asked for nothing"
        for slot in needed.slots:
            assert slot.ref is not None
            assert slot.page is None, "asked for a page that is loaded"
            self.fetched.append(slot.ref.key)
            slot.fill(self.pages[slot.ref.key])


def unloaded(state: State, *, items_per_page: int = 2) -> Unloaded:
    """The same state as a reader finds it in a rollup: small pages, none of them read."""
    pages: dict[str, Page[Any]] = {}
    maps: dict[str, PagedMap[Any]] = {}
    for name, found in state.maps.items():
        items = list(found.range())
        refs = []
        for start in range(0, len(items), items_per_page):
            piece = dict(items[start : start + items_per_page])
            key = f"{name}-{start}"
            pages[key] = Page(piece)
            first: Key = () if start == 0 else next(iter(piece))
            refs.append(PageRef(key, first, len(piece), 100))
        maps[name] = PagedMap.stored(refs)
    return Unloaded(State(state.seqno, state.hash, maps), pages)


def contents(state: State) -> dict[str, dict[Key, Any]]:
    """Every item of every collection."""
    return {name: dict(found.range()) for name, found in state.maps.items()}
