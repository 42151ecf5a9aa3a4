"""Makes a small database with something of everything that is stored.

    python -m tests.golden.make DIRECTORY

writes the database to `DIRECTORY/lake`, what goes between processes beside it, and what all of it
says to `DIRECTORY/expected.json`. docs/format.md says when that is to be done.
"""

from __future__ import annotations

import datetime as dt
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from strandline import connect, open_location
from strandline.connect import LOG_FILE
from strandline.database import Database
from strandline.ids import session_of
from strandline.location import Location
from strandline.settings import Settings
from strandline.shard import compact, new_shard_id, open_shard, rollup, vacuum_shard
from strandline.state.codec import decode_staged
from strandline.table import Table
from strandline.txn import Txn, TxnsHandle
from strandline.txn.apply import apply_table
from tests.golden.content import content, written
from tests.golden.world import World
from tests.support.deadlines import within

__all__ = ["SMALL", "make"]

SMALL = Settings(
    background=False,
    threads=1,
    inline_bytes_max=1_600,
    rollup_every_records=8,
    page_items_max=6,
    row_group_rows=24,
    part_rows_target=48,
    statistics_columns=12,
)
"""Many objects of few bytes: pages of four items, parts of some row groups."""

KINDS = pa.schema(
    [
        ("i8", pa.int8()),
        ("u16", pa.uint16()),
        ("i64", pa.int64()),
        ("day", pa.date32()),
        ("second", pa.timestamp("s")),
        ("milli", pa.timestamp("ms", "UTC")),
        ("micro", pa.timestamp("us", "Europe/Berlin")),
        ("money", pa.decimal128(12, 2)),
        ("huge", pa.decimal128(38, 0)),
        ("flag", pa.bool_()),
        ("text", pa.string()),
        ("blob", pa.binary()),
        ("u64", pa.uint64()),
        ("f32", pa.float32()),
        ("f64", pa.float64()),
        ("clock", pa.time64("us")),
        ("list", pa.list_(pa.list_(pa.int32()))),
        ("struct", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
        ("map", pa.map_(pa.string(), pa.struct([("n", pa.int16())]))),
    ]
)
"""A column of every type that may be a key, then some others."""
KEYS = KINDS.names[:12]

READINGS = pa.schema(
    [("sensor", pa.int64()), ("at", pa.int32()), ("name", pa.string()), ("value", pa.float64())]
)
STOCK = pa.schema([("item", pa.string()), ("size", pa.int16()), ("count", pa.int64())])
LOG = pa.schema([("n", pa.int64()), ("word", pa.string())])


@dataclass
class Golden:
    """The database while it is being made."""

    world: World
    path: Path
    open: ExitStack
    times: list[int] = field(default_factory=list)
    sent: dict[str, bytes] = field(default_factory=dict)
    shards: dict[str, str] = field(default_factory=dict)

    def connect(self) -> Database:
        """A handle that stays open until all files are copied."""
        return self.open.enter_context(connect(self.path, settings=SMALL))

    def moment(self, commit: Any) -> None:
        """A time whose rows are told, and a second more."""
        self.times.append(int(commit.micros))
        self.world.wait(1)

    def abandoned(self, table: str, data: Any) -> str:
        """The session of a process that stored what it never commits."""
        staged = self.connect().stage({table: data})
        sent = staged.to_bytes()
        self.sent.setdefault("staged", sent)
        _, writes, *_ = decode_staged(sent)
        return str(session_of(writes[0].batch.parts[0].key))


def _kinds(rows: Iterable[int]) -> pa.Table:
    """Rows with the least and greatest value of each type among them."""
    edges = {
        "i8": (-128, 127),
        "u16": (0, 65_535),
        "i64": (-(2**63), 2**63 - 1),
        "money": (Decimal("-9999999999.99"), Decimal("9999999999.99")),
        "huge": (Decimal(-(10**38) + 1), Decimal(10**38 - 1)),
        "text": ("", "\U0001f30a\0\x7fé" * 12),
        "blob": (b"", b"\0\xff\0" * 14),
        "u64": (0, 2**64 - 1),
    }
    moment = dt.datetime(1969, 12, 31, 23, 59, 58, tzinfo=dt.UTC)

    def row(n: int) -> dict[str, Any]:
        at = moment + dt.timedelta(days=n * 300, seconds=n, milliseconds=n)
        values: dict[str, Any] = {
            "i8": n,
            "u16": n,
            "i64": n * 10**15,
            "day": at.date(),
            "second": at.replace(tzinfo=None, microsecond=0),
            "milli": at,
            "micro": at + dt.timedelta(microseconds=n),
            "money": Decimal(n) / 4,
            "huge": Decimal(n) * 10**30,
            "flag": n % 2 == 0,
            "text": f"text {n}",
            "blob": bytes([n % 256, 0, 255]),
            "u64": n * 2**56,
            "f32": n / 8,
            "f64": [n / 3, float("nan"), -0.0, float("inf"), None][n % 5],
            "clock": dt.time(n % 24, 59, 59, n),
            "list": None if n % 4 == 0 else [[n, None], [], None][: n % 4],
            "struct": None if n % 3 == 0 else {"a": n, "b": ["x", None] * (n % 2)},
            "map": [(f"k{i}", {"n": i} if i else None) for i in range(n % 3)],
        }
        for name, (low, high) in edges.items() if n in {0, 1} else ():
            values[name] = high if n else low
        return values

    return pa.Table.from_pylist([row(n) for n in rows], KINDS)


def _readings(start: int, end: int) -> pa.Table:
    span = range(start, end)
    columns: dict[str, Any] = {
        "sensor": list(span),
        "at": [n % 7 for n in span],
        "name": [None if n % 9 == 0 else f"sensor {n % 3}" for n in span],
        "value": [n / 8 for n in span],
    }
    return pa.table(columns, READINGS)


def _stock(start: int, end: int, count: int) -> pa.Table:
    span = range(start, end)
    columns: dict[str, Any] = {
        "item": [f"item {n:03d}" for n in span],
        "size": [n % 3 for n in span],
        "count": [count + n for n in span],
    }
    return pa.table(columns, STOCK)


def _apply(table: Table) -> None:
    apply_table(table._handle.store, table._version.table, deadline=within(60.0))


def _tables(golden: Golden, db: Database) -> None:
    """Tables of both kinds: leaves, parts that overlap, parts of history, tombstones, entries."""
    kinds = db.create_table("kinds", _kinds(range(16)), row_keys=KEYS)
    _apply(kinds)
    golden.moment(kinds.append(_kinds(range(16, 18))))
    readings = db.create_table(
        "readings",
        READINGS,
        row_keys="sensor",
        sort_keys="at",
        split_points=[24, 48],
        properties={"split_rows": 40, "deletion_delay": "1 hour"},
    )
    golden.moment(readings.append(_readings(0, 72)))
    _apply(readings)
    golden.moment(readings.append(_readings(25, 45), metadata={"why": "again"}))
    _apply(readings)
    db.compact("readings", strategy="full")
    golden.moment(readings.delete(where="sensor in (3, 40, 70)"))
    golden.moment(readings.update({"value": "-1.5"}, where="sensor between 60 and 62"))
    _apply(readings)
    db.compact("readings", strategy="full")
    db.split("readings")
    golden.moment(readings.append(_readings(200, 203)))

    stock = db.create_table("stock", STOCK, row_keys="item", sort_keys="size", kind="keyed")
    golden.moment(stock.upsert(_stock(0, 40, 0)))
    _apply(stock)
    golden.moment(stock.upsert(_stock(20, 45, 1_000)))
    _apply(stock)
    golden.moment(stock.delete(keys=[("item 003", 0), ("item 031", 1)]))
    _apply(stock)
    db.compact("stock", strategy="full")
    golden.moment(stock.upsert(_stock(43, 48, 7)))
    golden.moment(stock.delete(keys=[("item 045", 0), ("none", 9)]))


def _names(golden: Golden, db: Database) -> None:
    """Names that change, a table that was dropped, tokens, several tables in one commit."""
    golden.moment(db.create_table("first", LOG, row_keys="n").append({"n": [1], "word": ["one"]}))
    golden.moment(db.rename_table("first", "second"))
    golden.moment(db["second"].set(retention="30 days", strategy="full", online=False))
    dropped = db.create_table("dropped", LOG, row_keys="n")
    golden.moment(dropped.append({"n": [1, 2], "word": ["here", "gone"]}))
    golden.moment(db.drop_table("dropped"))
    for number in (1, 2, 5):
        with db.transaction(token=("importer", number), metadata={"file": f"{number}.csv"}) as tx:
            tx["second"].append({"n": [10 * number], "word": ["two"]})
            tx["readings"].append(_readings(300 + number, 301 + number))
            if number == 5:
                tx.create_table("dropped", LOG, row_keys="n").append({"n": [9], "word": ["new"]})
        golden.world.wait(1)
    with db.transaction() as tx:
        tx["stock"].get_one("item 001", 1)
        tx["stock"].scan(key_range=("item 020", None)).to_arrow()
        tx["stock"].upsert(_stock(1, 2, 50))
        golden.sent["staged with reads"] = tx.stage().to_bytes()


def _sessions(golden: Golden, db: Database) -> None:
    """Sessions in every state, holds of several kinds, holders with positions."""
    named = db["readings"].subscribe(start="now", name="mirror", timeout=0.01)
    assert list(named) is not None
    held = db.create_table("held", LOG, row_keys="n")
    lease = golden.connect()["held"].attach("worker 1", position={"offset": 0})
    golden.moment(lease.append({"n": [1], "word": ["a"]}, position={"offset": 17}))
    other = db.create_table("released", LOG, row_keys="n")
    with other.attach("worker 2", position=[3, "x"]) as second:
        golden.moment(second.append({"n": [2], "word": ["b"]}, position=[4, "y"]))
    lease = golden.connect()["held"].attach("worker 3")
    assert lease.position == {"offset": 17}
    golden.moment(lease.append({"n": [2], "word": ["c"]}))
    _apply(held)
    swept, acknowledged = (golden.abandoned("stock", _stock(0, 48, 9)) for _ in range(2))
    db.force_ack(session=swept)
    db.vacuum()
    golden.world.wait(7_200)
    db.vacuum("stock")
    db.force_ack(session=acknowledged)
    # One that is ended, for having been silent, and one that lives.
    golden.abandoned("stock", _stock(0, 48, 9))
    for _ in range(6):
        db._handle.store.look_out([], deadline=within(60.0))
        golden.world.wait(300)
    golden.abandoned("readings", _readings(500, 560))


def _clocks(golden: Golden, db: Database) -> None:
    """A clock that was ahead and then confirmed, and one that jumps and is doubted."""
    table = db["second"]
    golden.world.set_wall_clock(ahead=3 * 86_400)
    golden.moment(table.append({"n": [77], "word": ["ahead"]}))
    golden.world.set_wall_clock(ahead=0)
    with connect(golden.path, settings=SMALL) as right:
        right.confirm_clock()
        golden.moment(right["second"].append({"n": [78], "word": ["right again"]}))
    golden.world.wait(10 * 86_400)
    with connect(golden.path, settings=SMALL) as late:
        golden.moment(late["second"].append({"n": [79], "word": ["much later"]}))


def _lone_shards(golden: Golden, location: Location) -> None:
    """Shards by themselves: written to directly, compacted, held, finished; and in batches."""
    words = golden.shards["words"] = new_shard_id()
    write, read = open_shard(location, words, schema=LOG, settings=SMALL)
    golden.open.callback(write.close)
    golden.open.callback(read.close)
    for time in range(5):
        rows = range(time * 10, time * 10 + 15)
        updates: dict[str, Any] = {
            "n": [*rows, 0],
            "word": [*(f"word {n}" for n in rows), "zero"],
            "__time": [time * 10 + n % 10 for n in rows] + [time * 10],
            "__diff": [1] * len(rows) + [-1],
        }
        token = ("words", time + 1)
        write.compare_and_append(updates, time * 10, time * 10 + 10, token=token)
    read.hold("job", since=25)
    read.downgrade_since(30)
    compact(location, words, strategy="full", settings=SMALL)
    golden.world.wait(60)
    for _ in range(3):
        vacuum_shard(location, words, settings=SMALL)
        golden.world.wait(1_000)
    with write.batch_builder(lower=50) as builder:
        builder.add({"n": [5, 6], "word": ["five", "six"], "__time": [50, 51]})
        batch = builder.finish(new_upper=52)
    write.compare_and_append({"n": [5], "word": ["five"]}, 50, 51, time=50)
    # Cut off at the shard's upper: the first row of it is there already.
    write.append(batch, 52)
    with write.batch_builder(lower=52) as builder:
        builder.add({"n": list(range(20)), "word": ["later"] * 20}, time=52)
        builder.add({"n": [3], "word": ["later"], "__diff": [-1]}, time=53)
        golden.sent["batch"] = builder.finish(new_upper=54).to_bytes()
    golden.sent["split"] = read.snapshot(as_of=51, splits=2)[0].to_bytes()

    finished = golden.shards["finished"] = new_shard_id()
    over, reader = open_shard(location, finished, schema=LOG, settings=SMALL)
    over.compare_and_append({"n": [1], "word": ["last"]}, 0, 5, time=3)
    over.finish()
    over.close()
    reader.close()


def _lone_txns(golden: Golden, location: Location) -> None:
    """A txns shard by itself: registered and forgotten shards, entries, commits, a transaction."""
    golden.shards["txns"] = new_shard_id()
    names = ("kept", "forgotten", "again")
    txns = TxnsHandle.open(location, golden.shards["txns"], settings=SMALL)
    golden.open.callback(txns.close)
    for number, name in enumerate(names):
        shard = golden.shards[name] = new_shard_id()
        for handle in open_shard(location, shard, schema=LOG, settings=SMALL):
            handle.close()
        txns.register(shard, 1 + number)
    for time in range(10, 16):
        txn = txns.begin()
        for name in names[: 1 + time % 3]:
            many = 60 if time == 12 else 3
            txn.write(golden.shards[name], _log(time * 100, many))
        if time % 2:
            update = {"n": [1], "word": ["less"], "__diff": [-1]}
            txn.write(golden.shards["kept"], update)
        txn.commit_at(txns, time)
    txns.apply_le(13)
    txns.tidy()
    txns.compact_to(12)
    txns.forget(golden.shards["forgotten"], 20)
    txns.forget(golden.shards["again"], 21)
    txns.register(golden.shards["again"], 22)
    txn = txns.begin()
    txn.write(golden.shards["again"], _log(9_000, 2))
    txn.commit_at(txns, 30)
    open_one = txns.begin()
    open_one.write(golden.shards["kept"], _log(0, 60))
    merged = txns.begin()
    merged.write(golden.shards["again"], _log(5, 1))
    open_one.merge(Txn.from_bytes(merged.to_bytes()))
    golden.sent["txn"] = open_one.to_bytes()


def _log(start: int, count: int) -> dict[str, Any]:
    span = range(start, start + count)
    return {"n": list(span), "word": [f"word {n % 4}" for n in span]}


def make(target: Path, *, told: bool = True) -> None:
    """Makes everything anew in `target`; with `told`, what it says is written down as well."""
    world = World()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stack.enter_context(world.entered())
        stack.enter_context(patch.object(rollup, "INLINE_BYTES_MAX", 2_500))
        golden = Golden(world, Path(folder) / "lake", stack)
        steps: list[Callable[[Golden, Any], None]] = [_tables, _names, _sessions, _clocks]
        db = golden.connect()
        for step in steps:
            step(golden, db)
        location = stack.enter_context(open_location(golden.path))
        _lone_shards(golden, location)
        _lone_txns(golden, location)
        # While all are open: what ends properly leaves nothing to see.
        _copy(golden.path, target / "lake")
        for name, data in golden.sent.items():
            (target / f"{name.replace(' ', '-')}.bytes").write_bytes(data)
    if told:
        found = content(target / "lake", golden.times, golden.shards)
        (target / "expected.json").write_text(written(found), encoding="utf-8")


def _copy(source: Path, target: Path) -> None:
    """Copies the objects, and the log as it is when its last process has closed it."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(
        source, target, ignore=lambda _, names: {n for n in names if n.startswith((LOG_FILE, "."))}
    )
    with closing(sqlite3.connect(source / LOG_FILE)) as log:
        log.execute("VACUUM INTO ?", (str(target / LOG_FILE),))
    with closing(sqlite3.connect(target / LOG_FILE)) as log:
        log.execute("PRAGMA journal_mode = WAL")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
