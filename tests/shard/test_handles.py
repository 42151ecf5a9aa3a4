"""What handles accept and refuse, and who a shard belongs to."""

import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import strandline as sl
from strandline.errors import (
    AsOfTooOld,
    Corruption,
    Fenced,
    SchemaMismatch,
    UpperMismatch,
    UsageError,
)
from strandline.location import Location
from strandline.shard import Batch, SnapshotSplit, new_shard_id, open_shard, read_split
from strandline.state.commands import Expire
from strandline.times import TIME_MAX
from strandline.txn import Txn, TxnsHandle
from tests.shard.helpers import QUIET, SHARD, WORDS, Pair, listed, opened, rows, updates

PAIRS = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("x", pa.float64()),
    ]
)


# --- what it is


def test_all_columns_that_can_be_keys_are_unless_said(location: Location) -> None:
    write, read = open_shard(location, SHARD, schema=PAIRS, settings=QUIET)
    assert write.row_keys == ("k",)
    assert read.schema.names == PAIRS.names
    write.close()
    read.close()


def test_later_opens_need_no_schema_and_check_one_that_is_given(
    location: Location, pair: Pair
) -> None:
    write, read = open_shard(location, SHARD, settings=QUIET)
    assert write.schema == WORDS
    other = pa.schema([pa.field("word", pa.binary(), nullable=False)])
    more = WORDS.append(pa.field("n", pa.int64()))
    for schema in (other, more):
        with pytest.raises(SchemaMismatch, match="has the columns"):
            open_shard(location, SHARD, schema=schema, settings=QUIET)
    write.close()
    read.close()


def test_other_row_keys_are_another_schema(location: Location) -> None:
    two = pa.schema([("a", pa.int64()), ("b", pa.string())])
    first = open_shard(location, SHARD, schema=two, row_keys="b", settings=QUIET)
    second = open_shard(location, SHARD, schema=two.remove_metadata(), settings=QUIET)
    assert second[0].row_keys == ("b",)
    with pytest.raises(SchemaMismatch, match="row keys"):
        open_shard(location, SHARD, schema=two, row_keys=["a", "b"], settings=QUIET)
    for handle in (*first, *second):
        handle.close()


def test_a_new_shard_needs_a_schema(location: Location) -> None:
    with pytest.raises(UsageError, match="pass schema="):
        open_shard(location, new_shard_id(), settings=QUIET)
    with pytest.raises(UsageError, match="is not an id"):
        open_shard(location, "mine", schema=WORDS, settings=QUIET)


def test_a_shard_of_a_table_is_refused_from_the_first_moment_on(location: Location) -> None:
    url = location.url + "-db"
    with sl.connect(url, settings=QUIET) as db:
        table = db.create_table("t", WORDS, row_keys="word")
        shard = table._version.table
        with sl.open_location(url) as place:
            assert place.txns
            for each in (shard, place.txns):
                with pytest.raises(UsageError, match="belongs to the database"):
                    open_shard(place, each, schema=WORDS, settings=QUIET)
            table.append({"word": ["a"]})
            db.compact("t")
            with pytest.raises(UsageError, match="belongs to the database"):
                open_shard(place, shard, schema=WORDS, settings=QUIET)
            write, read = open_shard(place, new_shard_id(), schema=WORDS, settings=QUIET)
            write.compare_and_append({"word": ["mine"]}, 0, 1, time=0)
            assert rows(place, read, 0) == {"mine": 1}
            write.close()
            read.close()
        assert table.scan().to_arrow().to_pydict() == {"word": ["a"]}


# --- locations


def test_a_location_is_made_once_and_opened_again(tmp_path: Path) -> None:
    where = tmp_path / "shards"
    with pytest.raises(UsageError, match="create=True"):
        sl.open_location(where, create=False)
    with pytest.raises(UsageError, match="mode='rw' first"):
        sl.open_location(where, mode="r")
    with sl.open_location(where) as place:
        write, read = opened(place)
        write.compare_and_append({"word": ["a"]}, 0, 1, time=0)
        write.close()
        read.close()
    with sl.open_location(where, create=False) as place:
        write, read = opened(place)
        assert rows(place, read, 0) == {"a": 1}
        write.close()
        read.close()


