"""Runs the Python in a document as a reader would: from the top, in an empty directory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

NOT_RUN = "<!-- not run -->"
_BLOCK = re.compile(rf"^({re.escape(NOT_RUN)}\n)?```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def python_blocks(page: Path) -> list[tuple[int, str]]:
    """The blocks of Python that are meant to run, each with the line where it begins."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, found.start(2)) + 1, found[2])
        for found in _BLOCK.finditer(text)
        if not found[1]
    ]


def run_python(page: Path) -> dict[str, Any]:
    """Runs all blocks, one after another, in one namespace, which is returned."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for line, block in python_blocks(page):
        code = compile("\n" * (line - 1) + block, str(page), "exec")
        exec(code, names)
    return names
