"""What a process that is going to be killed works through, and what has to come of it.

The script is the same each time. Every step can be done again, in another process: writes carry a
token, and all else is something that may be done any number of times. A step that changes rows
says in `becomes` what a model of the tables becomes by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

import strandline as sl
from strandline.txn.apply import apply_table
from tests.support.deadlines import within

SETTINGS = sl.Settings(
    background=False,  # all is done by whose turn it is, so that the calls are the same each time
    inline_bytes_max=2_000,
    rollup_every_records=3,
    page_items_max=8,
    apply_backlog_commits=6,
    small_parts_max=3,
    part_rows_target=120,
    row_group_rows=40,
)
COLUMNS = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("s", pa.int64(), nullable=False),
        pa.field("v", pa.int64()),
    ]
)
KEYS = 60
Row = tuple[int, int, int]
Token = tuple[str, int]


@dataclass
class Model:
    """What the tables hold: a multiset of rows, and one row per full key."""

    events: Counter[Row] = field(default_factory=Counter)
    items: dict[tuple[int, int], Row] = field(default_factory=dict)

    def add(self, table: str, rows: list[Row]) -> None:
        if table == "events":
            self.events.update(rows)
        else:
            self.items.update({row[:2]: row for row in rows})

    def change(self, table: str, to: Callable[[Row], Row | None]) -> None:
        """Makes another row of each, or none."""
        before = list(self.rows(table).elements())
        after = [row for row in map(to, before) if row is not None]
        if table == "events":
            self.events = Counter(after)
        else:
            self.items = {row[:2]: row for row in after}

    def rows(self, table: str) -> Counter[Row]:
        return self.events if table == "events" else Counter(self.items.values())


def found_in(table: sl.Table) -> Counter[Row]:
    """The table's rows, and how often each is there."""
    found = table.scan().to_arrow()
    return Counter(zip(*(found[name].to_pylist() for name in COLUMNS.names), strict=True))


@dataclass(frozen=True)
class Step:
    """One thing to do. `do` gets the token that the step may use; the parent may ask for it again.

    What it returns is the commit of a write, a database to go on with, or of no interest.
    """

    name: str
    do: Callable[[sl.Database, Token], object]
    becomes: Callable[[Model], None] = lambda _: None


def rows_of(seed: int, count: int) -> list[Row]:
    """Rows that no other seed has."""
    return [((seed * 17 + i * 7) % KEYS, i % 5, seed * 1_000 + i) for i in range(count)]


def arrow_of(rows: list[Row]) -> pa.Table:
    columns = zip(*rows, strict=True)
    return pa.table(dict(zip(COLUMNS.names, map(list, columns), strict=True)), schema=COLUMNS)


def create(name: str, **more: Any) -> Step:
    def do(db: sl.Database, _: Token) -> object:
        return db.create_table(name, COLUMNS, row_keys="k", sort_keys="s", exist_ok=True, **more)

    return Step(f"create {name}", do)


def append(table: str, seed: int, count: int) -> Step:
    rows = rows_of(seed, count)
    return Step(
        f"append {count} to {table}",
        lambda db, token: db[table].append(arrow_of(rows), token=token),
        lambda model: model.add(table, rows),
    )


def upsert(seed: int, count: int) -> Step:
    # Of rows with one key in one batch the last counts, in the model and in the table.
    rows = list({row[:2]: row for row in rows_of(seed, count)}.values())
    return Step(
        f"upsert {count}",
        lambda db, token: db["items"].upsert(arrow_of(rows), token=token),
        lambda model: model.add("items", rows),
    )


def delete_keys(low: int) -> Step:
    keys = [(k, s) for k in range(low, low + 9) for s in range(3)]
    return Step(
        "delete by key",
        lambda db, token: db["items"].delete(keys=keys, token=token),
        lambda model: model.change("items", lambda row: None if row[:2] in keys else row),
    )


def delete_where(table: str, low: int) -> Step:
    return Step(
        f"delete from {table}",
        lambda db, token: db[table].delete(f"k between {low} and {low + 3}", token=token),
        lambda model: model.change(table, lambda row: None if low <= row[0] <= low + 3 else row),
    )


