"""Leaves are halved where a new row key begins, until they are small enough."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.upkeep.splitting import choose_points


def points(keys: list[str], rows_max: int) -> list[str]:
    return [p.decode() for p in choose_points([(k.encode(), 1) for k in keys], rows_max)]


def test_a_hundred_rows_are_halved_down_to_twelve_or_thirteen() -> None:
    rows = [f"{n:02}" for n in range(100)]
    assert points(rows, 20) == ["12", "25", "37", "50", "62", "75", "87"]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([f"{n:03}" for n in range(1_000)], ["500"]),
        ([f"A{n:03}" for n in range(1_000)], ["A500"]),
        ([f"constant{n:02}" for n in range(100)], ["constant50"]),
        (["one"] * 100, []),
        (["a"] * 99 + ["b"], ["b"]),
        (["a"] + ["b"] * 99, ["b"]),
        ([], []),
        (["a", "b"], []),
    ],
)
def test_the_median_is_where_a_row_key_begins(keys: list[str], expected: list[str]) -> None:
    assert points(keys, max(len(keys) - 1, 2)) == expected


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=2), st.integers(1, 9)), max_size=60),
    st.integers(1, 40),
)
def test_only_a_single_row_key_stays_too_large(
    weighed: list[tuple[bytes, int]], rows_max: int
) -> None:
    weighed.sort()
    chosen = choose_points(weighed, rows_max)
    assert chosen == sorted(set(chosen))
    bounds = [b"", *chosen, b"\xff" * 9]
    for lower, upper in pairwise(bounds):
        piece = [(key, rows) for key, rows in weighed if lower <= key < upper]
        assert piece or not chosen
        if sum(rows for _, rows in piece) > rows_max:
            assert len({key for key, _ in piece}) == 1
