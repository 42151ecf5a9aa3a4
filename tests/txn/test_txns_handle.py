"""The transaction layer by itself: CASES.md T1 to T6 and T9, and what may go wrong around them."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline as sl
from strandline.connect import LOG_FILE
from strandline.env import Deadline, RealEnv
from strandline.errors import (
    AsOfTooOld,
    Corruption,
    DeadlineExceeded,
    Fenced,
    LocationError,
    SchemaMismatch,
    UnknownTable,
    UpperMismatch,
    UsageError,
)
from strandline.location import Location
from strandline.settings import Settings
from strandline.shard import compact, new_shard_id, open_shard, read_split, vacuum_shard
from strandline.state.codec import decode_txn, encode_txn
from strandline.state.commands import Acknowledge, Expire, Join, Leave, Withdraw, Write
from strandline.state.invariants import broken
from strandline.state.model import Batch
from strandline.testing.faults import LOST, Call, Fault
from strandline.times import TIME_MAX
from strandline.txn import Committed, Txn, TxnsHandle
from strandline.upkeep.sweep import sweep
from tests.shard.helpers import QUIET, WORDS, Meddling, listed, planned, updates
from tests.support.deadlines import within
from tests.tables.helpers import apply
from tests.txn.helpers import (
    PARTS,
    TXNS,
    Words,
    commit,
    counted,
    described,
    faulty,
    handle,
    words,
)
from tests.unit import state_values

D0 = "s00000000000000d0"
D1 = "s00000000000000d1"


@pytest.fixture(params=["inline", "parts"])
def sized(request: pytest.FixtureRequest) -> Settings:
    """What is written stays in the entries, or becomes parts."""
    return QUIET if request.param == "inline" else PARTS


@pytest.fixture
def txns(location: Location, sized: Settings) -> Iterator[TxnsHandle]:
    """A new txns shard, beside two shards that are not registered."""
    described(location, D0, D1)
    with handle(location, sized) as found:
        yield found
        found.fetch_upper()
        assert broken(found._store.txns.machine.state) == []


@pytest.fixture
def registered(txns: TxnsHandle) -> TxnsHandle:
    txns.register(D0, 1)
    txns.register(D1, 2)
    return txns


def puts(location: Location) -> int:
    """Objects at the location."""
    return len(list(location.blob.list("", timeout=60)))


def raw(location: Location, shard: str, as_of: int) -> Words:
    """What the shard itself has."""
    _, read = open_shard(location, shard, settings=QUIET)
    with read:
        return counted(read.read(as_of, timeout=60))


# --- CASES


def test_a_shard_is_registered_once_and_at_a_time_that_is_free(txns: TxnsHandle) -> None:
    """CASES T1."""
    txns.register(D0, 2)
    txns.register(D0, 3)
    assert txns.fetch_upper() == 4
    assert txns.registered(2) == txns.registered() == (D0,)
    assert txns.registered(1) == ()
    with pytest.raises(UpperMismatch, match="least time possible is 4") as refused:
        txns.register(D1, 2)
    assert refused.value.upper == 4
    assert txns.registered() == (D0,)
    versions = txns._store.txns.machine.ask(lambda s: s.tables.count())
    assert versions == 1, "no second registration"


def test_a_commit_at_a_taken_time_is_refused_and_one_moves_every_upper(
    registered: TxnsHandle,
) -> None:
    """CASES T2."""
    commit(registered, 5)
    txn = registered.begin()
    txn.write(D0, {"word": ["a"]})
    with pytest.raises(UpperMismatch) as refused:
        txn.commit_at(registered, 4)
    assert refused.value.upper == 6
    assert txn.commit_at(registered, 6).time == 6
    assert registered.upper == 7
    assert words(registered, D0, 6) == {"a": 1}
    assert words(registered, D1, 6) == {}, "every registered table's logical upper is 7"


def test_a_snapshot_sees_what_is_committed_and_writes_nothing(
    location: Location, registered: TxnsHandle
) -> None:
    """CASES T3."""
    commit(registered, 3, **{D0: {"a": 1}})
    commit(registered, 5, **{D0: {"b": 1}})

    def everything(call: Call) -> Fault | None:
        assert not call.changes, call
        return None

    watched, _ = faulty(location, everything)
    reader = handle(replace(watched, read_only=True))
    assert words(reader, D0, 4) == {"a": 1}
    assert words(reader, D0, 5) == {"a": 1, "b": 1}
    reader.close()
    assert open_upper(location, D0) == 0


def open_upper(location: Location, shard: str) -> int | None:
    """How far a shard itself is."""
    write, read = open_shard(location, shard, settings=QUIET)
    with write, read:
        return write.upper


KILLED = """
import sys, os
import strandline as sl
from strandline.txn import TxnsHandle
from tests.shard.helpers import QUIET
from tests.txn.helpers import PARTS, commit
url, txns, shard, size = sys.argv[1:]
found = TxnsHandle.open(sl.open_location(url), txns, settings=PARTS if size == "parts" else QUIET)
commit(found, 2, **{shard: {"a": 1, "b": 2}})
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("size", ["inline", "parts"])
def test_what_a_killed_process_committed_is_there_once_whoever_applies_it(
    tmp_path: Path, size: str
) -> None:
    """CASES T4."""
    url = str(tmp_path / "shards")
    with sl.open_location(url) as location:
        described(location, D0)
        with handle(location) as txns:
            txns.register(D0, 1)
            killed = subprocess.run(
                [sys.executable, "-c", KILLED, url, TXNS, D0, size], check=False, timeout=300
            )
            assert killed.returncode == -9
            assert words(txns, D0, 2) == {"a": 1, "b": 2}
            assert txns.apply_le(2) == 1
            assert txns.apply_le(2) == 0
            with handle(location) as other:
                assert other.apply_le(9) == 0
                assert words(other, D0, 2) == words(txns, D0, 2) == {"a": 1, "b": 2}
        assert raw(location, D0, 2) == {"a": 1, "b": 2}


def test_when_a_shard_was_written_last_is_told_after_it_was_tidied_and_forgotten(
    registered: TxnsHandle,
) -> None:
    """CASES T5."""
    tidied = iter((8, 9, 10))
    for time in (4, 5, 7):
        commit(registered, time, **{D0: {"a": 1}})
    for time in (4, 5, 7):
        registered.apply_le(time)
        assert registered.tidy_at(next(tidied)) == 1
    registered.forget(D0, 11)
    found = [registered.latest_write(D0, time) for time in (3, 4, 6, 8)]
    assert found == [None, 4, 5, 7]
    assert registered.latest_write(D1, 11) is None
    assert registered.compact_to(6) == 6
    assert [registered.latest_write(D0, time) for time in (6, 7, 11)] == [5, 7, 7]
    with pytest.raises(AsOfTooOld, match="its since is 6"):
        registered.latest_write(D0, 5)
    assert registered.compact_to(100) == 11
    assert registered.latest_write(D0, 11) == 7


