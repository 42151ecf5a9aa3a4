"""Tables under any sequence of writes, upkeep and reads, beside the reference model."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, rule

import strandline as sl
from strandline.errors import AsOfTooOld, UsageError
from strandline.testing.reference import (
    DatabaseModel,
    Deleted,
    Operation,
    Overwrite,
    Put,
    Row,
    Test,
    Updated,
)
from strandline.txn.apply import apply_table
from tests.support.deadlines import within

COLUMNS = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("s", pa.string(), nullable=False),
        pa.field("v", pa.int64()),
        pa.field("text", pa.string()),
    ]
)
SMALL = sl.Settings(
    background=False,
    inline_bytes_max=1_400,
    rollup_every_records=4,
    page_items_max=5,
    apply_backlog_commits=5,
    small_parts_max=3,
    part_rows_target=15,
    row_group_rows=4,
)

NUMBERS = [-(2**63), -1, 0, 1, 2, 3, 2**63 - 1]
TEXTS = ["", "a", "a\0b", "ab", "ä", "\uffff", "\U0001f600"]
rows = st.tuples(
    st.sampled_from(NUMBERS),
    st.sampled_from(TEXTS),
    st.one_of(st.none(), st.integers(0, 4)),
    st.one_of(st.none(), st.sampled_from(["x", "", "y" * 40])),
)
some_rows = st.one_of(st.lists(rows, max_size=4), st.lists(rows, min_size=20, max_size=40))
prefixes = st.one_of(
    st.tuples(st.sampled_from(NUMBERS)), st.tuples(st.sampled_from(NUMBERS), st.sampled_from(TEXTS))
)

CONDITIONS: dict[str, Test] = {
    "v > 2": lambda row: row[2] is not None and row[2] > 2,
    "v is null": lambda row: row[2] is None,
    "k >= 0 and k < 2": lambda row: 0 <= row[0] < 2,
    "s = 'ä' or v = 1": lambda row: row[1] == "ä" or row[2] == 1,
    "not (v = 1)": lambda row: row[2] is not None and row[2] != 1,
    "text like 'y%'": lambda row: row[3] is not None and row[3].startswith("y"),
    "k = 99": lambda row: row[0] == 99,
}
conditions = st.sampled_from(sorted(CONDITIONS))
table_names = st.sampled_from(["events", "items"])


def order(row: Row) -> tuple[int, bytes]:
    """The one key order."""
    return row[0], row[1].encode()


def arrow(found: Iterable[Row]) -> pa.Table:
    columns = list(zip(*found, strict=True)) or [(), (), (), ()]
    arrays = [pa.array(c, field.type) for c, field in zip(columns, COLUMNS, strict=True)]
    return pa.Table.from_arrays(arrays, schema=COLUMNS)


def rows_of(table: pa.Table) -> list[Row]:
    return [tuple(row[name] for name in COLUMNS.names) for row in table.to_pylist()]


class Tables(RuleBasedStateMachine):
    """A `rows` and a `keyed` table of one database."""

    moments = Bundle("moments")

    def __init__(self) -> None:
        super().__init__()
        self.reference = DatabaseModel(observed=False)
        self.db: sl.Database
        self.writes = 0

    def place(self) -> str:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.url = self.place()
        self.db = sl.connect(self.url, settings=SMALL)
        self.db.create_table(
            "events",
            COLUMNS,
            row_keys=["k", "s"],
            properties={"compaction_parts": 3, "deletion_delay": "0 seconds"},
        )
        self.db.create_table(
            "items",
            COLUMNS,
            row_keys="k",
            sort_keys="s",
            kind="keyed",
            split_points=[0, 3],
            properties={"deletion_delay": "0 seconds"},
        )
        self.reference.create("events", "rows", 2)
        self.reference.create("items", "keyed", 2)

    def write(self, table: str, operation: Operation, commit: sl.Commit) -> int:
        """Tells the model; the moment is the commit's."""
        self.writes += 1
        name = f"write {self.writes}"
        self.reference.begin(name, table, operation)
        model = self.reference.tables[table]
        if model.effect(operation, model.read()):
            self.reference.acknowledged(name, commit.micros)
        self.check(table)
        return commit.micros

    # --- writes

    @rule(target=moments, table=table_names, data=some_rows)
    def append(self, table: str, data: list[Row]) -> int:
        return self.write(table, Put(tuple(data)), self.db[table].append(arrow(data)))

    @rule(target=moments, data=some_rows)
    def upsert(self, data: list[Row]) -> int:
        return self.write("items", Put(tuple(data)), self.db["items"].upsert(arrow(data)))

    @rule(target=moments, table=table_names, keys=st.lists(prefixes, min_size=1, max_size=3))
    def delete_keys(self, table: str, keys: list[Row]) -> int:
        commit = self.db[table].delete(keys=keys)
        return self.write(table, Deleted(keys=tuple(keys)), commit)

    @rule(target=moments, table=table_names, where=conditions)
    def delete_where(self, table: str, where: str) -> int:
        commit = self.db[table].delete(where=where)
        return self.write(table, Deleted(where=CONDITIONS[where]), commit)

    @rule(target=moments, table=table_names, where=st.one_of(st.none(), conditions), data=some_rows)
    def overwrite(self, table: str, where: str | None, data: list[Row]) -> int:
        commit = self.db[table].overwrite(arrow(data), where)
        test = None if where is None else CONDITIONS[where]
        return self.write(table, Overwrite(tuple(data), test), commit)

    @rule(target=moments, table=table_names, where=conditions)
    def update(self, table: str, where: str) -> int:
        def change(row: Row) -> Row:
            return (*row[:2], None if row[2] is None else row[2] + 1, row[3])

        commit = self.db[table].update({"v": "v + 1"}, where)
        return self.write(table, Updated(CONDITIONS[where], change), commit)

    @rule(
        target=moments,
        isolation=st.sampled_from(["snapshot", "serializable", "strict serializable"]),
        data=some_rows,
        keys=st.lists(prefixes, min_size=1, max_size=2),
        other=some_rows,
    )
    def transact(self, isolation: str, data: list[Row], keys: list[Row], other: list[Row]) -> int:
        """Both tables at one time, each step on what those before it left."""
        with self.db.transaction(isolation=isolation) as transaction:
            transaction["events"].append(arrow(data))
            transaction["items"].delete(keys=keys)
            transaction["items"].upsert(arrow(other))
            transaction["events"].delete(keys=keys)
        commit = transaction.committed
        assert commit is not None
        self.writes += 1
        name = f"write {self.writes}"
        steps: list[tuple[str, Operation]] = [
            ("events", Put(tuple(data))),
            ("items", Deleted(keys=tuple(keys))),
            ("items", Put(tuple(other))),
            ("events", Deleted(keys=tuple(keys))),
        ]
        self.reference.begin_together(name, steps)
        newest = max((t for m in self.reference.tables.values() for t, _ in m.updates), default=0)
        # One that changed nothing was not committed: it is as of what it read.
        self.reference.acknowledged(name, max(newest, commit.micros))
        for table in self.reference.tables:
            self.check(table)
        return commit.micros

    @rule(table=table_names)
    def appending_nothing_changes_nothing(self, table: str) -> None:
        self.db[table].append(arrow([]))
        self.check(table)

    # --- upkeep: nothing of it may be seen

    @rule(table=table_names, commits=st.one_of(st.none(), st.integers(1, 3)))
    def apply(self, table: str, commits: int | None) -> None:
        found = self.db[table]
        store = found._handle.store
        apply_table(store, found._version.table, deadline=within(60), commits_max=commits)
        self.check(table)

    @rule()
    def tidy(self) -> None:
        self.db["events"]._handle.store.txns.tidy(deadline=within(60))
        for table in self.reference.tables:
            self.check(table)

    @rule(table=table_names, strategy=st.sampled_from([None, "full", "basic", "size-ratio"]))
    def compact(self, table: str, strategy: str | None) -> None:
        self.db.compact(table, strategy=strategy)
        self.check(table)

    @rule(table=table_names)
    def split(self, table: str) -> None:
        self.db[table].set(split_rows=10)
        self.db.split(table)
        self.check(table)

    @rule(everything=st.booleans(), table=table_names)
    def vacuum(self, everything: bool, table: str) -> None:
        self.db.vacuum(None if everything else table)
        for each in self.reference.tables:
            self.check(each)

    @rule(table=table_names, retention=st.sampled_from(["0 seconds", "7 days"]))
    def keep_history_for(self, table: str, retention: str) -> None:
        self.db[table].set(retention=retention)

    @rule()
    def reopen(self) -> None:
        self.db.close()
        self.db = sl.connect(self.url, settings=SMALL)
        for table in self.reference.tables:
            self.check(table)

    # --- reads

    def check(self, table: str, found: list[Row] | None = None, asked: Test | None = None) -> None:
        """What is there now is what the model says."""
        rows = rows_of(self.db[table].scan().to_arrow()) if found is None else found
        assert list(map(order, rows)) == sorted(map(order, rows))
        newest = max((time for time, _ in self.reference.tables[table].updates), default=0)
        self.reference.check(table, rows, [newest], asked=asked)

    @rule(table=table_names, moment=moments)
    def read_as_of(self, table: str, moment: int) -> None:
        try:
            view = self.db[table].as_of(sl.Micros(moment))
            found = rows_of(view.scan().to_arrow())
        except AsOfTooOld:
            found_table = self.db[table]
            state = found_table._handle.store.data(found_table.id).look(within(60))
            assert state.meta.since is not None
            assert moment < state.meta.since
            return
        self.reference.check(table, found, [moment])
        assert len(view) == len(found)

    @rule(table=table_names, key=prefixes)
    def get(self, table: str, key: Row) -> None:
        found = rows_of(self.db[table].get(*key))
        self.check(table, found, lambda row: row[: len(key)] == key)

    @rule(table=table_names, keys=st.lists(prefixes, min_size=1, max_size=4))
    def get_many(self, table: str, keys: list[Row]) -> None:
        found = rows_of(self.db[table].get_many(keys))
        self.check(table, found, lambda row: any(row[: len(key)] == key for key in keys))

    @rule(key=prefixes)
    def get_one(self, key: Row) -> None:
        if len(key) < 2:
            with pytest.raises(UsageError):
                self.db["items"].get_one(*key)
            return
        row = self.db["items"].get_one(*key)
        found = [] if row is None else [tuple(row[name] for name in COLUMNS.names)]
        self.check("items", found, lambda row: row[:2] == key)

    @rule(
        table=table_names,
        lower=st.one_of(st.none(), prefixes),
        upper=st.one_of(st.none(), prefixes),
        where=st.one_of(st.none(), conditions),
    )
    def scan(self, table: str, lower: Row | None, upper: Row | None, where: str | None) -> None:
        scan = self.db[table].scan(where=where, key_range=(lower, upper))
        found = rows_of(scan.to_arrow())

        def asked(row: Row) -> bool:
            key = order(row)
            low = () if lower is None else (lower[0], *[x.encode() for x in lower[1:]])
            high = None if upper is None else (upper[0], *[x.encode() for x in upper[1:]])
            inside = key[: len(low)] >= low and (high is None or key[: len(high)] < high)
            return inside and (where is None or CONDITIONS[where](row))

        note(f"{scan.explain()}")
        self.check(table, found, asked)
        assert scan.count() == len(found)

    @rule(table=table_names, limit=st.integers(0, 6))
    def head(self, table: str, limit: int) -> None:
        everything = rows_of(self.db[table].scan().to_arrow())
        found = rows_of(self.db[table].head(limit))
        assert list(map(order, found)) == list(map(order, everything[:limit]))
        assert len(self.db[table]) == len(everything)

    def teardown(self) -> None:
        if hasattr(self, "db"):
            self.db.close()


class OnMemory(Tables):
    made: ClassVar[int] = 0

    def place(self) -> str:
        OnMemory.made += 1
        return f"memory://tables-machine-{OnMemory.made}"


class OnDirectory(Tables):
    def place(self) -> str:
        self.folder = tempfile.mkdtemp()
        return self.folder

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(getattr(self, "folder", ""), ignore_errors=True)


QUICK = settings(
    max_examples=40,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
OnMemory.TestCase.settings = QUICK
OnDirectory.TestCase.settings = settings(QUICK, max_examples=15)


class AtLength(OnMemory):
    pass


AtLength.TestCase.settings = settings(QUICK, max_examples=400, stateful_step_count=40)
TestTablesAtLength: Any = pytest.mark.slow(AtLength.TestCase)
TestTablesInMemory: Any = OnMemory.TestCase
TestTablesInADirectory: Any = OnDirectory.TestCase
