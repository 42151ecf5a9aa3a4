from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.errors import Corruption
from strandline.parts.rows.compact import merge_compact
from strandline.parts.rows.merge import Source, last_rows, merge_read, prepare_batch
from strandline.parts.rows.sort import sort_table
from strandline.parts.schema import DIFF, TIME, TableSchema, new_schema
from strandline.state.model import TableKind

ARROW = pa.schema(
    [
        ("v", pa.float64()),
        ("b", pa.int32()),
        ("a", pa.string()),
        ("at", pa.timestamp("s", "Asia/Kolkata")),
        ("tags", pa.list_(pa.string())),
        ("pos", pa.struct([("x", pa.float32()), ("y", pa.list_(pa.timestamp("ms")))])),
        ("map", pa.map_(pa.string(), pa.decimal128(9, 2))),
        ("n", pa.decimal128(38, 3)),
        ("u", pa.uint64()),
    ]
)


def schema_of(kind: TableKind) -> TableSchema:
    return new_schema(ARROW, ["a"], ["b"], kind)


@dataclass(frozen=True)
class Update:
    """The model's unit. Rows are compared by what they show, so that NaN is equal to itself."""

    key: tuple[Any, ...]
    row: int
    time: int
    diff: int


VALUES: list[dict[str, Any]] = [
    {"v": None, "at": None, "tags": None, "pos": None, "map": None, "n": None, "u": None},
    {"v": float("nan"), "tags": [], "pos": {"x": float("nan"), "y": []}, "map": [], "u": 2**64 - 1},
    {"v": -0.0, "tags": [None], "pos": {"x": None, "y": None}, "map": [("", None)], "u": 0},
    {
        "v": 0.0,
        "tags": ["", "ä\0"],
        "pos": {"x": 1.5, "y": [7]},
        "map": [("b", 1), ("a", 2)],
        "n": 7,
    },
]
VALUES_ARROW = pa.table(
    {
        f.name: pa.array([row.get(f.name) for row in VALUES], f.type)
        for f in ARROW
        if f.name not in {"a", "b"}
    }
)


def table_of(updates: Sequence[Update], schema: TableSchema, *, time: bool, diff: bool) -> pa.Table:
    picked = VALUES_ARROW.take(pa.array([u.row for u in updates], pa.int64()))
    columns = {name: picked.column(name) for name in picked.column_names}
    columns["a"] = pa.array([u.key[0] for u in updates], pa.string())
    columns["b"] = pa.array([u.key[1] for u in updates], pa.int32())
    columns[TIME] = pa.array([u.time for u in updates], pa.int64())
    columns[DIFF] = pa.array([u.diff for u in updates], pa.int64())
    arrow = schema.stored(time=time, diff=diff)
    return pa.table([columns[name] for name in arrow.names], schema=arrow)


def shown(table: pa.Table) -> list[str]:
    return [repr(row) for row in table.to_pylist()]


KEYS = st.tuples(st.sampled_from(["", "a", "ä"]), st.integers(-1, 1))


@st.composite
def histories(draw: st.DrawFn, kind: TableKind) -> list[tuple[Source, list[Update]]]:
    """Sources of which no history makes a retraction without a row, with the updates in them."""
    sources: list[tuple[Source, list[Update]]] = []
    alive: Counter[tuple[Any, int]] = Counter()
    schema = schema_of(kind)
    time = 0
    for _ in range(draw(st.integers(0, 4))):
        updates: list[Update] = []
        several = draw(st.booleans())
        for _ in range(draw(st.integers(1, 3)) if several else 1):
            time += draw(st.integers(1, 2))
            now: dict[Any, Update] = {}
            for key in draw(st.lists(KEYS, max_size=4)):
                row = draw(st.integers(0, 3))
                removable = [r for (k, r), n in alive.items() if k == key and n > 0]
                remove = draw(st.booleans()) and (kind == "keyed" or bool(removable))
                if remove and kind == "rows":
                    row = removable[0]
                update = Update(key, row, time, -1 if remove else 1)
                if kind == "rows":
                    alive[key, row] += update.diff
                    updates.append(update)
                now[key] = update
            if kind == "keyed":
                updates += now.values()
        diff = any(u.diff < 0 for u in updates) or draw(st.booleans())
        table = table_of(updates, schema, time=several, diff=diff)
        ordered = sort_table(table, schema.keys, then=[TIME] if several else [])
        keys = [u.key for u in updates]
        distinct = len(set(keys)) == len(keys) and all(u.diff > 0 for u in updates)
        sources.append((Source(ordered, time, distinct), updates))
    return sources


