"""The state of a shard under any sequence of commands, beside a model that is a plain dict."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strandline.errors import TransactionConflict, UnknownTable, UsageError
from strandline.state.commands import (
    Commit,
    CommitResult,
    Compact,
    Output,
    Read,
    Split,
    TableChange,
    Tidy,
    Write,
)
from strandline.state.model import EVERYTHING, L0, Entry, Interval, Key, Part, Reference
from strandline.state.pages import PagedMap, PageRef
from strandline.state.plan import (
    STRATEGIES,
    leaf_bounds,
    plan_compaction,
    plan_descent,
    plan_read,
)
from strandline.state.replay import State, replay
from strandline.state.tables import current_table
from strandline.state.tokens import TOKEN_WINDOW
from tests.support.states import Shard, Unloaded, batch, contents, table, unloaded

LETTERS = [bytes([n]) for n in range(12)]
"""All keys that occur. Bounds may lie on them and between them."""

keys = st.sampled_from(LETTERS)
key_sets = st.frozensets(keys, min_size=1, max_size=4)
bounds = st.one_of(keys, keys.map(lambda key: key + b"\x80"))
intervals = st.builds(
    Interval, st.one_of(st.just(b""), bounds), st.one_of(st.none(), bounds)
).filter(lambda interval: interval.upper is None or interval.lower < interval.upper)

Row = tuple[str, bytes]
"""(part or entry, key)."""


def rows_of(reference: Reference, held: dict[str, frozenset[bytes]]) -> set[Row]:
    part = reference.part.key
    return {(part, key) for key in held[part] if reference.interval.contains(key)}


class DataShard(RuleBasedStateMachine):
    """Apply, split, descend and compact, in any order: no key of no part is lost or doubled."""

    def __init__(self) -> None:
        super().__init__()
        self.shard = Shard()
        self.held: dict[str, frozenset[bytes]] = {}
        self.rows: set[Row] = set()
        self.stale: list[Compact] = []
        # The same shard in a process that opened it from a rollup and never looked at a page.
        self.cold = unloaded(self.shard.state)
        self.replayed = 0

    def new_part(self, held: frozenset[bytes]) -> Part:
        name = f"p{len(self.held)}"
        self.held[name] = held
        return Part(name, 10 * len(held), len(held), min(held), max(held))

    @rule(sets=st.lists(key_sets, max_size=3), skip=st.integers(1, 3))
    def apply(self, sets: list[frozenset[bytes]], skip: int) -> None:
        upper = self.shard.state.meta.upper or 0
        parts = [(upper + n % skip, self.new_part(held)) for n, held in enumerate(sets)]
        self.rows |= {(part.key, key) for _, part in parts for key in self.held[part.key]}
        self.shard.apply(upper + skip, *parts)

    @rule(number=st.integers(0, 20), points=st.frozensets(bounds, min_size=1, max_size=3))
    def split(self, number: int, points: frozenset[bytes]) -> None:
        leaves = self.shard.leaves()
        leaf = leaves[number % len(leaves)]
        inside = [
            point
            for point in sorted(points)
            if leaf.interval.lower < point
            and (leaf.interval.upper is None or point < leaf.interval.upper)
        ]
        if inside:
            assert self.shard.do(Split(leaf.id, leaf.interval.lower, tuple(inside))) is True

    @rule(outputs_max=st.integers(1, 10))
    def descend(self, outputs_max: int) -> None:
        for command in plan_descent(self.shard.state, outputs_max=outputs_max):
            assert self.shard.do(command) is True
        assert all(reference.leaf != L0 for reference in self.shard.references())

    @rule(strategy=st.sampled_from(STRATEGIES), parts_max=st.integers(2, 5), later=st.booleans())
    def compact(self, strategy: str, parts_max: int, later: bool) -> None:
        jobs = plan_compaction(self.shard.state, strategy, parts_max=parts_max)
        for job in jobs:
            assert job.leaf is not None
            command = self.merge(list(job.inputs), job.leaf.id, job.leaf.interval)
            if later:
                self.stale.append(command)
            else:
                self.submit(command)

    @rule(chosen=st.sets(st.integers(0, 5), min_size=1), later=st.booleans())
    def compact_l0(self, chosen: set[int], later: bool) -> None:
        above = list(self.shard.state.references.prefix((0,)))
        inputs = [item for number, item in enumerate(above) if number in chosen]
        if inputs:
            command = self.merge(inputs, L0, EVERYTHING)
            if later:
                self.stale.append(command)
            else:
                self.submit(command)

    def merge(self, inputs: list[tuple[Key, Reference]], leaf: int, inside: Interval) -> Compact:
        """What a worker would come back with: one new part of all that the inputs showed."""
        held = frozenset(key for _, ref in inputs for _, key in rows_of(ref, self.held))
        outputs: tuple[Output, ...] = ()
        if held:
            newest = max(reference.time_max for _, reference in inputs)
            part = self.new_part(held)
            outputs = (Output(leaf, inside.lower if leaf else b"", part, newest),)
        return Compact(tuple(key for key, _ in inputs), outputs)

    @precondition(lambda self: self.stale)
    @rule(number=st.integers(0, 20))
    def a_worker_comes_back_late(self, number: int) -> None:
        self.submit(self.stale.pop(number % len(self.stale)))

    def submit(self, command: Compact) -> None:
        """Applies exactly when all inputs are there still and the leaf is one."""
        state = self.shard.state
        found = [state.references.get(key) for key in command.inputs]
        alive = None not in found and all(
            output.leaf in {L0, *(leaf.id for leaf in self.shard.leaves())}
            for output in command.outputs
        )
        before, dead = self.rows, set(self.shard.dead())
        assert self.shard.do(command) is alive
        written = {output.part.key for output in command.outputs}
        if alive:
            gone = {row for ref in found if ref for row in rows_of(ref, self.held)}
            assert gone <= before
            new = {(part, key) for part in written for key in self.held[part]}
            self.rows = (before - gone) | new
        else:
            assert set(self.shard.dead()) == dead | written

    @invariant()
    def every_row_is_there_once(self) -> None:
        found = Counter(row for ref in self.shard.references() for row in rows_of(ref, self.held))
        assert found == Counter(self.rows)

    @invariant()
    def a_part_is_dead_once_nothing_refers_to_it(self) -> None:
        live = {reference.part.key for reference in self.shard.references()}
        waiting = {output.part.key for command in self.stale for output in command.outputs}
        dead = self.shard.dead()
        assert len(dead) == len(set(dead))
        assert live | set(dead) | waiting == self.held.keys()

    @rule(
        asked=st.one_of(st.none(), st.lists(intervals, min_size=1, max_size=3)),
        overlay=st.lists(key_sets, max_size=3),
        as_of=st.integers(0, 30),
    )
    def read(
        self, asked: list[Interval] | None, overlay: list[frozenset[bytes]], as_of: int
    ) -> None:
        held = dict(self.held)
        entries = []
        for number, inside in enumerate(overlay):
            entries.append(Entry("t", as_of, number, "w", batch(min(inside), max(inside))))
            held[f"@{number}"] = inside
        self.check_plan(entries, held, asked, as_of)

    def check_plan(
        self,
        entries: list[Entry],
        held: dict[str, frozenset[bytes]],
        asked: list[Interval] | None,
        as_of: int,
    ) -> None:
        state = self.shard.state
        tasks = plan_read(state, entries, asked, as_of)
        assert self.other().run(lambda s: plan_read(s, entries, asked, as_of)) == tasks
        times = {ref.part.key: ref.time_min for ref in self.shard.references()}
        covered: Counter[Row] = Counter()
        last: bytes | None = None
        for task in tasks:
            found = {
                (name, key)
                for name, reference in [
                    *((ref.part.key, ref.interval) for ref in task.references),
                    *((f"@{entry.ordinal}", EVERYTHING) for entry in task.entries),
                ]
                for key in held[name]
                if reference.contains(key) and any(i.contains(key) for i in task.intervals)
            }
            covered.update(found)
            inside = [key for _, key in found]
            if inside:
                assert last is None or last < min(inside), "tasks share keys or are out of order"
                last = max(inside)
            assert all(task.leaf.interval.intersect(i) == i for i in task.intervals)
        wanted = [EVERYTHING] if asked is None else asked
        rows = self.rows | {
            (f"@{e.ordinal}", key) for e in entries for key in held[f"@{e.ordinal}"]
        }
        expected = {
            (name, key)
            for name, key in rows
            if any(i.contains(key) for i in wanted) and (times.get(name, as_of) <= as_of)
        }
        assert covered == Counter(expected)

    def other(self) -> Unloaded:
        """A process that has the newest state, and none of its pages."""
        return unloaded(self.shard.state, items_per_page=3)

    @invariant()
    def replay_needs_no_page(self) -> None:
        for _, decision in self.shard.log[self.replayed :]:
            seqno = self.cold.state.seqno + 1
            digest = seqno.to_bytes(32, "big")
            self.cold.state = replay(self.cold.state, seqno, digest, decision.diffs)
        self.replayed = len(self.shard.log)
        assert self.cold.fetched == []

    def teardown(self) -> None:
        assert self.cold.run(contents) == contents(self.shard.state)
        assert self.cold.run(leaf_bounds) == leaf_bounds(self.shard.state)


class TxnsShard(RuleBasedStateMachine):
    """Commits, DDL, tokens and tidying, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.shard = Shard()
        self.names: dict[str, str] = {}
        self.history: list[tuple[int, dict[str, str]]] = []
        self.commits: list[tuple[str, int]] = []
        self.untidied: set[Key] = set()
        self.tokens: dict[str, dict[int, int]] = {}
        self.made = 0

    @initialize()
    def begin(self) -> None:
        self.ddl("A", None)

    def upper(self) -> int:
        return self.shard.state.meta.upper or 0

    def table_of(self, number: int) -> str:
        return f"t{number % max(1, self.made)}"

    @rule(
        numbers=st.lists(st.integers(0, 5), max_size=3),
        clock=st.integers(0, 60),
        token=st.one_of(st.none(), st.tuples(st.sampled_from("xy"), st.integers(0, 8))),
        read=st.one_of(st.none(), st.integers(0, 60)),
        tidy=st.booleans(),
    )
    def commit(
        self,
        numbers: list[int],
        clock: int,
        token: tuple[str, int] | None,
        read: int | None,
        tidy: bool,
    ) -> None:
        tables = [self.table_of(number) for number in numbers]
        writes = tuple(Write(t, batch()) for t in tables)
        reads = () if read is None else tuple(Read(t, read) for t in tables)
        tidies = tuple(sorted(self.untidied)) if tidy else ()
        command = Commit(clock, writes, reads=reads, token=token, tidies=tidies)
        expected = self.expected(tables, token, read)
        if isinstance(expected, type):
            with pytest.raises(expected):
                self.shard.do(command)
            return
        if isinstance(expected, int):
            assert self.shard.do(command) == CommitResult(expected, repeated=True)
            return
        time = max(clock, self.upper())
        assert self.shard.do(command) == CommitResult(time)
        assert self.upper() == time + 1
        self.commits += [(t, time) for t in tables]
        self.untidied -= set(tidies)
        self.untidied |= {(t, time, n) for n, t in enumerate(tables)}
        if token is not None:
            self.tokens.setdefault(token[0], {})[token[1]] = time

    def expected(
        self, tables: list[str], token: tuple[str, int] | None, read: int | None
    ) -> type[Exception] | int | None:
        """The error, the time of an earlier commit with that token, or None: it is new."""
        if token is not None:
            known = self.tokens.get(token[0], {})
            kept = dict(sorted(known.items())[-TOKEN_WINDOW:])
            if token[1] in kept:
                return kept[token[1]]
            if known and token[1] <= max(known):
                return UsageError
        for t in tables:
            if t not in self.names:
                return UnknownTable
            if read is not None and any(other == t and at >= read for other, at in self.commits):
                return TransactionConflict
        return None

    @rule(name=st.sampled_from("aAbBcC"), number=st.one_of(st.none(), st.integers(0, 5)))
    def ddl(self, name: str, number: int | None) -> None:
        """Creates a table (no number), or renames one."""
        if number is None:
            change, table_id = TableChange(table(f"t{self.made}", name), None), f"t{self.made}"
        else:
            table_id = self.table_of(number)
            now = current_table(self.shard.state, table_id)
            if now is None:
                return
            change = TableChange(replace(now, name=name), expected_version=now.version)
        others = {n.casefold() for t, n in self.names.items() if t != table_id}
        if name.casefold() in others:
            with pytest.raises(UsageError):
                self.shard.commit(changes=(change,))
            return
        time = self.shard.commit(changes=(change,)).time
        self.made += number is None
        self.names = {**self.names, table_id: name}
        self.history.append((time, self.names))

    @rule(number=st.integers(0, 5))
    def drop(self, number: int) -> None:
        table_id = self.table_of(number)
        now = current_table(self.shard.state, table_id)
        assert (now is None) == (table_id not in self.names)
        if now is None:
            return
        change = TableChange(now, expected_version=now.version, dropped=True)
        time = self.shard.commit(changes=(change,)).time
        self.names = {t: name for t, name in self.names.items() if t != table_id}
        self.history.append((time, self.names))

    @rule(chosen=st.sets(st.integers(0, 9)), again=st.booleans())
    def tidy(self, chosen: set[int], again: bool) -> None:
        keys = {key for n, key in enumerate(sorted(self.untidied)) if n in chosen}
        command = Tidy(tuple(sorted(keys)))
        assert self.shard.do(command) == len(keys)
        self.untidied -= keys
        if again:
            assert self.shard.do(command) == 0

    @invariant()
    def the_entries_are_what_was_committed_and_not_tidied(self) -> None:
        assert {key for key, _ in self.shard.state.entries.range()} == self.untidied

    @invariant()
    def progress_is_the_greatest_tidied_time(self) -> None:
        there = {(t, time) for t, time, _ in self.untidied}
        for t in {t for t, _ in self.commits}:
            gone = [time for other, time in self.commits if other == t and (t, time) not in there]
            progress = self.shard.state.tidied.get((t,))
            if gone:
                assert progress is not None
                assert progress.tidied_through >= max(gone)

    @invariant()
    def every_time_has_the_names_of_its_moment(self) -> None:
        for time in range(self.upper() + 1):
            known = [names for at, names in self.history if at <= time]
            found = {
                version.table: version.name
                for _, version in self.shard.state.tables.range()
                if version.valid_from <= time
                and (version.valid_until is None or time < version.valid_until)
            }
            assert found == (known[-1] if known else {})


