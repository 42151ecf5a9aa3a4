"""What to read and what to compact: pure plans over a data shard's state.

Every function here may raise `PagesNeeded`; `Machine.run` loads the pages and calls it again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from strandline.state.commands import Compact, Output
from strandline.state.model import EVERYTHING, Entry, Interval, Key, Leaf, Reference
from strandline.state.replay import State

__all__ = [
    "STRATEGIES",
    "CompactionJob",
    "ReadTask",
    "basic",
    "full",
    "leaf_at",
    "leaf_bounds",
    "leaf_number",
    "level_zero",
    "plan_compaction",
    "plan_descent",
    "plan_read",
    "plan_small_merge",
    "size_ratio",
    "united",
]


# --- reading

_Placed = tuple[Interval, Reference | Entry]


@dataclass(frozen=True, slots=True)
class ReadTask:
    """A piece of a read that nothing outside of it can change: sources whose keys may meet."""

    leaf: Leaf
    intervals: tuple[Interval, ...]
    """What is asked for inside the leaf; ascending, disjoint."""
    references: tuple[Reference, ...]
    entries: tuple[Entry, ...]


def plan_read(
    state: State, entries: Sequence[Entry], intervals: Sequence[Interval] | None, as_of: int
) -> list[ReadTask]:
    """The tasks that together give all rows in `intervals` (None: all) at `as_of`, by key.

    `entries` are the overlay: committed, not applied in `state`, at times up to `as_of`. Sources
    of different tasks share no key; those of one task may.
    """
    wanted = [EVERYTHING] if intervals is None else united(intervals)
    above = [r for r in level_zero(state) if r.matters_at(as_of)]
    tasks: list[ReadTask] = []
    for leaf, inside in _by_leaf(state, wanted):
        references = [r for r in _of_leaf(state, leaf) if r.matters_at(as_of)]
        sources: list[_Placed] = [
            *((r.place, r) for r in references),
            *((place, r) for r in above if (place := r.place.intersect(leaf.interval))),
            *((place, e) for e in entries if (place := _place(e).intersect(leaf.interval))),
        ]
        touched = [
            (place, source)
            for place, source in sources
            if any(place.intersect(interval) for interval in inside)
        ]
        tasks += [_task(leaf, inside, cluster) for cluster in _clusters(touched)]
    return tasks


def united(intervals: Iterable[Interval]) -> list[Interval]:
    """The same keys as ascending intervals that do not touch."""
    result: list[Interval] = []
    for interval in sorted(intervals, key=lambda interval: interval.lower):
        if interval.upper is not None and interval.upper <= interval.lower:
            continue
        if result and (result[-1].upper is None or interval.lower <= result[-1].upper):
            last = result.pop()
            open_end = last.upper is None or interval.upper is None
            upper = None if open_end else max(last.upper or b"", interval.upper or b"")
            result.append(Interval(last.lower, upper))
        else:
            result.append(interval)
    return result


def level_zero(state: State) -> list[Reference]:
    """The references that are not assigned to a leaf yet, in the order they came."""
    return [reference for _, reference in state.references.prefix((0,))]


def _of_leaf(state: State, leaf: Leaf) -> list[Reference]:
    return [reference for _, reference in state.references.prefix((1, leaf.interval.lower))]


def _by_leaf(
    state: State, intervals: Sequence[Interval]
) -> Iterator[tuple[Leaf, tuple[Interval, ...]]]:
    """The leaves that the intervals touch, ascending, with what they touch of each."""
    last: Leaf | None = None
    inside: list[Interval] = []
    for interval in intervals:
        for leaf in _leaves_at(state, interval):
            if last is not None and leaf.id != last.id:
                yield last, tuple(inside)
                inside = []
            last = leaf
            both = leaf.interval.intersect(interval)
            if both is not None:
                inside.append(both)
    if last is not None:
        yield last, tuple(inside)


def _leaves_at(state: State, interval: Interval) -> Iterator[Leaf]:
    first = state.leaves.floor((interval.lower,))
    if first is None:
        return
    yield first[1]
    after = first[1].interval.upper
    if after is None or (interval.upper is not None and interval.upper <= after):
        return
    end = None if interval.upper is None else (interval.upper,)
    for _, leaf in state.leaves.range((after,), end):
        yield leaf


def _place(entry: Entry) -> Interval:
    return Interval(entry.batch.lower, entry.batch.upper + b"\0")


def _clusters(sources: list[_Placed]) -> Iterator[list[_Placed]]:
    """Groups such that places of different groups do not meet, ascending."""
    cluster: list[_Placed] = []
    end: bytes | None = b""
    for placed in sorted(sources, key=lambda s: s[0].lower):
        place = placed[0]
        if cluster and end is not None and place.lower >= end:
            yield cluster
            cluster = []
            end = b""
        cluster.append(placed)
        end = None if end is None or place.upper is None else max(end, place.upper)
    if cluster:
        yield cluster


def _task(leaf: Leaf, inside: tuple[Interval, ...], cluster: list[_Placed]) -> ReadTask:
    return ReadTask(
        leaf,
        inside,
        tuple(source for _, source in cluster if isinstance(source, Reference)),
        tuple(source for _, source in cluster if isinstance(source, Entry)),
    )


# --- compaction


@dataclass(frozen=True, slots=True)
class CompactionJob:
    """References of one leaf (None: of L0) that one merge replaces."""

    leaf: Leaf | None
    inputs: tuple[tuple[Key, Reference], ...]
    whole: bool
    """Whether nothing outside the inputs can hold an older row of one of their keys."""
    forward_to: int
    """F: what nobody can read apart any more at or before it is merged; -1: nothing is."""

    @property
    def rows(self) -> int:
        """Rows in the inputs, at most."""
        return sum(reference.part.rows for _, reference in self.inputs)

    @property
    def size(self) -> int:
        """Bytes of the inputs' parts, at most."""
        return sum(reference.part.size for _, reference in self.inputs)


