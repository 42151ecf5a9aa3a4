"""Settled parts: all of their rows are live, so that any Parquet reader reads what we would."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from strandline.parts.schema import DIFF
from strandline.read.question import parts_of
from strandline.read.reading import Reading
from strandline.state.model import Interval, Part
from strandline.state.plan import ReadTask, united
from strandline.txn.handle import Handle

__all__ = ["inline_rows", "parts_among", "settled_tasks"]


def settled_tasks(reading: Reading) -> list[ReadTask]:
    """Those tasks of which every source is wholly in such tasks: files are read whole."""
    version = reading.view.version.version
    tasks = [task for task in reading.tasks if reading.question.is_clean(task)]
    while True:
        good = {s for s, places in _places(tasks).items() if _fills(*places)}
        kept = [t for t in tasks if all(s in good for s, _, _ in _sources(t))]
        kept = [t for t in kept if all(p.schema_version == version for p, _, _ in parts_of(t))]
        if len(kept) == len(tasks):
            return kept
        tasks = kept


def parts_among(tasks: Sequence[ReadTask]) -> list[Part]:
    """The parts of the tasks, each once."""
    return list({part.key: part for task in tasks for part, _, _ in parts_of(task)}.values())


def inline_rows(handle: Handle, reading: Reading, tasks: Sequence[ReadTask]) -> list[pa.Table]:
    """The rows of the tasks that no part has yet."""
    entries = {id(e): e for task in tasks for e in task.entries if e.batch.inline}
    found = (handle.overlay.rows(entry, reading.question.schema) for entry in entries.values())
    return [rows.drop_columns([DIFF]) if DIFF in rows.column_names else rows for rows in found]


def _sources(task: ReadTask) -> list[tuple[str, Interval, Interval]]:
    """Each source with its span and the place in the task."""
    found = [(part.key, part.span, place) for part, place, _ in parts_of(task)]
    for entry in task.entries:
        if entry.batch.inline:
            span = entry.place
            found.append((f"{entry.time}/{entry.ordinal}", span, span))
    bounds = task.leaf.interval
    return [(key, span, both) for key, span, p in found if (both := p.intersect(bounds))]


def _places(tasks: Sequence[ReadTask]) -> dict[str, tuple[Interval, list[Interval]]]:
    places: dict[str, tuple[Interval, list[Interval]]] = {}
    for task in tasks:
        for key, span, place in _sources(task):
            places.setdefault(key, (span, []))[1].append(place)
    return places


def _fills(span: Interval, places: Sequence[Interval]) -> bool:
    return united(places) == [span]
