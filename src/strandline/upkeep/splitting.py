"""Splits leaves that have grown too large, at the medians of their keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from strandline.env import Deadline
from strandline.parts.keys import KeyCodec, separating
from strandline.parts.typed import typed
from strandline.state.commands import Split
from strandline.state.model import Leaf, Reference, TableVersion
from strandline.state.plan import level_zero
from strandline.state.replay import State
from strandline.txn.apply import apply_table
from strandline.txn.handle import Handle
from strandline.txn.properties import property_of
from strandline.txn.store import Store

__all__ = ["SplitReport", "choose_points", "split"]

Weighed = tuple[bytes, int]
"""An encoded row key, and how many rows begin there and go on to the next."""


@dataclass(frozen=True, slots=True)
class SplitReport:
    """What a round of splitting did to one table."""

    table: str
    leaves_before: int
    leaves_after: int
    too_large: int
    """Leaves that stay above `split_rows` because all their rows have one row key."""


def split(handle: Handle, names: Sequence[str] | None, deadline: Deadline) -> list[SplitReport]:
    """Splits the leaves of the named tables (None: of all that are online) that are too large."""
    store = handle.store
    store.check_writable()
    versions = store.txns.chosen(store.txns.look(deadline), names)
    return [_split_table(store, version, deadline) for version in versions]


def _split_table(store: Store, version: TableVersion, deadline: Deadline) -> SplitReport:
    # Entries have no place in a leaf yet, and count for nothing.
    apply_table(store, version.table, deadline)
    machine = store.data(version.table)
    look = machine.look(deadline)
    leaves = look.ask(_leaves)
    rows_max = int(property_of(version, "split_rows"))
    codec = typed(version)[1]
    too_large = made = 0
    for leaf, references in leaves:
        if sum(reference.part.rows for reference in references) <= rows_max:
            continue
        weighed = _weighed(store, leaf, references, codec, deadline)
        points = choose_points(weighed, rows_max)
        inside = [p for p in points if p > leaf.interval.lower]
        too_large += not inside and sum(rows for _, rows in weighed) > rows_max
        if inside:
            # Refused if the leaf is one no longer: then somebody else has split it.
            command = Split(leaf.id, leaf.interval.lower, tuple(inside))
            done = machine.submit(command, deadline)
            made += len(inside) if done else 0
    return SplitReport(version.name, len(leaves), len(leaves) + made, too_large)


def _leaves(state: State) -> list[tuple[Leaf, list[Reference]]]:
    """Every leaf with the references that have rows in it, those of L0 included.

    History counts for nothing: it is over soon, and a leaf is split for what is live.
    """
    above = level_zero(state)
    return [
        (
            leaf,
            [
                *_live(state, leaf),
                *(r for r in above if r.place.intersect(leaf.interval)),
            ],
        )
        for _, leaf in state.leaves.range()
    ]


def _live(state: State, leaf: Leaf) -> list[Reference]:
    placed = state.references.prefix((1, leaf.interval.lower))
    return [reference for _, reference in placed if reference.reads_before is None]


def _weighed(
    store: Store,
    leaf: Leaf,
    references: Iterable[Reference],
    codec: KeyCodec,
    deadline: Deadline,
) -> list[Weighed]:
    """The row keys at the quantiles of the leaf's parts, ascending, with the rows between them."""
    found: list[Weighed] = []
    for reference in references:
        part = reference.part
        quantiles = store.reader.quantiles(part, deadline)
        ends = [*(position for _, position in quantiles[1:]), part.rows]
        for (key, position), end in zip(quantiles, ends, strict=True):
            if reference.interval.contains(key) and leaf.interval.contains(key):
                row_key = codec.encode(codec.decode(key)[: codec.row_key_count])
                found.append((row_key, end - position))
    return sorted(found)


def choose_points(weighed: Sequence[Weighed], rows_max: int) -> list[bytes]:
    """Where to split so that no piece has more than `rows_max` rows: at medians, again and again.

    `weighed` is ascending. A piece whose rows all have one row key stays as it is.
    """
    total = sum(rows for _, rows in weighed)
    if total <= rows_max:
        return []
    at = _middle(weighed, total)
    if at is None:
        return []
    left, right = weighed[:at], weighed[at:]
    point = separating(left[-1][0], right[0][0])
    return [*choose_points(left, rows_max), point, *choose_points(right, rows_max)]


def _middle(weighed: Sequence[Weighed], total: int) -> int | None:
    """Where a new row key begins nearest to the middle row; None if there is only one row key."""
    below = 0
    best: tuple[int, int] | None = None
    for at, ((key, rows), (following, _)) in enumerate(pairwise(weighed), 1):
        below += rows
        off = abs(2 * below - total)
        if key != following and (best is None or off < best[0]):
            best = (off, at)
    return None if best is None else best[1]
