"""One test for each fault that a simulated history found in the layers below."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import strandline.txn.apply
from strandline.changes import spans as changes
from strandline.database import Database
from strandline.engine.duck import Failures, instance
from strandline.env import Deadline, RealEnv
from strandline.errors import AsOfTooOld, DeadlineExceeded, TransactionConflict
from strandline.ids import DatabaseId, ShardId
from strandline.location import Location
from strandline.location.memory import MemoryBlob, MemoryConsensus, MemoryStore
from strandline.read.reading import Reading
from strandline.settings import Settings
from strandline.state.commands import Finish, Read
from strandline.state.model import EVERYTHING
from strandline.table import Table
from strandline.testing.faults import FAIL_BEFORE, Call, Fault, Faults, FaultyBlob, FaultyConsensus
from strandline.txn import view
from strandline.txn.apply import apply_table
from strandline.txn.handle import Handle, Origin
from strandline.upkeep.background import open_store
from strandline.write import commit as writing
from strandline.write import proof
from tests.support.deadlines import within
from tests.tables.helpers import apply

COLUMNS = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])


def rows(*found: tuple[int, int | None]) -> pa.Table:
    return pa.table({"k": [k for k, _ in found], "v": [v for _, v in found]}, schema=COLUMNS)


def found(table: Table, **asked: Any) -> list[tuple[int, int | None]]:
    return [(row["k"], row["v"]) for row in table.scan(**asked).to_arrow().to_pylist()]


@pytest.fixture(name="events")
def _events(db: Database) -> Table:
    return db.create_table("events", COLUMNS, row_keys="k")


def test_what_an_overwrite_adds_outlives_being_applied(events: Table) -> None:
    # Its two entries, one with retractions and one without, became one part; the rows of the one
    # without had no diff there, and counted for nothing.
    events.append(rows((1, 1), (2, 2)))
    events.overwrite(rows((1, 5), (3, 5)))
    assert found(events) == [(1, 5), (3, 5)]
    apply(events)
    assert found(events) == [(1, 5), (3, 5)]


def test_a_retraction_does_not_outlive_its_row_where_statistics_skip_that(events: Table) -> None:
    # The part with the row was skipped, the entry with its retraction was not: "retracted more
    # often than it was added".
    events.append(rows((1, 1), (2, 1)))
    apply(events)
    events.append(rows((1, 7)))
    events.delete(where="v = 1")
    assert found(events, where="v > 5") == [(1, 7)]
    apply(events)
    assert found(events, where="v > 5") == [(1, 7)]


def test_a_delete_with_a_token_that_finds_nothing_is_still_computed_from_its_read(
    events: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It was committed at a time at which there was something to delete.
    commit = writing.commit_writes
    others = [rows((1, 1)), rows((2, 2))]

    def late(*arguments: Any, **more: Any) -> Any:
        if others:
            data = others.pop()
            monkeypatch.setattr(writing, "commit_writes", commit)
            events.append(data)
        return commit(*arguments, **more)

    monkeypatch.setattr(writing, "commit_writes", late)
    events.delete(where="v = 2", token=("cleaner", 1))
    assert found(events) == []


def test_history_counts_all_rows_of_an_overwrite(events: Table) -> None:
    events.append(rows((1, 1), (2, 2)))
    events.overwrite(rows((3, 3)))
    assert events.history(1).to_pylist()[0]["rows"] == 3


def test_the_latest_time_can_be_read_whatever_a_compaction_gives_up(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Between reading the txns shard and the data shard, since passed what had been the latest.
    table = db.create_table("brief", COLUMNS, row_keys="k", properties={"retention": "0 seconds"})
    table.append(rows((1, 1)))
    data_for = view.data_for
    meanwhile: list[Callable[[], object]] = [
        lambda: table.append(rows((2, 2))),
        lambda: apply(table),
        lambda: table.append(rows((3, 3))),
        lambda: db.compact("brief", strategy="full"),
    ]

    def slow(*arguments: Any) -> Any:
        steps, meanwhile[:] = list(meanwhile), []
        for step in steps:
            step()
        return data_for(*arguments)

    monkeypatch.setattr(view, "data_for", slow)
    assert found(table) == [(1, 1), (2, 2), (3, 3)]


def test_a_copy_goes_on_though_a_compaction_gave_up_what_it_began_to_read(
    db: Database, events: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The other table's since had passed the time of the view that the copy was computed from.
    brief = db.create_table("brief", COLUMNS, row_keys="k", properties={"retention": "0 seconds"})
    brief.append(rows((1, 1)))
    apply(brief)
    meanwhile: list[Callable[[], object]] = [
        lambda: brief.append(rows((2, 2))),
        lambda: apply(brief),
        lambda: db.compact("brief", strategy="full"),
    ]

    def slow(*arguments: Any, **more: Any) -> Any:
        seen = view.view_of(*arguments, **more)
        steps, meanwhile[:] = list(meanwhile), []
        for step in steps:
            step()
        return seen

    monkeypatch.setattr(writing, "view_of", slow)
    db.sql("insert into events select * from brief")
    assert found(events) == [(1, 1), (2, 2)]


def faulty(decide: Callable[[Call], Fault | None], store: MemoryStore) -> Database:
    """A database in memory whose every commit is applied at once, behind calls that may fail."""
    env, faults = RealEnv(), Faults(decide)
    blob = FaultyBlob(MemoryBlob(store, env), faults)
    consensus = FaultyConsensus(MemoryConsensus(store), faults)
    location = Location(blob, consensus, "memory://", "memory://")
    settings = Settings(background=False, apply_backlog_commits=1)
    inside = open_store(
        location, DatabaseId("d" + "0" * 32), ShardId("s" + "0" * 16), env, settings
    )
    origin = Origin("memory://", "rw", settings, lambda _: inside, leaves_process=False)
    return Database(Handle(inside, origin))


def test_a_commit_stands_when_the_work_after_it_fails() -> None:
    # With background off the caller's thread applies after its commit; that it could not went to
    # the caller as if the commit had not happened.
    store = MemoryStore()
    broken: list[bool] = []
    db = faulty(lambda call: FAIL_BEFORE if broken and call.kind == "upload" else None, store)
    table = db.create_table("events", COLUMNS, row_keys="k")
    broken.append(True)
    table.append(rows((1, 1)))
    assert found(table) == [(1, 1)]
    assert not any("/part/" in key for key in store.objects)
    broken.clear()
    table.append(rows((2, 2)))
    assert found(table) == [(1, 1), (2, 2)]
    assert any("/part/" in key for key in store.objects)


def test_a_token_that_was_committed_is_success_though_its_record_is_hard_to_read() -> None:
    # One failed look at the log was told to the caller: the write "did not happen".
    failing: list[Fault] = []
    db = faulty(
        lambda call: failing.pop() if failing and call.kind == "scan" else None, MemoryStore()
    )
    table = db.create_table("events", COLUMNS, row_keys="k")
    first = table.append(rows((1, 1)), token=("loader", 1))
    failing += [FAIL_BEFORE] * 3
    assert table.append(rows((1, 1)), token=("loader", 1)).micros == first.micros
    failing += [FAIL_BEFORE] * 3
    assert table.history().num_rows == 2
    assert found(table) == [(1, 1)]


def test_parts_that_go_while_a_leaf_is_read_in_several_pieces_give_their_rows_once(
    db: Database, open_database: Callable[..., Database]
) -> None:
    # Each piece whose part was gone was planned anew for the whole leaf.
    events = db.create_table("events", COLUMNS, row_keys="k")
    for first in (0, 10, 20):
        events.append(rows((first, 1), (first + 1, 1)))
        apply(events)
    everything = found(events)
    with open_database().transaction() as transaction:
        scan = transaction["events"].scan()
        assert scan.explain().parts == 3
        db.compact("events", strategy="full")
        store = events._handle.store
        dead = [key[1] for key, _ in store.data(events.id).state.dead.range()]
        assert len(dead) == 3
        for key in dead:
            store.location.blob.delete(key, timeout=60)
        assert [(row["k"], row["v"]) for row in scan.to_arrow().to_pylist()] == everything


def test_a_transaction_on_a_handle_that_was_idle_for_long_reads_what_is_kept(
    db: Database, open_database: Callable[..., Database]
) -> None:
    # "serializable" begins with what the handle knows; nothing ever made it look for more.
    events = db.create_table("brief", COLUMNS, row_keys="k", properties={"retention": "0 seconds"})
    events.append(rows((1, 1)))
    idle = open_database()
    assert "brief" in idle.tables()
    events.append(rows((2, 2)))
    apply(events)
    events.append(rows((3, 3)))
    apply(events)
    db.compact("brief", strategy="full")
    with idle.transaction(isolation="serializable") as transaction:
        assert transaction["brief"].scan().count() == 3
        events.append(rows((4, 4)))
        apply(events)
        db.compact("brief", strategy="full")
        assert transaction["brief"].scan().count() == 3


def test_a_proof_that_runs_out_of_time_says_so(
    open_database: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    # It was a UsageError about a timeout of 0 that nobody had passed.
    db = open_database(settings=Settings(background=False, inline_bytes_max=0))
    events = db.create_table("events", COLUMNS, row_keys="k")
    deadline = Deadline(events._handle.store.env, 60)
    read = Read(events.id, events.append(rows((1, 1))).micros + 1, (EVERYTHING,))
    events.append(rows((2, 2)))
    look = changes.spans_after

    def slow(*arguments: Any, **more: Any) -> Any:
        spans = look(*arguments, **more)
        deadline.at = 0.0
        return spans

    monkeypatch.setattr(proof, "spans_after", slow)
    with pytest.raises((DeadlineExceeded, TransactionConflict)):
        proof.proven(events._handle, read, lambda _, __: True, deadline)


def test_a_subscription_without_a_hold_begins_with_a_snapshot_that_is_kept(
    db: Database, open_database: Callable[..., Database]
) -> None:
    # What was the latest time when it began was given up before the snapshot was read.
    events = db.create_table("brief", COLUMNS, row_keys="k", properties={"retention": "0 seconds"})
    events.append(rows((1, 1)))
    following = open_database(mode="r")["brief"].subscribe(timeout=0.1)
    for key in (2, 3):
        events.append(rows((key, key)))
        apply(events)
    db.compact("brief", strategy="full")
    snapshot = next(following)
    assert snapshot.rows.column("k").to_pylist() == [1, 2, 3]


def test_what_ends_a_thread_while_sql_reads_rows_goes_for_no_mistake_in_the_text() -> None:
    # It was told as the user's error: "reading the stream failed: Python exception".
    def interrupted() -> Iterator[pa.RecordBatch]:
        yield from rows((1, 1)).to_batches()
        raise KeyboardInterrupt

    failures = Failures()
    reader = pa.RecordBatchReader.from_batches(COLUMNS, failures.watched(interrupted()))
    with instance(ordered=True) as cursor:
        cursor.register("events", reader)
        with pytest.raises(KeyboardInterrupt), failures.told("the query"):
            cursor.sql("SELECT sum(v) FROM events").fetchall()


def test_a_table_may_be_finished_by_another_vacuum_while_this_one_applies_its_last_commits(
    db: Database, events: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    # "the shard's upper is None: another was first".
    events.append(rows((1, 1)))
    db.drop_table("events")
    bite = strandline.txn.apply._bite
    others = [1]

    def late(*arguments: Any) -> Any:
        found = bite(*arguments)
        if others.pop() if others else False:
            apply_table(db._handle.store, events.id, deadline=within(60))
            db._handle.store.data(events.id).submit(Finish(), deadline=within(60))
        return found

    monkeypatch.setattr(strandline.txn.apply, "_bite", late)
    assert apply_table(db._handle.store, events.id, deadline=within(60)).commits == 0
    assert not others
    db.vacuum()


def test_history_that_is_given_up_before_sql_begins_to_read_is_told_as_such(
    db: Database, events: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It was told as a mistake in the text: "exporting a stream failed".
    def given_up(*_: Any) -> Reading:
        raise AsOfTooOld("that time is not kept any more")

    events.append(rows((1, 1)))
    found = db.sql("SELECT * FROM events")
    monkeypatch.setattr("strandline.sql.tables.Reading.of", given_up)
    with pytest.raises(AsOfTooOld):
        found.fetchall()
