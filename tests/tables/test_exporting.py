"""Rows as files: what was in the table is in the file, and half a file is never there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from strandline.connect import connect
from strandline.database import Database
from strandline.errors import LocationError, UsageError
from tests.tables.helpers import QUIET, rows

SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string()), ("v", pa.list_(pa.int32()))])
COUNT = 300_000


@pytest.fixture
def db(tmp_path: Path) -> Any:
    with connect(tmp_path / "lake", settings=QUIET) as found:
        yield found


def filled(db: Database, count: int = 10) -> Any:
    keys = list(range(count))
    data = {
        "k": keys,
        "s": [None if k % 3 == 0 else f'"{k}",\n' for k in keys],
        "v": [[k] for k in keys],
    }
    return db.create_table("t", pa.table(data, SCHEMA), row_keys="k")


def test_parquet_has_the_same_rows_in_the_same_order(db: Database, tmp_path: Path) -> None:
    table = filled(db, COUNT)
    assert table.export(tmp_path / "t.parquet") == COUNT
    found = pq.read_table(tmp_path / "t.parquet", page_checksum_verification=True)
    assert found.equals(table.scan().to_arrow().cast(found.schema))


def test_json_has_a_line_for_each_row(db: Database, tmp_path: Path) -> None:
    table = filled(db)
    assert table.export(tmp_path / "t.json") == 10
    lines = (tmp_path / "t.json").read_text().splitlines()
    assert [json.loads(line) for line in lines] == table.scan().to_arrow().to_pylist()


def test_csv_has_the_rows_that_were_asked_for(db: Database, tmp_path: Path) -> None:
    table = filled(db)
    path = tmp_path / "out.txt"
    assert table.export(path, columns=["k", "s"], where="k < 4", format="csv") == 4
    options = csv.ParseOptions(newlines_in_values=True)
    found = csv.read_csv(
        path, parse_options=options, convert_options=csv.ConvertOptions(strings_can_be_null=True)
    )
    assert rows(found) == rows(table.scan(["k", "s"], "k < 4").to_arrow())


def test_a_file_is_as_of_one_moment(db: Database, tmp_path: Path) -> None:
    table = filled(db)
    before = table.append({"k": [50], "s": ["x"], "v": [[1]]})
    table.delete(all=True)
    assert table.export(tmp_path / "now.parquet") == 0
    assert table.export(tmp_path / "then.parquet", as_of=before) == 11


def test_what_is_there_is_replaced_only_if_that_is_asked_for(db: Database, tmp_path: Path) -> None:
    table, path = filled(db), tmp_path / "t.csv"
    path.write_text("mine")
    with pytest.raises(UsageError, match="overwrite=True"):
        table.export(path, columns=["k"])
    assert path.read_text() == "mine"
    table.export(path, columns=["k"], overwrite=True)
    assert path.read_text().startswith('"k"\n0\n')


def test_names_may_have_any_signs(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(db)
    place = tmp_path / 'it\'s a "place" %20 [1]*?'
    place.mkdir()
    for name in ("a 'b' \"c\".parquet", "x%20y.parquet", "[z]*.json"):
        assert table.export(place / name) == 10
        table.delete(all=True)
        path = str(place / name).replace("'", "''")
        assert db.sql(f"COPY t FROM '{path}'").rows == 10
    monkeypatch.setenv("HOME", str(place))
    assert table.export("~/home.parquet") == 10
    assert (place / "home.parquet").exists()


def test_nothing_is_left_of_what_failed(db: Database, tmp_path: Path) -> None:
    table = filled(db)
    place = tmp_path / "out"
    place.mkdir()
    with pytest.raises(UsageError, match="CSV has no form"):
        table.export(place / "t.csv")
    with pytest.raises(UsageError, match="not clear"):
        table.export(place / "t.xlsx")
    with pytest.raises(LocationError, match=r"could not be written: .*missing; make it first"):
        table.export(place / "missing" / "t.parquet")
    with pytest.raises(UsageError, match="is a directory: write the path of a file in it"):
        table.export(place)
    assert list(place.iterdir()) == []
