"""Who has to be before whom, and whether there is any order in which all of that holds."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from strandline.testing.isolation.history import (
    Did,
    Findings,
    Key,
    Predicate,
    Version,
    Versions,
    Wrote,
    point,
)

__all__ = ["Dependencies"]

_CYCLES_MAX = 10


class Dependencies:
    """The dependencies between transactions of which each read at one moment.

    `moment` says at which.
    """

    def __init__(self, versions: Versions, moment: Mapping[str, int], found: Findings) -> None:
        self._versions = versions
        self._moment = moment
        self._found = found

    def _asked(self, did: Did) -> Iterator[tuple[Predicate, Key, frozenset[Key]]]:
        """Each key that it read before it wrote it, and the keys of that read that were there."""
        own: set[tuple[str, Key]] = set()
        for step in did.steps:
            if isinstance(step, Wrote):
                own.add((step.table, step.key))
                continue
            seen = frozenset(row.key for row in step.rows)
            for key in self._versions.keys_in(step.asked):
                if (step.asked.table, key) not in own:
                    yield step.asked, key, seen

    def _seen(self, did: Did, asked: Predicate, key: Key) -> tuple[str, Version | None]:
        """Who made the key what it was to the read, and who changed that next."""
        versions = self._versions.of(asked.table, key)
        position = bisect_right(versions, self._moment[did.name], key=lambda v: v.time) - 1
        seen = asked.of(versions[position].content) if position >= 0 else None
        later = (v for v in versions[position + 1 :] if asked.of(v.content) != seen)
        first = position
        while first > 0 and asked.of(versions[first - 1].content) == seen:
            first -= 1
        made = versions[first].by if first > 0 or (first == 0 and seen is not None) else ""
        return made, next(later, None)

    def check_lost_updates(self, did: Did) -> None:
        if not did.counts or did.time is None:
            return
        writes = did.writes
        for asked, key, _ in self._asked(did):
            if (asked.table, key) not in writes:
                continue
            _, later = self._seen(did, asked, key)
            if later is not None and later.time < did.time:
                self._found.say(
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

        for table, keys in self._versions.tables.items():
            for key, versions in keys.items():
                for one, other in pairwise(versions):
                    add(one.by, other.by, "write", f"was overwritten at {table} {key} by")
        for name in self._moment:
            did = self._versions.all[name]
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

    def check_cycles(self) -> None:
        edges = self._edges()
        happened = [did for did in self._versions.all.values() if did.counts]
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
        strict = [n for n in names if self._versions.all[n].isolation == "strict serializable"]
        for name in names:
            end = self._versions.all[name].end
            for after in strict:
                if end is not None and end < self._versions.all[after].begin:
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
        self._found.say(name, f"no order of these would do: {told}", *names)


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
