"""The transitions of holds: who still needs what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from strandline.errors import AsOfTooOld, Fenced, UsageError
from strandline.state.commands import (
    Author,
    Changes,
    CloseHold,
    MoveHold,
    OpenHold,
    Retain,
    TakeHold,
)
from strandline.state.model import Diff, Hold, Meta
from strandline.state.replay import State

__all__ = [
    "RETENTION",
    "close_hold",
    "ended_with",
    "move_hold",
    "open_hold",
    "retain",
    "take_hold",
    "with_since",
]

RETENTION = "retention"
"""The hold that a table's retention moves."""


def open_hold(state: State, command: OpenHold, author: Author) -> Changes[Hold]:
    """The transition of `OpenHold`."""
    meta = state.meta
    if meta.since is None:
        raise UsageError("the shard is finished: its since is the empty frontier, nothing is left")
    if state.holds.get((command.id,)) is not None:
        raise UsageError(f"there is a hold {command.id!r} already; a new hold has a new id")
    asked = command.hold
    if command.exact and asked.since is not None and asked.since < meta.since:
        raise AsOfTooOld(f"time {asked.since} is before the shard's since {meta.since}")
    hold = replace(
        asked,
        since=meta.since if asked.since is None else max(asked.since, meta.since),
        seqno=None if asked.seqno is None else state.seqno,
        epoch=1,
        session=author.session if command.leased else "",
    )
    return _changed(state, {command.id: hold}), hold


def move_hold(state: State, command: MoveHold, _: Author) -> Changes[Hold]:
    """The transition of `MoveHold`."""
    before = _held(state, command.id, command.epoch)
    since, seqno = before.since, before.seqno
    if since is not None:
        since = None if command.since is None else max(since, command.since)
    if seqno is not None and command.seqno is not None:
        seqno = max(seqno, min(command.seqno, state.seqno))
    hold = replace(before, since=since, seqno=seqno)
    return ([] if hold == before else _changed(state, {command.id: hold})), hold


def take_hold(state: State, command: TakeHold, author: Author) -> Changes[Hold]:
    """The transition of `TakeHold`."""
    before = state.holds.get((command.id,))
    if before is None:
        raise UsageError(f"there is no hold {command.id!r}")
    session = author.session if before.session else ""
    hold = replace(before, epoch=before.epoch + 1, session=session)
    return _changed(state, {command.id: hold}), hold


def close_hold(state: State, command: CloseHold, _: Author) -> Changes[bool]:
    """The transition of `CloseHold`."""
    if state.holds.get((command.id,)) is None:
        return [], True
    _held(state, command.id, command.epoch)
    return _changed(state, {command.id: None}), True


def _held(state: State, hold_id: str, epoch: int) -> Hold:
    hold = state.holds.get((hold_id,))
    if hold is None:
        raise Fenced(
            f"the hold {hold_id!r} is gone: it was closed, or its session expired; open a new one"
        )
    if hold.epoch != epoch:
        raise Fenced(f"the hold {hold_id!r} was taken over by another; open a new one")
    return hold


def retain(state: State, command: Retain, _: Author) -> Changes[int | None]:
    """The transition of `Retain`."""
    meta = state.meta
    if meta.since is None:
        return [], None
    most = command.since if meta.upper is None else min(command.since, meta.upper - 1)
    before = state.holds.get((RETENTION,))
    if before is not None and before.since is not None and most <= before.since:
        return [], meta.since
    diffs = _changed(state, {RETENTION: Hold(max(most, meta.since), kind=RETENTION)})
    return diffs, _since_after(diffs, meta)


def _since_after(diffs: Iterable[Diff], meta: Meta) -> int | None:
    for diff in diffs:
        if isinstance(diff.after, Meta):
            return diff.after.since
    return meta.since


def since_of(meta: Meta, holds: Sequence[Hold]) -> int | None:
    """The shard's since under these holds: the least of theirs. It never goes back.

    While the shard has an upper, since stays below it, because what is at the upper is not known;
    after that it becomes empty as soon as all of the holds are at the empty frontier.
    """
    if meta.since is None or not holds:
        return meta.since
    times = [hold.since for hold in holds if hold.since is not None]
    if meta.upper is not None:
        times.append(max(meta.upper - 1, 0))
    return max(meta.since, min(times)) if times else None


def with_since(state: State, meta: Meta) -> Meta:
    """The scalars, with the since that the holds of the state allow under their upper."""
    return replace(meta, since=since_of(meta, [hold for _, hold in state.holds.range()]))


def _changed(
    state: State, changes: Mapping[str, Hold | None], meta: Meta | None = None
) -> list[Diff]:
    """The diffs of holds that changed, and of since, which is the least that any of them has."""
    before = meta or state.meta
    held = {key[0]: hold for key, hold in state.holds.range()}
    after = {**held, **changes}
    since = since_of(before, [hold for hold in after.values() if hold is not None])
    diffs = [Diff("holds", (hold_id,), hold) for hold_id, hold in changes.items()]
    if meta is not None or since != before.since:
        diffs.append(Diff("meta", (), replace(before, since=since)))
    return diffs


def ended_with(state: State, session: str) -> list[Diff]:
    """What a session takes with it: its leased holds, and its claim."""
    holds: dict[str, Hold | None] = {
        key[0]: None for key, hold in state.holds.range() if hold.session == session
    }
    meta = state.meta
    claims = meta.claim == session
    if not holds and not claims:
        return []
    return _changed(state, holds, replace(meta, claim="") if claims else None)
