"""What holds of every command: the order of the checks, and when a record is written."""

from __future__ import annotations

import pytest

from strandline.errors import (
    Fenced,
    UnknownTable,
    UsageError,
)
from strandline.state.commands import (
    AdvanceUpper,
    Apply,
    Commit,
    CommitResult,
    Compact,
    Read,
    Split,
    Tidy,
)
from strandline.state.decide import Author, decide
from tests.support.states import creates, database, drop, write


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


def test_a_command_that_changes_nothing_counts_nothing() -> None:
    shard = database()
    shard.do(AdvanceUpper(5))
    seqno = shard.state.seqno
    assert shard.do(AdvanceUpper(5)) == 5
    assert shard.do(AdvanceUpper(3)) == 5
    assert shard.do(Tidy((("t1", 1, 0),))) == 0
    assert shard.state.seqno == seqno
