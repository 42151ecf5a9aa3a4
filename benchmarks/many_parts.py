"""Opening tables of very many parts, planning a lookup in them, and looking up a key.

    python -m benchmarks.many_parts [--real 10000] [--planned 100000] [--million]

Each figure is of fresh processes, after `import strandline`. Real: parts of 100 rows each, written
by appends and never merged; their keys are disjoint, or each part spans the whole table. Planned:
states of so many made-up parts, ten in a leaf, written by the ordinary commands; what is measured
is opening the table and planning a lookup. `--million` does the same with 1,000,000 parts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import strandline as sl
from benchmarks.common import line, machine, percentile, scratch
from strandline.ids import ShardId
from strandline.parts.files.filters import make_filter
from strandline.parts.hashes import hashes_of
from strandline.parts.keys import KeyCodec
from strandline.parts.schema import TableSchema
from strandline.state.commands import Apply, Split
from strandline.state.model import Part

SCHEMA = pa.schema([pa.field("key", pa.int64(), nullable=False), pa.field("value", pa.float64())])
ROWS = 100
PER_LEAF = 10
BITE = 1_000
NEVER = 1 << 60

UNMERGED = sl.Settings(
    inline_bytes_max=0,
    small_parts_max=NEVER,
    level_zero_parts_max=NEVER,
    sinking_leaf_bytes=NEVER,
    apply_backlog_commits=100,
)

RESIDENT = """
import json, time
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4
"""

LOOK_UP = (
    RESIDENT
    + """
import strandline as sl
from strandline.parts.files.read import PartReader
opened = 0
read = PartReader.read
def counted(*args, **kwargs):
    global opened
    opened += 1
    return read(*args, **kwargs)
PartReader.read = counted
before = resident()
start = time.perf_counter()
db = sl.connect({path!r}, mode="r")
table = db["events"]
found = table.get({key})
first = time.perf_counter() - start
first_opened = opened
warm = []
counts = []
for key in {more}:
    opened = 0
    begun = time.perf_counter()
    table.get(key)
    warm.append(time.perf_counter() - begun)
    counts.append(opened)
data = db._handle.store.data(table.id)
after = resident()
print(json.dumps(dict(first=first, rows=found.num_rows, opened=first_opened, warm=warm,
                      counts=counts, pages=data.pages_read, memory=after - before)))
"""
)

PLAN = (
    RESIDENT
    + """
import strandline as sl
from strandline.env import Deadline
from strandline.parts.files.filters import probes_of
from strandline.parts.keys import KeyRange
from strandline.parts.typed import typed
from strandline.state.plan import plan_read
from strandline.txn.view import view_of
before = resident()
start = time.perf_counter()
db = sl.connect({path!r}, mode="r")
table = db["events"]
store = db._handle.store
def plan(key):
    view = view_of(store, table.id, None, Deadline(store.env, 60))
    schema, codec = typed(view.version)
    wanted = KeyRange((key,), (key,), closed=True)
    probes = probes_of([wanted], codec)
    return view.data.ask(lambda s: plan_read(s, view.entries, [wanted.interval(codec)], view.as_of,
                            may_hold=probes.may_be_in))
tasks = plan({key})
first = time.perf_counter() - start
pages = store.data(table.id).pages_read
begun = time.perf_counter()
again = plan({key})
warm = time.perf_counter() - begun
after = resident()
print(json.dumps(dict(first=first, warm=warm, references=sum(len(t.references) for t in tasks),
                      pages=pages, memory=after - before)))
