"""What a vacuum may delete: nothing that anybody can still need, and in the end everything else."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.errors import UsageError
from strandline.state.commands import (
    Clear,
    CloseHold,
    Collect,
    Compact,
    Finish,
    KeepReceipts,
    MoveHold,
    OpenHold,
    Output,
    Retain,
    RetireRollups,
    Split,
)
from strandline.state.decide import Author, decide
from strandline.state.garbage import (
    VacuumPlan,
    doubtful_receipts,
    named_parts,
    parts_there,
    plan_vacuum,
    touches_references,
)
from strandline.state.model import Dead, Diff, Hold, Mark, Receipt, Rollup
from strandline.state.replay import replay
from tests.support.states import Shard, part, replaces, unloaded

MINUTE = 60_000_000
DELAY = 10 * MINUTE
NOW = 1_000 * MINUTE


def key(name: str) -> str:
    """The key of a part, as the plan knows parts by their keys."""
    return f"w1/s1/part/{name}.parquet"


def rollup_key(seqno: int) -> str:
    return f"w1/s1/rollup/{seqno}"


def rolled_up(shard: Shard, *, verified: bool = True) -> int:
    """Names a rollup of the newest state, as the next record would; its seqno."""
    state = shard.state
    rollup = Rollup(state.seqno, rollup_key(state.seqno), 10, verified)
    named = Diff("rollups", (rollup.seqno,), rollup)
    seqno = state.seqno + 1
    shard.state = replay(state, seqno, seqno.to_bytes(32, "big"), [named])
    return rollup.seqno


def marked(shard: Shard, at: int) -> None:
    shard.do(Collect(mark=(shard.state.seqno, Mark(at))))


def covered(shard: Shard) -> None:
    """Enters a receipt of all records that no other one covers."""
    first = max((r.last for _, r in shard.state.receipts.range()), default=0) + 1
    receipt = Receipt(shard.state.seqno, f"w1/s1/receipt/{first}", 10)
    shard.do(KeepReceipts(((first, receipt),)))


def merged(shard: Shard, *names: str, into: str) -> int:
    """Replaces these parts by another; the seqno at which they died."""
    inputs = [k for k, ref in shard.state.references.range() if ref.part.key in map(key, names)]
    leaf = shard.leaves()[0]
    output = Output(leaf.id, b"", part(key(into), b"a", b"d"), time=1)
    assert shard.do(replaces(inputs, output)) is True
    return shard.state.seqno


def plan(shard: Shard, now: int = NOW, delay: int = DELAY) -> VacuumPlan:
    return plan_vacuum(shard.state, now, delay)


def deleted(found: VacuumPlan) -> list[str]:
    return [dead.key.split("/")[-1].split(".")[0] for _, dead in found.delete]


@pytest.fixture(name="shard")
def _shard() -> Shard:
    """Two parts, replaced at seqno 2; the newest rollup is older."""
    shard = Shard()
    shard.apply(3, (1, part(key("one"), b"a", b"b")), (2, part(key("two"), b"c", b"d")))
    rolled_up(shard)
    merged(shard, "one", "two", into="three")
    return shard


def ripe(shard: Shard) -> None:
    """All conditions but the rollup's."""
    covered(shard)
    marked(shard, NOW - DELAY)


# --- what dead parts wait for


def test_s12_nothing_is_deleted_until_a_later_rollup_was_read_back(shard: Shard) -> None:
    ripe(shard)
    waits = plan(shard)
    assert (deleted(waits), waits.waiting, waits.roll_up) == ([], {"rollup": 2}, True)
    rolled_up(shard, verified=False)
    waits = plan(shard)
    assert (deleted(waits), waits.waiting, waits.roll_up) == ([], {"rollup": 2}, False)
    newest = rolled_up(shard)
    found = plan(shard)
    assert (deleted(found), found.waiting) == (["one", "two"], {})
    shard.do(Collect(tuple(k for k, _ in found.delete)))
    again = plan(shard)
    assert (deleted(again), again.waiting, again.roll_up, newest) == ([], {}, False, newest)


def test_s12_a_rollup_at_the_very_seqno_of_the_death_is_enough(shard: Shard) -> None:
    died = shard.state.seqno
    assert rolled_up(shard) == died
    ripe(shard)
    assert deleted(plan(shard)) == ["one", "two"]


