"""Long keys: what is stored of their bounds is short, and reads are what they would be."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.connect import connect
from strandline.errors import UsageError
from strandline.parts import keys as keys_module
from strandline.parts.keys import KEY_BYTES_MAX, at_least, at_most, separating, separator
from strandline.parts.schema import TableSchema
from strandline.shard import settling
from strandline.state.codec import encode_record
from strandline.table import Table
from tests.support.deadlines import within
from tests.tables.helpers import QUIET, apply, rows

NO_INLINE = replace(QUIET, inline_bytes_max=0, row_group_rows=2)

COLUMNS = pa.schema([("a", pa.string()), ("b", pa.binary()), ("v", pa.int64())])

TEXTS = st.builds(
    "".join, st.lists(st.sampled_from(["a", "b", "\0", "\xff", "\U0010ffff", "aaaa"]), max_size=6)
)
BINARIES = st.builds(
    b"".join, st.lists(st.sampled_from([b"a", b"\0", b"\xff", b"\xff\xff\xff\xff"]), max_size=5)
)
KEYS = st.tuples(TEXTS, BINARIES)


# --- bounds


@given(st.binary(max_size=12) | BINARIES, BINARIES, st.integers(1, 6))
def test_bounds_hold_what_they_are_bounds_of_and_are_short(
    key: bytes, rest: bytes, bytes_max: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(keys_module, "BOUND_BYTES_MAX", bytes_max)
        assert at_most(key) <= key <= at_least(key)
        assert len(at_most(key)) <= bytes_max
        beyond_all = key[:bytes_max] == b"\xff" * bytes_max
        assert len(at_least(key)) <= bytes_max or beyond_all
        # Bounds are in the order of what they are bounds of.
        assert at_most(key) <= at_most(key + rest)
        assert at_least(key) <= at_least(key + rest)
        if len(key) <= bytes_max:
            assert at_most(key) == key == at_least(key)


@given(KEYS, KEYS, st.integers(1, 8))
def test_a_point_between_two_row_keys_parts_no_row_key(
    one: Any, other: Any, bytes_max: int
) -> None:
    schema = TableSchema(COLUMNS, ("a",), ("b",))
    codec = keys_module.KeyCodec(schema)
    first, last = sorted(codec.encode(key) for key in (one[:1], other[:1]))
    if first == last:
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(keys_module, "BOUND_BYTES_MAX", bytes_max)
        point = separating(first, last)
    assert first + b"\xff" * 20 < point <= last
    assert len(point) <= max(bytes_max, len(separator(first, last)))


# --- tables


def model_of(writes: list[Any]) -> dict[Any, int]:
    live: dict[Any, int] = {}
    for kind, keys, value in writes:
        for key in keys:
            if kind == "upsert":
                live[key] = value
            elif kind == "delete":
                live.pop(key, None)
    return live


def do(table: Table, write: Any) -> None:
    kind, keys, value = write
    if kind == "upsert" and keys:
        table.upsert([{"a": a, "b": b, "v": value} for a, b in keys])
    elif kind == "delete" and keys:
        table.delete(keys=keys)
    elif kind == "apply":
        apply(table)


WRITES = st.lists(
    st.tuples(
        st.sampled_from(["upsert", "upsert", "upsert", "delete", "apply", "compact", "split"]),
        st.lists(KEYS, max_size=4, unique=True),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(WRITES, st.integers(1, 6), st.lists(KEYS, min_size=2, max_size=2), st.booleans())
def test_reads_are_those_of_a_plain_model_however_short_bounds_are(
    writes: list[Any], bytes_max: int, ends: list[Any], inline: bool
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(keys_module, "BOUND_BYTES_MAX", bytes_max)
        options = QUIET if inline else NO_INLINE
        with connect("memory://", settings=options) as db:
            table = db.create_table(
                "t", COLUMNS, row_keys="a", sort_keys="b", kind="keyed",
                properties={"split_rows": "2"},
            )  # fmt: skip
            for number, write in enumerate(writes):
                do(table, write)
                if write[0] == "compact":
                    db.compact("t", strategy="full" if write[2] % 2 else "basic")
                elif write[0] == "split":
                    db.split("t")
                check(table, model_of(writes[: number + 1]), ends)


def check(table: Table, live: dict[Any, int], ends: list[Any]) -> None:
    def encoded(key: Any) -> tuple[bytes, bytes]:
        return key[0].encode(), key[1]

    expected = [(*key, live[key]) for key in sorted(live, key=encoded)]
    assert rows(table.scan().to_arrow()) == expected
    assert len(table) == len(expected)
    lower, upper = sorted(ends, key=encoded)
    inside = [r for r in expected if encoded(lower) <= encoded(r[:2]) < encoded(upper)]
    ranged = table.scan(key_range=(lower, upper))
    assert rows(ranged.to_arrow()) == inside
    assert ranged.count() == len(inside)
    for key in [lower, *list(live)[:2]]:
        assert rows(table.get(key)) == ([(*key, live[key])] if key in live else [])
        same = [r for r in expected if r[0] == key[0]]
        assert rows(table.get(key[0])) == same
    named = table.scan(where="a >= 'aaaa' and a < 'b'").to_arrow()
    assert rows(named) == [r for r in expected if b"aaaa" <= r[0].encode() < b"b"]


def test_what_the_log_holds_of_long_keys_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(record: Any) -> bytes:
        data = encode_record(record)
        sizes.append(len(data))
        return data

    with connect("memory://", settings=NO_INLINE) as db:
        table = db.create_table("t", COLUMNS, row_keys="a", properties={"split_rows": "2"})
        monkeypatch.setattr(settling, "encode_record", counted)
        long = [f"{n:04}" + "x" * (KEY_BYTES_MAX - 4) for n in range(6)]
        table.append({"a": long, "b": [b""] * 6, "v": range(6)})
        table.append({"a": long, "b": [b""] * 6, "v": range(6)})
        apply(table)
        assert [report.leaves_after for report in db.split("t")] == [6]
        db.compact("t", strategy="full")
        assert len(table.get(long[3])) == 2
    assert sizes
    assert max(sizes) < KEY_BYTES_MAX // 4


# --- limits


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize(
    ("a", "b", "column"),
    [("é" * (KEY_BYTES_MAX // 2) + "x", b"", "a"), ("", b"\0" * (KEY_BYTES_MAX + 1), "b"),
     ("x" * (KEY_BYTES_MAX // 2 + 1), b"y" * (KEY_BYTES_MAX // 2), "a")],
    ids=["text", "binary", "both"],
)  # fmt: skip
def test_a_key_that_is_too_long_is_refused_by_the_name_of_its_column(
    a: str, b: bytes, column: str, inline: bool
) -> None:
    with connect("memory://", settings=QUIET if inline else NO_INLINE) as db:
        table = db.create_table("t", COLUMNS, row_keys="a", sort_keys="b", kind="keyed")
        with pytest.raises(UsageError, match=f"key column '{column}' has .* bytes in row 1.*65536"):
            table.append({"a": ["", a], "b": [b"", b], "v": [1, 2]})
        half = "x" * (KEY_BYTES_MAX // 2)
        table.append({"a": [half], "b": [half.encode()], "v": [1]})
        assert table.get((half, half.encode())).num_rows == 1
        assert table.get((a, b)).num_rows == 0
        with pytest.raises(UsageError, match=r"split point .* takes"):
            db.create_table("u", COLUMNS, row_keys=["a", "b"], split_points=[(a, b)])


def test_a_record_that_is_too_large_is_refused_before_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settling, "RECORD_BYTES_MAX", 20_000)
    with connect("memory://", settings=QUIET) as db:
        table = db.create_table("t", COLUMNS, row_keys="a")
        with pytest.raises(UsageError, match=r"a record of .* bytes in the log, where 20000"):
            table.append({"a": ["a"], "b": [b""], "v": [1]}, metadata={"why": "x" * 20_000})
        table.append({"a": ["a"], "b": [b""], "v": [2]}, metadata={"why": "y"})
        assert rows(table.scan().to_arrow()) == [("a", b"", 2)]
        assert len(table.history()) == 2


@pytest.mark.parametrize("commits", [1, 4])
def test_what_was_committed_is_applied_and_tidied_however_large_the_records_of_that_are(
    monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    """The record of an apply says more of a part than that of its commit, and is of several."""
    settings = replace(NO_INLINE, part_rows_target=1, background=True)
    with connect("memory://", settings=settings) as db:
        monkeypatch.setattr(db._handle.store.background, "after_commit", lambda *_, **__: None)
        table = db.create_table("t", COLUMNS, row_keys="a")
        data = {"a": [f"{n:03}" for n in range(40)], "b": [b""] * 40, "v": [1] * 40}
        for _ in range(commits):
            table.append(data)
        txns = db._handle.store.txns.machine
        committed = max(len(encode_record(record)) for record in txns.records())
        monkeypatch.setattr(settling, "RECORD_BYTES_MAX", committed)
        assert apply(table) == commits
        newest = db._handle.store.data(table.id).records()[-1]
        assert newest.command == "Apply"
        assert len(encode_record(newest)) > committed
        assert newest.seqno == 1, "all at once"
        assert db._handle.store.txns.tidy(deadline=within(5)) == commits
        assert table.scan().to_arrow().num_rows == 40 * commits
        with pytest.raises(UsageError, match=f"in the log, where {committed} are the most"):
            table.append(data, metadata={"why": "x"})


def test_an_apply_of_many_parts_has_a_record_for_each_commit_that_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("strandline.txn.apply.PARTS_MAX", 5)
    with connect("memory://", settings=replace(NO_INLINE, part_rows_target=1)) as db:
        monkeypatch.setattr(db._handle.store.background, "after_commit", lambda *_, **__: None)
        table = db.create_table("t", COLUMNS, row_keys="a")
        for count in (2, 2, 9, 1):
            names = [f"{n:03}" for n in range(count)]
            table.append({"a": names, "b": [b""] * count, "v": [1] * count})
        assert apply(table) == 4
        records = db._handle.store.data(table.id).records()
        parts = [sum(d.collection == "parts" for d in r.diffs) for r in records]
        assert [n for n in parts if n] == [4, 9, 1]
        assert table.scan().to_arrow().num_rows == 14
