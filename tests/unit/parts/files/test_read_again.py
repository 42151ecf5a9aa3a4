"""What a second reading of the same chunks by the same handle notices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from strandline.env import RealEnv
from strandline.errors import Corruption
from strandline.location.local.blob import FileBlob
from strandline.parts.files.footer import Identity
from strandline.parts.files.read import PartReader
from strandline.parts.files.verified import Window
from strandline.parts.files.write import write_part
from strandline.parts.schema import new_schema
from strandline.settings import Settings
from strandline.state.model import EVERYTHING, Part
from tests.support.deadlines import within

SETTINGS = Settings(row_group_rows=1_000)

Stored = tuple[Path, Part, Callable[[], pa.Table], PartReader]


class Later(RealEnv):
    """A clock that goes ahead, to which every file is old."""

    def now_micros(self) -> int:
        return super().now_micros() + 60_000_000


@pytest.fixture(params=[Later, RealEnv])
def env(request: pytest.FixtureRequest) -> RealEnv:
    """The parts of one are remembered, those of the other are too new for that."""
    return request.param()  # type: ignore[no-any-return]


@pytest.fixture
def stored(tmp_path: Path, env: RealEnv) -> Stored:
    """A part's file, the part, and a function that scans it with one and the same reader."""
    blob = FileBlob(str(tmp_path), env)
    schema = new_schema(pa.schema([("k", pa.int64()), ("v", pa.float64())]), ("k",))
    numbers = list(range(5_000))
    table = pa.table({"k": numbers, "v": [n / 7 for n in numbers]}, schema=schema.stored())
    identity = Identity(
        database="d" + "0" * 32,
        table="s" + "0" * 16,
        name="t",
        session="w" + "0" * 16,
        shard="s" + "0" * 16,
    )
    key = f"w{'0' * 16}/s{'0' * 16}/part/p{'0' * 24}.parquet"
    part = write_part(
        blob, key, table, schema, identity=identity, settings=SETTINGS, deadline=within(60)
    )
    reader = PartReader(blob, SETTINGS, env)

    def scan() -> pa.Table:
        loads = reader.chunks(
            part, schema, columns=None, intervals=[EVERYTHING], deadline=within(60)
        )
        return pa.concat_tables([load(within(9)) for load in loads])

    path = tmp_path / key
    path.chmod(0o600)
    return path, part, scan, reader


def chunk(reader: PartReader, part: Part) -> tuple[int, int]:
    """Where one column of one row group in the middle begins and ends."""
    column = reader.opened(part, deadline=within(60)).metadata.row_group(2).column(1)
    return column.data_page_offset, column.data_page_offset + column.total_compressed_size


def test_damage_after_a_scan_is_found_by_the_next_one(stored: Stored) -> None:
    path, part, scan, reader = stored
    assert scan().equals(scan())
    data = bytearray(path.read_bytes())
    data[chunk(reader, part)[1] - 100] ^= 16
    path.write_bytes(data)
    with pytest.raises(Corruption, match=part.key):
        scan()


def test_a_header_that_is_damaged_between_scans_is_found(stored: Stored) -> None:
    path, part, scan, reader = stored
    whole = path.read_bytes()
    expected = scan()
    start, _ = chunk(reader, part)
    for bit in range(8 * 64):
        assert scan().equals(expected)
        assert scan().equals(expected)
        state = path.stat().st_ctime_ns
        data = bytearray(whole)
        data[start + bit // 8] ^= 1 << bit % 8
        while path.stat().st_ctime_ns == state:  # within one tick of the kernel's clock
            path.write_bytes(data)
        with pytest.raises(Corruption, match=part.key):
            scan()
        state = path.stat().st_ctime_ns
        while path.stat().st_ctime_ns == state:
            path.write_bytes(whole)


def test_what_was_not_written_to_is_verified_whole_once(
    stored: Stored, env: RealEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, scan, _ = stored
    expected = scan()
    loaded: list[Window] = []
    load = Window.load

    def noted(window: Window, wanted: Sequence[int]) -> None:
        loaded.append(window)
        load(window, wanted)

    monkeypatch.setattr(Window, "load", noted)
    if not isinstance(env, Later):  # what was just written may change without a trace
        scan()
        assert loaded
    else:
        assert scan().equals(expected)
        assert not loaded
