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
    committing,
    holding,
    placing,
    registering,
    sessions,
)
from strandline.state.commands import (
    Acknowledge,
    AdvanceUpper,
    Append,
    Apply,
    Attach,
    Author,
    Changes,
    Claim,
    Clear,
    CloseHold,
    CloseSession,
    Collect,
    Command,
    Commit,
    CommitGroup,
    Compact,
    CompactTxns,
    ConfirmClock,
    Describe,
    Expire,
    Finish,
    ForgetTables,
    Heartbeat,
    InitTxns,
    Join,
    KeepReceipts,
    Leave,
    MoveHold,
    OpenHold,
    R,
    Release,
    Retain,
    RetireRollups,
    Split,
    Swept,
    TakeHold,
    Tidy,
    Withdraw,
)
from strandline.state.model import Diff
from strandline.state.registering import current_table
from strandline.state.replay import State
from strandline.state.tokens import TOKEN_WINDOW

__all__ = ["TOKEN_WINDOW", "Author", "Decision", "current_table", "decide"]


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
    if not diffs and not isinstance(command, Heartbeat):
        return Decision((), result)
    return Decision((*diffs, *_signed(state, command, author)), result)


def _signed(state: State, command: Command[Any], author: Author) -> list[Diff]:
    """The session's count goes up by one with each record; its first record registers it."""
    if isinstance(command, CloseSession):
        return []
    session = sessions.recorded(state, author)
    if isinstance(command, Attach):
        session = replace(session, worker=command.worker)
    return [Diff("sessions", (author.session,), session)]


# Each takes a command of its own type: no type of a table says that of its keys and its values.
_TRANSITIONS: dict[type, Callable[[State, Any, Author], Changes[Any]]] = {
    Acknowledge: sessions.acknowledge,
    AdvanceUpper: placing.advance_upper,
    Append: placing.append,
    Apply: placing.apply,
    Attach: committing.attach,
    Claim: placing.claim,
    Clear: placing.clear,
    CloseHold: holding.close_hold,
    CloseSession: sessions.close_session,
    Collect: collecting.collect,
    Commit: committing.commit,
    CommitGroup: committing.commit_group,
    Compact: placing.compact,
    CompactTxns: registering.compact_txns,
    ConfirmClock: clocks.confirm_clock,
    Describe: placing.describe,
    Expire: sessions.expire,
    Finish: placing.finish,
    ForgetTables: committing.forget_tables,
    Heartbeat: sessions.heartbeat,
    InitTxns: registering.init_txns,
    Join: registering.join,
    KeepReceipts: collecting.keep_receipts,
    Leave: registering.leave,
    MoveHold: holding.move_hold,
    OpenHold: holding.open_hold,
    Release: committing.release,
    Retain: holding.retain,
    RetireRollups: collecting.retire_rollups,
    Split: placing.split,
    Swept: sessions.swept,
    TakeHold: holding.take_hold,
    Tidy: committing.tidy,
    Withdraw: registering.withdraw,
}

# These look at their token first, and a session may be closed twice.
_SAY_WHEN_FENCED = (Append, Commit, CommitGroup, CloseSession)
