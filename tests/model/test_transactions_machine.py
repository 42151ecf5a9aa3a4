"""Transactions, holders, upkeep, crashes and readers over one location, beside a reference model.

Several handles ("processes") work on one place in memory. Nothing runs beside the rules: clock,
randomness and threads are those of one `World`, and what a process does not do by a rule it does
not do. What counts as having happened is told by the logs, followed from outside; every answer that
a process gets is compared with that.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

import strandline as sl
from strandline.database import Database
from strandline.env import Deadline
from strandline.errors import (
    AsOfTooOld,
    Fenced,
    Held,
    LocationError,
    StrandlineError,
    UnknownTable,
    UsageError,
)
from strandline.ids import session_of
from strandline.txn import grouping
from strandline.txn.apply import apply_table
from tests.model.transactions_model import (
    Effect,
    Look,
    Model,
    Row,
    TableModel,
    applied,
    resolved,
)
from tests.model.transactions_world import (
    COLUMNS,
    CONDITIONS,
    FAULTS,
    PROCESSES,
    RETENTIONS,
    SMALL,
    TXNS,
    Died,
    Lease,
    Observed,
    Open,
    Process,
    Subscriber,
    Weather,
    arrow,
    rows_of,
    same,
    write,
)
from tests.support.deadlines import within

# --- strategies

keys = st.integers(0, 4)
rows = st.tuples(keys, st.integers(0, 1), st.integers(0, 4))


def many(turn: int) -> list[Row]:
    """Enough rows to be a part, or several."""
    return [(n % 5, n % 2, (n * turn) % 5) for n in range(10 + 10 * turn)]


some_rows = st.one_of(st.lists(rows, min_size=1, max_size=3), st.builds(many, st.integers(1, 3)))
prefixes = st.one_of(st.tuples(keys), st.tuples(keys, st.integers(0, 1)))
conditions = st.sampled_from(sorted(CONDITIONS))
numbers = st.integers(0, 11)
"""Stands for one of what there is."""
processes = st.integers(0, PROCESSES - 1)
names = st.sampled_from(["a", "b", "c", "d"])
isolations = st.sampled_from(["snapshot", "serializable", "strict serializable"])
writes = st.one_of(
    st.tuples(st.just("append"), some_rows),
    st.tuples(st.just("upsert"), some_rows),
    st.tuples(st.just("delete_keys"), st.lists(prefixes, min_size=1, max_size=2)),
    st.tuples(st.just("delete_where"), conditions),
    st.tuples(st.just("update"), conditions),
    st.tuples(st.just("overwrite"), st.one_of(st.none(), conditions), some_rows),
)
looks = st.one_of(
    st.tuples(st.just("get"), prefixes),
    st.tuples(st.just("range"), keys, keys),
    st.tuples(st.just("count")),
)
steps = st.lists(st.tuples(numbers, st.one_of(looks, writes)), min_size=1, max_size=4)
ddl = st.one_of(
    st.tuples(st.just("create"), names, st.sampled_from(["rows", "keyed"])),
    st.tuples(st.just("rename"), numbers, names),
    st.tuples(st.just("drop"), numbers),
)


def _pass_and_vacuum(who: Process) -> None:
    """Retention goes by the times of commits."""
    who.store.txns.commit(operation="advance", deadline=within(5))
    who.db.vacuum(timeout=20)


class Transactions(Observed):
    """What processes do."""

    @initialize(
        kinds=st.sampled_from([("rows", "keyed"), ("keyed", "rows"), ("keyed", "keyed")]),
        retention=st.sampled_from(["1 hour", "5 minutes"]),
        follower=st.sampled_from(["first", None]),
    )
    def begin(self, kinds: tuple[str, str], retention: str, follower: str | None) -> None:
        for name, kind in zip("ab", kinds, strict=True):
            self.create(0, name, kind, retention, split=kind == "keyed")
        tables = dict(self.model.names)
        # Those who follow all of it from the beginning, whatever becomes of their processes.
        self.subscribers = [Subscriber(tables, name, 1) for name in (follower, None)]
        for number in range(2):
            self.take_changes(number, 1, 1)

    # --- transactions

    def begun(
        self, process: Process, isolation: str, token: tuple[str, int] | None, lease: Lease | None
    ) -> Open | None:
        asked = self.ask(isolation=isolation, token=token)
        latest = self.model.latest
        more: dict[str, Any] = {}
        if lease is not None:
            asked.epochs = {lease.table: lease.epoch}
            asked.position = (lease.table, self.made)
            more = {"position": self.made}
        maker: Any = process.db if lease is None else lease.lease
        tx = self.acting(
            process,
            lambda: maker.transaction(
                isolation=isolation, token=token, metadata={"op": asked.name}, timeout=5, **more
            ),
        )
        if tx is None:
            return None
        self.watch.look()
        assert tx.read_time <= self.model.latest
        if isolation != "serializable":
            assert tx.read_time >= latest
        asked.read_time = tx.read_time
        store = process.store if lease is None else lease.lease._handle.store
        return Open(tx, asked, store, names=dict(self.model.names_at(tx.read_time)))

    def step(self, process: Process, opened: Open, number: int, step: tuple[Any, ...]) -> bool:
        """One step of a transaction; False if it is over with it."""
        there = sorted(opened.names)
        if not there:
            return True
        table = there[number % len(there)]
        asked = opened.asked
        try:
            done = self._stepped(opened, table, step)
        except Died:
            self.kill(process)
            return False
        except StrandlineError as error:
            struck = process.weather.struck
            process.weather = Weather()
            self.watch.look()
            note(f"a step of {asked.name}: {type(error).__name__} {error}")
            opened.tx.rollback()
            self.model.refused(asked.name)
            if isinstance(error, LocationError) and struck:
                return False
            excused = self._excuses(process, asked, error)
            if self.since(table) > asked.read_time:
                excused.add("as-of-too-old")
            mine, now = asked.epochs.get(table, 0), self.model.holders.get(table, 0)
            if mine != now and asked.token not in self.model.tokens:
                excused.add("fenced" if mine else "held")
            if table not in self.model.names and table not in opened.made:
                excused.add("unknown-table")
            if error.kind not in excused:
                raise
            return False
        # At the first read it may have become a later one.
        assert opened.tx.read_time >= asked.read_time
        asked.read_time = opened.tx.read_time
        effects, looked = done
        asked.effects += [(table, effect) for effect in effects]
        asked.looks += looked
        return True

    def _stepped(
        self, opened: Open, table: str, step: tuple[Any, ...]
    ) -> tuple[list[Effect], list[Look]]:
        asked = opened.asked
        target = opened.tx.table(opened.names[table])
        kind = target._table.kind
        model = self.model.tables.get(table, TableModel(kind, 0))

        def there() -> Counter[Row]:
            # Asked for after the call: what is read first decides of which time it is.
            return applied(kind, model.at(opened.tx.read_time), asked.of(table))

        match step:
            case ("get", key):
                found = rows_of(target.get(*key))
                look = Look(table, lambda row: row[: len(key)] == key, by_key=True)
            case ("range", low, high):
                found = rows_of(target.scan(key_range=(low, high)).to_arrow())
                look = Look(table, lambda row: low <= row[0] < high, by_key=True)
            case ("count",):
                assert len(target) == there().total()
                return [], [Look(table, lambda _: True, by_key=True)]
            case _:
                write(target, kind, step)
                return resolved(table, kind, step, there(), CONDITIONS)
        if step[0] == "range" and step[1] >= step[2]:
            assert not found
            return [], []  # nothing was asked for
        wanted = Counter({row: n for row, n in there().items() if look.test(row)})
        assert [row[:2] for row in found] == sorted(row[:2] for row in found)
        same(found, wanted, f"{asked.name} at {opened.tx.read_time}")
        return [], [look]

    def change(self, process: Process, opened: Open, what: tuple[Any, ...]) -> bool:
        """DDL within a transaction; False if it is over with it."""
        asked, tx = opened.asked, opened.tx
        taken = {name.casefold() for name in opened.names.values()}
        there = sorted(opened.names)
        if what[0] == "create":
            _, name, kind = what
            if name in taken:
                with pytest.raises(UsageError):
                    tx.create_table(name, COLUMNS, row_keys="k", sort_keys="s", kind=kind)
                return True
            retention = sorted(RETENTIONS)[self.made % len(RETENTIONS)]
            properties = {"retention": retention, "deletion_delay": "2 minutes"}
            made = tx.create_table(
                name, COLUMNS, row_keys="k", sort_keys="s", kind=kind, properties=properties
            )
            table = made._table.id
            opened.names[table] = name
            opened.made[table] = (name, kind)
            asked.ddl.append(("create", table, name, kind, str(RETENTIONS[retention])))
            return True
        if not there:
            return True
        table = there[what[1] % len(there)]
        if table not in opened.made:
            # How often it was altered as far as the transaction knows: since then, never.
            asked.versions.setdefault(table, self._altered(table, asked.read_time))
        if what[0] == "rename":
            if what[2] in taken:
                return True
            tx.rename_table(opened.names[table], what[2])
            opened.names[table] = what[2]
            asked.ddl.append(("rename", table, what[2]))
            return True
        tx.drop_table(opened.names.pop(table))
        asked.effects = [each for each in asked.effects if each[0] != table]
        asked.ddl = [each for each in asked.ddl if each[1] != table]
        if opened.made.pop(table, None) is None:
            asked.ddl.append(("drop", table))
        return True

    def _altered(self, table: str, time: int) -> int:
        changes = [a for a in self.model.asked.values() if a.time is not None and a.time <= time]
        return sum(each[1] == table and each[0] != "drop" for a in changes for each in a.ddl)

    def commit(self, process: Process, opened: Open) -> None:
        if opened in process.open:
            process.open.remove(opened)
        asked = opened.asked
        done = self.settled(process, asked, lambda: opened.tx.commit(timeout=5))
        if asked.token is not None:
            self.tokens.append((process.number, asked, opened.tx if done is None else None))
        if done is not None and asked.is_empty:
            assert done.micros == asked.read_time

    @rule(
        process=processes,
        isolation=isolations,
        token=st.booleans(),
        steps=steps,
        changes=st.lists(ddl, max_size=1),
        then=st.sampled_from(["commit", "commit", "open", "open", "rollback"]),
    )
    def transact(
        self,
        process: int,
        isolation: str,
        token: bool,
        steps: list[Any],
        changes: list[Any],
        then: str,
    ) -> None:
        """Some reads and writes; committed at once, or later."""
        who = self.at(process)
        opened = self.begun(who, isolation, self.token() if token else None, None)
        if opened is None:
            return
        for what in changes:
            self.change(who, opened, what)
        for number, step in steps:
            if not self.step(who, opened, number, step):
                return
        if then == "commit":
            self.commit(who, opened)
        elif then == "open":
            who.open.append(opened)
        else:
            opened.tx.rollback()
            self.model.refused(opened.asked.name)

    @precondition(lambda self: any(p.open for p in self.processes))
    @rule(number=numbers, steps=st.lists(st.tuples(numbers, st.one_of(looks, writes)), max_size=2))
    def go_on(self, number: int, steps: list[Any]) -> None:
        """More steps of a transaction that is open, and its commit."""
        process, opened = self._opened(number)
        for which, step in steps:
            if not self.step(process, opened, which, step):
                process = self.at(process.number)
                if opened in process.open:
                    process.open.remove(opened)
                return
        self.commit(process, opened)

    def _opened(self, number: int) -> tuple[Process, Open]:
        found = [(process, opened) for process in self.processes for opened in process.open]
        return found[number % len(found)]

    @rule(
        process=processes,
        isolation=isolations,
        several=st.lists(steps, min_size=2, max_size=4),
        token=st.booleans(),
    )
    def commit_together(
        self, process: int, isolation: str, several: list[list[Any]], token: bool
    ) -> None:
        """Commits of one handle that fall together are one record, in order."""
        who = self.at(process)
        who.weather = Weather()
        found: list[Open] = [each for each in who.open if each.store is who.store]
        for one in several:
            opened = self.begun(who, isolation, self.token() if token else None, None)
            if opened is None:
                return
            if all(self.step(who, opened, number, step) for number, step in one):
                found.append(opened)
        who.open = [each for each in who.open if each not in found]
        queue = cast("Any", who.store.txns._queue)
        members, refused = self._gathered(queue, who, found)
        for opened in refused:
            self.commit(who, opened)
        if not members:
            return
        records = len(self.memory.logs[TXNS])
        *rest, last = members.values()
        queue._waiting += rest
        try:
            last.outcome = type(queue).commit(queue, last.command, last.note, Deadline(who.env, 5))
        except StrandlineError as error:
            last.outcome = error
        # One for all of them, and one that acknowledges the end of a session.
        assert len(self.memory.logs[TXNS]) <= records + 2
        self.watch.look()
        for opened in found:
            if opened.asked.name in members:
                self._hears(queue, who, opened, members[opened.asked.name].outcome)

    def _gathered(
        self, queue: Any, process: Process, found: Sequence[Open]
    ) -> tuple[dict[str, grouping._Member], list[Open]]:
        """The commits as they come to the queue, by name, and those that were refused before."""
        members: dict[str, grouping._Member] = {}
        refused: list[Open] = []

        class Waits(BaseException):
            """What a thread would do there."""

        for opened in found:

            def waits(command: Any, said: Any, deadline: Deadline, of: Open = opened) -> Any:
                members[of.asked.name] = grouping._Member(command, said, deadline)
                raise Waits

            queue.commit = waits
            try:
                # One that has nothing to commit is done with this.
                opened.tx.commit(timeout=5)
            except Waits:
                continue
            except StrandlineError:
                refused.append(opened)  # while it staged what it has; it is told so once more
            finally:
                del queue.commit
        return members, refused

    def _hears(self, queue: Any, process: Process, opened: Open, outcome: Any) -> None:
        """One of a group is told what became of it, and asks again by itself if it may."""
        outcomes = [outcome]

        def told(command: Any, said: Any, deadline: Deadline) -> Any:
            if not outcomes:
                return type(queue).commit(queue, command, said, deadline)
            first = outcomes.pop()
            if isinstance(first, BaseException):
                raise first
            return first

        queue.commit = told
        try:
            self._told(process, opened)
        finally:
            del queue.commit

    def _told(self, process: Process, opened: Open) -> None:
        """What one of a group is told in the end."""
        asked = opened.asked
        if asked.time is None:
            self.commit(process, opened)
            return
        done = opened.tx.commit(timeout=5)
        assert done.micros == asked.time

    # --- commits of which nobody hears, or that are asked for again

    @rule(
        process=processes,
        isolation=isolations,
        token=st.booleans(),
        steps=steps,
        fault=st.sampled_from(sorted(FAULTS)),
        lasts=st.booleans(),
    )
    def commit_in_a_storm(
        self, process: int, isolation: str, token: bool, steps: list[Any], fault: str, lasts: bool
    ) -> None:
        """The request or the answer of the commit is lost, or the process dies of it."""
        who = self.at(process)
        opened = self.begun(who, isolation, self.token() if token else None, None)
        if opened is None:
            return
        for number, step in steps:
            if not self.step(who, opened, number, step):
                return
        who.weather = Weather(FAULTS[fault], commits=True, lasts=lasts)
        self.commit(who, opened)

    @precondition(lambda self: self.tokens)
    @rule(number=numbers, process=processes, same=st.booleans(), value=rows)
    def ask_again(self, number: int, process: int, same: bool, value: Row) -> None:
        """With its token a commit happens once, whoever asks for it again."""
        index = len(self.tokens) - 1 - number % min(len(self.tokens), 8)
        where, asked, tx = self.tokens[index]
        if same and tx is not None and asked.outcome == "open":
            who = self.at(where)
            done = self.settled(who, asked, lambda: tx.commit(timeout=5))
            if done is not None:
                self.tokens[index] = (where, asked, None)
            return
        who = self.at(process)
        opened = self.begun(who, "snapshot", asked.token, None)
        if opened is None:
            return
        if self.step(who, opened, 0, ("append", [value])):
            done = self.settled(who, opened.asked, lambda: opened.tx.commit(timeout=5))
            assert done is not None or opened.asked.outcome == "refused"

    @rule(process=processes, index=st.integers(0, 3))
    def a_late_request_arrives(self, process: int, index: int) -> None:
        for each in [*self.processes, *self.dead]:
            if isinstance(each, Process) and each.faults.late:
                each.faults.land(index % len(each.faults.late))
                return
        who = self.at(process)
        self.acting(who, who.db.tables)  # settles what it left behind

    @rule(
        process=processes,
        fault=st.sampled_from(sorted(FAULTS)),
        skips=st.integers(0, 25),
        lasts=st.booleans(),
    )
    def something_will_fail(self, process: int, fault: str, skips: int, lasts: bool) -> None:
        """One of the next calls of a process, whatever it is at."""
        self.at(process).weather = Weather(FAULTS[fault], skips, lasts=lasts)

    # --- written by one, committed by another

    @precondition(lambda self: self.model.names)
    @rule(process=processes, number=numbers, data=some_rows)
    def stage(self, process: int, number: int, data: list[Row]) -> None:
        table, who = self.pick(number), self.at(process)
        assert table is not None
        name = self.model.names[table]
        try:
            sent = self.acting(who, lambda: who.db.stage({name: arrow(data)}).to_bytes())
        except Held:
            assert table in self.model.holders
            return
        if sent is not None:
            self.staged.append((sent, table, tuple(data)))

    @precondition(lambda self: self.staged)
    @rule(process=processes, number=numbers, isolation=isolations)
    def merge(self, process: int, number: int, isolation: str) -> None:
        """Refused once a session that wrote parts of it has ended; they may be gone."""
        who = self.at(process)
        opened = self.begun(who, isolation, None, None)
        if opened is None:
            return
        sent, table, data = self.staged.pop(number % len(self.staged))
        staged, asked = sl.Staged.from_bytes(sent), opened.asked
        parts = [part for each in staged._writes for part in each.batch.parts]
        asked.sessions = {str(session_of(part.key)) for part in parts}
        try:
            opened.tx.merge(staged)
        except UnknownTable:
            assert table not in opened.names
            self.model.refused(asked.name)
            return
        asked.effects.append((table, ("put", data)))
        self.commit(who, opened)

    # --- writes that are commits of their own

    @rule(process=processes, number=numbers, step=writes)
    def write(self, process: int, number: int, step: tuple[Any, ...]) -> None:
        table = self.pick(number)
        if table is not None:
            who = self.at(process)
            self._write(who, table, step, lambda: who.db[self.model.names[table]])

    def _write(
        self,
        process: Process,
        table: str,
        step: tuple[Any, ...],
        find: Callable[[], Any],
        lease: Lease | None = None,
        **more: Any,
    ) -> None:
        kind = self.model.tables[table].kind

        def late(model: Model) -> list[tuple[str, Effect]]:
            content = model.tables[table].at()
            return [(table, each) for each in resolved(table, kind, step, content, CONDITIONS)[0]]

        asked = self.ask(late=late)
        if lease is not None:
            asked.epochs = {table: lease.epoch}
            asked.position = (table, more["position"])
        mine, now = asked.epochs.get(table, 0), self.model.holders.get(table, 0)
        nothing = not late(self.model) and asked.position is None

        def ask() -> sl.Commit | None:
            try:
                done = write(find(), kind, step, metadata={"op": asked.name}, timeout=5, **more)
            except (Held, Fenced) as error:
                self.watch.look()
                wanted = {"fenced" if mine else "held"} if mine != now else set()
                if error.kind in wanted | self._excuses(process, asked, error):
                    self.model.refused(asked.name)
                    return None
                raise
            else:
                assert mine == now or nothing
                return cast("sl.Commit", done)

        try:
            done = self.acting(process, ask)
        except UnknownTable:
            self.watch.look()
            if table in self.model.names:
                raise
            return
        self.watch.look()
        if done is not None and asked.time is not None:
            assert done.micros == asked.time
        elif done is not None:
            asked.effects = late(self.model)
            assert asked.is_empty, "it is not in the log"

    def create(self, process: int, name: str, kind: str, retention: str, *, split: bool) -> None:
        """In a transaction, of which the log has the name."""
        who = self.at(process)
        opened = self.begun(who, "strict serializable", None, None)
        if opened is None:
            return
        if name in opened.names.values():
            opened.tx.rollback()
            return
        made = opened.tx.create_table(
            name,
            COLUMNS,
            row_keys="k",
            sort_keys="s",
            kind=kind,
            split_points=[2] if split else [],
            properties={
                "retention": retention,
                "deletion_delay": "2 minutes",
                "compaction_parts": 3,
                "split_rows": 12,
            },
        )
        opened.asked.ddl.append(("create", made._table.id, name, kind, str(RETENTIONS[retention])))
        self.commit(who, opened)

    @rule(
        process=processes,
        name=names,
        kind=st.sampled_from(["rows", "keyed"]),
        retention=st.sampled_from(sorted(RETENTIONS)),
        split=st.booleans(),
    )
    def create_table(self, process: int, name: str, kind: str, retention: str, split: bool) -> None:
        if len(self.model.names) < 3:
            self.create(process, name, kind, retention, split=split)

    @rule(process=processes, what=ddl)
    def change_tables(self, process: int, what: tuple[Any, ...]) -> None:
        who = self.at(process)
        opened = self.begun(who, "strict serializable", None, None)
        if opened is not None and self.change(who, opened, what):
            self.commit(who, opened)

    # --- holders

    @precondition(lambda self: self.model.names)
    @rule(
        process=processes,
        number=numbers,
        steps=st.lists(writes, max_size=2),
        then=st.sampled_from(["stays", "releases", "releases"]),
    )
    def attach(self, process: int, number: int, steps: list[Any], then: str) -> None:
        """Whoever had it before is replaced, and nobody is waited for."""
        who, table = self.at(process), self.pick(number)
        assert table is not None
        epoch = self.model.epochs[table]
        found = self.acting(who, lambda: self._attached(who, table))
        self.watch.look()
        if found is None:
            return
        assert found.epoch == self.model.epochs[table] == epoch + 1
        assert self.model.holders[table] == found.epoch
        assert found.position == self.model.positions.get(table)
        lease = Lease(found, table)
        who.leases.append(lease)
        for step in steps:
            if lease in who.leases and who is self.at(process):
                self._write(who, table, step, lambda: found, lease, position=self.made)
        if then == "releases" and who is self.at(process):
            self._release(who, lease)

    def _attached(self, process: Process, table: str) -> Any:
        name = self.model.names[table]
        return process.db[name].attach(f"w{process.number}", timeout=5)

    def _leased(self, number: int) -> tuple[Process, Lease]:
        found = [(process, lease) for process in self.processes for lease in process.leases]
        return found[number % len(found)]

    @precondition(lambda self: any(p.leases for p in self.processes))
    @rule(number=numbers, step=writes)
    def write_as_holder(self, number: int, step: tuple[Any, ...]) -> None:
        process, lease = self._leased(number)
        self._write(process, lease.table, step, lambda: lease.lease, lease, position=self.made)

    @precondition(lambda self: any(p.leases for p in self.processes))
    @rule(
        number=numbers,
        isolation=isolations,
        steps=steps,
        then=st.sampled_from(["commit", "commit", "open"]),
    )
    def transact_as_holder(self, number: int, isolation: str, steps: list[Any], then: str) -> None:
        process, lease = self._leased(number)
        opened = self.begun(process, isolation, None, lease)
        if opened is None:
            return
        for which, step in steps:
            if not self.step(process, opened, which, step):
                return
        if then == "open":
            process.open.append(opened)
        else:
            self.commit(process, opened)

    @precondition(lambda self: any(p.leases for p in self.processes))
    @rule(number=numbers)
    def release(self, number: int) -> None:
        self._release(*self._leased(number))

    def _release(self, process: Process, lease: Lease) -> None:
        held = self.model.holders.get(lease.table)
        process.leases.remove(lease)
        gone = [o for o in process.open if o.store is lease.lease._handle.store]
        process.open = [o for o in process.open if o not in gone]
        for opened in gone:
            opened.tx.rollback()
            self.model.refused(opened.asked.name)
        released = self.acting(process, lambda: lease.lease.release() or True)
        self.watch.look()
        if released:
            assert self.model.holders.get(lease.table) == (None if held == lease.epoch else held)

    @precondition(lambda self: self.model.names)
    @rule(process=processes, number=numbers)
    def what_may_be_pruned_upstream(self, process: int, number: int) -> None:
        who, table = self.at(process), self.pick(number)
        assert table is not None
        found = self.acting(who, lambda: (who.db[self.model.names[table]].safe_to_prune(),))
        self.watch.look()
        if found is not None and table in self.model.names:
            assert found[0] == self.model.positions.get(table)

    # --- upkeep: nothing of it may be seen

    def _upkeep(self, process: int, act: Callable[[Process], object]) -> None:
        who = self.at(process)
        try:
            self.acting(who, lambda: act(who))
        except (UnknownTable, Fenced) as error:
            self.watch.look()
            note(f"upkeep: {error}")
            if isinstance(error, Fenced):
                # Of what was read: others ended a session of it.
                sessions = {
                    s for store in who.stores() for m in store.machines() for s in m.own.ended
                }
                assert sessions

    @precondition(lambda self: self.model.names)
    @rule(process=processes, number=numbers, commits=st.one_of(st.none(), st.integers(1, 2)))
    def apply(self, process: int, number: int, commits: int | None) -> None:
        table = self.pick(number)
        assert table is not None
        self._upkeep(
            process,
            lambda who: apply_table(who.store, table, deadline=within(5), commits_max=commits),
        )

    @rule(process=processes)
    def tidy(self, process: int) -> None:
        self._upkeep(process, lambda who: who.store.txns.tidy(deadline=within(5)))

    @precondition(lambda self: self.model.names)
    @rule(
        process=processes,
        number=numbers,
        strategy=st.sampled_from([None, "full", "basic", "size-ratio"]),
    )
    def compact(self, process: int, number: int, strategy: str | None) -> None:
        table = self.pick(number)
        assert table is not None
        self._upkeep(
            process,
            lambda who: who.db.compact(self.model.names[table], strategy=strategy, timeout=20),
        )

    @precondition(lambda self: self.model.names)
    @rule(process=processes, number=numbers)
    def split(self, process: int, number: int) -> None:
        table = self.pick(number)
        assert table is not None
        self._upkeep(process, lambda who: who.db.split(self.model.names[table], timeout=20))

    @rule(process=processes, number=numbers)
    def roll_up(self, process: int, number: int) -> None:
        def act(who: Process) -> object:
            machines = who.store.machines()
            return machines[number % len(machines)].roll_up(deadline=within(5))

        self._upkeep(process, act)

    @rule(process=processes, minutes=st.sampled_from([0, 3, 16]))
    def vacuum(self, process: int, minutes: int) -> None:
        self.world.pass_by(minutes * 60)
        self._upkeep(process, lambda who: who.db.vacuum(timeout=20))

    @precondition(lambda self: self.model.names and self.model.times)
    @rule(process=processes, number=numbers, back=st.integers(0, 5))
    def prune(self, process: int, number: int, back: int) -> None:
        table = self.pick(number)
        assert table is not None
        time = self.model.times[-1 - back % len(self.model.times)]
        model = self.model.tables[table]
        model.pruned = max(model.pruned, time)
        self._upkeep(
            process,
            lambda who: who.db.prune(self.model.names[table], before=sl.Micros(time), timeout=20),
        )

    @precondition(lambda self: len(self.model.names) > 1)
    @rule(process=processes, number=numbers, back=st.booleans())
    def drop_and_forget(self, process: int, number: int, back: bool) -> None:
        """A table goes, and after its retention all that is left of it, unless it is held."""
        table, who = self.pick(number), self.at(process)
        assert table is not None
        name, kind = self.model.names[table], self.model.tables[table].kind
        opened = self.begun(who, "serializable", None, None)
        if opened is None or table not in opened.names:
            return
        which = sorted(opened.names).index(table)
        if not self.change(who, opened, ("drop", which)):
            return
        self.commit(who, opened)
        if table in self.model.names:
            return
        if back and name not in self.model.names.values():
            self.create(process, name, kind, "1 hour", split=True)
        for minutes in (61, 16, 16):
            self.world.pass_by(minutes * 60)
            self._upkeep(process, _pass_and_vacuum)

    # --- sessions, and time

    @rule(seconds=st.sampled_from([0.001, 30.0, 240.0, 1_000.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.pass_by(seconds)

    @rule(process=processes, tidily=st.booleans())
    def end(self, process: int, tidily: bool) -> None:
        """A process ends: it crashes, or is closed; another takes its place."""
        who = self.at(process)
        if tidily:
            for opened in who.open:
                opened.tx.rollback()
                self.model.refused(opened.asked.name)
            who.open = []
            self.acting(who, who.db.close)
        self.kill(self.processes[who.number])

    @rule(process=processes)
    def beat(self, process: int) -> None:
        """What runs in the background of one that lives."""
        who = self.at(process)
        for store in who.stores():
            self.acting(who, store.pulse.tick)

    @rule(process=processes, looks=st.integers(1, 9))
    def look_out(self, process: int, looks: int) -> None:
        """Somebody looks for the silent ones for a while; the living go on in their background."""
        who = self.at(process)
        for _ in range(looks):
            self.world.pass_by(SMALL.lease_seconds / 4 + 0.01)
            if looks < 6:
                for each in self.processes:
                    for store in each.stores():
                        self.acting(each, store.pulse.tick)
            tables = sorted(self.watch.states.keys() - {TXNS})
            self.acting(who, partial(who.store.look_out, tables, deadline=within(5)))
            who = self.at(process)

    @rule(process=processes, number=numbers)
    def force_ack(self, process: int, number: int) -> None:
        """An operator knows that the owner of a session is gone."""
        who = self.at(process)
        mine = {m.session for p in self.processes for s in p.stores() for m in s.machines()}
        found = sorted(
            key[0]
            for state in self.watch.states.values()
            for key, _ in state.sessions.range()
            if key[0] not in mine
        )
        if found:
            session = found[number % len(found)]
            self.acting(who, lambda: who.db.force_ack(session=session, timeout=5))

    @rule(process=processes)
    def sweep_twice(self, process: int) -> None:
        """What the dead have left is deleted, and they are forgotten."""
        for _ in range(2):
            self.world.pass_by(16 * 60)
            self._upkeep(process, lambda who: who.db.vacuum(timeout=20))
        self.watch.look()
        self._check_objects()

    # --- readers

    def _read_all(self, db: Database, time: int) -> None:
        """All tables as of one time, by the names that they had."""
        model = self.model
        expected = model.names_at(time)
        state = self.watch.states[TXNS]
        kept = {
            version.table
            for _, version in state.tables.range()
            if version.valid_from <= time
            and (version.valid_until is None or time < version.valid_until)
        }
        moment = db.as_of(sl.Micros(time))
        assert sorted(name for t, name in expected.items() if t in kept) == moment.tables()
        for table, name in sorted(expected.items()):
            if table not in kept:
                continue
            try:
                found = rows_of(moment[name].scan().to_arrow())
            except AsOfTooOld:
                self.watch.look()
                assert time < self.since(table)
                continue
            # A handle that knows an older state of the table may still read what is given up; then
            # it has to be right.
            wanted = model.tables[table].at(time)
            assert [row[:2] for row in found] == sorted(row[:2] for row in found)
            same(found, wanted, f"{name} at {time}")

    @precondition(lambda self: self.model.times)
    @rule(process=processes, back=st.integers(0, 40), off=st.sampled_from([0, 0, -1, 1]))
    def read_as_of(self, process: int, back: int, off: int) -> None:
        who = self.at(process)
        time = self.model.times[-1 - back % len(self.model.times)] + off
        if time > self.model.latest:
            return
        who.weather = Weather()
        self._read_all(who.db, time)

    @rule(process=processes, by=st.sampled_from(["names", "transaction", "sql"]))
    def read_the_latest(self, process: int, by: str) -> None:
        who = self.at(process)
        who.weather = Weather()
        who.db.tables()  # what it left unsettled is settled
        self.watch.look()
        model = self.model
        wanted = {name: model.tables[t].at() for t, name in model.names.items()}
        assert who.db.tables() == sorted(wanted)
        if by == "names":
            found = {name: rows_of(who.db[name].scan().to_arrow()) for name in wanted}
        elif by == "transaction":
            with who.db.transaction() as tx:
                found = {name: rows_of(tx[name].scan().to_arrow()) for name in wanted}
            assert tx.read_time == model.latest
        elif wanted:
            text = " union all ".join(f"select '{n}', k, s, v from {n}" for n in sorted(wanted))
            found = {name: [] for name in wanted}
            for name, *row in who.db.sql(text).fetchall():
                found[name].append((row[0], row[1], row[2]))
        else:
            return
        for name, content in wanted.items():
            same(found[name], content, name)

    # --- subscribers

    @precondition(lambda self: self.model.names and len(self.subscribers) < 4)
    @rule(process=processes, which=st.lists(numbers, min_size=1, max_size=2), kept=st.booleans())
    def subscribe(self, process: int, which: list[int], kept: bool) -> None:
        tables = {str(self.pick(number)) for number in which}
        self.subscribers.append(
            Subscriber(
                {table: self.model.names[table] for table in tables},
                f"s{self.made}" if kept else None,
                process,
            )
        )
        self.made += 1

    @precondition(lambda self: self.subscribers)
    @rule(number=numbers, process=processes, changes=st.integers(1, 3))
    def take_changes(self, number: int, process: int, changes: int) -> None:
        """Goes on, where it is or, after a crash, anywhere from the progress that it kept."""
        subscriber = self.subscribers[number % len(self.subscribers)]
        if subscriber.iterator is None:
            subscriber.process = process % PROCESSES
        who = self.at(subscriber.process)
        who.weather = Weather()
        try:
            if subscriber.iterator is None:
                subscriber.iterator = self._subscribed(who, subscriber)
            for _ in range(changes):
                change = next(subscriber.iterator, None)
                if change is None:
                    subscriber.iterator = None
                    return
                self.watch.look()
                self._take(subscriber, change)
        except UnknownTable:
            dropped = [self.model.tables[table].dropped for table in subscriber.tables]
            assert any(time is not None for time in dropped)
            self.subscribers.remove(subscriber)
        except AsOfTooOld:
            self.watch.look()
            assert subscriber.name is None or subscriber.progress is None
            assert any(self.since(table) > subscriber.after for table in subscriber.tables)
            self.subscribers.remove(subscriber)

    def _subscribed(self, process: Process, subscriber: Subscriber) -> Any:
        start = subscriber.progress or "snapshot"
        subscriber.pieces = []
        for table in subscriber.tables:
            if table not in self.model.names:
                raise UnknownTable("dropped")
        subscriber.tables = {table: self.model.names[table] for table in subscriber.tables}
        return process.db.subscribe(
            sorted(subscriber.tables.values()),
            start,
            timeout=0.5,
            poll=0.05,
            name=subscriber.name,
        )

    def _take(self, subscriber: Subscriber, change: Any) -> None:
        subscriber.pieces.append(change)
        if not change.complete:
            return
        pieces, subscriber.pieces = subscriber.pieces, []
        through = change.progress.micros
        for table, name in subscriber.tables.items():
            model = self.model.tables[table]
            rows = pa.concat_tables([piece.tables[name] for piece in pieces])
            if subscriber.progress is None:
                assert Counter(rows_of(rows)) == model.at(through)
                continue
            told: dict[int, Counter[Row]] = {}
            says = rows.column("__op" if model.kind == "keyed" else "__diff").to_pylist()
            times = rows.column("__time").to_pylist()
            for row, time, said in zip(rows_of(rows), times, says, strict=True):
                count = told.setdefault(time, Counter())
                if said == "delete":
                    count[*row[:2], -1] -= 1
                else:
                    count[row] += 1 if said == "upsert" else said
            model.check_changes(told, subscriber.after, through, name)
        subscriber.progress, subscriber.after = str(change.progress), through

    # --- the end

    def teardown(self) -> None:
        try:
            # What went wrong already is to be told, and not what comes of it.
            if not self.model.times or sys.exc_info()[1] is not self.outer:
                return
            for process in self.processes:
                process.weather = Weather()
                process.db.tables()
            self.watch.look()
            self.watch.check_rollups()
            self._check_objects()
            fresh = Process(self, 2)
            for time in [*self.model.times[::3], self.model.latest]:
                self._read_all(fresh.db, time)
            for subscriber in list(self.subscribers):
                before = -2
                while subscriber in self.subscribers and subscriber.after != before:
                    before = subscriber.after
                    self.take_changes(self.subscribers.index(subscriber), 0, 9)
                    self.watch.look()
        finally:
            self.dead.clear()
            gc.enable()


QUICK = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


class AtLength(Transactions):
    pass


Transactions.TestCase.settings = QUICK
AtLength.TestCase.settings = settings(QUICK, max_examples=2_000, stateful_step_count=50)
TestTransactions: Any = Transactions.TestCase
TestTransactionsAtLength: Any = pytest.mark.slow(AtLength.TestCase)
