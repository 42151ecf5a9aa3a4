"""Snapshots in splits, listens in whole times: complete whatever is compacted meanwhile."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from strandline.errors import AsOfTooOld, DeadlineExceeded
from strandline.location import Location
from strandline.parts.rows import consolidate
from strandline.settings import Settings
from strandline.shard import (
    ReadHandle,
    SnapshotSplit,
    WriteHandle,
    compact,
    open_shard,
    read_split,
)
from strandline.shard.alone import batches, changes, listen, snapshots
from tests.shard.helpers import QUIET, SHARD, WORDS, Meddling, Pair, listed, opened, rows, updates

SMALL = Settings(background=False, row_group_rows=50, part_rows_target=400)


@pytest.fixture
def streaming(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything counts as more than memory should hold."""
    for module in (batches, changes, consolidate):
        monkeypatch.setattr(module, "_IN_MEMORY_BYTES", 100)
    monkeypatch.setattr(snapshots, "_PIECE_ROWS", 120)
    monkeypatch.setattr(listen, "_EVENT_ROWS", 100)


def word(number: int) -> str:
    return f"word-{number:05d}"


def fill(write: WriteHandle, *, batches_: int = 6, each: int = 500) -> dict[str, int]:
    """Updates at times 0 to `batches_` - 1, whose words meet; what they add up to."""
    total: Counter[str] = Counter()
    for time in range(batches_):
        some = [(word(n * 7 % 1009), time, n % 3 - 1) for n in range(time, time + each)]
        write.compare_and_append(updates(*some), time, time + 1)
        for name, _, diff in some:
            total[name] += diff
    return {name: diff for name, diff in total.items() if diff}


# --- snapshots


@pytest.mark.parametrize("splits", [1, 2, 5])
def test_splits_have_every_row_once_in_order(
    location: Location, splits: int, streaming: None
) -> None:
    write, read = opened(location, settings=SMALL)
    expected = fill(write)
    found = [
        (row["word"], row["__diff"])
        for split in read.snapshot(5, splits)
        for row in read_split(location, split, settings=SMALL).read_all().to_pylist()
    ]
    assert found == sorted(expected.items())
    read.close()
    write.close()


def test_splits_are_about_equal_and_as_many_as_asked_for(location: Location) -> None:
    write, read = opened(location, settings=SMALL)
    data = pa.table({"word": [word(n) for n in range(4_000)]})
    write.compare_and_append(data, 0, 1, time=0)
    splits = read.snapshot(0, 4)
    counts = [read_split(location, s, settings=SMALL).read_all().num_rows for s in splits]
    assert sum(counts) == 4_000
    assert all(700 < count < 1_300 for count in counts), counts
    few = read.snapshot(0, 500)
    assert len(few) == 500
    assert sum(read_split(location, s, settings=SMALL).read_all().num_rows for s in few) == 4_000
    read.close()
    write.close()


def test_a_key_with_more_rows_than_memory_holds_is_read(
    location: Location, streaming: None
) -> None:
    schema = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.int64())])
    write, read = open_shard(location, SHARD, schema=schema, row_keys="k", settings=SMALL)
    data = pa.table({"k": [1] * 3_000, "v": [n % 1_500 for n in range(3_000)]})
    write.compare_and_append(data, 0, 1, time=0)
    table = read.read(0).read_all()
    assert sorted(table.column("v").to_pylist()) == list(range(1_500))
    assert set(table.column("__diff").to_pylist()) == {2}
    read.close()
    write.close()


