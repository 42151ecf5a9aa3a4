"""The same with executors in processes of their own."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = """
import sys
import pyarrow as pa
import strandline as sl

if __name__ == "__main__":
    config = {"spark.task.maxFailures": "4"}
    spark = sl.spark.session("cluster", "local-cluster[2,1,1024]", config)
    sl.spark.register(spark)
    with sl.connect(sys.argv[1]) as db:
        data = pa.table({"k": [(i * 7919) % 20_000 for i in range(20_000)], "v": range(20_000)})
        table = db.create_table("t", data.schema, row_keys="k", split_points=[5_000, 10_000])
        sl.spark.import_table(spark, db, "t", spark.createDataFrame(data).repartition(4))
        sl.spark.import_table(spark, db, "t", spark.createDataFrame(data).repartition(4))
        table.append({"k": [1], "v": [-1]})
        reports = sl.spark.compact(spark, db, "t", strategy="full")
        reader = spark.read.format("strandline").option("url", db.url).option("table", "t")
        print("jobs", reports[0].jobs, "rows", len(table))
        print("source", reader.load().selectExpr("count(*)", "sum(v)").first())
        native = sl.spark.table(spark, db, "t")
        print("native", native.selectExpr("count(*)", "sum(v)").first())
    spark.stop()
"""


def test_executors_in_other_processes_import_compact_and_read(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    run = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "lake")],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    total = 2 * sum(range(20_000)) - 1
    lines = [line for line in run.stdout.splitlines() if line.split(" ")[0] in SAID]
    assert lines == [
        "jobs 3 rows 40001",
        f"source Row(count(1)=40001, sum(v)={total})",
        f"native Row(count(1)=40001, sum(v)={total})",
    ]


SAID = {"jobs", "source", "native"}