def test_a_registration_of_another_shard_loses_no_commit(txns: TxnsHandle) -> None:
    """CASES T6."""
    txns.register(D0, 1)
    commit(txns, 2, **{D0: {"a": 1}})
    txns.register(D1, 3)
    assert words(txns, D0, 2) == {"a": 1}
    txns.apply_le(3)
    assert words(txns, D0, 3) == {"a": 1}


def test_what_two_tidy_is_retracted_once(location: Location, registered: TxnsHandle) -> None:
    """CASES T9."""
    commit(registered, 3, **{D0: {"a": 1}})
    registered.apply_le(3)
    with handle(location) as other:
        # Both have looked and found it; then both retract it.
        for each in (registered, other):
            state = each._store.txns.look(within(60))
            assert each._store.unapplied(state) == [D0]
            each._store.txns.to_be_tidied([(D0, 3, 0)])
        assert registered.tidy() + other.tidy() == 1
        seqno = other._store.txns.look(within(60)).seqno
        assert (registered.tidy(), other.tidy()) == (0, 0)
        assert other._store.txns.look(within(60)).seqno == seqno
    entries = registered._store.txns.machine.ask(lambda s: list(s.entries.range()))
    assert [(key, entry.batch.rows) for key, entry in entries] == [((D0, 3, 0), 0)]


# --- registering and forgetting


def test_a_registered_shard_refuses_other_writers_until_it_is_forgotten(
    location: Location, registered: TxnsHandle
) -> None:
    write, read = open_shard(location, D0, settings=QUIET)
    with write, read:
        commit(registered, 4, **{D0: {"a": 1}})
        for refused in (
            lambda: write.compare_and_append(updates(("b", 9, 1)), 0, 10),
            lambda: write.append(updates(("b", 9, 1)), 10, lower=0),
            lambda: write.advance_upper(10),
            write.finish,
        ):
            with pytest.raises(UsageError, match=f"registered with the txns shard {TXNS}"):
                refused()
        assert read.fetch_upper() == 0
        registered.forget(D0, 8)
        assert registered.registered() == (D1,)
        assert read.fetch_upper() == 8, "nothing may come to times that were read already"
        write.compare_and_append(updates(("b", 9, 1)), 8, 10)
        assert words(registered, D0, 5) == words(registered, D0, 7) == {"a": 1}
        assert words(registered, D0, 9) == {"a": 1, "b": 1}
        with pytest.raises(UnknownTable, match="register it"):
            registered.begin().write(D0, {"word": ["a"]})
        write.finish()
    with pytest.raises(UsageError, match="finished"):
        registered.register(D0, 20)


def test_a_forgotten_shard_is_registered_again(location: Location, registered: TxnsHandle) -> None:
    commit(registered, 3, **{D0: {"a": 1}})
    registered.forget(D0, 5)
    registered.forget(D0, 6)
    assert registered.upper == 7
    write, read = open_shard(location, D0, settings=QUIET)
    with write, read:
        write.compare_and_append(updates(("b", 20, 1)), 5, 21)
    with pytest.raises(UpperMismatch) as refused:
        registered.register(D0, 20)
    assert refused.value.upper == 21
    with write, read:
        write, read = open_shard(location, D0, settings=QUIET)
        write.compare_and_append(None, 21, 22)
        write.close()
        read.close()
    registered.register(D0, 22)
    assert registered.registered(10) == (D1,)
    commit(registered, 23, **{D0: {"c": 1}})
    assert words(registered, D0, 19) == {"a": 1}
    assert words(registered, D0, 22) == {"a": 1, "b": 1}
    assert words(registered, D0, 23) == {"a": 1, "b": 1, "c": 1}
    assert [registered.latest_write(D0, time) for time in (2, 4, 22, 23)] == [None, 3, 3, 23]
    assert registered.registered(5) == (D1,)
    assert registered.registered(4) == registered.registered() == (D0, D1)


def test_a_shard_is_registered_with_one_txns_shard(
    location: Location, registered: TxnsHandle
) -> None:
    with TxnsHandle.open(location, new_shard_id(), settings=QUIET) as other:
        with pytest.raises(UsageError, match=f"registered with the txns shard {TXNS}; forget it"):
            other.register(D0, 5)
        other.forget(D0, 6)
        assert registered.registered() == (D0, D1)
        commit(registered, 3, **{D0: {"a": 1}})
        registered.forget(D0, 4)
        other.register(D0, 7)
        commit(other, 8, **{D0: {"b": 1}})
        assert words(other, D0, 8) == {"a": 1, "b": 1}
        with pytest.raises(UsageError, match="registered with the txns shard"):
            registered.register(D0, 9)
        # By the one that it was forgotten by it is read through its own upper.
        other.apply_le(8)
        assert words(registered, D0, 8) == {"a": 1, "b": 1}


def test_two_txns_shards_register_one_shard_at_once(location: Location, txns: TxnsHandle) -> None:
    handles = [TxnsHandle.open(location, f"s000000000000000{n}", settings=QUIET) for n in range(4)]

    def register(each: TxnsHandle) -> bool:
        try:
            each.register(D0, 3)
        except UsageError as error:
            return "forget it there first" not in str(error)
        return True

    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(register, handles))
    assert sorted(won) == [False, False, False, True]
    assert [each.registered() == (D0,) for each in handles] == won
    for each in handles:
        each.close()


def test_only_shards_made_for_it_are_registered(
    location: Location, txns: TxnsHandle, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="open_shard"):
        txns.register(new_shard_id(), 3)
    with pytest.raises(UsageError, match="txns shard"):
        txns.register(TXNS, 3)
    with pytest.raises(UsageError, match="pass a time"):
        txns.register(D0, -1)
    assert txns.fetch_upper() == 1


def test_tables_and_txns_shards_are_kept_apart(tmp_path: Path) -> None:
    url = str(tmp_path / "shop")
    with sl.connect(url, settings=QUIET) as db, sl.open_location(url) as location:
        table = db.create_table("stock", WORDS, row_keys="word")
        new = db.create_table("new", WORDS, row_keys="word")
        table.append({"word": ["a"]})
        apply(table)
        with pytest.raises(UsageError, match=r"strandline\.connect"):
            TxnsHandle.open(location, location.txns, settings=QUIET)
        described(location, D0)
        with pytest.raises(UsageError, match="in use already"):
            TxnsHandle.open(location, D0)
        with handle(location) as txns:
            for each in (table, new):
                with pytest.raises(UsageError, match=r"database|there is no shard"):
                    txns.register(each.id, 2)
        with pytest.raises(UsageError, match="TxnsHandle"):
            open_shard(location, TXNS, schema=WORDS)
        assert len(table) == 1


