"""Rows as a table on a screen."""

from __future__ import annotations

import json
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from typing import Any

import pyarrow as pa
from pyarrow import types
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

import strandline as sl

__all__ = ["ROWS_SHOWN", "fitted", "readable_bytes", "show"]

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
) -> list[str]:
    """Prints rows of plain values, and returns what there is to say about what is not shown.

    `data`: they are a user's, and shown as they are. Else counts and sizes are made readable.

    No value is ever cut. Of several rows those columns are shown that have room, from the left; one
    row alone, or rows of which hardly a column has room, stand upright.
    """
    cells = [
        [_cell(name, value, data=data) for name, value in row.items()]
        for row in (rows if whole else islice(rows, ROWS_SHOWN))
    ]
    notes = []
    if next(rows, None) is not None:
        notes.append(
            f"the first {ROWS_SHOWN} rows; --limit shows more, --output csv gives all of them"
        )
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console = Console(file=sys.stdout, highlight=False, width=_PLAIN_WIDTH)
    table, left_out = fitted(schema, cells, console.width, title=title)
    if left_out and (len(cells) == 1 or len(table.columns) < 2):
        _stand_upright(console, schema.names, cells, title)
        return notes
    console.print(table)
    if left_out and cells:
        notes.append(
            f"no room for {', '.join(left_out)}; a wider screen shows more, --output json all"
        )
    return notes


def fitted(
    schema: pa.Schema,
    cells: Sequence[Sequence[str]],
    width: int,
    *,
    title: str | None = None,
    framed: bool = True,
) -> tuple[Table, list[str]]:
    """A table of as many columns as have room, from the left, and the names of the others.

    Lines are broken between words of text, and nowhere else.
    """
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    if not framed:
        table.box = None
    shown = [[name, *(row[at] for row in cells)] for at, name in enumerate(schema.names)]
    kept = _widths(shown, [_is_number(f.type) for f in schema], width - 1, 3 if framed else 2)
    for field, room in zip(schema, kept, strict=False):
        justify: JustifyMethod = "right" if _is_number(field.type) else "left"
        table.add_column(Text(field.name), justify=justify, width=room)
    for row in cells:
        table.add_row(*(Text(cell) for cell in row[: len(kept)]))
    return table, schema.names[len(kept) :]


def _widths(
    columns: Sequence[Sequence[str]], numbers: Sequence[bool], room: int, frame: int
) -> list[int]:
    """Widths of those columns of texts that have room, beside a frame of so many cells each."""
    most = [max(cell_len(line) for text in texts for line in text.split("\n")) for texts in columns]
    least = [
        wanted if whole else max(cell_len(word) for text in texts for word in [*text.split(), " "])
        for texts, wanted, whole in zip(columns, most, numbers, strict=True)
    ]
    ends = list(accumulate(needed + frame for needed in least))
    kept = bisect_right(ends, room)
    found = least[:kept]
    spare = room - (ends[kept - 1] if kept else 0)
    # Those that lack little get it first, so that only long texts are broken.
    lacking = sorted(range(kept), key=lambda at: most[at] - least[at])
    for others, at in zip(range(kept, 0, -1), lacking, strict=True):
        more = min(most[at] - least[at], spare // others)
        found[at] += more
        spare -= more
    return found


def _stand_upright(
    console: Console, names: Sequence[str], cells: Sequence[Sequence[str]], title: str | None
) -> None:
    """Prints a line per value; a screen that is narrower than that breaks it by itself."""
    if title:
        console.print(Text(title, "bold"))
    # What has names of its own is lines already.
    pairs = len(names) == 2 and len(cells) > 1
    groups: list[list[Sequence[str]]] = (
        [[names, *cells]] if pairs else [list(zip(names, row, strict=True)) for row in cells]
    )
    for at, group in enumerate(groups):
        if at:
            console.print()
        room = max(cell_len(name) for name, _ in group)
        for name, value in group:
            gap = " " * (room - cell_len(name) + 2)
            whole = value.replace("\n", f"\n{' ' * (room + 2)}")
            console.print(Text.assemble((name, "bold"), gap, whole), soft_wrap=True)


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
    return _worded(name, value, data=data).expandtabs()


def _worded(name: str, value: Any, *, data: bool) -> str:  # noqa: PLR0911  one line per kind
    if value is None:
        return "null" if data else ""
    if name == "__time" and isinstance(value, int):
        return sl.Micros(value).time.isoformat().replace("+00:00", "Z")
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
