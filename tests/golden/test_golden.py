"""What an earlier build wrote is read for ever, and what is written now is what it wrote.

docs/format.md says what to do when one of these tests fails.
"""

import base64
import json
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf.message import Message

from strandline import Micros, connect
from strandline.connect import LOG_FILE, decode_marker, encode_marker
from strandline.database import Database
from strandline.env import RealEnv
from strandline.errors import Fenced, UsageError
from strandline.ids import MARKER_KEY, ObjectKey
from strandline.location.memory import MemoryBlob, MemoryStore
from strandline.parts.files.footer import Identity
from strandline.parts.files.inline import decode_inline, encode_inline
from strandline.parts.files.write import write_part
from strandline.parts.schema import DIFF, END, TIME, TableSchema
from strandline.shard import Batch, SnapshotSplit
from strandline.state import codec
from strandline.state import strandline_pb2 as pb
from strandline.state.messages import NAMES
from strandline.state.model import FORMAT, Entry, Part, Reference, TableVersion
from strandline.state.pages import Page
from strandline.txn import Txn
from strandline.write.staged import Staged
from tests.golden.content import QUIET, content
from tests.golden.make import SMALL, make
from tests.support.deadlines import within

FORMATS = sorted(Path(__file__).parent.glob("format-*"))
NEWEST = FORMATS[-1]

HEADER = struct.Struct("<4sII")
MESSAGES: dict[bytes, Callable[[], Message]] = {
    b"SLrc": pb.Record,
    b"SLpg": pb.Page,
    b"SLru": pb.Manifest,
    b"SLrt": pb.Copies,
    b"SLbt": pb.Batch,
    b"SLst": pb.Staged,
    b"SLtx": pb.Txn,
}


