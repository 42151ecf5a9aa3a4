"""A statement ends when its time is over, or on Ctrl-C, and leaves nothing behind."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.connect import connect
from strandline.database import Database
from strandline.engine.copying import copied_from
from strandline.engine.duck import instance
from strandline.engine.statements import parse_copy
from strandline.env import Deadline, RealEnv
from strandline.errors import DeadlineExceeded
from strandline.parts.typed import typed
from tests.tables.helpers import QUIET

ENDLESS = "FROM range(1000000000) a, range(1000000000) b WHERE a.range + b.range = 3.5"
COUNT = f"SELECT count(*) AS n {ENDLESS}"
ENDLESS_ROWS = "FROM range(1000000000000)"
SHORT = 0.2


@pytest.fixture(scope="module", autouse=True)
def _loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Loads DuckDB, which would take the time of the first statement."""
    with connect("memory://loaded", settings=QUIET) as db:
        table = db.create_table("t", {"k": [1]}, row_keys="k")
        file = tmp_path_factory.mktemp("loaded") / "t.csv"
        db.sql(f"COPY (FROM t) TO '{file}'")
        db.sql(f"COPY t FROM '{file}'")
        assert len(table) == 2


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Database]:
    """A database with one table of two rows."""
    with connect(f"memory://{tmp_path}", settings=QUIET) as db:
        table = db.create_table(
            "t", pa.schema([("k", pa.int64()), ("v", pa.float64())]), row_keys="k"
        )
        table.append({"k": [1, 2], "v": [1.5, 2.5]})
        yield db


READERS: dict[str, Callable[[Any], Any]] = {
    "fetchall": lambda found: found.fetchall(),
    "iterated": list,
    "df": lambda found: found.df(),
    "pl": lambda found: found.pl(),
    "to_arrow_table": lambda found: found.to_arrow_table(),
    "to_arrow_reader": lambda found: found.to_arrow_reader().read_all(),
    "c_stream": pa.table,
    "repr": repr,
    "len": len,
    "shape": lambda found: found.shape,
    "filtered": lambda found: found.filter("n > 0").fetchall(),
}


def timed(db: Database, found: Any) -> Any:
    """The result as `timeout=SHORT` makes it, however slow the machine was until here."""
    vars(found)["_deadline"] = Deadline(db._handle.store.env, SHORT)
    return found


@pytest.mark.parametrize("reader", READERS)
def test_rows_are_fetched_within_the_timeout_of_their_query(lake: Database, reader: str) -> None:
    found = timed(lake, lake.sql(COUNT))
    with pytest.raises(DeadlineExceeded, match=r"the query 'SELECT count.* within 0\.2") as caught:
        READERS[reader](found)
    assert caught.value.may_have_happened is False
    assert lake.sql("SELECT count(*) FROM t").fetchall() == [(2,)]