# --- crashes


class Crash(BaseException):
    """The process ends here."""


def crashing(location: Location, at: int, *, after: bool) -> Location:
    """The location until the `at`-th compare-and-set; then the process is no more."""
    seen = 0

    def crash(_: Call) -> BaseException:
        return Crash()

    def decide(call: Call) -> Fault | None:
        nonlocal seen
        if seen > at:
            return Fault(before=crash)
        if call.kind != "compare_and_set":
            return None
        seen += 1
        if seen <= at:
            return None
        return Fault(after=crash) if after else Fault(before=crash)

    return faulty(location, decide)[0]


def many_crashes(location: Location) -> Iterator[tuple[Location, int]]:
    for at in range(12):
        for after in (False, True):
            yield crashing(location, at, after=after), at


def test_a_registration_that_ends_anywhere_is_finished_or_given_back(location: Location) -> None:
    """A crash between Join and registration among them."""
    half = 0
    for number, (broken_off, _) in enumerate(many_crashes(location)):
        shard = f"s{number:016x}"
        described(location, shard)
        with handle(location) as txns:
            time = txns.fetch_upper()
            crashed = False
            try:
                dying = handle(broken_off)
                dying.register(shard, time)
            except Crash:
                crashed = True
            owner = txns._store.data(shard).look(within(60)).meta.owner
            is_registered = shard in txns.registered()
            assert owner == TXNS or not is_registered
            half += crashed and owner == TXNS and not is_registered
            if number % 3:
                txns.register(shard, txns.upper)
                commit(txns, txns.upper, **{shard: {"a": 1}})
                assert words(txns, shard, txns.upper - 1) == {"a": 1}
            else:
                txns.forget(shard, txns.upper)
                assert append(location, shard) == {"x": 1}
    assert half


def append(location: Location, shard: str) -> Words:
    """Appends to a shard directly; what it has then."""
    write, read = open_shard(location, shard, settings=QUIET)
    with write, read:
        upper = write.fetch_upper()
        assert upper is not None
        write.compare_and_append({"word": ["x"]}, upper, upper + 1, time=upper)
        return counted(read.read(upper))


def test_a_forget_that_ends_anywhere_is_finished_or_undone(
    location: Location, sized: Settings
) -> None:
    """A crash between retraction and Leave among them."""
    half = 0
    for number, (broken_off, _) in enumerate(many_crashes(location)):
        shard = f"s{number:016x}"
        described(location, shard)
        with handle(location, sized) as txns:
            txns.register(shard, txns.fetch_upper())
            commit(txns, txns.upper, **{shard: {"a": 1}})
            crashed = False
            try:
                dying = handle(broken_off)
                dying.forget(shard, txns.upper)
            except Crash:
                crashed = True
            owner = txns._store.data(shard).look(within(60)).meta.owner
            is_registered = shard in txns.registered()
            assert owner == TXNS or not is_registered
            half += crashed and owner == TXNS and not is_registered
            if number % 3:
                txns.forget(shard, txns.upper)
                assert append(location, shard) == {"a": 1, "x": 1}
                txns.register(shard, max(txns.upper, open_upper(location, shard) or 0))
            else:
                txns.register(shard, txns.upper)
            commit(txns, txns.upper, **{shard: {"b": 1}})
            found = words(txns, shard, txns.upper - 1)
            found.pop("x", None)
            assert found == {"a": 1, "b": 1}
    assert half


def test_a_slow_registration_never_registers_a_shard_that_was_given_back(
    location: Location, txns: TxnsHandle
) -> None:
    """It stands still between its join and its commit, while others forget and append."""
    with handle(location) as other:
        submit = other._store.txns.machine.submit
        meanwhile = [True]

        def slowly(command: Any, *args: Any, **options: Any) -> Any:
            if type(command).__name__ == "Commit" and meanwhile:
                meanwhile.clear()
                txns.forget(D0, 5)
                assert append(location, D0) == {"x": 1}
            return submit(command, *args, **options)

        other._store.txns.machine.submit = slowly  # type: ignore[method-assign]
        other.register(D0, 9)
        other._store.txns.machine.submit = submit  # type: ignore[method-assign]
    assert not meanwhile
    write, read = open_shard(location, D0, settings=QUIET)
    with write, read, pytest.raises(UsageError, match="registered with"):
        write.advance_upper(50)
    commit(txns, 10, **{D0: {"a": 1}})
    txns.apply_le(10)
    assert words(txns, D0, 10) == {"a": 1, "x": 1}


def test_a_late_leave_takes_no_shard_away(location: Location, registered: TxnsHandle) -> None:
    machine = registered._store.data(D0)
    registered.forget(D0, 5)
    registered.register(D0, 6)
    assert machine.submit(Leave(TXNS, 1, 5)) is False
    assert registered._store.txns.machine.submit(Withdraw(D0, 2)) is False
    assert machine.state.meta.owner == TXNS
    assert machine.submit(Join(TXNS, 1)).number == 2
    commit(registered, 7, **{D0: {"a": 1}})
    assert words(registered, D0, 7) == {"a": 1}


def test_a_refused_registration_leaves_the_shard_to_its_writers(
    location: Location, txns: TxnsHandle
) -> None:
    commit(txns, 5)
    with pytest.raises(UpperMismatch):
        txns.register(D0, 3)
    assert append(location, D0) == {"x": 1}
    # Also if another took the time between the look and the commit.
    with handle(location) as other:
        submit = other._store.txns.machine.submit

        def slowly(command: Any, *args: Any, **options: Any) -> Any:
            if type(command).__name__ == "Commit":
                commit(txns, txns.fetch_upper() + 10)
            return submit(command, *args, **options)

        other._store.txns.machine.submit = slowly  # type: ignore[method-assign]
        with pytest.raises(UpperMismatch):
            other.register(D0, 8)
        other._store.txns.machine.submit = submit  # type: ignore[method-assign]
    assert append(location, D0) == {"x": 2}
    txns.register(D0, txns.fetch_upper())
    assert txns.registered() == (D0,)