Sized = Sequence[tuple[float, Key]]


def size_ratio(sizes: Sized, *, ratio: float = 3, parts_max: int = 11) -> list[list[Key]]:
    """Groups in which the largest is at most a `ratio`-th of the rest together (source: Sleeper).

    The largest group that qualifies is taken, smallest parts first; longer ones are cut to
    `parts_max`. So a row is rewritten a logarithmic number of times.
    """
    rest = sorted(sizes)
    while len(rest) > 1 and ratio * rest[-1][0] > sum(size for size, _ in rest[:-1]):
        rest.pop()
    if len(rest) < 2:
        return []
    return _cut([key for _, key in rest], parts_max)


def basic(sizes: Sized, *, parts_max: int = 11) -> list[list[Key]]:
    """Groups of exactly `parts_max`, smallest parts first (source: Sleeper)."""
    keys = [key for _, key in sorted(sizes)]
    groups = _cut(keys, parts_max)
    return [group for group in groups if len(group) == parts_max]


def full(sizes: Sized, **_: int) -> list[list[Key]]:
    """Everything in one group, when there is more than one part."""
    return [[key for _, key in sizes]] if len(sizes) > 1 else []


def _cut(keys: list[Key], parts_max: int) -> list[list[Key]]:
    groups = [keys[start : start + parts_max] for start in range(0, len(keys), parts_max)]
    return [group for group in groups if len(group) > 1]


_STRATEGIES: dict[str, Callable[..., list[list[Key]]]] = {
    "size-ratio": size_ratio,
    "basic": basic,
    "full": full,
}
STRATEGIES = tuple(sorted(_STRATEGIES))


