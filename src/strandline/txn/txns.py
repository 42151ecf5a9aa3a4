"""The txns shard of a database: names, schemas and entries; every commit is one record of it."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from difflib import get_close_matches

from strandline.env import Deadline, Env
from strandline.errors import Fenced, UnknownTable
from strandline.location import Location
from strandline.shard.look import Look
from strandline.shard.machine import Machine
from strandline.state.commands import (
    Commit,
    CommitResult,
    ConfirmClock,
    Read,
    Release,
    TableChange,
    Tidy,
    Write,
)
from strandline.state.committing import check_holders
from strandline.state.model import Entry, Key, TableVersion
from strandline.state.pages import TOP
from strandline.state.sessions import is_open
from strandline.state.tables import called, current_table
from strandline.times import told
from strandline.txn.clock import Clock
from strandline.txn.grouping import CommitQueue, Note
from strandline.txn.properties import is_online

__all__ = ["TIDIES_PER_COMMIT", "Txns", "named"]

TIDIES_PER_COMMIT = 32
"""Applied entries that a commit retracts along the way: more than it adds, and still cheap."""


class Txns:
    """The txns shard as one process sees it. Thread-safe."""

    def __init__(self, machine: Machine, env: Env, location: Location) -> None:
        self.machine = machine
        self._env = env
        self.clock = Clock(location, machine, env)
        self._applied: deque[Key] = deque()
        self._queue = CommitQueue(machine, env, self._take_tidies, self.to_be_tidied)
        self._tables: tuple[object, dict[str, TableVersion]] = (None, {})
        """The tables that there are now, by name, and the state's map that they come from."""
        self._overlays: dict[str, tuple[tuple[object, int, int | None], tuple[Entry, ...]]] = {}
        """Per table what was asked last, and the answer."""
        self._lock = threading.Lock()
        self.epochs: dict[str, int] = {}
        """Of the tables that this handle holds exclusively: its commits to them say so."""

    # --- reading

    def look(self, deadline: Deadline | None = None) -> Look:
        """The newest state; one Consensus request."""
        return self.machine.look(deadline)

    @staticmethod
    def latest(look: Look) -> int:
        """The latest time at which everything is known; -1 before the first commit."""
        upper = look.meta.upper
        return (1 << 62) if upper is None else upper - 1

    def tables(self, look: Look, as_of: int | None = None) -> list[TableVersion]:
        """The tables at `as_of` (None: now), by name."""
        if as_of is None:
            return list(self._now(look).values())
        versions = look.ask(lambda s: [v for _, v in s.tables.range() if _holds(v, as_of)])
        versions.sort(key=lambda version: version.name)
        return versions

    def _now(self, look: Look) -> dict[str, TableVersion]:
        """The tables that there are now, by name and in its order."""
        # As long as no table is made or changed, whoever looks one up finds the rest as it was.
        asked, known = self._tables
        if asked is not look.state.tables:
            versions = look.ask(lambda s: [v for _, v in s.tables.range() if _holds(v, None)])
            known = {v.name: v for v in sorted(versions, key=lambda version: version.name)}
            self._tables = (look.state.tables, known)
        return known

    def table(self, look: Look, name: str, as_of: int | None = None) -> TableVersion:
        """The table of that name at `as_of` (None: now); UnknownTable names those that are near."""
        found = self._now(look).get(name) if as_of is None else None
        return found or named(self.tables(look, as_of), name, as_of)

    def chosen(self, look: Look, names: Sequence[str] | None) -> list[TableVersion]:
        """The tables of these names; None: all that upkeep visits."""
        if names is None:
            return [version for version in self.tables(look) if is_online(version)]
        return [self.table(look, name) for name in names]

    def table_by_id(self, look: Look, table: str, as_of: int | None = None) -> TableVersion:
        """The table with that id at `as_of` (None: now)."""
        if as_of is None:
            version = look.ask(lambda s: current_table(s, table))
        else:
            version = look.ask(
                lambda s: next((v for _, v in s.tables.prefix((table,)) if _holds(v, as_of)), None)
            )
        if version is None:
            when = "does not exist any more: it was dropped" if as_of is None else "does not exist"
            at = "" if as_of is None else f" as of {told(as_of)}"
            raise UnknownTable(f"{self.called(look, table)} {when}{at}")
        return version

    def called(self, look: Look, table: str) -> str:
        """What messages call a table: by its newest name, also after it was dropped."""
        return look.ask(lambda s: called(s, table))

    def title(self, table: str) -> str:
        """The same of a table that is in use, as far as is known without I/O."""
        known = self._tables[1].values()
        name = next((version.name for version in known if version.table == table), None)
        return f"shard {table}" if name is None else f"table {name!r}"

    def overlay(
        self, look: Look, table: str, physical_upper: int, as_of: int | None = None
    ) -> tuple[Entry, ...]:
        """The table's entries at `physical_upper <= time <= as_of` ◆, ascending by time."""
        # The same tuple while nothing changed: readers keep what they worked out of it.
        asked = (look.state.entries, physical_upper, as_of)
        known = self._overlays.get(table)
        if known is not None and known[0] == asked:
            return known[1]
        end: Key = (table, TOP) if as_of is None else (table, as_of, TOP)
        found = look.ask(
            lambda s: tuple(entry for _, entry in s.entries.range((table, physical_upper), end))
        )
        self._overlays[table] = (asked, found)
        return found

    def backlog(self, table: str, physical_upper: int) -> int:
        """How many entries of the table are known, without I/O, that are not applied below that."""
        return self.machine.known().ask(
            lambda s: s.entries.count((table, physical_upper), (table, TOP))
        )

    # --- writing

    def commit(
        self,
        *,
        writes: Sequence[Write] = (),
        changes: Sequence[TableChange] = (),
        reads: Sequence[Read] = (),
        token: tuple[str, int] | None = None,
        at_least: int = 0,
        positions: Mapping[str, str] | None = None,
        merged: Sequence[str] = (),
        operation: str,
        metadata: Mapping[str, str] | None = None,
        deadline: Deadline,
    ) -> CommitResult:
        """Commits; its time is decided in the log. Durable and visible when this returns.

        Errors: those of `Commit`; a LocationError says whether it may have happened.
        """
        clock, checked = self.clock.now(self.machine.state.meta.upper, deadline)
        command = Commit(
            clock,
            tuple(writes),
            tuple(changes),
            token,
            at_least=at_least,
            reads=tuple(reads),
            epochs=self._epochs_of(writes, changes, positions or {}),
            positions=tuple(sorted((positions or {}).items())),
            clock_checked=checked,
            merged=tuple(merged),
        )
        note = _note(operation, metadata, writes)
        return self._queue.commit(command, note, deadline)

    def commit_at(self, command: Commit, *, operation: str, deadline: Deadline) -> CommitResult:
        """Commits at the very time that the command names, in a shard without a clock."""
        tidies = self._take_tidies()
        written = False
        note = _note(operation, None, command.writes)

        def said(result: CommitResult) -> str:
            commits = [] if result.repeated else [{"time": result.time, **note}]
            return json.dumps({"commits": commits}, separators=(",", ":"))

        try:
            result = self.machine.submit(replace(command, tidies=tidies), deadline, note=said)
            written = not result.repeated
        finally:
            if not written:
                self.to_be_tidied(tidies)  # retracting what is gone already is skipped
        return result

    def confirm_clock(self, deadline: Deadline) -> int:
        """Says that this machine's clock is right; by which time retention goes from now on.

        ClockSkew if the location's clock says otherwise.
        """
        clock, _ = self.clock.now(None, deadline)
        return self.machine.submit(ConfirmClock(clock), deadline)

    def check_holder(self, table: str, deadline: Deadline) -> None:
        """Held or Fenced if a commit to the table would be refused now because of who holds it."""
        held = {table: self.epochs[table]} if table in self.epochs else {}
        self._check_holders({table}, held, deadline)

    def is_open(self, session: str | None, deadline: Deadline) -> bool:
        """Whether that is a session of this shard that may still commit."""
        look = self.machine.look(deadline)
        return look.ask(lambda s: is_open(s.sessions.get((session,))))

    def learn_fate(self, deadline: Deadline) -> None:
        """Fenced if this handle does not hold any more what it attached to; nothing for one that
        holds nothing.
        """
        if self.epochs:
            self._check_holders(frozenset(), self.epochs, deadline)

    def _check_holders(
        self, touched: AbstractSet[str], held: Mapping[str, int], deadline: Deadline
    ) -> None:
        look = self.machine.look(deadline)
        try:
            look.ask(lambda s: check_holders(s, touched, held.items()))
        except Fenced:
            # A command that changes nothing: so the session learns of its end, and acknowledges it.
            for table, epoch in sorted(held.items()):
                self.machine.submit(Release(table, epoch), deadline)
            raise

    def _epochs_of(
        self,
        writes: Sequence[Write],
        changes: Sequence[TableChange],
        positions: Mapping[str, str],
    ) -> tuple[tuple[str, int], ...]:
        if not self.epochs:
            return ()
        touched = {write.table for write in writes} | positions.keys()
        touched |= {change.after.table for change in changes}
        return tuple((table, self.epochs[table]) for table in sorted(touched & self.epochs.keys()))

    def to_be_tidied(self, keys: Iterable[Key]) -> None:
        """Tells of entries that are applied for certain; later commits retract them."""
        with self._lock:
            self._applied.extend(keys)

    def tidy(self, deadline: Deadline) -> int:
        """Retracts all that is known to be applied, in a record of its own; how many were there."""
        with self._lock:
            keys = tuple(self._applied)
            self._applied.clear()
        if not keys:
            return 0
        try:
            count = self.machine.submit(Tidy(keys), deadline)
        except BaseException:
            self.to_be_tidied(keys)
            raise
        return count

    def _take_tidies(self) -> tuple[Key, ...]:
        if not self._applied:
            return ()
        with self._lock:
            count = min(TIDIES_PER_COMMIT, len(self._applied))
            return tuple(self._applied.popleft() for _ in range(count))


def named(versions: Sequence[TableVersion], name: str, as_of: int | None = None) -> TableVersion:
    """The one of that name; UnknownTable names those that are near."""
    for version in versions:
        if version.name == name:
            return version
    near = get_close_matches(name, [version.name for version in versions], 3)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    when = "" if as_of is None else f" as of {told(as_of)}"
    raise UnknownTable(f"there is no table {name!r}{when}{hint}")


def _holds(version: TableVersion, as_of: int | None) -> bool:
    if as_of is None:
        return version.valid_until is None
    return version.valid_from <= as_of and (
        version.valid_until is None or as_of < version.valid_until
    )


def _note(operation: str, metadata: Mapping[str, str] | None, writes: Sequence[Write]) -> Note:
    note: dict[str, object] = {"operation": operation}
    if metadata:
        note["metadata"] = dict(metadata)
    rows: dict[str, int] = {}
    for write in writes:
        rows[write.table] = rows.get(write.table, 0) + write.rows
    if rows:
        note["rows"] = rows
    return note
