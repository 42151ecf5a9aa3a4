"""What the benchmarks share: the data, percentiles, and how a line is printed."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("key", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("value", pa.float64()),
        pa.field("payload", pa.string()),
    ]
)
"""The table of the benchmarks: an int64 key at random, string, timestamp, double, 30 bytes."""

KEY_SPACE = 1 << 40


def rows(count: int, seed: int, *, keys: np.ndarray | None = None) -> pa.Table:
    """`count` rows of SCHEMA; keys uniform in KEY_SPACE unless given."""
    rng = np.random.default_rng(seed)
    if keys is None:
        keys = rng.integers(0, KEY_SPACE, count)
    names = pa.array([f"sensor-{n:04d}" for n in range(2_000)])
    digits = rng.integers(0, 26, (count, 30), dtype=np.uint8) + ord("a")
    offsets = np.arange(0, 30 * (count + 1), 30, dtype=np.int32)
    payload = pa.StringArray.from_buffers(
        count, pa.py_buffer(offsets), pa.py_buffer(digits.tobytes())
    )
    start = 1_700_000_000_000_000
    times = pa.array(start + rng.integers(0, 10**13, count)).cast(pa.timestamp("us", tz="UTC"))
    return pa.table(
        [
            pa.array(keys),
            names.take(pa.array(rng.integers(0, len(names), count))),
            times,
            pa.array(rng.random(count)),
            payload,
        ],
        schema=SCHEMA,
    )


def timed(function: Callable[[], object]) -> float:
    """Seconds that the call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all are at or below."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def line(label: str, values: Sequence[float], unit: str = "ms", scale: float = 1e3) -> None:
    """Prints p50, p99, p99.9 and maximum of some seconds."""
    shown = "  ".join(
        f"{name} {percentile(values, share) * scale:.3f}"
        for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0))
    )
    print(f"{label:<44} {shown} {unit}", flush=True)


def ratio(label: str, ours: float, theirs: float, aim: str) -> None:
    """Prints a ratio with what it is meant to be."""
    print(f"{label:<44} {ours / theirs:.2f}   (aim: {aim})", flush=True)


def median(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


def machine() -> str:
    """One line about where this runs."""
    return f"{os.cpu_count()} cores, Python {platform.python_version()}, pyarrow {pa.__version__}"


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory on disk that is gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix="strandline-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
