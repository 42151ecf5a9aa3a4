from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.env import Deadline, RealEnv
from strandline.errors import DeadlineExceeded
from strandline.location import BlobMissing
from strandline.location.memory import MemoryBlob, MemoryStore
from strandline.parts.files.read import PartReader
from strandline.parts.files.write import Identity, write_part, write_parts
from strandline.parts.keys import KEY_BYTES_MAX, KeyCodec, KeyRange, successor
from strandline.parts.schema import COLUMN_ID, DIFF, END, TIME, TableSchema, new_schema
from strandline.parts.statistics import decode_statistics
from strandline.settings import Settings
from strandline.state.model import EVERYTHING, Interval, Part
from tests.support.deadlines import within
from tests.unit.parts.ranges import mask_of
from tests.unit.parts.strategies import KEYS, key_tuples, keys_schema

ENV = RealEnv()
WHO = Identity("d0", "s0", "readings", "w0", "s0", "loader:1")
SMALL = Settings(row_group_rows=7, part_rows_target=40)
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = new_schema(
    pa.schema(
        [
            ("k", pa.int64()),
            ("s", pa.string()),
            ("at", pa.timestamp("us", "UTC")),
            ("v", pa.float64()),
            ("tags", pa.list_(pa.string())),
            ("pos", pa.struct([("x", pa.int8()), ("y", pa.map_(pa.string(), pa.int64()))])),
        ]
    ),
    ["k"],
    ["s"],
)


class Store:
    """A Blob in memory and a reader on it."""

    def __init__(self, settings: Settings = SMALL) -> None:
        self.store = MemoryStore()
        self.blob = MemoryBlob(self.store, ENV)
        self.settings = settings
        self.reader = PartReader(self.blob, settings, ENV)
        self.keys = (f"w0/s0/part/p{i}.parquet" for i in range(10_000))

    def new_key(self) -> str:
        return next(self.keys)

    def write(self, data: Any, schema: TableSchema = SCHEMA) -> Part:
        return write_part(
            self.blob,
            self.new_key(),
            data,
            schema,
            identity=WHO,
            settings=self.settings,
            deadline=within(60),
        )

    def write_many(
        self,
        data: Any,
        schema: TableSchema = SCHEMA,
        cuts: Sequence[bytes] = (),
        deadline: Deadline | None = None,
    ) -> list[Part]:
        return write_parts(
            self.blob,
            self.new_key,
            data,
            schema,
            identity=WHO,
            settings=self.settings,
            deadline=deadline or within(60),
            cuts=cuts,
        )

    def read(self, part: Part, schema: TableSchema = SCHEMA, **wanted: Any) -> pa.Table:
        columns = wanted.pop("columns", None)
        table = self.reader.read(part, schema, columns=columns, deadline=within(60), **wanted)
        batches = list(
            self.reader.batches(
                part, schema, columns=columns, deadline=within(60), rows=14, **wanted
            )
        )
        assert pa.Table.from_batches(batches, table.schema).equals(table)
        table.validate(full=True)
        return table


