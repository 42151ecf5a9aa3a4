"""Subscriptions: every change of a table, once, whatever happens to how it is stored."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import strandline as sl
from strandline import subscription
from strandline.database import Database
from strandline.state.commands import Compact, Expire, Retain
from strandline.state.decide import Author
from strandline.state.plan import level_zero
from strandline.table import Table
from strandline.txn.apply import apply_table
from tests.model.test_tables_machine import (
    COLUMNS,
    CONDITIONS,
    SMALL,
    arrow,
    conditions,
    prefixes,
    rows_of,
    some_rows,
)
from tests.tables.helpers import QUIET, READINGS, apply

Row = tuple[Any, ...]
Told = list[tuple[int, str | int, Row]]
"""Changes as (time, __op or __diff, row); of a delete the row is the key."""


def told(change: sl.Change, kind: str) -> Told:
    """What a change says."""
    said: Told = []
    for row in change.rows.to_pylist():
        values = tuple(row[name] for name in COLUMNS.names)
        if kind == "rows":
            said.append((row["__time"], row["__diff"], values))
        elif row["__op"] == "upsert":
            said.append((row["__time"], "upsert", values))
        else:
            assert values[2:] == (None, None)
            said.append((row["__time"], "delete", values[:2]))
    return said


@dataclass
class History:
    """What a table went through: its rows after each commit, and what each commit was told to be."""

    kind: str
    states: dict[int, list[Row]] = field(default_factory=dict)
    upserts: dict[int, dict[Row, Row]] = field(default_factory=dict)
    """keyed: the rows that a commit wrote, by key."""

    def before(self, time: int) -> list[Row]:
        """The rows just before that time."""
        return self.states[max(t for t in self.states if t < time)]

    def changes(self, after: int, through: int, where: str | None) -> Told:
        """What a subscription has to say of the times in (after, through], in any order."""
        test = CONDITIONS[where] if where else lambda _: True
        said: Told = []
        for time in sorted(t for t in self.states if after < t <= through):
            old, new = self.before(time), self.states[time]
            if self.kind == "rows":
                diffs = Counter(new)
                diffs.subtract(Counter(old))
                said += [(time, n, row) for row, n in diffs.items() if n and test(row)]
                continue
            there = {row[:2]: row for row in old if test(row)}
            now = {row[:2]: row for row in new if test(row)}
            said += [(time, "upsert", now[key]) for key in self.upserts[time] if key in now]
            said += [(time, "delete", key) for key in there if key not in now]
        return said


@dataclass
class Subscriber:
    """One that keeps what it was told, and where it is."""

    where: str | None
    since: int
    """Everything up to this time was told, and checked."""
    text: str
    """Its progress, as it would be kept."""
    open: sl.Subscription | None = None


class Subscriptions(RuleBasedStateMachine):
    """A table of one kind, written to, kept up and subscribed to in any order."""

    kind: ClassVar[str]
    made: ClassVar[int] = 0

    @initialize(split=st.booleans())
    def begin(self, split: bool) -> None:
        Subscriptions.made += 1
        self.url = f"memory://subscriptions-{self.kind}-{Subscriptions.made}"
        self.db = sl.connect(self.url, settings=SMALL)
        self.db.create_table(
            "t",
            COLUMNS,
            row_keys="k",
            sort_keys="s",
            kind=self.kind,
            properties={"compaction_parts": 3, "split_rows": 10},
            **({"split_points": [0, 3]} if split else {}),
        )
        self.history = History(self.kind)
        self.history.states[self.latest()] = []
        self.subscribers: list[Subscriber] = []

    @property
    def table(self) -> Table:
        return self.db["t"]

    @property
    def store(self) -> Any:
        return self.table._handle.store

    def latest(self) -> int:
        txns = self.db["t"]._handle.store.txns
        return int(txns.latest(txns.refresh(timeout=60)))

    def committed(self, commit: sl.Commit, upserts: list[Row]) -> None:
        now = rows_of(self.table.scan().to_arrow())
        if commit.micros in self.history.states:  # nothing was to be done
            assert now == self.history.states[commit.micros]
            return
        self.history.states[commit.micros] = now
        self.history.upserts[commit.micros] = {row[:2]: row for row in upserts}

    # --- writes

    @rule(data=some_rows)
    def append(self, data: list[Row]) -> None:
        self.committed(self.table.append(arrow(data)), data)

    @rule(data=some_rows)
    def append_some_of_them_again(self, data: list[Row]) -> None:
        there = rows_of(self.table.scan().to_arrow())[:3]
        self.committed(self.table.append(arrow([*there, *data, *data[:2]])), [*there, *data])

    @rule(keys=st.lists(prefixes, min_size=1, max_size=3))
    def delete_keys(self, keys: list[Row]) -> None:
        self.committed(self.table.delete(keys=keys), [])

    @rule(where=conditions)
    def delete_where(self, where: str) -> None:
        self.committed(self.table.delete(where=where), [])

    @rule(where=conditions)
    def update(self, where: str) -> None:
        there = [row for row in rows_of(self.table.scan().to_arrow()) if CONDITIONS[where](row)]
        commit = self.table.update({"v": "v + 1"}, where)
        self.committed(commit, there)

    @rule(where=st.one_of(st.none(), conditions), data=some_rows)
    def overwrite(self, where: str | None, data: list[Row]) -> None:
        self.committed(self.table.overwrite(arrow(data), where), data)

    # --- upkeep

    @rule(commits=st.one_of(st.none(), st.integers(1, 3)))
    def apply(self, commits: int | None) -> None:
        apply_table(self.store, self.table._version.table, timeout=60, commits_max=commits)

    @rule()
    def tidy(self) -> None:
        self.store.txns.tidy(timeout=60)

    @rule(strategy=st.sampled_from(["full", "basic", "size-ratio"]))
    def compact(self, strategy: str) -> None:
        self.db.compact("t", strategy=strategy)

    @rule()
    def compact_with_since_at_the_slowest_subscriber(self) -> None:
        slowest = min((s.since for s in self.subscribers), default=self.latest())
        self.apply(None)
        self.store.data(self.table.id).submit(Retain(slowest))
        self.db.compact("t", strategy="full")

    @rule()
    def split(self) -> None:
        self.db.split("t")

    @rule()
    def reopen(self) -> None:
        for subscriber in self.subscribers:
            self.leave(subscriber)
        self.db.close()
        self.db = sl.connect(self.url, settings=SMALL)

    # --- subscribers

    def join(self, subscriber: Subscriber) -> sl.Subscription:
        if subscriber.open is None:
            subscriber.open = self.table.subscribe(
                subscriber.text, where=subscriber.where, timeout=0.001
            )
        return subscriber.open

    def leave(self, subscriber: Subscriber) -> None:
        if subscriber.open is not None:
            subscriber.open.close()
        subscriber.open = None

    @rule(where=st.one_of(st.none(), conditions))
    def subscribe_now(self, where: str | None) -> None:
        found = self.table.subscribe("now", where=where, timeout=0.001)
        assert found.progress.micros == self.latest()
        self.subscribers.append(
            Subscriber(where, found.progress.micros, str(found.progress), found)
        )

    @rule(where=st.one_of(st.none(), conditions))
    def subscribe_with_a_snapshot(self, where: str | None) -> None:
        found = self.table.subscribe(where=where, timeout=0.001)
        latest = self.latest()
        first = []
        for change in found:
            first += told(change, self.kind)
            if change.complete:
                break
        there = rows_of(self.table.scan(where=where).to_arrow())
        one: str | int = 1 if self.kind == "rows" else "upsert"
        assert Counter(first) == Counter((latest, one, row) for row in there)
        assert found.progress.micros == latest
        self.subscribers.append(Subscriber(where, latest, str(found.progress), found))

    @rule(data=st.data())
    def catch_up(self, data: st.DataObject) -> None:
        if not self.subscribers:
            return
        subscriber = data.draw(st.sampled_from(self.subscribers))
        for change in self.join(subscriber):
            self.check(subscriber, change)
        self.leave(subscriber)
        assert subscriber.since == self.latest()

    def check(self, subscriber: Subscriber, change: sl.Change) -> None:
        """The change says exactly what happened since the one before it."""
        said = told(change, self.kind)
        times = [time for time, _, _ in said]
        assert times == sorted(times)
        assert change.complete
        after, through = subscriber.since, change.progress.micros
        assert through > after
        expected = self.history.changes(after, through, subscriber.where)
        assert Counter(said) == Counter(expected)
        subscriber.since, subscriber.text = through, str(change.progress)

    @rule(data=st.data())
    def take_one_change_and_leave(self, data: st.DataObject) -> None:
        if not self.subscribers:
            return
        subscriber = data.draw(st.sampled_from(self.subscribers))
        change = next(self.join(subscriber), None)
        if change is not None:
            self.check(subscriber, change)
        self.leave(subscriber)

    def teardown(self) -> None:
        if hasattr(self, "db"):
            for subscriber in getattr(self, "subscribers", []):
                self.catch_up_to_the_end(subscriber)
            self.db.close()

    def catch_up_to_the_end(self, subscriber: Subscriber) -> None:
        for change in self.join(subscriber):
            self.check(subscriber, change)
        assert subscriber.since == self.latest()


class OfRows(Subscriptions):
    kind = "rows"


class OfKeyed(Subscriptions):
    kind = "keyed"


QUICK = settings(
    max_examples=30,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
OfRows.TestCase.settings = QUICK
OfKeyed.TestCase.settings = QUICK


class RowsAtLength(OfRows):
    pass


class KeyedAtLength(OfKeyed):
    pass


RowsAtLength.TestCase.settings = settings(QUICK, max_examples=400, stateful_step_count=40)
KeyedAtLength.TestCase.settings = RowsAtLength.TestCase.settings
TestSubscriptionsToRows: Any = OfRows.TestCase
TestSubscriptionsToKeyed: Any = OfKeyed.TestCase
TestSubscriptionsToRowsAtLength: Any = pytest.mark.slow(RowsAtLength.TestCase)
TestSubscriptionsToKeyedAtLength: Any = pytest.mark.slow(KeyedAtLength.TestCase)
