"""What happens to background work when a process ends without closing its database."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import strandline as sl

FORGETS = """
import sys
import pyarrow as pa
import strandline as sl

settings = sl.Settings(apply_backlog_commits=4, rollup_every_records=4, small_parts_max=2)
db = sl.connect(sys.argv[1], settings=settings)
table = db.create_table("t", pa.schema([("k", pa.int64())]), row_keys="k")
for number in range(60):
    table.append({"k": [number]})
"""


def test_a_process_that_forgets_to_close_ends_well_and_loses_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "lake")
    done = subprocess.run(
        [sys.executable, "-c", FORGETS, path], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    with sl.connect(path, mode="r") as db:
        assert sorted(db["t"].scan().to_arrow().column("k").to_pylist()) == list(range(60))
