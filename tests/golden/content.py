"""All that a database says, as JSON: what golden files are compared by."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from strandline import Micros, connect, open_location
from strandline.database import Database
from strandline.location import Location
from strandline.settings import Settings
from strandline.shard import open_shard
from strandline.txn import TxnsHandle

__all__ = ["content", "written"]

MEMBERS = ("kept", "forgotten", "again")
"""Shards that are or were registered with the txns shard."""

QUIET = Settings(background=False, timeout_seconds=120.0)


def content(path: Path, times: Sequence[int], shards: Mapping[str, str]) -> dict[str, Any]:
    """What is read from the database, and from the shards beside it; nothing is written."""
    with connect(path, mode="r", settings=QUIET) as db:
        found: dict[str, Any] = {
            "times": list(times),
            "shards": dict(shards),
            "tables": _at_all(db, times),
            "history": _rows(db.history()),
            "sessions": _rows(db.sessions()),
            "holds": {name: _rows(db[name].holds()) for name in db.tables()},
            "positions": {name: _plain(db[name].safe_to_prune()) for name in db.tables()},
            "properties": {name: db[name].properties for name in db.tables()},
        }
    with open_location(path, mode="r") as location:
        found["updates"] = {
            name: _updates(location, shard) for name, shard in shards.items() if name != "txns"
        }
        found["txns"] = _txns(location, shards)
    return found


def written(found: Mapping[str, Any]) -> str:
    """As text, a line for each row."""
    return _text(found, 0) + "\n"


def _text(value: Any, depth: int) -> str:
    """JSON, in which what is deep inside is on one line."""
    if depth == 4 or not isinstance(value, dict | list) or not value:
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return "[\n" + ",\n".join(_text(item, 4) for item in value) + "\n]"
    lines = [f"{json.dumps(name)}: {_text(item, depth + 1)}" for name, item in value.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def _at_all(db: Database, times: Sequence[int]) -> dict[str, Any]:
    """The tables as of each time, by its number; of one that is as it was before, since when."""
    found: dict[str, Any] = {}
    last: dict[str, tuple[int, Any]] = {}
    for number, time in enumerate(times):
        tables = _tables(db, time)
        same = {name for name, table in tables.items() if last.get(name, (0, None))[1] == table}
        found[str(number)] = {
            name: f"as at {last[name][0]}" if name in same else table
            for name, table in tables.items()
        }
        last |= {name: (number, table) for name, table in tables.items() if name not in same}
    return found


def _tables(db: Database, time: int) -> dict[str, Any]:
    """Every table as of a time: its columns, and its rows in the order in which they are stored."""
    then = db.as_of(Micros(time))
    found = {}
    for name in then.tables():
        table = then[name]
        columns = [f"{field.name}: {field.type}" for field in table.schema]
        found[name] = {
            "kind": table.kind,
            "keys": [list(table.row_keys), list(table.sort_keys)],
            "columns": columns,
            "rows": [list(row.values()) for row in _rows(table.scan().to_arrow())],
        }
    return found


def _updates(location: Location, shard: str) -> dict[str, Any]:
    """A shard by itself: its frontiers, and what is in it at each time that can be read."""
    write, read = open_shard(location, shard, settings=QUIET)
    with write, read:
        since, upper = read.since, read.fetch_upper()
        if since is None:
            return {"since": None, "upper": upper}
        last = since if upper is None else upper - 1
        steps = range(since, last + 1, max(1, (last - since) // 3))
        return {
            "since": since,
            "upper": upper,
            "schema": [f"{field.name}: {field.type}" for field in read.schema],
            "keys": list(write.row_keys),
            "rows": {
                str(time): _lists(read.read(time).read_all()) for time in sorted({*steps, last})
            },
        }


def _txns(location: Location, shards: Mapping[str, str]) -> dict[str, Any]:
    """A txns shard by itself."""
    names = {shard: name for name, shard in shards.items()}
    with TxnsHandle.open(location, shards["txns"], settings=QUIET) as txns:
        since, upper = txns.since, txns.upper
        return {
            "since": since,
            "upper": upper,
            "registered": {
                str(time): [names[shard] for shard in txns.registered(time)]
                for time in range(since, upper)
            },
            "latest": {name: txns.latest_write(shards[name], upper - 1) for name in MEMBERS},
            "rows": {
                name: {
                    str(time): _lists(txns.snapshot(shards[name], time).read_all())
                    for time in (since, (since + upper) // 2, upper - 1)
                    if shards[name] in txns.registered(time)
                }
                for name in MEMBERS
            },
        }


def _lists(table: pa.Table) -> list[Any]:
    return [list(row.values()) for row in _rows(table)]


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    return [{name: _plain(value) for name, value in row.items()} for row in table.to_pylist()]


def _plain(value: Any) -> Any:
    """The value as JSON that tells it from every other value of its type."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    return value if value is None or isinstance(value, bool | int | str) else str(value)