def live(updates: Sequence[Update], kind: TableKind, as_of: int) -> list[Update]:
    """What the model says is there at `as_of`, each row as often as it is there."""
    found = [u for u in updates if u.time <= as_of]
    if kind == "keyed":
        newest = {u.key: u for u in found}  # updates are in the order of their times
        return [u for u in newest.values() if u.diff > 0]
    counts: Counter[tuple[Any, int]] = Counter()
    for u in found:
        counts[u.key, u.row] += u.diff
    return [Update(key, row, 0, 1) for (key, row), n in counts.items() for _ in range(n)]


def expected_rows(updates: Sequence[Update], kind: TableKind, as_of: int) -> list[str]:
    schema = schema_of(kind)
    return sorted(shown(table_of(live(updates, kind, as_of), schema, time=False, diff=False)))


def fresh(source: Source, size: int | None) -> Source:
    """A copy of a source; as an iterator of batches of at most `size` rows, if given."""
    assert isinstance(source.data, pa.Table)
    data: Any = source.data
    if size is not None:
        data = iter(data.to_batches(max_chunksize=size))
    return Source(data, source.time, source.distinct)


def check_order(table: pa.Table, *then: str) -> None:
    columns = [table.column(name).to_pylist() for name in ("a", "b", *then)]
    keys = [(a.encode(), *rest) for a, *rest in zip(*columns, strict=True)]
    assert keys == sorted(keys)


def check_reads(history: Any, kind: TableKind) -> None:
    sources = [source for source, _ in history]
    updates = [u for _, found in history for u in found]
    last = max((u.time for u in updates), default=0)
    for as_of in range(-1, last + 2):
        read = merge_read([fresh(s, None) for s in sources], schema_of(kind), as_of=as_of)
        read.validate(full=True)
        assert read.schema.equals(schema_of(kind).arrow, check_metadata=True)
        check_order(read)
        assert sorted(shown(read)) == expected_rows(updates, kind, as_of)


@given(histories("keyed"))
def test_reads_of_keyed_tables_see_the_newest_row_of_each_key(history: Any) -> None:
    check_reads(history, "keyed")


@settings(max_examples=60)
@given(histories("rows"))
def test_reads_of_rows_see_each_as_often_as_it_was_added(history: Any) -> None:
    check_reads(history, "rows")


@settings(max_examples=60)
@given(histories("rows"))
def test_reads_of_rows_without_nested_columns_see_the_same(history: Any) -> None:
    flat = [name for name in ARROW.names if not pa.types.is_nested(ARROW.field(name).type)]
    whole = schema_of("rows")
    schema = TableSchema(pa.schema([whole.arrow.field(n) for n in flat]), ("a",), ("b",))
    assert not any(pa.types.is_nested(field.type) for field in schema.arrow)
    updates = [u for _, found in history for u in found]
    for as_of in range(max((u.time for u in updates), default=0) + 1):
        sources = [
            Source(s.data.select([n for n in s.data.column_names if n in {*flat, TIME, DIFF}]),
                   s.time, s.distinct)
            for s, _ in history
        ]  # fmt: skip
        read = merge_read(sources, schema, as_of=as_of)
        check_order(read)
        expected = table_of(live(updates, "rows", as_of), whole, time=False, diff=False)
        assert sorted(shown(read)) == sorted(shown(expected.select(flat)))


@given(histories("keyed"), st.data())
def test_raw_reads_show_every_update(history: Any, data: st.DataObject) -> None:
    schema = schema_of("keyed")
    updates = [u for _, found in history for u in found]
    as_of = data.draw(st.integers(0, 20))
    sources = [fresh(s, None) for s, _ in history]
    read = merge_read(sources, schema, as_of=as_of, raw=True)
    check_order(read, TIME)
    expected = [u for u in updates if u.time <= as_of]
    assert sorted(shown(read)) == sorted(shown(table_of(expected, schema, time=True, diff=True)))


