"""CASES.md, Shard: S1 to S10, S14 and S15, through the public handles."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from strandline.env import RealEnv
from strandline.errors import (
    AsOfTooOld,
    DeadlineExceeded,
    Fenced,
    LocationError,
    UpperMismatch,
    UsageError,
)
from strandline.ids import SessionId
from strandline.location import Location
from strandline.parts.rows import consolidate
from strandline.shard import WriteHandle, compact
from strandline.shard.alone import batches
from strandline.shard.machine import Machine
from strandline.state.commands import Append, Command
from strandline.testing.faults import FAIL_BEFORE, LOST, Call, Fault
from tests.shard.helpers import (
    QUIET,
    SHARD,
    Meddling,
    Pair,
    listed,
    opened,
    planned,
    rows,
    updates,
)
from tests.support.deadlines import within
from tests.txn.helpers import faulty


def test_bounds_are_checked_before_the_shard_changes(pair: Pair) -> None:
    """S1."""
    write, _ = pair
    with pytest.raises(UpperMismatch) as refused:
        write.compare_and_append(updates(("a", 1, 1)), 1, 2)
    assert refused.value.upper == 0
    assert write.compare_and_append(None, 0, 5).upper == 5
    with pytest.raises(UsageError, match="wrong way"):
        write.compare_and_append(None, 5, 4)
    with pytest.raises(UsageError, match="from 5 to before 5"):
        write.compare_and_append(updates(("a", 5, 1)), 5, 5)
    assert write.compare_and_append(None, 5, 5).upper == 5
    assert write.fetch_upper() == 5


def test_the_second_writer_is_told_the_upper_and_goes_on_from_there(
    location: Location, pair: Pair
) -> None:
    """S2."""
    first, read = pair
    second, other = opened(location)
    first.compare_and_append(updates(("a", 2, 1)), 0, 3)
    with pytest.raises(UpperMismatch) as refused:
        second.compare_and_append(updates(("b", 0, 1)), 0, 1)
    assert refused.value.upper == 3
    second.compare_and_append(updates(("b", 3, 1)), 3, 4)
    assert rows(location, read, 3) == {"a": 1, "b": 1}
    second.close()
    other.close()


def test_what_replicated_writers_append_is_there_once(location: Location, pair: Pair) -> None:
    """S3."""
    first, read = pair
    second, other = opened(location)
    data = [("a", 0, 1), ("b", 2, 1), ("a", 3, 1), ("c", 4, -2), ("d", 5, 1)]
    first.append(updates(*(u for u in data if u[1] < 3)), 3)
    second.append(updates(*(u for u in data if u[1] < 5)), 5)
    first.append(updates(*(u for u in data if 3 <= u[1] < 6)), 6)
    (event,) = read.listen(-1, until=6)
    assert listed(event.updates) == sorted(data)
    assert rows(location, read, 5) == {"a": 2, "b": 1, "c": -2, "d": 1}
    second.close()
    other.close()


def test_a_token_brings_the_first_result_back(location: Location, pair: Pair) -> None:
    """S4."""
    first, read = pair
    second, other = opened(location)
    first.advance_upper(3)
    token = ("job", 1)
    first.compare_and_append(updates(("a", 3, 1)), 3, 4, token=token)
    second.compare_and_append(updates(("b", 4, 1)), 4, 5)
    again = first.compare_and_append(updates(("a", 3, 1)), 3, 4, token=token)
    assert (again.repeated, again.upper) == (True, 4)
    assert read.fetch_upper() == 5
    assert rows(location, read, 4) == {"a": 1, "b": 1}
    second.finish()
    assert first.compare_and_append(updates(("a", 3, 1)), 3, 4, token=token).repeated
    second.close()
    other.close()


def test_what_adds_up_to_nothing_is_compacted_away(location: Location, pair: Pair) -> None:
    """S5."""
    write, read = pair
    write.compare_and_append(updates(("zero", 0, 1), ("zero", 1, -1), ("one", 1, 1)), 0, 11)
    read.downgrade_since(10)
    compact(location, SHARD, strategy="full", settings=QUIET)
    assert stored(pair) == [("one", 10, 1)]


Write = Callable[[WriteHandle, pa.Table, int], object]


def built(write: WriteHandle, data: pa.Table, upper: int) -> None:
    with write.batch_builder() as builder:
        for number in range(data.num_rows):
            builder.add(data.slice(number, 1))
        batch = builder.finish(upper)
    write.compare_and_append(batch, 0, upper)


@pytest.fixture(params=["table", "large", "replica", "builder"])
def appended(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Write:
    if request.param == "large":
        monkeypatch.setattr(batches, "_IN_MEMORY_BYTES", 0)
        monkeypatch.setattr(consolidate, "_IN_MEMORY_BYTES", 0)
    each: dict[str, Write] = {
        "replica": lambda write, data, upper: write.append(data, upper),
        "builder": built,
    }
    plain: Write = lambda write, data, upper: write.compare_and_append(data, 0, upper)  # noqa: E731
    return each.get(request.param, plain)


def test_equal_updates_of_one_batch_add_up_when_it_is_written(pair: Pair, appended: Write) -> None:
    data = updates(("b", 1, 1), ("a", 0, 1), ("b", 1, -1), ("a", 0, 2), ("a", 1, -1), ("c", 0, 1))
    appended(pair[0], data, 2)
    assert stored(pair) == [("a", 0, 3), ("a", 1, -1), ("c", 0, 1)]


def test_a_batch_that_cancels_stores_nothing_and_moves_upper(
    location: Location, pair: Pair, appended: Write
) -> None:
    appended(pair[0], updates(("a", 0, 1), ("b", 1, 2), ("a", 0, -1), ("b", 1, -2)), 2)
    assert pair[0].fetch_upper() == 2
    assert not [i.key for i in location.blob.list("", timeout=5) if "/part/" in i.key]
    assert stored(pair) == []


def test_a_batch_with_a_sum_that_cannot_be_told_is_refused(pair: Pair, appended: Write) -> None:
    with pytest.raises(UsageError, match="'a'"):
        appended(pair[0], updates(("a", 0, 2**63 - 1), ("a", 0, 1), ("b", 0, 1)), 1)
    assert pair[0].fetch_upper() == 0


def test_a_part_by_itself_is_merged_as_long_as_that_gains(location: Location, pair: Pair) -> None:
    write, read = pair
    write.compare_and_append(updates(("a", 0, 1), ("a", 3, -1), ("b", 3, 1), ("b", 7, 1)), 0, 9)

    def merged(since: int) -> int:
        read.downgrade_since(since)
        return sum(compact(location, SHARD, strategy="full", settings=QUIET).jobs for _ in "12")

    assert [merged(since) for since in (0, 3)] == [0, 1]
    assert stored(pair) == [("b", 3, 1), ("b", 7, 1)]
    assert merged(7) == 1
    assert stored(pair) == [("b", 7, 2)]
    assert merged(8) == 0, "all is of one time: nothing can add up"


def test_a_part_of_different_rows_is_not_merged_by_itself(location: Location, pair: Pair) -> None:
    write, read = pair
    write.compare_and_append(updates(("a", 0, 1), ("b", 1, 1), ("c", 7, 1)), 0, 9)
    read.downgrade_since(5)
    assert compact(location, SHARD, strategy="full", settings=QUIET).jobs == 0
    assert rows(location, read, 6) == {"a": 1, "b": 1}


def test_what_was_cut_off_a_part_by_itself_goes(location: Location, pair: Pair) -> None:
    write, _ = pair
    with write.batch_builder() as builder:
        builder.add(updates(("a", 0, 1), ("b", 3, 1)))
        batch = builder.finish(5)
    write.advance_upper(2)
    write.append(batch, 5)
    assert [compact(location, SHARD, strategy="full", settings=QUIET).jobs for _ in "12"] == [1, 0]
    assert stored(pair) == [("b", 3, 1)]


def test_times_before_since_move_up_to_it_and_add_up(location: Location, pair: Pair) -> None:
    """S6."""
    write, read = pair
    write.compare_and_append(updates(("a", 0, 1), ("b", 1, 1), ("c", 2, 1)), 0, 3)
    write.compare_and_append(updates(("a", 3, 1), ("b", 4, 1), ("d", 5, 1)), 3, 7)
    read.downgrade_since(6)
    compact(location, SHARD, strategy="full", settings=QUIET)
    assert stored(pair) == [("a", 6, 2), ("b", 6, 2), ("c", 6, 1), ("d", 6, 1)]


def stored(pair: Pair) -> list[tuple[str, int, int]]:
    """All updates as they are stored, with the times that they have by now."""
    shard = pair[0]._shard
    state = shard.machine.look()
    found = []
    for _, reference in state.state.references.range():
        columns = ["word", "__time", "__diff"]
        table = shard.reader.read(reference.part, shard.schema, columns=columns, deadline=within(5))
        found += [(r["word"], r["__time"], r.get("__diff", 1)) for r in table.to_pylist()]
    return sorted(found)


def test_a_snapshot_lies_between_since_and_upper_or_waits(location: Location) -> None:
    """S7."""
    env = Meddling()
    write, read = opened(location, env=env)
    write.compare_and_append(updates(("a", 1, 1), ("b", 4, 1)), 0, 5)
    read.downgrade_since(2)
    with pytest.raises(AsOfTooOld, match="since is 2"):
        read.snapshot(1)
    assert rows(location, read, 2) == {"a": 1}
    assert rows(location, read, 4) == {"a": 1, "b": 1}
    with pytest.raises(DeadlineExceeded, match="its upper is 5"):
        read.snapshot(5, timeout=30)
    env.meanwhile = [lambda: write.compare_and_append(updates(("c", 5, 1)), 5, 6)]
    assert rows(location, read, 5) == {"a": 1, "b": 1, "c": 1}
    assert env.meanwhile == []
    read.close()
    write.close()


def test_a_snapshot_has_the_batches_up_to_its_time(location: Location, pair: Pair) -> None:
    """S8."""
    write, read = pair
    for number, word in enumerate("abc"):
        write.compare_and_append(updates((word, 5 * number, 1)), 5 * number, 5 * number + 5)
    assert rows(location, read, 9) == {"a": 1, "b": 1}
    assert rows(location, read, 10) == {"a": 1, "b": 1, "c": 1}


def test_a_listen_begins_after_its_time(pair: Pair) -> None:
    """S9."""
    write, read = pair
    listen = read.listen(1, timeout=5)
    write.compare_and_append(updates(("one", 1, 1), ("two", 2, 1)), 0, 3)
    event = next(listen)
    assert (listed(event.updates), event.progress) == ([("two", 2, 1)], 3)


def test_since_is_the_least_of_the_readers(location: Location, pair: Pair) -> None:
    """S10."""
    write, first = pair
    other_write, second = opened(location)
    write.advance_upper(10)
    assert first.downgrade_since(2) == 2
    assert second.downgrade_since(3) == 3
    assert since(pair) == 2
    assert first.downgrade_since(5) == 5
    assert since(pair) == 3
    assert first.downgrade_since(1) == 5
    assert since(pair) == 3
    second.close()
    other_write.close()


def test_since_follows_its_holds_however_upper_moves(location: Location, pair: Pair) -> None:
    """It stays below upper, and goes on to where its holds are as soon as upper does."""
    write, read = pair
    other_write, other = opened(location)
    write.advance_upper(50)
    other.downgrade_since(None)
    assert read.downgrade_since(100) == 100
    assert since(pair) == 49
    write.advance_upper(80)
    assert since(pair) == 79
    write.compare_and_append(None, 80, 90)
    assert since(pair) == 89
    write.advance_upper(1_000)
    assert since(pair) == 100
    other.close()
    other_write.close()


def since(pair: Pair) -> int | None:
    return pair[0]._shard.machine.look().meta.since


def test_an_append_whose_reply_was_lost_happens_once(location: Location) -> None:
    """S14."""
    doubtful, plan = planned(location, [])
    write, read = opened(doubtful)
    before = len(plan.puts)
    plan.plan = ["done"]
    write.compare_and_append(updates(("a", 0, 1)), 0, 1)
    assert len(plan.puts) == before + 1
    assert rows(location, read, 0) == {"a": 1}
    assert parts(location) == 1
    read.close()
    write.close()


def test_an_append_that_lost_its_slot_is_judged_anew(location: Location, pair: Pair) -> None:
    """S15."""
    rival, read = pair
    doubtful, plan = planned(location, [])
    write, other = opened(doubtful)
    plan.plan = ["lost"]
    plan.before_scan = [
        lambda: None,  # the look before anything is written
        lambda: rival.compare_and_append(updates(("b", 0, 1)), 0, 1),
    ]
    with pytest.raises(UpperMismatch) as refused:
        write.compare_and_append(updates(("a", 0, 1)), 0, 1)
    assert refused.value.upper == 1
    assert plan.before_scan == []
    assert rows(location, read, 0) == {"b": 1}
    assert parts(location) == 2, "a copy of this process may append it yet"
    write.compare_and_append(updates(("a", 1, 1)), 1, 2)
    assert parts(location) == 2, "but what was written for the append that lost goes then"
    other.close()
    write.close()


def test_an_append_that_was_put_again_by_hand_with_its_token_happens_once(
    location: Location, pair: Pair
) -> None:
    """S14, where nobody could find out in time."""
    _, read = pair
    doubtful, plan = planned(location, [])
    write, other = opened(doubtful, env=Meddling())
    plan.plan = ["done"]
    before = len(plan.puts)

    def fail() -> None:
        plan.failing_scans = 10_000

    plan.before_scan = [fail]  # all looks fail but the one before anything is written
    with pytest.raises(LocationError) as unknown:
        write.compare_and_append(updates(("a", 0, 1)), 0, 1, token=("job", 1), timeout=30)
    assert unknown.value.may_have_happened
    assert parts(location) == 1, "it may be needed"
    plan.failing_scans = 0
    again = write.compare_and_append(updates(("a", 0, 1)), 0, 1, token=("job", 1))
    assert again.upper == 1
    assert len(plan.puts) == before + 1
    assert rows(location, read, 0) == {"a": 1}
    other.close()
    write.close()
    assert parts(location) == 1


def test_the_part_of_an_append_that_may_yet_happen_stays(location: Location, pair: Pair) -> None:
    _, read = pair
    doubtful, plan = planned(location, [])
    write, other = opened(doubtful, env=Meddling())
    plan.plan = ["late"]
    plan.before_scan = [lambda: setattr(plan, "failing_scans", 10_000)]
    with pytest.raises(LocationError) as unknown:
        write.compare_and_append(updates(("a", 0, 1)), 0, 1, timeout=30)
    assert unknown.value.may_have_happened
    plan.failing_scans = 0
    write.close()
    other.close()  # settles it: the record lands
    assert rows(location, read, 0) == {"a": 1}


def test_an_append_whose_token_another_committed_meanwhile_leaves_no_part(
    location: Location, pair: Pair
) -> None:
    rival, read = pair
    doubtful, plan = planned(location, [])
    write, other = opened(doubtful)
    plan.plan = ["lost"]
    plan.before_scan = [
        lambda: None,  # the look before anything is written
        lambda: rival.compare_and_append(updates(("a", 0, 1)), 0, 1, token=("job", 1)),
    ]
    done = write.compare_and_append(updates(("a", 0, 1)), 0, 1, token=("job", 1))
    assert (done.repeated, done.upper) == (True, 1)
    assert plan.before_scan == []
    assert rows(location, read, 0) == {"a": 1}
    write.close()
    other.close()
    assert parts(location) == 1


def test_a_copy_of_a_process_appends_no_part_that_the_other_deletes(location: Location) -> None:
    """Of two copies made between the part and the append, one is refused before the part goes."""
    failing = False

    def decide(call: Call) -> Fault | None:
        return FAIL_BEFORE if failing and call.kind == "compare_and_set" else None

    write, other = opened(faulty(location, decide)[0], env=Meddling())
    machine = write._shard.machine
    submit, tried = machine.submit, []

    def submitted(command: Command[Any], *args: Any, **options: Any) -> Any:
        tried.append(command)
        return submit(command, *args, **options)

    machine.submit = submitted  # type: ignore[method-assign]
    failing = True
    with pytest.raises(LocationError) as failed:
        write.compare_and_append(updates(("a", 0, 1)), 0, 1, timeout=0.2)
    assert not failed.value.may_have_happened
    failing = False
    copy = Machine(location, machine.shard, SessionId("w00000000000000aa"), RealEnv(), QUIET)
    copy.adopt(machine.session)
    (append,) = [command for command in tried if isinstance(command, Append)]
    assert parts(location) == 1
    write.close()
    assert parts(location) == 0
    with pytest.raises(Fenced):
        copy.submit(append)
    other.close()


def test_of_appends_that_race_only_those_that_won_leave_parts(location: Location) -> None:
    """Each race that was lost left a part for ever: 148 of 60 appends by four threads."""
    pairs = [opened(location) for _ in range(4)]

    def appended(pair: Pair) -> int:
        lost = 0
        for _ in range(8):
            while True:
                upper = pair[0].fetch_upper()
                assert upper is not None
                try:
                    pair[0].compare_and_append(updates(("a", upper, 1)), upper, upper + 1)
                except UpperMismatch:
                    lost += 1
                else:
                    break
        return lost

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(appended, pairs))
    assert rows(location, pairs[0][1], 31) == {"a": 32}
    for write, read in pairs:
        read.close()
        write.close()
    assert parts(location) == 32


def test_a_part_that_could_not_be_deleted_at_once_is_at_the_next_chance(
    location: Location, pair: Pair
) -> None:
    rival, _ = pair
    failing = True

    def decide(call: Call) -> Fault | None:
        return FAIL_BEFORE if failing and call.kind == "delete" else None

    doubtful, plan = planned(faulty(location, decide)[0], [])
    write, other = opened(doubtful)
    plan.plan = ["lost"]
    plan.before_scan = [
        lambda: None,
        lambda: rival.compare_and_append(updates(("b", 0, 1)), 0, 1),
    ]
    with pytest.raises(UpperMismatch):
        write.compare_and_append(updates(("a", 0, 1)), 0, 1)
    assert parts(location) == 2
    failing = False
    other.close()
    write.close()
    assert parts(location) == 1


def test_an_append_whose_part_could_not_be_stored_did_not_happen(location: Location) -> None:
    failing = False

    def decide(call: Call) -> Fault | None:
        return LOST if failing and call.kind in {"put", "upload"} else None

    write, read = opened(faulty(location, decide)[0], env=Meddling())
    failing = True
    with pytest.raises(LocationError) as failed:
        write.compare_and_append(updates(("a", 0, 1)), 0, 1, timeout=0.2)
    assert not failed.value.may_have_happened
    failing = False
    write.compare_and_append(updates(("a", 0, 1)), 0, 1)
    assert rows(location, read, 0) == {"a": 1}


def test_a_part_that_the_shard_names_is_not_dropped(location: Location, pair: Pair) -> None:
    """Whatever an append was told: a clone of the process may have appended the same."""
    write, _ = pair
    for time in range(2):
        write.compare_and_append(updates(("a", time, 1)), time, time + 1)
    state = write._shard.machine.look()
    mine = [reference.part for _, reference in state.state.references.range()]
    write._drop(mine)
    write.compare_and_append(updates(("a", 2, 1)), 2, 3)
    assert parts(location) == 3
    write.compact("full")
    write._drop(mine)
    write.compare_and_append(updates(("a", 3, 1)), 3, 4)
    assert parts(location) == 5, "a reader may hold what is dead"


def parts(location: Location) -> int:
    return sum("/part/" in info.key for info in location.blob.list("", timeout=5))