def test_a_shard_is_forgotten_only_with_everything_applied(registered: TxnsHandle) -> None:
    """Also what is committed while it is being forgotten."""
    commit(registered, 3, **{D0: {"a": 1}})
    submit = registered._store.txns.machine.submit
    late = [5, 4]

    def slowly(command: Any, *args: Any, **options: Any) -> Any:
        if getattr(command, "changes", ()) and late:
            registered._store.txns.machine.submit = submit  # type: ignore[method-assign]
            commit(registered, late.pop(), **{D0: {"a": 1}})
            registered._store.txns.machine.submit = slowly  # type: ignore[method-assign]
        return submit(command, *args, **options)

    registered._store.txns.machine.submit = slowly  # type: ignore[method-assign]
    registered.forget(D0, 9)
    assert not late
    assert registered.registered() == (D1,)
    machine = registered._store.data(D0)
    assert machine.look(within(60)).meta.upper == 9
    assert words(registered, D0, 8) == {"a": 3}


# --- a log that lost its newest records


def lose_records(path: Path, shard: str, after: int) -> None:
    """The log of one shard ends there from now on."""
    with closing(sqlite3.connect(path / LOG_FILE, isolation_level=None)) as log:
        gone = log.execute("DELETE FROM record WHERE shard = ? AND seqno > ?", (shard, after))
        assert gone.rowcount > 0


def committed_again(txns: TxnsHandle) -> None:
    """By a process that wrote no part of it itself."""
    txn = txns.begin()
    txn._rows.writes.append(
        Write(D0, Batch(rows=1, inline=b"never looked at", lower=b"", upper=b"", has_diff=False))
    )
    txn.commit_at(txns, 9)


@pytest.mark.parametrize(
    "use",
    [
        lambda txns: txns.snapshot(D0, 3).read_all(),
        lambda txns: txns.snapshot(D0, 4, timeout=5).read_all(),
        lambda txns: commit(txns, 9, **{D0: {"b": 1}}),
        committed_again,
        lambda txns: txns.forget(D0, 9),
    ],
    ids=["snapshot", "snapshot later", "commit", "bytes", "forget"],
)
@pytest.mark.parametrize("ended", ["applied", "forgotten", "joined anew"])
def test_commits_that_the_log_lost_and_a_shard_kept_are_missed_by_whoever_uses_it(
    tmp_path: Path, use: Callable[[TxnsHandle], object], ended: str
) -> None:
    with sl.open_location(tmp_path) as location:
        described(location, D0, D1)
        with handle(location) as txns:
            txns.register(D0, 1)
            txns.register(D1, 2)
            commit(txns, 3, **{D0: {"a": 1}}).apply(txns)
            before = txns._store.txns.machine.state.seqno
            commit(txns, 4, **{D0: {"a": 1}}).apply(txns)
            if ended != "applied":
                txns.forget(D0, 5)
            if ended == "joined anew":
                txns.register(D0, 6)
    lose_records(tmp_path, TXNS, before)
    with sl.open_location(tmp_path) as location, handle(location) as txns:
        with pytest.raises(Corruption, match="restore the newest log") as caught:
            use(txns)
        assert caught.value.object == f"record {before + 1} of shard {TXNS}"
        assert words(txns, D1, 3) == {}, "what did not lose anything goes on"


def test_a_shard_that_was_further_when_it_was_joined_is_no_damage(location: Location) -> None:
    """Its own writers had got there, and its registration was cut off, or is under way."""
    described(location, D0)
    write, read = open_shard(location, D0, settings=QUIET)
    with write, read:
        write.compare_and_append(updates(("a", 0, 1)), 0, 9)
    with handle(location) as txns:
        shard = txns._store.shard(D0, Deadline(RealEnv(), 5))
        shard.machine.submit(Join(TXNS, 0))
        with pytest.raises(UsageError, match="was never registered"):
            txns.snapshot(D0, 3)
        txns.register(D0, 9)
        assert words(txns, D0, 8) == {"a": 1}
        txns.forget(D0, 10)
        write, read = open_shard(location, D0, settings=QUIET)
        with write, read:
            write.compare_and_append(updates(("b", 11, 1)), 10, 50)
        shard.machine.submit(Join(TXNS, 1))
        assert words(txns, D0, 8) == {"a": 1}
        # And where that registration came too late, and giving the shard back was cut off, too.
        txns._store.txns.machine.submit(Withdraw(D0, 2))
        assert words(txns, D0, 8) == {"a": 1}


# --- commits


def test_a_commit_tried_again_stores_no_object_twice(location: Location) -> None:
    described(location, D0, D1)
    with handle(location, PARTS) as txns:
        txns.register(D0, 1)
        commit(txns, 3)
        txn = txns.begin()
        txn.write(D0, {"word": ["a", "b"]})
        with pytest.raises(UpperMismatch):
            txn.commit_at(txns, 3)
        stored = puts(location)
        assert stored >= 1
        done = txn.commit_at(txns, 4)
        assert (done.time, done.shards, done.rows, done.repeated) == (4, (D0,), 2, False)
        assert done.apply(txns) == 1
        assert puts(location) == stored, "re-timed, not written again"
        assert words(txns, D0, 4) == {"a": 1, "b": 1}
        again = txn.commit_at(txns, 9)
        assert (again.time, again.repeated) == (4, True)
        assert txns.fetch_upper() == 5


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("word", ["done", "lost", "late"])
def test_a_commit_whose_answer_was_lost_is_not_committed_twice(
    tmp_path: Path, sized: Settings, word: str, *, taken: bool
) -> None:
    location = sl.open_location(f"memory://{tmp_path}")
    described(location, D0, D1)
    place, consensus = planned(location, [])
    env = Meddling()
    with handle(place, replace(sized, timeout_seconds=60.0), env=env) as txns:
        txns.register(D0, 1)
        txns.register(D1, 2)
        txn = txns.begin()
        txn.write(D0, {"word": ["a"]})
        consensus.plan = [word]
        consensus.failing_scans = 10_000
        with pytest.raises(LocationError) as unknown:
            txn.commit_at(txns, 3)
        assert unknown.value.may_have_happened
        consensus.failing_scans = 0
        if taken:
            with handle(location) as other:
                commit(other, other.fetch_upper() + 1, **{D1: {"b": 1}})
        done = txn.commit_at(txns, 9)
        # Where nobody came in between, the record of the first try is put once more, and is there.
        first = word == "done" or not taken
        assert (done.time, done.repeated) == ((3, True) if first else (9, False))
        if word == "late":
            assert not consensus.land()
        again = txns.begin()
        again.write(D0, {"word": ["a"]})
        again.commit_at(txns, 12)
        for _ in range(2):
            assert words(txns, D0, 11) == {"a": 1} or done.time == 9
            assert words(txns, D0, 12) == {"a": 2}
            assert words(txns, D1, 12) == ({"b": 1} if taken else {})
            txns.apply_le(12)


