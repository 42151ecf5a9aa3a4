"""The transitions of a txns shard: commits, DDL, and taking back what is applied."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from strandline.errors import (
    Fenced,
    Held,
    StrandlineError,
    TransactionConflict,
    UnknownTable,
    UsageError,
)
from strandline.state.clocks import passed
from strandline.state.commands import (
    Attach,
    Author,
    Changes,
    Commit,
    CommitGroup,
    CommitResult,
    ForgetTables,
    Read,
    Release,
    TableChange,
    Tidy,
    Write,
)
from strandline.state.model import Batch, Diff, Entry, Holder, Key, TableVersion, Tidied
from strandline.state.pages import TOP
from strandline.state.registering import check_tokens, register, time_of
from strandline.state.replay import State, replay
from strandline.state.sessions import (
    Event,
    check_keys,
    check_session,
    ended,
    has_ended,
    is_open,
)
from strandline.state.tables import called, current_table, tidied_through
from strandline.state.tokens import known_token, remember_token

__all__ = [
    "Touches",
    "attach",
    "by_bounds",
    "check_holders",
    "commit",
    "commit_group",
    "forget_tables",
    "release",
    "tidy",
]

Touches = Callable[[State, Entry, Read], bool]
"""Whether a committed write may have one of the keys that were read. Pure."""

_LOST = (
    "was ended while its owner was silent, or never registered; nothing was committed, write the "
    "data again"
)


def by_bounds(_: State, entry: Entry, read: Read) -> bool:
    """By the first and last key of the write alone, whatever lies between them."""
    batch = entry.batch
    return any(
        lower <= batch.upper and (upper is None or batch.lower < upper)
        for lower, upper in read.intervals
    )


def commit(
    state: State, command: Commit, author: Author, touches: Touches = by_bounds
) -> Changes[CommitResult]:
    """The transition of `Commit`. `touches` tells which writes a read has to know of."""
    meta = state.meta
    # Token first: what was committed stays committed, whatever has happened since.
    if command.token is not None:
        known = known_token(state, command.token)
        if known is not None:
            return [], CommitResult(known, repeated=True)
    if meta.upper is None:
        raise UsageError("the database is finished: its upper is the empty frontier")
    check_session(state, author)
    touched = {write.table for write in command.writes}
    touched |= {change.after.table for change in command.changes}
    touched |= {table for table, _ in command.positions}
    # Before the sessions: a holder that was replaced is told by whom.
    check_holders(state, touched, command.epochs)
    parts = (part for write in command.writes for part in write.batch.parts)
    check_keys(state, author, parts, _LOST)
    time = time_of(meta, command)
    check_tokens(state, command)
    diffs: list[Diff] = []
    changes = _one_per_table(command.changes)
    by_itself = meta.origin == "commits"
    for change in command.changes:
        diffs += (register if by_itself else _change_table)(state, change, time)
    if not by_itself:
        _check_names(state, command.changes)
    for read in command.reads:
        _check_read(state, read, touches)
    for ordinal, write in enumerate(command.writes):
        _check_write(state, write, changes.get(write.table))
        entry = Entry(write.table, time, ordinal, author.session, write.batch)
        diffs.append(Diff("entries", (write.table, time, ordinal), entry))
    diffs += _tidied(state, command.tidies)[0]
    if command.token is not None:
        diffs.append(remember_token(state, command.token, time))
    diffs += [remember_token(state, (scope, 1), time) for scope in command.merged]
    diffs += _held_by(state, command, author)
    diffs.append(Diff("meta", (), passed(meta, time, command)))
    return diffs, CommitResult(time)


def commit_group(
    state: State, command: CommitGroup, author: Author, touches: Touches = by_bounds
) -> Changes[list[CommitResult | StrandlineError]]:
    """The transition of `CommitGroup`."""
    outcomes: list[CommitResult | StrandlineError] = []
    diffs: dict[tuple[str, Key], Diff] = {}
    current = state
    for number, member in enumerate(command.commits, 1):
        try:
            changed, outcome = commit(current, member, author, touches)
        except StrandlineError as error:
            if has_ended(state, author):
                raise  # not of this commit alone; its author may go on under another session
            outcomes.append(error)
            continue
        outcomes.append(outcome)
        diffs |= {(diff.collection, diff.key): diff for diff in changed}
        if number < len(command.commits):
            # The next one meets what this one wrote, as if each had a record of its own.
            current = replay(current, current.seqno, current.hash, changed)
    for diff in _tidied(state, command.tidies)[0] if diffs else ():
        diffs[diff.collection, diff.key] = diff
    return list(diffs.values()), outcomes


def _held_by(state: State, command: Commit, author: Author) -> list[Diff]:
    """What a commit says of the holders of its tables: their positions, and that they are there."""
    positions = dict(command.positions)
    diffs = []
    for table in sorted({table for table, _ in command.epochs} | positions.keys()):
        before = state.holders.get((table,)) or Holder(0, "", "")
        holder = replace(before, position=positions.get(table, before.position))
        if holder.session and not is_open(state.sessions.get((holder.session,))):
            # Its session was ended while it was silent, and it goes on under this one: the next
            # that attaches has to end this one.
            holder = replace(holder, session=author.session)
        if holder != before:
            diffs.append(Diff("holders", (table,), holder))
    return diffs


def check_holders(
    state: State, touched: Collection[str], carried: Iterable[tuple[str, int]]
) -> None:
    """Held if somebody else holds a table that is to be touched; Fenced if the author did.

    `carried` are the author's (table, epoch).
    """
    epochs = dict(carried)
    for table in sorted({*touched, *epochs}):
        holder = state.holders.get((table,))
        now = 0 if holder is None or not holder.session else holder.epoch
        held = epochs.get(table, 0)
        if held == now:
            continue
        name = called(state, table)
        who = "nobody" if holder is None or not now else f"worker {holder.worker!r}"
        if held:
            raise Fenced(
                f"{name} is no longer held by this lease (epoch {held}): {who} has it; "
                "attach again to take it back"
            )
        raise Held(f"{name} is held by {who}; write through that worker, or attach to take over")


def attach(state: State, command: Attach, author: Author) -> Changes[Holder]:
    """The transition of `Attach`."""
    if current_table(state, command.table) is None:
        raise UnknownTable(f"{called(state, command.table)} was dropped; nobody can hold it")
    before = state.holders.get((command.table,)) or Holder(0, "", "")
    holder = Holder(before.epoch + 1, author.session, command.worker, before.position)
    diffs = [Diff("holders", (command.table,), holder)]
    doomed = state.sessions.get((before.session,)) if before.session else None
    if is_open(doomed) and before.session != author.session:
        doomed = replace(doomed, worker=before.worker)
        diffs += ended(state, before.session, doomed, Event.EXPIRE)
    return diffs, holder


def release(state: State, command: Release, _: Author) -> Changes[bool]:
    """The transition of `Release`."""
    holder = state.holders.get((command.table,))
    if holder is None or holder.epoch != command.epoch or not holder.session:
        return [], False
    return [Diff("holders", (command.table,), replace(holder, session=""))], True


def _check_write(state: State, write: Write, change: TableChange | None) -> None:
    """`change` is what the same commit does to the table."""
    if change is not None and change.expected_version is None:
        return
    table = current_table(state, write.table)
    if table is None and state.meta.origin == "commits":
        raise UnknownTable(
            f"shard {write.table} is not registered; nothing was committed, register it first"
        )
    if table is None or (change is not None and change.dropped):
        raise UnknownTable(f"{called(state, write.table)} was dropped; nothing was written")


def _check_read(state: State, read: Read, touches: Touches) -> None:
    table = current_table(state, read.table)
    if table is None:
        raise UnknownTable(f"{called(state, read.table)} was dropped; nothing was written")
    if not read.intervals:
        return
    # ◆ What was tidied is not known any more: a conflict, never an assumption.
    if tidied_through(state, read.table) >= read.since:
        raise _changed(table)
    later = state.entries.range((read.table, read.since), (read.table, TOP))
    if any(touches(state, entry, read) for _, entry in later):
        raise _changed(table)


def _changed(table: TableVersion) -> TransactionConflict:
    return TransactionConflict(
        f"table {table.name!r} was changed by another commit while this one was computed; "
        "nothing was written, try again"
    )


def _one_per_table(changes: tuple[TableChange, ...]) -> dict[str, TableChange]:
    found: dict[str, TableChange] = {}
    for change in changes:
        if found.setdefault(change.after.table, change) is not change:
            raise UsageError(
                f"one commit changes the table {change.after.name!r} twice; make it one change"
            )
    return found


def _change_table(state: State, change: TableChange, time: int) -> list[Diff]:
    after = change.after
    if change.expected_version is None:
        if state.tables.get((after.table, 1)) is not None:
            raise UsageError(f"the table id {after.table} exists already; a new table has a new id")
        new = replace(after, version=1, valid_from=time, valid_until=None, created=time)
        return [Diff("tables", (after.table, 1), new)]
    now = current_table(state, after.table)
    if now is None:
        raise UnknownTable(f"the table {after.name!r} was dropped; nothing was changed")
    if now.version != change.expected_version:
        raise TransactionConflict(
            f"table {now.name!r} was altered by another commit; nothing was changed, try again"
        )
    ended = Diff("tables", (now.table, now.version), replace(now, valid_until=time))
    if change.dropped:
        return [ended]
    version = now.version + 1
    new = replace(after, version=version, valid_from=time, valid_until=None, created=now.created)
    return [ended, Diff("tables", (now.table, version), new)]


def _check_names(state: State, changes: tuple[TableChange, ...]) -> None:
    """No two tables may have names that differ only in case: SQL engines confuse them."""
    if not changes:
        return
    names = {
        version.table: version.name
        for _, version in state.tables.range()
        if version.valid_until is None
    }
    for change in changes:
        if change.dropped:
            names.pop(change.after.table, None)
        else:
            names[change.after.table] = change.after.name
    taken: dict[str, str] = {}
    for table, name in names.items():
        other = taken.setdefault(name.casefold(), table)
        if other != table:
            raise UsageError(
                f"there is a table {names[other]!r} already; names that differ only in case are "
                "one name to SQL engines: choose another or drop that table first"
            )


def tidy(state: State, command: Tidy, _: Author) -> Changes[int]:
    """The transition of `Tidy`."""
    return _tidied(state, command.entries)


def _tidied(state: State, keys: tuple[Key, ...]) -> Changes[int]:
    diffs: list[Diff] = []
    through: dict[str, int] = {}
    stays = state.meta.origin == "commits"
    for key in dict.fromkeys(keys):
        entry = state.entries.get(key)
        if entry is None or (stays and not entry.batch.rows):
            continue
        table, time, _ = key
        diffs.append(Diff("entries", key, replace(entry, batch=Batch()) if stays else None))
        through[table] = max(through.get(table, -1), time)
    count = len(diffs)
    for table, time in through.items():
        before = state.tidied.get((table,))
        if before is None or before.tidied_through < time:
            diffs.append(Diff("tidied", (table,), Tidied(time)))
    return diffs, count


def forget_tables(state: State, command: ForgetTables, _: Author) -> Changes[int]:
    """The transition of `ForgetTables`."""
    diffs: list[Diff] = []
    for key in dict.fromkeys(command.versions):
        version = state.tables.get(key)
        if version is None:
            continue
        if version.valid_until is None:
            raise UsageError(f"version {version.version} of table {version.name!r} still holds")
        diffs.append(Diff("tables", key, None))
    gone = {diff.key for diff in diffs}
    for table in {key[0] for key in gone}:
        if any(key not in gone for key, _ in state.tables.prefix((table,))):
            continue
        if next(iter(state.entries.prefix((table,))), None) is not None:
            raise UsageError(
                f"{called(state, table)} has commits that are not applied; apply them first"
            )
        if state.tidied.get((table,)) is not None:
            diffs.append(Diff("tidied", (table,), None))
        if state.holders.get((table,)) is not None:
            diffs.append(Diff("holders", (table,), None))
    return diffs, len(gone)
