"""Whatever happens to the bytes of a part: the right answer, or an error that names the part."""

from __future__ import annotations

import random
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import Corruption, LocationError
from strandline.location.memory import MemoryBlob
from strandline.parts.files import write
from strandline.parts.files.crc import combined
from strandline.parts.files.encoding import Encoding
from strandline.parts.files.read import PartReader
from strandline.parts.files.verified import Arena, ChunkRecorder, Chunks, Window
from strandline.parts.keys import KeyRange
from strandline.parts.schema import TableSchema, new_schema
from strandline.settings import Settings
from strandline.state.model import Part
from tests.support.deadlines import within
from tests.unit.parts.files.test_part import ENV, SCHEMA, Store, rows
from tests.unit.parts.ranges import mask_of

KEY = new_schema(pa.schema([("k", pa.int64())]), "k")
KINDS: dict[str, Callable[[], tuple[TableSchema, pa.Table, Settings]]] = {
    "one column": lambda: (
        KEY, pa.table({"k": range(20)}, schema=KEY.arrow), Settings(row_group_rows=7)
    ),
    "many columns": lambda: (SCHEMA, rows(20), Settings(row_group_rows=7)),
    "dictionaries and compression": lambda: (SCHEMA, rows(700), Settings(row_group_rows=600)),
}  # fmt: skip

Answer = tuple[Any, Any]


def paths(
    store: Store, part: Part, schema: TableSchema, table: pa.Table
) -> Iterator[tuple[str, Callable[[], Answer]]]:
    """Every way of reading a part: what it answers, and what is right."""

    def reader() -> PartReader:
        return PartReader(store.blob, store.settings, ENV)

    def read(columns: list[str] | None, wanted: KeyRange | None) -> Answer:
        ranges = None if wanted is None else [wanted]
        found = reader().read(part, schema, columns=columns, ranges=ranges, deadline=within(60))
        expected = table
        if wanted is not None:
            expected = table.filter(pa.array(mask_of(wanted, table, schema), pa.bool_()))
        return found, expected.select(columns or table.column_names)

    def batches(columns: list[str]) -> Answer:
        found = reader().batches(part, schema, columns=columns, deadline=within(60), rows=10)
        expected = table.select(columns)
        return pa.Table.from_batches(list(found), expected.schema), expected

    def quantiles() -> Answer:
        return len(reader().quantiles(part, within())), min(table.num_rows, 256)

    for name in schema.arrow.names:
        yield f"column {name}", lambda name=name: read([name], None)  # type: ignore[misc]
        yield f"batches of {name}", lambda name=name: batches([name])  # type: ignore[misc]
    yield "everything", lambda: read(None, None)
    yield "a key", lambda: read(None, KeyRange((3,), (3,), closed=True))
    yield "a range", lambda: read(schema.arrow.names[-1:], KeyRange((2,), (5,)))
    yield "quantiles", quantiles


def check(store: Store, part: Part, schema: TableSchema, table: pa.Table) -> set[str]:
    """The paths that saw the damage; the others must have answered right."""
    seen: dict[str, Corruption] = {}
    for name, answer in paths(store, part, schema, table):
        try:
            found, expected = answer()
        except Corruption as error:
            seen[name] = error
        else:
            assert found == expected, name
    assert all(e.object == part.key and part.key in str(e) for e in seen.values())
    return set(seen)


@pytest.mark.parametrize("kind", KINDS)
def test_no_flipped_bit_gives_a_wrong_answer(kind: str) -> None:
    schema, table, settings = KINDS[kind]()
    store = Store(settings)
    part = store.write(table, schema)
    assert check(store, part, schema, table) == set()
    good = store.blob.get(part.key, timeout=60)
    rng = random.Random(kind)
    for bit in rng.sample(range(len(good) * 8), 250):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << (bit % 8)
        store.store.objects[part.key] = (bytes(damaged), 0)
        assert check(store, part, schema, table)


