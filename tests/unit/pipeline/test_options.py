"""What `format("strandline")` takes for options, without a session."""

from __future__ import annotations

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from strandline.errors import UsageError
from strandline.pipeline.source import StrandlineSource

SCHEMA = StructType([StructField("k", LongType())])
PLACE = {"url": "lake", "table": "readings"}


@pytest.mark.parametrize(
    ("options", "place"),
    [
        (PLACE, ("lake", "readings")),
        ({"path": "lake/readings"}, ("lake", "readings")),
        ({"path": "/data/lake/readings/"}, ("/data/lake", "readings")),
        ({"path": "s3://bucket/lake/readings"}, ("s3://bucket/lake", "readings")),
        ({"path": "/data/lake", "table": "readings"}, ("/data/lake", "readings")),
        ({"path": "readings", "URL": "lake"}, ("lake", "readings")),
    ],
)
def test_a_path_is_the_database_and_the_table(
    options: dict[str, str], place: tuple[str, str]
) -> None:
    source = StrandlineSource(options)
    assert (source._url, source._table) == place


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({**PLACE, "tokn": "a:1"}, r"no option 'tokn'; did you mean 'token'\?"),
        ({**PLACE, "rowkey": "k"}, r"did you mean 'rowKeys'\?"),
        ({**PLACE, "partitions": "3"}, "no option 'partitions'.* it takes url, table"),
        ({**PLACE, "asof": "5", "as_of": "5"}, "'asOf' is given twice"),
        ({**PLACE, "path": "lake/readings"}, "leave the path out"),
        ({"path": "readings"}, "option 'url' is missing"),
        ({"url": "lake"}, r"option 'table' is missing: write .*load\(\"lake/readings\"\)"),
        ({**PLACE, "asOf": "yesterday"}, "as_of cannot be 'yesterday'"),
        ({"url": "memory://lake", "table": "t"}, "memory of this process"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        StrandlineSource(options)
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("options", "overwrite", "said"),
    [
        ({"asOf": "5"}, False, "'asOf' is for reads"),
        ({"columns": "k"}, False, "'columns' is for reads"),
        ({"where": "k = 1"}, False, "what overwrite replaces"),
        ({"mode": "append"}, False, "'mode' is 'append': write"),
        ({"mode": "upsert"}, True, "'mode' is 'upsert': write"),
        ({"token": "load"}, False, "scope:number"),
        ({"token": ":7"}, False, "scope:number"),
    ],
)
def test_options_that_do_not_fit_a_write_are_refused(
    options: dict[str, str], overwrite: bool, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        StrandlineSource({**PLACE, **options}).writer(SCHEMA, overwrite)


@pytest.mark.parametrize("name", ["token", "mode", "rowKeys", "sortKeys", "kind"])
def test_options_that_do_not_fit_a_read_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"'{name}' is for writes"):
        StrandlineSource({**PLACE, name: "a:1"}).reader(SCHEMA)