def update(table: str, low: int) -> Step:
    """Adds to values: done twice, it shows."""

    def changed(row: Row) -> Row:
        return (row[0], row[1], row[2] + 1_000_000) if low <= row[0] <= low + 5 else row

    where = f"k between {low} and {low + 5}"
    return Step(
        f"update {table}",
        lambda db, token: db[table].update({"v": "v + 1000000"}, where, token=token),
        lambda model: model.change(table, changed),
    )


def overwrite(table: str, seed: int, low: int) -> Step:
    rows = [(low + 1, 0, seed * 1_000 + 998), (low + 2, 1, seed * 1_000 + 999)]

    def becomes(model: Model) -> None:
        model.change(table, lambda row: None if low <= row[0] <= low + 4 else row)
        model.add(table, rows)

    where = f"k between {low} and {low + 4}"
    return Step(
        f"overwrite {table}",
        lambda db, token: db[table].overwrite(arrow_of(rows), where, token=token),
        becomes,
    )


def sql_update(seed: int, key: int) -> Step:
    """Takes no token, and comes to the same however often it is done."""
    value = seed * 1_000 + 997
    text = f"update items set v = {value} where k = {key}"
    return Step(
        "update in SQL",
        lambda db, _: db.sql(text),
        lambda model: model.change(
            "items", lambda row: (*row[:2], value) if row[0] == key else row
        ),
    )


def apply(table: str) -> Step:
    return Step(
        f"apply {table}",
        lambda db, _: apply_table(db._handle.store, db[table].id, deadline=within(60)),
    )


def reopened(db: sl.Database, _: Token) -> sl.Database:
    db.close()
    return sl.connect(db.url, settings=SETTINGS)


def scratch(db: sl.Database, token: Token) -> None:
    """A table that comes, gets rows, gets another name, and goes."""
    if "renamed" not in db:
        table = db.create_table("scratch", COLUMNS, row_keys="k", exist_ok=True)
        table.append(arrow_of(rows_of(1, 5)), token=token)
        db.rename_table("scratch", "renamed")
    db.drop_table("renamed")


def looks(db: sl.Database, _: Token) -> None:
    """Everything that only reads."""
    for name in ("events", "items"):
        table = db[name]
        count = table.scan().count()
        assert count == sum(found_in(table).values())
        assert table.get(7).num_rows <= count
        assert table.history(5).num_rows == 5
    db.sql("select count(*) from events join items using (k)").fetchall()
    db.usage()
    db.status()


def round_of(number: int) -> list[Step]:
    """Another round of the same kinds of steps, other rows each time."""
    seed, low = number * 20, (number * 13) % KEYS
    return [
        append("events", seed + 1, 3),
        append("events", seed + 2, 250),
        upsert(seed + 3, 4),
        upsert(seed + 4, 150),
        append("items", seed + 5, 11),
        delete_keys(low),
        apply("items"),
        update("events", low),
        delete_where("events", low + 7),
        apply("events"),
        Step("tidy", lambda db, _: db._handle.store.txns.tidy(deadline=within(60))),
        overwrite("items", seed + 6, low + 2),
        delete_where("items", low + 20),
        sql_update(seed + 7, low),
        Step("compact", lambda db, _: db.compact()),
        append("events", seed + 8, 200),
        upsert(seed + 9, 5),
        Step("split", lambda db, _: db.split()),
        Step("reopen", reopened),
        Step("a table that goes", scratch),
        update("items", low + 30),
        overwrite("events", seed + 10, low + 30),
        Step("set", lambda db, _: db["events"].set(compaction_parts=3 + number)),
        Step("compact fully", lambda db, _: db.compact(["events", "items"], strategy="full")),
        Step("vacuum", lambda db, _: db.vacuum()),
        Step("look", looks),
    ]


STEPS: list[Step] = [
    Step("open", lambda db, _: db),  # every process opens the database first
    # Of the one all times stay readable, of the other the latest.
    create(
        "events",
        split_points=[30],
        properties={"split_rows": 150, "retention": "7 days", "deletion_delay": "0 seconds"},
    ),
    create(
        "items",
        kind="keyed",
        properties={"split_rows": 100, "retention": "0 seconds", "deletion_delay": "0 seconds"},
    ),
    *round_of(0),
    *round_of(1),
    *round_of(2),
    Step("close", lambda db, _: db.close()),
]


def models() -> list[Model]:
    """What the tables hold before each step, and in the end."""
    model = Model()
    passed = [Model()]
    for step in STEPS:
        step.becomes(model)
        passed.append(Model(Counter(model.events), dict(model.items)))
    return passed