def test_s13_what_died_after_the_seqno_of_a_hold_stays(shard: Shard) -> None:
    shard = Shard()
    shard.apply(3, (1, part(key("one"), b"a", b"b")), (2, part(key("two"), b"c", b"d")))
    shard.do(OpenHold("reader", Hold(None, seqno=0, kind="reader"), leased=True))
    before = shard.state.seqno - 1
    merged(shard, "one", "two", into="three")
    rolled_up(shard)
    rolled_up(shard)
    ripe(shard)
    assert plan(shard).waiting == {"hold": 2}
    # The log from the hold's seqno on stays as well.
    assert plan(shard).truncate_before <= before
    shard.do(MoveHold("reader", 1, 0, shard.state.seqno))
    assert deleted(plan(shard)) == ["one", "two"]
    shard.do(CloseHold("reader", 1))
    assert deleted(plan(shard)) == ["one", "two"]


def test_a_hold_keeps_what_died_right_after_its_seqno_and_not_what_died_at_it() -> None:
    shard = Shard()
    shard.apply(3, (1, part(key("one"), b"a", b"b")), (2, part(key("two"), b"c", b"d")))
    shard.do(OpenHold("reader", Hold(None, seqno=0, kind="reader"), leased=True))
    first = merged(shard, "one", into="three")
    second = merged(shard, "two", into="four")
    assert second == first + 1
    rolled_up(shard)
    ripe(shard)
    gone = {first - 1: [], first: ["one"], second: ["one", "two"]}
    for at, names in gone.items():
        shard.do(MoveHold("reader", 1, 0, at))
        found = plan(shard)
        assert deleted(found) == names
        assert found.waiting == ({} if len(names) == 2 else {"hold": 2 - len(names)})


def test_a_hold_without_a_seqno_keeps_history_and_no_objects(shard: Shard) -> None:
    shard.do(OpenHold("tag", Hold(None, kind="tag"), leased=False))
    rolled_up(shard)
    ripe(shard)
    assert deleted(plan(shard)) == ["one", "two"]


def test_p6_five_minutes_are_too_short_and_eleven_enough(shard: Shard) -> None:
    rolled_up(shard)
    covered(shard)
    marked(shard, NOW - 11 * MINUTE)
    shard.apply(5, (4, part(key("four"), b"a", b"b")))
    merged(shard, "three", "four", into="five")
    rolled_up(shard)
    covered(shard)
    marked(shard, NOW - 5 * MINUTE)
    found = plan(shard)
    assert deleted(found) == ["one", "two"]
    assert found.waiting == {"delay": 2}
    assert deleted(plan(shard, NOW + 5 * MINUTE)) == ["one", "two", "four", "three"]


def test_p6_what_is_missing_already_is_forgotten_as_well(shard: Shard) -> None:
    rolled_up(shard)
    ripe(shard)
    # Deleting what is not there is the same as deleting it: both are entered as gone.
    gone = tuple(k for k, _ in plan(shard).delete)
    assert shard.do(Collect(gone)) == 2
    assert shard.do(Collect(gone)) == 0
    assert shard.dead() == []


def test_without_a_mark_nothing_is_known_to_be_dead_for_long(shard: Shard) -> None:
    rolled_up(shard)
    covered(shard)
    found = plan(shard, delay=0)
    assert (deleted(found), found.waiting, found.mark) == ([], {"delay": 2}, True)


def test_parts_wait_for_the_receipt_of_their_death(shard: Shard) -> None:
    died = shard.state.seqno
    rolled_up(shard)
    marked(shard, NOW - DELAY)
    found = plan(shard)
    assert (found.waiting, found.receipts_from) == ({"receipt": 2}, 1)
    assert found.receipts_through >= died
    covered(shard)
    assert deleted(plan(shard)) == ["one", "two"]


def test_the_outputs_of_a_discarded_compaction_need_no_receipt(shard: Shard) -> None:
    covered(shard)
    leaf = shard.leaves()[0]
    late = Compact(((1, b"", 1),), (Output(leaf.id, b"", part(key("late"), b"a", b"b"), time=1),))
    assert shard.do(late) is False
    assert not touches_references(shard.last())
    rolled_up(shard)
    marked(shard, NOW - DELAY)
    assert "late" in deleted(plan(shard))


# --- marks


