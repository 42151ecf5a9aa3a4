"""What the README shows of Spark works when pasted."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.documents import python_blocks

pytestmark = pytest.mark.spark

README = Path(__file__).parents[2] / "README.md"


def test_the_spark_of_the_readme_runs(tmp_path: Path) -> None:
    # In a process of its own: relative paths are those of the directory where Java was started.
    (tmp_path / "measured").mkdir()
    measured = pa.table({"sensor": [5, 5], "at": [1, 2], "value": [1.0, 2.0]})
    pq.write_table(measured, tmp_path / "measured" / "a.parquet")
    pasted = "".join(block for _, block in python_blocks(README, spark=True))
    done = subprocess.run(
        [sys.executable, "-c", f"{pasted}\ndb.close()\nspark.stop()\n"],
        cwd=tmp_path,
        env=dict(os.environ),
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "|     5|    2|" in done.stdout