def rows(count: int, start: int = 0, step: int = 1) -> pa.Table:
    keys = [start + i * step for i in range(count)]
    return pa.table(
        {
            "k": [k // 3 for k in keys],
            "s": [f"s{k % 3}" for k in keys],
            "at": [EPOCH + timedelta(seconds=k) for k in keys],
            "v": [None if k % 5 == 0 else k / 2 for k in keys],
            "tags": [None if k % 7 == 0 else ["t"] * (k % 3) for k in keys],
            "pos": [{"x": k % 100, "y": [("a", k)]} if k % 4 else None for k in keys],
        },
        schema=SCHEMA.arrow,
    )


def test_what_was_written_is_read() -> None:
    store, table = Store(), rows(100)
    part = store.write(table)
    read = store.read(part)
    assert read.equals(table)
    assert read.schema.equals(SCHEMA.arrow, check_metadata=True)
    assert part.size == len(store.blob.get(part.key, timeout=60))
    assert (part.rows, part.distinct, part.has_diff) == (100, True, False)
    assert (part.lower, part.upper) == KeyCodec(SCHEMA).first_last(table)
    assert (part.time_min, part.time_max, part.schema_version) == (None, None, 1)


def test_a_part_is_plain_parquet_for_others() -> None:
    store, table = Store(), rows(100)
    part = store.write(table.to_batches(max_chunksize=11))
    read = pq.read_table(pa.BufferReader(store.blob.get(part.key, timeout=60)))
    assert read.equals(table)


def test_a_part_says_what_it_is() -> None:
    store = Store()
    part = store.write(rows(100))
    about = store.reader.about(part, within())
    assert about == {
        "format": 1, "key": part.key, "rows": 100, "group_rows": 7, "kind": "rows",
        "row_keys": ["k"], "sort_keys": ["s"], "schema_version": 1, "distinct": True,
        "time_min": None, "time_max": None, "history": False,
        "database": "d0", "table": "s0", "shard": "s0",
        "name": "readings", "session": "w0", "token": "loader:1",
    }  # fmt: skip


def test_times_and_diffs_are_read_where_they_are() -> None:
    store, table = Store(), rows(20)
    timed = table.append_column(
        pa.field(TIME, pa.int64()), pa.array(range(30, 10, -1), pa.int64())
    ).append_column(pa.field(DIFF, pa.int64()), pa.array([1, -1] * 10, pa.int64()))
    part = store.write(timed)
    assert (part.time_min, part.time_max, part.has_diff, part.distinct) == (11, 30, True, False)
    assert store.read(part, columns=[*SCHEMA.arrow.names, TIME, DIFF]).equals(timed)
    assert store.read(part).equals(table)
    plain = store.write(table)
    assert store.read(plain, columns=["v", TIME, DIFF]).column_names == ["v"]


def test_a_part_of_history_says_so_and_gives_the_ends_of_its_rows() -> None:
    store, table = Store(), rows(20)
    born = table.append_column(pa.field(TIME, pa.int64()), pa.array(range(20), pa.int64()))
    ended = born.append_column(pa.field(END, pa.int64()), pa.array(range(5, 25), pa.int64()))
    part = store.write(ended)
    assert (part.has_end, part.has_diff, part.time_min, part.time_max) == (True, False, 0, 19)
    assert store.reader.about(part, within())["history"]
    assert store.read(part, columns=[*SCHEMA.arrow.names, TIME, DIFF, END]).equals(ended)
    assert not store.write(born).has_end
    with pytest.raises(ValueError, match="born"):
        store.write(ended.drop_columns([TIME]))


def test_two_rows_of_one_key_are_seen_wherever_they_meet() -> None:
    store, table = Store(), rows(100)
    for at in (0, 6, 7, 50, 98):
        twice = pa.concat_tables([table.slice(0, at + 1), table.slice(at)])
        assert store.write(table).distinct
        assert not store.write(twice).distinct
        assert not store.write(twice.to_batches(max_chunksize=1)).distinct


def test_rows_out_of_order_are_refused_and_nothing_is_written() -> None:
    store, table = Store(), rows(100)
    for at in (1, 7, 99):
        wrong = pa.concat_tables([table.slice(at), table.slice(0, at)])
        for data in (wrong, wrong.to_batches(max_chunksize=1)):
            with pytest.raises(ValueError, match="not sorted"):
                store.write(data)
    with pytest.raises(ValueError, match="at least one row"):
        store.write(table.slice(0, 0))
    with pytest.raises(ValueError, match="at least one row"):
        store.write([])
    assert not store.store.objects


def test_columns_come_in_the_order_asked_for() -> None:
    store, table = Store(), rows(50)
    part = store.write(table)
    inside = Interval(KeyCodec(SCHEMA).encode((5,)), KeyCodec(SCHEMA).encode((9,)))
    for columns in (["v"], ["pos", "k"], ["s", "tags", "k"], ["at"], []):
        assert store.read(part, columns=columns).equals(table.select(columns))
        assert store.read(part, columns=columns).num_rows == 50
        clipped = store.read(part, columns=columns, interval=inside)
        assert clipped.equals(table.slice(15, 12).select(columns))
        assert clipped.num_rows == 12


def test_a_missing_part_is_missing() -> None:
    store = Store()
    part = store.write(rows(5))
    with pytest.raises(BlobMissing):
        store.read(replace(part, key="w0/s0/part/p77.parquet"))


@settings(max_examples=200)
@given(st.data())
def test_exactly_the_rows_in_the_ranges_are_read(data: st.DataObject) -> None:
    store, table = Store(), rows(100, step=2)
    part = store.write(table)
    bound = st.none() | st.tuples(st.integers(-1, 70)) | st.tuples(
        st.integers(-1, 70), st.sampled_from(["", "s0", "s1", "s2", "z"])
    )  # fmt: skip
    ranges = data.draw(st.lists(st.builds(KeyRange, bound, bound, st.booleans()), max_size=4))
    codec = KeyCodec(SCHEMA)
    points = data.draw(st.tuples(bound, bound))
    lower = b"" if points[0] is None else codec.encode(points[0])
    inside = Interval(lower, None if points[1] is None else codec.encode(points[1]))
    wanted: dict[str, Any] = {"interval": inside}
    mask = [inside.contains(key) for key in codec.encode_rows(table, range(100))]
    if ranges:
        wanted["ranges"] = ranges
        lists = [mask_of(r, table, SCHEMA) for r in ranges]
        mask = [a and any(b) for a, b in zip(mask, zip(*lists, strict=True), strict=True)]
    columns = data.draw(st.sampled_from([None, ["v"], ["s", "pos"]]))
    expected = table.filter(pa.array(mask)).select(columns or table.column_names)
    assert store.read(part, columns=columns, **wanted).equals(expected)


class Counting(MemoryBlob):
    """Counts what is opened."""

    opened = 0

    def open(self, key: str, *, timeout: float) -> pa.NativeFile:
        self.opened += 1
        return super().open(key, timeout=timeout)


def test_a_lookup_touches_one_row_group_and_opens_nothing_again() -> None:
    store = Store()
    store.blob = Counting(store.store, ENV)
    store.reader = PartReader(store.blob, SMALL, ENV)
    part = store.write(rows(700))
    opened = store.reader.opened(part, deadline=within(60))
    codec = KeyCodec(SCHEMA)
    touched = [
        len(opened.groups_in(KeyRange(key, key, closed=True).interval(codec)))
        for key in ((k, f"s{i}") for k in range(233) for i in range(3))
    ]
    # Only the key that separates two groups might be in both.
    assert set(touched) <= {1, 2}
    assert touched.count(2) < 10
    for k in range(10):
        found = store.reader.read(
            part,
            SCHEMA,
            columns=None,
            ranges=[KeyRange((k,), (k,), closed=True)],
            deadline=within(60),
        )
        assert found.column("k").to_pylist() == [k] * 3
    assert store.blob.opened == 1


def test_a_found_row_does_not_keep_its_row_group_in_memory() -> None:
    store = Store(Settings())
    part = store.write(rows(8_000))
    found = store.reader.read(
        part, SCHEMA, columns=None, ranges=[KeyRange((7,), (7,), closed=True)], deadline=within(60)
    )
    assert found.num_rows == 3
    assert found.get_total_buffer_size() < 2_000


def test_files_held_open_are_few_and_footers_are_forgotten() -> None:
    store = Store(replace(SMALL, footer_cache_entries=2))
    parts = [store.write(rows(10, start=30 * i)) for i in range(5)]
    for _ in range(2):
        for i, part in enumerate(parts):
            assert store.read(part).equals(rows(10, start=30 * i))
    assert len(store.reader._open) == 2
    store.reader.close()
    assert store.read(parts[0]).num_rows == 10


# --- quantiles


@pytest.mark.parametrize("count", [1, 2, 99, 256, 257, 2_048, 5_000, 100_000])
def test_quantiles_are_evenly_spaced_keys_of_the_part(count: int) -> None:
    schema = new_schema(pa.schema([("k", pa.int64())]), "k")
    store = Store(Settings())
    table = pa.table({"k": np.arange(count) * 10}, schema=schema.arrow)
    part = store.write(table.to_batches(max_chunksize=999), schema)
    quantiles = store.reader.quantiles(part, within())
    assert len(quantiles) == min(count, 256)
    codec = KeyCodec(schema)
    assert [key for key, _ in quantiles] == [codec.encode((p * 10,)) for _, p in quantiles]
    assert quantiles[0][1] == 0
    gaps = {b - a for (_, a), (_, b) in pairwise(quantiles)}
    assert not gaps or max(gaps) - min(gaps) <= max(1, count // 1_000)


# --- several parts from one stream


def test_a_stream_is_cut_at_the_target_and_at_bounds() -> None:
    store, table = Store(), rows(300)
    codec = KeyCodec(SCHEMA)
    cuts = [codec.encode((k,)) for k in (-5, 0, 10, 11, 50, 1_000)]
    parts = store.write_many(table.to_batches(max_chunksize=13), cuts=cuts)
    assert sum(part.rows for part in parts) == 300
    assert [part.rows for part in parts] == [30, 3, 40, 40, 37, 40, 40, 40, 30]
    read = pa.concat_tables([store.read(part) for part in parts])
    assert read.equals(table)
    for part in parts:
        assert not any(part.lower < cut <= part.upper for cut in cuts)
    for a, b in pairwise(parts):
        assert a.upper < b.lower


def test_rows_of_one_key_stay_together() -> None:
    schema = new_schema(pa.schema([("k", pa.int64()), ("v", pa.int64())]), "k")
    store = Store()
    keys = sorted([*range(30), *[30] * 95, *range(31, 60)])
    table = pa.table({"k": keys, "v": range(len(keys))}, schema=schema.arrow)
    for size in (1, 17, 1_000):
        parts = store.write_many(table.to_batches(max_chunksize=size), schema)
        assert pa.concat_tables([store.read(p, schema) for p in parts]).equals(table)
        assert [p.rows for p in parts] == [125, 29]
        assert all(a.upper < b.lower for a, b in pairwise(parts))


class Clock(RealEnv):
    """Stands still, except where a test moves it."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_each_part_of_a_stream_has_the_time_that_was_left_at_first() -> None:
    class Noting(MemoryBlob):
        def upload(self, key: str, *, timeout: float) -> Any:
            found.append(timeout)
            return super().upload(key, timeout=timeout)

    def slow() -> Iterator[pa.RecordBatch]:
        for start in range(0, 90, 15):
            clock.now += 100
            yield from rows(15, start=start).to_batches()

    found: list[float] = []
    clock, store = Clock(), Store(replace(SMALL, part_rows_target=30))
    store.blob = Noting(store.store, ENV)
    deadline = within(60, clock)
    clock.now += 20
    assert len(store.write_many(slow(), deadline=deadline)) == 3
    assert found == [40, 40, 40]


def test_each_step_of_reading_has_the_time_that_was_left_at_first() -> None:
    clock, store = Clock(), Store()
    part = store.write(rows(100))
    deadline = within(60, clock)
    clock.now += 20
    read = 0
    for batch in PartReader(store.blob, SMALL, clock).batches(
        part, SCHEMA, columns=None, deadline=deadline, rows=14
    ):
        read += batch.num_rows
        clock.now += 100
    assert read == 100
    with pytest.raises(DeadlineExceeded):
        list(store.reader.batches(part, SCHEMA, columns=None, deadline=deadline))


def test_no_rows_make_no_part() -> None:
    store = Store()
    assert store.write_many([]) == []
    assert store.write_many(rows(10).slice(0, 0)) == []
    assert store.write_many(rows(1)) != []


@given(st.data())
def test_parts_hold_every_row_whatever_the_batches_and_cuts(data: st.DataObject) -> None:
    kinds = data.draw(KEYS)
    schema = keys_schema(*kinds, sort=len(kinds) - 1)
    codec = KeyCodec(schema)
    wanted = data.draw(st.lists(key_tuples(kinds), max_size=30))
    wanted = sorted(wanted * data.draw(st.integers(1, 3)), key=codec.encode)
    columns = list(zip(*wanted, strict=True)) or [()] * len(kinds)
    table = pa.table(
        [pa.array(c, k) for c, k in zip(columns, kinds, strict=True)], schema=schema.arrow
    )
    rowkeys = data.draw(st.lists(key_tuples(kinds[:1]), max_size=4))
    cuts = sorted({codec.encode(k) for k in rowkeys})
    store = Store(Settings(row_group_rows=3, part_rows_target=data.draw(st.integers(1, 40))))
    size = data.draw(st.integers(1, 40))
    parts = store.write_many(table.to_batches(max_chunksize=size), schema, cuts)
    read = [store.read(part, schema) for part in parts]
    assert pa.concat_tables([table.slice(0, 0), *read]).equals(table)
    bounds = [b"", *cuts, None]
    for part in parts:
        assert any(
            (lower or b"") <= part.lower and (upper is None or part.upper < upper)
            for lower, upper in pairwise(bounds)
        )
        span = part.span
        assert store.read(part, schema, interval=span).num_rows == part.rows
        below = store.read(part, schema, interval=Interval(b"", part.lower)).num_rows
        assert below == 0
        after = Interval(successor(part.upper) or part.upper + b"\1", None)
        assert store.read(part, schema, interval=after).num_rows == 0


# --- schemas that changed


def test_columns_are_found_by_id_in_a_newer_schema() -> None:
    store, table = Store(), rows(50)
    part = store.write(table)
    field = {f.name: f for f in SCHEMA.arrow}
    newer = TableSchema(
        pa.schema(
            [
                field["k"],
                pa.field("added", pa.list_(pa.int8()), metadata={COLUMN_ID: b"7"}),
                field["v"].with_name("value"),
                field["s"].with_name("name"),
                field["at"],
            ]
        ),
        ("k",),
        ("name",),
        version=2,
    )
    read = store.read(part, newer)
    assert read.schema.equals(newer.arrow, check_metadata=True)
    assert read.column("value").equals(table.column("v"))
    assert read.column("name").equals(table.column("s"))
    assert read.column("added").null_count == 50
    assert store.read(part, newer, columns=["added"]).num_rows == 50
    inside = KeyRange((5, "s1"), (6,))
    assert store.read(part, newer, columns=["added", "name"], ranges=[inside]).num_rows == 2
    assert decode_statistics(part.statistics, newer)["value"].max == 49.0 / 2


def test_widened_columns_are_cast() -> None:
    store = Store()
    kinds = [("k", pa.int32()), ("v", pa.float32()), ("n", pa.decimal128(5, 2))]
    old = new_schema(pa.schema(kinds), "k")
    table = pa.table({"k": range(20), "v": [i / 2 for i in range(20)], "n": [None] * 20},
                     schema=old.arrow)  # fmt: skip
    part = store.write(table, old)
    wide = [("k", pa.int64()), ("v", pa.float64()), ("n", pa.decimal128(9, 2))]
    newer = replace(new_schema(pa.schema(wide), "k"), version=2)
    read = store.read(part, newer, ranges=[KeyRange((3,), (15,))])
    assert read.equals(table.slice(3, 12).cast(newer.arrow))
    stats = decode_statistics(part.statistics, newer)
    assert (stats["k"].max, stats["v"].max, stats["n"].nulls) == (19, 9.5, 20)


@pytest.mark.parametrize(
    ("digits", "physical"),
    [(1, "INT32"), (9, "INT32"), (10, "INT64"), (18, "INT64"), (19, "FIXED_LEN_BYTE_ARRAY")],
)
def test_decimals_are_integers_as_long_as_they_fit(digits: int, physical: str) -> None:
    """As other readers have them fast, and nested ones, too."""
    greatest = Decimal(10**digits - 1).scaleb(-1)
    values = [greatest, -greatest, Decimal(0).scaleb(-1), None] * 5
    kind = pa.decimal128(digits, 1)
    arrow = pa.schema([("k", pa.int64()), ("d", kind), ("n", pa.list_(pa.struct([("d", kind)])))])
    store, schema = Store(), new_schema(arrow, "k")
    nested = [[{"d": value}, None] for value in values]
    table = pa.table([range(20), values, nested], schema=schema.arrow)
    part = store.write(table, schema)
    assert store.read(part, schema).to_pylist() == table.to_pylist()
    stats = decode_statistics(part.statistics, schema)["d"]
    assert (stats.min, stats.max, stats.nulls) == (-greatest, greatest, 5)
    file = pq.ParquetFile(pa.BufferReader(store.blob.get(part.key, timeout=60)))
    group = file.metadata.row_group(0)
    assert [group.column(i).physical_type for i in (1, 2)] == [physical] * 2


# --- odd tables


def test_tables_of_keys_alone_and_of_one_row() -> None:
    schema = keys_schema(pa.string(), pa.bool_(), sort=1)
    store = Store()
    table = pa.table({"k0": ["a", "a"], "k1": [False, True]}, schema=schema.arrow)
    assert store.read(store.write(table, schema), schema).equals(table)
    one = store.write(table.slice(0, 1), schema)
    assert store.read(one, schema).equals(table.slice(0, 1))
    assert store.read(one, schema, interval=EVERYTHING).num_rows == 1


def test_very_long_texts_are_stored() -> None:
    schema = new_schema(pa.schema([("k", pa.string()), ("v", pa.string())]), "k")
    store = Store(Settings())
    long = [f"{'k' * (KEY_BYTES_MAX - 3)}{i:03}" for i in range(1_000)]
    table = pa.table({"k": long, "v": ["v" * 10_000] * 1_000}, schema=schema.arrow)
    part = store.write(table, schema)
    assert store.read(part, schema).equals(table)
    inside = KeyRange((long[500],), (long[510],))
    assert store.read(part, schema, ranges=[inside]).equals(table.slice(500, 10))
    # Eight quantiles, and the bounds of the row groups.
    assert part.footer_size + len(part.statistics) < 14 * KEY_BYTES_MAX


def test_batches_without_rows_change_nothing() -> None:
    store, table = Store(), rows(30)
    empty = table.slice(0, 0).to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
    batches = [*empty, *table.to_batches(max_chunksize=7), *empty]
    mixed = [b for batch in batches for b in (batch, *empty)]
    assert store.read(store.write(mixed)).equals(table)
    assert sum(part.rows for part in store.write_many(mixed)) == 30