DataShard.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TxnsShard.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestDataShard: Any = DataShard.TestCase
TestTxnsShard: Any = TxnsShard.TestCase


# --- the map under it


small_keys = st.tuples(st.integers(0, 40))
changes = st.dictionaries(small_keys, st.one_of(st.none(), st.integers()), max_size=30)


@given(st.dictionaries(small_keys, st.integers()), st.lists(changes, max_size=4), small_keys)
@settings(deadline=None)
def test_a_paged_map_is_a_sorted_dict_whether_its_pages_are_loaded_or_not(
    start: dict[Key, int], steps: list[dict[Key, int | None]], probe: Key
) -> None:
    model: dict[Key, int] = dict(start)
    warm = PagedMap.of(start)
    cold = unloaded(State(0, b"", {"meta": warm}), items_per_page=3)
    found: PagedMap[int] = cold.state.maps["meta"]
    for step in steps:
        warm, found = warm.changed(step), found.changed(step)
        for key, after in step.items():
            if after is None:
                model.pop(key, None)
            else:
                model[key] = after
    cold.state = State(0, b"", {"meta": found})
    below = max((key for key in model if key <= probe), default=None)
    expected = None if below is None else (below, model[below])
    between = sorted(item for item in model.items() if probe <= item[0] < (probe[0] + 9,))
    assert warm.get(probe) == cold.run(lambda s: s.maps["meta"].get(probe)) == model.get(probe)
    assert warm.floor(probe) == cold.run(lambda s: s.maps["meta"].floor(probe)) == expected
    assert list(warm.range(probe, (probe[0] + 9,))) == between
    assert cold.run(lambda s: list(s.maps["meta"].range(probe, (probe[0] + 9,)))) == between
    assert cold.run(lambda s: list(s.maps["meta"].range())) == sorted(model.items())
    assert cold.run(lambda s: s.maps["meta"].count(probe)) == warm.count(probe)


def test_a_large_map_is_split_into_pages_and_stays_whole() -> None:
    big: PagedMap[int] = PagedMap.of({(n,): n for n in range(0, 9_000, 3)})
    assert len(big.slots) > 1
    grown = big.changed({(n,): n for n in range(1, 9_000, 3)})
    assert [key[0] for key, _ in grown.range()] == sorted(
        [*range(0, 9_000, 3), *range(1, 9_000, 3)]
    )
    assert max(len(slot.page.order) for slot in grown.slots if slot.page) <= 1_000
    emptied = grown.changed(dict.fromkeys([(n,) for n in range(9_000)]))
    assert list(emptied.range()) == []
    assert list(emptied.changed({(5,): 5}).range()) == [((5,), 5)]
    assert isinstance(PagedMap.stored([PageRef("g", (), 1, 1)]).slots[0].ref, PageRef)
