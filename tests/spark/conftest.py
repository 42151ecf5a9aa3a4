"""The Spark session that all Spark tests share."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from strandline.pipeline.session import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Yield a local session with two cores."""
    spark = session("strandline-tests", "local[2]")
    yield spark
    spark.stop()
