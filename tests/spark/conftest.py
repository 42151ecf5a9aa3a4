"""The Spark session that all Spark tests share, and a database for each of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strandline.connect import connect
from strandline.database import Database
from strandline.pipeline.spark import session
from strandline.pipeline.tables import register
from tests.spark.helpers import QUIET


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Yield a local session with two cores, in which a task may be tried twice."""
    spark = session("strandline-tests", "local[2, 2]")
    register(spark)
    yield spark
    spark.stop()


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """An empty database in a directory."""
    with connect(str(tmp_path / "lake"), settings=QUIET) as db:
        yield db
