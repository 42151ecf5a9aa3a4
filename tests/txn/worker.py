"""Runs transactions of all kinds on a database until they are done, or it is killed.

    python -m tests.txn.worker PATH JOURNALS NUMBER SEED THREADS COUNT
    python -m tests.txn.worker PATH maintain

Each thread keeps a journal: a line with all that a transaction read and wants to write before its
commit is asked for, and a line of what became of it, both synced. So who reads it after a kill
knows of every transaction that may have happened.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa

import strandline as sl
from strandline.errors import AsOfTooOld, TransactionConflict
from strandline.testing.isolation.history import Did, Predicate, Row, Saw, Wrote, point
from strandline.transaction import Isolation, Transaction
from strandline.txn.apply import apply_table
from tests.support.deadlines import within

SETTINGS = sl.Settings(
    inline_bytes_max=2_000,
    rollup_every_records=24,
    page_items_max=16,
    apply_backlog_commits=8,
    backlog_commits_max=64,
    small_parts_max=3,
    part_rows_target=100,
    row_group_rows=20,
)
ACCOUNTS, COUNTERS, SHELVES = 12, 4, 30
KEYED = ("savings", "checking", "counters")
TABLES = (*KEYED, "events")
_COLUMNS = [("value", pa.int64()), ("by", pa.string())]
SINGLE = pa.schema([("k", pa.int64()), *_COLUMNS])
DOUBLE = pa.schema([("k", pa.int64()), ("n", pa.int64()), *_COLUMNS])


def create(db: sl.Database) -> None:
    """The tables: of some only the latest time stays readable, and nothing dead stays for long."""
    soon = {"deletion_delay": "0 seconds", "split_rows": 100}
    for name in KEYED:
        retention = "0 seconds" if name == "checking" else "7 days"
        db.create_table(
            name, SINGLE, row_keys="k", kind="keyed", properties={**soon, "retention": retention}
        )
    db.create_table(
        "events",
        DOUBLE,
        row_keys="k",
        sort_keys="n",
        split_points=[SHELVES // 2],
        properties={**soon, "retention": "0 seconds"},
    )


def seen(table: str, found: pa.Table) -> tuple[Row, ...]:
    """The rows of a result."""
    names = ["k", "n"] if table == "events" else ["k"]
    keys = zip(*(found.column(name).to_pylist() for name in names), strict=True)
    values, by = found.column("value").to_pylist(), found.column("by").to_pylist()
    return tuple(Row(*row) for row in zip(keys, values, by, strict=True))


class Recorder:
    """A transaction that notes what it reads and writes."""

    def __init__(self, transaction: Transaction, name: str) -> None:
        self.steps: list[Saw | Wrote] = []
        self._transaction = transaction
        self._name = name

    def get(self, table: str, key: int) -> tuple[Row, ...]:
        return self._saw(point(table, (key,)), self._transaction[table].get(key))

    def between(self, table: str, lower: int, upper: int) -> tuple[Row, ...]:
        found = self._transaction[table].scan(key_range=(lower, upper)).to_arrow()
        return self._saw(Predicate(table, (lower,), (upper,)), found)

    def where(self, table: str, least: int, below: int) -> tuple[Row, ...]:
        found = self._transaction[table].scan(where=f"value >= {least} and value < {below}")
        return self._saw(Predicate(table, least=least, below=below), found.to_arrow())

    def sql(self, table: str, least: int) -> tuple[Row, ...]:
        found = self._transaction.sql(f"SELECT * FROM {table} WHERE value >= {least}")
        return self._saw(Predicate(table, least=least), found.to_arrow_table())

    def put(self, table: str, key: int, value: int) -> None:
        self._transaction[table].upsert(self._row({"k": [key]}, value, SINGLE))
        self.steps.append(Wrote(table, (key,), value))

    def insert(self, key: int, number: int, value: int) -> None:
        self._transaction["events"].append(self._row({"k": [key], "n": [number]}, value, DOUBLE))
        self.steps.append(Wrote("events", (key, number), value))

    def erase(self, table: str, key: int) -> None:
        self._transaction[table].delete(keys=[key])
        self.steps.append(Wrote(table, (key,), None))

    def clear(self, lower: int, upper: int) -> None:
        rows = self.between("events", lower, upper)
        count = self._transaction["events"].delete(f"k >= {lower} and k < {upper}")
        assert count == len(rows), (count, rows)
        self.steps += [Wrote("events", row.key, None) for row in rows]

    def _row(self, keys: dict[str, list[int]], value: int, schema: pa.Schema) -> pa.Table:
        return pa.table({**keys, "value": [value], "by": [self._name]}, schema=schema)

    def _saw(self, asked: Predicate, found: pa.Table) -> tuple[Row, ...]:
        rows = seen(asked.table, found)
        self.steps.append(Saw(asked, rows))
        return rows


@dataclass(frozen=True)
class Kinds:
    """What a transaction may do. `number` is that of no other."""

    random: random.Random
    number: int

    def pick(self) -> tuple[str, Callable[[Recorder], None]]:
        kinds = {
            "count": 3,
            "transfer": 4,
            "skew": 3,
            "fill": 4,
            "poor": 2,
            "blind": 3,
            "clear": 1,
            "look": 3,
            "again": 2,
            "close": 1,
            "append": 3,
        }
        name = self.random.choices(list(kinds), list(kinds.values()))[0]
        return name, getattr(self, name)

    def _account(self) -> int:
        return self.random.randrange(ACCOUNTS)

    def count(self, tx: Recorder) -> None:
        """A counter goes up by one."""
        key = self.random.randrange(COUNTERS)
        before = tx.get("counters", key)
        tx.put("counters", key, 1 + (before[0].value if before else 0))

    def transfer(self, tx: Recorder) -> None:
        """From an account of one table to one of another."""
        one, other = self.random.sample(["savings", "checking"], 2)
        keys = self._account(), self._account()
        found = [tx.get(table, key) for table, key in zip((one, other), keys, strict=True)]
        values = [rows[0].value if rows else 0 for rows in found]
        amount = self.random.randrange(1, 20)
        tx.put(one, keys[0], values[0] - amount)
        tx.put(other, keys[1], values[1] + amount)

    def skew(self, tx: Recorder) -> None:
        """Reads both accounts of one owner, and changes one of them."""
        key = self._account()
        found = [tx.get(table, key) for table in ("savings", "checking")]
        total = sum(row.value for rows in found for row in rows)
        tx.put(self.random.choice(["savings", "checking"]), key, total)

    def fill(self, tx: Recorder) -> None:
        """Counts the events of some shelves, and puts another one there or nearby."""
        lower = self.random.randrange(SHELVES)
        rows = tx.between("events", lower, lower + self.random.choice([1, 2, 5]))
        shelf = min(SHELVES - 1, lower + self.random.randrange(3))
        tx.insert(shelf, self.number, len(rows))

    def poor(self, tx: Recorder) -> None:
        """Writes down how many accounts are in some range of money."""
        table = self.random.choice(["savings", "checking"])
        least = self.random.randrange(-100, 100)
        rows = tx.where(table, least, least + 50)
        if self.random.random() < 0.5:
            tx.put("counters", self.random.randrange(COUNTERS), len(rows))
        else:
            tx.put(table, self._account(), least)

    def blind(self, tx: Recorder) -> None:
        """Writes over what is there, whatever that is, and adds an event."""
        tx.put(self.random.choice(KEYED), self.random.randrange(COUNTERS), self.number % 100)
        if self.random.random() < 0.5:
            tx.insert(self.random.randrange(SHELVES), self.number, 0)

    def clear(self, tx: Recorder) -> None:
        """Takes the events of some shelves away, and says so."""
        lower = self.random.randrange(SHELVES)
        tx.clear(lower, lower + 4)
        tx.put("counters", 0, lower)

    def look(self, tx: Recorder) -> None:
        """Only reads, over all tables."""
        lower = self.random.randrange(SHELVES)
        asks: list[Callable[[], object]] = [
            lambda: tx.between("events", lower, lower + 5),
            lambda: tx.where("savings", -50, 50),
            lambda: tx.get("checking", self._account()),
            lambda: tx.get("counters", 0),
            lambda: tx.sql("checking", -20),
            lambda: tx.get("events", lower),
        ]
        for ask in self.random.sample(asks, self.random.randrange(2, 5)):
            ask()

    def again(self, tx: Recorder) -> None:
        """Reads what it wrote, and writes it again."""
        key = self._account()
        rows = tx.get("savings", key)
        tx.put("savings", key, 7)
        tx.get("savings", key)
        tx.insert(key, self.number, 1)
        tx.between("events", key, key + 2)
        tx.put("savings", key, rows[0].value + 1 if rows else 1)
        tx.sql("savings", 0)
        tx.put("checking", key, len(tx.where("savings", 0, 10)))

    def close(self, tx: Recorder) -> None:
        """An account goes, its money to a counter."""
        key = self._account()
        rows = tx.get("savings", key)
        tx.erase("savings", key)
        tx.put("counters", 1, rows[0].value if rows else 0)

    def append(self, tx: Recorder) -> None:
        """Events only, some of them too many for an inline batch."""
        count = self.random.choice([1, 1, 2, 8])
        for each in range(count):
            tx.insert(self.random.randrange(SHELVES), self.number * 10 + each, each)


class Journal:
    """What a thread did, so that it outlives the process."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")

    def note(self, **what: Any) -> None:
        self._file.write(json.dumps(what).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def run(db: sl.Database, journals: Path, process: str, first: int, seed: int, count: int) -> None:
    """So many transactions, one after the other."""
    journal = Journal(journals / f"{process}.jsonl")
    chance = random.Random(seed)
    for number in range(first, first + count):
        name = f"{process}#{number}"
        isolation: Isolation = chance.choice(get_args(Isolation))
        kind, do = Kinds(chance, number).pick()
        token = None if kind == "look" else (process, number)
        begin = time.monotonic_ns()
        transaction = db.transaction(isolation=isolation, token=token)
        recorder = Recorder(transaction, name)
        try:
            do(recorder)
            ready = True
        except AsOfTooOld:  # of some tables only the latest time is kept
            ready = False
        if ready and chance.random() < 0.1:
            time.sleep(chance.random() * 0.05)
        did = Did(name, process, isolation, begin, None, tuple(recorder.steps))
        did = replace(did, at=transaction.read_time)
        journal.note(did=as_json(did), token=token, asked=ready)
        if not ready:
            transaction.rollback()
            journal.note(ended=name, outcome="aborted", end=time.monotonic_ns())
            continue
        try:
            done = transaction.commit()
        except TransactionConflict:
            journal.note(ended=name, outcome="aborted", end=time.monotonic_ns())
        else:
            end = time.monotonic_ns()
            journal.note(ended=name, outcome="committed", end=end, time=done.micros)


def as_json(did: Did) -> dict[str, Any]:
    """For a journal. `as_did` reads it."""
    steps: list[Any] = []
    for step in did.steps:
        if isinstance(step, Wrote):
            steps.append(["wrote", step.table, step.key, step.value])
        else:
            asked = step.asked
            rows = [[row.key, row.value, row.by] for row in step.rows]
            asks = [asked.table, asked.lower, asked.upper, asked.least, asked.below]
            steps.append(["saw", asks, rows])
    return {
        "name": did.name,
        "process": did.process,
        "isolation": did.isolation,
        "begin": did.begin,
        "at": did.at,
        "steps": steps,
    }


def as_did(found: dict[str, Any]) -> Did:
    """The inverse of `as_json`; its outcome is not known."""
    steps: list[Saw | Wrote] = []
    for what, *rest in found["steps"]:
        if what == "wrote":
            steps.append(Wrote(rest[0], tuple(rest[1]), rest[2]))
            continue
        table, lower, upper, least, below = rest[0]
        bounds = [None if bound is None else tuple(bound) for bound in (lower, upper)]
        rows = tuple(Row(tuple(key), value, by) for key, value, by in rest[1])
        steps.append(Saw(Predicate(table, bounds[0], bounds[1], least, below), rows))
    return Did(
        found["name"],
        found["process"],
        found["isolation"],
        found["begin"],
        None,
        tuple(steps),
        outcome="unknown",
        at=found["at"],
    )


def maintain(db: sl.Database) -> None:
    """Applies, tidies, merges, splits, rolls up and vacuums, again and again."""
    while True:
        store = db._handle.store
        for name in TABLES:
            apply_table(store, db[name].id, deadline=within(60))
        store.txns.tidy(deadline=within(60))
        db.compact(strategy=random.choice([None, "full"]))
        db.split()
        for machine in store.machines():
            machine.roll_up(deadline=within(60))
        db.vacuum()


def main() -> None:
    path, what = sys.argv[1], sys.argv[2]
    with sl.connect(path, settings=SETTINGS) as db:
        if what == "maintain":
            maintain(db)
        number, seed, threads, count = map(int, sys.argv[3:7])
        errors: list[BaseException] = []

        def work(thread: int) -> None:
            first = (number * 10 + thread) * 1_000_000
            process = f"p{number}.{thread}"
            try:
                run(db, Path(what), process, first, seed * 10 + thread, count // threads)
            except BaseException as error:
                errors.append(error)
                raise

        workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
