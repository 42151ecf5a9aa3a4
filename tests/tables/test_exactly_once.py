"""Every commit is applied whole, tidied after that, and told to a subscriber once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import strandline as sl
from strandline.errors import LocationError
from strandline.state.commands import Apply
from strandline.txn.apply import apply_table
from tests.support.deadlines import within
from tests.tables.helpers import apply


@pytest.fixture
def table(db: sl.Database) -> sl.Table:
    return db.create_table("t", {"k": [0]}, row_keys="k")


def values(table: sl.Table) -> list[int]:
    return sorted(table.scan().to_arrow().column("k").to_pylist())


def written_in_one_commit(db: sl.Database, *values: int) -> None:
    with db.transaction() as tx:
        for value in values:
            tx["t"].append({"k": [value]})


def test_an_apply_takes_all_that_was_committed_at_a_time_or_nothing(
    db: sl.Database, table: sl.Table
) -> None:
    """What is left of a time is before the table's upper then, and nobody looks for it there."""
    apply(table)
    written_in_one_commit(db, 1, 2, 3)
    written_in_one_commit(db, 4, 5)
    store = db._handle.store
    for expected in ([1, 2, 3], [4, 5], []):
        applied = apply_table(store, table.id, deadline=within(60), commits_max=1)
        assert applied.commits == bool(expected)
        if expected:
            data = store.data(table.id).state
            latest = (data.meta.upper or 0) - 1
            of_last = [r for _, r in data.references.range() if r.time == latest]
            assert sum(r.part.rows for r in of_last) == len(expected)
        assert values(table) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("how", ["refused", "lost", "never tried"])
def test_nothing_is_tidied_that_is_not_applied_for_certain(
    open_database: Callable[..., sl.Database], how: str
) -> None:
    db = open_database()
    table = db.create_table("t", {"k": [0]}, row_keys="k")
    machine = db._handle.store.data(table.id)
    submit = machine.submit

    def fails(command: Any, *args: Any, **more: Any) -> Any:
        if not isinstance(command, Apply):
            return submit(command, *args, **more)
        if how == "never tried":
            raise KeyboardInterrupt
        raise LocationError("no answer", may_have_happened=how == "lost")

    machine.submit = fails  # type: ignore[method-assign]
    with pytest.raises((LocationError, KeyboardInterrupt)):
        apply(table)
    machine.submit = submit  # type: ignore[method-assign]
    table.append({"k": [1]})  # a commit takes out what it was told is applied
    assert db._handle.store.txns.tidy(deadline=within(9)) == 0
    assert values(table) == [0, 1]
    assert values(open_database()["t"]) == [0, 1]
    apply(table)
    assert values(open_database()["t"]) == [0, 1]


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("name", [None, "job"])
def test_a_subscription_goes_on_at_the_very_next_time(
    db: sl.Database, table: sl.Table, name: str | None, *, applied: bool
) -> None:
    """Times of commits are neighbours when the clock stands, or is behind."""
    txns = db._handle.store.txns
    first = txns.commit(
        at_least=txns.latest(txns.machine.known()) + 60_000_000,
        operation="advance",
        deadline=within(9),
    ).time
    commits = [table.append({"k": [n]}) for n in range(1, 6)]
    times = [commit.micros for commit in commits]
    assert times == list(range(first + 1, first + 6))
    if applied:
        apply(table)
    progress: Any = sl.Micros(first)
    found: list[int] = []
    for until in times:  # each by a subscription of its own
        with table.subscribe(start=progress, until=sl.Micros(until), name=name) as subscription:
            for change in subscription:
                found += change.rows.column("k").to_pylist()
                progress = str(change.progress)
    assert found == [1, 2, 3, 4, 5]
    for at, commit in enumerate(commits):
        later = table.subscribe(start=commit, until=commits[-1], name=name)
        with later:
            rows = [k for change in later for k in change.rows.column("k").to_pylist()]
        assert rows == [2, 3, 4, 5][at:]
