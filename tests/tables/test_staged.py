"""Staged transactions: nobody sees them, and they are committed whole, or not at all."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline as sl
from strandline.database import Database
from strandline.state.codec import decode_staged, encode_staged
from strandline.state.commands import Acknowledge, Expire, Read, Write
from strandline.state.model import Batch, Interval
from tests.support.deadlines import within
from tests.tables.helpers import QUIET, READINGS, apply

LARGE = replace(QUIET, inline_bytes_max=0)
"""Every batch becomes a part."""


@pytest.fixture(params=["inline", "parts"])
def sized(request: pytest.FixtureRequest, open_database: Callable[..., Database]) -> Database:
    db = open_database(settings=QUIET if request.param == "inline" else LARGE)
    db.create_table("readings", READINGS, row_keys="sensor", sort_keys="at")
    schema = pa.schema([("item", pa.string()), ("count", pa.int64())])
    db.create_table("stock", schema, row_keys="item", kind="keyed")
    return db


def readings_of(*ats: int) -> dict[str, list[Any]]:
    count = len(ats)
    return {
        "sensor": [1] * count,
        "at": list(ats),
        "name": [None] * count,
        "value": [None] * count,
    }


def ats(db: Database) -> list[int]:
    found: list[int] = db.table("readings").scan().to_arrow().column("at").to_pylist()
    return found


def counts(db: Database) -> dict[str, int]:
    rows = db.table("stock").scan().to_arrow().to_pylist()
    return {row["item"]: row["count"] for row in rows}


def test_what_is_staged_is_seen_once_it_is_merged_and_committed(sized: Database) -> None:
    staged = sized.stage({"readings": readings_of(1, 2), "stock": {"item": ["a"], "count": [1]}})
    assert staged.rows == 3
    assert ats(sized) == []
    with sized.transaction() as tx:
        assert tx.merge(staged) == 3
        assert len(tx["readings"]) == 2, "within the transaction"
        assert ats(sized) == []
    assert ats(sized) == [1, 2]
    assert counts(sized) == {"a": 1}
    assert tx.committed is not None
    times = sized.history(1).column("tables").to_pylist()
    assert sorted(times[0]) == ["readings", "stock"]
    apply(sized.table("readings"))
    assert ats(sized) == [1, 2]


def test_several_are_merged_into_one_commit_and_the_last_row_of_a_key_counts(
    sized: Database, open_database: Callable[..., Database]
) -> None:
    others = [open_database(settings=LARGE) for _ in range(3)]
    sent = [
        other.stage(
            {"readings": readings_of(number), "stock": {"item": ["a"], "count": [number]}}
        ).to_bytes()
        for number, other in enumerate(others)
    ]
    commits = sized.history().num_rows
    with sized.transaction() as tx:
        tx["readings"].append(readings_of(9))
        for data in sent:
            tx.merge(sl.Staged.from_bytes(data))
    assert sorted(ats(sized)) == [0, 1, 2, 9]
    assert counts(sized) == {"a": 2}
    assert sized.history().num_rows == commits + 1


def test_a_transaction_that_is_rolled_back_leaves_nothing_of_it(sized: Database) -> None:
    staged = sized.stage({"readings": readings_of(1)})
    tx = sized.transaction()
    tx.merge(staged)
    tx.rollback()
    assert ats(sized) == []
    with sized.transaction() as again:
        again.merge(staged)
    assert ats(sized) == [1]


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_it_is_committed_once_at_most(
    sized: Database, open_database: Callable[..., Database], applied: bool, nested: bool
) -> None:
    # Its parts cannot be in a table twice: the second commit could never be applied.
    staged = sized.stage({"readings": readings_of(1)})
    data = staged.to_bytes()
    if nested:
        outer = sized.transaction()
        outer["readings"].append(readings_of(2))
        outer.merge(staged)
        staged = outer.stage()
    with sized.transaction() as first:
        first.merge(staged)
        with pytest.raises(sl.UsageError, match="merged into this transaction already"):
            first.merge(sl.Staged.from_bytes(data))
    assert first.committed is not None
    if applied:
        apply(sized["readings"])
    for db in (sized, open_database(settings=QUIET)):
        second = db.transaction()
        second["readings"].append(readings_of(3))
        second.merge(sl.Staged.from_bytes(data))
        with pytest.raises(sl.UsageError, match=f"committed at {first.committed.micros} already"):
            second.commit()
    apply(sized["readings"])
    assert ats(sized) == ([1, 2] if nested else [1])


def test_a_second_commit_with_the_same_token_is_the_first(sized: Database) -> None:
    data = sized.stage({"readings": readings_of(1)}).to_bytes()
    commits = []
    for _ in range(2):
        with sized.transaction(token=("import", 1)) as tx:
            tx.merge(sl.Staged.from_bytes(data))
        commits.append(tx.committed)
    assert commits[0] == commits[1]
    assert ats(sized) == [1]


def test_parts_of_a_session_that_expired_are_refused(
    sized: Database, open_database: Callable[..., Database]
) -> None:
    # CASES T15
    executor = open_database(settings=LARGE)
    driver = open_database(settings=QUIET)
    lost = executor.stage({"readings": readings_of(1)}).to_bytes()
    good = open_database(settings=LARGE).stage({"readings": readings_of(2)}).to_bytes()
    _, writes, *_ = decode_staged(lost)
    session = writes[0].batch.parts[0].key.split("/")[0]
    machine = driver._handle.store.txns.machine
    known = machine.look().state.sessions.get((session,))
    assert known is not None
    assert machine.submit(Expire(session, known.count))
    tx = driver.transaction()
    tx.merge(sl.Staged.from_bytes(lost))
    tx.merge(sl.Staged.from_bytes(good))
    with pytest.raises(sl.Fenced, match=session):
        tx.commit()
    assert machine.submit(Acknowledge(session))
    with driver.transaction() as other:
        other.merge(sl.Staged.from_bytes(good))
    assert ats(driver) == [2], "what else was merged is not touched by it"


def test_another_process_commits_it(tmp_path: Any) -> None:
    place = str(tmp_path / "lake")
    with sl.connect(place, settings=LARGE) as db:
        db.create_table("readings", READINGS, row_keys="sensor", sort_keys="at")
        data = db.stage({"readings": readings_of(*range(100))}).to_bytes()
        # The session is the other's: this handle goes on under one of its own.
        db.table("readings").append(readings_of(500))
        program = (
            "import sys, strandline as sl\n"
            f"with sl.connect({place!r}) as db, db.transaction() as tx:\n"
            "    tx.merge(sl.Staged.from_bytes(sys.stdin.buffer.read()))\n"
        )
        subprocess.run([sys.executable, "-c", program], input=data, check=True, timeout=300)
        assert sorted(ats(db)) == [*range(100), 500]
    with sl.connect(place) as again:
        assert len(again.table("readings")) == 101


def test_a_transaction_with_reads_is_staged_with_them(sized: Database) -> None:
    stock = sized.table("stock")
    stock.upsert({"item": ["a", "b"], "count": [1, 1]})

    def staged() -> sl.Staged:
        tx = sized.transaction()
        count = tx["stock"].get("a").column("count")[0].as_py()
        tx["stock"].upsert({"item": ["a"], "count": [count + 1]})
        found = tx.stage()
        with pytest.raises(sl.UsageError, match="was staged"):
            tx.commit()
        return sl.Staged.from_bytes(found.to_bytes())

    first = staged()
    stock.upsert({"item": ["b"], "count": [7]})  # not what it has read
    apply(stock)
    sized._handle.store.txns.tidy(deadline=within(60.0))
    with sized.transaction() as tx:
        tx.merge(first)
    assert counts(sized) == {"a": 2, "b": 7}
    for isolation in ("snapshot", "serializable", "strict serializable"):
        second = staged()
        stock.upsert({"item": ["a"], "count": [10]})
        tx = sized.transaction(isolation=isolation)
        tx.merge(second)
        with pytest.raises(sl.TransactionConflict):
            tx.commit()
    assert counts(sized) == {"a": 10, "b": 7}


def test_what_is_staged_is_for_its_database_and_its_tables(sized: Database, tmp_path: Any) -> None:
    staged = sized.stage({"readings": readings_of(1)})
    with (
        sl.connect(f"memory://{tmp_path}-another") as other,
        other.transaction() as tx,
        pytest.raises(sl.UsageError, match="staged for database"),
    ):
        tx.merge(staged)
    sized.drop_table("readings")
    with sized.transaction() as tx, pytest.raises(sl.UnknownTable):
        tx.merge(staged)
    with pytest.raises(sl.UnknownTable, match="did you mean 'stock'"):
        sized.stage({"stocks": {}})


def test_bytes_that_were_damaged_are_refused(sized: Database) -> None:
    data = bytearray(sized.stage({"readings": readings_of(1)}).to_bytes())
    data[-1] ^= 1
    with pytest.raises(sl.Corruption, match="staged transaction"):
        sl.Staged.from_bytes(bytes(data))


KEYS = st.binary(max_size=4)


@given(
    writes=st.lists(
        st.builds(Write, st.text(max_size=4), st.builds(Batch, rows=st.integers(0, 9)))
    ),
    bounds=st.lists(st.lists(KEYS, unique=True, min_size=1).map(sorted)),
    since=st.integers(0, 1 << 60),
    ids=st.lists(st.text(max_size=4)),
)
def test_staged_transactions_go_to_bytes_and_back(
    writes: list[Write], bounds: list[list[bytes]], since: int, ids: list[str]
) -> None:
    reads = []
    for number, keys in enumerate(bounds):
        uppers: list[bytes | None] = [*keys[1:], None if number % 2 else b"\xff" * 5]
        reads.append(Read(str(number), since, tuple(map(Interval, keys, uppers))))
    assert decode_staged(encode_staged("d1", writes, reads, ids)) == ("d1", writes, reads, ids)


def test_its_session_is_kept_alive_while_it_is_there_and_handed_over_with_its_bytes(
    open_database: Callable[..., Database],
) -> None:
    db = open_database(settings=LARGE)
    db.create_table("readings", READINGS, row_keys="sensor", sort_keys="at")
    store = db._handle.store
    session = store.txns.machine.session
    staged = db.stage({"readings": readings_of(1)})
    assert store.pulse._held
    staged.to_bytes()
    staged.to_bytes()
    other = store.txns.machine.session
    assert other != session
    db.stage({"readings": readings_of(2)})  # let go of at once
    del staged
    assert not store.pulse._held
    assert store.txns.machine.session == other
    known = store.txns.look(within(60.0)).state.sessions
    assert {key[0] for key, _ in known.range()} == {session, other}


def test_rows_that_are_inline_need_no_session(open_database: Callable[..., Database]) -> None:
    db = open_database()
    db.create_table("readings", READINGS, row_keys="sensor", sort_keys="at")
    session = db._handle.store.txns.machine.session
    data = db.stage({"readings": readings_of(1)}).to_bytes()
    assert db._handle.store.txns.machine.session == session
    db.close()
    other = open_database()
    with other.transaction() as tx:
        tx.merge(sl.Staged.from_bytes(data))
    assert ats(other) == [1]
