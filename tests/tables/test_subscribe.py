"""Subscriptions: every change of a table, once, whatever happens to how it is stored."""

from __future__ import annotations

import multiprocessing
import re
from collections import Counter
from collections.abc import Callable
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
from strandline import times
from strandline.changes import course, windows
from strandline.database import Database
from strandline.state.commands import Retain
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
from tests.support.deadlines import within
from tests.tables.helpers import apply

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
    """What a table went through: its rows after each commit, and what the commit wrote."""

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
            split_points=[0, 3] if split else [],
            properties={"compaction_parts": 3, "split_rows": 10},
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
        return int(txns.latest(txns.look(within(60))))

    def committed(self, commit: sl.Commit, upserts: list[Row]) -> None:
        now = rows_of(self.table.scan().to_arrow())
        if commit.micros in self.history.states:  # nothing was to be done
            assert Counter(now) == Counter(self.history.states[commit.micros])
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
        apply_table(self.store, self.table._version.table, deadline=within(60), commits_max=commits)

    @rule()
    def tidy(self) -> None:
        self.store.txns.tidy(within(60))

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


# --- what comes


@pytest.fixture
def table(db: Database) -> Table:
    return db.create_table("t", COLUMNS, row_keys="k", sort_keys="s")


@pytest.fixture
def items(db: Database) -> Table:
    return db.create_table("items", COLUMNS, row_keys="k", sort_keys="s", kind="keyed")


def everything(subscription: sl.Subscription, kind: str = "rows") -> Told:
    """All changes until nothing comes."""
    return [one for change in subscription for one in told(change, kind)]


def row(key: int, value: int | None = None) -> Row:
    return key, "s", value, None


SOON = 0.001


def test_changes_have_whole_commit_times_and_the_progress_that_they_make(
    table: Table, settle: Callable[[Table], None]
) -> None:
    subscription = table.subscribe(timeout=SOON)
    first = next(subscription)
    assert first.rows.num_rows == 0
    one = table.append(arrow([row(1), row(1), row(2)]))
    settle(table)
    two = table.delete(where="k = 1")
    settle(table)
    changes = list(subscription)
    assert [line for change in changes for line in told(change, "rows")] == [
        (one.micros, 2, row(1)),
        (one.micros, 1, row(2)),
        (two.micros, -2, row(1)),
    ]
    assert changes[-1].progress == sl.Progress(two.micros) == subscription.progress
    assert changes[-1].rows.schema.names == [*COLUMNS.names, "__time", "__diff"]


def test_a_listen_gets_only_the_times_after_the_one_it_begins_at(table: Table) -> None:
    """CASES S9."""
    one = table.append(arrow([row(1)]))
    two = table.append(arrow([row(2)]))
    apply(table)  # one part with both times
    subscription = table.subscribe(one, timeout=SOON)
    assert everything(subscription) == [(two.micros, 1, row(2))]
    assert subscription.progress.micros == two.micros


def test_an_idle_table_makes_progress_while_another_is_written_to(
    db: Database, table: Table, items: Table
) -> None:
    """CASES T16, for one table."""
    idle = table.subscribe("now", timeout=SOON)
    busy = items.subscribe("now", timeout=SOON)
    first, second = items.append(arrow([row(3)])), items.append(arrow([row(5)]))
    assert everything(busy, "keyed") == [
        (first.micros, "upsert", row(3)),
        (second.micros, "upsert", row(5)),
    ]
    (change,) = list(idle)
    assert change.rows.num_rows == 0
    assert change.progress.micros >= second.micros
    assert idle.progress == change.progress


def test_what_is_added_and_retracted_at_one_time_is_no_change(
    table: Table, settle: Callable[[Table], None]
) -> None:
    table.append(arrow([row(1), row(1), row(2)]))
    settle(table)
    subscription = table.subscribe("now", timeout=SOON)
    commit = table.overwrite(arrow([row(1), row(3)]))
    settle(table)
    assert everything(subscription) == [
        (commit.micros, -1, row(1)),
        (commit.micros, -1, row(2)),
        (commit.micros, 1, row(3)),
    ]