def test_a_place_with_something_else_is_no_location(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"notes\.txt"):
        sl.open_location(tmp_path)


def test_a_database_without_its_log_is_no_location(tmp_path: Path) -> None:
    sl.connect(tmp_path / "lake").close()
    for file in (tmp_path / "lake").glob("log.sqlite*"):
        file.unlink()
    with pytest.raises(Corruption, match=r"log\.sqlite"):
        sl.open_location(tmp_path / "lake")


def test_without_permission_to_write_nothing_is_held_and_all_is_read(tmp_path: Path) -> None:
    where = tmp_path / "shards"
    with sl.open_location(where) as place, sl.open_location(where, mode="r") as readable:
        write, read = opened(place)
        write.compare_and_append({"word": ["a", "b"]}, 0, 1, time=0)
        records = len(place.consensus.scan(SHARD, 1, 100, timeout=60))
        other_write, other = opened(readable, schema=None)
        assert rows(readable, other, 0, splits=2) == {"a": 1, "b": 1}
        assert listed(next(other.listen(-1)).updates) == [("a", 0, 1), ("b", 0, 1)]
        assert other.since == 0
        for refused in (
            lambda: other_write.compare_and_append({"word": ["c"]}, 1, 2, time=1),
            lambda: other_write.advance_upper(5),
            lambda: other.downgrade_since(1),
            lambda: other.hold("mine"),
        ):
            with pytest.raises(UsageError, match="reading only"):
                refused()
        other.close()
        other_write.close()
        assert len(place.consensus.scan(SHARD, 1, 100, timeout=60)) == records
        read.close()
        write.close()


# --- writing


@pytest.mark.parametrize(
    "data",
    [
        lambda: pa.table({"word": ["b", "a"], "__time": [1, 0]}),
        lambda: {"word": ["b", "a"], "__time": [1, 0]},
        lambda: [{"word": "b", "__time": 1}, {"word": "a", "__time": 0}],
        lambda: pa.table({"word": ["b", "a"], "__time": [1, 0]}).to_reader(),
        lambda: pa.table({"__diff": [1, 1, 0], "word": ["b", "a", "x"], "__time": [1, 0, 0]}),
    ],
    ids=["table", "columns", "rows", "stream", "diffs"],
)
def test_updates_come_in_many_forms(pair: Pair, data: Any) -> None:
    write, read = pair
    write.compare_and_append(data(), 0, 2)
    assert listed(next(read.listen(-1)).updates) == [("a", 0, 1), ("b", 1, 1)]


def test_diffs_are_of_any_size(location: Location, pair: Pair) -> None:
    write, read = pair
    big = 2**62
    write.compare_and_append(updates(("a", 0, big), ("a", 0, -1), ("b", 1, -big)), 0, 2)
    assert rows(location, read, 1) == {"a": big - 1, "b": -big}
    read.downgrade_since(1)
    write.compact("full")
    assert rows(location, read, 1) == {"a": big - 1, "b": -big}


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ({"word": ["a"]}, {}, "no column __time"),
        ({"word": ["a"], "__time": [0]}, {"time": 0}, "time=0 is given as well"),
        ({"word": ["a"], "__time": [7]}, {}, "an update at 7"),
        ({"word": ["a"]}, {"time": -1}, "time=-1"),
        ({"word": ["a"], "__time": [-1]}, {}, "an update at -1"),
        (pa.table({"word": ["a", "b"], "__time": [1, -1]}).to_batches(1), {}, "an update at -1"),
        (pa.table({"word": ["a", "b"], "__time": [1, 5]}).to_batches(1), {}, "an update at 5"),
        ({"word": [None]}, {"time": 0}, "keys are never null"),
        ({"word": ["a"], "n": [1]}, {"time": 0}, "not in the table"),
        ({"word": ["a"], "__diff": [None]}, {"time": 0}, "__diff"),
    ],
)
def test_updates_that_do_not_fit_change_nothing(
    location: Location, pair: Pair, data: Any, options: dict[str, Any], message: str
) -> None:
    write, _ = pair
    if isinstance(data, list):
        data = pa.RecordBatchReader.from_batches(data[0].schema, data)
    with pytest.raises(UsageError, match=message):
        write.compare_and_append(data, 0, 5, **options)
    assert write.fetch_upper() == 0
    assert objects(location) == []


