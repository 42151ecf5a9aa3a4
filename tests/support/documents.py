"""Runs the Python in a document as a reader would: from the top, in an empty directory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ON_SPARK = "<!-- runs with Spark -->"
"""Stands before a block that needs Spark."""
_BLOCK = re.compile(rf"^({re.escape(ON_SPARK)}\n)?```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def python_blocks(page: Path, *, spark: bool = False) -> list[tuple[int, str]]:
    """The blocks of Python, each with the line where it begins; without Spark, not those for it."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, found.start(2)) + 1, found[2])
        for found in _BLOCK.finditer(text)
        if spark or not found[1]
    ]


def run_python(page: Path, *, spark: bool = False) -> dict[str, Any]:
    """Runs all blocks, one after another, in one namespace, which is returned."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for line, block in python_blocks(page, spark=spark):
        # As it stands there: this module's own imports from __future__ are not the reader's.
        code = compile("\n" * (line - 1) + block, str(page), "exec", dont_inherit=True)
        exec(code, names)
    return names
