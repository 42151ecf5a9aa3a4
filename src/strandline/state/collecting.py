"""The transitions of garbage: what was deleted is forgotten, what is redundant dies."""

from __future__ import annotations

from dataclasses import replace

from strandline.errors import UsageError
from strandline.state.commands import Author, Changes, Collect, KeepReceipts, RetireRollups
from strandline.state.model import Dead, Diff
from strandline.state.replay import State

__all__ = ["collect", "keep_receipts", "retire_rollups"]


def collect(state: State, command: Collect, _: Author) -> Changes[int]:
    """The transition of `Collect`."""
    gone = [key for key in dict.fromkeys(command.dead) if state.dead.get(key) is not None]
    diffs = [Diff("dead", key, None) for key in gone]
    diffs += [
        Diff("marks", (seqno,), None)
        for seqno in dict.fromkeys(command.marks)
        if state.marks.get((seqno,)) is not None
    ]
    if command.mark is not None:
        seqno, mark = command.mark
        if seqno > state.seqno:
            raise UsageError(f"a mark of seqno {seqno}, which is not written yet")
        diffs.append(Diff("marks", (seqno,), mark))
    return diffs, len(gone)


def retire_rollups(state: State, command: RetireRollups, _: Author) -> Changes[bool]:
    """The transition of `RetireRollups`."""
    rollups = {rollup.key: rollup for _, rollup in state.rollups.range()}
    # SUBTLE: a rollup that was named since the objects were gathered may share pages with one that
    # is to go; they would be counted as garbage though it needs them.
    if rollups.keys() != {*command.dropped, *command.kept}:
        return [], False
    whole = {key for key, r in rollups.items() if r.verified} | set(command.verified)
    later = [rollups[key].seqno for key in command.kept if key in whole]
    for dropped in (rollups[key].seqno for key in command.dropped):
        if sum(seqno > dropped for seqno in later) < 2:
            raise UsageError(
                f"rollup {dropped} has to stay: there are not two later ones that were read back"
            )
    diffs = [
        Diff("rollups", (rollups[key].seqno,), replace(rollups[key], verified=True))
        for key in command.verified
        if key in command.kept and not rollups[key].verified
    ]
    diffs += [Diff("rollups", (rollups[key].seqno,), None) for key in command.dropped]
    return diffs + _died(state, command.objects), True


def keep_receipts(state: State, command: KeepReceipts, _: Author) -> Changes[int]:
    """The transition of `KeepReceipts`."""
    covered = max((receipt.last for _, receipt in state.receipts.range()), default=0)
    added = [(seqno, r) for seqno, r in command.added if seqno > covered]
    # Another has copied these records, or some of them: each is in one receipt.
    late = [
        (seqno, r)
        for seqno, r in command.added
        if seqno <= covered and state.receipts.get((seqno,)) != r
    ]
    diffs = [Diff("receipts", (seqno,), receipt) for seqno, receipt in added]
    dead = [Dead(r.key, seqno, 0, r.size) for seqno, r in late]
    for seqno in dict.fromkeys(command.dropped):
        receipt = state.receipts.get((seqno,))
        if receipt is not None:
            diffs.append(Diff("receipts", (seqno,), None))
            dead.append(Dead(receipt.key, seqno, 0, receipt.size))
    return diffs + _died(state, tuple(dead)), len(added)


def _died(state: State, objects: tuple[Dead, ...]) -> list[Diff]:
    seqno = state.seqno + 1
    return [
        Diff("dead", (seqno, dead.key), Dead(dead.key, min(dead.born, seqno), seqno, dead.size))
        for dead in objects
    ]