@pytest.mark.parametrize("new_upper", [TIME_MAX + 1, None])
def test_an_update_at_the_greatest_time_stays_whatever_is_compacted(
    location: Location, pair: Pair, new_upper: int | None
) -> None:
    write, read = pair
    write.compare_and_append(updates(("a", 3, 1), ("b", TIME_MAX, 1)), 0, new_upper)
    write.compact("full")
    assert listed(next(read.listen(-1)).updates) == [("a", 3, 1), ("b", TIME_MAX, 1)]
    assert read.downgrade_since(TIME_MAX) == TIME_MAX
    write.compact("full")
    assert rows(location, read, TIME_MAX) == {"a": 1, "b": 1}
    listen = read.listen(TIME_MAX, until=TIME_MAX + 1)
    assert list(listen) == []


@pytest.mark.parametrize("data", ["table", "stream"])
@pytest.mark.parametrize("time", [TIME_MAX + 1, -1])
def test_an_update_at_a_time_that_there_cannot_be_is_refused(
    location: Location, pair: Pair, time: int, data: str
) -> None:
    write, _ = pair

    def late() -> Any:
        table = updates(("a", 0, 1), ("b", time, 1))
        return table if data == "table" else table.to_reader()

    builder = write.batch_builder()
    for refused in (
        lambda: write.compare_and_append(late(), 0, None),
        lambda: write.append(late(), None),
        lambda: builder.add(late()),
    ):
        with pytest.raises(UsageError, match=f"an update at {time}"):
            refused()
    assert write.fetch_upper() == 0
    assert objects(location) == []


def test_no_time_is_beyond_the_greatest_but_an_upper(pair: Pair) -> None:
    write, read = pair
    hold = read.hold("mine")
    end = TIME_MAX + 1
    for refused in (
        lambda: read.downgrade_since(end),
        lambda: hold.downgrade_since(end),
        lambda: read.hold("another", end),
        lambda: read.snapshot(end),
        lambda: read.read(end),
        lambda: read.listen(end),
        lambda: write.compare_and_append({"word": ["a"]}, 0, None, time=end),
        lambda: write.advance_upper(end + 1),
        lambda: write.batch_builder(end + 1),
        lambda: read.listen(0, until=end + 1),
    ):
        with pytest.raises(UsageError, match=r"a whole number from 0 to 2\*\*63"):
            refused()
    assert read.since == 0


@pytest.mark.parametrize("whole", [np.int64, np.uint16, np.array])
def test_times_and_sizes_are_whole_numbers_of_any_kind(
    location: Location, pair: Pair, whole: Callable[[int], Any]
) -> None:
    write, read = pair
    token = ("job", whole(1))
    write.compare_and_append({"word": ["a"]}, whole(0), whole(2), time=whole(1), token=token)
    assert write.compare_and_append(None, 0, 2, token=("job", 1)).repeated
    write.append({"word": ["b"], "__time": [2]}, whole(3), lower=whole(2))
    with write.batch_builder(whole(3)) as builder:
        builder.add({"word": ["c"]}, time=whole(3))
        batch = Batch.from_bytes(builder.finish(whole(4)).to_bytes())
    write.compare_and_append(batch, 3, 4)
    assert write.advance_upper(whole(5)) == 5
    assert len(read.snapshot(whole(3), whole(2))) == 2
    assert read.read(whole(2)).read_all().num_rows == 2
    assert len(list(read.listen(whole(1), until=whole(4)))) == 1
    hold = read.hold("mine", whole(1))
    assert hold.downgrade_since(whole(2)) == 2
    assert read.downgrade_since(whole(3)) == 3


