"""Work on tables in other processes, with nothing but pickles in between."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.connect import LOG_FILE, connect
from strandline.database import Database
from strandline.distributed import (
    BulkWrite,
    Handover,
    PartWriter,
    ReadPlan,
    ReadSplit,
    Sampler,
    begin_write,
    deadline_of,
    job_runner,
    plan_read,
    read_of,
    reads_of_all,
    register_engine,
    table_of,
    verifying,
    writing,
)
from strandline.distributed import reading as distributed_reading
from strandline.distributed.site import workplace
from strandline.errors import (
    Corruption,
    Fenced,
    Held,
    LocationError,
    SchemaMismatch,
    StrandlineError,
    UsageError,
)
from strandline.settings import Settings
from strandline.table import Table
from strandline.times import Commit
from strandline.upkeep import compaction
from tests.spark.helpers import rows as sorted_rows

R = TypeVar("R")
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    """Two processes that share nothing with this one."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.fixture
def run(pool: ProcessPoolExecutor) -> Any:
    """Runs tasks there; a `TaskRunner`."""

    def run(tasks: Sequence[Callable[[], R]]) -> list[R]:
        return list(pool.map(called, tasks))

    return run


def called(task: Callable[[], R]) -> R:
    return task()


def data(start: int, end: int, value: int = 0) -> pa.Table:
    """Rows in a scattered order."""
    count = end - start
    keys = [start + (i * 7919) % count for i in range(count)]
    return pa.table({"k": keys, "v": [value] * count}, SCHEMA)


def rows(tables: Sequence[pa.Table]) -> list[tuple[Any, ...]]:
    return sorted_rows(pa.concat_tables(tables))


def read_split(split: ReadSplit) -> list[pa.Table]:
    return list(split.tables())


def sampled(sampler: Sampler, table: pa.Table) -> Any:
    return sampler(table.select(["k"]).to_batches())


def written(writer: PartWriter, table: pa.Table) -> Any:
    return writer(table.to_batches(max_chunksize=100))


def made(db: Database, kind: str) -> Table:
    """A table with parts in two leaves, some of them overlapping, and rows that are inline."""
    table = db.create_table("t", SCHEMA, row_keys="k", kind=kind, split_points=[500])
    bulk(db, [data(0, 1_000)])
    bulk(db, [data(100, 200, 1)])
    table.delete(where="k = 7")
    table.append({"k": [2_000], "v": [2]})
    return table


def bulk(db: Database, tables: Sequence[pa.Table]) -> Commit:
    write = begin_write(db, "t", "load")
    assert isinstance(write, BulkWrite)
    _, writer = write.plan([sampled(write.sampler(), table) for table in tables], 2)
    return write.commit([written(writer, table) for table in tables])


@pytest.mark.parametrize("kind", ["rows", "keyed"])
@pytest.mark.parametrize("files", [True, False])
def test_splits_are_read_elsewhere_as_of_the_time_of_their_plan(
    db: Database,
    pool: ProcessPoolExecutor,
    run: Any,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    files: bool,
) -> None:
    monkeypatch.setattr(distributed_reading, "_SPLIT_ROWS", 300)
    table = made(db, kind)
    expected = rows([table.scan().to_arrow()])
    plan = plan_read(read_of(db, "t"), db, files=files)
    # Neither later rows nor another shape of what is stored make a difference to them.
    bulk(db, [data(0, 1_000, 9)])
    table.append({"k": [3], "v": [9]})
    found = [table for tables in pool.map(read_split, plan.splits) for table in tables]
    assert len(plan.splits) > 1
    plan.verify(run, deadline_of(db, None))
    assert bool(plan.files) <= files
    found += [table.select(["k", "v"]) for table in map(_parquet, plan.files)]
    assert rows([*found, *plan.rows]) == expected
    assert plan.read.schema.equals(table.schema)


def _parquet(path: str) -> pa.Table:
    return pq.read_table(path)


def test_a_split_gives_the_columns_and_rows_that_were_asked_for(
    db: Database, pool: ProcessPoolExecutor
) -> None:
    made(db, "keyed")
    plan = plan_read(read_of(db, "t").selecting(["v"], "k < 150"))
    found = [table for tables in pool.map(read_split, plan.splits) for table in tables]
    assert rows(found) == [(0,)] * 99 + [(1,)] * 50


def test_reads_of_all_tables_are_of_one_moment(db: Database) -> None:
    made(db, "rows")
    db.create_table("u", SCHEMA, row_keys="k")
    reads = reads_of_all(db, deadline=deadline_of(db, None))
    assert {read.version.name for read in reads} == {"t", "u"}
    assert len({read.as_of for read in reads}) == 1


