"""Many small commits: what lookups have to look at stays little."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import strandline as sl
from strandline.env import Deadline
from strandline.shard.machine import Machine
from strandline.state.plan import level_zero
from strandline.txn.apply import Applied
from strandline.txn.handle import Handle
from strandline.upkeep.background import Background

SCHEMA = pa.schema([pa.field("key", pa.int64(), nullable=False), pa.field("value", pa.string())])
COMMITS = 3_000
LEAVES = 20


def lookups_opened(table: sl.Table, keys: range, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many parts each lookup reads."""
    reader = handle_of(table).store.reader
    read, opened = type(reader).read, 0

    def counted(*args: object, **kwargs: object) -> pa.Table:
        nonlocal opened
        opened += 1
        return read(*args, **kwargs)  # type: ignore[arg-type]

    found = []
    with monkeypatch.context() as patched:
        patched.setattr(type(reader), "read", counted)
        for key in keys:
            opened = 0
            table.get(key)
            found.append(opened)
    return found


def handle_of(table: sl.Table) -> Handle:
    return table._handle


def filled(path: Path, *, background: bool) -> sl.Table:
    settings = sl.Settings(background=background, apply_backlog_commits=16, sinking_leaf_bytes=256)
    db = sl.connect(path, settings=settings)
    points = [COMMITS * n // LEAVES for n in range(1, LEAVES)]
    table = db.create_table("events", SCHEMA, row_keys="key", kind="keyed", split_points=points)
    for n in range(COMMITS):
        table.append([{"key": n * 1_009 % COMMITS, "value": f"v{n}"}])
    return table


def test_after_thousands_of_commits_lookups_open_few_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(tmp_path / "lake", background=False)
    handle = handle_of(table)
    state = handle.store.data(table.id).state
    above = len(level_zero(state))
    assert above <= 24
    assert state.references.count() - above >= LEAVES, "nothing went down into the leaves"
    opened = lookups_opened(table, range(0, COMMITS, 7), monkeypatch)
    assert sum(opened) / len(opened) <= 4
    missed = lookups_opened(table, range(COMMITS, COMMITS + 50), monkeypatch)
    assert sum(missed) <= sum(opened)
    values = dict(table.scan().to_arrow().sort_by("key").to_pydict())
    assert values["key"] == list(range(COMMITS))
    inverse = {n * 1_009 % COMMITS: f"v{n}" for n in range(COMMITS)}
    assert values["value"] == [inverse[key] for key in range(COMMITS)]


@pytest.mark.parametrize("kind", ["rows", "keyed"])
def test_a_lookup_opens_only_the_small_parts_that_have_its_key(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = sl.Settings(background=False, inline_bytes_max=0, small_parts_max=1_000)
    with sl.connect(tmp_path / "lake", settings=settings) as db:
        table = db.create_table("t", SCHEMA, row_keys="key", kind=kind)
        for n in range(40):
            table.append({"key": [n, n + 1_000, n + 100_000], "value": ["a", "b", "c"]})
        expected = {"key": [1_007], "value": ["b"]}
        assert lookups_opened(table, range(1_000, 1_040), monkeypatch) == [1] * 40
        assert sum(lookups_opened(table, range(2_000, 2_100), monkeypatch)) <= 4
        assert table.get(1_007).to_pydict() == expected
        assert table.get_many([1_007, 5_000]).to_pydict() == expected
        assert table.scan(where="key = 1007").to_arrow().to_pydict() == expected
        assert table.scan(where="key in (1007, 5000)").to_arrow().to_pydict() == expected
        table.delete(keys=[1_007])
        assert table.get(1_007).num_rows == 0
        assert table.scan(where="key >= 1007 and key <= 1007").count() == 0
        assert table.get_many(range(1_000, 1_040)).num_rows == 39


def test_commits_of_thousands_of_rows_are_gathered_into_parts_and_not_merged_from_them() -> None:
    """A part, and its share of the first merge, costs more than twice a commit without."""
    data = pa.table({"key": range(3_000), "value": ["of some thirty bytes, as many are"] * 3_000})
    with sl.connect("memory://", settings=sl.Settings(background=False)) as db:
        table = db.create_table("t", SCHEMA, row_keys="key")
        for _ in range(100):
            table.append(data)
        parts = handle_of(table).store.data(table.id).state.parts.count()
        stored = handle_of(table).store.location.blob.list("", timeout=5)
        assert len([info for info in stored if "/part/" in info.key]) == parts <= 100 // 8
        assert len(table) == 300_000


def test_what_is_to_be_applied_goes_before_the_next_bite_of_merging(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    with sl.connect("memory://", settings=sl.Settings(background=False)) as db:
        table = db.create_table("t", SCHEMA, row_keys="key")
        upkeep = handle_of(table).store.background
        assert isinstance(upkeep, Background)

        def apply(_: object, name: str, __: Deadline) -> Applied:
            done.append(f"apply {name}")
            return Applied(1, frozenset({None, b"m"}))

        def bite(
            _: object, name: str, lower: bytes | None, __: Deadline
        ) -> frozenset[bytes | None]:
            done.append(f"merge {name} {lower!r}")
            if len(done) == 2:
                upkeep._due["second"] = None  # a commit comes meanwhile
            return frozenset({lower} if len(done) < 4 else ())

        monkeypatch.setattr("strandline.upkeep.background.apply_table", apply)
        monkeypatch.setattr("strandline.upkeep.background.shorten", bite)
        upkeep._due["first"] = None
        upkeep._run()
    assert done[0] == "apply first"
    assert done[1].startswith("merge first")
    assert done[2] == "apply second"
    assert sorted(done[3:]) == sorted(
        [f"merge {name} {lower!r}" for name in ("first", "second") for lower in (None, b"m")]
    )


def test_a_rollup_that_takes_long_leaves_what_is_to_be_applied_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: list[float] = []

    def apply(_: object, __: str, deadline: Deadline) -> Applied:
        left.append(deadline.remaining())
        return Applied(1, frozenset())

    def roll_up(*_: object) -> bool:
        now = env.monotonic() + 100
        monkeypatch.setattr(env, "monotonic", lambda: now)
        return False

    with sl.connect("memory://", settings=sl.Settings(background=False)) as db:
        table = db.create_table("t", SCHEMA, row_keys="key")
        store = handle_of(table).store
        env, upkeep = store.env, store.background
        assert isinstance(upkeep, Background)
        monkeypatch.setattr("strandline.upkeep.background.apply_table", apply)
        monkeypatch.setattr(Machine, "rollup_due", property(lambda _: True))
        monkeypatch.setattr(Machine, "maybe_rollup", roll_up)
        upkeep._due[table.id] = None
        upkeep._run()
    assert left == [store.settings.timeout_seconds]


def test_without_a_background_whoever_commits_merges_small_parts_before_it_returns() -> None:
    settings = sl.Settings(background=False, inline_bytes_max=0, small_parts_max=2)
    with sl.connect("memory://", settings=settings) as db:
        table = db.create_table("t", SCHEMA, row_keys="key")
        for key in range(6):
            table.append({"key": [key], "value": ["x"]})
        assert table.parts().num_rows < 3


@pytest.mark.parametrize("kind", ["rows", "keyed"])
def test_a_compaction_that_had_nothing_to_do_says_why(kind: str) -> None:
    settings = sl.Settings(background=True, inline_bytes_max=0, small_parts_max=100)
    with sl.connect("memory://", settings=settings) as db:
        table = db.create_table("t", SCHEMA, row_keys="key", kind=kind)
        assert [each.why_nothing for each in db.compact()] == ["it has no parts"]
        for key in range(2):
            table.append({"key": [key], "value": ["x"]})
        db.compact("t")
        (report,) = db.compact("t")
        assert report.jobs == 0
        assert report.why_nothing is not None
        assert "the strategy 'size-ratio'" in report.why_nothing
        assert "'full' merges" in report.why_nothing
        (report,) = db.compact("t", strategy="full")
        assert (report.jobs, report.why_nothing) == (1, None)
        (report,) = db.compact("t", strategy="full")
        assert report.why_nothing == "no leaf has more than one part, or anything to give up"