@pytest.mark.parametrize("wrong", [1.0, np.float64(1), True, np.bool_(1), "1", 1.5])
def test_what_is_no_whole_number_is_no_time_and_no_size(pair: Pair, wrong: Any) -> None:
    write, read = pair
    for refused in (
        lambda: write.compare_and_append(None, wrong, 2),
        lambda: write.compare_and_append(None, 0, wrong),
        lambda: write.compare_and_append({"word": ["a"]}, 0, 2, time=wrong),
        lambda: write.compare_and_append(None, 0, 2, token=("job", wrong)),
        lambda: write.append(None, 2, lower=wrong),
        lambda: write.batch_builder(wrong),
        lambda: write.advance_upper(wrong),
        lambda: read.snapshot(wrong),
        lambda: read.snapshot(0, wrong),
        lambda: read.listen(wrong),
        lambda: read.listen(0, until=wrong),
        lambda: read.hold("mine", wrong),
        lambda: read.downgrade_since(wrong),
    ):
        with pytest.raises(UsageError, match="whole number"):
            refused()
    assert write.fetch_upper() == 0


def test_a_part_with_an_update_beyond_the_greatest_time_is_not_appended(
    location: Location, pair: Pair
) -> None:
    write, _ = pair
    with write.batch_builder() as builder:
        builder.add(updates(("a", 3, 1)))
        batch = builder.finish(None)
    late = replace(batch, parts=tuple(replace(p, time_max=TIME_MAX + 1) for p in batch.parts))
    with pytest.raises(UsageError, match="the greatest time"):
        write.compare_and_append(late, 0, None)
    assert write.fetch_upper() == 0


def objects(location: Location) -> list[str]:
    found = (info.key for info in location.blob.list("", timeout=60))
    return [key for key in found if "/part/" in key]


def test_an_append_that_comes_too_late_leaves_no_object(location: Location, pair: Pair) -> None:
    write, _ = pair
    write.advance_upper(3)
    with pytest.raises(UpperMismatch):
        write.compare_and_append({"word": ["a"]}, 0, 1, time=0)
    assert objects(location) == []


def test_replicated_writers_may_not_leave_a_gap(pair: Pair) -> None:
    write, _ = pair
    with pytest.raises(UpperMismatch) as refused:
        write.append(updates(("a", 7, 1)), 8, lower=7)
    assert refused.value.upper == 0


def test_a_replica_writes_only_what_is_not_there(location: Location, pair: Pair) -> None:
    write, read = pair
    other_write, other = opened(location)
    data = updates(*(("a", time, 1) for time in range(6)))
    write.append(data, 6)
    assert other_write.append(data, 6).upper == 6
    assert len(objects(location)) == 1
    more = updates(*(("a", time, 1) for time in range(8)))
    assert other_write.append(more, 8, lower=0).upper == 8
    parts = [r.part for _, r in read._shard.machine.look().state.references.range()]
    assert [(part.rows, part.time_min) for part in parts] == [(6, 0), (2, 6)]
    assert rows(location, read, 7) == {"a": 8}
    with pytest.raises(UsageError, match="an update at 9"):
        other_write.append(updates(("a", 9, 1)), 9)
    other.close()
    other_write.close()


def test_a_finished_shard_takes_no_more_and_is_read_on(location: Location, pair: Pair) -> None:
    write, read = pair
    write.compare_and_append({"word": ["a"]}, 0, None, time=5, token=("job", 0))
    assert write.upper is None
    assert read.fetch_upper() is None
    for refused in (
        lambda: write.compare_and_append({"word": ["b"]}, 6, 7, time=6),
        lambda: write.append({"word": ["b"]}, 7, time=6),
        write.batch_builder,
    ):
        with pytest.raises(UsageError, match="finished"):
            refused()
    again = write.compare_and_append({"word": ["a"]}, 0, None, time=5, token=("job", 0))
    assert (again.upper, again.repeated) == (None, True)
    write.finish()
    assert rows(location, read, 10**12) == {"a": 1}
    assert [event.progress for event in read.listen(-1)] == [None]


def test_a_shard_that_nobody_writes_or_reads_any_more_is_gone(
    location: Location, pair: Pair
) -> None:
    write, read = pair
    write.compare_and_append({"word": ["a"]}, 0, 1, time=0)
    write.finish()
    assert read.downgrade_since(None) is None
    with pytest.raises(AsOfTooOld):
        read.snapshot(0)
    with pytest.raises(UsageError, match="finished and deleted"):
        opened(location)


# --- batches


