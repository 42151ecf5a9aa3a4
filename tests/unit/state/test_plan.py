"""What is read for a question, what is merged, and what is left alone."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

import pytest

from strandline.state.commands import Output, Retain, Split
from strandline.state.model import EVERYTHING, L0, Entry, Interval, Part
from strandline.state.pages import PagesNeeded
from strandline.state.plan import (
    ReadTask,
    basic,
    full,
    leaf_at,
    leaf_bounds,
    plan_compaction,
    plan_descent,
    plan_read,
    plan_sinking,
    plan_small_merge,
    size_ratio,
    united,
)
from tests.support.states import Shard, batch, in_l0, part, replaces, unloaded, where


def entry(time: int, lower: bytes, upper: bytes) -> Entry:
    return Entry("t1", time, 0, "w1", batch(lower, upper))


def sources(task: ReadTask) -> list[str]:
    """The parts and the times of the entries."""
    parts = sorted(reference.part.key for reference in task.references)
    return [*parts, *sorted(f"@{entry.time}" for entry in task.entries)]


def planned(
    shard: Shard,
    *entries: Entry,
    intervals: list[Interval] | None = None,
    as_of: int = 99,
) -> list[tuple[list[Interval], list[str]]]:
    tasks = plan_read(shard.state, entries, intervals, as_of)
    return [(list(task.intervals), sources(task)) for task in tasks]


def two_leaves() -> Shard:
    """Leaves …m and m…; p1 and p2 in them, p3 across both in L0."""
    shard = Shard()
    shard.do(Split(1, b"", (b"m",)))
    shard.apply(4, (1, part("p1", b"a", b"c")), (2, part("p2", b"n", b"z")))
    shard.apply(9, (7, part("p3", b"k", b"q")))
    return shard


LEFT = Interval(b"", b"m")
RIGHT = Interval(b"m", None)


# --- reading


def test_an_empty_shard_has_nothing_to_read() -> None:
    assert planned(Shard()) == []


def test_sources_that_share_no_key_are_tasks_of_their_own_in_order_of_keys() -> None:
    shard = two_leaves()
    assert planned(shard) == [([LEFT], ["p1"]), ([LEFT], ["p3"]), ([RIGHT], ["p2", "p3"])]


def test_sources_that_meet_through_a_third_are_one_task() -> None:
    shard = Shard()
    for key, lower, upper in (("p1", b"a", b"c"), ("p2", b"e", b"g"), ("p3", b"c", b"e")):
        shard.apply((shard.state.meta.upper or 0) + 1)
        at = shard.state.meta.upper or 0
        shard.apply(at + 1, (at, part(key, lower, upper)))
    assert planned(shard) == [([EVERYTHING], ["p1", "p2", "p3"])]


def test_the_overlay_is_read_with_the_leaf_that_it_falls_in() -> None:
    shard = two_leaves()
    assert planned(shard, entry(10, b"b", b"b"), entry(11, b"l", b"n")) == [
        ([LEFT], ["p1", "@10"]),
        ([LEFT], ["p3", "@11"]),
        ([RIGHT], ["p2", "p3", "@11"]),
    ]


def test_only_what_meets_the_question_is_read() -> None:
    shard = two_leaves()
    assert planned(shard, intervals=[Interval(b"b", b"b\0")]) == [
        ([Interval(b"b", b"b\0")], ["p1"]),
    ]
    assert planned(shard, intervals=[Interval(b"d", b"e")]) == []
    assert planned(shard, entry(10, b"d", b"d"), intervals=[Interval(b"d", b"e")]) == [
        ([Interval(b"d", b"e")], ["@10"]),
    ]


def test_parts_that_cannot_hold_what_is_asked_for_are_left_out() -> None:
    shard = two_leaves()
    asked = [Interval(b"n", b"n\0")]
    parts = (part("p4", b"a", b"n"), part("p5", b"n", b"z"))
    written = replace(batch(b"a", b"z"), inline=b"", parts=parts, rows=sum(p.rows for p in parts))
    staged = replace(entry(10, b"a", b"z"), batch=written)
    inline = entry(11, b"n", b"n")
    assert inline.batch.inline

    def plan(*without: str) -> list[ReadTask]:
        return plan_read(
            shard.state, (staged, inline), asked, 99, may_hold=lambda p: p.key not in without
        )

    (whole,) = plan()
    assert sources(whole) == ["p2", "p3", "@10", "@11"]
    (task,) = plan("p2", "p4")
    assert sources(task) == ["p3", "@10", "@11"]
    assert [p.key for p in task.entries[0].batch.parts] == ["p5"]
    assert task.entries[0].batch.rows == parts[1].rows
    (task,) = plan("p3", "p4", "p5")
    assert sources(task) == ["p2", "@11"]


def test_a_question_across_leaves_is_cut_at_their_bounds() -> None:
    shard = two_leaves()
    assert planned(shard, intervals=[Interval(b"l", b"p")]) == [
        ([Interval(b"l", b"m")], ["p3"]),
        ([Interval(b"m", b"p")], ["p2", "p3"]),
    ]


def test_many_intervals_of_one_leaf_are_one_question_to_each_of_its_sources() -> None:
    shard = two_leaves()
    asked = [Interval(b"o", b"p"), Interval(b"a", b"b"), Interval(b"c", b"d"), Interval(b"b", b"b")]
    assert planned(shard, intervals=asked) == [
        ([Interval(b"a", b"b"), Interval(b"c", b"d")], ["p1"]),
        ([Interval(b"o", b"p")], ["p2", "p3"]),
    ]


def test_parts_that_are_younger_than_the_question_are_not_read() -> None:
    shard = two_leaves()
    assert planned(shard, as_of=6) == [([LEFT], ["p1"]), ([RIGHT], ["p2"])]
    assert planned(shard, as_of=0) == []


def test_a_part_with_old_and_young_rows_is_read() -> None:
    shard = Shard()
    mixed = replace(part("p1", b"a", b"c"), time_min=2, time_max=8)
    shard.apply(9, (8, mixed))
    assert planned(shard, as_of=2) == [([EVERYTHING], ["p1"])]
    assert planned(shard, as_of=1) == []


def test_a_leaf_reads_only_its_side_of_a_part_that_reaches_beyond_it() -> None:
    # CASES P8: a leaf [5, ∞) references a part with keys 2 and 7; a query gives 7 alone.
    shard = Shard()
    shard.apply(4, (1, part("p1", b"\x02", b"\x07")))
    shard.do(Split(1, b"", (b"\x05",)))
    lower_half = shard.references()[0]
    shard.do(replaces([shard.key_of(lower_half.id)]))
    (task,) = plan_read(shard.state, (), None, 9)
    (reference,) = task.references
    assert reference.interval == Interval(b"\x05", None)
    assert task.intervals == (Interval(b"\x05", None),)
    assert plan_read(shard.state, (), [Interval(b"\x02", b"\x03")], 9) == []


def test_a_lookup_loads_only_the_pages_on_its_way() -> None:
    shard = Shard()
    points = tuple(bytes([n]) for n in range(1, 64))
    shard.do(Split(1, b"", points))
    parts = [(1, part(f"p{n:02}", bytes([n]), bytes([n]))) for n in range(64)]
    shard.apply(4, *parts)
    cold = unloaded(shard.state, items_per_page=4)
    tasks = cold.run(lambda state: plan_read(state, (), [Interval(b"\x21", b"\x22")], 9))
    assert [sources(task) for task in tasks] == [["p33"]]
    assert len(cold.fetched) == 3, cold.fetched  # L0's page, one of leaves, one of references
    with pytest.raises(PagesNeeded):
        plan_read(cold.state, (), [Interval(b"\x30", b"\x31")], 9)


@pytest.mark.parametrize(
    ("given", "result"),
    [
        ([], []),
        ([(b"b", b"b")], []),
        ([(b"c", b"d"), (b"a", b"b")], [(b"a", b"b"), (b"c", b"d")]),
        ([(b"a", b"b"), (b"b", b"c")], [(b"a", b"c")]),
        ([(b"a", b"z"), (b"b", b"c")], [(b"a", b"z")]),
        ([(b"a", None), (b"b", b"c")], [(b"a", None)]),
        ([(b"a", b"c"), (b"b", None), (b"x", b"y")], [(b"a", None)]),
        ([(b"", None), (b"", None)], [(b"", None)]),
        ([(b"a", None), (b"a", b"b")], [(b"a", None)]),
    ],
)
def test_united_intervals_hold_the_same_keys_and_do_not_touch(
    given: list[tuple[bytes, bytes | None]], result: list[tuple[bytes, bytes | None]]
) -> None:
    assert united(Interval(*pair) for pair in given) == [Interval(*pair) for pair in result]


def test_every_key_has_its_leaf() -> None:
    shard = Shard()
    shard.do(Split(1, b"", (b"g", b"m")))
    bounds = leaf_bounds(shard.state)
    assert bounds == [b"g", b"m"]
    leaves = shard.leaves()
    for key in (b"", b"a", b"g", b"l\xff", b"m", b"z"):
        assert leaves[bisect_right(bounds, key)] == leaf_at(shard.state, key)
        assert leaf_at(shard.state, key).interval.contains(key)


# --- which parts to merge


def sized(*sizes: float) -> list[tuple[float, tuple[str]]]:
    return [(size, (f"{size:g}-{number}",)) for number, size in enumerate(sizes)]


def sizes_of(groups: list[list[tuple[str]]]) -> list[list[str]]:
    return [[key[0].partition("-")[0] for key in group] for group in groups]


def test_basic_merges_exactly_full_groups_smallest_first() -> None:
    # CASES P1
    assert basic(sized(1, 2), parts_max=5) == []
    groups = basic(sized(9, 8, 7, 6, 5, 4, 3, 2, 1, 10), parts_max=5)
    assert sizes_of(groups) == [["1", "2", "3", "4", "5"], ["6", "7", "8", "9", "10"]]
    assert sizes_of(basic(sized(3, 2, 1), parts_max=2)) == [["1", "2"]]


def test_size_ratio_merges_what_is_alike_in_size() -> None:
    # CASES P2
    assert sizes_of(size_ratio(sized(50, 50, 50, 50, 50, 50, 50, 100))) == [["50"] * 7 + ["100"]]
    assert size_ratio(sized(2, 4, 8, 16, 32, 64, 128, 256)) == []


def test_size_ratio_leaves_out_what_is_too_large() -> None:
    assert sizes_of(size_ratio(sized(1, 1, 1, 1, 1000))) == [["1"] * 4]
    assert size_ratio(sized()) == []
    assert size_ratio(sized(7)) == []


def test_size_ratio_cuts_what_is_too_long_and_drops_a_rest_of_one() -> None:
    assert [len(group) for group in size_ratio(sized(*[5] * 23), parts_max=11)] == [11, 11]
    assert [len(group) for group in size_ratio(sized(*[5] * 24), parts_max=11)] == [11, 11, 2]


def test_full_merges_everything_unless_it_is_one() -> None:
    assert sizes_of(full(sized(1, 900, 3))) == [["1", "900", "3"]]
    assert full(sized(4)) == []


# --- compaction


def ten_parts() -> Shard:
    shard = Shard()
    added = [(t, part(f"p{t}", b"a", b"m", size=100)) for t in range(1, 11)]
    shard.apply(11, *added)
    return shard


def test_a_job_says_what_it_merges_and_how_far_it_forwards() -> None:
    shard = ten_parts()
    shard.do(Retain(4))
    (job,) = plan_compaction(shard.state, "size-ratio")
    assert job.leaf == shard.leaves()[0]
    assert [key for key, _ in job.inputs] == [shard.key_of(n) for n in range(1, 11)]
    assert (job.since, job.markers_from, job.rows, job.size) == (4, 0, 10, 1000)


def test_jobs_of_one_plan_share_no_input() -> None:
    jobs = plan_compaction(ten_parts().state, "basic", parts_max=5)
    keys = [key for job in jobs for key, _ in job.inputs]
    assert len(jobs) == 2
    assert len(set(keys)) == len(keys) == 10


def test_a_leaf_with_one_part_needs_no_merge() -> None:
    shard = two_leaves()
    assert plan_compaction(shard.state, "full") == []


def wholes(shard: Shard) -> list[bool]:
    return [job.markers_from == 0 for job in plan_compaction(shard.state, "full")]


def test_markers_stay_while_something_outside_may_be_older() -> None:
    shard = Shard()
    shard.do(Split(1, b"", (b"m",)))
    shard.apply(5, (4, part("wide", b"k", b"q")))
    shard.apply(9, (5, part("p1", b"a", b"l")), (6, part("p2", b"a", b"c")))
    assert wholes(shard) == [False], "L0 has an older row between k and l"
    moved = next(iter(plan_descent(shard.state)))
    assert shard.do(moved) is True
    assert wholes(shard) == [True]


def test_what_is_younger_or_elsewhere_does_not_keep_markers() -> None:
    shard = Shard()
    shard.do(Split(1, b"", (b"m",)))
    shard.apply(3, (1, part("elsewhere", b"l", b"q")))
    shard.apply(9, (5, part("p1", b"a", b"k")), (6, part("p2", b"a", b"c")))
    shard.apply(12, (10, part("younger", b"b", b"z")))
    assert wholes(shard) == [True]


# --- history apart


def history_of(name: str, lower: bytes, upper: bytes, born: int) -> Part:
    return replace(part(name, lower, upper), has_end=True, time_min=born, time_max=born)


def with_history(*, since: int = 0) -> Shard:
    """A leaf with a current part, two parts of history that overlap, and three newer parts."""
    shard = Shard()
    shard.apply(31, *((n, part(f"p{n}", b"a", b"y")) for n in (10, 20, 30)))
    outputs = [
        Output(1, b"", part("current", b"a", b"y"), 10),
        Output(1, b"", history_of("h1", b"a", b"m", 3), 3, reads_before=5),
        Output(1, b"", history_of("h2", b"c", b"y", 4), 4, reads_before=11),
    ]
    shard.do(replaces([shard.key_of(1)], *outputs))
    shard.do(Retain(since))
    return shard


def merged(shard: Shard, strategy: str) -> list[list[str]]:
    jobs = plan_compaction(shard.state, strategy, parts_max=2)
    return [sorted(ref.part.key for _, ref in job.inputs) for job in jobs]


def test_history_is_merged_with_history_and_the_rest_with_the_rest() -> None:
    shard = with_history()
    assert merged(shard, "basic") == [["p20", "p30"], ["h1", "h2"]]
    assert merged(shard, "full") == [["current", "h1", "h2", "p20", "p30"]]
    rest, history = plan_compaction(shard.state, "basic", parts_max=2)
    assert (rest.split_at, history.split_at) == (30, 11), "of history alone, the greatest there is"
    (whole,) = plan_compaction(shard.state, "full")
    assert (whole.split_at, whole.markers_from) == (30, 0)


def test_nothing_is_split_beyond_what_is_applied() -> None:
    # CASES T11: whatever is committed by now, what is not applied comes at the upper or later.
    shard = with_history(since=4)
    for upper in (41, 99):
        shard.apply(upper, (upper - 1, part(f"p{upper}", b"a", b"b")))
        (job,) = plan_compaction(shard.state, "full")
        assert (job.since, job.split_at) == (4, upper - 1)


def test_history_outside_keeps_the_markers_that_it_does_not_know_of() -> None:
    shard = with_history()
    (job,) = plan_compaction(shard.state, "basic", parts_max=3)
    assert (job.split_at, job.markers_from) == (30, 11)
    elsewhere = next(key for key, ref in shard.state.references.range() if ref.part.key == "h2")
    shard.do(replaces([elsewhere]))
    (job,) = plan_compaction(shard.state, "basic", parts_max=3)
    assert job.markers_from == 5


def test_history_that_is_over_goes_alone() -> None:
    shard = with_history(since=5)
    over, *others = plan_compaction(shard.state, "full")
    assert [ref.part.key for _, ref in over.inputs] == ["h1"]
    assert over.is_over
    assert not any(job.is_over for job in others)
    assert merged(shard, "full") == [["h1"], ["current", "h2", "p20", "p30"]]


def test_one_clean_part_and_a_run_of_history_stay_as_they_are() -> None:
    shard = Shard()
    clean = replace(part("current", b"a", b"y"), distinct=True)
    shard.apply(9, (8, clean))
    outputs = [
        Output(1, b"", replace(clean, key="c"), 8),
        Output(1, b"", history_of("h1", b"a", b"m", 3), 3, reads_before=5),
        Output(1, b"", history_of("h2", b"n", b"y", 3), 3, reads_before=5),
    ]
    shard.do(replaces([shard.key_of(1)], *outputs))
    for keyed in (True, False):
        assert plan_compaction(shard.state, "full", keyed=keyed) == []
    shard.apply(10, (9, part("p2", b"a", b"b")))
    assert len(plan_compaction(shard.state, "full")) == 1


def test_a_part_alone_is_merged_if_it_has_versions_or_retractions() -> None:
    for has_diff, distinct, keyed, wanted in [
        (True, False, False, 1),
        (True, False, True, 1),
        (False, False, True, 1),
        (False, False, False, 0),
        (False, True, True, 0),
    ]:
        shard = Shard()
        only = replace(part("p1", b"a", b"y"), has_diff=has_diff, distinct=distinct)
        shard.apply(9, (8, only))
        assert len(plan_compaction(shard.state, "full", keyed=keyed)) == wanted


def test_small_merges_leave_history_alone() -> None:
    job = plan_small_merge(with_history().state, b"", parts_min=3, size_max=999, rows_max=99)
    assert job is not None
    assert not any(ref.part.has_end for _, ref in job.inputs)
    assert (
        plan_small_merge(with_history().state, b"", parts_min=4, size_max=999, rows_max=99) is None
    )


def test_reads_at_the_split_or_later_leave_history_out_and_raw_ones_do_not() -> None:
    shard = with_history()
    assert planned(shard, as_of=4) == [([EVERYTHING], ["h1", "h2"])]
    assert planned(shard, as_of=5) == [([EVERYTHING], ["h2"])]
    assert planned(shard, as_of=10) == [([EVERYTHING], ["current", "h2"])]
    assert planned(shard, as_of=11) == [([EVERYTHING], ["current"])]
    (task,) = plan_read(shard.state, (), None, 11, raw=True)
    assert sources(task) == ["current", "h1", "h2"]


def test_a_part_in_several_leaves_counts_with_its_share_of_bytes() -> None:
    shard = Shard()
    shard.apply(5, (1, part("big", b"a", b"z", size=400)), (2, part("p1", b"a", b"c", size=100)))
    assert plan_compaction(shard.state, "size-ratio") == []
    shard.do(Split(1, b"", (b"g", b"m", b"s")))
    (job,) = plan_compaction(shard.state, "full")
    assert job.size == 500
    shard.apply(8, (6, part("p2", b"a", b"c", size=100)), (7, part("p3", b"b", b"c", size=100)))
    (job,) = plan_compaction(shard.state, "size-ratio")
    assert len(job.inputs) == 4, "a quarter of 400 bytes is like 100"


# --- level zero


def test_descent_moves_all_of_l0_without_rewriting() -> None:
    shard = two_leaves()
    before = plan_read(shard.state, (), None, 99)
    (command,) = plan_descent(shard.state)
    assert shard.do(command) is True
    left, right = shard.leaves()
    assert in_l0(shard.references()) == []
    assert where(shard.references()) >= {
        ("p3", left.id, left.interval),
        ("p3", right.id, right.interval),
    }
    assert shard.dead() == []
    after = plan_read(shard.state, (), None, 99)
    assert [sources(task) for task in after] == [sources(task) for task in before]
    assert list(plan_descent(shard.state)) == []


def test_descent_leaves_out_leaves_that_the_part_has_no_place_in() -> None:
    shard = Shard()
    shard.do(Split(1, b"", (b"g", b"m", b"s")))
    shard.apply(4, (1, part("p1", b"h", b"n")))
    for command in plan_descent(shard.state):
        shard.do(command)
    assert [ref.interval for ref in shard.references()] == [
        Interval(b"g", b"m"),
        Interval(b"m", b"s"),
    ]


def test_descent_of_very_many_is_several_commands_that_all_apply() -> None:
    shard = Shard()
    shard.do(Split(1, b"", tuple(bytes([n]) for n in range(10, 40, 10))))
    shard.apply(2, *[(1, part(f"p{n}", b"\x05", b"\x25")) for n in range(9)])
    commands = list(plan_descent(shard.state, outputs_max=12))
    assert len(commands) == 3
    assert [shard.do(command) for command in commands] == [True] * 3
    assert in_l0(shard.references()) == []
    assert len(shard.references()) == 9 * 4


def with_l0(*sizes: int) -> Shard:
    shard = Shard()
    shard.do(Split(1, b"", (b"m",)))
    shard.apply(2, *[(1, part(f"p{n}", b"a", b"z", size=size)) for n, size in enumerate(sizes)])
    return shard


def test_small_parts_of_l0_are_merged_when_there_are_enough() -> None:
    def plan(*sizes: int) -> list[int] | None:
        job = plan_small_merge(with_l0(*sizes).state, None, parts_min=4, size_max=50, rows_max=99)
        return None if job is None else [reference.part.size for _, reference in job.inputs]

    assert plan(10, 10, 10) is None
    assert plan(10, 10, 10, 10) == [10] * 4
    assert plan(10, 10, 10, 900, 900, 900) is None
    assert plan(10, 10, 10, 10, 900) == [10] * 4
    assert plan(*[10] * 30) == [10] * 16


def test_a_small_merge_is_a_bite_of_the_smallest() -> None:
    job = plan_small_merge(
        with_l0(*[40] * 9, 3, 2).state, None, parts_min=4, size_max=50, rows_max=99
    )
    assert job is not None
    assert sorted(reference.part.size for _, reference in job.inputs) == [2, 3, 40, 40, 40, 40]


def test_what_counts_as_small_is_the_share_of_a_part_that_a_leaf_has() -> None:
    shard = with_l0(80, 80, 80, 80)
    for command in plan_descent(shard.state):
        shard.do(command)
    assert plan_small_merge(shard.state, b"m", parts_min=4, size_max=39, rows_max=99) is None
    job = plan_small_merge(shard.state, b"m", parts_min=4, size_max=40, rows_max=99)
    assert job is not None
    assert len(job.inputs) == 4


# --- what sinks


def sinking(shard: Shard, leaf_bytes_min: int, length_max: int, **more: int) -> list[str]:
    """The parts that go down now."""
    command = plan_sinking(
        shard.state, leaf_bytes_min=leaf_bytes_min, length_max=length_max, **more
    )
    before = in_l0(shard.references())
    if command is None:
        return []
    assert shard.do(command) is True
    return [key for key in before if key not in in_l0(shard.references())]


def test_what_is_large_for_each_of_its_leaves_sinks_at_once() -> None:
    shard = with_l0(99, 100, 20, 300)
    assert sinking(shard, 50, 10) == ["p1", "p3"]
    assert sinking(shard, 50, 10) == []
    assert in_l0(shard.references()) == ["p0", "p2"]


def test_only_leaves_that_a_part_touches_count() -> None:
    shard = Shard()
    shard.do(Split(1, b"", tuple(bytes([n]) for n in range(10, 100, 10))))
    shard.apply(2, (1, part("p0", b"\x05", b"\x0f", size=100)))
    shard.apply(3, (2, part("p1", b"\x05", b"\x14", size=100)))
    shard.apply(4, (3, part("p2", b"\x0a", b"\x1e", size=150)))
    assert sinking(shard, 50, 10) == ["p0", "p2"]


def test_when_l0_is_too_long_the_oldest_sink_however_small() -> None:
    shard = with_l0(1, 1, 1, 1, 1, 1)
    assert sinking(shard, 50, 4) == ["p0", "p1"]
    assert sinking(shard, 50, 4) == []
    assert sinking(shard, 50, 0) == ["p2", "p3", "p4", "p5"]
    assert in_l0(shard.references()) == []


def test_one_record_takes_no_more_down_than_its_bound() -> None:
    shard = with_l0(*[100] * 5)
    assert sinking(shard, 1, 99, outputs_max=3) == ["p0", "p1"]
    assert sinking(shard, 1, 99, outputs_max=4) == ["p2", "p3"]


def test_sinking_shows_the_same_rows() -> None:
    shard = two_leaves()
    before = [sources(task) for task in plan_read(shard.state, (), None, 99)]
    assert sinking(shard, 0, 99) == ["p3"]
    assert [sources(task) for task in plan_read(shard.state, (), None, 99)] == before


def test_small_parts_of_a_leaf_are_merged_within_it() -> None:
    shard = Shard()
    shard.apply(2, *[(1, part(f"p{n}", b"a", b"c", size=10)) for n in range(4)])
    job = plan_small_merge(shard.state, b"", parts_min=4, size_max=50, rows_max=99)
    assert job is not None
    assert job.leaf is not None
    assert job.leaf.interval.lower == b""
    assert len(job.inputs) == 4
    assert plan_small_merge(shard.state, None, parts_min=1, size_max=50, rows_max=99) is None
    assert plan_small_merge(shard.state, b"nowhere", parts_min=1, size_max=50, rows_max=99) is None


def test_a_small_merge_never_claims_to_be_whole() -> None:
    job = plan_small_merge(with_l0(1, 1, 1).state, None, parts_min=3, size_max=50, rows_max=99)
    assert job is not None
    assert (job.leaf, job.since, job.split_at, job.markers_from) == (None, -1, None, None)


def test_the_result_of_a_small_merge_takes_its_inputs_place_in_l0() -> None:
    shard = with_l0(1, 1, 1)
    job = plan_small_merge(shard.state, None, parts_min=3, size_max=50, rows_max=99)
    assert job is not None
    merged = Output(L0, b"", Part("p9", 2, 2, b"a", b"z"), 1)
    assert shard.do(replaces([key for key, _ in job.inputs], merged)) is True
    assert in_l0(shard.references()) == ["p9"]


def test_parts_that_are_as_long_as_parts_get_are_not_small_however_few_bytes_they_have() -> None:
    # Merging them gave as many of them again, for ever.
    shard = Shard()
    added = [(1, part(f"p{n}", b"a", b"m", size=10, rows=20)) for n in range(4)]
    shard.apply(2, *added, (1, part("p9", b"a", b"m", size=10, rows=19)))
    assert plan_small_merge(shard.state, b"", parts_min=3, size_max=50, rows_max=20) is None
    job = plan_small_merge(shard.state, b"", parts_min=3, size_max=50, rows_max=21)
    assert job is not None
    assert len(job.inputs) == 5
