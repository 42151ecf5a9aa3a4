"""The transitions of a data shard: which part holds which rows of which keys."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.errors import (
    Fenced,
    UpperMismatch,
    UsageError,
)
from strandline.state.commands import (
    AdvanceUpper,
    Append,
    AppendResult,
    Apply,
    Claim,
    Clear,
    CloseHold,
    Compact,
    Describe,
    Expire,
    Finish,
    Heartbeat,
    OpenHold,
    Output,
    Retain,
    Split,
)
from strandline.state.decide import Author, decide
from strandline.state.model import (
    EVERYTHING,
    L0,
    Dead,
    Interval,
    Meta,
    Part,
    PartUse,
)
from tests.support.states import (
    Shard,
    appends,
    in_l0,
    part,
    reader,
    replaces,
    shard_at,
    table,
    where,
)


def timed(key: str, first: int, last: int) -> Part:
    """A part with updates at times from `first` to `last` (included)."""
    return replace(part(key, b"a", b"m"), time_min=first, time_max=last)


def replicated(lower: int, upper: int | None, *parts: Part) -> Append:
    return Append(lower, upper, parts, replicated=True)


# --- appends


def test_an_append_elsewhere_than_at_the_upper_is_told_the_upper() -> None:
    """CASES S1, S2."""
    shard = Shard()
    with pytest.raises(UpperMismatch) as caught:
        shard.do(appends(1, 2))
    assert caught.value.upper == 0
    assert shard.do(appends(0, 5)) == AppendResult(5)
    with pytest.raises(UsageError, match="wrong way"):
        shard.do(appends(5, 4))
    with pytest.raises(UsageError, match="no room"):
        shard.do(appends(5, 5, timed("p1", 5, 5)))
    assert shard.do(appends(5, 5)) == AppendResult(5)
    with pytest.raises(UpperMismatch) as caught:
        shard.do(appends(0, 3), session="w2")
    assert caught.value.upper == 5
    assert shard.do(appends(5, 6, timed("p2", 5, 5)), session="w2") == AppendResult(6)


def test_an_append_says_at_which_times_its_updates_are() -> None:
    shard = Shard()
    for bad in (part("p1", b"a", b"b"), timed("p1", 0, 5), timed("p1", 7, 7)):
        with pytest.raises(UsageError, match="p1"):
            shard.do(appends(0, 5, bad))
    with pytest.raises(UsageError, match="cannot be appended at 3"):
        shard.do(Append(0, 5, expected_upper=3))


def test_replicated_writers_add_each_update_once() -> None:
    """CASES S3."""
    shard = Shard()
    shard.do(replicated(0, 3, timed("a1", 0, 2)))
    shard.do(replicated(0, 5, timed("b1", 0, 2), timed("b2", 1, 4)), session="w2")
    shard.do(replicated(3, 6, timed("a2", 3, 5)))
    found = {ref.part.key: (ref.rows_from, ref.time_min) for ref in shard.references()}
    assert found == {"a1": (None, 0), "b2": (3, 3), "a2": (5, 5)}
    assert shard.dead() == ["b1"]


def test_a_replicated_batch_that_is_there_already_is_garbage_and_no_error() -> None:
    shard = Shard()
    shard.do(replicated(0, 5, timed("a1", 0, 4)))
    assert shard.do(replicated(0, 5, timed("b1", 0, 4)), session="w2") == AppendResult(5)
    assert [ref.part.key for ref in shard.references()] == ["a1"]
    assert shard.dead() == ["b1"]


def test_replicated_writers_may_not_leave_a_gap() -> None:
    with pytest.raises(UpperMismatch, match="upper is 5, not 6"):
        shard_at(5).do(replicated(6, 8))


def test_a_token_gives_its_first_result_whatever_has_happened_since() -> None:
    """CASES S4."""
    shard = shard_at(3)
    assert shard.do(appends(3, 4, timed("p1", 3, 3), token=("t", 1))) == AppendResult(4)
    shard.do(appends(4, 5, timed("p2", 4, 4)), session="w2")
    records = len(shard.log)
    again = appends(3, 4, timed("p1", 3, 3), token=("t", 1))
    assert shard.do(again) == AppendResult(4, repeated=True)
    shard.do(appends(5, None, token=("t", 2)))
    gone = Author("w9", first=False)
    assert decide(shard.state, again, gone).result == AppendResult(4, repeated=True)
    ended = appends(5, None, token=("t", 2))
    assert decide(shard.state, ended, gone).result == AppendResult(None, repeated=True)
    assert len(shard.log) == records + 1


def test_nothing_is_appended_to_a_finished_shard() -> None:
    shard = shard_at(5)
    shard.do(appends(5, None))
    with pytest.raises(UsageError, match="finished"):
        shard.do(appends(5, 6))


def test_a_shard_is_fed_by_a_txns_shard_or_by_writers_of_its_own() -> None:
    direct, fed = Shard(), Shard()
    direct.do(appends(0, 5))
    with pytest.raises(UsageError, match="writers of its own"):
        direct.do(Apply(5, 6, ()))
    fed.do(Apply(0, 5, ()))
    with pytest.raises(UsageError, match="belongs to a table"):
        fed.do(appends(5, 6))
    with pytest.raises(UsageError, match="belongs to a table"):
        fed.do(AdvanceUpper(6))
    with pytest.raises(UsageError, match="belongs to a table"):
        fed.do(Describe(table("s1", "t")))


def test_objects_of_a_session_that_is_not_open_are_refused() -> None:
    shard = shard_at(5)
    foreign = timed("w2/s1/part/p1.parquet", 5, 5)
    with pytest.raises(Fenced, match="w2"):
        shard.do(appends(5, 6, foreign))
    shard.do(Heartbeat(), session="w2")
    assert shard.do(appends(5, 6, foreign)) == AppendResult(6)
    shard.do(Expire("w2", 1))
    with pytest.raises(Fenced, match="w2"):
        shard.do(appends(6, 7, timed("w2/s1/part/p2.parquet", 6, 6)))


def test_the_first_description_of_a_shard_holds() -> None:
    shard = Shard()
    first = shard.do(Describe(table("s1", "t")))
    assert shard.do(Describe(table("s1", "other")), session="w2") == first
    assert first.name == "t"


# --- apply


def test_a_part_goes_to_the_leaf_that_holds_all_of_it_or_else_to_l0() -> None:
    shard = Shard()
    shard.do(Split(1, b"", (b"m",)))
    shard.apply(
        5, (3, part("p1", b"a", b"c")), (4, part("p2", b"m", b"z")), (4, part("p3", b"a", b"m"))
    )
    left, right = shard.leaves()
    assert where(shard.references()) == {
        ("p1", left.id, left.interval),
        ("p2", right.id, right.interval),
        ("p3", L0, EVERYTHING),
    }
    assert {ref.part.key: ref.time for ref in shard.references()} == {"p1": 3, "p2": 4, "p3": 4}
    assert shard.state.parts.get(("p1",)) == PartUse(1, born=2)


def test_a_part_that_ends_before_a_split_point_is_left_of_it_and_one_that_has_it_right() -> None:
    shard = Shard()
    shard.do(Split(1, b"", (b"m", b"m\0")))
    shard.apply(5, (1, part("p1", b"a", b"l\xff")), (1, part("p2", b"m", b"m")))
    left, middle, _ = shard.leaves()
    assert {ref.leaf for ref in shard.references()} == {left.id, middle.id}


def test_apply_is_refused_when_another_was_first() -> None:
    shard = Shard()
    shard.apply(5)
    with pytest.raises(UpperMismatch, match="not 0") as raised:
        shard.do(Apply(0, 7, ()))
    assert raised.value.upper == 5


def test_apply_makes_progress_and_stays_within_its_times() -> None:
    shard = Shard()
    shard.apply(5)
    for upper in (5, 4):
        with pytest.raises(UsageError, match="no progress"):
            shard.do(Apply(5, upper, ()))
    for time in (4, 7):
        with pytest.raises(UsageError, match="outside of the times"):
            shard.do(Apply(5, 7, ((time, part("p1", b"a", b"c")),)))


def test_a_part_is_never_added_twice() -> None:
    shard = Shard()
    one = part("p1", b"a", b"c")
    shard.apply(5, (3, one))
    before = shard.state
    with pytest.raises(UsageError, match="p1 is in the shard already"):
        shard.do(Apply(5, 7, ((6, one),)))
    two = part("p2", b"a", b"c")
    with pytest.raises(UsageError, match="p2"):
        shard.do(Apply(5, 7, ((6, two), (6, two))))
    assert shard.state is before
    shard.apply(7, (6, two))


# --- compact


def with_parts(*parts: str) -> Shard:
    """Parts a…m at times 1, 2, … in the only leaf, upper just beyond."""
    shard = Shard()
    added = [(time, part(name, b"a", b"m")) for time, name in enumerate(parts, 1)]
    shard.apply(len(parts) + 1, *added)
    return shard


def output(name: str, time: int = 2, **more: object) -> Output:
    return replace(Output(1, b"", part(name, b"a", b"m"), time), **more)  # type: ignore[arg-type]


def test_a_compaction_replaces_its_inputs() -> None:
    shard = with_parts("p1", "p2", "p3")
    inputs = [shard.key_of(1), shard.key_of(2)]
    assert shard.do(replaces(inputs, output("p4"))) is True
    assert [(ref.id, ref.part.key) for ref in shard.references()] == [(3, "p3"), (4, "p4")]
    assert shard.dead() == ["p1", "p2"]
    assert shard.state.dead.get((2, "p1")) == Dead("p1", born=1, dead=2, size=100)
    assert shard.state.meta == Meta(upper=4, since=0, references=4, origin="txns")


def test_a_compaction_whose_input_is_gone_is_discarded_whole() -> None:
    shard = with_parts("p1", "p2", "p3")
    inputs = [shard.key_of(1), shard.key_of(2)]
    shard.do(replaces(inputs, output("p4")))
    data = where(shard.references())
    assert shard.do(replaces([shard.key_of(3), inputs[1]], output("p5"))) is False
    assert where(shard.references()) == data
    assert shard.dead() == ["p1", "p2", "p5"]


def test_a_compaction_into_a_leaf_that_was_split_is_discarded() -> None:
    shard = with_parts("p1", "p2")
    inputs = [shard.key_of(1), shard.key_of(2)]
    shard.do(Split(1, b"", (b"g",)))
    assert shard.do(replaces(inputs, output("p3"))) is False
    in_l0_now = replaces((), replace(output("p4"), leaf=1, leaf_lower=b"g"))
    assert shard.do(in_l0_now) is False
    assert shard.dead() == ["p3", "p4"]


def test_a_discarded_move_kills_no_part_that_lives_elsewhere() -> None:
    shard = with_parts("p1", "p2")
    gone = shard.key_of(1)
    shard.do(replaces([gone], output("p3")))
    moved = Output(1, b"", shard.references()[0].part, 2, moved=True)
    assert shard.do(replaces([gone], moved, output("p4"))) is False
    assert shard.dead() == ["p1", "p4"]


def test_a_discarded_output_that_is_in_use_stays_alive() -> None:
    shard = with_parts("p1", "p2")
    command = replaces([shard.key_of(1), shard.key_of(2)], output("p3"))
    assert shard.do(command) is True
    assert shard.do(command) is False
    assert shard.dead() == ["p1", "p2"]


def test_a_moved_part_keeps_its_object_and_its_birth() -> None:
    shard = Shard()
    shard.do(Split(1, b"", (b"g",)))
    shard.apply(5, (3, part("p1", b"a", b"m")))
    left, right = shard.leaves()
    (before,) = shard.references()
    moves = [
        Output(leaf.id, leaf.interval.lower, before.part, 3, moved=True) for leaf in (left, right)
    ]
    assert shard.do(replaces([shard.key_of(before.id)], *moves)) is True
    assert where(shard.references()) == {
        ("p1", left.id, left.interval),
        ("p1", right.id, right.interval),
    }
    assert shard.state.parts.get(("p1",)) == PartUse(2, born=2)
    assert shard.dead() == []


def test_a_part_of_two_references_dies_with_the_second() -> None:
    shard = with_parts("p1")
    shard.do(Split(1, b"", (b"g",)))
    left, right = shard.references()
    shard.do(replaces([shard.key_of(left.id)]))
    assert shard.dead() == []
    assert shard.state.parts.get(("p1",)) == PartUse(1, born=1)
    shard.do(replaces([shard.key_of(right.id)]))
    assert shard.dead() == ["p1"]


def test_since_is_below_upper_and_never_goes_back() -> None:
    shard = with_parts("p1", "p2")
    assert shard.do(Retain(1)) == 1
    assert shard.do(Retain(99)) == 2
    assert shard.do(Retain(1)) == 2
    assert shard.state.meta.since == 2


def test_a_compaction_names_each_input_once() -> None:
    shard = with_parts("p1", "p2")
    twice = shard.key_of(1)
    with pytest.raises(UsageError, match="twice"):
        shard.do(replaces([twice, twice], output("p3")))


def test_a_compaction_adds_no_part_of_a_session_that_is_not_open() -> None:
    """What an ended session wrote may be swept at any time, also while another enters it."""
    shard = with_parts("p1", "p2")
    inputs = [shard.key_of(1), shard.key_of(2)]
    before = where(shard.references())

    def merged(name: str) -> Compact:
        return replaces(inputs, output(f"w2/s1/part/{name}.parquet"))

    with pytest.raises(Fenced, match="w2"):  # one that this shard never heard of
        shard.do(merged("p3"))
    shard.do(Heartbeat(), session="w2")
    shard.do(Expire("w2", 1))
    with pytest.raises(Fenced, match="w2"):
        shard.do(merged("p3"))
    assert where(shard.references()) == before
    assert shard.dead() == []
    shard.do(Heartbeat(), session="w3")
    assert shard.do(replaces(inputs, output("w3/s1/part/p3.parquet"))) is True
    # Where only the reference moves nothing is entered: the part is needed, and nobody sweeps it.
    shard.do(Expire("w3", 1))
    moves = Output(1, b"", shard.references()[0].part, 2, moved=True)
    assert shard.do(replaces([shard.key_of(3)], moves)) is True


def test_a_compaction_cannot_add_a_part_that_the_shard_has() -> None:
    shard = with_parts("p1", "p2")
    known = shard.references()[1].part
    for moved in (False, True):
        with pytest.raises(UsageError, match="p2"):
            shard.do(replaces([shard.key_of(1)], Output(1, b"", known, 2, moved=moved)))


def test_an_output_lies_in_its_leaf_and_below_upper() -> None:
    shard = with_parts("p1", "p2")
    shard.do(Split(1, b"", (b"g",)))
    left = shard.leaves()[0]
    new = part("p3", b"a", b"c")
    key = shard.key_of(shard.references()[0].id)
    for bad in (
        Output(left.id, b"", new, 2, Interval(b"a", b"h")),
        Output(left.id, b"", part("p3", b"h", b"k"), 2),
        Output(left.id, b"", new, 3),
    ):
        with pytest.raises(UsageError, match="p3"):
            shard.do(replaces([key], bad))


# --- split


def test_a_split_clips_references_and_leaves_out_what_has_no_key_there() -> None:
    shard = Shard()
    shard.apply(4, (1, part("p1", b"a", b"f")), (2, part("p2", b"c", b"z")))
    assert shard.do(Split(1, b"", (b"g", b"s"))) is True
    first, second, third = shard.leaves()
    assert [leaf.interval for leaf in shard.leaves()] == [
        Interval(b"", b"g"),
        Interval(b"g", b"s"),
        Interval(b"s", None),
    ]
    assert {leaf.parent for leaf in shard.leaves()} == {1}
    assert where(shard.references()) == {
        ("p1", first.id, first.interval),
        ("p2", first.id, first.interval),
        ("p2", second.id, second.interval),
        ("p2", third.id, third.interval),
    }
    assert shard.state.parts.get(("p2",)) == PartUse(3, born=1)
    assert shard.dead() == []


def test_a_split_keeps_the_narrower_interval_of_a_reference() -> None:
    shard = Shard()
    shard.apply(4, (1, part("p1", b"a", b"z")))
    narrow = Output(1, b"", shard.references()[0].part, 1, Interval(b"c", b"k"), moved=True)
    shard.do(replaces([shard.key_of(1)], narrow))
    shard.do(Split(1, b"", (b"g", b"p")))
    assert {ref.interval for ref in shard.references()} == {
        Interval(b"c", b"g"),
        Interval(b"g", b"k"),
    }


def test_a_split_leaves_l0_and_the_other_leaves_alone() -> None:
    shard = Shard()
    shard.do(Split(1, b"", (b"m",)))
    shard.apply(4, (1, part("p1", b"a", b"z")), (2, part("p2", b"n", b"z")))
    right = shard.leaves()[1]
    shard.do(Split(2, b"", (b"g",)))
    assert in_l0(shard.references()) == ["p1"]
    assert ("p2", right.id, right.interval) in where(shard.references())


def test_leaf_ids_are_never_used_again() -> None:
    shard = Shard()
    shard.do(Split(1, b"", (b"m",)))
    shard.do(Split(2, b"", (b"g",)))
    shard.do(Split(5, b"g", (b"h",)))
    assert [leaf.id for leaf in shard.leaves()] == [4, 6, 7, 3]


def test_a_split_of_what_is_no_leaf_any_more_does_nothing() -> None:
    shard = Shard()
    shard.do(Split(1, b"", (b"m",)))
    before = shard.state
    assert shard.do(Split(1, b"", (b"g",))) is False
    assert shard.do(Split(3, b"q", (b"r",))) is False
    assert shard.state is before


@pytest.mark.parametrize("points", [(), (b"",), (b"g", b"g"), (b"h", b"g"), (b"m",), (b"z",)])
def test_split_points_ascend_strictly_inside_the_leaf(points: tuple[bytes, ...]) -> None:
    shard = Shard()
    shard.do(Split(1, b"", (b"m",)))
    with pytest.raises(UsageError, match="split"):
        shard.do(Split(2, b"", points))


# --- the claim


def test_a_claim_is_given_back_by_its_owner_only() -> None:
    shard = shard_at(9)
    shard.do(Claim())
    assert shard.do(Claim(release=True), session="w2") is False
    assert shard.do(Claim(), session="w2") is False
    shard.do(Claim(release=True))
    assert shard.do(Claim(), session="w2") is True


# --- the end of a shard


def test_a_finished_shard_lets_go_of_its_parts_and_refuses_everything() -> None:
    shard = Shard()
    shard.apply(5, (1, part("p1", b"a", b"c")), (2, part("p2", b"d", b"e")))
    shard.do(Retain(2))
    with pytest.raises(UsageError, match="finished"):
        shard.do(Clear(()))
    shard.do(OpenHold("tag", reader(3), leased=False))
    with pytest.raises(UsageError, match="tag"):
        shard.do(Finish())
    shard.do(CloseHold("tag", 1))
    assert shard.do(Finish()) is True
    records = len(shard.log)
    assert shard.do(Finish()) is True
    assert len(shard.log) == records
    keys = tuple(key for key, _ in shard.state.references.range())
    assert shard.do(Clear((*keys, keys[0]))) == 2
    assert shard.do(Clear(keys)) == 0
    assert shard.dead() == ["p1", "p2"]
    with pytest.raises(UpperMismatch):
        shard.do(Apply(5, 6, ()))
