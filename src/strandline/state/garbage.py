"""What a vacuum may do to a shard: a pure plan. Deletion is guilty until proven safe.

An object that died at seqno X is deleted when nobody can need it any more: every hold is at or
beyond X, and a mark says that X was known a whole deletion delay ago, by the location's own clock.
A part waits for more: a rollup that was read back is at or beyond X, so that the newest state can
be had without it even from Blob alone, and the record of its death is in a receipt. A rollup or a
page needs neither: it dies only when no rollup that is kept names it, and states are opened from
those that are kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from strandline.state.model import Dead, Diff, Key, Receipt, Reference, Rollup
from strandline.state.replay import State

__all__ = [
    "VacuumPlan",
    "doubtful_receipts",
    "is_part",
    "named_parts",
    "parts_there",
    "plan_vacuum",
    "touches_references",
]

_NOTHING = -1

_TOMBSTONE_RECORDS = 8
"""Records of a finished shard after which one more rollup makes its log shorter."""


@dataclass(frozen=True, slots=True)
class VacuumPlan:
    """What one run may do, as of one state and one look at the location's clock."""

    seqno: int
    """The state's."""
    delete: tuple[tuple[Key, Dead], ...]
    """Dead objects that may be deleted."""
    waits: tuple[tuple[Dead, str], ...]
    """The others, each with what it waits for: "rollup", "hold", "delay" or "receipt"."""
    mark: bool
    """Whether a mark of this moment is of use to a later run."""
    roll_up: bool
    """Whether a rollup is missing that would let something be deleted, or a finished shard's log
    go."""
    stale_marks: tuple[int, ...]
    """Marks that a later one makes needless."""
    retire: tuple[Rollup, ...]
    """Rollups that are not needed any more."""
    keep: tuple[Rollup, ...]
    """All others, ascending."""
    truncate_before: int
    """Records before this seqno are not needed any more, once their receipts exist and what is to
    be retired is."""
    receipts_through: int
    """Up to this seqno receipts have to exist, for the truncation and for what is dead."""
    receipts_from: int
    """The first seqno that no receipt covers."""

    @property
    def waiting(self) -> Mapping[str, int]:
        """How many dead objects stay, by what they wait for."""
        return Counter(reason for _, reason in self.waits)


def plan_vacuum(state: State, now: int, delay: int) -> VacuumPlan:
    """What may be done at `now`, by the location's clock, with a deletion delay of `delay`; µs."""
    rollups = [rollup for _, rollup in state.rollups.range()]
    verified = [rollup.seqno for rollup in rollups if rollup.verified]
    held = _held(state)
    # Opening falls back to the second newest if the newest is damaged, and replays from there.
    base = min(verified[-2], held) if len(verified) > 1 else 0
    needed = max((seqno for seqno in verified if seqno <= base), default=0)
    retire = tuple(rollup for rollup in rollups if rollup.seqno < needed)
    marks = [(key[0], mark.at) for key, mark in state.marks.range()]
    mature = [seqno for seqno, at in marks if now - at >= delay]
    covered = max((receipt.last for _, receipt in state.receipts.range()), default=0)
    known = max(mature, default=_NOTHING)
    rolled_up = verified[-1] if verified else _NOTHING
    passed = _Passed(rolled_up, held, known, covered)
    delete: list[tuple[Key, Dead]] = []
    waiting: list[tuple[Dead, str]] = []
    for key, dead in state.dead.range():
        reason = passed.waits_for(dead)
        if reason is None:
            delete.append((key, dead))
        else:
            waiting.append((dead, reason))
    wanted = max((dead.dead for dead, reason in waiting if reason == "receipt"), default=0)
    latest = rollups[-1].seqno if rollups else 0
    stuck = any(latest < key[0] <= known and is_part(key[1]) for key, _ in state.dead.range())
    finished = state.meta.upper is None and state.meta.since is None
    # A mark that lies ahead is of a clock that was set back since: it is replaced.
    past = [(seqno, at) for seqno, at in marks if at <= now]
    newest = max((at for _, at in past), default=None)
    marked = max((seqno for seqno, _ in past), default=0)
    unmarked = any(key[0] > marked for key, _ in state.dead.range())
    return VacuumPlan(
        seqno=state.seqno,
        delete=tuple(delete),
        waits=tuple(waiting),
        roll_up=stuck or (finished and state.seqno - latest > _TOMBSTONE_RECORDS),
        mark=unmarked and (newest is None or now - newest >= delay // 4),
        stale_marks=tuple(seqno for seqno, at in marks if seqno < known or at > now),
        retire=retire,
        keep=tuple(rollup for rollup in rollups if rollup.seqno >= needed),
        truncate_before=needed,
        receipts_through=max(needed - 1, wanted, 0),
        receipts_from=covered + 1,
    )


@dataclass(frozen=True, slots=True)
class _Passed:
    """Up to which seqno what died has passed each of the things that it waits for."""

    rollup: int
    hold: int
    delay: int
    receipt: int

    def waits_for(self, dead: Dead) -> str | None:
        """The first thing that a dead object waits for; None: nothing, it may go."""
        part = is_part(dead.key)
        # What was written for nothing was never referenced: no record tells of it but its death.
        referenced = part and dead.born < dead.dead
        if part and dead.dead > self.rollup:
            return "rollup"
        if dead.dead > self.hold:
            return "hold"
        if dead.dead > self.delay:
            return "delay"
        return "receipt" if referenced and dead.dead > self.receipt else None


def _held(state: State) -> int:
    """What died up to this seqno is held by nobody."""
    seqnos = [hold.seqno for _, hold in state.holds.range() if hold.seqno is not None]
    return min(seqnos, default=state.seqno)


def is_part(key: str) -> bool:
    """Whether that is the object key of a part."""
    return "/part/" in key


def touches_references(diffs: tuple[Diff, ...]) -> bool:
    """Whether a record changed what belongs to the table: then it needs a receipt."""
    return any(diff.collection == "references" for diff in diffs)


def doubtful_receipts(state: State) -> list[tuple[int, Receipt]]:
    """The receipts, by first seqno, of records in which no part that is still there began or died.

    They go if such a part is not named otherwise either (`parts_there`): a record that took one of
    several references to it away is what keeps a rebuild from counting those rows twice. Looks at
    every part and dead object.
    """
    seqnos = {use.born for _, use in state.parts.range()}
    for _, dead in state.dead.range():
        if is_part(dead.key):
            seqnos |= {dead.born, dead.dead}
    there = sorted(seqnos)
    last = max((key[0] for key, _ in state.receipts.range()), default=0)
    # The last one stays: it says from where on there is none.
    return [
        (first, receipt)
        for (first,), receipt in state.receipts.range()
        if first != last and bisect_left(there, first) == bisect_right(there, receipt.last)
    ]


def named_parts(diffs: Iterable[Diff]) -> set[str]:
    """The keys of the parts that a record says something of."""
    named = {diff.key[0] for diff in diffs if diff.collection == "parts"}
    return named | {diff.after.part.key for diff in diffs if isinstance(diff.after, Reference)}


def parts_there(state: State, keys: Collection[str]) -> bool:
    """Whether one of these parts is referenced, or dead and not deleted yet."""
    if any(state.parts.get((key,)) is not None for key in keys):
        return True
    return any(key[1] in keys for key, _ in state.dead.range())