def test_deleting_what_is_not_there_is_no_change(
    items: Table, settle: Callable[[Table], None]
) -> None:
    items.append(arrow([row(1, 7)]))
    settle(items)
    subscription = items.subscribe("now", timeout=SOON)
    commit = items.delete(keys=[(1, "s"), (2, "s")])
    settle(items)
    items.delete(keys=[(1, "s")])
    settle(items)
    assert everything(subscription, "keyed") == [(commit.micros, "delete", (1, "s"))]


def test_the_old_row_comes_along_where_there_was_one(
    items: Table, settle: Callable[[Table], None]
) -> None:
    items.append(arrow([row(1, 7)]))
    settle(items)
    subscription = items.subscribe("now", columns=["v"], with_old=True, timeout=SOON)
    items.append(arrow([row(1, 8), row(2, 5)]))
    settle(items)
    items.delete(keys=[(1, "s")])
    settle(items)
    found = [line for change in subscription for line in change.rows.to_pylist()]
    assert [(line["k"], line["v"], line["__op"], line["__old"]) for line in found] == [
        (1, 8, "upsert", {"k": 1, "s": "s", "v": 7}),
        (2, 5, "upsert", None),
        (1, None, "delete", {"k": 1, "s": "s", "v": 8}),
    ]


def test_a_row_that_ceases_to_match_comes_as_a_delete(
    items: Table, settle: Callable[[Table], None]
) -> None:
    items.append(arrow([row(1, 7), row(2, 1)]))
    settle(items)
    subscription = items.subscribe(where="v > 2", timeout=SOON)
    assert [line[2] for line in told(next(subscription), "keyed")] == [row(1, 7)]
    first = items.append(arrow([row(1, 0), row(2, 0)]))
    settle(items)
    second = items.append(arrow([row(1, 1), row(2, 9)]))
    settle(items)
    third = items.delete(keys=[(1, "s"), (2, "s")])
    settle(items)
    assert everything(subscription, "keyed") == [
        (first.micros, "delete", (1, "s")),
        (second.micros, "upsert", row(2, 9)),
        (third.micros, "delete", (2, "s")),
    ]


def test_columns_and_conditions_are_chosen_of_rows(table: Table) -> None:
    subscription = table.subscribe(columns=["v"], where=pc.field("k") > 1, timeout=SOON)
    next(subscription)
    commit = table.append(arrow([row(1, 5), row(2, 6), row(3, 6)]))
    (change,) = subscription
    assert change.rows.to_pylist() == [
        {"v": 6, "__time": commit.micros, "__diff": 1},
        {"v": 6, "__time": commit.micros, "__diff": 1},
    ]


def test_many_keys_are_compared_with_what_was_there(items: Table) -> None:
    items.append(arrow([row(k, 1) for k in range(0, 9_000, 3)]))
    apply(items)
    subscription = items.subscribe("now", timeout=SOON)
    commit = items.delete(keys=[(k, "s") for k in range(0, 9_000, 2)])
    found = everything(subscription, "keyed")
    assert found == [(commit.micros, "delete", (k, "s")) for k in range(0, 9_000, 6)]


# --- where it begins and ends


def test_progress_goes_through_text(table: Table) -> None:
    commit = table.append(arrow([row(1)]))
    change = next(table.subscribe())
    assert str(change.progress) == f"p{commit.micros:016x}"
    assert sl.Progress.parse(str(change.progress)) == change.progress
    later = table.append(arrow([row(2)]))
    for start in (change.progress, str(change.progress), commit, sl.Micros(commit.micros)):
        assert everything(table.subscribe(start, timeout=SOON)) == [(later.micros, 1, row(2))]
    assert table.as_of(change.progress).scan().count() == 1


