"""Commits: over two tables, beside 1,000 tables, of many processes and threads, beside large work.

    python -m benchmarks.transactions [--seconds 60] [--rows 10000000] [--only NAME ...]

As shipped: SQLite with `synchronous=FULL`, and apply, tidy, rollups and merges in the background.
Each measure has a database of its own and runs for `--seconds`. Times are ratios within one run.
Consensus calls and bytes are counted on the way into the adapter, and are exact.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier as Gate
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

import strandline as sl
from benchmarks.common import KEY_SPACE, SCHEMA, line, machine, median, ratio, rows, scratch
from strandline.location.consensus import Record
from strandline.location.sqlite.consensus import SqliteConsensus

PROCESSES = 8
THREADS = 64
BATCH_ROWS = 100
MANY_TABLES = 1_000
LOOKED_UP_ROWS = 200_000
WARM_SECONDS = 1.0

COUNTS = pa.schema([("k", pa.int64()), ("n", pa.int64())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--only", nargs="*", choices=[*MEASURES], default=[*MEASURES])
    given = parser.parse_args()
    print(f"transactions: {given.seconds:g} s each; {machine()}")
    for name in given.only:
        print(f"-- {name}", flush=True)
        with scratch() as path:
            MEASURES[name](path / "lake", given)


# --- what a commit costs


class CountingConsensus:
    """A Consensus that counts its calls, and keeps the size of each record that was put."""

    def __init__(self, consensus: SqliteConsensus) -> None:
        self._consensus = consensus
        self.calls: Counter[tuple[str, str]] = Counter()
        self.sizes: dict[str, list[int]] = {}

    def head(self, shard: str, *, timeout: float) -> Record | None:
        self.calls[shard, "head"] += 1
        return self._consensus.head(shard, timeout=timeout)

    def compare_and_set(self, shard: str, expected: int, data: bytes, *, timeout: float) -> bool:
        self.calls[shard, "compare_and_set"] += 1
        self.sizes.setdefault(shard, []).append(len(data))
        return self._consensus.compare_and_set(shard, expected, data, timeout=timeout)

    def scan(self, shard: str, from_seqno: int, limit: int, *, timeout: float) -> Sequence[Record]:
        self.calls[shard, "scan"] += 1
        return self._consensus.scan(shard, from_seqno, limit, timeout=timeout)

    def truncate(self, shard: str, before_seqno: int, *, timeout: float) -> int:
        self.calls[shard, "truncate"] += 1
        return self._consensus.truncate(shard, before_seqno, timeout=timeout)

    def turn(self, *, timeout: float) -> AbstractContextManager[None]:
        return self._consensus.turn(timeout=timeout)

    def keys(self, *, timeout: float) -> Sequence[str]:
        self.calls["", "keys"] += 1
        return self._consensus.keys(timeout=timeout)

    def close(self) -> None:
        self._consensus.close()


@contextmanager
def counted(path: Path, settings: sl.Settings | None = None) -> Iterator[tuple[Any, Any]]:
    """A database, and the Consensus that counts what it asks for."""
    made: list[CountingConsensus] = []
    adapters = cast("Any", sys.modules["strandline.connect"])

    def counting(*args: Any, **kwargs: Any) -> CountingConsensus:
        made.append(CountingConsensus(SqliteConsensus(*args, **kwargs)))
        return made[-1]

    adapters.SqliteConsensus = counting
    try:
        with sl.connect(path, settings=settings) as db:
            db.tables()
            yield db, made[-1]
    finally:
        adapters.SqliteConsensus = SqliteConsensus


def commit_one_row(db: sl.Database, tables: Sequence[str], row: dict[str, Any]) -> float:
    """Seconds of a transaction that appends one row to each of the tables."""
    start = time.perf_counter()
    with db.transaction() as tx:
        for name in tables:
            tx[name].append([row])
    return time.perf_counter() - start


def two_tables(path: Path, given: argparse.Namespace) -> None:
    """One row to one table, and one row to each of two, in turn."""
    taken: dict[int, list[float]] = {1: [], 2: []}
    with counted(path) as (db, consensus):
        for name in ("one", "other"):
            db.create_table(name, SCHEMA, row_keys="key")
        records = rows(10_000, 1).to_pylist()
        txns = db._handle.store.txns.machine.shard  # noqa: SLF001  below what users hold
        calls: dict[int, Counter[str]] = {1: Counter(), 2: Counter()}
        sizes: dict[int, list[int]] = {1: [], 2: []}
        for count, number in alternating(given.seconds, (1, 2)):
            before, put = consensus.calls.copy(), len(consensus.sizes[txns])
            record = records[number % len(records)]
            taken[count].append(commit_one_row(db, ("one", "other")[:count], record))
            calls[count] += on_shard(consensus.calls - before, txns)
            sizes[count] += consensus.sizes[txns][put:]
    for count in (1, 2):
        line(f"one-row commit over {count} table(s)", taken[count])
        cost(f"Consensus per commit over {count}", calls[count], sizes[count], len(taken[count]))
    ratio("two tables against one (p50)", median(taken[2]), median(taken[1]), "at most 1.5")


def many_tables(path: Path, given: argparse.Namespace) -> None:
    """The same commit in a database of 2 tables and in one of 1,000, in turn.

    Both logs have the same number of records, so that numbers in them are of one length.
    """
    taken: dict[int, list[float]] = {2: [], MANY_TABLES: []}
    with (
        counted(path / "few") as (few, few_consensus),
        counted(path / "many") as (many, many_consensus),
    ):
        for number in range(MANY_TABLES):
            many.create_table(f"table{number:04d}", SCHEMA, row_keys="key")
            if number < 2:
                few.create_table(f"table{number:04d}", SCHEMA, row_keys="key")
            else:
                few["table0000"].set(split_rows=10_000 + number)
        dbs = {2: (few, few_consensus), MANY_TABLES: (many, many_consensus)}
        shards = {n: db._handle.store.txns.machine.shard for n, (db, _) in dbs.items()}  # noqa: SLF001
        records = rows(10_000, 1).to_pylist()
        calls: dict[int, Counter[str]] = {2: Counter(), MANY_TABLES: Counter()}
        sizes: dict[int, list[int]] = {2: [], MANY_TABLES: []}
        for count, number in alternating(given.seconds, (2, MANY_TABLES)):
            db, consensus = dbs[count]
            before, put = consensus.calls.copy(), len(consensus.sizes[shards[count]])
            record = records[number % len(records)]
            taken[count].append(commit_one_row(db, ("table0000", "table0001"), record))
            calls[count] += on_shard(consensus.calls - before, shards[count])
            sizes[count] += consensus.sizes[shards[count]][put:]
    for count, seconds in taken.items():
        line(f"commit over 2 of {count} tables", seconds)
        cost(f"Consensus per commit, {count} tables", calls[count], sizes[count], len(seconds))
    ratio("1,000 tables against 2 (p50)", median(taken[MANY_TABLES]), median(taken[2]), "1.2")


def alternating(seconds: float, kinds: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The kinds in turn, numbered, until the time is over."""
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        for kind in kinds:
            yield kind, number
        number += 1


