"""The transitions of a txns shard: what each changes, what it refuses, and in which order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.errors import (
    TransactionConflict,
    UnknownTable,
    UsageError,
)
from strandline.state.commands import (
    Commit,
    CommitGroup,
    CommitResult,
    ForgetTables,
    Read,
    TableChange,
    Tidy,
    Write,
)
from strandline.state.model import (
    Interval,
    Tidied,
    TokenWindow,
)
from strandline.state.tables import current_table
from strandline.state.tokens import TOKEN_WINDOW
from tests.support.states import Shard, batch, creates, database, drop, table, write

# --- time


def test_a_commit_is_at_the_greatest_of_clock_upper_and_least_time() -> None:
    shard = database("orders")
    assert shard.commit(write("t1"), clock=7) == CommitResult(7)
    assert shard.commit(write("t1"), clock=3) == CommitResult(8)
    assert shard.commit(write("t1"), clock=8, at_least=20) == CommitResult(20)
    assert shard.state.meta.upper == 21


def test_a_commit_of_nothing_moves_time() -> None:
    shard = database("orders")
    assert shard.commit(clock=9) == CommitResult(9)
    assert shard.state.meta.upper == 10


def test_the_writes_of_one_commit_share_its_time_and_keep_their_order() -> None:
    shard = database("a", "b")
    shard.commit(write("t2"), write("t1"), write("t2"), clock=5)
    found = [(entry.table, entry.time, entry.ordinal) for entry in shard.entries()]
    assert found == [("t1", 5, 1), ("t2", 5, 0), ("t2", 5, 2)]
    assert {entry.session for entry in shard.entries()} == {"w1"}


def test_a_finished_database_takes_no_commits() -> None:
    shard = database("orders")
    shard.finish()
    with pytest.raises(UsageError, match="finished"):
        shard.commit(write("t1"), clock=5)


# --- tokens


def test_a_token_that_was_committed_returns_its_first_time_and_writes_nothing() -> None:
    shard = database("orders")
    assert shard.commit(write("t1"), clock=5, token=("loader", 1)) == CommitResult(5)
    shard.commit(write("t1"), clock=9)
    seqno = shard.state.seqno
    again = shard.commit(write("t1"), clock=30, token=("loader", 1))
    assert again == CommitResult(5, repeated=True)
    assert shard.state.seqno == seqno
    assert len(shard.entries()) == 2


def test_a_token_may_skip_numbers_and_a_skipped_number_is_refused() -> None:
    shard = database("orders")
    shard.commit(write("t1"), clock=5, token=("loader", 1))
    shard.commit(write("t1"), clock=6, token=("loader", 10))
    with pytest.raises(UsageError, match=r"\('loader', 7\) was passed"):
        shard.commit(write("t1"), clock=7, token=("loader", 7))


def test_a_token_that_left_the_window_is_neither_success_nor_new() -> None:
    shard = database("orders")
    for number in range(TOKEN_WINDOW + 1):
        shard.commit(write("t1"), token=("loader", number))
    oldest_kept = shard.commit(write("t1"), token=("loader", 1))
    assert oldest_kept.repeated
    with pytest.raises(UsageError, match="keeps the results of its last 64"):
        shard.commit(write("t1"), token=("loader", 0))
    window = shard.state.tokens.get(("loader",))
    assert isinstance(window, TokenWindow)
    assert [number for number, _ in window.results] == list(range(1, TOKEN_WINDOW + 1))


def test_scopes_of_tokens_know_nothing_of_each_other() -> None:
    shard = database("orders")
    shard.commit(write("t1"), clock=5, token=("a", 5))
    assert not shard.commit(write("t1"), clock=6, token=("b", 1)).repeated
    assert len(shard.entries()) == 2


def test_a_refused_commit_uses_no_token() -> None:
    shard = database("orders")
    with pytest.raises(UnknownTable):
        shard.commit(write("t9"), clock=5, token=("loader", 1))
    assert not shard.commit(write("t1"), clock=5, token=("loader", 1)).repeated


# --- writes computed from a read


def test_a_write_computed_from_a_read_is_refused_when_the_table_changed_since() -> None:
    shard = database("orders", "parts")
    shard.commit(write("t1"), clock=5)
    shard.commit(write("t2"), clock=6)
    with pytest.raises(TransactionConflict, match="'orders' was changed"):
        shard.commit(write("t1"), clock=7, reads=(Read("t1", 5),))
    assert shard.commit(write("t1"), clock=7, reads=(Read("t1", 6),)) == CommitResult(7)


def test_a_change_that_was_tidied_is_still_a_change() -> None:
    shard = database("orders")
    shard.commit(write("t1"), clock=5)
    shard.commit(write("t1"), clock=6)
    assert shard.do(Tidy((("t1", 5, 0), ("t1", 6, 0)))) == 2
    with pytest.raises(TransactionConflict):
        shard.commit(write("t1"), clock=7, reads=(Read("t1", 6),))
    assert shard.commit(write("t1"), clock=7, reads=(Read("t1", 7),)) == CommitResult(7)


def test_a_read_is_a_condition_and_no_change() -> None:
    shard = database("orders", "parts")
    shard.commit(write("t1"), clock=5)
    reads = (Read("t1", 6),)
    assert shard.commit(write("t2"), reads=reads, clock=6) == CommitResult(6)
    assert [entry.table for entry in shard.entries()] == ["t1", "t2"]
    assert shard.commit(write("t2"), reads=reads, clock=7) == CommitResult(7), "no change"
    shard.commit(write("t1"), clock=8)
    with pytest.raises(TransactionConflict):
        shard.commit(write("t2"), reads=reads, clock=9)


def test_only_writes_of_keys_that_were_read_conflict() -> None:
    shard = database("orders")
    shard.commit(Write("t1", batch(b"d", b"f")), clock=5)

    def reads(*intervals: Interval) -> tuple[Read, ...]:
        return (Read("t1", 5, intervals),)

    apart = reads(Interval(b"a", b"d"), Interval(b"f\0", None))
    assert shard.commit(write("t1"), clock=6, reads=apart) == CommitResult(6)
    for near in (Interval(b"a", b"d\0"), Interval(b"f", None), Interval(b"e", b"e\0")):
        with pytest.raises(TransactionConflict):
            shard.commit(write("t1"), clock=7, reads=reads(near))


def test_commits_of_a_group_have_times_and_outcomes_of_their_own() -> None:
    """CASES T13: each is checked against those before it in the list."""
    shard = database("orders", "parts")
    clock = 9
    left = Commit(clock, (write("t1"),), reads=(Read("t2", clock),), token=("s", 1))
    right = Commit(clock, (write("t2"),), reads=(Read("t1", clock),))
    blind = Commit(clock, (write("t1"),))
    again = Commit(clock, (write("t1"),), token=("s", 1))
    lost = Commit(clock, (write("t9"),))
    outcomes = shard.do(CommitGroup((left, right, blind, again, lost)))
    assert outcomes[0] == CommitResult(9)
    assert isinstance(outcomes[1], TransactionConflict)
    assert outcomes[2] == CommitResult(10)
    assert outcomes[3] == CommitResult(9, repeated=True)
    assert isinstance(outcomes[4], UnknownTable)
    assert [(entry.table, entry.time) for entry in shard.entries()] == [("t1", 9), ("t1", 10)]
    assert shard.state.meta.upper == 11


def test_a_group_of_refused_commits_writes_nothing() -> None:
    shard = database("orders")
    before = shard.state
    (outcome,) = shard.do(CommitGroup((Commit(9, (write("t9"),)),)))
    assert isinstance(outcome, UnknownTable)
    assert shard.state is before


def test_a_group_tidies_along_the_way() -> None:
    shard = database("orders")
    shard.commit(write("t1"), clock=5)
    shard.do(CommitGroup((Commit(6, (write("t1"),)),), tidies=(("t1", 5, 0),)))
    assert [entry.time for entry in shard.entries()] == [6]


def test_one_stale_read_refuses_the_commit() -> None:
    shard = database("orders", "parts")
    shard.commit(write("t1"), clock=5)
    before = shard.state
    with pytest.raises(TransactionConflict):
        shard.commit(write("t2"), write("t1"), clock=7, reads=(Read("t1", 4),))
    assert shard.state is before


# --- tables


def rename(shard: Shard, table_id: str, name: str) -> TableChange:
    now = current_table(shard.state, table_id)
    assert now is not None
    return TableChange(replace(now, name=name), expected_version=now.version)


def test_a_table_begins_at_its_commit_with_version_one() -> None:
    shard = database()
    shard.commit(changes=(creates("t1", "orders"),), clock=5)
    found = shard.state.tables.get(("t1", 1))
    assert found == replace(table("t1", "orders"), version=1, valid_from=5, created=5)


def test_ddl_ends_one_version_and_begins_the_next() -> None:
    shard = database()
    shard.commit(changes=(creates("t1", "orders"),), clock=5)
    shard.commit(changes=(rename(shard, "t1", "sales"),), clock=8)
    versions = [version for _, version in shard.state.tables.range()]
    found = [(v.version, v.name, v.valid_from, v.valid_until, v.created) for v in versions]
    assert found == [(1, "orders", 5, 8, 5), (2, "sales", 8, None, 5)]


def test_a_dropped_name_is_free_and_its_id_is_never_taken_up_again() -> None:
    shard = database()
    shard.commit(changes=(creates("t1", "orders"),), clock=5)
    shard.commit(changes=(drop(shard, "t1"),), clock=6)
    shard.commit(changes=(creates("t2", "orders"),), clock=7)
    assert current_table(shard.state, "t1") is None
    assert current_table(shard.state, "t2") is not None
    with pytest.raises(UnknownTable, match="'orders' was dropped"):
        shard.commit(write("t1"), clock=8)
    with pytest.raises(UsageError, match="t1 exists already"):
        shard.commit(changes=(creates("t1", "fresh"),), clock=9)


def test_a_table_is_dropped_and_made_again_in_one_commit() -> None:
    shard = database()
    shard.commit(changes=(creates("t1", "orders"),), clock=5)
    shard.commit(write("t2"), changes=(drop(shard, "t1"), creates("t2", "orders")), clock=6)
    assert current_table(shard.state, "t1") is None
    assert [entry.table for entry in shard.entries()] == ["t2"]


def test_names_that_differ_only_in_case_are_one_name() -> None:
    shard = database("Straße")
    with pytest.raises(UsageError, match="there is a table 'Straße' already"):
        shard.commit(changes=(creates("t2", "STRASSE"),), clock=5)
    shard.commit(changes=(rename(shard, "t1", "strasse"),), clock=5)
    with pytest.raises(UsageError, match="there is a table"):
        shard.commit(changes=(creates("t2", "x"), creates("t3", "X")), clock=6)


def test_two_tables_may_swap_names_in_one_commit() -> None:
    shard = database("a", "b")
    shard.commit(changes=(rename(shard, "t1", "b"), rename(shard, "t2", "a")), clock=5)
    now = {t: current_table(shard.state, t) for t in ("t1", "t2")}
    assert {t: v.name for t, v in now.items() if v} == {"t1": "b", "t2": "a"}


def test_ddl_on_a_version_that_was_altered_is_a_conflict() -> None:
    shard = database("orders")
    late = rename(shard, "t1", "late")
    shard.commit(changes=(rename(shard, "t1", "early"),), clock=5)
    with pytest.raises(TransactionConflict, match="'early' was altered"):
        shard.commit(changes=(late,), clock=6)


def test_ddl_on_a_dropped_table_is_refused() -> None:
    shard = database("orders")
    late = rename(shard, "t1", "late")
    shard.commit(changes=(drop(shard, "t1"),), clock=5)
    with pytest.raises(UnknownTable, match="was dropped"):
        shard.commit(changes=(late,), clock=6)


def test_a_commit_changes_each_table_once() -> None:
    shard = database("orders")
    with pytest.raises(UsageError, match="twice"):
        shard.commit(changes=(rename(shard, "t1", "x"), rename(shard, "t1", "y")), clock=5)


def test_a_commit_does_not_write_to_a_table_that_it_drops() -> None:
    shard = database("orders")
    with pytest.raises(UnknownTable):
        shard.commit(write("t1"), changes=(drop(shard, "t1"),), clock=5)


# --- tidy


def test_tidy_retracts_each_entry_once_and_remembers_how_far_it_came() -> None:
    shard = database("a", "b")
    for clock in (5, 6, 7):
        shard.commit(write("t1"), write("t2"), clock=clock)
    assert shard.do(Tidy((("t1", 5, 0), ("t1", 6, 0), ("t1", 5, 0)))) == 2
    assert shard.do(Tidy((("t1", 5, 0), ("t2", 5, 1)))) == 1
    assert [entry.time for entry in shard.entries() if entry.table == "t1"] == [7]
    assert shard.state.tidied.get(("t1",)) == Tidied(6)
    assert shard.state.tidied.get(("t2",)) == Tidied(5)


def test_a_late_tidy_of_older_entries_does_not_take_progress_back() -> None:
    shard = database("a")
    shard.commit(write("t1"), clock=5)
    shard.commit(write("t1"), clock=6)
    shard.do(Tidy((("t1", 6, 0),)))
    shard.do(Tidy((("t1", 5, 0),)))
    assert shard.state.tidied.get(("t1",)) == Tidied(6)


def test_a_commit_tidies_along_the_way() -> None:
    shard = database("a")
    shard.commit(write("t1"), clock=5)
    shard.commit(write("t1"), clock=6, tidies=(("t1", 5, 0), ("t1", 4, 0)))
    assert [entry.time for entry in shard.entries()] == [6]


def test_only_versions_of_tables_that_ended_are_forgotten() -> None:
    shard = Shard()
    shard.commit(changes=(creates("t1", "orders"),))
    shard.commit(write("t1"))
    with pytest.raises(UsageError, match="still holds"):
        shard.do(ForgetTables((("t1", 1),)))
    ended = replace(table("t1", "orders"), version=1)
    drop = replace(creates("t1", "orders"), after=ended, expected_version=1, dropped=True)
    shard.commit(changes=(drop,))
    with pytest.raises(UsageError, match="not applied"):
        shard.do(ForgetTables((("t1", 1),)))
    shard.commit(tidies=tuple(key for key, _ in shard.state.entries.range()))
    assert shard.do(ForgetTables((("t1", 1), ("t9", 1)))) == 1
    assert not list(shard.state.tables.range())
    assert not list(shard.state.tidied.range())