@pytest.mark.parametrize(
    "stream",
    [
        lambda found: found.to_arrow_reader(1000),
        pa.RecordBatchReader.from_stream,
        lambda found: found.iter_rows(),
    ],
)
def test_a_stream_is_bounded_batch_by_batch(
    lake: Database, stream: Callable[[Any], Iterator[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    late = lake.sql(f"SELECT range FROM range(10) UNION ALL SELECT n FROM ({COUNT})")
    batches = stream(lake.sql("SELECT range FROM range(1000000)"))
    next(batches)
    # Whoever takes them may take an hour between any two.
    monkeypatch.setattr(lake._handle.store.env, "monotonic", lambda: time.monotonic() + 3600)
    next(batches)
    # But each wait for one has an end.
    # (Through the C interface an error is an OSError, which a deadline's is as well.)
    with pytest.raises(OSError, match=r"the query 'SELECT range.* did not end within"):
        list(stream(timed(lake, late)))


def test_a_result_gives_its_rows_however_late_it_is_asked(
    lake: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = lake.sql("SELECT sum(v) FROM t")
    monkeypatch.setattr(lake._handle.store.env, "monotonic", lambda: time.monotonic() + 1e6)
    assert found.fetchall() == [(4.0,)]


WRITES = [
    f"INSERT INTO t SELECT n, 0 FROM ({COUNT})",
    f"INSERT INTO t SELECT range, 0 {ENDLESS_ROWS}",
    f"INSERT INTO t SELECT k, (SELECT n FROM ({COUNT})) FROM t",
    f"DELETE FROM t WHERE k = ({COUNT})",
    f"DELETE FROM t WHERE v > (SELECT count(*) {ENDLESS} AND a.range > t.k)",
    f"UPDATE t SET v = ({COUNT})",
    f"UPDATE t SET v = 0 WHERE EXISTS ({COUNT})",
    f"COPY (SELECT * FROM ({COUNT})) TO '{{path}}/out.csv'",
    f"COPY (SELECT range {ENDLESS_ROWS}) TO '{{path}}/out.parquet'",
    f"COPY t TO '{{path}}/out.csv' (NULLSTR (({COUNT})::varchar))",
    f"COPY t FROM '{{path}}/in.csv' (HEADER, NULLSTR (({COUNT})::varchar))",
]


@pytest.mark.parametrize("text", WRITES)
def test_writes_end_in_time_and_change_nothing(lake: Database, tmp_path: Path, text: str) -> None:
    (tmp_path / "in.csv").write_text("k,v\n1,1\n")
    with pytest.raises(DeadlineExceeded) as caught:
        lake.sql(text.format(path=tmp_path), timeout=SHORT)
    assert caught.value.may_have_happened is False
    assert lake["t"].scan().to_arrow().to_pydict() == {"k": [1, 2], "v": [1.5, 2.5]}
    assert lake["t"].history().num_rows == 2
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_in_a_transaction_statements_end_in_time(lake: Database) -> None:
    with lake.transaction() as tx:
        with pytest.raises(DeadlineExceeded):
            tx.sql(COUNT, timeout=SHORT).fetchall()
        with pytest.raises(DeadlineExceeded):
            tx.sql(f"DELETE FROM t WHERE k = ({COUNT})", timeout=SHORT)
        assert tx.sql("DELETE FROM t WHERE k = 1") == 1
    assert len(lake["t"]) == 1


def test_files_are_copied_in_time_or_it_is_said_that_they_were_not(
    lake: Database, tmp_path: Path
) -> None:
    file = tmp_path / "in.csv"
    file.write_text("k,v\n1,1\n")
    copy = parse_copy(f"COPY t FROM '{file}'")
    clock = itertools.count()

    class Passing(RealEnv):
        def monotonic(self) -> float:
            return next(clock)

    for seconds in range(1, 12):
        deadline = Deadline(Passing(), seconds)
        try:
            rows = copied_from(copy, typed(lake["t"]._version)[0], None, deadline).read_all()
        except DeadlineExceeded as error:
            assert "COPY" in str(error)  # noqa: PT017
        else:
            assert rows.num_rows == 1
            return
    raise AssertionError("it never has enough time")


# --- Ctrl-C


@contextmanager
def ctrl_c(ready: Callable[[], bool]) -> Iterator[None]:
    """Presses Ctrl-C once `ready`, while the block runs, and expects the block to end with it."""
    main = threading.main_thread().ident
    assert main == threading.get_ident()
    over = threading.Event()

    def press() -> None:
        while not ready() and not over.is_set():
            time.sleep(0.001)
        if not over.is_set():
            signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    finger = threading.Thread(target=press)
    finger.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        over.set()
        finger.join()
        signal.signal(signal.SIGINT, before)


def asked() -> set[threading.Thread]:
    """Those on which DuckDB is at work for somebody."""
    return {each for each in threading.enumerate() if each.name == "strandline-query"}


def at_length() -> Callable[[], bool]:
    """Whether DuckDB is at the piece of a statement that does not end, as far as can be told."""
    since: list[float] = []

    def ready() -> bool:
        if asked():
            since.append(time.monotonic())
        return bool(since) and since[0] < time.monotonic() - SHORT

    return ready


@pytest.mark.parametrize(
    "text",
    [
        COUNT,
        f"SELECT k FROM t WHERE v > (SELECT count(*) {ENDLESS} AND a.range > t.k)",
        *WRITES,
    ],
)
def test_ctrl_c_ends_a_statement_at_once(lake: Database, tmp_path: Path, text: str) -> None:
    (tmp_path / "in.csv").write_text("k,v\n1,1\n")
    with ctrl_c(at_length()):
        lake.sql(text.format(path=tmp_path)).fetchall()
    assert not asked()
    assert lake["t"].scan().to_arrow().to_pydict() == {"k": [1, 2], "v": [1.5, 2.5]}
    assert lake.sql("SELECT count(*) FROM t").fetchall() == [(2,)]
    assert lake.history().num_rows == 2
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


@pytest.mark.parametrize("until", [1, 40])
def test_ctrl_c_ends_an_append_whose_rows_never_end(lake: Database, until: int) -> None:
    """DuckDB, which sorts them, calls for the next ones on threads of its own."""
    asked_for = 0
    unsorted = pa.table({"k": range(20_000, 0, -1), "v": [0.5] * 20_000}).to_batches()

    def endless() -> Iterator[pa.RecordBatch]:
        nonlocal asked_for
        while True:
            asked_for += 1
            yield from unsorted

    rows = pa.RecordBatchReader.from_batches(unsorted[0].schema, endless())
    with ctrl_c(lambda: asked_for >= until):
        lake["t"].append(rows, timeout=300)
    assert not asked()
    assert lake.history().num_rows == 2
    lake["t"].append({"k": [3], "v": [1.0]})
    assert lake["t"].scan().count() == 3


def test_a_result_can_be_asked_again_after_ctrl_c(lake: Database) -> None:
    found = lake.sql("SELECT k FROM t ORDER BY k")
    slow = lake.sql(COUNT)
    with ctrl_c(at_length()):
        slow.fetchall()
    assert found.fetchall() == [(1,), (2,)]
    assert slow.limit(0).fetchall() == []


def test_what_ends_beside_a_late_stop_is_not_ended_by_it(lake: Database) -> None:
    """A stop that comes when nothing runs is forgotten by what is asked next."""
    found = lake.sql("SELECT count(*) FROM t")
    for _ in range(3):
        vars(found)["_cursor"].interrupt()
        assert found.fetchall() == [(2,)]
    cursor = instance(ordered=False)
    cursor.interrupt()
    assert cursor.execute("SELECT 1").fetchall() == [(1,)]
    cursor.close()


def test_a_file_whose_rows_fail_on_the_way_is_given_up(lake: Database, tmp_path: Path) -> None:
    """DuckDB 2.0 waits for ever when a COPY fails that has begun to write."""
    value = "CASE WHEN range = 3000000 THEN error('late') ELSE range END"
    late = f"SELECT {value} AS n FROM range(4000000)"
    for form in ("parquet", "csv"):
        with pytest.raises(Exception, match="late"):
            lake.sql(f"COPY ({late}) TO '{tmp_path}/out.{form}'")
    assert not list(tmp_path.iterdir())