def on_shard(calls: Counter[tuple[str, str]], shard: str) -> Counter[str]:
    """Those on one shard, by name."""
    found: Counter[str] = Counter()
    for (of, name), count in calls.items():
        if of == shard:
            found[name] += count
    return found


def cost(label: str, calls: Counter[str], sizes: Sequence[int], commits: int) -> None:
    """Prints calls per commit, and bytes of a record."""
    shown = "  ".join(f"{name} {count / commits:.3f}" for name, count in sorted(calls.items()))
    size = f"p50 {median(sizes):.0f}  mean {statistics.fmean(sizes):.1f} bytes"
    print(f"{label:<44} {shown}  record {size}", flush=True)


# --- many at once


@dataclass(frozen=True)
class Work:
    """What one of several processes does: `step` again and again, from a common start."""

    path: Path
    number: int
    seconds: float
    step: Callable[[sl.Database, int, int], object]


def work(task: Work, gate: Gate, results: Any) -> None:
    """Runs in a process of its own; gives the seconds of each step."""
    taken: list[float] = []
    failed = ""
    with counted(task.path) as (db, consensus):
        gate.wait()
        before, cpu = consensus.calls.copy(), time.process_time()
        end = time.monotonic() + task.seconds
        turn = 0
        while time.monotonic() < end:
            start = time.perf_counter()
            try:
                task.step(db, task.number, turn)
            except sl.StrandlineError as error:
                failed = repr(error)
                break
            taken.append(time.perf_counter() - start)
            turn += 1
        txns = db._handle.store.txns.machine.shard  # noqa: SLF001  below what users hold
        calls = on_shard(consensus.calls - before, txns)
        results.put((task.number, taken, calls, time.process_time() - cpu, failed))


