"""Named SQL queries from a `.sql` file next to the code that runs them."""

from __future__ import annotations

import re
from importlib import resources

__all__ = ["load_queries"]

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load_queries(file: str) -> dict[str, str]:
    """The queries of `strandline/location/<file>` by their names.

    Each begins with a line `-- name: <name>`; what stands before the first is a comment.
    """
    text = resources.files("strandline.location").joinpath(file).read_text(encoding="utf-8")
    pieces = _NAME.split(text)[1:]
    return {
        name: query.strip().rstrip(";")
        for name, query in zip(pieces[::2], pieces[1::2], strict=True)
    }
