"""What a vacuum may do to a shard: a pure plan. Deletion is guilty until proven safe.

An object that died at seqno X is deleted when nobody can need it any more: a rollup that was read
back is at or beyond X, so that no state before X is ever opened again; every hold is; a mark says
that X was known a whole deletion delay ago, by the location's own clock; and, if it is a part, the
record of its death is in a receipt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strandline.state.model import Dead, Diff, Key, Receipt, Rollup
from strandline.state.replay import State

__all__ = ["VacuumPlan", "is_part", "needed_receipts", "plan_vacuum", "touches_references"]

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
    waiting: Mapping[str, int]
    """How many others there are by what they wait for: "rollup", "hold", "delay", "receipt"."""
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
    """Records before this seqno are not needed any more, once their receipts exist."""
    receipts_through: int
    """Up to this seqno receipts have to exist, for the truncation and for what is dead."""
    receipts_from: int
    """The first seqno that no receipt covers."""


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
    bounds = {
        "rollup": verified[-1] if verified else _NOTHING,
        "hold": held,
        "delay": max(mature, default=_NOTHING),
    }
    delete: list[tuple[Key, Dead]] = []
    waiting: dict[str, int] = {}
    wanted = 0
    for key, dead in state.dead.range():
        reason = next((name for name, bound in bounds.items() if dead.dead > bound), None)
        if reason is None and is_part(dead.key) and dead.dead > covered:
            wanted = max(wanted, dead.dead)
            reason = "receipt"
        if reason is None:
            delete.append((key, dead))
        else:
            waiting[reason] = waiting.get(reason, 0) + 1
    latest = rollups[-1].seqno if rollups else 0
    known = max(mature, default=_NOTHING)
    # Old rollups and pages wait for the next rollup that is due: one written for them alone would
    # leave as many behind.
    stuck = any(latest < key[0] <= known and is_part(key[1]) for key, _ in state.dead.range())
    finished = state.meta.upper is None and state.meta.since is None
    newest = max((at for _, at in marks), default=None)
    marked = max((seqno for seqno, _ in marks), default=0)
    unmarked = any(key[0] > marked for key, _ in state.dead.range())
    return VacuumPlan(
        seqno=state.seqno,
        delete=tuple(delete),
        waiting=waiting,
        roll_up=stuck or (finished and state.seqno - latest > _TOMBSTONE_RECORDS),
        mark=unmarked and (newest is None or now - newest >= delay // 4),
        stale_marks=tuple(seqno for seqno, _ in marks if seqno < known),
        retire=retire,
        keep=tuple(rollup for rollup in rollups if rollup.seqno >= needed),
        truncate_before=needed,
        receipts_through=max(needed - 1, wanted, 0),
        receipts_from=covered + 1,
    )


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


def needed_receipts(state: State) -> tuple[list[int], list[tuple[int, Receipt]]]:
    """The receipts by first seqno: those that name an object that is still there, and the others.

    Looks at every part and dead object.
    """
    seqnos = {use.born for _, use in state.parts.range()}
    for _, dead in state.dead.range():
        if is_part(dead.key):
            seqnos |= {dead.born, dead.dead}
    kept: list[int] = []
    needless: list[tuple[int, Receipt]] = []
    last = max((key[0] for key, _ in state.receipts.range()), default=0)
    for (first,), receipt in state.receipts.range():
        # The last one stays: it says from where on there is none.
        if first == last or any(first <= seqno <= receipt.last for seqno in seqnos):
            kept.append(first)
        else:
            needless.append((first, receipt))
    return kept, needless
