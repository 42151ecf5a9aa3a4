"""What transactions did and saw: the words of a history, and what the tables went through in it."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from strandline.transaction import Isolation

__all__ = [
    "Content",
    "Did",
    "Findings",
    "Key",
    "Predicate",
    "Row",
    "Saw",
    "Version",
    "Versions",
    "Violation",
    "Wrote",
    "point",
]

Key = tuple[int, ...]
Outcome = Literal["committed", "aborted", "unknown"]
Content = tuple[int, str] | None
"""What a key has: a value and who wrote it; None: no row."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row that somebody saw."""

    key: Key
    value: int
    by: str
    """The transaction that wrote it."""


@dataclass(frozen=True, slots=True)
class Predicate:
    """What a read asks for: rows with `lower <= key < upper` and `least <= value < below`."""

    table: str
    lower: Key | None = None
    upper: Key | None = None
    least: int | None = None
    below: int | None = None

    def has(self, key: Key) -> bool:
        """Whether rows with that key are among what is asked for, by their key."""
        return (self.lower is None or self.lower <= key) and (
            self.upper is None or key < self.upper
        )

    def of(self, content: Content) -> Content:
        """What the read gets to see of it."""
        if content is None or (self.least is not None and content[0] < self.least):
            return None
        return None if self.below is not None and content[0] >= self.below else content

    def __str__(self) -> str:
        keys = "" if self.lower is self.upper is None else f" [{self.lower}, {self.upper})"
        where = self.least is not None or self.below is not None
        return f"{self.table}{keys}" + (f" where {self.least} <= value < {self.below}" * where)


def point(table: str, key: Key) -> Predicate:
    """The rows whose keys begin with `key`."""
    return Predicate(table, key, (*key[:-1], key[-1] + 1))


@dataclass(frozen=True, slots=True)
class Saw:
    """A read, and all rows that it gave."""

    asked: Predicate
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Wrote:
    """A row that was put in the place of any other of that key; None: the key was deleted."""

    table: str
    key: Key
    value: int | None


@dataclass(frozen=True, slots=True)
class Did:
    """One transaction, as the one who ran it knows it."""

    name: str
    process: str
    """Whose handle it was; one after the other there."""
    isolation: Isolation
    begin: int
    """On a clock that all processes share."""
    end: int | None
    """On the same clock; None: nobody was told."""
    steps: tuple[Saw | Wrote, ...]
    outcome: Outcome = "committed"
    time: int | None = None
    """The commit time, of one that wrote something."""
    at: int | None = None
    """The moment that it is said to have read, where that is known."""

    @property
    def writes(self) -> dict[tuple[str, Key], int | None]:
        """What it leaves behind if it is committed."""
        return {(s.table, s.key): s.value for s in self.steps if isinstance(s, Wrote)}

    @property
    def counts(self) -> bool:
        """Whether it happened."""
        return self.outcome == "committed" and (self.time is not None or not self.writes)


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that should not be in a history."""

    kind: str
    names: tuple[str, ...]
    """The transactions that it is between."""
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True, slots=True)
class Version:
    """What a key has from a time on."""

    time: int
    content: Content
    by: str


class Versions:
    """All that committed transactions left behind, of each key in the order of time."""

    def __init__(self, history: Sequence[Did]) -> None:
        self.all = {did.name: did for did in history}
        if len(self.all) < len(history):
            raise ValueError("two transactions have one name")
        self.tables: dict[str, dict[Key, list[Version]]] = defaultdict(lambda: defaultdict(list))
        for did in history:
            if did.counts and did.time is not None:
                for (table, key), value in did.writes.items():
                    content = None if value is None else (value, did.name)
                    self.tables[table][key].append(Version(did.time, content, did.name))
        for keys in self.tables.values():
            for list_ in keys.values():
                list_.sort(key=lambda version: version.time)
        self._keys = {table: sorted(keys) for table, keys in self.tables.items()}

    def of(self, table: str, key: Key) -> Sequence[Version]:
        """What the key went through."""
        return self.tables[table][key]

    def keys_in(self, asked: Predicate) -> Sequence[Key]:
        """The keys among what is asked for that ever had a row."""
        keys = self._keys.get(asked.table, [])
        first = 0 if asked.lower is None else bisect_left(keys, asked.lower)
        return keys[first : len(keys) if asked.upper is None else bisect_left(keys, asked.upper)]


class Findings(list[Violation]):
    """What is wrong with a history."""

    def say(self, kind: str, message: str, *names: str) -> None:
        """One more thing that is wrong, between those transactions."""
        self.append(Violation(kind, tuple(dict.fromkeys(filter(None, names))), message))