def test_a_batch_is_built_in_pieces_and_appended_elsewhere(location: Location, pair: Pair) -> None:
    write, read = pair
    other_write, other = opened(location)
    with other_write.batch_builder(2) as builder:
        builder.add(updates(("b", 4, 1), ("a", 3, 2)))
        builder.add({"word": ["c"]}, time=2)
        batch = builder.finish(5)
    assert batch.rows == 3
    before = objects(location)
    sent = Batch.from_bytes(batch.to_bytes())
    assert sent == batch
    with pytest.raises(UpperMismatch):
        write.compare_and_append(sent, 2, 5)
    write.advance_upper(2)
    write.compare_and_append(sent, 2, 5)
    assert objects(location) == before
    assert rows(location, read, 4) == {"a": 2, "b": 1, "c": 1}
    other.close()
    other_write.close()


def test_a_batch_of_a_session_that_ended_is_refused(location: Location, pair: Pair) -> None:
    write, _ = pair
    other_write, other = opened(location)
    builder = other_write.batch_builder()
    builder.add({"word": ["a"]}, time=0)
    batch = builder.finish(1)
    other.close()
    other_write.close()
    with pytest.raises(Fenced, match="write them again"):
        write.compare_and_append(batch, 0, 1)
    assert write.fetch_upper() == 0


def test_a_builder_says_at_once_what_does_not_fit_and_is_used_once(pair: Pair) -> None:
    write, _ = pair
    write.advance_upper(5)
    builder = write.batch_builder()
    assert builder.lower == 5
    with pytest.raises(UsageError, match="an update at 4"):
        builder.add({"word": ["a"]}, time=4)
    with pytest.raises(UsageError, match="ended"):
        builder.add({"word": ["a"]}, time=5)
    with pytest.raises(UsageError, match="an update at -1"):
        write.batch_builder(0).add({"word": ["a"], "__time": [-1]})
    assert write.batch_builder(0).finish(0).rows == 0
    builder = write.batch_builder()
    builder.add({"word": ["a"]}, time=9)
    with pytest.raises(UsageError, match="an update at 9"):
        builder.finish(9)
    with pytest.raises(UsageError, match="ended"):
        builder.finish(10)


def test_a_batch_belongs_to_one_shard(location: Location, pair: Pair) -> None:
    write, _ = pair
    other_write, other = opened(location, new_shard_id())
    builder = write.batch_builder()
    builder.add({"word": ["a"]}, time=0)
    batch = builder.finish(1)
    with pytest.raises(SchemaMismatch, match="was built for shard"):
        other_write.compare_and_append(batch, 0, 1)
    with pytest.raises(UsageError, match="have their times"):
        write.compare_and_append(batch, 0, 1, time=0)
    other.close()
    other_write.close()


def test_bytes_that_are_damaged_or_of_something_else_are_refused(
    tmp_path: Path, pair: Pair
) -> None:
    """A KeyError came out where the bytes of a split were taken for those of a batch."""
    write, read = pair
    builder = write.batch_builder()
    builder.add({"word": ["a"]}, time=0)
    batch = builder.finish(1)
    write.compare_and_append(batch, 0, 1)
    with (
        sl.connect(f"memory://{tmp_path}-db", settings=QUIET) as db,
        TxnsHandle.open(read._shard.location, new_shard_id(), settings=QUIET) as txns,
    ):
        db.create_table("t", WORDS, row_keys="word")
        good = {
            Batch: batch.to_bytes(),
            SnapshotSplit: read.snapshot(0)[0].to_bytes(),
            Txn: txns.begin().to_bytes(),
            sl.Staged: db.stage({"t": {"word": ["a"]}}).to_bytes(),
        }
    texts = (b"[]", b'{"format": "x"}', b"x", b'{"format": 1}')
    intact = [b"%08x " % zlib.crc32(text) + text for text in texts]
    for kind, data in good.items():
        kind.from_bytes(data)  # type: ignore[attr-defined]
        others = [other for other in good.values() if other != data] + intact
        flipped = [
            data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :] for at in range(len(data))
        ]
        for bad in [*others, *flipped, *(data[:at] for at in range(len(data))), data + b" "]:
            with pytest.raises(Corruption):
                kind.from_bytes(bad)  # type: ignore[attr-defined]


# --- holds


