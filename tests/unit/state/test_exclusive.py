"""Exclusive holders, and how sessions end: what `decide` makes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.errors import Fenced, Held, UnknownTable, UsageError
from strandline.state.commands import (
    Acknowledge,
    Attach,
    CloseSession,
    Commit,
    CommitGroup,
    CommitResult,
    Expire,
    ForgetTables,
    Heartbeat,
    OpenHold,
    Release,
    Swept,
    TableChange,
    Tidy,
    Write,
)
from strandline.state.model import Hold, Holder, Part, Session
from strandline.state.tables import current_table
from tests.support.states import Shard, batch, creates, part, write


def staged(session: str, name: str = "p1") -> Write:
    """A write of a part that the session staged."""
    key = f"{session}/t1/part/{name}.parquet"
    return Write("t1", replace(batch(), inline=b"", parts=(part(key, b"a", b"b"),)))


def carrying(session_epoch: int, *writes: Write, position: str | None = None) -> Commit:
    """A commit of the one that holds t1 with that epoch."""
    positions = () if position is None else (("t1", position),)
    return Commit(0, writes, epochs=(("t1", session_epoch),), positions=positions)


def drops(shard: Shard, table: str, **more: object) -> Commit:
    now = current_table(shard.state, table)
    assert now is not None
    return Commit(0, changes=(TableChange(now, now.version, dropped=True),), **more)  # type: ignore[arg-type]


@pytest.fixture
def shard() -> Shard:
    """Two tables, t1 and t2, which w0 made."""
    made = Shard()
    made.do(Commit(0, changes=(creates("t1", "orders"), creates("t2", "other"))), "w0")
    return made


def session_of(shard: Shard, name: str) -> Session:
    found = shard.state.sessions.get((name,))
    assert found is not None
    return found


def held_by(shard: Shard) -> Holder | None:
    return shard.state.holders.get(("t1",))


# --- holders


def test_a_table_is_held_by_whoever_attached_last(shard: Shard) -> None:
    assert shard.do(Attach("t1", "a"), "wa") == Holder(1, "wa", "a")
    assert shard.do(Attach("t1", "b"), "wb") == Holder(2, "wb", "b")
    assert shard.do(Attach("t1", "a"), "wc") == Holder(3, "wc", "a")
    assert session_of(shard, "wa").expired is not None
    assert session_of(shard, "wb").expired is not None
    assert session_of(shard, "wc") == Session(1, 4, worker="a")


def test_a_commit_of_the_replaced_holder_is_refused_and_names_the_new_one(shard: Shard) -> None:
    """CASES F1."""
    shard.do(Attach("t1", "a"), "wa")
    shard.do(carrying(1, staged("wa")), "wa")
    shard.do(Attach("t1", "b"), "wb")
    assert shard.do(carrying(2, write("t1")), "wb") == CommitResult(2)
    with pytest.raises(Fenced):  # its session is doomed
        shard.do(carrying(1, write("t1")), "wa")
    for late in (write("t1"), staged("wa", "p2")):
        with pytest.raises(Fenced, match=r"'orders' is no longer held .* worker 'b' has it"):
            shard.do(carrying(1, late), "wa2")  # under the session that follows
    assert session_of(shard, "wa").acknowledged is None
    with pytest.raises(UsageError, match="acknowledged first"):
        shard.do(Swept("wa", 7, last=False), "wb")


def test_those_who_hold_nothing_are_told_who_does_and_may_write_elsewhere(shard: Shard) -> None:
    """CASES F12."""
    shard.do(Attach("t1", "a"), "wa")
    with pytest.raises(Held, match="'orders' is held by worker 'a'"):
        shard.do(Commit(0, (write("t1"),)), "wc")
    with pytest.raises(Held):
        shard.do(Commit(0, (write("t2"), write("t1"))), "wc")
    with pytest.raises(Held):
        shard.do(drops(shard, "t1"), "wc")
    with pytest.raises(Held):
        shard.do(Commit(0, positions=(("t1", "7"),)), "wc")
    before = shard.state.meta.upper
    assert shard.do(Commit(0, (write("t2"),)), "wc") == CommitResult(before or 0)


def test_one_that_is_held_up_stops_none_of_its_group(shard: Shard) -> None:
    shard.do(Attach("t1", "a"), "wa")
    group = CommitGroup((Commit(0, (write("t1"),)), Commit(0, (write("t2"),))))
    refused, granted = shard.do(group, "wc")
    assert isinstance(refused, Held)
    assert granted == CommitResult(1)


def test_bundled_tidies_need_no_epoch(shard: Shard) -> None:
    shard.do(Commit(0, (write("t1"),)), "w0")
    shard.do(Attach("t1", "a"), "wa")
    assert shard.do(Commit(0, (write("t2"),), tidies=(("t1", 1, 0),)), "wc").time == 2
    assert [entry.table for entry in shard.entries()] == ["t2"]
    assert shard.do(Tidy((("t1", 1, 0),)), "wc") == 0


def test_a_token_is_looked_at_before_the_holder(shard: Shard) -> None:
    """CASES F4, F5."""
    token = ("loader", 1)
    first = shard.do(Commit(0, (write("t1"),), token=token), "wa")
    shard.do(Attach("t1", "b"), "wb")
    again = shard.do(Commit(0, (write("t1"),), token=token), "wa2")
    assert again == CommitResult(first.time, repeated=True)
    assert len(shard.entries()) == 1


def test_a_table_that_was_given_back_is_anybody_s(shard: Shard) -> None:
    shard.do(Attach("t1", "a"), "wa")
    assert shard.do(Release("t1", 1), "wa") is True
    assert shard.do(Release("t1", 1), "wa") is False
    shard.do(Commit(0, (write("t1"),)), "wc")
    with pytest.raises(Fenced, match="nobody has it"):
        shard.do(carrying(1, write("t1")), "wa")
    assert shard.do(Attach("t1", "b"), "wb").epoch == 2
    assert shard.do(Release("t1", 1), "wc") is False, "an old epoch gives nothing back"
    assert held_by(shard) == Holder(2, "wb", "b")
    assert session_of(shard, "wa").expired is None, "who gave it back is not doomed"


def test_closing_gives_back_what_the_session_holds(shard: Shard) -> None:
    shard.do(Attach("t1", "a"), "wa")
    shard.do(CloseSession(), "wa")
    assert held_by(shard) == Holder(1, "", "a")
    shard.do(Commit(0, (write("t1"),)), "wc")


def test_a_holder_that_was_silent_stays_one_until_another_attaches(shard: Shard) -> None:
    """F2: its end alone lets nobody else write, and its next session is the one to be doomed."""
    shard.do(Attach("t1", "a"), "wa")
    shard.do(Expire("wa", 1), "wc")
    with pytest.raises(Held):
        shard.do(Commit(0, (write("t1"),)), "wc")
    shard.do(carrying(1, write("t1")), "wa2")
    assert held_by(shard) == Holder(1, "wa2", "a")
    shard.do(Attach("t1", "b"), "wb")
    assert session_of(shard, "wa2").expired is not None


def test_a_doomed_session_takes_its_leased_holds_with_it(shard: Shard) -> None:
    shard.do(Attach("t1", "a"), "wa")
    shard.do(OpenHold("h1", Hold(None, seqno=0, kind="reader"), leased=True), "wa")
    shard.do(Attach("t1", "b"), "wb")
    assert shard.state.holds.get(("h1",)) is None


def test_a_dropped_table_has_no_holder_once_it_is_forgotten(shard: Shard) -> None:
    shard.do(Attach("t1", "a"), "wa")
    shard.do(drops(shard, "t1", epochs=(("t1", 1),)), "wa")
    with pytest.raises(UnknownTable):
        shard.do(Attach("t1", "b"), "wb")
    shard.do(ForgetTables((("t1", 1),)), "wc")
    assert held_by(shard) is None


# --- positions


def test_only_committed_positions_count(shard: Shard) -> None:
    """CASES F10."""
    assert shard.do(Attach("t1", "a"), "wa").position == ""
    shard.do(carrying(1, write("t1"), position="70"), "wa")
    assert shard.do(Attach("t1", "b"), "wb").position == "70"
    shard.do(carrying(2, write("t1"), position="80"), "wb")
    with pytest.raises(Fenced):
        shard.do(carrying(1, write("t1"), position="90"), "wa2")
    assert shard.do(Attach("t1", "c"), "wc").position == "80"


def test_a_table_that_nobody_holds_has_positions_too(shard: Shard) -> None:
    shard.do(Commit(0, (write("t1"),), positions=(("t1", "5"),)), "wc")
    assert held_by(shard) == Holder(0, "", "", "5")
    shard.do(Commit(0, (write("t1"),)), "wd")
    assert shard.do(Attach("t1", "a"), "wa") == Holder(1, "wa", "a", "5")


# --- the end of sessions


def test_an_ended_session_is_acknowledged_once_and_an_open_one_never(shard: Shard) -> None:
    shard.do(Heartbeat(), "wa")
    assert shard.do(Acknowledge("wa"), "wb") is False
    assert shard.do(Acknowledge("nobody"), "wb") is False
    shard.do(Expire("wa", 1), "wb")
    assert shard.do(Acknowledge("wa", 2), "wb") is False, "it wrote since it was looked at"
    assert shard.do(Acknowledge("wa", 1), "wb") is True
    assert shard.do(Acknowledge("wa", 1), "wb") is False


def test_a_session_is_forgotten_after_its_last_sweep(shard: Shard) -> None:
    shard.do(Heartbeat(), "wa")
    shard.do(Expire("wa", 1), "wb")
    shard.do(Acknowledge("wa"), "wb")
    assert shard.do(Swept("wa", 17, last=False), "wb") is True
    assert session_of(shard, "wa").swept == 17
    assert shard.do(Swept("wa", 30, last=True), "wb") is True
    assert shard.state.sessions.get(("wa",)) is None
    assert shard.do(Swept("wa", 30, last=True), "wb") is False


def test_parts_of_a_session_that_ended_or_was_forgotten_are_refused(shard: Shard) -> None:
    shard.do(Heartbeat(), "wa")
    shard.do(Expire("wa", 1), "wb")
    with pytest.raises(Fenced, match="session wa"):
        shard.do(Commit(0, (staged("wa"),)), "wb")
    shard.do(Acknowledge("wa"), "wb")
    shard.do(Swept("wa", 1, last=True), "wb")
    with pytest.raises(Fenced, match="session wa"):
        shard.do(Commit(0, (staged("wa"),)), "wb")


def test_a_session_that_leaves_something_is_kept_for_the_sweep(shard: Shard) -> None:
    shard.do(Heartbeat(), "wa")
    shard.do(CloseSession(littered=True), "wa")
    ended = session_of(shard, "wa")
    assert ended.count == 2
    assert ended.expired == ended.acknowledged == shard.state.seqno
    with pytest.raises(Fenced):
        shard.do(Heartbeat(), "wa")
    shard.do(CloseSession(littered=True), "wa")
    assert session_of(shard, "wa") == ended


def test_a_part_keeps_what_it_is(shard: Shard) -> None:
    """What is granted names its parts, whose sessions may end then."""
    shard.do(Commit(0, (staged("wa"),)), "wa")
    shard.do(Expire("wa", 1), "wb")
    parts: list[Part] = [p for entry in shard.entries() for p in entry.batch.parts]
    assert [p.key for p in parts] == ["wa/t1/part/p1.parquet"]