def test_a_new_mark_is_made_once_a_quarter_of_the_delay_has_passed(shard: Shard) -> None:
    marked(shard, NOW)
    shard.apply(5, (4, part(key("four"), b"a", b"b")))
    merged(shard, "three", "four", into="five")
    assert not plan(shard, NOW + DELAY // 4 - 1).mark
    assert plan(shard, NOW + DELAY // 4).mark


def test_no_mark_is_made_for_what_one_is_about_already(shard: Shard) -> None:
    marked(shard, NOW)
    assert not plan(shard, NOW + 100 * DELAY).mark


def test_marks_before_the_newest_ripe_one_go(shard: Shard) -> None:
    marked(shard, NOW)
    first = shard.state.seqno - 1
    marked(shard, NOW + DELAY)
    assert plan(shard, NOW + DELAY).stale_marks == ()
    assert plan(shard, NOW + 2 * DELAY).stale_marks == (first,)


def test_a_clock_that_was_set_back_delays_and_never_hastens(shard: Shard) -> None:
    rolled_up(shard)
    covered(shard)
    marked(shard, NOW)
    ahead = shard.state.seqno - 1
    early = plan(shard, NOW - 100 * DELAY)
    assert (deleted(early), early.mark, early.stale_marks) == ([], True, (ahead,))
    shard.do(Collect(mark=(early.seqno, Mark(NOW - 100 * DELAY)), marks=early.stale_marks))
    assert deleted(plan(shard, NOW - 99 * DELAY - 1)) == []
    assert deleted(plan(shard, NOW - 99 * DELAY)) == ["one", "two"]


def test_a_mark_of_a_seqno_that_is_not_written_yet_is_refused(shard: Shard) -> None:
    with pytest.raises(UsageError):
        shard.do(Collect(mark=(shard.state.seqno + 1, Mark(0))))


# --- rollups and the log


def rollups(shard: Shard, *verified: bool) -> list[int]:
    return [rolled_up(shard, verified=whole) for whole in verified]


def test_c6_pruning_keeps_the_rollup_before_and_all_after_it() -> None:
    shard = Shard()
    shard.apply(1)
    shard.apply(2)
    second = rolled_up(shard)
    shard.apply(3)
    shard.apply(4)
    fifth = rolled_up(shard)
    shard.do(OpenHold("h", Hold(None, seqno=0), leased=False))
    found = plan(shard)
    assert [r.seqno for r in found.keep] == [second, fifth]
    assert (found.retire, found.truncate_before) == ((), second)


@pytest.mark.parametrize(
    ("whole", "kept"),
    [
        ((True, True), 0),
        ((True, True, True), 1),
        ((True, True, False), 0),
        ((True, False, True), 0),
        ((True, False, True, True), 2),
        ((False, False, False), None),
        ((True, False, False, False), None),
        ((True, True, True, False, False), 1),
    ],
)
def test_only_what_is_before_the_two_newest_whole_rollups_goes(
    whole: tuple[bool, ...], kept: int | None
) -> None:
    shard = Shard()
    shard.apply(1)
    seqnos = rollups(shard, *whole)
    found = plan(shard)
    first = 0 if kept is None else kept
    assert [r.seqno for r in found.retire] == seqnos[:first]
    assert [r.seqno for r in found.keep] == seqnos[first:]
    assert found.truncate_before == (0 if kept is None else seqnos[kept])


def test_a_rollup_is_not_dropped_before_two_later_ones_were_read_back() -> None:
    shard = Shard()
    shard.apply(1)
    seqnos = rollups(shard, True, True, False)
    first, second, third = map(rollup_key, seqnos)
    with pytest.raises(UsageError):
        shard.do(RetireRollups((first,), (second, third)))
    assert shard.do(RetireRollups((first,), (second, third), verified=(third,))) is True
    assert plan(shard).truncate_before == seqnos[1]


def test_nothing_is_dropped_if_another_rollup_came_meanwhile() -> None:
    shard = Shard()
    shard.apply(1)
    first, second, third = map(rollup_key, rollups(shard, True, True, True))
    rolled_up(shard)
    assert shard.do(RetireRollups((first,), (second, third))) is False
    assert shard.dead() == []


def test_nothing_is_dropped_if_another_rollup_is_in_the_place_of_one_that_was_looked_at() -> None:
    shard = Shard()
    shard.apply(1)
    first, second, third = map(rollup_key, rollups(shard, True, True, True))
    assert shard.do(RetireRollups((first,), (second, f"{third}, another"))) is False
    assert shard.do(RetireRollups((f"{first}, another",), (second, third))) is False
    assert shard.dead() == []


def test_objects_of_dropped_rollups_wait_for_holds_and_the_delay_alone() -> None:
    shard = Shard()
    shard.apply(1)
    first, second, third = map(rollup_key, rollups(shard, True, True, True))
    objects = (Dead("w1/s1/rollup/1", 1, 0, 10), Dead("w1/s1/page/g1.page", 1, 0, 10))
    assert shard.do(RetireRollups((first,), (second, third), objects))
    assert plan(shard).waiting == {"delay": 2}
    marked(shard, NOW - DELAY)
    assert len(plan(shard).delete) == 2
    assert not plan(shard).roll_up


# --- receipts


def test_of_two_receipts_of_one_record_the_later_one_dies() -> None:
    shard = Shard()
    for upper in range(1, 8):
        shard.apply(upper)
    shard.do(KeepReceipts(((1, Receipt(5, "w1/s1/receipt/a", 1)),)))
    assert shard.do(KeepReceipts(((4, Receipt(7, "w2/s1/receipt/b", 1)),))) == 0
    assert shard.dead() == ["w2/s1/receipt/b"]
    # The same one again is no other: it lives.
    assert shard.do(KeepReceipts(((1, Receipt(5, "w1/s1/receipt/a", 1)),))) == 0
    assert shard.do(KeepReceipts(((6, Receipt(7, "w1/s1/receipt/c", 1)),))) == 1
    assert shard.dead() == ["w2/s1/receipt/b"]


def test_receipts_are_doubted_when_none_of_their_parts_is_there(shard: Shard) -> None:
    covered(shard)
    shard.apply(5, (4, part(key("four"), b"a", b"b")))
    covered(shard)
    shard.apply(6)
    covered(shard)
    shard.apply(7)
    covered(shard)
    firsts = [k[0] for k, _ in shard.state.receipts.range()]
    # The first names parts that are dead and there, the second one that lives, the last one stays.
    assert [first for first, _ in doubtful_receipts(shard.state)] == [firsts[2]]
    shard.do(Collect(tuple(k for k, _ in shard.state.dead.range())))
    # Still there is the part that replaced them, which was born in the first.
    assert [first for first, _ in doubtful_receipts(shard.state)] == [firsts[2]]
    merged(shard, "three", "four", into="five")
    shard.do(Collect(tuple(k for k, _ in shard.state.dead.range())))
    assert [first for first, _ in doubtful_receipts(shard.state)] == firsts[:3]


def test_a_record_that_took_one_of_several_references_away_names_the_part_that_stays() -> None:
    shard = Shard()
    shard.apply(2, (1, part(key("wide"), b"a", b"z")))
    shard.do(Split(1, b"", (b"m",)))
    leaf = shard.leaves()[0]
    inputs = [k for k, ref in shard.state.references.range() if ref.leaf == leaf.id]
    shard.do(replaces(inputs, Output(leaf.id, b"", part(key("left"), b"a", b"b"), time=1)))
    record = shard.last()
    assert named_parts(record) == {key("wide"), key("left")}
    assert parts_there(shard.state, named_parts(record))
    assert not parts_there(shard.state, {key("else")})


# --- finished shards


def test_a_finished_shard_ends_with_nothing_but_its_end(shard: Shard) -> None:
    shard.do(Finish())
    assert shard.do(Clear(tuple(k for k, _ in shard.state.references.range()))) == 1
    assert shard.references() == []
    rolled_up(shard)
    ripe(shard)
    found = plan(shard)
    assert sorted(deleted(found)) == ["one", "three", "two"]
    shard.do(Collect(tuple(k for k, _ in found.delete)))
    assert plan(shard).waiting == {}
    for _ in range(10):
        shard.do(Collect(mark=(shard.state.seqno, Mark(NOW))))
    assert plan(shard).roll_up, "its log is to become short"
    rolled_up(shard)
    assert not plan(shard).roll_up


def test_c5_an_unknown_object_and_a_shard_that_is_not_finished_change_nothing(
    shard: Shard,
) -> None:
    before = shard.state
    assert shard.do(Collect(((99, "w9/s9/part/never"),))) == 0
    with pytest.raises(UsageError):
        shard.do(Clear(tuple(k for k, _ in shard.state.references.range())))
    with pytest.raises(UsageError):
        shard.apply(9, (5, part(key("three"), b"a", b"b")))
    assert shard.state is before
    shard.apply(5, (4, part(key("four"), b"a", b"b")))


def test_a_plan_of_a_state_in_pages_is_the_same(shard: Shard) -> None:
    rolled_up(shard)
    ripe(shard)
    shard.do(Retain(2))
    stored = unloaded(shard.state)
    assert stored.run(lambda s: plan_vacuum(s, NOW, DELAY)) == plan(shard)


def test_what_decide_says_dies_is_never_what_lives(shard: Shard) -> None:
    leaf = shard.leaves()[0]
    alive = next(r.part for r in shard.references())
    stale: Any = Compact(((1, b"", 99),), (Output(leaf.id, b"", alive, time=1),))
    assert decide(shard.state, stale, Author("w2", first=True)).diffs == ()
