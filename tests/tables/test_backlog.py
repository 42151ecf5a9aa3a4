"""What is committed and not applied is read in blocks, and reads as each commit by itself would."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline.parts.files.inline import decode_inline, decode_together, encode_inline
from strandline.parts.schema import new_schema
from strandline.state.model import Batch, Entry
from strandline.txn.apply import apply_table
from strandline.txn.handle import Handle
from tests.support.deadlines import within

SCHEMA = pa.schema([pa.field("key", pa.int64(), nullable=False), pa.field("value", pa.string())])
COMMITS = 150
KEYS = 40
UNBOUNDED = sl.Settings(
    background=False, apply_backlog_commits=COMMITS * 2, backlog_commits_max=COMMITS * 2
)
"""Nothing is applied but by the test."""


def handle_of(table: sl.Table) -> Handle:
    return table._handle


def apply_some(table: sl.Table, commits: int) -> None:
    handle = handle_of(table)
    apply_table(handle.store, table.id, deadline=within(60), commits_max=commits)


@pytest.mark.parametrize("kind", ["keyed", "rows"])
@pytest.mark.parametrize("seed", range(3))
def test_a_long_backlog_reads_as_a_model_does_at_every_time_however_much_is_applied(
    open_database: Callable[..., sl.Database], kind: Any, seed: int
) -> None:
    rng = random.Random(seed)
    db = open_database(settings=UNBOUNDED)
    table = db.create_table(
        "t", SCHEMA, row_keys="key", kind=kind, split_points=[KEYS // 2], properties={}
    )
    model: Counter[tuple[int, str]] | dict[int, str] = Counter() if kind == "rows" else {}
    states: list[tuple[sl.Commit, list[tuple[int, str]]]] = []
    for number in range(COMMITS):
        keys = rng.sample(range(KEYS), rng.randint(1, 4))
        if rng.random() < 0.25:
            commit = table.delete(where=f"key in ({', '.join(map(str, keys))})")
            kept = {item: n for item, n in model.items() if _key(item) not in keys}
            model = Counter(kept) if kind == "rows" else kept  # type: ignore[assignment,arg-type]
        else:
            commit = table.append({"key": keys, "value": [f"{number}"] * len(keys)})
            for key in keys:
                if isinstance(model, Counter):
                    model[key, f"{number}"] += 1
                else:
                    model[key] = f"{number}"
        states.append((commit, _listed(model)))

    def check() -> None:
        for commit, expected in [*rng.sample(states, 8), states[-1]]:
            view = table.as_of(commit)
            assert _rows(view.scan().to_arrow()) == expected
            low, high = sorted(rng.sample(range(KEYS + 1), 2))
            inside = [item for item in expected if low <= item[0] < high]
            assert _rows(view.scan(key_range=(low, high)).to_arrow()) == inside
            key = rng.randrange(KEYS)
            assert _rows(view.get(key)) == [item for item in expected if item[0] == key]
            assert view.scan().count() == len(expected)

    check()
    for _ in range(4):
        apply_some(table, rng.randint(1, 40))
        check()
    apply_some(table, COMMITS)
    check()


def _key(item: Any) -> int:
    key: int = item[0] if isinstance(item, tuple) else item
    return key


def _listed(model: Counter[tuple[int, str]] | dict[int, str]) -> list[tuple[int, str]]:
    found = model.elements() if isinstance(model, Counter) else model.items()
    return sorted(found)


def _rows(data: pa.Table) -> list[tuple[int, str]]:
    keys = data.column("key").to_pylist()
    assert keys == sorted(keys)
    return sorted(zip(keys, data.column("value").to_pylist(), strict=True))


@pytest.mark.parametrize("earlier", [0, 30])
def test_of_what_a_transaction_wrote_to_a_key_the_last_is_what_it_sees(
    db: sl.Database, earlier: int
) -> None:
    table = db.create_table("t", SCHEMA, row_keys="key", kind="keyed")
    for number in range(earlier):
        table.upsert({"key": [5, 6], "value": [f"old {number}"] * 2})
    with db.transaction() as tx:
        mine = tx["t"]
        # The later write begins at a lower key, and both have 5.
        mine.upsert({"key": [1, 5], "value": ["first"] * 2})
        mine.upsert({"key": [0, 5], "value": ["second"] * 2})
        assert mine.get(5).to_pylist() == [{"key": 5, "value": "second"}]
        expected = [(0, "second"), (1, "first"), (5, "second")]
        expected += [(6, f"old {earlier - 1}")] if earlier else []
        assert _rows(mine.scan().to_arrow()) == expected
    assert _rows(table.scan().to_arrow()) == expected


def test_two_transactions_of_one_time_do_not_see_what_the_other_wrote(db: sl.Database) -> None:
    table = db.create_table("t", SCHEMA, row_keys="key", kind="keyed")
    for number in range(40):
        table.upsert({"key": [number], "value": ["old"]})
    snapshot = "snapshot"
    with db.transaction(isolation=snapshot) as one, db.transaction(isolation=snapshot) as other:
        one["t"].upsert({"key": [7], "value": ["one"]})
        other["t"].upsert({"key": [8], "value": ["other"]})
        for tx, seen in ((one, ["one", "old"]), (other, ["old", "other"])):
            rows = dict(_rows(tx["t"].scan().to_arrow()))
            assert [rows[7], rows[8]] == seen


def test_entries_decoded_together_are_those_decoded_one_by_one() -> None:
    schema = new_schema(SCHEMA, "key")
    plain, marked = schema.arrow, schema.stored(diff=True)
    tables = [
        pa.table([[1, 2], ["a", None]], schema=plain),
        pa.table([[3], ["b"]], schema=plain),
        pa.table([[4, 5], ["c", "d"], [1, -1]], schema=marked),
        pa.table([[6], ["e"]], schema=plain),
    ]
    entries = [
        Entry(
            "t",
            10 * n,
            0,
            "w",
            Batch(inline=encode_inline(t), rows=len(t), has_diff=t.num_columns == 3),
        )
        for n, t in enumerate(tables)
    ]
    together = decode_together(entries, schema)
    assert together.schema.names == ["key", "value", "__time", "__diff"]
    one_by_one = pa.concat_tables([decode_inline(e.batch.inline, schema) for e in entries[:2]])
    assert together.slice(0, 3).select(["key", "value"]).equals(one_by_one)
    assert together.column("key").to_pylist() == [1, 2, 3, 4, 5, 6]
    assert together.column("__time").to_pylist() == [0, 0, 10, 20, 20, 30]
    assert together.column("__diff").to_pylist() == [1, 1, 1, 1, -1, 1]
