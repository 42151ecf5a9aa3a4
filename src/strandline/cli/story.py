"""Tells what the demo does while it does it, and keeps the times."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from strandline.cli.progress import Report
from strandline.cli.tables import fitted, readable_bytes

__all__ = ["Story", "console_for", "median_seconds", "seconds"]

_PLAIN_WIDTH = 120
"""Of a console that is no screen."""

FIGURES = pa.schema([("step", pa.string()), ("seconds", pa.float64()), ("says", pa.string())])


def seconds(value: float) -> str:
    """A duration as people say it.

    >>> seconds(0.00123), seconds(12.3)
    ('1.2 ms', '12.3 s')
    """
    return f"{value * 1000:.1f} ms" if value < 0.1 else f"{value:.1f} s"


@dataclass
class Story:
    """A sequence of steps on a console, each with a headline, a line of why, and its time."""

    console: Console
    figures: list[dict[str, object]] = field(default_factory=list)
    _count: int = 0

    def begin(self, title: str, says: str) -> None:
        """Opens a step."""
        self._count += 1
        self.console.print(f"\n[bold cyan]{self._count}. {title}[/bold cyan]")
        self.console.print(f"[dim]{says}[/dim]")

    @contextmanager
    def timed(self, step: str) -> Iterator[Report]:
        """Measures the block; on a terminal a bar shows that something goes on."""
        console = Console(stderr=True)
        start = time.perf_counter()
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        ) as progress:
            task = progress.add_task(step, total=None)

            def report(done: float, of: float | None = None, /) -> None:
                if of is not None:
                    progress.update(task, total=of)
                progress.update(task, completed=done)

            yield report
        self.note(step, time.perf_counter() - start)

    def note(self, step: str, took: float, says: str = "") -> None:
        """Prints and keeps a measured time."""
        self.figures.append({"step": step, "seconds": took, "says": says})
        self.console.print(f"   {step}: [bold]{seconds(took)}[/bold] {says}".rstrip())

    def say(self, text: str) -> None:
        """One more line."""
        self.console.print(f"   {text}")

    def command(self, line: str) -> None:
        """A command line to be copied: on a narrow screen it is not broken."""
        self.console.print(f"   {line}", markup=False, soft_wrap=True)

    def rows(self, table: pa.Table, columns: Sequence[str], shown_max: int = 8) -> None:
        """The first rows of a table, in some of its columns."""
        some = table.slice(0, shown_max).select(columns)
        cells = [[_shown(name, value) for name, value in row.items()] for row in some.to_pylist()]
        shown, left_out = fitted(some.schema, cells, self.console.width, framed=False)
        self.console.print(shown)
        if left_out:
            self.say(f"no room for {', '.join(left_out)}")
        if table.num_rows > shown_max:
            self.say(f"… and {table.num_rows - shown_max} more")

    def closing(self) -> pa.Table:
        """All figures."""
        return pa.Table.from_pylist(self.figures, schema=FIGURES)


def _shown(name: str, value: object) -> str:
    if value is None:
        return "-"
    if name == "bytes" and isinstance(value, int):
        return readable_bytes(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def median_seconds(function: Callable[[int], object], times: int) -> float:
    """The median time of a call, which is told how many came before."""
    took = []
    for at in range(times):
        start = time.perf_counter()
        function(at)
        took.append(time.perf_counter() - start)
    return sorted(took)[times // 2]


def console_for(*, output_is_story: bool) -> Console:
    """Where the story goes: beside the output if that is for a program."""
    console = Console(file=sys.stdout if output_is_story else sys.stderr, highlight=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    return console
