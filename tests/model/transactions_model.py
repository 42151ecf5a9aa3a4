"""What databases with transactions have to be, in plain Python: tables over time, names, holders.

Nothing here is computed from what the code under test returns. A commit is taken in when the log
has it; then the model says whether it may be there, and from then on what every read has to show.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "Asked",
    "Content",
    "Effect",
    "Look",
    "Model",
    "Row",
    "TableModel",
    "Test",
    "Wrong",
    "applied",
    "resolved",
]

Row = tuple[int, int, int]
"""k and s, which are the key, and v."""
Key = tuple[int, int]
Test = Callable[[Row], bool]
Content = Counter[Row]
Effect = tuple[str, tuple[Any, ...]]
"""("put", rows), of a keyed table ("erase", keys), of one of rows ("retract", rows)."""
Step = tuple[Any, ...]


class Wrong(AssertionError):
    """What is there is not what the model says."""


@dataclass(frozen=True)
class Look:
    """What was read of a table."""

    table: str
    test: Test
    by_key: bool
    """Whether the test needs the key alone, so that it is known exactly what was read."""


@dataclass(frozen=True)
class Moment:
    """One commit to a table."""

    time: int
    before: Content
    after: Content
    touched: frozenset[Key]
    """Keys that it wrote, also where that changed nothing."""

    def changed(self) -> set[Row]:
        """Rows that there are more or fewer of since."""
        return {*(self.before - self.after), *(self.after - self.before)}


@dataclass
class TableModel:
    """One table from its creation on."""

    kind: str
    created: int
    dropped: int | None = None
    moments: list[Moment] = field(default_factory=list)
    retention: int = 0
    pruned: int = -1
    """History before this time was given up on purpose."""

    def at(self, time: int | None = None) -> Content:
        """Its rows at a time; None: the latest."""
        if time is None:
            return self.moments[-1].after if self.moments else Counter()
        index = bisect_right(self.moments, time, key=lambda moment: moment.time)
        return self.moments[index - 1].after if index else Counter()

    def since(self, time: int) -> list[Moment]:
        """The commits after that time."""
        return self.moments[bisect_right(self.moments, time, key=lambda m: m.time) :]

    def write(self, time: int, effects: Sequence[Effect]) -> None:
        """Takes in a commit."""
        before = self.at()
        after = applied(self.kind, before, effects)
        self.moments.append(Moment(time, before, after, frozenset(keys_of(effects))))

    def check_changes(
        self, found: Mapping[int, Counter[Row]], after: int, through: int, what: str
    ) -> None:
        """`found` has to be all that happened at times in (`after`, `through`].

        By time; of a keyed table +1 of each row that was written and (k, s, -1) with -1 of each key
        that was deleted; a row may be told that was written and was there as it was.
        """
        expected: dict[int, Counter[Row]] = {}
        wrote: dict[int, Moment] = {}
        for moment in self.moments:
            if not after < moment.time <= through:
                continue
            wrote[moment.time] = moment
            new, old = moment.after - moment.before, moment.before - moment.after
            said: Counter[Row] = Counter(new)
            if self.kind == "rows":
                said.subtract(old)
            else:
                keys = {row[:2] for row in new}
                for row in old:
                    if row[:2] not in keys:
                        said[(*row[:2], -1)] -= 1
            expected[moment.time] = said
        for time in sorted(expected.keys() | found.keys()):
            wanted = Counter({row: n for row, n in expected.get(time, Counter()).items() if n})
            told = Counter(dict(found.get(time, Counter())))
            if self.kind == "keyed" and time in wrote:
                for row in [row for row in told if row not in wanted]:
                    if wrote[time].after[row] and row[:2] in wrote[time].touched:
                        del told[row]
            if told != wanted:
                raise Wrong(
                    f"{what} at {time}, of ({after}, {through}]: told {told}, it is {wanted}"
                )


def keys_of(effects: Iterable[Effect]) -> set[Key]:
    """The keys that these write."""
    return {row[:2] for _, rows in effects for row in rows}


def applied(kind: str, content: Content, effects: Iterable[Effect]) -> Content:
    """The rows after these effects, one after another."""
    after = Counter(content)
    for what, rows in effects:
        if what == "retract":
            after.subtract(rows)
            if any(after[row] < 0 for row in rows):
                raise Wrong(f"rows were deleted that were not there: {rows} of {content}")
            continue
        if kind == "keyed":
            last = {row[:2]: row for row in rows}  # within one batch the last row counts
            after = Counter({row: n for row, n in after.items() if row[:2] not in last})
            rows = tuple(last.values()) if what == "put" else ()  # noqa: PLW2901
        after.update(rows)
    return +after


def resolved(
    table: str, kind: str, step: Step, content: Content, conditions: Mapping[str, Test]
) -> tuple[list[Effect], list[Look]]:
    """What a step does to a table with that content, and what it reads for it."""
    what = step[0]
    if what in {"append", "upsert"}:
        return ([("put", tuple(step[1]))] if step[1] else []), []
    if what == "delete_keys":
        keys = tuple(step[1])
        if kind == "keyed" and all(len(key) == 2 for key in keys):
            return [("erase", keys)], []
        test: Test = lambda row: any(row[: len(key)] == key for key in keys)  # noqa: E731
        look = Look(table, test, by_key=True)
    elif step[1] is None:
        look = Look(table, lambda _: True, by_key=True)
    else:
        look = Look(table, conditions[step[1]], by_key=False)
    found = [row for row in content.elements() if look.test(row)]
    effects: list[Effect] = []
    if what == "update":
        new = tuple((k, s, v + 1) for k, s, v in found)
        if kind == "rows" and found:
            effects.append(("retract", tuple(found)))
        if new:
            effects.append(("put", new))
        return effects, [look]
    if found and kind == "keyed":
        effects.append(("erase", tuple({row[:2] for row in found})))
    elif found:
        effects.append(("retract", tuple(found)))
    if what == "overwrite" and step[2]:
        effects.append(("put", tuple(step[2])))
    return effects, [look]


@dataclass
class Asked:
    """A commit that somebody asks for; the log says whether and when it happens."""

    name: str
    isolation: str = "snapshot"
    read_time: int = -1
    token: tuple[str, int] | None = None
    effects: list[tuple[str, Effect]] = field(default_factory=list)
    """(table, effect), in order."""
    looks: list[Look] = field(default_factory=list)
    late: Callable[[Model], list[tuple[str, Effect]]] | None = None
    """Of a write that is computed from the tables as they are right before it: its effects."""
    ddl: list[tuple[str, ...]] = field(default_factory=list)
    """("create", table, name, kind, retention), ("rename", table, name) or ("drop", table)."""
    versions: dict[str, int] = field(default_factory=dict)
    """The changes of names and drops of each table of `ddl` that it knows of."""
    epochs: dict[str, int] = field(default_factory=dict)
    """Of the tables that its author attached."""
    position: tuple[str, Any] | None = None
    sessions: set[str] = field(default_factory=set)
    """Others that wrote parts of it."""
    outcome: str = "open"
    tries: int = 0
    time: int | None = None

    def of(self, table: str) -> list[Effect]:
        """What it does to one table."""
        return [effect for each, effect in self.effects if each == table]

    @property
    def written(self) -> set[str]:
        """The tables of which it writes rows."""
        return {table for table, _ in self.effects}

    @property
    def touched(self) -> set[str]:
        """All tables that a holder is asked for."""
        positions = {self.position[0]} if self.position else set()
        return self.written | {each[1] for each in self.ddl} | positions

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not (self.effects or self.ddl or self.token or self.position)


class Model:
    """The database. Times are those of the log."""

    def __init__(self) -> None:
        self.tables: dict[str, TableModel] = {}
        self.names: dict[str, str] = {}
        """The names of the tables that there are, by id."""
        self.altered: Counter[str] = Counter()
        """How often each table was renamed or had properties set."""
        self.named: list[tuple[int, dict[str, str]]] = []
        self.times: list[int] = []
        self.latest = -1
        self.asked: dict[str, Asked] = {}
        self.tokens: dict[tuple[str, int], Asked] = {}
        self.epochs: Counter[str] = Counter()
        self.holders: dict[str, int] = {}
        """The epoch of who holds each table, where somebody does."""
        self.positions: dict[str, Any] = {}

    def names_at(self, time: int) -> dict[str, str]:
        """The names of the tables at a time, by id."""
        index = bisect_right(self.named, time, key=lambda each: each[0])
        return self.named[index - 1][1] if index else {}

    # --- what a commit may meet

    def refusals(self, asked: Asked) -> tuple[set[str], set[str]]:
        """Kinds of errors of which one has to come (if there are any), and those that may."""
        must: set[str] = set()
        may: set[str] = set()
        for table in asked.touched:
            mine, now = asked.epochs.get(table, 0), self.holders.get(table, 0)
            if mine != now:
                must.add("fenced" if mine else "held")
        if asked.token is not None and any(
            scope == asked.token[0] and number > asked.token[1] for scope, number in self.tokens
        ):
            must.add("usage")  # numbers of a scope have to grow
        new = {each[1] for each in asked.ddl if each[0] == "create"}
        for table in asked.touched - new - set(self.names):
            must.add("unknown-table")
            assert table in self.tables
        for table, known in asked.versions.items():
            if table in self.names and self.altered[table] != known:
                must.add("transaction-conflict")
        names = dict(self.names)
        for what, table, *more in asked.ddl:
            if what == "drop":
                names.pop(table, None)
            else:
                names[table] = more[0]
        if len({name.casefold() for name in names.values()}) < len(names):
            must.add("usage")
        for look in asked.looks:
            self._met(asked, look, must, may)
        return must, may

    def _met(self, asked: Asked, look: Look, must: set[str], may: set[str]) -> None:
        """Whether others have written since what was read. No false acceptance is allowed."""
        table = self.tables.get(look.table)
        if table is None:
            return  # made in the same transaction: nobody else knows it
        snapshot = asked.isolation == "snapshot"
        effects = asked.of(look.table)
        written = keys_of(effects)
        if look.table not in self.names:
            # What is read of a table that is gone cannot be looked up, unless it does not matter.
            (may if snapshot else must).add("unknown-table")
            may.add("transaction-conflict")
            return
        retracted = {row for what, rows in effects for row in rows if what == "retract"}
        for moment in table.since(asked.read_time):
            if snapshot:
                touched = bool(moment.touched & written)
            elif look.by_key:
                touched = any(look.test((*key, 0)) for key in moment.touched)
            else:
                touched = bool(moment.touched)
            if touched:
                may.add("transaction-conflict")
            for row in moment.changed():
                lost = row in retracted if table.kind == "rows" else row[:2] in written
                if look.test(row) and (lost or not snapshot):
                    must.add("transaction-conflict")

    # --- what happens

    def begin(self, asked: Asked) -> Asked:
        """Somebody asks for a commit."""
        self.asked[asked.name] = asked
        return asked

    def committed(self, name: str, time: int) -> None:
        """The log has it."""
        asked = self.asked.get(name)
        if asked is None:
            raise Wrong(f"{name} is in the log, and nobody asked for it")
        if asked.time is not None:
            raise Wrong(f"{name} is in the log twice, at {asked.time} and at {time}")
        if asked.outcome == "refused":
            raise Wrong(f"{name} was refused, and is in the log at {time}")
        if asked.token is not None and asked.token in self.tokens:
            raise Wrong(f"the token {asked.token} was committed twice, by {name} at {time}")
        if asked.late is not None:
            asked.effects = asked.late(self)
        must, _ = self.refusals(asked)
        if must:
            raise Wrong(f"{name} was granted at {time}, and had to be refused: {must}; {asked}")
        self.passed(time)
        self.times.append(time)
        asked.time = time
        if asked.token is not None:
            self.tokens[asked.token] = asked
        self._alter(asked, time)
        for table in asked.written & self.tables.keys():
            if table in self.names:
                self.tables[table].write(time, asked.of(table))
        if asked.position is not None:
            self.positions[asked.position[0]] = asked.position[1]

    def _alter(self, asked: Asked, time: int) -> None:
        if not asked.ddl:
            return
        for what, table, *more in asked.ddl:
            if what == "drop":
                del self.names[table]
                self.tables[table].dropped = time
                continue
            self.names[table] = more[0]
            self.altered[table] += 1
            if what == "create":
                self.tables[table] = TableModel(more[1], time, retention=int(more[2]))
        self.named.append((time, dict(self.names)))

    def passed(self, time: int) -> None:
        """Time goes up, with each commit."""
        if time <= self.latest:
            raise Wrong(f"a commit is at {time}, after one at {self.latest}")
        self.latest = time

    def attached(self, table: str, epoch: int) -> None:
        """The log has a new holder of the table."""
        if epoch != self.epochs[table] + 1:
            raise Wrong(f"{table} was attached with epoch {epoch} after {self.epochs[table]}")
        self.epochs[table] = self.holders[table] = epoch

    def released(self, table: str) -> None:
        """The log says that nobody holds the table any more."""
        self.holders.pop(table, None)

    def refused(self, name: str) -> None:
        """The caller was told that it did not happen."""
        asked = self.asked[name]
        if asked.time is not None:
            raise Wrong(f"{name} is in the log at {asked.time}, and was refused")
        asked.outcome = "refused"