@contextmanager
def processes(
    path: Path, count: int, seconds: float, step: Callable[[sl.Database, int, int], object]
) -> Iterator[list[list[float]]]:
    """Processes that have begun; at the end of the block what each took per step, by number."""
    context = multiprocessing.get_context("spawn")
    gate, results = context.Barrier(count + 1), context.Queue()
    tasks = [Work(path, number, seconds, step) for number in range(count)]
    started = [context.Process(target=work, args=(task, gate, results)) for task in tasks]
    for process in started:
        process.start()
    gate.wait()
    taken: list[list[float]] = [[] for _ in tasks]
    yield taken
    calls: Counter[str] = Counter()
    cpu = 0.0
    for _ in started:
        number, steps, called, worked, failed = results.get()
        taken[number] = steps
        calls += called
        cpu += worked
        if failed:
            print(f"process {number} FAILED: {failed}")
    for process in started:
        process.join()
    commits = max(1, sum(map(len, taken)))
    shown = "  ".join(f"{name} {each / commits:.2f}" for name, each in sorted(calls.items()))
    print(f"{f'per commit, {count} process(es)':<44} {shown}  CPU {cpu / commits * 1e3:.2f} ms")


_batches: dict[int, pa.Table] = {}


def append_batch(db: sl.Database, number: int, turn: int) -> None:
    """100 rows that no other step has."""
    batch = _batches.get(0)
    if batch is None:
        batch = _batches[0] = rows(BATCH_ROWS, number)
    keys = np.random.default_rng((number, turn)).integers(0, KEY_SPACE, BATCH_ROWS)
    db["readings"].append(batch.set_column(0, SCHEMA.field(0), pa.array(keys)))


def appenders(path: Path, given: argparse.Namespace) -> None:
    """8 processes append 100 rows at a time, while another handle looks up keys."""
    keys = np.random.default_rng(5).choice(KEY_SPACE, LOOKED_UP_ROWS, replace=False)
    with sl.connect(path) as db:
        table = db.create_table("readings", SCHEMA, row_keys="key")
        table.append(rows(len(keys), 6, keys=keys))
        db.compact()
        before = look_up_for(table, keys, 3.0)
        began = time.monotonic()
        backlog: list[tuple[float, int]] = []
        during: list[float] = []
        with processes(path, PROCESSES, given.seconds, append_batch) as taken:
            began = time.monotonic()
            while time.monotonic() < began + given.seconds:
                during += look_up_for(table, keys, 0.5)
                backlog.append((time.monotonic() - began, backlog_of(db, table)))
        commits = sum(map(len, taken))
        line("append of 100 rows", [t for each in taken for t in each])
        print(f"{'commits a second of 8 processes':<44} {commits / given.seconds:.0f}   (aim: 400)")
        slowest = min(map(len, taken)) / (commits / PROCESSES)
        print(f"{'slowest process against the mean':<44} {slowest:.2f}")
        # It goes up and down with each bite that is applied: peaks of some seconds are compared.
        at_ten = [count for at, count in backlog if 7 <= at < 13] or [backlog[0][1]]
        last = [count for at, count in backlog if at >= given.seconds - 6]
        shown = f"{max(at_ten)} at 10 s, {max(last)} at the end, {max(c for _, c in backlog)} most"
        print(f"{'commits not applied':<44} {shown}   (aim: no more at the end)")
        line("lookup before", before)
        line("lookup meanwhile", during)
        db.compact()
        after = look_up_for(table, keys, 3.0)
        line("lookup afterwards", after)
        ratio("lookup meanwhile against idle (p50)", median(during), median(before), "at most 2")
        found, expected = len(table), commits * BATCH_ROWS + len(keys)
        assert found == expected, (found, expected)


def look_up_for(table: sl.Table, keys: np.ndarray, seconds: float) -> list[float]:
    """Seconds of each lookup of keys at random."""
    rng = np.random.default_rng()
    taken = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        key = int(keys[rng.integers(len(keys))])
        start = time.perf_counter()
        found = table.get(key)
        taken.append(time.perf_counter() - start)
        assert found.num_rows >= 1
    return taken


