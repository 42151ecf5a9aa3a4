from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from strandline.env import RealEnv
from strandline.errors import SchemaMismatch
from strandline.parts.files import batch as batch_module
from strandline.parts.files.batch import build_batch
from strandline.parts.files.inline import decode_inline
from strandline.parts.keys import KeyCodec
from strandline.parts.schema import DIFF, TableSchema, new_schema
from strandline.settings import Settings
from strandline.state.model import Batch, TableKind
from tests.support.deadlines import within
from tests.unit.parts.files.test_part import WHO, Store

ARROW = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def schema_of(kind: TableKind) -> TableSchema:
    return replace(new_schema(ARROW, "k", kind=kind), version=3)


def build(store: Store, data: Any, schema: TableSchema, *, diff: bool = False) -> Batch:
    return build_batch(
        data,
        schema,
        blob=store.blob,
        new_key=store.new_key,
        identity=lambda: WHO,
        settings=store.settings,
        env=RealEnv(),
        deadline=within(60),
        diff=diff,
    )


def content(store: Store, batch: Batch, schema: TableSchema) -> pa.Table:
    if batch.inline:
        assert not batch.parts
        return decode_inline(batch.inline, schema)
    columns = [*schema.arrow.names, *([DIFF] if batch.has_diff else [])]
    tables = [store.read(part, schema, columns=columns) for part in batch.parts]
    assert all(a.upper < b.lower for a, b in pairwise(batch.parts))
    return pa.concat_tables(tables)


@pytest.mark.parametrize("rows", [1, 100, 3_000, 50_000])
@pytest.mark.parametrize("kind", ["rows", "keyed"])
@pytest.mark.parametrize("form", ["table", "reader", "stream"])
@pytest.mark.parametrize("ordered", [False, True])
def test_a_batch_holds_the_rows_whatever_their_number_and_form(
    rows: int, kind: TableKind, form: str, ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form == "stream":  # as if memory were small
        monkeypatch.setattr(batch_module, "_IN_MEMORY_BYTES", 10_000)
    schema = schema_of(kind)
    store = Store(Settings(part_rows_target=20_000))
    keys = np.random.default_rng(rows).integers(0, rows // 2 + 1, rows)
    keys = np.sort(keys) if ordered else keys
    table = pa.table({"k": keys, "v": np.arange(rows)})
    data = table if form == "table" else table.to_reader(max_chunksize=777)
    batch = build(store, data, schema)
    found = content(store, batch, schema)
    if kind == "keyed":
        last = dict(zip(keys.tolist(), range(rows), strict=True))
        assert list(zip(*found.to_pydict().values(), strict=True)) == sorted(last.items())
    else:
        assert sorted(zip(*found.to_pydict().values(), strict=True)) == sorted(
            zip(keys.tolist(), range(rows), strict=True)
        )
    streamed = form == "stream" and table.nbytes > 10_000
    assert bool(batch.inline) == (found.nbytes < 60_000 and not streamed)
    assert batch.rows == found.num_rows
    assert (batch.lower, batch.upper) == KeyCodec(schema).first_last(found)
    assert batch.distinct == (len(set(found["k"].to_pylist())) == found.num_rows)
    assert (batch.has_diff, batch.schema_version) == (False, 3)


@pytest.mark.parametrize("empty", [[], {"k": [], "v": []}, ARROW.empty_table(), None])
def test_no_rows_are_a_batch_without_rows(empty: Any) -> None:
    store = Store()
    data = ARROW.empty_table().to_reader() if empty is None else empty
    assert build(store, data, schema_of("rows")) == Batch()
    assert not store.store.objects


def test_diffs_are_kept_where_they_say_something() -> None:
    store, schema = Store(), schema_of("keyed")
    rows = {"k": [2, 1, 2], "v": [None, 7, 8], DIFF: [1, -1, -1]}
    batch = build(store, rows, schema, diff=True)
    assert (batch.has_diff, batch.distinct, batch.rows) == (True, False, 2)
    assert content(store, batch, schema).to_pylist() == [
        {"k": 1, "v": 7, DIFF: -1},
        {"k": 2, "v": 8, DIFF: -1},
    ]
    batch = build(store, rows | {DIFF: [1, 1, 1]}, schema, diff=True)
    assert (batch.has_diff, batch.distinct) == (False, True)
    many = {"k": range(20_000), "v": range(20_000), DIFF: [1] * 20_000}
    batch = build(store, {n: list(c) for n, c in many.items()}, schema, diff=True)
    assert (batch.has_diff, batch.distinct, len(batch.parts) > 0) == (False, True, True)
    many[DIFF] = [1] * 19_999 + [-1]
    batch = build(store, {n: list(c) for n, c in many.items()}, schema, diff=True)
    assert (batch.has_diff, batch.distinct) == (True, False)
    assert content(store, batch, schema)[DIFF].to_pylist() == many[DIFF]
    with pytest.raises(SchemaMismatch, match="__diff"):
        build(store, rows, schema)


def test_data_that_does_not_fit_in_the_middle_of_a_stream_leaves_no_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_module, "_IN_MEMORY_BYTES", 10_000)
    store = Store(Settings())

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, 20_000, 1_000):
            keys: list[int | None] = list(range(start, start + 1_000))
            if start == 15_000:
                keys[7] = None
            yield pa.RecordBatch.from_pydict({"k": keys, "v": keys}, schema=ARROW)

    reader = pa.RecordBatchReader.from_batches(ARROW, batches())
    with pytest.raises(SchemaMismatch, match="'k' is null in row 15007"):
        build(store, reader, schema_of("rows"))
    assert not store.store.objects


def test_inline_rows_are_read_in_a_newer_schema() -> None:
    store, schema = Store(), schema_of("rows")
    batch = build(store, {"k": [1], "v": [2]}, schema)
    fields = [schema.arrow.field("v").with_name("w").with_type(pa.float64())]
    newer = TableSchema(pa.schema([*fields, schema.arrow.field("k")]), ("k",), version=4)
    assert decode_inline(batch.inline, newer).to_pylist() == [{"w": 2.0, "k": 1}]