def settled(db: Database) -> ReadPlan:
    db.create_table("t", SCHEMA, row_keys="k")
    bulk(db, [data(0, 1_000)])
    plan = plan_read(read_of(db, "t"), db, files=True)
    assert (len(plan.files), plan.splits, plan.rows) == (1, (), ())
    return plan


def test_a_file_that_is_damaged_or_gone_is_named_by_a_task(
    db: Database, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "_HERE_BYTES_MAX", 0)
    plan = settled(db)
    plan.verify(run, deadline_of(db, None))
    file = Path(plan.files[0])
    whole = file.read_bytes()
    file.unlink()
    file.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    with pytest.raises(Corruption, match=file.stem):
        plan.verify(run, deadline_of(db, None))
    file.unlink()
    with pytest.raises(Corruption, match="is missing"):
        plan.verify(run, deadline_of(db, None))


def test_a_file_that_was_compacted_away_is_no_damage(
    db: Database, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "_HERE_BYTES_MAX", 0)
    plan = settled(db)
    bulk(db, [data(0, 1_000, 1)])
    db.compact("t", strategy="full")
    Path(plan.files[0]).unlink()  # as a vacuum does, later
    with pytest.raises(LocationError, match="was compacted while"):
        plan.verify(run, deadline_of(db, None))


@pytest.mark.parametrize("kind", ["rows", "keyed"])
def test_parts_are_written_elsewhere_and_committed_here(
    db: Database, pool: ProcessPoolExecutor, kind: str
) -> None:
    table = db.create_table("t", SCHEMA, row_keys="k", kind=kind)
    write = begin_write(db, "t", "load", token=("load", 1), metadata={"by": "test"})
    assert isinstance(write, BulkWrite)
    shares = [data(0, 600), data(400, 1_000, 1)]
    sampler = write.sampler()
    samples = list(pool.map(sampled, [sampler] * 2, shares))
    assert sum(sample.rows for sample in samples) == 1_200
    _, writer = write.plan(samples, 2)
    batches = list(pool.map(written, [writer] * 3, [*shares, shares[0]]))
    assert len(table) == 0
    commit = write.commit(batches[:2])  # the third is a second attempt
    expected = 1_200 if kind == "rows" else 1_000
    assert (commit.rows, len(table)) == (expected, expected)
    newest = db.history(1).to_pylist()[0]
    assert newest["operation"] == "load"
    again = begin_write(db, "t", "load", token=("load", 1))
    assert isinstance(again, Commit)
    assert again.micros == commit.micros


@pytest.mark.parametrize("token", [None, ("load", 1)])
def test_what_was_committed_is_not_committed_again(
    db: Database, token: tuple[str, int] | None
) -> None:
    """Nothing that comes later could be applied, were a part in the log twice."""
    table = db.create_table("t", SCHEMA, row_keys="k")
    write = begin_write(db, "t", "load", token=token)
    assert isinstance(write, BulkWrite)
    _, writer = write.plan([sampled(write.sampler(), data(0, 100))], 2)
    batch = written(writer, data(0, 100))
    first = write.commit([batch, batch])  # a result that arrived twice
    if token is None:
        with pytest.raises(UsageError, match="cannot be committed again"):
            write.commit([batch])
    else:
        assert write.commit([batch]).micros == first.micros
    db.compact("t", strategy="full")
    assert len(table) == 100


def test_a_commit_that_was_refused_is_made_later(db: Database) -> None:
    table = db.create_table("t", SCHEMA, row_keys="k")
    write = begin_write(db, "t", "load")
    assert isinstance(write, BulkWrite)
    _, writer = write.plan([sampled(write.sampler(), data(0, 100))], 2)
    batch = written(writer, data(0, 100))
    with connect(db.url) as other, other["t"].attach("worker"), pytest.raises(Held):
        write.commit([batch])
    assert write.commit([batch]).rows == len(table) == 100


