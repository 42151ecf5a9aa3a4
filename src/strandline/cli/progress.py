"""Progress bars: on a terminal, on standard error, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

__all__ = ["Report", "bar"]


class Report(Protocol):
    """Told how much is done."""

    def __call__(self, done: float, of: float | None = None, /) -> None:
        """So much of so much; None: as much as before."""


@contextmanager
def bar(what: str, total: float | None = None, *, bytes_: bool = False) -> Iterator[Report]:
    """A bar while the block runs. Without a total it only shows that something goes on."""
    console = Console(stderr=True)
    count: ProgressColumn = DownloadColumn(binary_units=True) if bytes_ else MofNCompleteColumn()
    columns = [TextColumn("{task.description}"), BarColumn()]
    columns += [count] if bytes_ or total is not None else []
    columns += [TimeElapsedColumn(), TimeRemainingColumn()]
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(what, total=total)

        def report(done: float, of: float | None = None, /) -> None:
            if of is not None:
                progress.update(task, total=of)
            progress.update(task, completed=done)

        yield report