@pytest.mark.parametrize("fails", ["a part", "the session's record"])
@pytest.mark.parametrize("spilled", [False, True])
def test_a_commit_whose_rows_could_not_be_stored_did_not_happen_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, *, spilled: bool
) -> None:
    if spilled:
        monkeypatch.setattr("strandline.parts.rows.spool._MEMORY_BYTES", 0)
        monkeypatch.setattr("strandline.parts.rows.spool._BATCH_ROWS", 1)
    location = sl.open_location(f"memory://{tmp_path}")
    described(location, D0, D1)
    failing = 0

    def decide(call: Call) -> Fault | None:
        part = call.kind in ("put", "upload") and f"/{D1}/part/" in call.key
        record = call.port == "consensus" and call.key == TXNS
        return LOST if failing and (part if fails == "a part" else record) else None

    place, _ = faulty(location, decide)
    with handle(location) as other:
        other.register(D0, 1)
        other.register(D1, 2)
        before = other.fetch_upper()
        with handle(place, replace(PARTS, timeout_seconds=0.2), env=Meddling()) as txns:
            txn = txns.begin()
            txn.write(D0, {"word": ["a"]})
            txn.write(D1, {"word": ["a", "b"]})
            for failing in (1, 1, 0):
                if failing:
                    with pytest.raises(LocationError) as failed:
                        txn.commit_at(txns, 3)
                    assert not failed.value.may_have_happened
                    assert (txn.rows, txn.shards) == (3, (D0, D1))
                    assert other.fetch_upper() == before
            txn.write(D0, {"word": ["later"]})
            done = txn.commit_at(txns, 3)
            assert (done.time, done.rows, done.repeated) == (3, 4, False)
        assert words(other, D0, 3) == {"a": 1, "later": 1}
        assert words(other, D1, 3) == {"a": 1, "b": 1}
    parts = [info.key for info in location.blob.list("", timeout=5) if f"{D0}/part/" in info.key]
    assert len(parts) == 2, "what was stored is not stored again"


def test_a_commit_that_may_have_happened_may_still_have_when_the_next_try_fails_sooner(
    tmp_path: Path,
) -> None:
    location = sl.open_location(f"memory://{tmp_path}")
    described(location, D0)
    place, consensus = planned(location, [])
    with handle(place, replace(QUIET, timeout_seconds=0.2), env=Meddling()) as txns:
        txns.register(D0, 1)
        txn = txns.begin()
        txn.write(D0, {"word": ["a"]})
        consensus.plan = ["late"]
        consensus.failing_scans = 10_000
        for _ in range(2):
            with pytest.raises(LocationError) as unknown:
                txn.commit_at(txns, 3)
            assert unknown.value.may_have_happened
        consensus.failing_scans = 0
        consensus.land()
        assert txn.commit_at(txns, 9).time == 3


def test_two_apply_at_once_and_every_row_is_there_once(
    location: Location, registered: TxnsHandle
) -> None:
    for time in range(3, 23):
        commit(registered, time, **{D0: {f"w{time % 5}": 1}, D1: {"b": 1}})
    others = [handle(location) for _ in range(3)]
    barrier = threading.Barrier(3)

    def work(each: TxnsHandle) -> None:
        barrier.wait()
        for time in (7, 15, 22):
            each.apply_le(time)
            each.tidy()
            assert words(each, D0, 22) == {f"w{n}": 4 for n in range(5)}

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, others))
    for each in others:
        each.close()
    assert raw(location, D0, 22) == {f"w{n}": 4 for n in range(5)}
    assert raw(location, D1, 22) == {"b": 20}
    assert words(registered, D0, 9) == {"w0": 1, "w1": 1, "w2": 1, "w3": 2, "w4": 2}


def test_rows_come_and_go_and_say_how_often(registered: TxnsHandle) -> None:
    commit(registered, 3, **{D0: {"a": 3, "b": 1}})
    commit(registered, 4, **{D0: {"a": -1, "b": -1, "c": 2}, D1: {"z": -1}})
    for _ in range(2):
        assert words(registered, D0, 3) == {"a": 3, "b": 1}
        assert words(registered, D0, 4) == {"a": 2, "c": 2}
        assert words(registered, D1, 4) == {"z": -1}
        registered.apply_le(4)


def test_a_part_of_what_is_committed_may_be_applied(registered: TxnsHandle) -> None:
    for time in (3, 5, 7):
        commit(registered, time, **{D0: {"a": 1}})
    assert registered.apply_le(5) == 2
    assert registered._store.data(D0).look(within(60)).meta.upper == 6
    assert [words(registered, D0, time) for time in (2, 4, 6, 7)] == [
        {},
        {"a": 1},
        {"a": 2},
        {"a": 3},
    ]


def test_data_that_does_not_fit_is_refused_and_changes_nothing(registered: TxnsHandle) -> None:
    txn = registered.begin()
    for bad, error in (
        ({"word": [None]}, SchemaMismatch),
        ({"other": ["a"]}, SchemaMismatch),
        ({"word": ["a"], "__time": [3]}, UsageError),
        (5, UsageError),
    ):
        with pytest.raises(error):
            txn.write(D0, bad)
    assert txn.rows == 0
    assert txn.write(D0, {"word": ["a", "b"], "__diff": [0, 2]}) == 1
    assert txn.write(D0, None) == 0

    def stream() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"word": ["c"]})
        raise RuntimeError("no more")

    nullable = pa.schema([("word", pa.string())])
    with pytest.raises(RuntimeError):
        txn.write(D0, pa.RecordBatchReader.from_batches(nullable, stream()))
    with pytest.raises(UsageError, match="write all of it anew"):
        txn.commit_at(registered, 3)
    assert registered.fetch_upper() == 3


def test_a_large_transaction_spills_and_is_committed_in_bounded_memory(
    tmp_path: Path,
) -> None:
    """Many rows, over many calls and as a stream: what is held in memory does not grow with it."""
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False), ("text", pa.string())])
    small = Settings(background=False, sort_memory_bytes=8 << 20, part_rows_target=200_000)
    with sl.open_location(str(tmp_path / "shards")) as location:
        for each in open_shard(location, D0, schema=schema, settings=small):
            each.close()
        with TxnsHandle.open(location, TXNS, settings=small) as txns:
            txns.register(D0, 1)
            txn = txns.begin()

            def batches(begin: int, count: int) -> Iterator[pa.RecordBatch]:
                for start in range(begin, begin + count, 10_000):
                    ns = [(n * 7_919) % 2_000_003 for n in range(start, start + 10_000)]
                    yield pa.record_batch(
                        {"n": ns, "text": [f"a text of some length {n}" for n in ns]},
                        schema=schema,
                    )

            before = pa.total_allocated_bytes()
            most = 0
            for begin in range(0, 400_000, 100_000):
                stream = pa.RecordBatchReader.from_batches(schema, batches(begin, 100_000))
                assert txn.write(D0, stream) == 100_000
                most = max(most, pa.total_allocated_bytes() - before)
            for begin in range(400_000, 600_000, 10_000):
                txn.write(D0, pa.Table.from_batches(batches(begin, 10_000)))
                most = max(most, pa.total_allocated_bytes() - before)
            assert txn.rows == 600_000
            assert most < 8 << 20
            with pytest.raises(UpperMismatch):
                txn.commit_at(txns, 1)
            stored = puts(location)
            assert stored >= 3
            done = txn.commit_at(txns, 2)
            for _ in range(2):
                found = txns.snapshot(D0, 2)
                rows = last = 0
                for batch in found:
                    ns = batch.column("n")
                    assert ns[0].as_py() >= last
                    last = ns[-1].as_py()
                    rows += batch.num_rows
                assert rows == 600_000
                done.apply(txns)
            assert puts(location) == stored


