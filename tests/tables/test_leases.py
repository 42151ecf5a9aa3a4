"""Sessions that end while their owner is idle, at work or dead, as users of tables meet it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import strandline.txn.apply
import strandline.write.rows
from strandline.database import Database
from strandline.errors import Fenced
from strandline.parts.files.write import write_part
from strandline.shard.machine import Machine
from strandline.shard.merging import run_job
from strandline.state.commands import Claim, Expire, Output
from strandline.state.plan import CompactionJob
from strandline.table import Table
from strandline.upkeep.compaction import CompactionReport, compact_table, workshop
from strandline.write.commit import commit_writes
from tests.support.deadlines import within
from tests.tables.helpers import QUIET, apply

Open = Callable[..., Database]
Runner = Callable[[Sequence[CompactionJob]], Iterator[tuple[CompactionJob, tuple[Output, ...]]]]

PARTS = replace(QUIET, inline_bytes_max=0)
# A quarter of the lease has always passed.
HASTY = replace(PARTS, lease_seconds=1e-6)
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def rows(*keys: int) -> pa.Table:
    return pa.table({"k": list(keys), "v": list(keys)}, schema=SCHEMA)


def keys(table: Table) -> list[int]:
    return sorted(table.scan().to_arrow()["k"].to_pylist())


def txns(db: Database) -> Machine:
    return db._handle.store.txns.machine


def data(db: Database, table: Table) -> Machine:
    return db._handle.store.data(table.id)


def expire(victim: Machine, other: Machine) -> None:
    """Has another end the victim's session, which has to be registered."""
    other.look()
    session = other.ask(lambda s: s.sessions.get((victim.session,)))
    assert session is not None
    assert other.submit(Expire(victim.session, session.count)) is True


def compact(db: Database, table: Table, **more: Any) -> CompactionReport:
    (report,) = db.compact(table.name, strategy="full", **more)
    return report


@pytest.fixture(name="db")
def _db(open_database: Open) -> Database:
    return open_database(settings=PARTS)


@pytest.fixture(name="other")
def _other(open_database: Open) -> Database:
    return open_database(settings=PARTS)


@pytest.fixture(name="table")
def _table(db: Database) -> Table:
    """A table of three parts."""
    table = db.create_table("t", SCHEMA, row_keys="k")
    for key in (1, 2, 3):
        table.append(rows(key))
    return table


# --- idle, or at work


@pytest.mark.parametrize("inline", [True, False])
def test_an_idle_owner_does_not_notice_that_its_session_expired(
    open_database: Open, other: Database, table: Table, inline: bool
) -> None:
    settings = replace(HASTY, inline_bytes_max=QUIET.inline_bytes_max if inline else 0)
    db = open_database(settings=settings)
    mine = db.table("t")
    mine.append(rows(4))
    before = txns(db).session
    expire(txns(db), txns(other))
    mine.append(rows(5))
    assert txns(db).session != before
    assert keys(mine) == keys(table) == [1, 2, 3, 4, 5]
    now = txns(db).session
    db.close()
    newest = txns(other).look()
    left = newest.ask(lambda s: {key[0]: v for key, v in s.sessions.range()})
    assert left[before].expired is not None
    assert now not in left