def test_damage_beyond_bits_is_seen_too() -> None:
    schema, table, settings = KINDS["many columns"]()
    store = Store(settings)
    part = store.write(table, schema)
    good = store.blob.get(part.key, timeout=60)
    size = len(good)
    rng = random.Random(3)
    damaged = [b"", good[:1], good[:-1], good[: size // 2], good + b"\0", good[1:] + b"\0"]
    damaged += [bytes(size), rng.randbytes(size), good[::-1]]
    damaged += [good[: -part.footer_size], good[-part.footer_size :]]
    for start in rng.sample(range(size - 64), 60):
        zeros = good[:start] + bytes(64) + good[start + 64 :]
        moved = good[:start] + good[start + 32 : start + 64] + good[start : start + 32]
        damaged += [zeros, moved + good[start + 64 :]]
    for data in damaged:
        store.store.objects[part.key] = (data, 0)
        assert data == good or check(store, part, schema, table)


def test_intact_parts_in_each_others_places_are_noticed() -> None:
    store = Store()
    # Alike in everything but one value, so that no length gives them away.
    first, second = rows(50), rows(50).set_column(3, SCHEMA.arrow.field("v"), pa.array([7.0] * 50))
    parts = [store.write(first), store.write(first), store.write(second)]
    for one, other in [(0, 1), (0, 2), (1, 2)]:
        mine, theirs = parts[one], parts[other]
        saved = dict(store.store.objects)
        store.store.objects[mine.key] = saved[theirs.key]
        store.store.objects[theirs.key] = saved[mine.key]
        for part in (mine, theirs):
            with pytest.raises(Corruption) as caught:
                PartReader(store.blob, store.settings, ENV).read(
                    part, SCHEMA, columns=None, deadline=within(60)
                )
            assert caught.value.object == part.key
        store.store.objects.update(saved)


def test_a_reference_that_lies_about_its_part_is_noticed() -> None:
    store = Store()
    part = store.write(rows(50))
    for lie in (
        replace(part, rows=49),
        replace(part, size=part.size - 1),
        replace(part, footer_crc=part.footer_crc ^ 1),
        replace(part, footer_size=part.footer_size - 1),
        replace(part, footer_size=part.footer_size + 1),
        replace(part, footer_size=0, footer_crc=0),
    ):
        with pytest.raises(Corruption):
            PartReader(store.blob, store.settings, ENV).read(
                lie, SCHEMA, columns=None, deadline=within(60)
            )


def test_damage_after_a_part_was_opened_is_noticed() -> None:
    class Mutable(MemoryBlob):
        """Files that see what becomes of the object later, as those of a disk do."""

        def open(self, key: str, *, timeout: float) -> pa.NativeFile:
            blob = self

            class File:
                closed = False
                at = 0

                def seek(self, at: int, whence: int = 0) -> int:
                    self.at = (0, self.at, len(blob.get(key, timeout=60)))[whence] + at
                    return self.at

                def tell(self) -> int:
                    return self.at

                def read(self, size: int) -> bytes:
                    self.at += size
                    return blob.get(key, timeout=60)[self.at - size : self.at]

                def close(self) -> None:
                    """Nothing is held."""

            return pa.PythonFile(File(), mode="r")

    store = Store()
    store.blob = Mutable(store.store, ENV)
    store.reader = PartReader(store.blob, store.settings, ENV)
    table = rows(50)
    part = store.write(table)
    assert store.read(part).equals(table)
    good = store.store.objects[part.key][0]
    for data in (b"", good[:100], good[:50] + bytes(20) + good[70:]):
        store.store.objects[part.key] = (data, 0)
        with pytest.raises(Corruption):
            store.reader.read(part, SCHEMA, columns=None, deadline=within(60))
    store.store.objects[part.key] = (good, 0)
    assert store.read(part).equals(table)


def test_a_read_that_fails_is_no_damage() -> None:
    class Failing(MemoryBlob):
        error: Exception

        def open(self, key: str, *, timeout: float) -> pa.NativeFile:
            raise self.error

    store = Store()
    part = store.write(rows(5))
    blob = Failing(store.store, ENV)
    reader = PartReader(blob, store.settings, ENV)
    for error in (OSError(5, "Input/output error"), LocationError("gone", may_have_happened=True)):
        blob.error = error
        with pytest.raises(LocationError):
            reader.read(part, SCHEMA, columns=None, deadline=within(60))


# --- the pieces


@given(st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=300)), min_size=1))
def test_checksums_of_two_pieces_combine_to_that_of_both(pairs: list[tuple[bytes, bytes]]) -> None:
    first = np.array([zlib.crc32(a) for a, _ in pairs], dtype=np.uint32)
    second = np.array([zlib.crc32(b) for _, b in pairs], dtype=np.uint32)
    lengths = np.array([len(b) for _, b in pairs], dtype=np.int64)
    both = combined(first, second, lengths).tolist()
    assert both == [zlib.crc32(a + b) for a, b in pairs]


def test_checksums_combine_over_long_pieces() -> None:
    data = bytes(range(256)) * 40_000
    for cut in (1, 7_000_001):
        a, b = data[:cut], data[cut:]
        both = combined(
            np.array([zlib.crc32(a)], dtype=np.uint32),
            np.array([zlib.crc32(b)], dtype=np.uint32),
            np.array([len(b)], dtype=np.int64),
        )
        assert both.tolist() == [zlib.crc32(data)]