def plan_compaction(state: State, strategy: str, *, parts_max: int = 11) -> list[CompactionJob]:
    """The merges that the strategy wants in each leaf. L0 is `plan_descent`'s matter."""
    above = level_zero(state)
    jobs: list[CompactionJob] = []
    since = state.meta.since or 0
    for _, leaf in state.leaves.range():
        inside = list(state.references.prefix((1, leaf.interval.lower)))
        if len(inside) < 2:
            continue
        sizes = [(_size(state, reference), key) for key, reference in inside]
        for group in _STRATEGIES[strategy](sizes, parts_max=parts_max):
            chosen = set(group)
            inputs = tuple((key, ref) for key, ref in inside if key in chosen)
            others = [*above, *(ref for key, ref in inside if key not in chosen)]
            jobs.append(CompactionJob(leaf, inputs, _whole(inputs, others), since))
    return jobs


def _size(state: State, reference: Reference) -> float:
    """Bytes behind the reference; a part that several share is divided evenly."""
    use = state.parts.get((reference.part.key,))
    return reference.part.size / max(1, use.references if use else 1)


def _whole(inputs: Sequence[tuple[Key, Reference]], others: Sequence[Reference]) -> bool:
    places = [reference.place for _, reference in inputs]
    newest = max(reference.time_max for _, reference in inputs)
    return not any(
        other.time_min <= newest and other.place.intersect(place)
        for other in others
        for place in places
    )


def plan_small_merge(
    state: State, lower: bytes | None, *, parts_min: int, size_max: int, rows_max: int
) -> CompactionJob | None:
    """A merge of small parts within the leaf at `lower` (None: L0), when it has many of them.

    A part of `rows_max` rows, where a merge begins the next one, is as large as parts get, in
    however few bytes: merging such parts would give as many of them again, and never end.
    """
    leaf = None if lower is None else state.leaves.get((lower,))
    if lower is not None and leaf is None:
        return None
    inside = list(state.references.prefix((0,) if lower is None else (1, lower)))
    small = [
        (key, ref) for key, ref in inside if ref.part.size <= size_max and ref.part.rows < rows_max
    ]
    if len(small) < parts_min:
        return None
    sizes = [(_size(state, ref), key) for key, ref in small]
    groups = size_ratio(sizes, ratio=1.5, parts_max=4 * parts_min)
    if not groups:
        return None
    chosen = set(groups[0])
    inputs = tuple((key, ref) for key, ref in small if key in chosen)
    return CompactionJob(leaf, inputs, whole=False, forward_to=-1)


def plan_descent(state: State, *, outputs_max: int = 1_000) -> Iterator[Compact]:
    """Moves every L0 reference into the leaves that its part touches: metadata only."""
    inputs: list[Key] = []
    outputs: list[Output] = []
    for key, reference in state.references.prefix((0,)):
        inputs.append(key)
        for leaf in _leaves_at(state, reference.place):
            interval = leaf.interval.intersect(reference.interval)
            if interval is not None and interval.intersect(reference.part.span) is not None:
                outputs.append(
                    Output(
                        leaf.id,
                        leaf.interval.lower,
                        reference.part,
                        reference.time,
                        interval,
                        moved=True,
                    )
                )
        if len(outputs) >= outputs_max:
            yield Compact(tuple(inputs), tuple(outputs))
            inputs, outputs = [], []
    if inputs:
        yield Compact(tuple(inputs), tuple(outputs))


def leaf_at(state: State, key: bytes) -> Leaf:
    """The leaf that an encoded row key falls in."""
    found = state.leaves.floor((key,))
    if found is None:
        raise AssertionError("the leaves do not cover the key space")
    return found[1]


def leaf_bounds(state: State) -> list[bytes]:
    """The lower bounds of all leaves but the first, ascending: where a sorted stream is cut."""
    return [leaf.interval.lower for _, leaf in state.leaves.range()][1:]


def leaf_number(bounds: Sequence[bytes], key: bytes) -> int:
    """Which leaf, counted from 0 along `leaf_bounds`, a key falls in."""
    return bisect_right(bounds, key)
