"""Tables whose compactions keep what is current and what is history apart."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from strandline.database import Database
from strandline.errors import AsOfTooOld
from strandline.parts.schema import DIFF, TIME
from strandline.shard.merging import run_job
from strandline.state.commands import Compact, Retain
from strandline.state.model import Reference, TableKind
from strandline.state.plan import CompactionJob
from strandline.table import Table
from strandline.times import Micros
from strandline.upkeep.compaction import workshop
from tests.support.deadlines import within
from tests.tables.helpers import apply, rows

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("text", pa.string())])
KEYS = 12

kinds = pytest.mark.parametrize("kind", ["rows", "keyed"])


@pytest.fixture(params=["in memory", "streamed"], autouse=True)
def _merging(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "streamed":
        monkeypatch.setattr("strandline.shard.merging._IN_MEMORY_BYTES", 0)
        monkeypatch.setattr("strandline.parts.rows.compact._IN_MEMORY_BYTES", 0)


def references(table: Table) -> list[Reference]:
    machine = table._handle.store.data(table._version.table)
    state = machine.look(within(60.0))
    return state.ask(lambda s: [r for _, r in s.references.range()])


def give_up(table: Table, since: int) -> None:
    """Makes the table's history begin at `since`."""
    table._handle.store.data(table._version.table).submit(Retain(since), deadline=within(60.0))