def check_compaction(history: Any, kind: TableKind, data: st.DataObject) -> None:
    """Compacts some sources, all of them if `whole`; every read from F on is the same as before."""
    schema = schema_of(kind)
    updates = [u for _, found in history for u in found]
    last = max((u.time for u in updates), default=0)
    until = data.draw(st.integers(0, last + 1), label="F")
    whole = data.draw(st.booleans(), label="whole")
    chosen = [whole or data.draw(st.booleans()) for _ in history]
    inside = [s for (s, _), c in zip(history, chosen, strict=True) if c]
    outside = [s for (s, _), c in zip(history, chosen, strict=True) if not c]
    size: int | None = data.draw(st.sampled_from([None, 1, 2, 3]), label="size")
    compacted = compact([fresh(s, size) for s in inside], kind, until, whole=whole)
    compacted.validate(full=True)
    has_diff = DIFF in compacted.column_names
    assert compacted.schema == schema.stored(time=True, diff=has_diff)
    check_order(compacted, TIME)
    if kind == "rows":
        assert all(t >= until for t in compacted.column(TIME).to_pylist())
    for as_of in range(until, last + 2):
        sources = [*(fresh(s, None) for s in outside), Source(compacted, 0, distinct=False)]
        read = merge_read(sources, schema, as_of=as_of)
        assert sorted(shown(read)) == expected_rows(updates, kind, as_of)
    if whole and until >= last:
        assert DIFF not in compacted.column_names or set(compacted[DIFF].to_pylist()) <= {1}
        assert compacted.num_rows == len(live(updates, kind, last))


@given(histories("keyed"), st.data())
def test_compaction_of_keyed_tables_changes_no_read(history: Any, data: st.DataObject) -> None:
    check_compaction(history, "keyed", data)


@settings(max_examples=60)
@given(histories("rows"), st.data())
def test_compaction_of_rows_changes_no_read(history: Any, data: st.DataObject) -> None:
    check_compaction(history, "rows", data)


def update(b: int, time: int, diff: int = 1, row: int = 0) -> Update:
    return Update(("a", b), row, time, diff)


def source_of(updates: Sequence[Update], kind: TableKind, *, distinct: bool = False) -> Source:
    table = table_of(updates, schema_of(kind), time=True, diff=True)
    return Source(table, 0, distinct)


def compact(sources: Sequence[Source], kind: TableKind, until: int, *, whole: bool) -> pa.Table:
    """What is left of the sources in one output."""
    (merged,) = merge_compact(
        sources,
        schema_of(kind),
        since=until,
        split_at=None,
        markers_from=0 if whole else None,
        memory_bytes=64 << 20,
        threads=1,
    )
    assert merged.age == "newer"
    return merged.rows.read_all()


def test_equal_rows_are_added_up_at_the_forwarded_time() -> None:
    # a@0 b@1 c@2 and a@3 b@4 d@5, since 6: a twice, b twice, c and d once, all at 6
    first = source_of([update(1, 0), update(2, 1), update(3, 2)], "rows")
    second = source_of([update(1, 3), update(2, 4), update(4, 5)], "rows")
    kept = compact([first, second], "rows", 6, whole=True)
    assert kept["b"].to_pylist() == [1, 1, 2, 2, 3, 4]
    assert kept[TIME].to_pylist() == [6] * 6
    # zero@0+1, zero@1-1, one@1+1, since 10: one@10+1 alone
    third = source_of([update(0, 0), update(0, 1, -1), update(1, 1)], "rows")
    kept = compact([third], "rows", 10, whole=False)
    assert (kept["b"].to_pylist(), kept[TIME].to_pylist()) == ([1], [10])


def test_retractions_without_their_rows_are_kept() -> None:
    kept = compact(
        [source_of([update(1, 3, -1), update(1, 4, -1)], "rows")], "rows", 6, whole=False
    )
    assert (kept["b"].to_pylist(), kept[DIFF].to_pylist()) == ([1, 1], [-1, -1])


def test_a_marker_goes_only_when_nothing_older_can_be_outside() -> None:
    marker = [update(1, 3, -1)]
    for whole, until, left in [(True, 3, 0), (True, 2, 1), (False, 3, 1)]:
        kept = compact([source_of(marker, "keyed")], "keyed", until, whole=whole)
        assert kept.num_rows == left


def test_a_row_retracted_too_often_is_corruption() -> None:
    with pytest.raises(Corruption, match="retracted more often"):
        merge_read(
            [source_of([update(1, 1), update(1, 2, -2)], "rows")], schema_of("rows"), as_of=5
        )