def test_a_hold_stays_when_its_maker_is_gone_and_is_taken_over(
    location: Location, pair: Pair
) -> None:
    write, read = pair
    write.advance_upper(10)
    other_write, other = opened(location)
    mine = other.hold("job")
    assert mine.since == 0
    with pytest.raises(UsageError, match="already"):
        read.hold("job")
    other.close()
    other_write.close()
    read.downgrade_since(5)
    taken = read.take("job")
    assert taken.since == 0
    with pytest.raises(AsOfTooOld):
        read.snapshot(3)  # the shard could, but this handle gave it up
    assert taken.downgrade_since(4) == 4
    assert taken.downgrade_since(2) == 4
    with pytest.raises(AsOfTooOld):
        read.hold("late", 3)
    taken.close()
    taken.close()
    with pytest.raises(UsageError, match="no hold"):
        read.take("job")


def test_a_hold_that_was_taken_cannot_be_moved_by_who_had_it(pair: Pair) -> None:
    _, read = pair
    mine = read.hold("job")
    read.take("job")
    with pytest.raises(Fenced, match="taken over"):
        mine.downgrade_since(3)
    with pytest.raises(Fenced, match="taken over"):
        mine.close()


def test_a_reader_whose_lease_ended_is_told(location: Location, pair: Pair) -> None:
    write, read = pair
    other_write, other = opened(location)
    machine = other_write._shard.machine
    session = machine.session
    count = machine.look().state.sessions.get((session,))
    assert count is not None
    assert write._shard.machine.submit(Expire(session, count.count))
    for refused in (
        lambda: other.snapshot(0),
        lambda: other.listen(0),
        lambda: other.downgrade_since(0),
    ):
        with pytest.raises(Fenced, match=r"lease|gone"):
            refused()
    other_write.compare_and_append({"word": ["a"]}, 0, 1, time=0)
    assert rows(location, read, 0) == {"a": 1}
    other_write.close()


def test_closing_ends_the_session_with_the_last_handle(location: Location) -> None:
    write, read = opened(location)
    shard = write._shard
    write.close()
    write.close()
    assert (shard.machine.session,) in dict(shard.machine.look().state.sessions.range())
    read.close()
    read.close()
    assert dict(shard.machine.look().state.sessions.range()) == {}


def test_a_closed_handle_does_nothing_more(location: Location) -> None:
    """Even while the other handle keeps the session open; `finish` cannot be taken back."""
    write, read = opened(location)
    write.compare_and_append({"word": ["a", "b"]}, 0, 1, time=0)
    builder, other_builder = write.batch_builder(), write.batch_builder()
    other_builder.add({"word": ["c"]}, time=1)
    mine, listen, rest = read.hold("mine"), read.listen(-1), read.read(0)
    write.close()
    for refused in (
        lambda: write.compare_and_append(None, 1, 2),
        lambda: write.append(None, 2),
        lambda: write.advance_upper(5),
        write.finish,
        write.fetch_upper,
        write.batch_builder,
        write.compact,
        lambda: builder.add({"word": ["c"]}, time=1),
        lambda: other_builder.finish(2),
    ):
        with pytest.raises(UsageError, match="handle is closed"):
            refused()
    assert read.fetch_upper() == 1
    read.close()
    for gone in (
        lambda: read.snapshot(0),
        lambda: read.read(0),
        lambda: read.listen(-1),
        lambda: next(listen),
        rest.read_all,
        read.fetch_upper,
        lambda: read.downgrade_since(0),
        lambda: read.hold("more"),
        lambda: read.take("mine"),
        lambda: mine.downgrade_since(0),
        mine.close,
    ):
        with pytest.raises(UsageError, match="closed"):
            gone()
    write.close()
    again_write, again = opened(location)
    assert again.upper == 1
    again.take("mine").close()
    again.close()
    again_write.close()


def test_a_damaged_part_is_named(location: Location, pair: Pair) -> None:
    write, read = pair
    write.compare_and_append({"word": ["a"]}, 0, 1, time=0)
    (split,) = read.snapshot(0)
    (key,) = objects(location)
    location.blob.delete(key, timeout=60)
    with pytest.raises(Corruption) as missing:
        read_split(location, split, settings=QUIET).read_all()
    assert missing.value.object == key
    with pytest.raises(Corruption):
        next(read.listen(-1))
