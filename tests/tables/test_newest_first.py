"""Lookups in keyed tables end with the newest version of the key, and miss none."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline.location.local.blob import FileBlob
from strandline.location.memory import MemoryBlob
from strandline.parts.files.read import PartReader
from strandline.txn.apply import apply_table
from tests.support.deadlines import within

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
PLAIN = sl.Settings(background=False, inline_bytes_max=0)
"""Each write is a part, and stays one until the test says otherwise."""


@contextmanager
def parts_read() -> Iterator[list[str]]:
    found: list[str] = []
    read = PartReader.read

    def noted(self: PartReader, part: Any, *args: Any, **kwargs: Any) -> pa.Table:
        found.append(part.key)
        return read(self, part, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartReader, "read", noted)
        yield found


def applied(table: sl.Table) -> None:
    apply_table(table._handle.store, table.id, deadline=within(60))


def many(value: int, keys: range = range(20_000)) -> dict[str, Any]:
    """More keys than a filter is made for."""
    return {"k": list(keys), "v": [value] * len(keys)}


@pytest.mark.parametrize("apply", [True, False])
def test_the_newest_part_that_has_the_key_is_the_last_that_is_read(
    open_database: Callable[..., sl.Database], apply: bool
) -> None:
    db = open_database(settings=PLAIN)
    table = db.create_table("t", SCHEMA, row_keys="k", kind="keyed")
    first = table.upsert(many(1))
    second = table.upsert(many(2))
    table.upsert(many(3, range(0, 40_000, 2)))
    if apply:
        applied(table)
    with parts_read() as read:
        assert table.get_one(4) == {"k": 4, "v": 3}
    assert len(read) == 1
    with parts_read() as read:
        assert table.get_one(5) == {"k": 5, "v": 2}
    assert len(read) == 2
    with parts_read() as read:
        assert table.get_one(30_001) is None
    assert len(read) == 1, "by their first and last keys the others cannot have it"
    assert table.as_of(first).get_one(4) == {"k": 4, "v": 1}
    assert table.as_of(second).get_one(4) == {"k": 4, "v": 2}
    table.delete(where="k = 4")
    with parts_read() as read:
        assert table.get_one(4) is None
    assert len(read) <= 1


@pytest.mark.parametrize(("seed", "near"), [*((n, True) for n in range(4)), (4, False), (5, False)])
def test_at_every_time_each_key_has_the_version_that_a_model_has(
    open_database: Callable[..., sl.Database],
    seed: int,
    near: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What is far is read side by side, and all of it.
    monkeypatch.setattr(FileBlob, "near", near)
    monkeypatch.setattr(MemoryBlob, "near", near)
    rng = random.Random(seed)
    db = open_database(
        settings=sl.Settings(background=False, inline_bytes_max=rng.choice([0, 400]))
    )
    table = db.create_table("t", SCHEMA, row_keys="k", kind="keyed")
    model: dict[int, int] = {}
    states: list[tuple[sl.Commit, dict[int, int]]] = []
    for number in range(60):
        keys = rng.sample(range(30), rng.randint(1, 12))
        if rng.random() < 0.3:
            commit = table.delete(where=f"k in ({', '.join(map(str, keys))})")
            model = {k: v for k, v in model.items() if k not in keys}
        else:
            commit = table.upsert({"k": keys, "v": [number] * len(keys)})
            model = {**model, **dict.fromkeys(keys, number)}
        states.append((commit, model))
        if rng.random() < 0.3:
            apply_table(
                table._handle.store, table.id, deadline=within(60), commits_max=rng.randint(1, 20)
            )
        if rng.random() < 0.1:
            db.compact("t", strategy="full")
        if rng.random() < 0.3:
            for commit, state in rng.sample(states, min(3, len(states))):
                view = table.as_of(commit)
                for key in rng.sample(range(30), 5):
                    expected = {"k": key, "v": state[key]} if key in state else None
                    assert view.get_one(key) == expected, (key, commit)
                    found = view.scan(where=f"k = {key} and v >= 0").to_arrow().to_pylist()
                    assert found == ([] if expected is None else [expected])
        with db.transaction() as tx:
            key = rng.randrange(30)
            tx["t"].upsert({"k": [key], "v": [-1]})
            assert tx["t"].get_one(key) == {"k": key, "v": -1}
            tx.rollback()