# --- between processes


def test_transactions_of_several_processes_are_merged_and_committed_once(
    location: Location, registered: TxnsHandle, sized: Settings
) -> None:
    sent = []
    for n in range(3):
        other = handle(location, sized)
        txn = other.begin()
        txn.write(D0, {"word": [f"w{n}"]})
        txn.write(D1, {"word": ["all"]})
        sent.append(txn.to_bytes())
        with pytest.raises(UsageError, match="commit it there"):
            txn.commit_at(registered, 3)
        other._store.pulse.close()  # and the process is gone
    txn = registered.begin()
    txn.write(D0, {"word": ["mine"]})
    for data in sent:
        assert txn.merge(Txn.from_bytes(data)) == 2
    done = txn.commit_at(registered, 3)
    assert (done.rows, done.shards) == (7, (D0, D1))
    assert words(registered, D0, 3) == {"mine": 1, "w0": 1, "w1": 1, "w2": 1}
    # By itself it is not committed again, and in another neither.
    again = Txn.from_bytes(sent[0]).commit_at(registered, 4)
    assert (again.time, again.repeated) == (3, True)
    more = registered.begin()
    more.write(D0, {"word": ["more"]})
    more.merge(Txn.from_bytes(sent[1]))
    with pytest.raises(UsageError, match="was committed at 3 already"):
        more.commit_at(registered, 5)
    registered.apply_le(9)
    assert words(registered, D0, 3) == {"mine": 1, "w0": 1, "w1": 1, "w2": 1}
    assert words(registered, D1, 3) == {"all": 3}


def test_a_transaction_committed_by_two_processes_is_there_once(
    location: Location, registered: TxnsHandle
) -> None:
    txn = registered.begin()
    txn.write(D0, {"word": ["a"]})
    data = txn.to_bytes()
    with handle(location) as other:
        first = Txn.from_bytes(data).commit_at(other, 5)
    second = Txn.from_bytes(data).commit_at(registered, 9)
    assert (first.time, second.time, second.repeated) == (5, 5, True)
    registered.apply_le(9)
    assert words(registered, D0, 5) == {"a": 1}
    # Once nobody knows any more whether it was, it is not committed at all.
    registered.compact_to(6)
    assert registered.since == 5, "below upper"
    commit(registered, 8)
    assert registered.compact_to(6) == 6
    with pytest.raises(UsageError, match="not known any more"):
        Txn.from_bytes(data).commit_at(registered, 12)
    late = registered.begin()
    late.write(D0, {"word": ["b"]})
    assert late.commit_at(registered, 12).time == 12


def test_bytes_are_checked_and_belong_to_one_txns_shard(
    location: Location, registered: TxnsHandle
) -> None:
    txn = registered.begin()
    txn.write(D0, {"word": ["a"]})
    data = txn.to_bytes()
    with pytest.raises(Corruption):
        Txn.from_bytes(data[:-1])
    with TxnsHandle.open(location, new_shard_id(), settings=QUIET) as other:
        with pytest.raises(UsageError, match="begin one here"):
            Txn.from_bytes(data).commit_at(other, 3)
        with pytest.raises(UsageError, match="begin one here"):
            other.begin().merge(Txn.from_bytes(data))
    with pytest.raises(UsageError, match="merge it into"):
        Txn.from_bytes(data).write(D0, {"word": ["b"]})
    mine = registered.begin()
    with pytest.raises(UsageError, match="begin another"):
        mine.merge(mine)


def test_times_are_whole_numbers_of_any_kind(location: Location) -> None:
    whole: Any = np.int64
    described(location, D0)
    with TxnsHandle.open(location, new_shard_id(), init_time=whole(1), settings=QUIET) as txns:
        txns.register(D0, whole(2))
        txn = txns.begin()
        txn.write(D0, {"word": ["a"]})
        assert txn.commit_at(txns, whole(3)).time == 3
        assert txns.registered(whole(3)) == (D0,)
        assert txns.latest_write(D0, whole(3)) == 3
        assert words(txns, D0, whole(3)) == {"a": 1}
        txns.apply_le(whole(3))
        txns.tidy_at(whole(4))
        assert txns.compact_to(whole(3)) == 3
        txns.forget(D0, whole(5))
        assert txns.upper == 6


def test_what_a_transaction_takes_back_is_not_stored(
    location: Location, registered: TxnsHandle
) -> None:
    txn = registered.begin()
    txn.write(D0, {"word": ["a", "b", "b"]})
    txn.write(D0, {"word": ["a"], "__diff": [-1]})
    txn.write(D1, {"word": ["c", "c"], "__diff": [1, -1]})
    committed = txn.commit_at(registered, 3)
    assert (committed.shards, committed.rows) == ((D0,), 1)
    assert len([i for i in location.blob.list("", timeout=5) if "/part/" in i.key]) <= 1
    assert (words(registered, D0, 3), words(registered, D1, 3)) == ({"b": 2}, {})


def test_the_greatest_time_can_be_committed_at_and_none_beyond(
    location: Location, registered: TxnsHandle
) -> None:
    end = TIME_MAX + 1
    for refused in (
        lambda: registered.begin().commit_at(registered, end),
        lambda: registered.register(D0, end),
        lambda: registered.forget(D0, end),
        lambda: registered.tidy_at(end),
        lambda: registered.apply_le(end),
        lambda: registered.compact_to(end),
        lambda: registered.snapshot(D0, end),
        lambda: registered.latest_write(D0, end),
        lambda: TxnsHandle.open(location, new_shard_id(), init_time=end),
    ):
        with pytest.raises(UsageError, match=r"from 0 to 2\*\*63 - 2"):
            refused()
    commit(registered, TIME_MAX, **{D0: {"a": 1}})
    registered.apply_le(TIME_MAX)
    registered.compact_to(TIME_MAX)
    assert words(registered, D0, TIME_MAX) == {"a": 1}


