"""Rows as a table on a screen."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pyarrow as pa
from pyarrow import types
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["ROWS_SHOWN", "readable_bytes", "show"]

ROWS_SHOWN = 100
"""Rows that are shown of a stream, unless all are asked for."""

_PLAIN_WIDTH = 100_000
"""Where there is no screen nothing is cut off or wrapped."""


def show(
    schema: pa.Schema,
    rows: Iterator[dict[str, Any]],
    *,
    title: str | None = None,
    data: bool = False,
    whole: bool = False,
) -> bool:
    """Prints rows of plain values; whether there were more than are shown.

    `data`: they are a user's, and shown as they are. Else counts and sizes are made readable.
    """
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    for field in schema:
        table.add_column(Text(field.name), justify="right" if _is_number(field.type) else "left")
    for row in rows if whole else islice(rows, ROWS_SHOWN):
        table.add_row(*(Text(_cell(name, value, data=data)) for name, value in row.items()))
    left_out = next(rows, None) is not None
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console = Console(file=sys.stdout, highlight=False, width=_PLAIN_WIDTH)
    console.print(table)
    return left_out


def readable_bytes(size: float) -> str:
    """A size as people say it.

    >>> readable_bytes(117_018)
    '114.3 KiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _is_number(kind: pa.DataType) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _cell(name: str, value: Any, *, data: bool) -> str:
    if value is None:
        return "null" if data else ""
    if data or isinstance(value, str):
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if name == "bytes":
        return readable_bytes(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    return str(value)
