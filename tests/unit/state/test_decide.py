"""Each transition of a shard's state: what it changes, what it refuses, and in which order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.errors import (
    Fenced,
    TransactionConflict,
    UnknownTable,
    UpperMismatch,
    UsageError,
)
from strandline.state.commands import (
    AdvanceUpper,
    Apply,
    CloseSession,
    Commit,
    CommitGroup,
    CommitResult,
    Compact,
    Expire,
    Heartbeat,
    Output,
    Read,
    Retain,
    Split,
    TableChange,
    Tidy,
    Write,
)
from strandline.state.decide import Author, decide
from strandline.state.model import (
    EVERYTHING,
    L0,
    Dead,
    Interval,
    Meta,
    PartUse,
    Session,
    Tidied,
    TokenWindow,
)
from strandline.state.tables import current_table
from strandline.state.tokens import TOKEN_WINDOW
from tests.support.states import Shard, batch, creates, in_l0, part, replaces, table, where, write


def database(*names: str) -> Shard:
    """A txns shard with tables t1, t2, …, created at times 0, 1, …"""
    shard = Shard()
    for number, name in enumerate(names, 1):
        shard.commit(changes=(creates(f"t{number}", name),))
    return shard


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


# --- the order of checks


def test_a_committed_token_is_success_whatever_has_happened_since() -> None:
    shard = database("orders")
    shard.commit(write("t1"), clock=5, token=("loader", 1))
    shard.commit(changes=(drop(shard, "t1"),))
    shard.finish()
    command = Commit(50, (write("t1"),), token=("loader", 1))
    fenced = decide(shard.state, command, Author("w9", first=False))
    assert fenced.result == CommitResult(5, repeated=True)
    assert fenced.diffs == ()


def test_a_finished_shard_is_told_before_a_fenced_session() -> None:
    shard = database("orders")
    shard.finish()
    with pytest.raises(UsageError, match="finished"):
        decide(shard.state, Commit(5, (write("t1"),)), Author("w9", first=False))


@pytest.mark.parametrize(
    "command",
    [
        Commit(5, (write("t9"),)),
        Commit(5, changes=(creates("t8", "ORDERS"),)),
        Apply(7, 8, ()),
        Compact((), ()),
        Split(1, b"", ()),
    ],
)
def test_a_fenced_session_is_told_so_before_anything_else_is_checked(command: Commit) -> None:
    shard = database("orders")
    with pytest.raises(Fenced, match="w9 was ended"):
        decide(shard.state, command, Author("w9", first=False))


def test_the_table_is_checked_before_what_a_write_was_computed_from() -> None:
    shard = database("orders")
    with pytest.raises(UnknownTable):
        shard.commit(write("t9"), clock=5, reads=(Read("t9", 0),))


# --- sessions


def test_the_first_record_registers_the_session_and_each_record_counts() -> None:
    shard = database()
    shard.do(AdvanceUpper(1), "w1")
    shard.do(AdvanceUpper(2), "w2")
    shard.do(AdvanceUpper(3), "w1")
    assert shard.state.sessions.get(("w1",)) == Session(count=2, opened=1)
    assert shard.state.sessions.get(("w2",)) == Session(count=1, opened=2)


def test_a_command_that_changes_nothing_counts_nothing() -> None:
    shard = database()
    shard.do(AdvanceUpper(5))
    seqno = shard.state.seqno
    assert shard.do(AdvanceUpper(5)) == 5
    assert shard.do(AdvanceUpper(3)) == 5
    assert shard.do(Tidy((("t1", 1, 0),))) == 0
    assert shard.state.seqno == seqno


def test_a_closed_session_is_gone_and_writes_nothing_more() -> None:
    shard = database("orders")
    assert shard.do(CloseSession()) is True
    assert shard.state.sessions.get(("w1",)) is None
    assert shard.do(CloseSession()) is True
    with pytest.raises(Fenced, match="open the database again"):
        shard.commit(write("t1"), clock=5)


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


def drop(shard: Shard, table_id: str) -> TableChange:
    now = current_table(shard.state, table_id)
    assert now is not None
    return TableChange(now, expected_version=now.version, dropped=True)


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
