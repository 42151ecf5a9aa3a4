"""Whether all reads of a transaction are of one moment, and which moments that may have been."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from strandline.testing.isolation.history import (
    Did,
    Findings,
    Key,
    Predicate,
    Row,
    Saw,
    Versions,
    Wrote,
)

__all__ = ["START", "Limit", "Moments", "Reads"]


@dataclass(frozen=True, slots=True)
class Limit:
    """From when on, or until when, somebody may have read what it saw; and whose write says so."""

    time: int
    by: str
    what: str


_BEGINNING = -1
START = Limit(_BEGINNING, "", "the beginning")
END = Limit(1 << 62, "", "the end")
Span = tuple[Limit, Limit]


@dataclass(frozen=True, slots=True)
class Moments:
    """The times at which the tables were as a transaction saw them: ascending, apart."""

    spans: tuple[Span, ...]

    def __contains__(self, time: int) -> bool:
        return any(first.time <= time < end.time for first, end in self.spans)

    @property
    def first(self) -> Limit:
        return self.spans[0][0]

    @property
    def last(self) -> int:
        return self.spans[-1][1].time - 1


class Reads:
    """Holds what transactions saw against what there was."""

    def __init__(self, versions: Versions, found: Findings) -> None:
        self._versions = versions
        self._found = found

    def moments(self, did: Did) -> Moments | None:
        """When the tables were as it saw them; None, and said why, if never."""
        first = START
        end = END
        if did.time is not None and did.counts and did.writes:
            end = Limit(did.time, did.name, "its own commit")
        apart: list[tuple[Span, ...]] = []
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
        spans: tuple[Span, ...] = ((first, end),)
        for others in apart:
            both = _common(spans, others)
            if not both:
                self._fuzzy(did, spans[-1][0], others[0][1])
                return None
            spans = both
        return Moments(spans)

    def _fuzzy(self, did: Did, first: Limit, end: Limit) -> None:
        fractured = first.by and first.by == end.by and first.what != end.what
        kind = "fractured read" if fractured else "fuzzy read"
        self._found.say(
            kind,
            f"{did.name} read no one moment: it saw {first.what} of {first.by} (at {first.time}), "
            f"and not {end.what} of {end.by} (at {end.time})",
            *(did.name, first.by, end.by),
        )

    def _spans_of(
        self, did: Did, saw: Saw, own: Mapping[tuple[str, Key], int | None]
    ) -> Iterator[tuple[Span, ...]]:
        """For each key that was asked for, the times at which it was as seen."""
        asked = saw.asked
        seen: dict[Key, Row] = {}
        for row in saw.rows:
            if row.key in seen:
                self._found.say(
                    "doubled row", f"{did.name} saw {asked.table} {row.key} twice", did.name
                )
            if not asked.has(row.key) or asked.of((row.value, row.by)) is None:
                self._found.say(
                    "wrong row", f"{did.name} asked for {asked} and saw {row}", did.name
                )
            seen[row.key] = row
        for key in sorted(
            {*self._versions.keys_in(asked), *seen, *(k for t, k in own if t == asked.table)}
        ):
            row_seen = seen.get(key)
            if not asked.has(key):
                continue
            if (asked.table, key) in own:
                value = own[asked.table, key]
                wanted = asked.of(None if value is None else (value, did.name))
                if wanted != (None if row_seen is None else (row_seen.value, row_seen.by)):
                    self._found.say(
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
        writer = self._versions.all.get(row.by)
        if writer is None:
            self._found.say("read from nowhere", f"{where}, and there is no {row.by}", did.name)
        elif writer.outcome == "aborted":
            self._found.say("aborted read", f"{where} of {row.by}, which aborted", did.name, row.by)
        elif not writer.counts:
            self._found.say(
                "dirty read",
                f"{where} of {row.by}, of which nobody knows that it committed",
                *(did.name, row.by),
            )
        elif writer.writes.get((table, row.key), row.value) != row.value:
            self._found.say(
                "dirty read",
                f"{where}, which {row.by} replaced by {writer.writes[table, row.key]} itself",
                *(did.name, row.by),
            )
        elif (table, row.key) not in writer.writes:
            self._found.say("read from nowhere", f"{where} of {row.by}, which wrote none", did.name)
        elif did.end is not None and writer.begin > did.end:
            self._found.say(
                "dirty read", f"{where} of {row.by}, which began later", did.name, row.by
            )
        else:
            return True
        return False

    def _present(self, table: str, row: Row) -> Span:
        versions = self._versions.of(table, row.key)
        position = next(i for i, version in enumerate(versions) if version.by == row.by)
        return self._span(table, row.key, position, position + 1)

    def _absent(self, asked: Predicate, key: Key) -> tuple[Span, ...]:
        """When the read would not have seen the key, as spans."""
        versions = self._versions.of(asked.table, key)
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

    def _span(self, table: str, key: Key, first: int, end: int) -> Span:
        versions = self._versions.of(table, key)
        limits = [
            Limit(versions[at].time, versions[at].by, f"{table} {key}")
            if 0 <= at < len(versions)
            else edge
            for at, edge in ((first, START), (end, END))
        ]
        return limits[0], limits[1]


def _common(some: Sequence[Span], others: Sequence[Span]) -> tuple[Span, ...]:
    found = []
    for one in some:
        for other in others:
            first = max(one[0], other[0], key=lambda limit: limit.time)
            end = min(one[1], other[1], key=lambda limit: limit.time)
            if first.time < end.time:
                found.append((first, end))
    return tuple(found)