def test_a_split_is_read_in_another_process(tmp_path: Any) -> None:
    import strandline as sl

    where = tmp_path / "shards"
    with sl.open_location(where) as location:
        write, read = opened(location)
        write.compare_and_append({"word": ["a", "b"]}, 0, 1, time=0)
        (split,) = read.snapshot(0)
        code = (
            "import sys, strandline as sl\n"
            "from strandline.shard import SnapshotSplit, read_split\n"
            "location = sl.open_location(sys.argv[1], mode='r')\n"
            "split = SnapshotSplit.from_bytes(bytes.fromhex(sys.argv[2]))\n"
            "print(read_split(location, split).read_all().to_pydict())\n"
        )
        run = subprocess.run(
            [sys.executable, "-c", code, str(where), split.to_bytes().hex()],
            check=True,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert run.stdout.strip() == "{'word': ['a', 'b'], '__diff': [1, 1]}"
        read.close()
        write.close()


def test_a_split_needs_somebody_to_hold_its_time(location: Location, pair: Pair) -> None:
    write, read = pair
    write.compare_and_append({"word": ["a"]}, 0, 5, time=0)
    (split,) = read.snapshot(1)
    assert SnapshotSplit.from_bytes(split.to_bytes()) == split
    read.downgrade_since(3)
    with pytest.raises(AsOfTooOld, match="since is 3"):
        read_split(location, split, settings=QUIET).read_all()


# --- while parts are replaced


class Interfering:
    """A Blob that does something before the next object is opened."""

    def __init__(self, blob: Any) -> None:
        self._blob = blob
        self.before_open: list[Callable[[], object]] = []

    def open(self, key: str, *, timeout: float) -> Any:
        if self.before_open:
            self.before_open.pop(0)()
        return self._blob.open(key, timeout=timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blob, name)


def replaced_and_gone(location: Location) -> None:
    """Merges all parts and deletes, as a vacuum long after would, what died."""
    report = compact(location, SHARD, strategy="full", settings=SMALL)
    assert report.jobs - report.discarded
    write, read = opened(location)
    state = write._shard.machine.look()
    dead = [entry.key for _, entry in state.state.dead.range()]
    for key in dead:
        location.blob.delete(key, timeout=60)
    assert dead
    read.close()
    write.close()


def test_what_reads_go_on_when_their_parts_are_replaced_and_gone(
    location: Location, streaming: None
) -> None:
    write, read = opened(location, settings=SMALL)
    expected = fill(write)
    blob = Interfering(location.blob)
    place = replace(location, blob=blob)
    splits = read.snapshot(5, 3)
    blob.before_open = [lambda: replaced_and_gone(location)]
    found = [
        row for s in splits for row in read_split(place, s, settings=SMALL).read_all().to_pylist()
    ]
    assert {row["word"]: row["__diff"] for row in found} == expected
    assert len(found) == len(expected)
    assert blob.before_open == []
    read.close()
    write.close()


def test_a_reader_goes_on_in_the_middle_when_its_parts_are_replaced_and_gone(
    location: Location, streaming: None
) -> None:
    write, read = opened(location, settings=SMALL)
    expected = fill(write)
    reader = read.read(5)
    found = reader.read_next_batch().to_pylist()
    replaced_and_gone(location)
    read._shard.reader.close()  # files that are open live on
    for batch in reader:
        found += batch.to_pylist()
    assert [(row["word"], row["__diff"]) for row in found] == sorted(expected.items())
    read.close()
    write.close()


def test_parts_that_do_not_meet_are_read_once_when_both_are_replaced_and_gone(
    location: Location,
) -> None:
    write, read = opened(location)
    write.compare_and_append(updates(("a", 0, 1), ("b", 0, 1)), 0, 1)
    write.compare_and_append(updates(("y", 1, 1), ("z", 1, 1)), 1, 2)
    blob = Interfering(location.blob)
    blob.before_open = [lambda: replaced_and_gone(location)]
    (split,) = read.snapshot(1)
    found = read_split(replace(location, blob=blob), split, settings=QUIET).read_all()
    assert found.column("word").to_pylist() == ["a", "b", "y", "z"]
    assert blob.before_open == []
    read.close()
    write.close()


def test_a_listen_goes_on_when_its_parts_are_replaced_and_gone(
    location: Location, streaming: None
) -> None:
    write, read = opened(location, settings=SMALL)
    fill(write)
    before = sums(read, -1)
    read.downgrade_since(2)
    blob = Interfering(location.blob)
    other_write, other = opened(replace(location, blob=blob), settings=SMALL)
    blob.before_open = [lambda: replaced_and_gone(location)]
    assert sums(other, 2) == Counter({u: n for u, n in before.items() if u[1] > 2})
    assert blob.before_open == []
    for handle in (other, other_write, read, write):
        handle.close()


def sums(read: ReadHandle, as_of: int) -> Counter[tuple[str, int]]:
    """What a listen delivers until the known upper: per word and time, without zeros."""
    total: Counter[tuple[str, int]] = Counter()
    progress = as_of + 1
    for event in read.listen(as_of, until=read.fetch_upper()):
        assert event.progress is not None
        times = event.updates.column("__time").to_pylist()
        assert times == sorted(times)
        assert all(progress <= time < event.progress for time in times)
        progress = event.progress
        for name, time, diff in listed(event.updates):
            total[name, time] += diff
    return Counter({key: diff for key, diff in total.items() if diff})


# --- listens


def test_events_have_whole_times(location: Location, streaming: None) -> None:
    write, read = opened(location, settings=SMALL)
    fill(write, batches_=4, each=60)
    events = list(read.listen(-1, until=4))
    assert len(events) > 1
    times = [set(event.updates.column("__time").to_pylist()) for event in events]
    assert sum(map(len, times)) == len(set().union(*times)) == 4
    read.close()
    write.close()


def test_a_listen_waits_and_goes_on_after_its_deadline(location: Location) -> None:
    env = Meddling()
    write, read = opened(location, env=env)
    following = read.listen(0, timeout=60)
    with pytest.raises(DeadlineExceeded, match="its upper is 0"):
        next(following)
    env.meanwhile = [lambda: write.compare_and_append(updates(("a", 1, 1)), 0, 2)]
    event = next(following)
    assert (listed(event.updates), event.progress) == ([("a", 1, 1)], 2)
    write.advance_upper(9)
    event = next(following)
    assert (event.updates.num_rows, event.progress) == (0, 9)
    write.finish()
    assert [event.progress for event in following] == [None]
    assert following.progress is None
    read.close()
    write.close()


def test_a_listen_goes_on_after_an_error(location: Location) -> None:
    write, read = opened(location)
    write.compare_and_append(updates(("a", 1, 1)), 0, 2)
    following = read.listen(0)
    (key,) = [i.key for i in location.blob.list("", timeout=60) if "/part/" in i.key]
    data = location.blob.get(key, timeout=60)
    location.blob.delete(key, timeout=60)
    with pytest.raises(Exception, match="missing"):
        next(following)
    location.blob.put(key, data, timeout=60)
    assert listed(next(following).updates) == [("a", 1, 1)]
    read.close()
    write.close()


def test_a_listen_from_before_since_is_refused(location: Location, pair: Pair) -> None:
    write, read = pair
    write.advance_upper(9)
    read.downgrade_since(4)
    with pytest.raises(AsOfTooOld, match="since is 4"):
        read.listen(3)
    with pytest.raises(AsOfTooOld):
        read.listen(-1)
    assert next(read.listen(4)).progress == 9


def test_until_ends_a_listen_and_cuts_it(pair: Pair) -> None:
    write, read = pair
    write.compare_and_append(updates(("a", 1, 1), ("b", 2, 1), ("c", 3, 1)), 0, 9)
    (event,) = read.listen(0, until=3)
    assert (listed(event.updates), event.progress) == ([("a", 1, 1), ("b", 2, 1)], 3)


def test_snapshot_and_listen_from_the_same_time_are_everything(
    location: Location, pair: Pair
) -> None:
    write, read = pair
    expected = fill(write)
    total = Counter(rows(location, read, 2))
    for (name, _), diff in sums(read, 2).items():
        total[name] += diff
    assert {name: diff for name, diff in total.items() if diff} == expected


# --- large appends


def test_appends_and_batches_of_any_size_are_sorted_with_little_memory(
    location: Location, streaming: None
) -> None:
    write, read = opened(location, settings=SMALL)
    names = [word(n * 7 % 1_009) for n in range(1_500)]
    table = pa.table({"word": names, "__time": [n % 5 for n in range(1_500)]})
    write.compare_and_append(table.to_reader(max_chunksize=100), 0, 5)
    with write.batch_builder() as builder:
        for start in range(0, 1_500, 300):
            builder.add(pa.table({"word": names[start : start + 300]}), time=5)
        batch = builder.finish(6)
    assert len(batch.parts) > 1
    write.append(batch, 6)
    counts = Counter(names)
    assert rows(location, read, 5) == {name: 2 * count for name, count in counts.items()}
    assert rows(location, read, 4) == dict(counts)
    read.close()
    write.close()


def test_nothing_of_a_stream_that_fails_is_appended(pair: Pair) -> None:
    write, _ = pair

    def stream() -> Any:
        yield pa.record_batch({"word": ["a"], "__time": [0]})
        raise RuntimeError("the source is gone")

    schema = pa.schema([("word", pa.string()), ("__time", pa.int64())])
    reader = pa.RecordBatchReader.from_batches(schema, stream())
    with pytest.raises(RuntimeError, match="the source is gone"):
        write.compare_and_append(reader, 0, 1)
    assert write.fetch_upper() == 0


def test_words_are_compared_by_their_bytes(location: Location, pair: Pair) -> None:
    write, read = pair
    names = ["", "a", "a\0", "ä", "\uffff", "\U0001f600"]
    assert WORDS.names == ["word"]
    write.compare_and_append({"word": names[::-1]}, 0, 1, time=0)
    assert read.read(0).read_all().column("word").to_pylist() == names
