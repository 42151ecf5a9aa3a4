"""Runs every benchmark, one process each, or those that are named: `python -m benchmarks reads`."""

from __future__ import annotations

import subprocess
import sys

NAMES = (
    "appends",
    "append_sizes",
    "reads",
    "import_local",
    "import_spark",
    "stream_memory",
    "subscribe",
    "history",
    "many_parts",
    "growth",
    "upserts",
    "compaction",
    "amplification",
    "transactions",
)


def main() -> int:
    """Runs them in order; 1 if one fails."""
    names = sys.argv[1:] or NAMES
    codes = [subprocess.call([sys.executable, "-m", f"benchmarks.{name}"]) for name in names]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