def backlog_of(db: sl.Database, table: sl.Table) -> int:
    """Commits to the table that are not applied."""
    store = db._handle.store  # noqa: SLF001  below what users hold
    look = store.txns.look()
    upper = store.data(table.id).look().meta.upper or 0
    return len({entry.time for entry in store.txns.overlay(look, table.id, upper)})


def threads(path: Path, given: argparse.Namespace) -> None:
    """64 threads of one process append one row at a time."""
    with sl.connect(path) as db:
        table = db.create_table("readings", SCHEMA, row_keys="key")
        data = rows(THREADS, 7)
        taken: list[list[float]] = [[] for _ in range(THREADS)]
        begin = time.monotonic() + WARM_SECONDS

        def append(number: int) -> None:
            record = data.slice(number, 1)
            end = begin + given.seconds
            while time.monotonic() < end:
                start = time.perf_counter()
                table.append(record)
                if time.monotonic() >= begin:
                    taken[number].append(time.perf_counter() - start)

        workers = [threading.Thread(target=append, args=(n,)) for n in range(THREADS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        line("append of one row, 64 threads", [t for each in taken for t in each])
        commits = sum(map(len, taken))
        print(f"{'commits a second':<44} {commits / given.seconds:.0f}   (aim: 2000)")


def increment(db: sl.Database, key: int) -> None:
    """Reads a counter and writes it, one higher."""

    def raised(tx: sl.Transaction) -> None:
        row = tx["counters"].get_one(key)
        tx["counters"].upsert({"k": [key], "n": [1 + (row["n"] if row else 0)]})

    db.transact(raised)


def increment_own(db: sl.Database, number: int, _: int) -> None:
    """A counter that no other process has."""
    increment(db, number)


def increment_hot(db: sl.Database, _: int, __: int) -> None:
    """The counter that all processes have."""
    increment(db, 0)


def disjoint(path: Path, given: argparse.Namespace) -> None:
    """Each process reads and writes a counter of its own."""
    rates = {}
    for count in (1, 2, 4, PROCESSES):
        taken = incremented(path / str(count), count, given.seconds / 4, increment_own)
        rates[count] = sum(map(len, taken)) / (given.seconds / 4)
        line(f"read-modify-write of {count} process(es)", [t for each in taken for t in each])
    shown = "  ".join(f"{count}: {rate:.0f}" for count, rate in rates.items())
    print(f"{'commits a second by processes':<44} {shown}")
    ratio("8 processes against one", rates[PROCESSES], rates[1], "more than 1")


def hot(path: Path, given: argparse.Namespace) -> None:
    """All processes read and write one counter."""
    taken = incremented(path, PROCESSES, given.seconds, increment_hot)
    counts = sorted(map(len, taken))
    line("read-modify-write of one hot key", [t for each in taken for t in each])
    print(f"{'commits a second':<44} {sum(counts) / given.seconds:.0f}; by process {counts}")
    ratio("slowest of 8 against the mean", counts[0], sum(counts) / len(counts), "at least 0.2")


def incremented(
    path: Path, count: int, seconds: float, step: Callable[[sl.Database, int, int], object]
) -> list[list[float]]:
    """What the processes took; what the counters say has to agree."""
    with sl.connect(path) as db:
        db.create_table("counters", COUNTS, row_keys="k", kind="keyed")
        with processes(path, count, seconds, step) as taken:
            pass
        total = sum(db["counters"].scan().to_arrow().column("n").to_pylist())
        assert total == sum(map(len, taken)), (total, list(map(len, taken)))
    return taken


def fairness(path: Path, given: argparse.Namespace) -> None:
    """Two processes with short read-modify-writes of two keys, two that update all keys by SQL."""
    with sl.connect(path) as db:
        db.create_table("counters", COUNTS, row_keys="k", kind="keyed")
        db["counters"].append({"k": list(range(20)), "n": [0] * 20})
    context = multiprocessing.get_context("spawn")
    gate, results = context.Barrier(4), context.Queue()
    for number in range(4):
        task = (path, number, min(8.0, given.seconds), gate, results)
        context.Process(target=compete, args=task).start()
    for number, tries, taken in sorted(results.get() for _ in range(4)):
        label = f"{'read-modify-write' if number < 2 else 'update'}, process {number}"
        print(f"{label:<44} {len(tries)} commits, {sum(tries)} tries, {max(tries, default=0)} most")
        if taken:
            line(label, taken)


def compete(path: Path, number: int, seconds: float, gate: Gate, results: Any) -> None:
    """Runs in a process of its own; gives the tries and the seconds of each commit."""
    done: list[int] = []
    taken: list[float] = []
    tries = 0

    def step(tx: sl.Transaction) -> None:
        nonlocal tries
        tries += 1
        if number >= 2:
            tx.sql("update counters set n = n + 1")
            return
        row = tx["counters"].get_one(number)
        tx["counters"].upsert({"k": [number], "n": [1 + (row["n"] if row else 0)]})

    with sl.connect(path) as db:
        gate.wait()
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            start, tries = time.perf_counter(), 0
            try:
                db.transact(step, timeout=left)
            except sl.DeadlineExceeded:
                break
            done.append(tries)
            taken.append(time.perf_counter() - start)
    results.put((number, done, taken))


# --- beside large work


def write_many(db: sl.Database, count: int) -> None:
    """One transaction of so many rows."""
    piece = 500_000

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, count, piece):
            yield from rows(min(piece, count - start), 9 + start).to_batches()

    with db.transaction() as tx:
        tx["large"].append(pa.RecordBatchReader.from_batches(SCHEMA, batches()))


def scan_all(db: sl.Database) -> None:
    """A full scan of the large table."""
    db.sql("select count(*), sum(value) from large").fetchall()


def beside(path: Path, given: argparse.Namespace) -> None:
    """One-row commits: in quiet, and while others write 10M rows, scan, and stay open."""
    context = multiprocessing.get_context("spawn")
    with sl.connect(path) as db:
        small = db.create_table("small", SCHEMA, row_keys="key")
        large = db.create_table("large", SCHEMA, row_keys="key")
        large.append(rows(given.rows // 4, 8))
        quiet = paced(small, given.seconds / 2)
        line("one-row commit, quiet", quiet)
        # The 10M rows once; the rest for as long as that takes.
        gone = context.Event()
        ready = context.Barrier(4)
        others = [
            context.Process(target=large_work, args=(path, kind, given.rows, ready, gone))
            for kind in ("write", "scan", "open")
        ]
        for process in others:
            process.start()
        ready.wait()
        loaded: list[float] = []
        began = time.monotonic()
        while not gone.is_set():
            loaded += paced(small, 0.5)
        took = time.monotonic() - began
        for process in others:
            process.join()
        assert all(process.exitcode == 0 for process in others)
        line(f"one-row commit beside large work ({took:.0f} s)", loaded)
        ratio("beside large work against quiet (p50)", median(loaded), median(quiet), "at most 2")
        assert len(large) == given.rows // 4 + given.rows


def large_work(path: Path, kind: str, count: int, ready: Any, gone: Any) -> None:
    """What one of the others does, until the large transaction is committed."""
    with sl.connect(path) as db:
        db.tables()
        ready.wait()
        if kind == "write":
            try:
                write_many(db, count)
            finally:
                gone.set()
            return
        with db.transaction(timeout=3_600) as tx:
            while not gone.is_set():
                if kind == "scan":
                    scan_all(db)
                else:
                    tx["small"].head(10)
                    time.sleep(0.1)


def paced(table: sl.Table, seconds: float) -> list[float]:
    """Seconds of one-row appends, 100 a second."""
    records = rows(1_000, 10).to_pylist()
    taken = []
    end = time.monotonic() + seconds
    due = time.monotonic()
    while time.monotonic() < end:
        start = time.perf_counter()
        table.append([records[len(taken) % len(records)]])
        taken.append(time.perf_counter() - start)
        due = max(due + 0.01, time.monotonic() - 0.05)
        time.sleep(max(0.0, due - time.monotonic()))
    return taken


MEASURES: dict[str, Callable[[Path, argparse.Namespace], None]] = {
    "two_tables": two_tables,
    "many_tables": many_tables,
    "appenders": appenders,
    "threads": threads,
    "disjoint": disjoint,
    "hot": hot,
    "fairness": fairness,
    "beside": beside,
}


if __name__ == "__main__":
    main()