def test_a_subscription_ends_at_until(table: Table) -> None:
    commits = [table.append(arrow([row(n)])) for n in range(3)]
    found = everything(table.subscribe(sl.Micros(0), until=commits[1]))
    assert [line[0] for line in found] == [commit.micros for commit in commits[:2]]
    assert everything(table.subscribe(commits[1], until=commits[1])) == []


def test_a_subscription_ends_at_a_time_that_passes_without_a_commit(
    table: Table, open_database: Callable[..., Database]
) -> None:
    now = table._handle.store.env.now_micros()
    subscription = table.subscribe("now", until=sl.Micros(now + 20_000))
    assert [change.progress.micros for change in subscription] == [now + 20_000]


def test_a_start_that_is_none_shows_the_forms(table: Table) -> None:
    for wrong in ("yesterday", 7, None, "p12"):
        with pytest.raises(sl.UsageError, match="progress"):
            table.subscribe(wrong)
    with pytest.raises(sl.AsOfInFuture):
        table.subscribe("2999-01-01T00:00:00Z")
    with pytest.raises(sl.UsageError, match="timeout"):
        table.subscribe(timeout=0)
    with pytest.raises(sl.UsageError, match="with_old"):
        table.subscribe(with_old=True)
    with pytest.raises(sl.UsageError, match="as of an earlier time"):
        table.as_of(sl.Micros(table._handle.store.env.now_micros())).subscribe()


def test_a_dropped_table_gives_what_it_had_and_then_says_so(db: Database, table: Table) -> None:
    subscription = table.subscribe("now", timeout=SOON)
    commit = table.append(arrow([row(1)]))
    db.drop_table("t")
    assert told(next(subscription), "rows") == [(commit.micros, 1, row(1))]
    with pytest.raises(sl.UnknownTable, match="dropped"):
        list(subscription)


def test_a_subscription_that_comes_too_late_is_told_what_works(table: Table) -> None:
    first = table.append(arrow([row(1)]))
    table.append(arrow([row(2)]))
    last = table.append(arrow([row(3)]))
    apply(table)
    store = table._handle.store
    store.txns.tidy(deadline=within(60))
    store.data(table.id).submit(Retain(last.micros))
    with pytest.raises(sl.AsOfTooOld, match=re.escape(f"start from is {times.told(last.micros)}")):
        table.subscribe(first, timeout=SOON)
    assert everything(table.subscribe(last, timeout=SOON)) == []


# --- what is held


def test_an_open_subscription_keeps_the_history_that_it_needs(table: Table) -> None:
    store = table._handle.store
    commit = table.append(arrow([row(1)]))
    subscription = table.subscribe("now", timeout=SOON)
    later = [table.append(arrow([row(n)])) for n in (2, 3)]
    apply(table)
    store.txns.tidy(deadline=within(60))
    assert store.data(table.id).submit(Retain(later[-1].micros)) == commit.micros
    kinds = dict(zip(*table.holds().select(["kind", "session"]).to_pydict().values(), strict=True))
    assert kinds["subscription"] == store.data(table.id).session
    found = everything(subscription)
    assert [line[0] for line in found] == [c.micros for c in later]
    # It ended, and so did its hold.
    assert table.holds().column("kind").to_pylist() == ["retention"]


def test_the_hold_moves_along(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "_MOVE_SECONDS", 0.0)
    found = table.subscribe("now")
    first = table.append(arrow([row(1)]))
    assert next(found).progress.micros == first.micros
    second = table.append(arrow([row(2)]))
    assert next(found).progress.micros == second.micros
    holds = {line["kind"]: line["since"] for line in table.holds().to_pylist()}
    assert holds["subscription"] == first.time  # the second may not have been dealt with yet
    found.close()


