"""Where an import splits the keys."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from strandline.distributed.ranges import halving_points, leaves_wanted, ranges_wanted

TENS = [b"%d" % number for number in range(10, 90, 10)]


def test_an_import_that_wants_four_leaves_splits_in_the_middle_and_then_the_halves() -> None:
    assert halving_points(TENS, [], 4) == [b"50", b"30", b"70"]


def test_bounds_that_are_there_count() -> None:
    assert halving_points(TENS, [b"50"], 4) == [b"30", b"70"]
    assert halving_points(TENS, [b"50"], 2) == []
    assert halving_points(TENS, [b"30"], 3) == [b"60"]


def test_a_single_key_is_not_split() -> None:
    assert halving_points([b"a"] * 100, [], 8) == []
    assert halving_points([b"a"] * 99 + [b"b"], [], 8) == [b"b"]
    assert halving_points([], [], 8) == []


@given(
    st.lists(st.binary(min_size=1, max_size=2), max_size=60),
    st.sets(st.binary(min_size=1, max_size=2), max_size=5),
    st.integers(1, 40),
)
def test_points_split_what_they_fall_in(keys: list[bytes], bounds: set[bytes], wanted: int) -> None:
    sample = sorted(keys)
    points = halving_points(sample, sorted(bounds), wanted)
    assert len(set(points)) == len(points)
    assert not bounds & set(points)
    assert len(points) <= max(0, wanted - 1 - len(bounds))
    edges = [b"", *sorted({*points, *bounds}), None]
    for lower, upper in pairwise(edges):
        inside = [k for k in sample if lower is not None and lower <= k]
        inside = [k for k in inside if upper is None or k < upper]
        # Both sides of a point have keys, so no leaf is made for nothing.
        assert inside or not {lower, upper} & set(points)


def test_leaves_follow_from_rows_and_cores() -> None:
    assert leaves_wanted(100, 8_000_000, 8) == 1
    assert leaves_wanted(10_000_000, 8_000_000, 1) == 2
    assert leaves_wanted(10_000_000, 8_000_000, 8) == 8
    assert ranges_wanted(100, 1, 8) == 1
    assert ranges_wanted(100, 5, 8) == 5
    assert ranges_wanted(10_000_000, 4, 4) == 8