class Told:
    """A table, and what it should be at each commit."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.keyed = table.kind == "keyed"
        self.now: list[tuple[Any, ...]] = []
        self.at: dict[int, list[tuple[Any, ...]]] = {}

    def write(self, r: random.Random) -> None:
        if self.now and r.random() < 0.45:
            gone = r.choice(self.now)[0]
            commit = self.table.delete(keys=[gone])
            self.now = [row for row in self.now if row[0] != gone]
        else:
            new = [(k, r.randrange(4), "x" * r.randrange(3)) for k in r.sample(range(KEYS), 4)]
            commit = self.table.append([dict(zip(SCHEMA.names, row, strict=True)) for row in new])
            over = {row[0] for row in new} if self.keyed else set()
            self.now = [row for row in self.now if row[0] not in over] + new
        self.at[commit.micros] = sorted(self.now)

    def check(self, since: int = 0) -> None:
        for time, expected in self.at.items():
            if time < since:
                continue
            scan = self.table.scan(as_of=Micros(time))
            assert sorted(rows(scan.to_arrow())) == expected
            assert scan.count() == len(expected)
            narrow = self.table.scan(as_of=Micros(time), columns=["text"], where="v = 1")
            assert sorted(rows(narrow.to_arrow())) == sorted((t,) for _, v, t in expected if v == 1)
            key = time % KEYS
            found = self.table.get(key, as_of=Micros(time))
            assert sorted(rows(found)) == [row for row in expected if row[0] == key]
        self.check_raw(since)

    def check_raw(self, since: int) -> None:
        raw = self.table.scan(raw=True).to_arrow()
        assert raw.column_names == [*SCHEMA.names, TIME, DIFF]
        updates = sorted(rows(raw), key=lambda row: row[-2])
        for time, expected in self.at.items():
            if time < since:
                continue
            seen = [u for u in updates if u[-2] <= time]
            if self.keyed:
                newest = {u[0]: u for u in seen}
                live = sorted(u[:3] for u in newest.values() if u[-1] > 0)
            else:
                counts: Counter[Any] = Counter()
                for update in seen:
                    counts[update[:3]] += update[-1]
                assert all(n >= 0 for n in counts.values())
                live = sorted(counts.elements())
            assert live == expected


@kinds
@pytest.mark.parametrize("seed", range(3))
def test_every_moment_reads_the_same_whatever_is_merged(
    db: Database, kind: TableKind, seed: int
) -> None:
    r = random.Random(seed)
    table = db.create_table(
        "t", SCHEMA, row_keys="k", kind=kind, properties={"compaction_parts": 4}
    )
    told = Told(table)
    since = 0
    for _ in range(45):
        step = r.random()
        if step < 0.6 or not told.at:
            told.write(r)
        elif step < 0.75:
            apply(table)
        elif step < 0.95:
            db.compact("t", strategy=r.choice(["full", "basic", "size-ratio"]))
        else:
            apply(table)
            since = r.choice([time for time in told.at if time >= since])
            give_up(table, since)
    told.check(since)
    assert any(r.part.has_end for r in references(table))
    db.compact("t", strategy="full")
    told.check(since)


@kinds
def test_the_present_is_one_part_without_history(db: Database, kind: TableKind) -> None:
    table = db.create_table("t", SCHEMA, row_keys="k", kind=kind)
    for version in range(10):
        if kind == "rows":
            table.delete(all=True)
        table.append({"k": range(100), "v": [version] * 100, "text": ["a"] * 100})
    db.compact("t", strategy="full")
    current, history = sorted(references(table), key=lambda r: r.part.has_end)
    assert (current.part.rows, history.part.rows) == (100, 900)
    assert history.reads_before is not None
    assert history.part.time_max is not None
    assert history.part.time_max < history.reads_before
    explained = table.scan().explain()
    assert (explained.parts, explained.rows, explained.merged) == (1, 100, 0)
    assert table.scan().count() == 100
    assert set(table.scan().to_arrow()["v"].to_pylist()) == {9}
    assert rows(table.get(7)) == [(7, 9, "a")]
    # Once more gives nothing new, so nothing is done.
    before = references(table)
    db.compact("t", strategy="full")
    assert references(table) == before


def test_history_that_nobody_can_read_any_more_goes_without_being_read(db: Database) -> None:
    table = db.create_table("t", SCHEMA, row_keys="k", kind="keyed")
    commits = [
        table.append({"k": range(100), "v": [version] * 100, "text": ["a"] * 100})
        for version in range(3)
    ]
    db.compact("t", strategy="full")
    (history,) = [r for r in references(table) if r.part.has_end]
    blob = table._handle.store.location.blob
    give_up(table, commits[-1].micros)
    blob.delete(history.part.key, timeout=60.0)
    db.compact("t")
    assert [r.part.has_end for r in references(table)] == [False]
    assert table.scan(as_of=commits[-1]).count() == 100
    with pytest.raises(AsOfTooOld):
        table.scan(as_of=commits[0]).to_arrow()


@pytest.mark.parametrize("split", [True, False])
def test_times_rank_where_a_merge_left_out_what_lies_between(db: Database, split: bool) -> None:
    table = db.create_table("t", SCHEMA, row_keys="k", kind="keyed")
    commits = []
    for row in ((1, 0, "old"), (1, 1, "new"), (2, 2, "last")):
        commits.append(table.append([dict(zip(SCHEMA.names, row, strict=True))]))
        apply(table)
    store, version = table._handle.store, table._version
    machine = store.data(version.table)
    inputs = tuple((key, ref) for key, ref in machine.state.references.range())
    assert len(inputs) == 3
    last = commits[-1].micros
    job = CompactionJob(None, (inputs[0], inputs[2]), 0, last if split else None)
    if inputs[0][1].leaf:
        (leaf,) = (leaf for _, leaf in machine.state.leaves.range())
        job = replace(job, leaf=leaf)
    outputs = run_job(workshop(store, version, within(60.0), threads=1), job, deadline=within(60.0))
    assert [output.part.distinct for output in outputs] == [True]
    command = Compact(tuple(key for key, _ in job.inputs), outputs)
    assert machine.submit(command, deadline=within(60.0)) is True
    assert rows(table.scan().to_arrow()) == [(1, 1, "new"), (2, 2, "last")]
    assert rows(table.get(1)) == [(1, 1, "new")]
    assert rows(table.scan(as_of=commits[0]).to_arrow()) == [(1, 0, "old")]
    # With newer rows beside it, too.
    table.append({"k": [2], "v": [3], "text": ["later"]})
    assert rows(table.scan().to_arrow()) == [(1, 1, "new"), (2, 3, "later")]


def test_a_leaf_is_not_split_for_the_sake_of_its_history(db: Database) -> None:
    table = db.create_table("t", SCHEMA, row_keys="k", kind="keyed", properties={"split_rows": 300})
    for version in range(10):
        table.append({"k": range(200), "v": [version] * 200, "text": ["a"] * 200})
    db.compact("t", strategy="full")
    assert db.split("t")[0].leaves_after == 1


@kinds
def test_history_is_split_with_its_leaf(db: Database, kind: TableKind) -> None:
    table = db.create_table("t", SCHEMA, row_keys="k", kind=kind, properties={"split_rows": 60})
    told = Told(table)
    for version in range(4):
        if kind == "rows" and told.now:
            told.at[table.delete(all=True).micros] = []
        told.now = [(k, version, "a") for k in range(200)]
        commit = table.append([dict(zip(SCHEMA.names, row, strict=True)) for row in told.now])
        told.at[commit.micros] = told.now
    db.compact("t", strategy="full")
    db.split("t")
    assert len({r.leaf for r in references(table) if r.part.has_end}) > 2
    told.check()
    told.write(random.Random(1))
    db.compact("t", strategy="full")
    told.check()