def test_one_clean_source_is_passed_on_as_it_is() -> None:
    for kind in ("rows", "keyed"):
        schema = schema_of(kind)
        table = table_of([update(b, 0) for b in range(5)], schema, time=False, diff=False)
        read = merge_read([Source(table, 3, distinct=True)], schema, as_of=3)
        assert read.column(0).chunk(0).buffers()[1].address == (
            table.column(0).chunk(0).buffers()[1].address
        )
        assert merge_read([Source(table, 3, distinct=True)], schema, as_of=2).num_rows == 0
        kept = compact([Source(table, 3, distinct=True)], kind, 5, whole=False)
        assert kept.drop_columns([TIME]).equals(table)
        assert set(kept[TIME].to_pylist()) == ({5} if kind == "rows" else {3})


def test_columns_that_are_not_read_are_not_needed() -> None:
    schema = schema_of("keyed")
    tables = [
        table_of([update(b, 0, row=b % 4) for b in range(5)], schema, time=False, diff=False)
        for _ in range(2)
    ]
    sources = [Source(t.select(["u", "a", "b"]), i, distinct=True) for i, t in enumerate(tables)]
    assert merge_read(sources, schema, as_of=9).equals(tables[1].select(["b", "a", "u"]))


def test_nothing_merges_to_nothing() -> None:
    for kind in ("rows", "keyed"):
        schema = schema_of(kind)
        assert merge_read([], schema, as_of=5).equals(schema.arrow.empty_table())
        empty = table_of([], schema, time=True, diff=True)
        for sources in ([], [Source(empty, 0, distinct=True)], [Source(empty, 0, distinct=False)]):
            assert merge_read(sources, schema, as_of=5).num_rows == 0
            assert compact(sources, kind, 5, whole=True).num_rows == 0
            assert compact([fresh(s, 1) for s in sources], kind, 5, whole=True).num_rows == 0


@given(st.lists(KEYS, max_size=12))
def test_a_batch_is_sorted_and_keyed_ones_keep_the_last_row_of_a_key(
    keys: list[tuple[str, int]],
) -> None:
    updates = [Update(key, i % 4, i, 1) for i, key in enumerate(keys)]
    rows = table_of(updates, schema_of("rows"), time=False, diff=False)
    prepared, distinct = prepare_batch(rows, schema_of("rows"))
    assert distinct == (len(set(keys)) == len(keys))
    assert sorted(shown(prepared)) == sorted(shown(rows))
    check_order(prepared)
    keyed, distinct = prepare_batch(rows, schema_of("keyed"))
    assert distinct
    assert sorted(shown(keyed)) == expected_rows(updates, "keyed", len(keys))
    check_order(keyed)


@given(st.lists(st.integers(0, 4), max_size=20), st.integers(1, 5))
def test_the_last_of_equal_neighbours_is_kept_over_batch_borders(
    keys: list[int], size: int
) -> None:
    keys = sorted(keys)
    table = pa.table({"k": keys, "n": range(len(keys))})
    kept = pa.Table.from_batches(
        last_rows(table.to_batches(max_chunksize=size), ["k"]), table.schema
    )
    assert kept["n"].to_pylist() == sorted({k: n for n, k in enumerate(keys)}.values())


@pytest.mark.parametrize("make", [iter, list])
def test_long_iterators_are_merged_in_bounded_pieces(make: Callable[[Any], Any]) -> None:
    schema = new_schema(pa.schema([("k", pa.int64()), ("v", pa.int64())]), "k", kind="keyed")

    def batches(start: int) -> Iterator[pa.RecordBatch]:
        for i in range(start, 300_000, 30_000):
            keys = pa.array(range(i, i + 30_000, 3), pa.int64())
            yield pa.RecordBatch.from_arrays([keys, keys], schema=schema.arrow)

    (merged,) = merge_compact(
        [Source(make(batches(0)), time, distinct=True) for time in (1, 2)]
        if make is iter
        else [Source(pa.Table.from_batches(batches(0)), time, distinct=True) for time in (1, 2)],
        schema,
        since=5,
        split_at=None,
        markers_from=0,
        memory_bytes=64 << 20,
        threads=2,
    )
    kept = merged.rows.read_all()
    assert kept["k"].to_pylist() == list(range(0, 300_000, 3))
    assert set(kept[TIME].to_pylist()) == {2}
