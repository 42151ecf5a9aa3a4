"""The transitions of a txns shard that is used by itself, and of the shards registered with it.

A shard is registered in two logs: it is given to the txns shard in its own (`Join`), and then it is
registered in that of the txns shard (`Commit`); given back in the opposite order. No step of one
log can look into the other. What makes the two agree is the number of the join, see `withdraw`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice, pairwise

from strandline.errors import TransactionConflict, UpperMismatch, UsageError
from strandline.state.clocks import check_clock
from strandline.state.commands import (
    Author,
    Changes,
    Commit,
    CompactTxns,
    InitTxns,
    Join,
    JoinResult,
    Leave,
    TableChange,
    Withdraw,
)
from strandline.state.holding import with_since
from strandline.state.model import Diff, Key, Meta, TableVersion
from strandline.state.replay import State
from strandline.state.tables import current_table, newest_version
from strandline.state.tokens import known_token

__all__ = [
    "check_tokens",
    "compact_txns",
    "init_txns",
    "join",
    "leave",
    "register",
    "time_of",
    "withdraw",
]


# --- in the txns shard


def init_txns(state: State, command: InitTxns, _: Author) -> Changes[int | None]:
    """The transition of `InitTxns`."""
    meta = state.meta
    if meta.origin == "commits":
        return [], meta.upper
    used = meta.origin or meta.owner or meta.upper != 0 or next(state.tables.range(), None)
    if used:
        raise UsageError(
            "the shard is in use already, as one of data or as a database's; make an id for the "
            "txns shard with strandline.shard.new_shard_id()"
        )
    upper = command.time + 1
    return [Diff("meta", (), replace(meta, origin="commits", upper=upper))], upper


def time_of(meta: Meta, command: Commit) -> int:
    """The time that a commit gets; refused where it may not have one."""
    if (command.at is not None) != (meta.origin == "commits"):
        raise UsageError(
            "the times of this txns shard are its users'; open it with strandline.txn.TxnsHandle"
            if meta.origin == "commits"
            else "the shard is a database's, whose commits get their times from its log; open it "
            "with strandline.connect"
        )
    upper = meta.upper or 0
    if command.at is None:
        check_clock(meta, command.clock)
        return max(command.clock, upper, command.at_least)
    if command.at < upper:
        raise UpperMismatch(
            f"time {command.at} is taken: the least time possible is {upper}; nothing was "
            "committed, try a later time",
            upper,
        )
    return command.at


def check_tokens(state: State, command: Commit) -> None:
    """UsageError if a transaction within this one was committed, or nobody can know any more."""
    since = state.meta.since
    known = command.at is None or (since is not None and since <= command.begun)
    if not known and command.token is not None:
        raise UsageError(
            f"whether this transaction was committed before, at {command.begun} or later, is not "
            f"known any more: the txns shard was compacted to {since}; look at the data, and write "
            "it anew if it is missing"
        )
    for scope in command.merged:
        before = known_token(state, (scope, 1))
        if before is not None:
            raise UsageError(
                f"what was merged into this transaction was committed at {before} already, by "
                "itself or within another; nothing was committed, leave it out and write the rest"
            )


def register(state: State, change: TableChange, time: int) -> list[Diff]:
    """What a commit at `time` changes that registers a shard, or forgets it (`dropped`)."""
    after = change.after
    newest = newest_version(state, after.table)
    now = current_table(state, after.table)
    if change.dropped:
        if now is None:
            return []
        if now.version != change.expected_version:
            raise TransactionConflict(
                f"shard {after.table} was forgotten and registered anew meanwhile; nothing was "
                "changed, try again"
            )
        # ◆ What is applied is known here by being tidied.
        if any(entry.batch.rows for _, entry in state.entries.prefix((after.table,))):
            raise TransactionConflict(
                f"shard {after.table} has commits that are not applied and tidied; it was not "
                "forgotten, apply and tidy them first"
            )
        return [Diff("tables", (after.table, now.version), replace(now, valid_until=time))]
    if now is not None:
        return []
    if newest is not None and newest.version >= after.version:
        raise TransactionConflict(
            f"shard {after.table} was given back meanwhile; it was not registered, try again"
        )
    new = replace(after, valid_from=time, valid_until=None, created=time)
    return [Diff("tables", (after.table, after.version), new)]


def withdraw(state: State, command: Withdraw, _: Author) -> Changes[bool]:
    """The transition of `Withdraw`.

    SUBTLE: whoever gives back a shard that was joined and is not registered cannot know whether
    somebody is about to register it: a process may stand still for any time between its `Join` and
    its commit. Were the shard given back then, that commit would register one that anybody may
    append to, and later commits to it could never be applied. So the number of the join is spent
    here first: a version of no time at all, which that commit finds in its place. It has to join
    anew, and gets another number; and a `Leave` that comes late, with the old one, does nothing.
    """
    newest = newest_version(state, command.table)
    if newest is not None and newest.version >= command.number:
        holds = newest.version == command.number and newest.valid_until is None
        return [], not holds
    # Its time is where the registration before it ended: it promises readers nothing.
    end = 0 if newest is None or newest.valid_until is None else newest.valid_until
    spent = TableVersion(
        command.table, command.number, command.table, end, end, end, "rows", b"", ()
    )
    return [Diff("tables", (command.table, command.number), spent)], True


def compact_txns(state: State, command: CompactTxns, _: Author) -> Changes[tuple[int, bool]]:
    """The transition of `CompactTxns`."""
    meta = state.meta
    if meta.origin != "commits" or meta.upper is None or meta.since is None:
        raise UsageError("only a txns shard that is used by itself is compacted like that")
    most = min(command.since, max(meta.upper - 1, 0))
    # ◆ Every write before since is applied: that is what whoever reads as of since rests on.
    unapplied = (entry.time for _, entry in state.entries.range() if entry.batch.rows)
    since = max(meta.since, min(chain((most,), unapplied)))
    doomed = list(islice(_before(state, since), command.items_max + 1))
    diffs = [Diff(name, key, None) for name, key in doomed[: command.items_max]]
    if since != meta.since:
        diffs.append(Diff("meta", (), replace(meta, since=since)))
    return diffs, (since, len(doomed) > command.items_max)


def _before(state: State, since: int) -> Iterator[tuple[str, Key]]:
    """What no question about a time from `since` on needs: collection and key.

    Of each table the newest entry before since stays, because it answers when the latest write
    was; and the newest version, because its number is spent.
    """
    entries = (
        ("entries", left)
        for (left, _), (right, _) in pairwise(state.entries.range())
        if left[0] == right[0] and right[1] < since
    )
    versions = (
        ("tables", key)
        for (key, left), (_, right) in pairwise(state.tables.range())
        if left.table == right.table and left.valid_until is not None and left.valid_until <= since
    )
    tokens = (
        ("tokens", key)
        for key, window in state.tokens.range()
        if all(time < since for _, time in window.results)
    )
    return chain(entries, versions, tokens)


# --- in the shard that is registered


def join(state: State, command: Join, _: Author) -> Changes[JoinResult]:
    """The transition of `Join`."""
    meta = state.meta
    if meta.upper is None:
        raise UsageError("the shard is finished: its upper is the empty frontier; register another")
    if meta.owner not in ("", command.owner):
        raise UsageError(
            f"the shard is registered with the txns shard {meta.owner}; forget it there first"
        )
    if not meta.owner and meta.origin in ("txns", "commits"):
        raise UsageError("the shard belongs to a database; register one made with open_shard")
    if meta.owner and meta.joins > command.over:
        return [], JoinResult(meta.joins, meta.upper)
    number = max(meta.joins, command.over) + 1
    after = replace(meta, owner=command.owner, joins=number, origin="txns")
    return [Diff("meta", (), after)], JoinResult(number, meta.upper)


def leave(state: State, command: Leave, _: Author) -> Changes[bool]:
    """The transition of `Leave`."""
    meta = state.meta
    if (meta.owner, meta.joins) != (command.owner, command.number) or meta.upper is None:
        return [], False
    # ◆ Readers were told that nothing comes before that time, so nobody may append there.
    upper = max(meta.upper, command.upper)
    after = with_since(state, replace(meta, owner="", origin="direct", upper=upper))
    return [Diff("meta", (), after)], True