def test_a_subscription_that_is_let_go_of_holds_nothing_for_long(table: Table) -> None:
    for _ in table.subscribe():
        break
    with table.subscribe():
        assert table.holds().column("kind").to_pylist().count("subscription") == 1
    assert table.holds().column("kind").to_pylist() == ["retention"]


def test_a_named_subscription_is_kept_over_restarts_and_taken_over(
    url: str, open_database: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "_MOVE_SECONDS", 0.0)
    db = open_database()
    table = db.create_table("t", COLUMNS, row_keys="k", sort_keys="s")
    begun = table.append(arrow([row(1)]))
    first = table.subscribe("now", name="mirror", timeout=SOON)
    assert everything(first) == []
    later = [table.append(arrow([row(n)])) for n in (2, 3)]
    apply(table)
    table._handle.store.txns.tidy(deadline=within(60))
    table._handle.store.data(table.id).submit(Retain(later[-1].micros))
    again = open_database()["t"]
    one = again.subscribe(first.progress, name="mirror")
    assert first.progress.micros == begun.micros
    assert told(next(one), "rows") == [
        (c.micros, 1, row(n)) for c, n in zip(later, (2, 3), strict=True)
    ]
    two = again.subscribe(one.progress, name="mirror", timeout=SOON)
    table.append(arrow([row(4)]))
    with pytest.raises(sl.Fenced):
        next(one)
    assert [line[2] for line in everything(two)] == [row(4)]
    assert again.drop_subscription("mirror") is True
    assert again.drop_subscription("mirror") is False
    assert again.holds().column("kind").to_pylist() == ["retention"]


def test_a_reader_without_permission_subscribes_and_holds_nothing(
    table: Table, open_database: Callable[..., Database]
) -> None:
    reader = open_database(mode="r")["t"]
    found = reader.subscribe("now", timeout=SOON)
    commit = table.append(arrow([row(1)]))
    assert everything(found) == [(commit.micros, 1, row(1))]
    assert "subscription" not in table.holds().column("kind").to_pylist()


# --- more than memory holds


def test_more_than_can_be_held_comes_in_several_changes_in_whole_times(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "_CHANGE_BYTES", 4_000)
    monkeypatch.setattr(windows, "_CHANGE_ROWS", 50)
    begun = table.append(arrow([row(0)]))
    commits = [table.append(arrow([row(n) for n in range(size)])) for size in (20, 20, 400, 3, 20)]
    apply(table)
    table._handle.store.txns.tidy(deadline=within(60))
    changes = list(table.subscribe(begun, timeout=SOON))
    assert len(changes) > 2
    known = begun.micros
    gathered: Counter[int] = Counter()
    open_times: set[int] = set()
    for change in changes:
        times = change.rows.column("__time").to_pylist()
        gathered.update(times)
        assert all(known < time for time in times)
        if change.complete:
            known = change.progress.micros
            assert all(time <= known for time in times)
        else:
            assert change.progress.micros == known
            open_times.update(times)
    assert gathered == {c.micros: n for c, n in zip(commits, (20, 20, 400, 3, 20), strict=True)}
    assert changes[-1].complete


def test_a_snapshot_comes_in_pieces_of_which_the_last_completes_it(db: Database) -> None:
    big = pa.table({"k": range(600_000), "v": range(600_000)})
    table = db.create_table("big", big, row_keys="k")
    apply(table)
    changes = list(table.subscribe(timeout=SOON))
    assert len(changes) > 1
    assert [change.complete for change in changes] == [False] * (len(changes) - 1) + [True]
    assert {str(change.progress) for change in changes[:-1]} == {"snapshot"}
    assert sum(change.rows.num_rows for change in changes) == 600_000