@pytest.fixture(params=FORMATS, ids=lambda path: str(path.name))
def golden(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture
def lake(golden: Path, tmp_path: Path) -> Path:
    """A copy of the database, to be written to."""
    return Path(shutil.copytree(golden / "lake", tmp_path / "lake"))


def expected(golden: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((golden / "expected.json").read_text(encoding="utf-8"))
    return found


def as_read(golden: Path, lake: Path) -> dict[str, Any]:
    """What the copy says, as it comes back from JSON."""
    said = expected(golden)
    found: dict[str, Any] = json.loads(json.dumps(content(lake, said["times"], said["shards"])))
    return found


def objects(golden: Path, kind: str) -> Iterator[tuple[str, bytes]]:
    """All objects of a kind, with their keys."""
    lake = golden / "lake"
    for path in sorted(lake.rglob(f"*.{kind}")):
        yield str(path.relative_to(lake)), path.read_bytes()


def records(golden: Path) -> list[tuple[str, int, bytes]]:
    # Without a look for companions, which a copy in a repository has not, and without a lock.
    url = f"file:{golden / 'lake' / LOG_FILE}?mode=ro&immutable=1"
    with closing(sqlite3.connect(url, uri=True)) as log:
        return list(log.execute("SELECT shard, seqno, data FROM record ORDER BY shard, seqno"))


def sealed(golden: Path) -> Iterator[tuple[str, bytes]]:
    """Everything with our header: what is in the log, what is in objects, what is sent."""
    for shard, seqno, data in records(golden):
        yield f"record {seqno} of {shard}", data
    for kind in ("page", "rollup", "receipt"):
        yield from objects(golden, kind)
    for name in ("staged", "staged-with-reads", "txn"):
        yield name, (golden / f"{name}.bytes").read_bytes()
    fields = json.loads((golden / "batch.bytes").read_bytes()[9:])
    yield "batch", base64.b64decode(fields["parts"])


def again(name: str, data: bytes) -> bytes:
    """The bytes decoded and encoded again; what was written in an older format is then in ours."""
    magic = data[:4]
    if magic == b"SLrc":
        return codec.encode_record(codec.decode_record(data, name))
    if magic == b"SLpg":
        page = pb.Page.FromString(data[HEADER.size :])
        found = decoded_page(name, data)
        return codec.encode_page(NAMES[page.collection], page.shard, name, found)
    if magic == b"SLru":
        return codec.encode_rollup(codec.decode_rollup(data, name))
    if magic == b"SLrt":
        return codec.encode_receipt(codec.decode_receipt(data, name))
    if magic == b"SLst":
        return codec.encode_staged(*codec.decode_staged(data))
    if magic == b"SLtx":
        return codec.encode_txn(*codec.decode_txn(data))
    return codec.encode_batch(codec.decode_batch(data, name))


# --- reading what was written


def test_a_stored_database_says_what_it_said(golden: Path, lake: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in lake.rglob("*") if path.is_file()}
    assert as_read(golden, lake) == expected(golden)
    assert before == {path: path.stat().st_mtime_ns for path in lake.rglob("*") if path.is_file()}


def test_every_stored_row_is_found_by_its_key(golden: Path, lake: Path) -> None:
    """By the order, the hashes and the filters of keys as they are now."""
    with connect(lake, mode="r", settings=QUIET) as db:
        for time in expected(golden)["times"]:
            then = db.as_of(Micros(time))
            for name in then.tables():
                table = then[name]
                keys = table.scan([*table.row_keys, *table.sort_keys]).to_arrow()
                each = [tuple(key.values()) for key in keys.to_pylist()]
                assert table.get_many(each).num_rows == len(each) == len(table)
                assert all(table.get(*key).num_rows for key in each[:: len(each) // 5 + 1])


def test_a_stored_database_goes_on(golden: Path, lake: Path) -> None:
    said = expected(golden)
    with connect(lake, settings=QUIET) as db:
        counts = {name: len(db[name]) for name in db.tables() if name != "held"}
        for name in counts:
            first = db[name].head(1)
            added = db[name].upsert(first) if db[name].kind == "keyed" else db[name].append(first)
            assert added.rows == 1
        db.compact(strategy="full", force=True)
        db.split()
        db.vacuum()
        for name, count in counts.items():
            assert len(db[name]) == count + (db[name].kind == "rows")
    found = as_read(golden, lake)
    for part in ("tables", "positions", "properties", "updates", "txns"):
        assert found[part] == said[part], part


def test_what_was_sent_can_still_be_committed(golden: Path, lake: Path) -> None:
    """But for what conflicts, or was written by a session that is over since."""
    with connect(lake, settings=QUIET) as db:
        with db.transaction() as tx:
            sent = (golden / "staged-with-reads.bytes").read_bytes()
            assert tx.merge(Staged.from_bytes(sent)) == 1
        assert db["stock"].get("item 001", 1).column("count").to_pylist() == [51]
        late = db.transaction()
        late.merge(Staged.from_bytes((golden / "staged.bytes").read_bytes()))
        with pytest.raises(Fenced):
            late.commit()


def test_what_was_sent_between_processes_is_understood(golden: Path) -> None:
    assert Batch.from_bytes((golden / "batch.bytes").read_bytes()).rows == 21
    assert SnapshotSplit.from_bytes((golden / "split.bytes").read_bytes()).as_of == 51
    assert Txn.from_bytes((golden / "txn.bytes").read_bytes()).rows == 61
    assert Staged.from_bytes((golden / "staged.bytes").read_bytes()).rows == 48


def test_what_goes_between_processes_is_written_as_it_was() -> None:
    batch = (NEWEST / "batch.bytes").read_bytes()
    split = (NEWEST / "split.bytes").read_bytes()
    assert Batch.from_bytes(batch).to_bytes() == batch
    assert SnapshotSplit.from_bytes(split).to_bytes() == split


# --- writing as it was written


def test_all_that_is_stored_is_encoded_as_it_was(golden: Path) -> None:
    kinds = set()
    for name, data in sealed(golden):
        encoded = again(name, data)
        kinds.add(data[:4])
        if HEADER.unpack_from(data)[1] == FORMAT:
            assert encoded == data, name
        else:
            assert again(name, encoded) == encoded, name
    assert kinds == MESSAGES.keys()


def test_records_name_their_predecessors(golden: Path) -> None:
    last: dict[str, tuple[int, bytes]] = {}
    for shard, seqno, data in records(golden):
        record = codec.decode_record(data, "")
        assert (record.shard, record.seqno) == (shard, seqno)
        if shard in last:
            assert (seqno - 1, record.predecessor) == last[shard]
        last[shard] = (seqno, codec.record_hash(data))


def test_the_marker_is_written_as_it_was() -> None:
    data = (NEWEST / "lake" / MARKER_KEY).read_bytes()
    assert encode_marker(decode_marker(data, "")) == data


def test_inline_rows_are_written_as_they_were() -> None:
    schemas = versions(NEWEST)
    seen = 0
    for value in values(NEWEST):
        if isinstance(value, Entry) and value.batch.inline:
            schema = schemas[value.table, value.batch.schema_version]
            with pa.ipc.open_stream(value.batch.inline) as reader:
                rows = reader.read_all()
            decoded = decode_inline(value.batch.inline, schema)
            assert decoded.num_rows == value.batch.rows
            assert repr(decoded.select(rows.column_names).to_pylist()) == repr(rows.to_pylist())
            assert encode_inline(rows) == value.batch.inline
            seen += 1
    assert seen > 10


def test_parts_are_written_as_they_were() -> None:
    """With the same pyarrow to the byte; with another, what we say of them ourselves."""
    schemas = versions(NEWEST)
    seen: set[tuple[bool, bool, bool]] = set()
    for part in {part.key: part for part in parts(NEWEST)}.values():
        path = NEWEST / "lake" / part.key
        if not path.exists():
            continue  # it was dead, and vacuumed
        file = pq.ParquetFile(path)
        about = json.loads(file.metadata.metadata[b"strandline.part"])
        identity = Identity(**{name: about[name] for name in Identity.__dataclass_fields__})
        blob = MemoryBlob(MemoryStore(), RealEnv())
        schema = schemas[ObjectKey.parse(part.key).shard, part.schema_version]
        names = file.schema_arrow.names
        stored = schema.stored(time=TIME in names, diff=DIFF in names, end=END in names)
        written = write_part(
            blob,
            part.key,
            file.read().cast(stored),
            schema,
            identity=identity,
            settings=SMALL,
            deadline=within(60.0),
        )
        if file.metadata.created_by.endswith(f"version {pa.__version__}"):
            assert blob.get(part.key, timeout=60.0) == path.read_bytes(), part.key
            assert written == part
        ours = replace(
            written, size=part.size, footer_size=part.footer_size, footer_crc=part.footer_crc
        )
        assert ours == part
        seen.add((part.time_min is not None, part.has_diff, part.has_end))
    # Plain; updates with times and retractions; history.
    assert {(False, False, False), (True, True, False), (True, False, True)} <= seen


def values(golden: Path) -> Iterator[Any]:
    """Every value of state that a record brought about or a rollup has."""
    for _, _, data in records(golden):
        for diff in codec.decode_record(data, "").diffs:
            if diff.after is not None:
                yield diff.after
    for name, data in objects(golden, "page"):
        yield from decoded_page(name, data).items.values()
    for name, data in objects(golden, "rollup"):
        for page in codec.decode_rollup(data, name).pages.values():
            if isinstance(page, Page):
                yield from page.items.values()


def decoded_page(name: str, data: bytes) -> Page[Any]:
    page = pb.Page.FromString(data[HEADER.size :])
    return codec.decode_page(NAMES[page.collection], page.shard, data, name)


def versions(golden: Path) -> dict[tuple[str, int], TableSchema]:
    found = (value for value in values(golden) if isinstance(value, TableVersion) and value.schema)
    return {(value.table, value.version): TableSchema.from_version(value) for value in found}


def parts(golden: Path) -> Iterator[Part]:
    for value in values(golden):
        if isinstance(value, Reference):
            yield value.part
        elif isinstance(value, Entry):
            yield from value.batch.parts


# --- what there is of it


UNUSED = {
    # Of tables that aggregate, and of row filters, which are not there yet.
    "TableVersion.keep",
    "TableVersion.aggregate",
}


def test_every_field_of_every_message_is_among_the_golden_files() -> None:
    """Else nothing would notice that it is written otherwise, or that another takes its number."""
    found: set[str] = set()
    for _, data in sealed(NEWEST):
        message = MESSAGES[data[:4]]()
        message.ParseFromString(data[HEADER.size :])
        _collect(message, found)
    every = {
        f"{kind.name}.{field.name}"
        for kind in pb.DESCRIPTOR.message_types_by_name.values()
        for field in kind.fields
    }
    assert every - found == UNUSED
    assert found <= every


def _collect(message: Message, found: set[str]) -> None:
    for field, value in message.ListFields():
        found.add(f"{message.DESCRIPTOR.name}.{field.name}")
        if isinstance(message, pb.Page) and field.name == "items":
            value = [pb.Item.FromString(item) for item in value]  # noqa: PLW2901
        for inner in value if isinstance(value, list) or hasattr(value, "append") else [value]:
            if isinstance(inner, Message):
                _collect(inner, found)


# --- newer formats


def test_what_a_newer_build_wrote_is_refused_with_the_remedy() -> None:
    kinds = set()
    for name, data in sealed(NEWEST):
        magic = data[:4]
        if magic in kinds:
            continue
        kinds.add(magic)
        head = struct.pack("<4sI", magic, FORMAT + 1)
        payload = data[HEADER.size :]
        newer = head + zlib.crc32(payload, zlib.crc32(head)).to_bytes(4, "little") + payload
        with pytest.raises(UsageError, match=f"format {FORMAT + 1}.*upgrade"):
            again(name, newer)
    assert kinds == MESSAGES.keys()


def test_a_database_with_a_record_of_a_newer_build_is_refused(tmp_path: Path) -> None:
    lake = Path(shutil.copytree(NEWEST / "lake", tmp_path / "lake"))
    marker = decode_marker((lake / MARKER_KEY).read_bytes(), "")
    with closing(sqlite3.connect(lake / LOG_FILE)) as log, log:
        where = "shard = ? AND seqno = (SELECT max(seqno) FROM record WHERE shard = ?)"
        key = (marker.txns, marker.txns)
        (data,) = log.execute(f"SELECT data FROM record WHERE {where}", key).fetchone()
        head = struct.pack("<4sI", data[:4], FORMAT + 1)
        crc = zlib.crc32(data[12:], zlib.crc32(head)).to_bytes(4, "little")
        log.execute(f"UPDATE record SET data = ? WHERE {where}", (head + crc + data[12:], *key))
    for mode in ("r", "rw"):
        with pytest.raises(UsageError, match=f"newer Strandline, format {FORMAT + 1}.*upgrade"):
            open_in(lake, mode).close()


def open_in(lake: Path, mode: Any) -> Database:
    return connect(lake, mode=mode, settings=QUIET)


def test_a_marker_of_a_newer_build_is_refused(tmp_path: Path) -> None:
    lake = Path(shutil.copytree(NEWEST / "lake", tmp_path / "lake"))
    marker = decode_marker((lake / MARKER_KEY).read_bytes(), "")
    (lake / MARKER_KEY).write_bytes(encode_marker(replace(marker, format=FORMAT + 1)))
    with pytest.raises(UsageError, match=f"has format {FORMAT + 1}.*install a newer version"):
        connect(lake, settings=QUIET)


# --- making it again


def test_what_is_made_now_says_the_same(tmp_path: Path) -> None:
    """Ids and times may differ, where more or fewer of them are drawn than were then."""
    make(tmp_path)
    made, said = expected(tmp_path), expected(NEWEST)
    for part in ("tables", "positions", "properties", "updates", "txns"):
        assert made[part] == said[part], part
    assert [commit["operation"] for commit in made["history"]] == [
        commit["operation"] for commit in said["history"]
    ]
    with connect(tmp_path / "lake", mode="r", settings=QUIET) as db:
        assert db.as_of(Micros(made["times"][0])).tables()


def test_the_same_calls_store_the_same_bytes(tmp_path: Path) -> None:
    """Nothing that is stored rests on the order of a set, a thread, or memory."""
    for seed in "12":
        subprocess.run(
            [sys.executable, "-m", "tests.golden.make", str(tmp_path / seed)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            check=True,
            timeout=300,
        )
    one, two = (
        {
            p.relative_to(tmp_path / seed): p.read_bytes()
            for p in (tmp_path / seed).rglob("*.*")
            if p.is_file()
        }
        for seed in "12"
    )
    assert one.keys() == two.keys()
    assert [name for name, data in one.items() if two[name] != data] == []
