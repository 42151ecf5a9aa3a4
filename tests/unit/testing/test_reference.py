"""The reference model itself: small enough to be checked by eye, checked all the same."""

from __future__ import annotations

from collections import Counter

import pytest

from strandline.testing.reference import DatabaseModel, Deleted, Mismatch, Operation, Overwrite, Put


def both() -> DatabaseModel:
    reference = DatabaseModel(observed=False)
    reference.create("rows", "rows", 1)
    reference.create("keyed", "keyed", 1)
    return reference


def test_rows_are_a_multiset_and_keys_have_their_latest_row() -> None:
    reference = both()
    for table in ("rows", "keyed"):
        for time, rows in ((1, ((1, "a"), (1, "a"))), (2, ((1, "b"), (2, "c")))):
            reference.begin(f"{table}{time}", table, Put(rows))
            reference.acknowledged(f"{table}{time}", time)
    assert reference.read("rows") == Counter({(1, "a"): 2, (1, "b"): 1, (2, "c"): 1})
    assert reference.read("keyed") == Counter({(1, "b"): 1, (2, "c"): 1})
    assert reference.read("keyed", 1) == Counter({(1, "a"): 1})
    assert reference.read("rows", 0) == Counter()


def test_deletes_and_overwrites_take_what_was_there_at_their_time() -> None:
    reference = both()
    for table in ("rows", "keyed"):
        operations: list[Operation] = [
            Put(((1, "a"), (2, "b"), (3, "c"))),
            Deleted(keys=((2,),)),
            Deleted(where=lambda row: row[1] == "c"),
            Overwrite(((9, "z"),), where=lambda row: row[0] == 1),
        ]
        for time, operation in enumerate(operations, 1):
            reference.begin(f"{table}{time}", table, operation)
            reference.acknowledged(f"{table}{time}", time)
        states = [set(reference.read(table, time)) for time in range(1, 5)]
        assert states == [
            {(1, "a"), (2, "b"), (3, "c")},
            {(1, "a"), (3, "c")},
            {(1, "a")},
            {(9, "z")},
        ]


def observed() -> DatabaseModel:
    reference = DatabaseModel(observed=True)
    reference.create("t", "rows", 1)
    reference.begin("w", "t", Put(((1,),)))
    return reference


def test_outcomes_are_held_against_the_log() -> None:
    reference = observed()
    with pytest.raises(Mismatch, match="nobody asked"):
        reference.committed("x", 5)
    with pytest.raises(Mismatch, match="not in the log"):
        observed().acknowledged("w", 5)
    reference.committed("w", 5)
    with pytest.raises(Mismatch, match="twice"):
        reference.committed("w", 6)
    with pytest.raises(Mismatch, match="at 6, and in the log at 5"):
        reference.acknowledged("w", 6)
    with pytest.raises(Mismatch, match="was refused"):
        reference.refused("w")


def test_what_was_refused_may_not_turn_up_and_what_is_unknown_may() -> None:
    refused, unknown = observed(), observed()
    refused.refused("w")
    with pytest.raises(Mismatch, match="refused, and is in the log"):
        refused.committed("w", 5)
    unknown.unknown("w")
    assert unknown.read("t") == Counter()
    unknown.committed("w", 5)
    assert unknown.read("t") == Counter({(1,): 1})


def test_a_write_of_nothing_needs_no_record() -> None:
    reference = observed()
    reference.begin("d", "t", Deleted(keys=((7,),)))
    reference.acknowledged("d", 3)


def test_a_read_is_right_at_one_of_the_times_that_it_may_be_of() -> None:
    reference = both()
    for time in (1, 2):
        reference.begin(f"w{time}", "rows", Put(((time,),)))
        reference.acknowledged(f"w{time}", time)
    assert reference.check("rows", [(1,)], [0, 1, 2]) == 1
    assert reference.check("rows", [(2,)], [2], asked=lambda row: row[0] == 2) == 2
    with pytest.raises(Mismatch, match=r"missing 1 rows \(\(2,\) x 1\), too many 1 rows"):
        reference.check("rows", [(1,), (3,)], [2])