"""
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", type=int, default=10_000)
    parser.add_argument("--planned", type=int, default=100_000)
    parser.add_argument("--million", action="store_true")
    asked = parser.parse_args()
    print(f"many parts; {machine()}")
    for spread in (False, True) if asked.real else ():
        with scratch() as path:
            build_real(path / "lake", asked.real, spread=spread)
            look_up(path / "lake", asked.real, spread=spread)
    for parts in (*([asked.planned] if asked.planned else []), *([10**6] if asked.million else [])):
        with scratch() as path:
            start = time.perf_counter()
            build_planned(path / "lake", parts)
            print(f"{parts} parts built in {time.perf_counter() - start:.1f} s", flush=True)
            plan(path / "lake", parts)


def build_real(path: Path, parts: int, *, spread: bool) -> None:
    """Parts of 100 rows: one run of keys each, or each with keys from all over the table."""
    start = time.perf_counter()
    keys = np.arange(parts * ROWS).reshape(parts, ROWS)
    if spread:
        keys = keys.reshape(ROWS, parts).T
    with sl.connect(path, settings=UNMERGED) as db:
        points = [] if spread else [parts * ROWS * n // 100 for n in range(1, 100)]
        table = db.create_table("events", SCHEMA, row_keys="key", split_points=points)
        for part in keys:
            table.append(pa.table({"key": part, "value": part.astype(float)}))
    print(f"{parts} parts built in {time.perf_counter() - start:.1f} s", flush=True)


def look_up(path: Path, parts: int, *, spread: bool) -> None:
    """A first lookup and others after it, in fresh processes."""
    rng = np.random.default_rng(5)
    results = []
    for _ in range(5):
        keys = rng.integers(0, parts * ROWS, 101).tolist()
        results.append(fresh(LOOK_UP, path=str(path), key=keys[0], more=keys[1:]))
        assert results[-1]["rows"] == 1
    what = "each spans the table" if spread else "disjoint keys"
    print(f"{parts} parts, {what}")
    line("  open and first lookup", [r["first"] for r in results])
    line("  lookups after it", [t for r in results for t in r["warm"]])
    counts = [r["opened"] for r in results] + [c for r in results for c in r["counts"]]
    shown(counts, results)


def shown(counts: list[int], results: list[dict[str, Any]]) -> None:
    """Prints what was opened, and what the processes needed."""
    if counts:
        mean = sum(counts) / len(counts)
        print(f"{'  parts opened by a lookup':<44} mean {mean:.2f}  max {max(counts)}")
    print(f"{'  pages of state fetched':<44} {[r['pages'] for r in results]}")
    memory = percentile([r["memory"] / 1024 for r in results], 0.5)
    print(f"{'  memory above that of the import':<44} {memory:.0f} MiB", flush=True)


def build_planned(path: Path, parts: int) -> None:
    """A table of so many made-up parts, ten in each leaf, of which every second has a filter."""
    with sl.connect(path, settings=UNMERGED) as db:
        table = db.create_table("events", SCHEMA, row_keys="key")
        store = db._handle.store  # noqa: SLF001  below what users hold
        data = store.data(table.id)
        version = store.txns.table_by_id(store.txns.machine.known(), table.id)
        codec = KeyCodec(TableSchema.from_version(version))
        bounds = [codec.encode((n * PER_LEAF * ROWS,)) for n in range(1, parts // PER_LEAF)]
        split(data, bounds)
        for time_, start in enumerate(range(0, parts, BITE)):
            # As the background does it; the last record is for those who open it to replay.
            data.maybe_rollup()
            made = [
                made_up(table.id, store, codec, n) for n in range(start, min(parts, start + BITE))
            ]
            data.submit(Apply(time_, time_ + 1, tuple((time_, part) for part in made)))


def split(data: Any, bounds: list[bytes]) -> None:
    """Splits the only leaf at the bounds, from the right, a thousand at a time."""
    for start in reversed(range(0, len(bounds), 1_000)):
        leaf = next(leaf for _, leaf in data.state.leaves.range(()))
        data.submit(Split(leaf.id, leaf.interval.lower, tuple(bounds[start : start + 1_000])))


def made_up(table: str, store: Any, codec: KeyCodec, number: int) -> Part:
    """A part as small as they come, of rows nobody wrote."""
    keys = np.arange(number * ROWS, (number + 1) * ROWS)
    return Part(
        key=str(store.new_part_key(ShardId(table), store.session)),
        size=4_000,
        rows=ROWS,
        lower=codec.encode((int(keys[0]),)),
        upper=codec.encode((int(keys[-1]),)),
        distinct=True,
        footer_size=1_500,
        footer_crc=number,
        statistics=bytes(40),
        schema_version=1,
        filter=make_filter(hashes_of([pa.array(keys.tolist())])) if number % 2 else b"",
    )


def plan(path: Path, parts: int) -> None:
    """Opens and plans a lookup in fresh processes."""
    rng = np.random.default_rng(6)
    results = [
        fresh(PLAN, path=str(path), key=int(key)) for key in rng.integers(0, parts * ROWS, 7)
    ]
    print(f"{parts} parts, {PER_LEAF} in a leaf, planning only")
    line("  open and plan a lookup", [r["first"] for r in results])
    line("  plan the same again", [r["warm"] for r in results])
    shown([], results)


def fresh(code: str, **values: Any) -> dict[str, Any]:
    """What a new process says."""
    done = subprocess.run(
        [sys.executable, "-c", code.format(**values)], check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()
