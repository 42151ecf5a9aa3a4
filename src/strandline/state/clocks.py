"""What a txns shard makes of the clocks of those who commit to it: time must not be poisoned.

docs/design/0009-clocks.md says why these rules and not others.
"""

from __future__ import annotations

from dataclasses import replace

from strandline.errors import ClockSkew, UsageError
from strandline.state.commands import Author, Changes, Commit, ConfirmClock
from strandline.state.model import Diff, Meta
from strandline.state.replay import State

__all__ = ["SKEW_MICROS", "check_clock", "confirm_clock", "passed", "settled_time"]

SKEW_MICROS = 5 * 60 * 1_000_000
"""How far clocks of one database may be apart."""

_DAY_MICROS = 86_400 * 1_000_000
_JUMP_MICROS = _DAY_MICROS
"""By how much a clock may be ahead of the log without somebody to vouch for it."""

_PLAUSIBLE_COMMITS = 16
"""Commits after a jump, a day of them at least, that make its time plausible."""


def check_clock(meta: Meta, clock: int) -> None:
    """ClockSkew if the clock is far behind the log, and nobody confirmed that it may be."""
    if meta.upper is None or clock >= meta.upper - SKEW_MICROS:
        return
    # Times after the confirmed one were given out by the log alone: one microsecond each.
    if meta.ahead and meta.upper <= meta.ahead + SKEW_MICROS:
        return
    raise ClockSkew(
        f"this machine's clock is {(meta.upper - clock) / 1e6:.0f} s behind the latest commit; "
        "nothing was committed. Set the clock; or, if it is right and the commit was made by a "
        "wrong one, say so: db.confirm_clock() or strandline confirm-clock"
    )


def passed(meta: Meta, time: int, command: Commit) -> Meta:
    """The shard's scalars after a commit at `time`: its upper, and whether time is in doubt."""
    after = replace(meta, upper=time + 1)
    if command.at is not None:
        return after  # not by a clock
    upper = meta.upper or 0
    if command.clock >= upper:
        after = replace(after, ahead=0)  # the log is not ahead of the clock any more
    if command.clock_checked and command.clock >= upper:
        return replace(after, frozen=None, jumped=0, since_jump=0)
    if meta.frozen is not None:
        after = replace(after, since_jump=meta.since_jump + 1)
        enough = after.since_jump >= _PLAUSIBLE_COMMITS
        if enough and time - meta.jumped >= _DAY_MICROS:
            after = replace(after, frozen=None, jumped=0, since_jump=0)
    # A log without commits knows no time that this could be compared with.
    if after.frozen is None and upper > 0 and time - upper > _JUMP_MICROS:
        after = replace(after, frozen=upper - 1, jumped=time, since_jump=0)
    return after


def settled_time(meta: Meta) -> int:
    """The time by which what is old is told: the latest, or that before a jump of the clock."""
    if meta.frozen is not None:
        return meta.frozen
    return (1 << 62) if meta.upper is None else meta.upper - 1


def confirm_clock(state: State, command: ConfirmClock, _: Author) -> Changes[int]:
    """The transition of `ConfirmClock`."""
    meta = state.meta
    if meta.upper is None:
        raise UsageError("the database is finished: its upper is the empty frontier")
    if command.clock < meta.upper - SKEW_MICROS:
        # The log ran ahead. Retention goes on by the time before that, until the clock caught up.
        frozen = command.clock if meta.frozen is None else min(meta.frozen, command.clock)
        after = replace(meta, ahead=meta.upper, frozen=frozen, jumped=meta.upper, since_jump=0)
    else:
        after = replace(meta, frozen=None, jumped=0, since_jump=0)
    return ([] if after == meta else [Diff("meta", (), after)]), settled_time(after)
