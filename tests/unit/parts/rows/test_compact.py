"""Compaction against a model: whatever is merged with whatever, no read from since on changes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.env import RealEnv
from strandline.parts.keys import KeyCodec
from strandline.parts.rows.adjacent import order_of
from strandline.parts.rows.compact import merge_compact
from strandline.parts.rows.frontier import Run, Stretch
from strandline.parts.rows.merge import Source, merge_read
from strandline.parts.rows.sort import sort_table
from strandline.parts.schema import DIFF, END, TIME, TableSchema, new_schema
from strandline.state.model import EVERYTHING, Part, Reference, TableKind
from strandline.state.plan import markers_from

ENV = RealEnv(threads=2)
ARROW = pa.schema([("k", pa.int64()), ("v", pa.float64()), ("tags", pa.list_(pa.string()))])
VALUES = pa.table(
    {
        "v": pa.array([None, float("nan"), -0.0, 0.0, 1.5]),
        "tags": pa.array([None, [], [None], ["a", "b"], ["a"]], pa.list_(pa.string())),
    }
)


@dataclass(frozen=True)
class Update:
    """Of the row, or of the version, with a key and one of `VALUES`."""

    key: int
    row: int
    time: int
    diff: int = 1


def schema_of(kind: TableKind) -> TableSchema:
    return new_schema(ARROW, "k", kind=kind)


def table_of(updates: Sequence[Update], schema: TableSchema, **stored: bool) -> pa.Table:
    columns: dict[str, Any] = {
        "k": pa.array([u.key for u in updates], pa.int64()),
        TIME: pa.array([u.time for u in updates], pa.int64()),
        DIFF: pa.array([u.diff for u in updates], pa.int64()),
    }
    picked = VALUES.take(pa.array([u.row for u in updates], pa.int64()))
    columns |= {name: picked.column(name) for name in picked.column_names}
    arrow = schema.stored(**stored)
    table = pa.table([columns[name] for name in arrow.names], schema=arrow)
    return sort_table(table, schema.keys, then=[TIME] if stored.get("time") else [])


def shown(table: pa.Table) -> Counter[str]:
    return Counter(repr(row) for row in table.to_pylist())


@dataclass
class Stored:
    """A reference, and what is in its part."""

    reference: Reference
    rows: pa.Table

    def source(self, size: int | None = None) -> Source:
        part = self.reference.part
        names = frozenset({DIFF, END}.intersection(self.rows.column_names))
        if size is None:
            return Source(self.rows, self.reference.time, part.distinct, self.reference.rows_from)
        nothing = self.rows.slice(0, 0)  # the rows are in stretches
        return Source(nothing, self.reference.time, part.distinct, self.reference.rows_from, names)


def stretches_of(stored: Stored, size: int, codec: KeyCodec) -> Run:
    """Its rows in stretches of so many."""
    tables = [stored.rows.slice(at, size) for at in range(0, stored.rows.num_rows, size)]
    return Run([Stretch(codec.first_last(t)[0], partial(pa.table, t)) for t in tables])


@dataclass
class World:
    """One leaf, the commits that are not applied to it yet, and the truth."""

    kind: TableKind
    since: int = 0
    upper: int = 0
    """All commits before it are applied."""
    time: int = 0
    log: list[Update] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)
    made: int = 0

    def __post_init__(self) -> None:
        self.schema = schema_of(self.kind)
        self.codec = KeyCodec(self.schema)

    # --- what happens

    def write(self, updates: Sequence[tuple[int, int, int]]) -> None:
        """A commit of (key, row, diff)."""
        self.time += 1
        self.log += [Update(key, row, self.time, diff) for key, row, diff in updates]

    def apply(self, *groups: Sequence[Update], rows_from: int | None = None) -> None:
        """The next commits, each group as a part."""
        for group in groups:
            if group:
                times = {u.time for u in group}
                diff = any(u.diff < 0 for u in group)
                several = len(times) > 1 or rows_from is not None
                rows = table_of(group, self.schema, time=several, diff=diff)
                self.add(rows, max(times), rows_from=rows_from)
        self.upper = max([self.upper, *(u.time + 1 for group in groups for u in group)])

    def add(self, rows: pa.Table, time: int, **more: Any) -> None:
        lower, upper = self.codec.first_last(rows)
        timed = TIME in rows.column_names
        has_diff = DIFF in rows.column_names and pc.any(pc.less(rows[DIFF], 0)).as_py()
        part = Part(
            f"p{self.made}",
            1,
            rows.num_rows,
            lower,
            upper,
            time_min=pc.min(rows[TIME]).as_py() if timed else None,
            time_max=pc.max(rows[TIME]).as_py() if timed else None,
            has_diff=has_diff,
            distinct=not has_diff and not order_of(rows, self.schema.keys)[1],
            has_end=END in rows.column_names,
        )
        self.made += 1
        self.stored.append(Stored(Reference(self.made, 1, EVERYTHING, part, time, **more), rows))

    def merge(
        self, chosen: Sequence[Stored], *, split_at: int | None, size: int | None = None
    ) -> dict[str, pa.Table]:
        """Puts the outputs in the place of those chosen; what they are, by age."""
        others = [s.reference for s in self.stored if all(s is not c for c in chosen)]
        inputs = [((1, b"", s.reference.id), s.reference) for s in chosen]
        outputs: dict[str, pa.Table] = {}
        for age, rows in merge_compact(
            [s.source(size) for s in chosen],
            self.schema,
            since=self.since if split_at is not None else -1,
            split_at=split_at,
            markers_from=None if split_at is None else markers_from(inputs, others),
            memory_bytes=64 << 20,
            threads=1,
            runs=[stretches_of(s, size or 1, self.codec) for s in chosen],
            env=ENV if size is not None else None,
        ):
            outputs[age] = rows.read_all()
        newest = max(s.reference.time_max for s in chosen)
        self.stored = [s for s in self.stored if all(s is not c for c in chosen)]
        for name, rows in outputs.items():
            rows.validate(full=True)
            check(name, rows, self, split_at)
            if rows.num_rows:
                time = pc.max(rows[TIME]).as_py()
                assert time <= newest or time == self.since
                self.add(rows, time, reads_before=split_at if name == "history" else None)
        return outputs

    # --- what is there

    def truth(self, as_of: int) -> Counter[str]:
        updates = [u for u in self.log if u.time <= as_of]
        if self.kind == "keyed":
            newest = {u.key: u for u in updates}
            live = [u for u in newest.values() if u.diff > 0]
        else:
            counts: Counter[tuple[int, int]] = Counter()
            for u in updates:
                counts[u.key, u.row] += u.diff
            live = [Update(k, r, 0) for (k, r), n in counts.items() for _ in range(n)]
        return shown(table_of(live, self.schema))

    def sources(self, as_of: int, *, raw: bool = False) -> Iterator[Source]:
        for stored in self.stored:
            if raw or stored.reference.matters_at(as_of):
                yield stored.source()
        for time in range(self.upper, self.time + 1):
            group = [u for u in self.log if u.time == time]
            diff = any(u.diff < 0 for u in group)
            yield Source(table_of(group, self.schema, diff=diff), time, distinct=False)

    def check_reads(self) -> None:
        for as_of in range(self.since, self.time + 1):
            read = merge_read(list(self.sources(as_of)), self.schema, as_of=as_of)
            assert shown(read) == self.truth(as_of), as_of
        raw = merge_read(
            list(self.sources(self.time, raw=True)), self.schema, as_of=self.time, raw=True
        )
        assert raw.schema.names == [*ARROW.names, TIME, DIFF]
        assert order_of(raw, ["k", TIME])[0]
        for as_of in range(self.since, self.time + 1):
            # Updates as they are stored give the same once more.
            again = merge_read([Source(raw, 0, distinct=False)], self.schema, as_of=as_of)
            assert shown(again) == self.truth(as_of), as_of


def check(age: str, rows: pa.Table, world: World, split_at: int | None) -> None:
    """What an output promises."""
    assert order_of(rows, ["k", TIME])[0]
    times = rows[TIME].to_pylist()
    if split_at is None:
        assert age == "newer"
        return
    if age == "current":
        assert rows.column_names == [*ARROW.names, TIME]
        assert all(time <= split_at for time in times)
        assert world.kind == "rows" or len(set(rows["k"].to_pylist())) == rows.num_rows
    if age == "history":
        ends = rows[END].to_pylist()
        assert all(t < e <= split_at for t, e in zip(times, ends, strict=True))
        assert all(e > world.since for e in ends)
    if world.kind == "rows" and age != "history":
        assert all(time >= world.since for time in times)


def random_commit(world: World, r: random.Random) -> None:
    updates: list[tuple[int, int, int]] = []
    if world.kind == "keyed":
        keys = r.sample(range(4), r.randint(1, 3))
        updates = [(key, r.randrange(5), -1 if r.random() < 0.3 else 1) for key in keys]
    else:
        live: Counter[tuple[int, int]] = Counter()
        for u in world.log:
            live[u.key, u.row] += u.diff
        for _ in range(r.randint(1, 3)):
            there = sorted(row for row, n in live.items() if n > 0)
            remove = bool(there) and r.random() < 0.5
            key, row = r.choice(there) if remove else (r.randrange(3), r.randrange(3))
            live[key, row] += -1 if remove else 1
            updates.append((key, row, -1 if remove else 1))
    world.write(updates)


def random_apply(world: World, r: random.Random) -> None:
    """Some of the commits, in one part or two, perhaps with rows that others applied before."""
    if world.upper > world.time:
        return
    until = r.randint(world.upper, world.time)
    group = [u for u in world.log if world.upper <= u.time <= until]
    if r.random() < 0.25 and group:
        again = [u for u in world.log if u.time < world.upper and r.random() < 0.5]
        world.apply(again + group, rows_from=world.upper)
    elif r.random() < 0.5:
        left = [r.random() < 0.5 for _ in group]
        world.apply(
            [u for u, here in zip(group, left, strict=True) if here],
            [u for u, here in zip(group, left, strict=True) if not here],
        )
    else:
        world.apply(group)


def random_merge(world: World, r: random.Random) -> None:
    chosen = [s for s in world.stored if r.random() < 0.6] or world.stored[:1]
    if not chosen:
        return
    size = r.choice([None, 1, 3])
    befores = [s.reference.reads_before for s in chosen]
    known = [before for before in befores if before is not None]
    if not known and r.random() < 0.3:
        world.merge(chosen, split_at=None, size=size)
        return
    least = max([world.since, *known])
    latest = max(least, world.upper - 1)
    if len(known) == len(chosen):
        latest = least  # history by itself
    split_at = r.choice([latest, latest, r.randint(least, latest)])
    world.merge(chosen, split_at=split_at, size=size)


def live_through(world: World, r: random.Random, steps: int) -> None:
    for _ in range(steps):
        step = r.random()
        if step < 0.3:
            random_commit(world, r)
        elif step < 0.55:
            random_apply(world, r)
        elif step < 0.65:
            world.since = max(world.since, r.randint(world.since, max(world.upper - 1, 0)))
            over = [s for s in world.stored if s.reference.is_over(world.since)]
            world.stored = [s for s in world.stored if all(s is not o for o in over)]
        else:
            random_merge(world, r)
        world.check_reads()


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 30))
def test_no_merge_of_versions_changes_a_read(r: random.Random, steps: int) -> None:
    live_through(World("keyed"), r, steps)


@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 25))
def test_no_merge_of_rows_changes_a_read(r: random.Random, steps: int) -> None:
    live_through(World("rows"), r, steps)


# --- cases


def of(kind: TableKind, *parts: Sequence[Update], since: int = 0) -> World:
    """A world in which these parts were applied."""
    world = World(kind, since=since)
    world.log = sorted((u for part in parts for u in part), key=lambda u: u.time)
    world.apply(*parts)
    world.time = world.upper - 1
    return world


def named(rows: pa.Table) -> list[tuple[int, ...]]:
    """Keys, with what is ours."""
    ours = [name for name in rows.column_names if name.startswith("__")]
    return list(zip(*(rows[name].to_pylist() for name in ("k", *ours)), strict=True))


def test_a_row_that_was_retracted_before_since_vanishes() -> None:
    # S5: zero@0+1, zero@1-1, one@1+1, since 10
    zero, one = 0, 1
    world = of("rows", [Update(zero, 0, 0), Update(zero, 0, 1, -1), Update(one, 0, 1)], since=10)
    outputs = world.merge(world.stored, split_at=10)
    assert named(outputs["current"]) == [(one, 10)]
    assert not outputs["history"].num_rows
    assert not outputs["newer"].num_rows


def test_equal_rows_are_added_up_at_since() -> None:
    # S6: {a@0, b@1, c@2} and {a@3, b@4, d@5}, since 6
    a, b, c, d = range(4)
    world = of(
        "rows",
        [Update(a, 0, 0), Update(b, 0, 1), Update(c, 0, 2)],
        [Update(a, 0, 3), Update(b, 0, 4), Update(d, 0, 5)],
        since=6,
    )
    outputs = world.merge(world.stored, split_at=6)
    assert named(outputs["current"]) == [(a, 6), (a, 6), (b, 6), (b, 6), (c, 6), (d, 6)]


@pytest.mark.parametrize("first", [(0, 1), (0, 2), (1, 2), (1, 0), (2, 0), (2, 1)])
@pytest.mark.parametrize("split", [True, False])
def test_the_newest_version_wins_whatever_is_merged_first(
    first: tuple[int, int],
    split: bool,
) -> None:
    # T10: k=x@1, k=y@2, k=z@3, each its own part, since 10
    world = of("keyed", [Update(0, 0, 1)], [Update(0, 3, 2)], [Update(0, 4, 3)])
    world.time, world.upper, world.since = 11, 12, 10
    world.merge([world.stored[n] for n in first], split_at=11 if split else None)
    world.check_reads()
    world.merge(world.stored, split_at=11 if split else None)
    world.check_reads()
    read = merge_read(list(world.sources(11)), world.schema, as_of=11)
    assert read["v"].to_pylist() == [1.5]


def test_a_commit_that_is_not_applied_still_wins_over_what_was_merged() -> None:
    # T11: a commit at 8 is durable and not applied; a compaction would like F = 10
    world = of("keyed", [Update(0, 0, 1)], [Update(0, 3, 5)], since=4)
    world.log.append(Update(0, 4, 8))
    world.time = 10
    world.merge(world.stored, split_at=world.upper - 1)
    world.check_reads()
    world.apply([world.log[-1]])
    world.check_reads()
    outputs = world.merge(world.stored, split_at=9)
    assert named(outputs["current"]) == [(0, 8)]
    assert named(outputs["history"]) == [(0, 1, 5), (0, 5, 8)]


@pytest.mark.parametrize("kind", ["rows", "keyed"])
def test_a_live_row_is_not_there_before_its_birth(kind: TableKind) -> None:
    # T12: born at 6, live; since 2; compacted at 10
    world = of(kind, [Update(0, 0, 6)], [Update(1, 0, 1)], [Update(1, 0, 9, -1)], since=2)
    world.time, world.upper = 10, 11
    outputs = world.merge(world.stored, split_at=10)
    assert named(outputs["current"]) == [(0, 6)]
    assert named(outputs["history"]) == [(1, 2 if kind == "rows" else 1, 9)]
    keys = [merge_read(list(world.sources(t)), world.schema, as_of=t)["k"] for t in (4, 7, 9, 10)]
    assert [column.to_pylist() for column in keys] == [[1], [0, 1], [0], [0]]


def test_reads_at_the_split_or_later_need_no_history() -> None:
    world = of("keyed", [Update(0, 0, 1)], [Update(0, 1, 5)], [Update(1, 2, 2)])
    world.merge(world.stored, split_at=5)
    ages = [
        ["history" if s.reference.part.has_end else "current" for s in world.stored
         if s.reference.matters_at(as_of)]
        for as_of in (1, 4, 5)
    ]  # fmt: skip
    assert ages == [["history"], ["current", "history"], ["current"]]


def test_a_retraction_that_was_not_of_these_rows_alone_stays_one() -> None:
    # The second retraction is of a row in another part.
    world = of(
        "rows", [Update(0, 0, 1)], [Update(0, 0, 2), Update(0, 0, 3, -1), Update(0, 0, 4, -1)]
    )
    outputs = world.merge(world.stored[1:], split_at=4)
    assert named(outputs["newer"]) == [(0, 2, 1), (0, 3, -1), (0, 4, -1)]
    world.check_reads()
    outputs = world.merge(world.stored, split_at=4)
    assert named(outputs["history"]) == [(0, 1, 3), (0, 2, 4)]
    assert not outputs["newer"].num_rows
    world.check_reads()


def test_a_marker_stays_while_history_outside_does_not_know_of_it() -> None:
    x, gone, z = [Update(0, 0, 1)], [Update(0, 0, 3, -1)], [Update(0, 1, 5)]
    world = of("keyed", x, gone, z)
    world.merge([world.stored[0], world.stored[2]], split_at=5)  # x from 1 to 5, as far as it sees
    history = next(s for s in world.stored if s.reference.reads_before is not None)
    others = [s for s in world.stored if s is not history]
    outputs = world.merge(others, split_at=5)
    assert named(outputs["newer"]) == [(0, 3, -1)]
    world.check_reads()
    outputs = world.merge(world.stored, split_at=5)
    assert named(outputs["history"]) == [(0, 1, 3)]
    assert not outputs["newer"].num_rows
    world.check_reads()


def test_history_is_not_merged_without_a_time_to_split_at() -> None:
    world = of("keyed", [Update(0, 0, 1)], [Update(0, 1, 5)])
    world.merge(world.stored, split_at=5)
    with pytest.raises(ValueError, match="history"):
        world.merge(world.stored, split_at=None)
    world.since = 4
    with pytest.raises(ValueError, match="of no use"):
        world.merge(world.stored, split_at=3)


@pytest.mark.parametrize("kind", ["rows", "keyed"])
def test_what_waits_on_disk_comes_back_as_it_was(
    kind: TableKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.parts.rows.spool._MEMORY_BYTES", 1_000)
    monkeypatch.setattr("strandline.parts.rows.spool._BATCH_ROWS", 7)
    world = of(
        kind,
        [Update(key, key % 5, 1) for key in range(500)],
        [Update(key, key % 5, 2, -1) for key in range(0, 500, 2)],
        [Update(key, key % 5, 4, -1) for key in range(0, 500, 5) if key % 2],
    )
    world.time = 9
    outputs = world.merge(world.stored, split_at=3, size=11)
    assert [outputs[age].num_rows for age in ("current", "history", "newer")] == [250, 250, 50]
    world.check_reads()
