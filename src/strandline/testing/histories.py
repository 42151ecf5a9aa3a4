"""Whether what transactions saw and wrote is what their isolation promises.

A history says of each transaction when it began and ended, what it read and saw, what it wrote, and
its commit time. Every row says who wrote it, and the commit times are the order of versions, so
that nothing has to be guessed: a history is searched for what is not allowed, in one pass.

- all levels: no row of one that aborted or was not finished, or that its writer replaced (aborted
  and dirty reads); all reads are of one moment (fuzzy and fractured reads), which never goes back
  within a process; of two that read and then write a row, the later saw the earlier (lost update).
- "serializable": no cycle of dependencies (Adya): who wrote a version before or after another, who
  saw whose version, and who did not see what another changed in what it asked for, rows that were
  not there included (write skew, phantoms). What a snapshot did not see is no dependency.
- "strict serializable": the same with real time: what had ended when it began is before it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from strandline.transaction import Isolation

__all__ = ["Asked", "Did", "Key", "Row", "Saw", "Violation", "Wrote", "point", "violations"]

Key = tuple[int, ...]
Outcome = Literal["committed", "aborted", "unknown"]
Content = tuple[int, str] | None
"""What a key has: a value and who wrote it; None: no row."""

_CYCLES_MAX = 10


@dataclass(frozen=True, slots=True)
class Row:
    """A row that somebody saw."""

    key: Key
    value: int
    by: str
    """The transaction that wrote it."""


@dataclass(frozen=True, slots=True)
class Asked:
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


def point(table: str, key: Key) -> Asked:
    """The rows whose keys begin with `key`."""
    return Asked(table, key, (*key[:-1], key[-1] + 1))


@dataclass(frozen=True, slots=True)
class Saw:
    """A read, and all rows that it gave."""

    asked: Asked
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
class _Version:
    """What a key has from a time on."""

    time: int
    content: Content
    by: str


@dataclass(frozen=True, slots=True)
class _Limit:
    """From when on, or until when, somebody may have read what it saw; and whose write says so."""

    time: int
    by: str
    what: str


_BEGINNING = -1
_START = _Limit(_BEGINNING, "", "the beginning")
_END = _Limit(1 << 62, "", "the end")
_Span = tuple[_Limit, _Limit]


@dataclass(frozen=True, slots=True)
class _Moments:
    """The times at which the tables were as a transaction saw them: ascending, apart."""

    spans: tuple[_Span, ...]

    def __contains__(self, time: int) -> bool:
        return any(first.time <= time < end.time for first, end in self.spans)

    @property
    def first(self) -> _Limit:
        return self.spans[0][0]

    @property
    def last(self) -> int:
        return self.spans[-1][1].time - 1


def violations(history: Iterable[Did]) -> list[Violation]:
    """What is wrong with a history; empty if nothing is."""
    return _Checker(list(history)).check()


class _Checker:
    def __init__(self, history: Sequence[Did]) -> None:
        self._all = {did.name: did for did in history}
        self._found: list[Violation] = []
        if len(self._all) < len(history):
            raise ValueError("two transactions have one name")
        versions: dict[str, dict[Key, list[_Version]]] = defaultdict(lambda: defaultdict(list))
        for did in history:
            if did.counts and did.time is not None:
                for (table, key), value in did.writes.items():
                    content = None if value is None else (value, did.name)
                    versions[table][key].append(_Version(did.time, content, did.name))
        for keys in versions.values():
            for list_ in keys.values():
                list_.sort(key=lambda version: version.time)
        self._versions: Mapping[str, Mapping[Key, list[_Version]]] = versions
        self._keys = {table: sorted(keys) for table, keys in versions.items()}
        self._moment: dict[str, int] = {}
        """Of each transaction whose reads are of one moment: which."""

    def check(self) -> list[Violation]:
        self._times()
        moments: dict[str, _Moments] = {}
        for did in self._all.values():
            found = self._moments(did)
            if found is None:
                continue
            moments[did.name] = found
            self._moment[did.name] = found.last
            if did.at is not None and did.at in found:
                self._moment[did.name] = did.at
            elif did.at is not None and any(isinstance(step, Saw) for step in did.steps):
                self._say(
                    "wrong moment",
                    f"{did.name} is said to have read at {did.at}, and saw what was there from "
                    f"{found.first.time} to {found.last}",
                    did.name,
                )
        self._monotonic(moments)
        for name in moments:
            self._lost_updates(self._all[name])
        self._cycles()
        return self._found

    def _say(self, kind: str, message: str, *names: str) -> None:
        self._found.append(Violation(kind, tuple(dict.fromkeys(filter(None, names))), message))

    def _times(self) -> None:
        taken: dict[int, str] = {}
        for did in self._all.values():
            if did.counts and did.time is not None and did.writes:
                other = taken.setdefault(did.time, did.name)
                if other != did.name:
                    self._say(
                        "one time",
                        f"{other} and {did.name} both have the time {did.time}",
                        *(other, did.name),
                    )

    # --- one moment

    def _moments(self, did: Did) -> _Moments | None:
        """When the tables were as it saw them; None, and said why, if never."""
        first = _START
        end = _END
        if did.time is not None and did.counts and did.writes:
            end = _Limit(did.time, did.name, "its own commit")
        apart: list[tuple[_Span, ...]] = []
        own: dict[tuple[str, Key], int | None] = {}
        before = len(self._found)
        for step in did.steps:
            if isinstance(step, Wrote):
                own[step.table, step.key] = step.value
                continue
            for found in self._spans_of(did, step, own):
                if len(found) != 1:
                    apart.append(found)
                    continue
                first = max(first, found[0][0], key=lambda limit: limit.time)
                end = min(end, found[0][1], key=lambda limit: limit.time)
                if first.time >= end.time:
                    self._fuzzy(did, first, end)
                    return None
        if len(self._found) > before:
            return None
        spans: tuple[_Span, ...] = ((first, end),)
        for others in apart:
            both = _common(spans, others)
            if not both:
                self._fuzzy(did, spans[-1][0], others[0][1])
                return None
            spans = both
        return _Moments(spans)

    def _fuzzy(self, did: Did, first: _Limit, end: _Limit) -> None:
        fractured = first.by and first.by == end.by and first.what != end.what
        kind = "fractured read" if fractured else "fuzzy read"
        self._say(
            kind,
            f"{did.name} read no one moment: it saw {first.what} of {first.by} (at {first.time}), "
            f"and not {end.what} of {end.by} (at {end.time})",
            *(did.name, first.by, end.by),
        )

    def _spans_of(
        self, did: Did, saw: Saw, own: Mapping[tuple[str, Key], int | None]
    ) -> Iterator[tuple[_Span, ...]]:
        """For each key that was asked for, the times at which it was as seen."""
        asked = saw.asked
        seen: dict[Key, Row] = {}
        for row in saw.rows:
            if row.key in seen:
                self._say("doubled row", f"{did.name} saw {asked.table} {row.key} twice", did.name)
            if not asked.has(row.key) or asked.of((row.value, row.by)) is None:
                self._say("wrong row", f"{did.name} asked for {asked} and saw {row}", did.name)
            seen[row.key] = row
        for key in sorted({*self._keys_in(asked), *seen, *(k for t, k in own if t == asked.table)}):
            row_seen = seen.get(key)
            if not asked.has(key):
                continue
            if (asked.table, key) in own:
                value = own[asked.table, key]
                wanted = asked.of(None if value is None else (value, did.name))
                if wanted != (None if row_seen is None else (row_seen.value, row_seen.by)):
                    self._say(
                        "own write",
                        f"{did.name} wrote {value} to {asked.table} {key} and then saw {row_seen}",
                        did.name,
                    )
            elif row_seen is None:
                yield self._absent(asked, key)
            elif self._is_committed(did, asked.table, row_seen):
                yield (self._present(asked.table, row_seen),)

    def _is_committed(self, did: Did, table: str, row: Row) -> bool:
        """Whether the row is what a commit left behind; says what else it is."""
        where = f"{did.name} saw {row.value} at {table} {row.key}"
        writer = self._all.get(row.by)
        if writer is None:
            self._say("read from nowhere", f"{where}, and there is no {row.by}", did.name)
        elif writer.outcome == "aborted":
            self._say("aborted read", f"{where} of {row.by}, which aborted", did.name, row.by)
        elif not writer.counts:
            self._say(
                "dirty read",
                f"{where} of {row.by}, of which nobody knows that it committed",
                *(did.name, row.by),
            )
        elif writer.writes.get((table, row.key), row.value) != row.value:
            self._say(
                "dirty read",
                f"{where}, which {row.by} replaced by {writer.writes[table, row.key]} itself",
                *(did.name, row.by),
            )
        elif (table, row.key) not in writer.writes:
            self._say("read from nowhere", f"{where} of {row.by}, which wrote none", did.name)
        elif did.end is not None and writer.begin > did.end:
            self._say("dirty read", f"{where} of {row.by}, which began later", did.name, row.by)
        else:
            return True
        return False

    def _present(self, table: str, row: Row) -> _Span:
        versions = self._versions[table][row.key]
        position = next(i for i, version in enumerate(versions) if version.by == row.by)
        return self._span(table, row.key, position, position + 1)

    def _absent(self, asked: Asked, key: Key) -> tuple[_Span, ...]:
        """When the read would not have seen the key, as spans."""
        versions = self._versions[asked.table][key]
        spans = []
        begun: int | None = -1
        for position, version in enumerate(versions):
            visible = asked.of(version.content) is not None
            if visible and begun is not None:
                spans.append(self._span(asked.table, key, begun, position))
                begun = None
            elif not visible and begun is None:
                begun = position
        if begun is not None:
            spans.append(self._span(asked.table, key, begun, len(versions)))
        return tuple(spans)

    def _span(self, table: str, key: Key, first: int, end: int) -> _Span:
        versions = self._versions[table][key]
        limits = [
            _Limit(versions[at].time, versions[at].by, f"{table} {key}")
            if 0 <= at < len(versions)
            else edge
            for at, edge in ((first, _START), (end, _END))
        ]
        return limits[0], limits[1]

    def _keys_in(self, asked: Asked) -> Sequence[Key]:
        keys = self._keys.get(asked.table, [])
        first = 0 if asked.lower is None else bisect_left(keys, asked.lower)
        return keys[first : len(keys) if asked.upper is None else bisect_left(keys, asked.upper)]

    def _monotonic(self, moments: Mapping[str, _Moments]) -> None:
        """Whoever saw or wrote something never sees an earlier moment with the same handle."""
        processes: dict[str, list[Did]] = defaultdict(list)
        for did in self._all.values():
            processes[did.process].append(did)
        for several in processes.values():
            known = _START
            for did in sorted(several, key=lambda did: did.begin):
                seen = moments.get(did.name)
                if seen is None:
                    continue
                if seen.last < known.time:
                    self._say(
                        "non-monotonic read",
                        f"{did.name} saw nothing later than {seen.last}, after {known.by} of the "
                        f"same process {known.what} {known.time}",
                        *(did.name, known.by),
                    )
                reached = [known, _Limit(seen.first.time, did.name, "saw what was written at")]
                if did.counts and did.time is not None and did.writes:
                    reached.append(_Limit(did.time, did.name, "committed at"))
                known = max(reached, key=lambda limit: limit.time)

    # --- dependencies

    def _asked(self, did: Did) -> Iterator[tuple[Asked, Key, frozenset[Key]]]:
        """Each key that it read before it wrote it, and the keys of that read that were there."""
        own: set[tuple[str, Key]] = set()
        for step in did.steps:
            if isinstance(step, Wrote):
                own.add((step.table, step.key))
                continue
            seen = frozenset(row.key for row in step.rows)
            for key in self._keys_in(step.asked):
                if (step.asked.table, key) not in own:
                    yield step.asked, key, seen

    def _seen(self, did: Did, asked: Asked, key: Key) -> tuple[str, _Version | None]:
        """Who made the key what it was to the read, and who changed that next."""
        versions = self._versions[asked.table][key]
        position = bisect_right(versions, self._moment[did.name], key=lambda v: v.time) - 1
        seen = asked.of(versions[position].content) if position >= 0 else None
        later = (v for v in versions[position + 1 :] if asked.of(v.content) != seen)
        first = position
        while first > 0 and asked.of(versions[first - 1].content) == seen:
            first -= 1
        made = versions[first].by if first > 0 or (first == 0 and seen is not None) else ""
        return made, next(later, None)

    def _lost_updates(self, did: Did) -> None:
        if not did.counts or did.time is None:
            return
        writes = did.writes
        for asked, key, _ in self._asked(did):
            if (asked.table, key) not in writes:
                continue
            _, later = self._seen(did, asked, key)
            if later is not None and later.time < did.time:
                self._say(
                    "lost update",
                    f"{did.name} read {asked.table} {key} as of {self._moment[did.name]} and wrote "
                    f"it at {did.time}; {later.by} wrote it at {later.time}, in between",
                    *(did.name, later.by),
                )

    def _edges(self) -> dict[str, dict[str, tuple[str, str]]]:
        """Who has to be before whom, with the kind and the reason."""
        edges: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)

        def add(before: str, after: str, kind: str, why: str) -> None:
            if before and before != after:
                edges[before].setdefault(after, (kind, why))

        for table, keys in self._versions.items():
            for key, versions in keys.items():
                for one, other in pairwise(versions):
                    add(one.by, other.by, "write", f"was overwritten at {table} {key} by")
        for name in self._moment:
            did = self._all[name]
            if not did.counts:
                continue
            for asked, key, seen in self._asked(did):
                made, later = self._seen(did, asked, key)
                add(made, name, "read", f"was seen at {asked.table} {key} by")
                if later is not None and did.isolation != "snapshot":
                    kind = (
                        "missed" if key in seen or asked == point(asked.table, key) else "phantom"
                    )
                    add(name, later.by, kind, f"read {asked} and did not see {key} of")
        return edges

    def _cycles(self) -> None:
        edges = self._edges()
        happened = [did for did in self._all.values() if did.counts]
        ended = sorted((did for did in happened if did.end is not None), key=lambda d: d.end or 0)
        ends = [did.end or 0 for did in ended]
        # A node for each end, in a row: all that ended before is before what begins after it.
        graph = {name: set(after) for name, after in edges.items()}
        for position, did in enumerate(ended):
            graph.setdefault(did.name, set()).add(f"\0{position}")
            graph[f"\0{position}"] = {f"\0{position + 1}"}
        for did in happened:
            position = bisect_left(ends, did.begin) - 1
            if did.isolation == "strict serializable" and position >= 0:
                graph[f"\0{position}"].add(did.name)
        left = {name for name in _core(graph) if not name.startswith("\0")}
        for _ in range(_CYCLES_MAX):
            direct = self._direct(edges, left)
            cycle = _shortest_cycle(direct)
            if not cycle:
                return
            self._say_cycle([(name, *direct[name][after]) for name, after in _round(cycle)])
            left -= set(cycle)

    def _direct(
        self, edges: Mapping[str, Mapping[str, tuple[str, str]]], names: set[str]
    ) -> dict[str, dict[str, tuple[str, str]]]:
        """The edges between those, real time included."""
        found = {
            name: {after: edge for after, edge in edges.get(name, {}).items() if after in names}
            for name in names
        }
        strict = [n for n in names if self._all[n].isolation == "strict serializable"]
        for name in names:
            end = self._all[name].end
            for after in strict:
                if end is not None and end < self._all[after].begin:
                    found[name].setdefault(after, ("time", "had ended before the begin of"))
        return found

    def _say_cycle(self, cycle: Sequence[tuple[str, str, str]]) -> None:
        kinds = [kind for _, kind, _ in cycle]
        if "time" in kinds:
            name = "stale read"
        elif "phantom" in kinds:
            name = "phantom"
        elif kinds == ["missed", "missed"]:
            name = "write skew"
        else:
            name = "cycle"
        names = [who for who, _, _ in cycle]
        told = "; ".join(
            f"{who} {why} {after}"
            for (who, _, why), after in zip(cycle, [*names[1:], names[0]], strict=True)
        )
        self._say(name, f"no order of these would do: {told}", *names)


def _common(some: Sequence[_Span], others: Sequence[_Span]) -> tuple[_Span, ...]:
    found = []
    for one in some:
        for other in others:
            first = max(one[0], other[0], key=lambda limit: limit.time)
            end = min(one[1], other[1], key=lambda limit: limit.time)
            if first.time < end.time:
                found.append((first, end))
    return tuple(found)


def _core(graph: Mapping[str, set[str]]) -> set[str]:
    """What is left when all nodes go that nothing is before, and all that nothing is after."""
    left = {*graph, *(after for found in graph.values() for after in found)}
    forth: dict[str, set[str]] = {name: graph.get(name, set()) for name in left}
    back: dict[str, set[str]] = {name: set() for name in left}
    for name, found in forth.items():
        for after in found:
            back[after].add(name)
    for here, there in ((forth, back), (back, forth)):
        counts = {name: sum(other in left for other in here[name]) for name in left}
        ready = [name for name, count in counts.items() if not count]
        while ready:
            name = ready.pop()
            left.discard(name)
            for other in there[name]:
                if other in left:
                    counts[other] -= 1
                    if not counts[other]:
                        ready.append(other)
    return left


def _shortest_cycle(graph: Mapping[str, Mapping[str, object]]) -> list[str]:
    best: list[str] = []
    for start in sorted(graph):
        came: dict[str, str] = {}
        waiting = deque([start])
        while waiting and start not in came:
            name = waiting.popleft()
            for after in graph[name]:
                if after not in came:
                    came[after] = name
                    waiting.append(after)
        if start not in came:
            continue
        path = [came[start]]
        while path[-1] != start:
            path.append(came[path[-1]])
        path.reverse()
        if not best or len(path) < len(best):
            best = path
        if len(best) == 2:
            break
    return best


def _round(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    return pairwise([*names, names[0]])