names = st.text("0123456789abcdef", min_size=1, max_size=8)


@given(
    names,
    st.lists(names, max_size=3),
    st.integers(0, 2**63 - 1),
    st.lists(st.builds(Write, names, state_values.batches), max_size=3),
    st.data(),
)
def test_bytes_of_a_transaction_are_exactly_what_was_sent(
    txns_id: str, ids: list[str], begun: int, writes: list[Write], data: Any
) -> None:
    sent = encode_txn(txns_id, ids, begun, writes)
    assert decode_txn(sent) == (txns_id, ids, begun, writes)
    damaged = bytearray(sent)
    at = data.draw(st.integers(0, 8 * len(sent) - 1))
    damaged[at // 8] ^= 1 << at % 8
    with pytest.raises(Corruption):
        decode_txn(bytes(damaged))


def test_parts_of_a_session_that_ended_are_not_committed(location: Location) -> None:
    """CASES T15, without a database."""
    described(location, D0)
    executor, driver = handle(location, PARTS), handle(location, PARTS)
    with executor, driver:
        driver.register(D0, 1)
        txn = executor.begin()
        txn.write(D0, {"word": ["a"]})
        with pytest.raises(UpperMismatch):
            txn.commit_at(executor, 1)  # its parts are stored
        session = executor._store.txns.machine.session
        data = txn.to_bytes()
        machine = driver._store.txns.machine
        count = machine.look(within(60)).ask(lambda s: s.sessions.get((str(session),)))
        assert count is not None
        assert machine.submit(Expire(str(session), count.count))
        assert machine.submit(Acknowledge(str(session)))
        with pytest.raises(Fenced, match="write the data again"):
            Txn.from_bytes(data).commit_at(driver, 4)
        assert driver.fetch_upper() == 2


def test_a_sweep_of_a_database_beside_it_deletes_nothing_committed_and_not_applied(
    tmp_path: Path,
) -> None:
    url = str(tmp_path / "both")
    with sl.connect(url, settings=QUIET) as db:
        db.create_table("stock", WORDS, row_keys="word").append({"word": ["a"]})
        with sl.open_location(url) as location:
            described(location, D0)
            txns = handle(location, PARTS)
            txns.register(D0, 1)
            abandoned = txns.begin()
            abandoned.write(D0, {"word": ["lost"]})
            with pytest.raises(UpperMismatch):
                abandoned.commit_at(txns, 1)
            commit(txns, 3, **{D0: {"a": 1}})
            txns.close()
            before = puts(location)
            parts = [row for row in db.usage().to_pylist() if row["kind"] == "part"]
            told = {(row["table"], row["use"]): row["objects"] for row in parts}
            assert told[f"(shard {D0})", "not applied"] == 1
            assert [count for (_, use), count in told.items() if use == "unknown"] == [1]
            done = sweep(db._handle.store, delay_micros=0, deadline=Deadline(RealEnv(), 60))
            assert done.objects == 1, "what was not committed"
            assert puts(location) == before - 1
            with handle(location) as txns:
                assert words(txns, D0, 3) == {"a": 1}
                txns.apply_le(3)
                assert words(txns, D0, 3) == {"a": 1}


# --- reading, upkeep and the end


def test_reads_wait_for_times_to_come(location: Location, registered: TxnsHandle) -> None:
    with pytest.raises(DeadlineExceeded, match=r"3 .*in time: .*upper .*is 3"):
        registered.snapshot(D0, 3, timeout=0.05)
    with pytest.raises(DeadlineExceeded, match=r"3 .*in time: .*upper .*is 3"):
        registered.latest_write(D0, 3, timeout=0.05)
    env = Meddling()
    env.meanwhile = [lambda: None, lambda: commit(registered, 5, **{D0: {"a": 1}})]
    with handle(location, env=env) as waiting:
        assert counted(waiting.snapshot(D0, 5, timeout=60)) == {"a": 1}
    with pytest.raises(UsageError, match="never registered"):
        registered.snapshot(new_shard_id(), 3)
    with pytest.raises(UsageError):
        registered.snapshot("words", 3)


def test_a_snapshot_in_no_time_at_all_is_late_and_no_mistake(registered: TxnsHandle) -> None:
    commit(registered, 3, **{D0: {"a": 1}}).apply(registered)
    with suppress(DeadlineExceeded):
        registered.snapshot(D0, 3, timeout=1e-12).read_all()


def test_data_shards_are_compacted_and_vacuumed_as_ever(
    location: Location, registered: TxnsHandle
) -> None:
    for time in range(3, 9):
        commit(registered, time, **{D0: {"a": 1, f"w{time}": 1}})
    registered.apply_le(6)
    _, read = open_shard(location, D0, settings=QUIET)
    with read:
        read.downgrade_since(5)
        compact(location, D0, strategy="full", settings=QUIET)
        vacuum_shard(location, D0, delay_seconds=0, settings=QUIET)
        vacuum_shard(location, TXNS, delay_seconds=0, settings=QUIET)
        assert words(registered, D0, 8)["a"] == 6
        assert words(registered, D0, 5)["a"] == 3
        with pytest.raises(AsOfTooOld, match="its since is 5"):
            registered.snapshot(D0, 4)
        registered.apply_le(9)
        read.downgrade_since(8)
        compact(location, D0, strategy="full", settings=QUIET)
        assert words(registered, D0, 8)["a"] == 6
    with handle(location) as fresh:
        assert words(fresh, D0, 8) == words(registered, D0, 8)


def test_a_snapshot_goes_on_when_what_it_reads_is_applied_and_compacted_meanwhile(
    location: Location, registered: TxnsHandle
) -> None:
    for time in (3, 4, 5):
        commit(registered, time, **{D0: {"a": 1, f"w{time}": 1}})
    registered.apply_le(3)
    found = registered.snapshot(D0, 5)
    with handle(location) as other:
        other.apply_le(9)
        other.tidy()
        _, read = open_shard(location, D0, settings=QUIET)
        with read:
            read.downgrade_since(5)
            compact(location, D0, strategy="full", settings=QUIET)
        vacuum_shard(location, D0, delay_seconds=0, settings=QUIET)
        vacuum_shard(location, D0, delay_seconds=0, settings=QUIET)
    assert counted(found) == {"a": 3, "w3": 1, "w4": 1, "w5": 1}


def test_compaction_stops_at_what_is_not_applied(registered: TxnsHandle) -> None:
    for time in (3, 5, 7):
        commit(registered, time, **{D0: {"a": 1}, D1: {"b": 1}})
    registered.apply_le(3)
    assert registered.compact_to(100) == 5
    assert registered.since == 5
    assert [registered.latest_write(D0, time) for time in (5, 6, 7)] == [5, 5, 7]
    registered.apply_le(7)
    assert registered.compact_to(6) == 6
    assert registered.compact_to(2) == 6, "never back"
    assert registered.registered(6) == (D0, D1)
    with pytest.raises(AsOfTooOld):
        registered.registered(5)
    registered.forget(D0, 10)
    registered.register(D0, 11)
    commit(registered, 12)
    assert registered.compact_to(12) == 12
    counts = registered._store.txns.machine.ask(lambda s: (s.tables.count(), s.entries.count()))
    assert counts == (2, 2), "of each shard the newest registration, and the newest commit"
    assert registered._store.txns.machine.ask(lambda s: s.tokens.count()) == 0


def test_a_closed_handle_says_so_and_the_location_stays_open(location: Location) -> None:
    described(location, D0)
    txns = handle(location, init_time=7)
    with pytest.raises(UpperMismatch, match="least time possible is 8"):
        txns.register(D0, 7)
    txns.close()
    txns.close()
    with pytest.raises(UsageError, match="closed"):
        txns.register(D0, 8)
    with pytest.raises(UsageError, match="closed"):
        txns.begin()
    with handle(location, init_time=99) as again:
        assert again.upper == 8, "made once"
        again.register(D0, 8)


def test_what_a_closed_handle_began_goes_no_further(location: Location) -> None:
    described(location, D0)
    txns = handle(location)
    txns.register(D0, 1)
    done = commit(txns, 2, **{D0: {"a": 1, "b": 1}})
    txn, other = txns.begin(), txns.begin()
    txn.write(D0, {"word": ["c"]})
    rows = txns.snapshot(D0, 2)
    txns.close()
    for refused in (
        lambda: txn.write(D0, {"word": ["d"]}),
        lambda: txn.merge(other),
        txn.to_bytes,
        lambda: txn.commit_at(txns, 3),
        lambda: done.apply(txns),
        rows.read_all,
        txns.fetch_upper,
        txns.registered,
        txns.tidy,
        lambda: txns.apply_le(2),
        lambda: txns.tidy_at(3),
        lambda: txns.compact_to(2),
        lambda: txns.snapshot(D0, 2),
        lambda: txns.latest_write(D0, 2),
        lambda: txns.forget(D0, 3),
    ):
        with pytest.raises(UsageError, match="handle is closed"):
            refused()
    txn.close()
    with handle(location) as again:
        assert again.upper == 3
        assert words(again, D0, 2) == {"a": 1, "b": 1}


def test_a_location_that_is_only_read_is_not_written_to(
    location: Location, registered: TxnsHandle
) -> None:
    commit(registered, 3, **{D0: {"a": 1}})
    reading = replace(location, read_only=True)
    with handle(reading) as txns:
        assert words(txns, D0, 3) == {"a": 1}
        for refused in (
            lambda: txns.register(D0, 4),
            lambda: txns.forget(D0, 4),
            lambda: txns.apply_le(4),
            lambda: txns.begin().commit_at(txns, 4),
            lambda: txns.compact_to(4),
        ):
            with pytest.raises(UsageError, match="reading only"):
                refused()
    with pytest.raises(UsageError, match="open the location"):
        TxnsHandle.open(reading, new_shard_id())


def commit_when_free(txn: Txn, txns: TxnsHandle) -> Committed:
    time = txns.upper
    while True:
        try:
            return txn.commit_at(txns, time)
        except UpperMismatch as taken:
            time = taken.upper or 0


def test_rivals_at_the_same_times_all_get_through_and_shards_agree_at_every_time(
    location: Location, registered: TxnsHandle
) -> None:
    """CASES T7, without a database."""
    rivals = [handle(location) for _ in range(4)]

    def work(number: int) -> None:
        txns = rivals[number % len(rivals)]
        for step in range(3):
            txn = txns.begin()
            for shard in (D0, D1):
                txn.write(shard, {"word": [f"{number}-{step}"]})
            done = commit_when_free(txn, txns)
            if number % 3 == 0:
                done.apply(txns)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    upper = registered.fetch_upper()
    assert upper == 3 + 8 * 3
    for time in range(2, upper, 4):
        found = words(registered, D0, time)
        assert found == words(registered, D1, time)
        assert set(found.values()) <= {1}
        assert len(found) == time - 2
    for rival in rivals:
        rival.close()


def test_a_shards_own_handles_read_what_is_applied_at_its_times(
    location: Location, registered: TxnsHandle
) -> None:
    for time in (3, 5, 6):
        commit(registered, time, **{D0: {"a": 1, f"w{time}": 2}})
    registered.apply_le(5)
    _, read = open_shard(location, D0, settings=QUIET)
    with read:
        assert read.fetch_upper() == 6
        found: Words = {}
        for split in read.snapshot(4, 2):
            found |= counted(read_split(location, split, settings=QUIET))
        assert found == {"a": 1, "w3": 2}
        told = read.listen(-1, until=6)
        assert sorted(each for event in told for each in listed(event.updates)) == [
            ("a", 3, 1),
            ("a", 5, 1),
            ("w3", 3, 2),
            ("w5", 5, 2),
        ]
        assert read.downgrade_since(6) == 6
        machine = registered._store.data(D0)
        assert machine.look(within(60)).meta.since == 5, "below upper"
        registered.apply_le(6)
        assert machine.look(within(60)).meta.since == 6, "as far as its readers let it"
        assert list(read.listen(6, until=7)) == []


def test_a_handle_opens_a_txns_shard_whose_log_was_shortened(
    location: Location, registered: TxnsHandle
) -> None:
    with handle(location, replace(QUIET, rollup_every_records=4)) as busy:
        for time in range(3, 40):
            commit(busy, time, **{D0: {"a": 1}})
    registered.apply_le(30)
    registered.compact_to(20)
    for _ in range(3):
        vacuum_shard(location, TXNS, delay_seconds=0, settings=QUIET)
        vacuum_shard(location, D0, delay_seconds=0, settings=QUIET)
    assert location.consensus.scan(TXNS, 0, 1, timeout=60)[0].seqno > 1
    with handle(location) as fresh:
        assert (fresh.upper, fresh.since) == (40, 20)
        assert words(fresh, D0, 39) == {"a": 37}
        assert fresh.registered(20) == (D0, D1)
        assert fresh.latest_write(D0, 20) == 20
        fresh.apply_le(39)
        assert words(fresh, D0, 39) == words(registered, D0, 39) == {"a": 37}