@given(st.lists(st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=4), min_size=1))
def test_chunks_are_recorded_however_they_are_written(written: list[list[bytes]]) -> None:
    recorder = ChunkRecorder()
    end = 4
    recorder.wrote(b"PAR1", end)
    bounds = [end]
    for writes in written:
        for data in writes:
            end += len(data)
            recorder.wrote(data, end)
        bounds.append(end)
    chunks = recorder.chunks(bounds)
    assert list(chunks.checksums) == [zlib.crc32(b"".join(writes)) for writes in written]
    back = Chunks.from_bytes(chunks.to_bytes() + b"more", len(written), 4)
    assert (list(back.bounds), list(back.checksums)) == (bounds, list(chunks.checksums))
    if len(written[0]) == 1 and len(written[0][0]) > 1:
        with pytest.raises(ValueError, match="inside"):
            recorder.chunks([4, 5, end])


@given(st.data())
def test_a_window_shows_what_was_loaded_and_verified(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 9))
    pieces = [bytes([n + 1]) * data.draw(st.integers(1, 9_000)) for n in range(count)]
    content = b"PAR1" + b"".join(pieces) + b"the footer"
    bounds = [4, *(4 + len(b"".join(pieces[: i + 1])) for i in range(count))]
    part = Part("p", len(content), 1, b"", b"")
    chunks = Chunks(bounds, [zlib.crc32(piece) for piece in pieces])
    first = data.draw(st.integers(0, count - 1))
    last = data.draw(st.integers(first + 1, count))
    picked: st.SearchStrategy[set[int]] = st.sets(st.integers(first, last - 1), min_size=1)
    wanted = sorted(data.draw(picked))
    arena = Arena(bounds[last] - bounds[first])
    for _ in range(2):
        window = Window(part, pa.BufferReader(content), chunks, arena, first, last)
        window.load(wanted)
        for chunk in wanted:
            found = window.file.read_at(bounds[chunk + 1] - bounds[chunk], bounds[chunk])
            assert found == pieces[chunk]
    damaged = bytearray(content)
    place = data.draw(st.integers(4, bounds[-1] - 1))
    damaged[place] ^= 1
    hit = any(bounds[chunk] <= place < bounds[chunk + 1] for chunk in wanted)
    for bad, is_hit in [(bytes(damaged), hit), (content[: bounds[wanted[-1] + 1] - 1], True)]:
        window = Window(part, pa.BufferReader(bad), chunks, arena, first, last)
        if is_hit:
            with pytest.raises(Corruption):
                window.load(wanted)
        else:
            window.load(wanted)


def test_what_was_read_does_not_lie_in_memory_that_is_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for settings in (Settings(row_group_rows=7), Settings()):
        store, table = Store(settings), rows(2_000)
        for encoding in (Encoding(compression="none"), Encoding()):
            monkeypatch.setattr(write, "choose_encoding", lambda _, e=encoding: e)
            part = store.write(table)
            read = store.reader.read(part, SCHEMA, columns=None, deadline=within(60))
            key = KeyRange((5,), (5,), closed=True)
            found = store.reader.read(part, SCHEMA, columns=None, ranges=[key], deadline=within(60))
            assert store.reader._arenas
            for arena in store.reader._arenas:
                arena.view[:] = b"\xa5" * arena.size
            assert read.equals(table)
            assert found.equals(table.slice(15, 3))


def test_a_process_may_end_right_after_a_lookup(tmp_path: Path) -> None:
    code = f"""
import sys
from strandline.env import Deadline, RealEnv
from strandline.location.local.blob import FileBlob
from strandline.parts.keys import KeyRange
from strandline.parts.files.read import PartReader
from strandline.settings import Settings
from tests.unit.parts.files.test_part import SCHEMA, WHO, rows, write_part
blob = FileBlob({str(tmp_path)!r}, RealEnv())
key = "w0000000000000000/s0000000000000000/part/p" + sys.argv[1] * 16 + ".parquet"
soon = Deadline(RealEnv(), 60)
part = write_part(blob, key, rows(9_000), SCHEMA, identity=WHO, settings=Settings(), deadline=soon)
key = KeyRange((7,), (7,), closed=True)
reader = PartReader(blob, Settings(), RealEnv())
assert reader.read(part, SCHEMA, columns=None, ranges=[key], deadline=soon).num_rows == 3
"""
    for number in range(5):
        subprocess.run([sys.executable, "-c", code, str(number)], check=True, timeout=300)
