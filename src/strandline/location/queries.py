"""Named SQL queries from a `.sql` file next to the code that runs them."""

from __future__ import annotations

import re
from importlib import resources

__all__ = ["load_queries"]

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load_queries(package: str, file: str) -> dict[str, str]:
    """The queries of a file of that package by their names.

    Each begins with a line `-- name: <name>`; what stands before the first is a comment.
    """
    text = resources.files(package).joinpath(file).read_text(encoding="utf-8")
    pieces = _NAME.split(text)[1:]
    return {
        name: query.strip().rstrip(";")
        for name, query in zip(pieces[::2], pieces[1::2], strict=True)
    }
