"""What to read and what to compact: pure plans over a data shard's state.

Every function here may raise `PagesNeeded`; `Look.ask` loads the pages and calls it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from strandline.state.commands import Compact, Output
from strandline.state.model import EVERYTHING, Entry, Interval, Key, Leaf, Part, Reference
from strandline.state.replay import State

__all__ = [
    "STRATEGIES",
    "CompactionJob",
    "ReadTask",
    "basic",
    "by_leaf",
    "full",
    "in_leaf",
    "leaf_at",
    "leaf_bounds",
    "level_zero",
    "markers_from",
    "plan_compaction",
    "plan_descent",
    "plan_read",
    "plan_sinking",
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

    def own(self, intervals: Iterable[Interval]) -> tuple[Interval, ...]:
        """The intervals, narrowed to the keys that this task's sources have.

        Whoever plans a task anew asks for these: all that is asked for inside the leaf would give
        the rows of the leaf's other tasks, too.
        """
        sources: tuple[Reference | Entry, ...] = (*self.references, *self.entries)
        places = [source.place for source in sources]
        uppers = [place.upper for place in places if place.upper is not None]
        upper = max(uppers) if len(uppers) == len(places) else None
        hull = Interval(min(place.lower for place in places), upper)
        return tuple(both for interval in intervals if (both := interval.intersect(hull)))


def plan_read(
    state: State,
    entries: Sequence[Entry],
    intervals: Sequence[Interval] | None,
    as_of: int,
    *,
    raw: bool = False,
    may_hold: Callable[[Part], bool] | None = None,
    shadowed: bool = False,
) -> list[ReadTask]:
    """The tasks that together give all rows in `intervals` (None: all) at `as_of`, by key.

    `entries` are the overlay: committed, not applied in `state`, at times up to `as_of`. Sources
    of different tasks share no key; those of one task may. `raw`: with all that ever was stored
    up to `as_of` and is there still. `may_hold` says of a part whether any row that is asked for
    may be in it; parts without one are left out. `shadowed`: nothing that is applied counts.
    """
    wanted = [EVERYTHING] if intervals is None else united(intervals)
    if may_hold is not None:
        entries = [left for entry in entries if (left := _holding(entry, may_hold))]

    def matters(reference: Reference) -> bool:
        if may_hold is not None and not may_hold(reference.part):
            return False
        return reference.time_min <= as_of if raw else reference.matters_at(as_of)

    applied = [] if shadowed else level_zero(state)
    above: list[Reference | Entry] = [*filter(matters, applied), *entries]
    tasks: list[ReadTask] = []
    for leaf, inside in by_leaf(state, wanted):
        references = [] if shadowed else [r for r in in_leaf(state, leaf) if matters(r)]
        sources: list[_Placed] = [
            *((r.place, r) for r in references),
            *((place, s) for s in above if (place := s.place.intersect(leaf.interval))),
        ]
        touched = [
            (place, source)
            for place, source in sources
            if any(place.intersect(interval) for interval in inside)
        ]
        tasks += [_task(leaf, inside, cluster) for cluster in _clusters(touched)]
    return tasks


def _holding(entry: Entry, may_hold: Callable[[Part], bool]) -> Entry | None:
    """The entry with those of its parts that may hold what is asked for, None without any."""
    batch = entry.batch
    parts = tuple(part for part in batch.parts if may_hold(part))
    if len(parts) == len(batch.parts):
        return entry
    if not parts and not batch.inline:
        return None
    rows = batch.rows - sum(part.rows for part in batch.parts) + sum(part.rows for part in parts)
    return replace(entry, batch=replace(batch, parts=parts, rows=rows))


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


def in_leaf(state: State, leaf: Leaf) -> list[Reference]:
    """The references that are assigned to that leaf."""
    return [reference for _, reference in state.references.prefix((1, leaf.interval.lower))]


def by_leaf(
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
    entries = [source for _, source in cluster if isinstance(source, Entry)]
    # In the order of commits: of two rows of one key at one time the later one counts.
    entries.sort(key=lambda entry: (entry.time, entry.ordinal))
    references = tuple(source for _, source in cluster if isinstance(source, Reference))
    return ReadTask(leaf, inside, references, tuple(entries))


# --- compaction


@dataclass(frozen=True, slots=True)
class CompactionJob:
    """References of one leaf (None: of L0) that one merge replaces."""

    leaf: Leaf | None
    inputs: tuple[tuple[Key, Reference], ...]
    since: int
    """Nobody reads as of a time before it: what cannot be told apart from then on is merged, and
    what was over by then is left out. -1: nothing is."""
    split_at: int | None = None
    """F: what is live then, what has ended by then, and what is newer are kept apart. None: they
    are not."""
    markers_from: int | None = None
    """Markers at this time or later may go, once what they hide among the inputs has an end: what
    else is there of their keys, they do not hide. None: none may."""

    @property
    def is_over(self) -> bool:
        """Whether no read there can be needs any of the inputs: they have no successor."""
        return all(reference.is_over(self.since) for _, reference in self.inputs)

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


def plan_compaction(
    state: State, strategy: str, *, parts_max: int = 11, keyed: bool = False
) -> list[CompactionJob]:
    """The merges that the strategy wants in each leaf. L0 is `plan_descent`'s matter.

    History is merged with history, and the rest with the rest, except by "full", which takes all.
    History that no read needs any more goes in a job of its own. `keyed`: the table is, so that a
    part by itself may have rows that are history.
    """
    above = level_zero(state)
    jobs: list[CompactionJob] = []
    since = state.meta.since or 0
    for _, leaf in state.leaves.range():
        placed = list(state.references.prefix((1, leaf.interval.lower)))
        over = tuple((key, ref) for key, ref in placed if ref.is_over(since))
        if over:
            jobs.append(CompactionJob(leaf, over, since))
        inside = [(key, ref) for key, ref in placed if not ref.is_over(since)]
        for group in _groups(state, inside, strategy, parts_max, keyed=keyed):
            chosen = set(group)
            inputs = tuple((key, ref) for key, ref in inside if key in chosen)
            others = [*above, *(ref for key, ref in inside if key not in chosen)]
            split_at = _split_at(state, inputs)
            jobs.append(CompactionJob(leaf, inputs, since, split_at, markers_from(inputs, others)))
    return jobs


_Inside = Sequence[tuple[Key, Reference]]


def _groups(
    state: State, inside: _Inside, strategy: str, parts_max: int, *, keyed: bool
) -> list[list[Key]]:
    """What is to be merged with what in one leaf."""

    def grouped(references: _Inside) -> list[list[Key]]:
        sizes = [(_size(state, reference), key) for key, reference in references]
        return _STRATEGIES[strategy](sizes, parts_max=parts_max)

    history = [(key, ref) for key, ref in inside if ref.reads_before is not None]
    others = [(key, ref) for key, ref in inside if ref.reads_before is None]
    if strategy != "full":
        return [*grouped(others), *grouped(history)]
    # One part of what is live, and one run of history, is what a merge of both would give.
    clean = all(r.part.distinct if keyed else not r.part.has_diff for _, r in others)
    settled = len(others) < 2 and clean and _are_apart([r.place for _, r in history])
    return [] if settled else [[key for key, _ in inside]]


def _are_apart(places: Iterable[Interval]) -> bool:
    """Whether no two of them share a key."""
    return all(
        one.upper is not None and one.upper <= following.lower
        for one, following in pairwise(sorted(places, key=lambda place: place.lower))
    )


def _split_at(state: State, inputs: _Inside) -> int:
    """F: the latest time there is, of which no commit is unapplied; of history, its own."""
    befores = [reference.reads_before for _, reference in inputs]
    known = [before for before in befores if before is not None]
    if len(known) == len(inputs):
        return max(known)
    upper = state.meta.upper
    # ◆ Never beyond what is applied: a commit that comes below F would end rows too late.
    return max(reference.time_max for _, reference in inputs) if upper is None else upper - 1


def _size(state: State, reference: Reference) -> float:
    """Bytes behind the reference; a part that several share is divided evenly."""
    return reference.part.size * _share(state, reference)


def _share(state: State, reference: Reference) -> float:
    """Which fraction of its part the reference stands for, if all that share it have as much."""
    use = state.parts.get((reference.part.key,))
    return 1 / max(1, use.references if use else 1)


def markers_from(inputs: _Inside, others: Iterable[Reference]) -> int | None:
    """From which time on markers of the inputs hide nothing that is outside of them.

    SUBTLE: that is not only what is live outside. A part of history has rows whose end, as it says,
    is later than that of a marker here: their merge did not see it. Only what has ended by the
    time of the marker for certain is not hidden by it.
    """
    places = [reference.place for _, reference in inputs]
    newest = max(reference.time_max for _, reference in inputs)
    least = 0
    for other in others:
        if other.time_min > newest or not any(other.place.intersect(place) for place in places):
            continue
        if other.reads_before is None:
            return None
        least = max(least, other.reads_before)
    return least


def plan_small_merge(
    state: State, lower: bytes | None, *, parts_min: int, size_max: int, rows_max: int
) -> CompactionJob | None:
    """A merge of small parts within the leaf at `lower` (None: L0), when it has many of them.

    What counts is the share that a reference has of its part. A part of `rows_max` rows, where a
    merge begins the next one, is as large as parts get, in however few bytes: merging such parts
    would give as many of them again, and never end. The smallest are merged first, of at most
    `4 * size_max` bytes together: a bite.
    """
    leaf = None if lower is None else state.leaves.get((lower,))
    if lower is not None and leaf is None:
        return None
    inside = list(state.references.prefix((0,) if lower is None else (1, lower)))
    if len(inside) < parts_min:
        return None
    sizes: dict[Key, float] = {}
    for key, ref in inside:
        share = _share(state, ref)
        size, rows = ref.part.size * share, ref.part.rows * share
        if size <= size_max and rows < rows_max and ref.reads_before is None:
            sizes[key] = size
    if len(sizes) < parts_min:
        return None
    ordered = [(size, key) for key, size in sizes.items()]
    groups = size_ratio(ordered, ratio=1.5, parts_max=4 * parts_min)
    if not groups:
        return None
    reach = accumulate(sizes[key] for key in groups[0])
    chosen = {
        key
        for number, (key, total) in enumerate(zip(groups[0], reach, strict=True))
        if number < 2 or total <= 4 * size_max
    }
    inputs = tuple((key, ref) for key, ref in inside if key in chosen)
    return CompactionJob(leaf, inputs, since=-1)


def plan_sinking(
    state: State, *, leaf_bytes_min: int, length_max: int, outputs_max: int = 1_000
) -> Compact | None:
    """What of L0 goes down into its leaves now, oldest first: metadata only; None: nothing has to.

    What brings each leaf that it touches `leaf_bytes_min` bytes on average is worth a reference
    there. What brings less waits for others that it is merged with, unless L0 is longer than
    `length_max`. About `outputs_max` references are made at most.
    """
    above = list(state.references.prefix((0,)))
    due = (
        (key, reference)
        for number, (key, reference) in enumerate(above)
        if number < len(above) - length_max
        or reference.part.size >= leaf_bytes_min * _touched(state, reference.place)
    )
    return next(_sinking(state, due, outputs_max), None)


def _touched(state: State, place: Interval) -> int:
    """How many leaves the keys are in."""
    upper = None if place.upper is None else (place.upper,)
    return 1 + state.leaves.count((place.lower + b"\0",), upper)


def plan_descent(state: State, *, outputs_max: int = 1_000) -> Iterator[Compact]:
    """Moves every L0 reference into the leaves that its part touches: metadata only."""
    return _sinking(state, state.references.prefix((0,)), outputs_max)


def _sinking(
    state: State, references: Iterable[tuple[Key, Reference]], outputs_max: int
) -> Iterator[Compact]:
    inputs: list[Key] = []
    outputs: list[Output] = []
    for key, reference in references:
        inputs.append(key)
        outputs += _sunk(state, reference)
        if len(outputs) >= outputs_max:
            yield Compact(tuple(inputs), tuple(outputs))
            inputs, outputs = [], []
    if inputs:
        yield Compact(tuple(inputs), tuple(outputs))


def _sunk(state: State, reference: Reference) -> Iterator[Output]:
    """A reference of L0 in the leaves that its part touches."""
    for leaf in _leaves_at(state, reference.place):
        interval = leaf.interval.intersect(reference.interval)
        if interval is not None and interval.intersect(reference.part.span) is not None:
            yield Output(
                leaf.id,
                leaf.interval.lower,
                reference.part,
                reference.time,
                interval,
                moved=True,
                reads_before=reference.reads_before,
                rows_from=reference.rows_from,
            )


def leaf_at(state: State, key: bytes) -> Leaf:
    """The leaf that an encoded row key falls in."""
    found = state.leaves.floor((key,))
    if found is None:
        raise AssertionError("the leaves do not cover the key space")
    return found[1]


def leaf_bounds(state: State) -> list[bytes]:
    """The lower bounds of all leaves but the first, ascending: where a sorted stream is cut."""
    return [leaf.interval.lower for _, leaf in state.leaves.range()][1:]