@pytest.mark.parametrize("error", [Fenced("ended"), LocationError("no answer")])
def test_a_commit_stands_whatever_becomes_of_its_apply(
    db: Database, error: StrandlineError, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = db.create_table("t", SCHEMA, row_keys="k")
    write = begin_write(db, "t", "load")
    assert isinstance(write, BulkWrite)
    _, writer = write.plan([sampled(write.sampler(), data(0, 100))], 2)

    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(writing, "apply_table", fails)
    assert write.commit([written(writer, data(0, 100))]).rows == len(table) == 100


def test_the_keys_are_cut_where_the_samples_say(db: Database) -> None:
    db.create_table("t", SCHEMA, row_keys="k", properties={"split_rows": "250"})
    write = begin_write(db, "t", "load")
    assert isinstance(write, BulkWrite)
    bounds, writer = write.plan([sampled(write.sampler(), data(0, 1_000))], 2)
    assert len(bounds) == 3
    assert list(writer.cuts) == bounds
    write.commit([written(writer, data(0, 1_000))])
    assert [leaf["rows"] for leaf in db["t"].partitions().to_pylist()] == [250] * 4


def test_rows_that_do_not_fit_are_refused_where_they_are(
    db: Database, pool: ProcessPoolExecutor
) -> None:
    db.create_table("t", SCHEMA, row_keys="k")
    write = begin_write(db, "t", "load")
    assert isinstance(write, BulkWrite)
    with pytest.raises(SchemaMismatch, match="k"):
        pool.submit(sampled, write.sampler(), pa.table({"k": ["x"]})).result()


def test_a_session_is_kept_alive_for_as_long_as_its_write_lives(db: Database) -> None:
    db.create_table("t", SCHEMA, row_keys="k")
    write = begin_write(db, "t", "load")
    assert isinstance(write, BulkWrite)
    pulse, machine = db._handle.store.pulse, db._handle.store.txns.machine
    assert write.plan([], 1)[1].site.identity.session == machine.session
    assert machine in pulse._machines()
    del write
    assert machine not in pulse._machines()


def test_a_write_is_begun_committed_and_written_by_three_processes(
    db: Database, pool: ProcessPoolExecutor
) -> None:
    table = made(db, "keyed")
    kept = table.scan(where="k >= 150").to_arrow().cast(SCHEMA)
    version = table_of(db, "t")
    handover = Handover.begin(db, version, "overwrite", token=("o", 1), where="k < 150")
    batch = pool.submit(written, handover.writer, data(0, 10, 5)).result()
    first = pool.submit(handover.commit, [batch]).result()
    assert rows([table.scan().to_arrow()]) == rows([data(0, 10, 5), kept])
    # Committed once, though it is asked for twice.
    again = Handover.begin(db, version, "overwrite", token=("o", 1), where="k < 150")
    assert pool.submit(again.commit, [batch]).result().micros == first.micros


@pytest.mark.parametrize("kind", ["rows", "keyed"])
def test_merges_run_elsewhere_and_are_applied_here(
    db: Database, run: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    class Engine:
        """Stands for what a user passes."""

    monkeypatch.setattr(compaction, "_ENGINES", [])
    register_engine(lambda engine: isinstance(engine, Engine), lambda _: job_runner(run))
    table = made(db, kind)
    before = rows([table.scan().to_arrow()])
    told: list[tuple[int, int]] = []
    report = db.compact(
        "t", strategy="full", engine=Engine(), progress=lambda *said: told.append(said)
    )[0]
    assert (report.jobs, report.discarded) == (2, 0)
    assert told == [(1, 2), (2, 2)]
    assert rows([table.scan().to_arrow()]) == before


def test_tasks_that_write_or_merge_do_without_the_log(
    db: Database, pool: ProcessPoolExecutor, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, away = Path(db.url, LOG_FILE), Path(db.url).parent / "away"

    def without_log(tasks: Sequence[Callable[[], R]]) -> list[R]:
        log.rename(away)
        try:
            found: list[R] = run(tasks)
        finally:
            away.rename(log)
        return found

    table = db.create_table("t", SCHEMA, row_keys="k")
    for value in range(2):
        write = begin_write(db, "t", "load")
        assert isinstance(write, BulkWrite)
        _, writer = write.plan([sampled(write.sampler(), data(0, 100))], 2)
        write.commit(without_log([partial(written, writer, data(0, 100, value))]))
    monkeypatch.setattr(compaction, "_ENGINES", [])
    register_engine(lambda engine: engine == "elsewhere", lambda _: job_runner(without_log))
    assert db.compact("t", strategy="full", engine="elsewhere")[0].jobs == 1
    assert len(table) == 200


@pytest.mark.parametrize("url", ["memory://", "Memory://lake"])
def test_a_database_in_memory_is_refused(url: str) -> None:
    with connect(url) as db:
        db.create_table("t", SCHEMA, row_keys="k")
        with pytest.raises(UsageError, match="use a directory"):
            read_of(db, "t")
        with pytest.raises(UsageError, match="use a directory"):
            begin_write(db, "t", "load")


def in_parallel(url: str) -> list[str]:
    return workplace(url, Settings()).env.parallel(str, [1, 2])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python 3.12: there are threads
def test_a_task_runs_in_a_process_that_was_forked_from_one_that_ran_tasks(db: Database) -> None:
    together = threading.Barrier(4)
    workplace(db.url, Settings()).env.parallel(lambda _: together.wait(), range(4))
    child = multiprocessing.get_context("fork").Process(target=in_parallel, args=(db.url,))
    child.start()
    child.join(30)
    child.kill()
    assert child.exitcode == 0


def test_what_is_no_database_is_refused() -> None:
    with pytest.raises(UsageError, match=r"pass what strandline\.connect returned"):
        begin_write("lake", "t", "load")  # type: ignore[arg-type]  # as users do