def test_a_part_that_was_compacted_and_deleted_meanwhile_costs_no_change(
    open_database: Callable[..., Database],
) -> None:
    db = open_database(settings=sl.Settings(background=False, inline_bytes_max=1))
    table = db.create_table("p", COLUMNS, row_keys="k", sort_keys="s")
    begun = table.append(arrow([row(0)]))
    commits = [table.append(arrow([row(n) for n in range(n, n + 2_000)])) for n in (1, 5_000)]
    found = table.subscribe(begun, timeout=SOON)
    apply(table)
    store = table._handle.store
    before = {key[0] for key, _ in store.data(table.id).look(within(60)).state.parts.range()}
    db.compact("p", strategy="full")
    after = {key[0] for key, _ in store.data(table.id).look(within(60)).state.parts.range()}
    gone = before - after
    assert gone
    for key in gone:
        store.location.blob.delete(key, timeout=60)
    assert Counter(time for time, _, _ in everything(found)) == {c.micros: 2_000 for c in commits}


def test_a_part_that_is_lost_is_corruption(db: Database) -> None:
    table = db.create_table("p", COLUMNS, row_keys="k", sort_keys="s")
    found = table.subscribe("now", timeout=SOON)
    table.append(arrow([row(n) for n in range(20_000)]))
    store = table._handle.store
    state = store.txns.look(within(60)).state
    (part,) = (p for _, e in state.entries.range() for p in e.batch.parts)
    store.location.blob.delete(part.key, timeout=60)
    with pytest.raises(sl.Corruption, match=part.key):
        next(found)
    apply(table)
    with pytest.raises(sl.Corruption, match=part.key):
        next(found)


# --- several processes


def write(url: str, commits: int) -> None:
    """Appends, upserts and deletes, with apply and compactions beside them."""
    busy = sl.Settings(apply_backlog_commits=5, small_parts_max=3)
    with sl.connect(url, settings=busy) as db:
        rows, items = db["t"], db["items"]
        for n in range(commits):
            rows.append(arrow([row(n, n)]))
            items.append(arrow([row(n % 7, n)]))
            if n % 10 == 9:
                rows.delete(keys=[(n - 5,)])
                items.delete(keys=[(n % 7, "s")])
            if n % 25 == 24:
                db.compact("t", strategy="full")
                db.compact("items", strategy="full")


def test_a_subscriber_in_another_process_gets_every_change_once(tmp_path: Path) -> None:
    url = str(tmp_path / "lake")
    with sl.connect(url) as db:
        tables = [
            db.create_table("t", COLUMNS, row_keys="k", sort_keys="s"),
            db.create_table("items", COLUMNS, row_keys="k", sort_keys="s", kind="keyed"),
        ]
        open_ones = [table.subscribe(timeout=SOON) for table in tables]
        mirrors: list[Any] = [Counter(), {}]
        process = multiprocessing.get_context("spawn").Process(target=write, args=(url, 100))
        process.start()
        last = [0, 0]
        while process.is_alive():
            for n, table in enumerate(tables):
                follow(open_ones[n], mirrors[n], last, n)
                # It waited in vain and ended; the next goes on from the text that was kept.
                open_ones[n] = table.subscribe(str(open_ones[n].progress), timeout=SOON)
        assert process.exitcode == 0
        for n, table in enumerate(tables):
            follow(open_ones[n], mirrors[n], last, n)
            there = rows_of(table.scan().to_arrow())
            kept = mirrors[n].elements() if n == 0 else mirrors[n].values()
            assert Counter(kept) == Counter(there)


def follow(subscription: sl.Subscription, mirror: Any, last: list[int], n: int) -> None:
    """Takes over all changes that there are, each later than those before."""
    for change in subscription:
        for line in change.rows.to_pylist():
            values = tuple(line[name] for name in COLUMNS.names)
            assert line["__time"] > last[n]
            if "__diff" in line:
                mirror[values] += line["__diff"]
                assert mirror[values] >= 0
            elif line["__op"] == "upsert":
                mirror[values[:2]] = values
            else:
                del mirror[values[:2]]
        last[n] = max(last[n], change.progress.micros)
