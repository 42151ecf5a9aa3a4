"""What large jobs do without loading pandas, which takes as long as a tenth of one."""

import subprocess
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest

import strandline as sl
from strandline.parts.plain import bools, text_of, truths_of

COMPACT = """
import sys
import strandline as sl
from strandline.shard import merging

merging._IN_MEMORY_BYTES = 0  # as if there were much of it
with sl.connect(sys.argv[1]) as db:
    report, = db.compact("readings", strategy="full")
print(report.parts_before > report.parts_after, "pandas" in sys.modules)
"""

SCHEMA = pa.schema([pa.field("key", pa.int64(), nullable=False), pa.field("name", pa.string())])


@pytest.mark.parametrize("kind", ["keyed", "rows"])
def test_a_compaction_does_not_load_pandas(kind: Literal["keyed", "rows"], tmp_path: Path) -> None:
    settings = sl.Settings(inline_bytes_max=1, background=False)
    with sl.connect(tmp_path / "lake", settings=settings) as db:
        table = db.create_table("readings", SCHEMA, row_keys="key", kind=kind)
        for start in range(3):
            keys = range(start, 100, 2)
            table.append({"key": keys, "name": ["x"] * len(keys)})
    command = [sys.executable, "-c", COMPACT, str(tmp_path / "lake")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["True", "False"]


def test_truths_come_back_from_any_place_of_a_column() -> None:
    truths = np.array([True, False, False, True, True, False, True, False, True, True, False])
    column = bools(truths)
    for start in range(len(truths)):
        assert truths_of(column.slice(start)).tolist() == truths[start:].tolist()


@pytest.mark.parametrize("value", ["", "grün", b"", b"\xff\0"])
def test_a_text_is_a_scalar_of_its_type(value: str | bytes) -> None:
    kind = pa.string() if isinstance(value, str) else pa.binary()
    assert text_of(value, kind).equals(pa.scalar(value, kind))
