"""On Spark, too, whatever happens to a stored object: what is right, or an error that names it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from strandline.connect import connect
from strandline.distributed import verifying
from strandline.env import Deadline
from strandline.errors import Corruption
from strandline.pipeline.tables import table as spark_table
from tests.spark.helpers import rows
from tests.support.damage import SMALL, TABLES, Lake, build, flip

pytestmark = pytest.mark.spark

SEED = 20_261_121


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    path = tmp_path_factory.mktemp("damage")
    build(path / "pristine")
    return Lake.of(path / "pristine", path / "lake")


@pytest.fixture(params=["in process", "on executors"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who verifies what Spark's own reader is to read."""
    if request.param == "on executors":
        monkeypatch.setattr(verifying, "_HERE_BYTES_MAX", 0)
    return str(request.param)


def natively(spark: SparkSession, path: Path, name: str) -> list[tuple[Any, ...]]:
    with connect(path, mode="r", settings=SMALL) as db:
        return rows(spark_table(spark, db, name))


def by_source(spark: SparkSession, path: Path, name: str) -> list[tuple[Any, ...]]:
    reader = spark.read.format("strandline").option("url", str(path)).option("table", name)
    return rows(reader.load())


def parts_of(lake: Lake, name: str) -> list[str]:
    with connect(lake.path, mode="r", settings=SMALL) as db:
        return [key for key in db[name].parts()["part"].to_pylist() if key]


def damages(lake: Lake, key: str, rng: random.Random) -> Iterator[bytes | None]:
    data = lake.whole[key]
    yield from (None, b"", data[:-1], data[: len(data) // 2])
    yield from (flip(data, rng.randrange(8 * len(data))) for _ in range(2))


def copies(lake: Lake, path: Path, name: str, rng: random.Random) -> Iterator[tuple[str, Path]]:
    """Copies of the database, each with one part of the table damaged, and that part's key."""
    keys = parts_of(lake, name)
    changes = [(key, data) for key in keys for data in damages(lake, key, rng)]
    swapped = zip(keys, keys[1:] + keys[:1], strict=True)
    changes += [(key, lake.whole[other]) for key, other in swapped]
    for number, (key, data) in enumerate(changes):
        copy = path / f"copy{number}"
        shutil.copytree(lake.path, copy)
        part = copy / key
        part.unlink()
        if data is not None:
            part.write_bytes(data)
        yield key, copy


def test_undamaged_it_is_read_as_the_database_reads_it(
    spark: SparkSession, lake: Lake, where: str
) -> None:
    for name in TABLES:
        assert natively(spark, lake.path, name) == lake.expected[name, "scan"]
        assert by_source(spark, lake.path, name) == lake.expected[name, "scan"]


def test_a_damaged_part_is_named_before_spark_reads_it(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    for key, copy in copies(lake, tmp_path, "settled", random.Random(SEED)):
        with pytest.raises(Corruption) as caught:
            natively(spark, copy, "settled")
        assert caught.value.object == key


def test_a_damaged_part_is_named_by_executors(
    spark: SparkSession, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "_HERE_BYTES_MAX", 0)
    rng = random.Random(SEED)
    key = parts_of(lake, "settled")[0]
    for number, data in enumerate(damages(lake, key, rng)):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(lake.path, copy)
        (copy / key).unlink()
        if data is not None:
            (copy / key).write_bytes(data)
        with pytest.raises(Corruption) as caught:
            natively(spark, copy, "settled")
        assert caught.value.object == key


def test_a_header_that_spark_would_believe_is_found(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """The first bytes of a chunk are a page's header, which no page checksum covers."""
    key = parts_of(lake, "settled")[0]
    copy = tmp_path / "copy"
    shutil.copytree(lake.path, copy)
    with connect(copy, mode="r", settings=SMALL) as db:
        for bit in range(8 * 4, 8 * 60):
            (copy / key).unlink()
            (copy / key).write_bytes(flip(lake.whole[key], bit))
            with pytest.raises(Corruption, match=Path(key).stem):
                spark_table(spark, db, "settled")


def test_a_verified_part_is_verified_again_when_it_was_written_to(
    spark: SparkSession, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(lake.path, copy)
    key = parts_of(lake, "settled")[0]
    with connect(copy, mode="r", settings=SMALL) as db:
        read = db._handle.store.reader.verify
        verified: list[str] = []

        def noted(part: Any, deadline: Deadline) -> None:
            verified.append(part.key)
            read(part, deadline)

        monkeypatch.setattr(db._handle.store.reader, "verify", noted)
        monkeypatch.setattr(
            db._handle.store.env, "now_micros", lambda: 1 << 52, raising=True
        )  # every file is old
        spark_table(spark, db, "settled")
        assert key in verified
        verified.clear()
        spark_table(spark, db, "settled")
        assert verified == []
        state = (copy / key).stat()
        while (copy / key).stat().st_ctime_ns == state.st_ctime_ns:
            (copy / key).chmod(0o600)
            (copy / key).write_bytes(flip(lake.whole[key], 8 * 30))
        with pytest.raises(Corruption, match=Path(key).stem):
            spark_table(spark, db, "settled")


def test_the_data_source_names_what_is_damaged(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    rng = random.Random(SEED)
    for key, copy in [*copies(lake, tmp_path, "stock", rng)][::3]:
        with pytest.raises(Exception, match=Path(key).stem):
            by_source(spark, copy, "stock")


def test_damaged_state_is_named_or_got_around(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    rng = random.Random(SEED)
    keys = [key for key in lake.whole if not key.endswith(".parquet")]
    for number, key in enumerate(rng.sample(keys, 6)):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(lake.path, copy)
        data = lake.whole[key]
        (copy / key).unlink()
        (copy / key).write_bytes(flip(data, rng.randrange(8 * len(data))))
        for read in (natively, by_source):
            try:
                right = read(spark, copy, "settled") == lake.expected["settled", "scan"]
            except Exception as error:  # noqa: BLE001  Spark's, with ours in its text
                right = "Corruption" in f"{type(error).__name__} {error}"
            assert right, (key, read)
