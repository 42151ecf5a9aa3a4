"""Spans of times of several tables: where the updates in them are, for one pair of times."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

from strandline.env import Deadline
from strandline.errors import AsOfTooOld, UnknownTable
from strandline.shard.look import Look
from strandline.shard.machine import Machine
from strandline.state.model import Interval, TableVersion
from strandline.state.pages import TOP
from strandline.state.tables import called, tidied_through
from strandline.state.updates import ChangeTask, entry_task, plan_changes, through_within
from strandline.times import told
from strandline.txn.store import Store
from strandline.txn.view import data_for

__all__ = ["Asked", "Span", "Spans", "spans_after", "too_old"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A table that is asked for its changes."""

    table: str
    """Its id."""
    intervals: tuple[Interval, ...] | None = None
    """Only these encoded keys; None: all."""


@dataclass(frozen=True, slots=True)
class Span:
    """The updates of one table in a span of times: all in references, or all in entries."""

    version: TableVersion
    machine: Machine
    tasks: tuple[ChangeTask, ...]


@dataclass(frozen=True, slots=True)
class Spans:
    """The updates of several tables at times in (`after`, `through`]; nothing can change here."""

    look: Look
    """At the txns shard."""
    after: int
    through: int
    """Equal to `after` if there is nothing newer yet."""
    spans: tuple[Span, ...] = ()


def spans_after(
    store: Store,
    asked: Sequence[Asked],
    after: int,
    *,
    until: int | None = None,
    rows_max: int,
    applied: Collection[str] = (),
    deadline: Deadline,
) -> Spans:
    """The updates after `after` that there are now, up to `until`: some of them, in whole times.

    One Consensus request, unless commits were applied and tidied meanwhile; of what is applied not
    more at once than about `rows_max` rows. `applied`: of the tables with these ids, what
    is applied is read from their shards, as they are stored now, even where its entries are still
    there. Errors: UnknownTable (dropped, and everything before that was given), AsOfTooOld.
    """
    look = store.txns.look(deadline)
    through = store.txns.latest(look)
    through = through if until is None else min(through, until)
    versions = [_version(look, one.table) for one in asked]
    for version in versions:
        if version.valid_until is not None:
            through = min(through, version.valid_until - 1)
            if through <= after:
                raise UnknownTable(
                    f"table {version.name!r} was dropped; no changes come after that"
                )
    if through <= after:
        return Spans(look, after, after)
    # SUBTLE ◆: the txns shard was read first. What it has no entries for any more was applied
    # before, so that a state of the data shard that is beyond it has the rest.
    planned: list[tuple[TableVersion, tuple[ChangeTask, ...] | None]] = []
    for one, version in zip(asked, versions, strict=True):
        if one.table not in applied and look.ask(partial(tidied_through, table=one.table)) <= after:
            planned.append((version, None))
            continue
        if one.table in applied:
            store.data(one.table).look(deadline)
        data = data_for(store, look, version, deadline)
        # Before there was the table, nothing happened to it.
        known = max(after, version.created - 1)
        through = min(through, _last_applied(version, data, known))
        planned.append((version, _applied(data, one, after, through)))
    if through <= after:  # nothing is applied that is newer
        return Spans(look, after, after)
    tasks = [task for _, found in planned for task in found or ()]
    through = through_within(tasks, after, through, rows_max)
    spans = [
        Span(
            version,
            store.data(version.table),
            _committed(look, one, after, through) if found is None else found,
        )
        for one, (version, found) in zip(asked, planned, strict=True)
    ]
    return Spans(look, after, through, tuple(spans))


def _applied(data: Look, one: Asked, after: int, through: int) -> tuple[ChangeTask, ...]:
    found = data.ask(lambda s: plan_changes(s, one.intervals, after, through))
    return tuple(found)


def _committed(look: Look, one: Asked, after: int, through: int) -> tuple[ChangeTask, ...]:
    entries = look.ask(
        lambda s: [e for _, e in s.entries.range((one.table, after + 1), (one.table, through, TOP))]
    )
    return tuple(entry_task(entries, one.intervals))


def _version(look: Look, table: str) -> TableVersion:
    """The newest version of the table, whether it still holds or not."""
    found = look.ask(lambda s: [version for _, version in s.tables.prefix((table,))])
    if not found:
        which = look.ask(lambda s: called(s, table))
        raise UnknownTable(f"{which} does not exist any more: it was dropped, and deleted")
    return found[-1]


def _last_applied(version: TableVersion, data: Look, after: int) -> int:
    """The last time that is applied; AsOfTooOld if what came after `after` is no longer exact."""
    upper, since = data.meta.upper, data.meta.since
    if since is None or upper is None:
        raise AsOfTooOld(f"table {version.name!r} was deleted; nothing of it can be read any more")
    # What was moved to since came from before it; and before 0 there is nothing.
    if after < since and since > 0:
        raise too_old(version.name, after, since)
    return upper - 1


def too_old(name: str, after: int, since: int) -> AsOfTooOld:
    """The error of a subscription that comes too late."""
    return AsOfTooOld(
        f"the changes of table {name!r} after {told(after)} are not kept any more: the earliest "
        f"time to start from is {told(since)}; start from there, or with a new snapshot. A longer "
        "retention property keeps more, and so does a subscription with a name"
    )
