"""The transitions of a shard's state: a table of small pure functions, one per command.

`decide(state, command, author)` says what a command changes and what its caller learns. It may be
called many times for one command, on newer and newer states; only the diffs of the last time,
the one whose record got into the log, count. It raises `PagesNeeded` where it looks at pages that
are not loaded, and the errors named at the command where the command is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic

from strandline.state import (
    clocks,
    collecting,
    commands,
    committing,
    holding,
    placing,
    registering,
    sessions,
)
from strandline.state.commands import Author, Changes, Command, R
from strandline.state.model import Diff
from strandline.state.replay import State

__all__ = ["Author", "Decision", "decide"]


@dataclass(frozen=True, slots=True)
class Decision(Generic[R]):
    """What a record would change and what the caller learns. Without diffs nothing is written."""

    diffs: tuple[Diff, ...]
    result: R


def decide(state: State, command: Command[R], author: Author) -> Decision[R]:
    """What `command` does to `state`. Pure."""
    if not isinstance(command, _SAY_WHEN_FENCED):
        sessions.check_session(state, author)
    transition: Callable[..., Changes[R]] = _TRANSITIONS[type(command)]
    diffs, result = transition(state, command, author)
    if not diffs and not isinstance(command, commands.Heartbeat):
        return Decision((), result)
    return Decision((*diffs, *_signed(state, command, author)), result)


def _signed(state: State, command: Command[Any], author: Author) -> list[Diff]:
    """The session's count goes up by one with each record; its first record registers it."""
    if isinstance(command, commands.CloseSession):
        return []
    session = sessions.recorded(state, author)
    if isinstance(command, commands.Attach):
        session = replace(session, worker=command.worker)
    return [Diff("sessions", (author.session,), session)]


# Each takes a command of its own type: no type of a table says that of its keys and its values.
_TRANSITIONS: dict[type, Callable[[State, Any, Author], Changes[Any]]] = {
    commands.Attach: committing.attach,
    commands.Commit: committing.commit,
    commands.CommitGroup: committing.commit_group,
    commands.ForgetTables: committing.forget_tables,
    commands.Release: committing.release,
    commands.Tidy: committing.tidy,
    commands.ConfirmClock: clocks.confirm_clock,
    commands.CompactTxns: registering.compact_txns,
    commands.InitTxns: registering.init_txns,
    commands.Join: registering.join,
    commands.Leave: registering.leave,
    commands.Withdraw: registering.withdraw,
    commands.AdvanceUpper: placing.advance_upper,
    commands.Append: placing.append,
    commands.Apply: placing.apply,
    commands.Claim: placing.claim,
    commands.Clear: placing.clear,
    commands.Compact: placing.compact,
    commands.Describe: placing.describe,
    commands.Finish: placing.finish,
    commands.Split: placing.split,
    commands.CloseHold: holding.close_hold,
    commands.MoveHold: holding.move_hold,
    commands.OpenHold: holding.open_hold,
    commands.Retain: holding.retain,
    commands.TakeHold: holding.take_hold,
    commands.Acknowledge: sessions.acknowledge,
    commands.CloseSession: sessions.close_session,
    commands.Expire: sessions.expire,
    commands.Heartbeat: sessions.heartbeat,
    commands.Swept: sessions.swept,
    commands.Collect: collecting.collect,
    commands.KeepReceipts: collecting.keep_receipts,
    commands.RetireRollups: collecting.retire_rollups,
}

# These look at their token first, and a session may be closed twice.
_SAY_WHEN_FENCED = (
    commands.Append,
    commands.Commit,
    commands.CommitGroup,
    commands.CloseSession,
)