def test_a_write_that_slept_with_staged_parts_is_fenced_and_can_be_made_again(
    db: Database, other: Database, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = db._handle.store.pulse._held

    def asleep(*given: Any, **more: Any) -> Any:
        assert [each.machine for each in held.values()] == [txns(db)]
        expire(txns(db), txns(other))
        return commit_writes(*given, **more)

    monkeypatch.setattr(strandline.write.rows, "commit_writes", asleep)
    with pytest.raises(Fenced, match="write the data again"):
        table.append(rows(4))
    assert keys(table) == [1, 2, 3]
    monkeypatch.undo()
    held.clear()  # pytest keeps the error, and with it the write
    table.append(rows(4))
    assert keys(table) == [1, 2, 3, 4]
    assert not held


def test_each_shard_knows_its_own_sessions_and_a_close_ends_them(
    db: Database, other: Database, table: Table
) -> None:
    apply(table)
    compact(db, table)
    machines = txns(db), data(db, table)
    assert machines[0].session != machines[1].session
    for part in data(db, table).ask(lambda s: [key[0] for key, _ in s.parts.range()]):
        assert part.startswith(machines[1].session)
    db.close()
    mine = other.table("t")
    for machine in (txns(other), data(other, mine)):
        state = machine.look()
        assert state.ask(lambda s: list(s.sessions.range())) == []


def test_rows_that_were_gathered_under_a_session_that_expired_are_gathered_again(
    open_database: Open, table: Table, other: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = open_database()
    mine = db.table("t")
    mine.append(rows(4))
    apply(mine)
    mine.append(rows(5))
    written: list[str] = []

    def slowly(blob: Any, key: str, *given: Any, **more: Any) -> Any:
        part = write_part(blob, key, *given, **more)
        if not written:
            expire(data(db, mine), data(other, mine))
        written.append(key)
        return part

    monkeypatch.setattr(strandline.txn.apply, "write_part", slowly)
    assert apply(mine) == 1
    assert len(written) == 2
    assert keys(table) == [1, 2, 3, 4, 5]
    kept = data(db, mine).ask(lambda s: [key[0] for key, _ in s.parts.range()])
    assert written[0] not in kept
    assert written[1] in kept


# --- claims


def test_a_table_that_another_compacts_is_left_alone_unless_told_otherwise(
    db: Database, other: Database, table: Table
) -> None:
    theirs = data(other, table)
    theirs.submit(Claim())
    report = compact(db, table)
    assert report.claimed_by == theirs.session
    assert (report.jobs, report.parts_before, report.parts_after) == (0, 3, 3)
    assert report.why_nothing is not None
    assert f"session {theirs.session} is compacting it" in report.why_nothing
    forced = compact(db, table, force=True)
    assert (forced.jobs, forced.discarded, forced.parts_after) == (1, 0, 1)
    assert data(db, table).state.meta.claim == theirs.session
    table.append(rows(4))
    theirs.submit(Claim(release=True))
    assert compact(db, table).claimed_by is None
    assert data(db, table).state.meta.claim == ""
    assert keys(table) == [1, 2, 3, 4]


def test_a_compaction_that_fails_gives_its_claim_back(db: Database, table: Table) -> None:
    store, version = db._handle.store, table._version

    def failing(jobs: Sequence[CompactionJob]) -> Iterator[tuple[CompactionJob, Any]]:
        assert data(db, table).state.meta.claim == data(db, table).session
        assert [held.machine for held in store.pulse._held.values()] == [data(db, table)]
        raise ZeroDivisionError
        yield jobs[0], ()

    with pytest.raises(ZeroDivisionError):
        compact_table(store, version, strategy="full", deadline=within(60), runner=failing)
    assert data(db, table).look().meta.claim == ""
    assert not store.pulse._held


def test_a_compaction_that_finds_nothing_to_do_writes_nothing(db: Database, table: Table) -> None:
    compact(db, table)
    seqno = data(db, table).look().seqno
    assert compact(db, table).jobs == 0
    assert data(db, table).look().seqno == seqno


def test_a_merge_whose_session_expired_is_discarded_and_made_later(
    db: Database, other: Database, table: Table
) -> None:
    store, version = db._handle.store, table._version

    slow = [True]

    def slowly(jobs: Sequence[CompactionJob]) -> Iterator[tuple[CompactionJob, Any]]:
        for job in jobs:
            shop = workshop(store, version, within(60), threads=1)
            outputs = run_job(shop, job, deadline=within(60))
            if slow:
                slow.pop()
                expire(data(db, table), data(other, table))
            yield job, outputs

    report = compact_table(store, version, strategy="full", deadline=within(60), runner=slowly)
    assert (report.jobs, report.discarded, report.parts_after) == (2, 1, 1)
    assert data(other, table).look().meta.claim == ""
    assert keys(table) == keys(other.table("t")) == [1, 2, 3]


def test_a_dead_holder_loses_its_claim_to_those_who_come_again_and_again(
    open_database: Open, other: Database, table: Table
) -> None:
    theirs = data(other, table)
    theirs.submit(Claim())
    db = open_database(settings=HASTY)
    reports = [compact(db, table) for _ in range(5)]
    assert [report.claimed_by for report in reports] == [theirs.session] * 4 + [None]
    assert reports[-1].parts_after == 1


def test_who_writes_looks_after_the_sessions_of_others(open_database: Open, table: Table) -> None:
    silent, busy = open_database(settings=HASTY), open_database(settings=HASTY)
    theirs, mine = silent.table("t"), busy.table("t")
    theirs.append(rows(4))
    session = txns(silent).session

    def expired() -> bool:
        found = txns(busy).look().ask(lambda s: s.sessions.get((session,)))
        return found is not None and found.expired is not None

    for key in range(10, 15):
        assert not expired()
        mine.append(rows(key))
    assert expired()
    theirs.append(rows(5))
    assert keys(table) == [1, 2, 3, 4, 5, *range(10, 15)]
