"""The transitions of a shard's state: a table of small pure functions, one per command.

`decide(state, command, author)` says what a command changes and what its caller learns. It may be
called many times for one command, on newer and newer states; only the diffs of the last time,
the one whose record got into the log, count. It raises `PagesNeeded` where it looks at pages that
are not loaded, and the errors named at the command where the command is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from strandline.errors import (
    Fenced,
    TransactionConflict,
    UnknownTable,
    UpperMismatch,
    UsageError,
)
from strandline.state.commands import (
    AdvanceUpper,
    Apply,
    ApplyResult,
    CloseSession,
    Command,
    Commit,
    CommitResult,
    Compact,
    Output,
    Split,
    TableChange,
    Tidy,
    Write,
)
from strandline.state.model import (
    EVERYTHING,
    L0,
    Dead,
    Diff,
    Entry,
    Interval,
    Key,
    Leaf,
    Meta,
    Part,
    PartUse,
    Progress,
    Reference,
    Session,
    TableVersion,
    TokenWindow,
)
from strandline.state.pages import TOP
from strandline.state.replay import State

__all__ = ["TOKEN_WINDOW", "Author", "Decision", "current_table", "decide"]

TOKEN_WINDOW = 64
"""Results kept per token scope."""


@dataclass(frozen=True, slots=True)
class Author:
    """Who submits a command. `first`: no record of this shard is the session's yet."""

    session: str
    first: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """What a record would change and what the caller learns. Without diffs nothing is written."""

    diffs: tuple[Diff, ...]
    result: Any


def decide(state: State, command: Command, author: Author) -> Decision:
    """What `command` does to `state`. Pure."""
    if not isinstance(command, _SAY_WHEN_FENCED):
        _check_session(state, author)
    diffs, result = _TRANSITIONS[type(command)](state, command, author)
    if not diffs:
        return Decision((), result)
    return Decision((*diffs, *_signed(state, command, author)), result)


# --- the author


def _check_session(state: State, author: Author) -> None:
    """A session that ended stays ended."""
    if not author.first and state.sessions.get((author.session,)) is None:
        raise Fenced(
            f"session {author.session} was ended by somebody else; open the database again"
        )


def _signed(state: State, command: Command, author: Author) -> list[Diff]:
    """The session's count goes up by one with each record; its first record registers it."""
    if isinstance(command, CloseSession):
        return []
    session = state.sessions.get((author.session,))
    if session is None:
        session = Session(count=0, opened=state.seqno + 1)
    return [Diff("sessions", (author.session,), replace(session, count=session.count + 1))]


def _close_session(state: State, _: CloseSession, author: Author) -> _Changes:
    if state.sessions.get((author.session,)) is None:
        return [], True
    return [Diff("sessions", (author.session,), None)], True


# --- the txns shard


def current_table(state: State, table: str) -> TableVersion | None:
    """The newest version of the table with that id if it was not dropped."""
    found = state.tables.floor((table, TOP))
    if found is None or found[0][0] != table or found[1].valid_until is not None:
        return None
    return found[1]


def _commit(state: State, command: Commit, author: Author) -> _Changes:
    meta = state.meta
    # Token first: what was committed stays committed, whatever has happened since.
    if command.token is not None:
        known = _known_token(state, command.token)
        if known is not None:
            return [], CommitResult(known, repeated=True)
    if meta.upper is None:
        raise UsageError("the database is finished: its upper is the empty frontier")
    _check_session(state, author)
    time = max(command.clock, meta.upper, command.at_least)
    diffs: list[Diff] = []
    changes = _one_per_table(command.changes)
    for change in command.changes:
        diffs += _change_table(state, change, time)
    _check_names(state, command.changes)
    for ordinal, write in enumerate(command.writes):
        _check_write(state, write, changes.get(write.table))
        if write.batch.rows:  # else it is a condition, and changes nothing
            entry = Entry(write.table, time, ordinal, author.session, write.batch)
            diffs.append(Diff("entries", (write.table, time, ordinal), entry))
    diffs += _tidied(state, command.tidies)[0]
    if command.token is not None:
        diffs.append(_remember_token(state, command.token, time))
    diffs.append(Diff("meta", (), replace(meta, upper=time + 1)))
    return diffs, CommitResult(time)


def _known_token(state: State, token: tuple[str, int]) -> int | None:
    """The commit time of the token; None if it is new. Everything else is refused."""
    scope, number = token
    window = state.tokens.get((scope,))
    if window is None or number > window.highest:
        return None
    for known, time in window.results:
        if known == number:
            return time
    # ◆ A number that was passed and is not in the window is neither success nor new.
    raise UsageError(
        f"token ({scope!r}, {number}) was passed: the scope is at {window.highest} and keeps the "
        f"results of its last {TOKEN_WINDOW} commits; numbers of one scope have to grow"
    )


def _remember_token(state: State, token: tuple[str, int], time: int) -> Diff:
    scope, number = token
    window = state.tokens.get((scope,))
    before = () if window is None else window.results
    return Diff("tokens", (scope,), TokenWindow(number, (*before, (number, time))[-TOKEN_WINDOW:]))


def _check_write(state: State, write: Write, change: TableChange | None) -> None:
    """`change` is what the same commit does to the table."""
    if change is not None and change.expected_version is None:
        return
    table = current_table(state, write.table)
    if table is None or (change is not None and change.dropped):
        raise UnknownTable(f"the table {write.table} was dropped; nothing was written")
    if write.unchanged_since is None:
        return
    since = write.unchanged_since
    progress = state.tidied.get((write.table,))
    if progress is not None and progress.tidied_through >= since:
        raise _changed(table)
    newest = state.entries.floor((write.table, TOP))
    if newest is not None and newest[0][0] == write.table and newest[1].time >= since:
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


def _tidy(state: State, command: Tidy, _: Author) -> _Changes:
    return _tidied(state, command.entries)


def _tidied(state: State, keys: tuple[Key, ...]) -> _Changes:
    diffs: list[Diff] = []
    through: dict[str, int] = {}
    for key in dict.fromkeys(keys):
        if state.entries.get(key) is None:
            continue
        table, time, _ = key
        diffs.append(Diff("entries", key, None))
        through[table] = max(through.get(table, -1), time)
    count = len(diffs)
    for table, time in through.items():
        before = state.tidied.get((table,))
        if before is None or before.tidied_through < time:
            diffs.append(Diff("tidied", (table,), Progress(time)))
    return diffs, count


# --- a data shard


def _apply(state: State, command: Apply, _: Author) -> _Changes:
    meta = state.meta
    if meta.upper != command.expected_upper:
        raise UpperMismatch(
            f"the shard's upper is {meta.upper}, not {command.expected_upper}: another was first",
            meta.upper,
        )
    if command.new_upper <= command.expected_upper:
        raise UsageError(f"apply from {command.expected_upper} to {command.new_upper}: no progress")
    change = _References(state)
    added: set[str] = set()
    leaves: set[bytes] = set()
    in_l0 = False
    for time, part in command.parts:
        if not command.expected_upper <= time < command.new_upper:
            raise UsageError(f"part {part.key} at {time} is outside of the times that are applied")
        _check_new(state, part)
        if part.key in added:
            raise UsageError(f"part {part.key} is added twice; each part has a key of its own")
        added.add(part.key)
        leaf = _leaf_of(state, part.span)
        if leaf is None:
            change.add(L0, b"", EVERYTHING, part, time)
            in_l0 = True
        else:
            change.add(leaf.id, leaf.interval.lower, leaf.interval, part, time)
            leaves.add(leaf.interval.lower)
    diffs = change.diffs(replace(meta, upper=command.new_upper))
    places: tuple[bytes | None, ...] = tuple(sorted(leaves))
    return diffs, ApplyResult(command.new_upper, (*places, None) if in_l0 else places)


def _check_new(state: State, part: Part) -> None:
    if state.parts.get((part.key,)) is not None:
        raise UsageError(f"part {part.key} is in the shard already and cannot be added twice")


def _leaf_of(state: State, span: Interval) -> Leaf | None:
    """The leaf that contains all of the span."""
    found = state.leaves.floor((span.lower,))
    if found is None:
        return None
    leaf = found[1]
    return leaf if leaf.interval.intersect(span) == span else None


def _advance_upper(state: State, command: AdvanceUpper, _: Author) -> _Changes:
    meta = state.meta
    if meta.upper is None or meta.upper >= command.upper:
        return [], meta.upper
    return [Diff("meta", (), replace(meta, upper=command.upper))], command.upper


def _compact(state: State, command: Compact, _: Author) -> _Changes:
    meta = state.meta
    inputs = [state.references.get(key) for key in command.inputs]
    if meta.upper is not None and command.since >= max(meta.upper, 1):
        raise UsageError(f"since may not go to {command.since}, beyond the upper {meta.upper}")
    if len(set(command.inputs)) < len(inputs):
        raise UsageError("a compaction names an input twice; name each reference once")
    if None in inputs or not all(_is_leaf(state, output) for output in command.outputs):
        return _discarded(state, command), False
    change = _References(state)
    before = [change.remove(key) for key in command.inputs]
    placed: dict[str, list[Interval]] = {}
    for output in command.outputs:
        interval = _interval_of(state, output)
        _check_origin(state, output, interval, before)
        others = placed.setdefault(output.part.key, [])
        if any(interval.intersect(other) for other in others):
            raise UsageError(f"part {output.part.key} would have the same keys in the shard twice")
        others.append(interval)
        change.add(output.leaf, output.leaf_lower, interval, output.part, output.time)
    since = meta.since if meta.since is None else max(meta.since, command.since)
    return change.diffs(replace(meta, since=since)), True


def _interval_of(state: State, output: Output) -> Interval:
    """Where the output's rows are to count: inside of its leaf, and where the part has keys."""
    leaf = state.leaves.get((output.leaf_lower,))
    whole = EVERYTHING if output.leaf == L0 or leaf is None else leaf.interval
    interval = whole if output.interval is None else output.interval
    if interval.intersect(whole) != interval or interval.intersect(output.part.span) is None:
        raise UsageError(
            f"part {output.part.key} has no place in {interval} of leaf {output.leaf}: what a "
            "compaction writes lies inside of the leaf that it is for"
        )
    latest = output.time if output.part.time_max is None else output.part.time_max
    upper = state.meta.upper
    if upper is not None and latest >= upper:
        raise UsageError(f"part {output.part.key} has rows at {latest}, the upper is {upper}")
    return interval


def _check_origin(
    state: State, output: Output, interval: Interval, inputs: Sequence[Reference]
) -> None:
    """A moved part shows nothing that its inputs did not show; any other is new to the shard."""
    part = output.part
    if not output.moved:
        _check_new(state, part)
    elif not any(
        part == reference.part and reference.interval.intersect(interval) == interval
        for reference in inputs
    ):
        raise UsageError(f"part {part.key} is moved to {interval}, but no input has it there")


def _is_leaf(state: State, output: Output) -> bool:
    if output.leaf == L0:
        return True
    leaf = state.leaves.get((output.leaf_lower,))
    return leaf is not None and leaf.id == output.leaf


def _discarded(state: State, command: Compact) -> list[Diff]:
    """The outputs of a compaction that came too late: dead objects, for vacuum to remove."""
    seqno = state.seqno + 1
    # What is referenced is no garbage, whoever says so.
    written = {
        output.part.key: output.part
        for output in command.outputs
        if not output.moved and state.parts.get((output.part.key,)) is None
    }
    return [
        Diff("dead", (seqno, key), Dead(key, seqno, seqno, part.size))
        for key, part in written.items()
    ]


def _split(state: State, command: Split, _: Author) -> _Changes:
    leaf = state.leaves.get((command.lower,))
    if leaf is None or leaf.id != command.leaf:
        return [], False
    bounds = _bounds(leaf, command.points)
    change = _References(state)
    meta = state.meta
    diffs: list[Diff] = []
    pieces: list[Leaf] = []
    for number, (lower, upper) in enumerate(pairwise(bounds)):
        piece = Leaf(meta.leaves + 1 + number, Interval(lower or b"", upper), leaf.id)
        pieces.append(piece)
        diffs.append(Diff("leaves", (piece.interval.lower,), piece))
    for key, reference in state.references.prefix((1, command.lower)):
        change.remove(key)
        for piece in pieces:
            clipped = reference.interval.intersect(piece.interval)
            if clipped is not None and clipped.intersect(reference.part.span) is not None:
                change.add(piece.id, piece.interval.lower, clipped, reference.part, reference.time)
    diffs += change.diffs(replace(meta, leaves=meta.leaves + len(pieces)))
    return diffs, True


def _bounds(leaf: Leaf, points: tuple[bytes, ...]) -> list[bytes | None]:
    lower, upper = leaf.interval
    bounds: list[bytes | None] = [lower]
    for point in points:
        before = bounds[-1] or b""
        if point <= before or (upper is not None and point >= upper):
            raise UsageError(
                f"split point {point.hex()} of leaf {leaf.id} is not strictly inside what is left "
                "of it; give the points in ascending order"
            )
        bounds.append(point)
    if not points:
        raise UsageError(f"a split of leaf {leaf.id} needs at least one point")
    return [*bounds, upper]


class _References:
    """Gathers changes of references and keeps the parts' counts and the dead objects in step."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._seqno = state.seqno + 1
        self._made = state.meta.references
        self._diffs: list[Diff] = []
        self._counts: dict[str, int] = {}
        self._sizes: dict[str, int] = {}

    def add(self, leaf: int, leaf_lower: bytes, interval: Interval, part: Part, time: int) -> None:
        self._made += 1
        reference = Reference(self._made, leaf, interval, part, time)
        key = (0, b"", self._made) if leaf == L0 else (1, leaf_lower, self._made)
        self._diffs.append(Diff("references", key, reference))
        self._count(part, 1)

    def remove(self, key: Key) -> Reference:
        reference = self._state.references.get(key)
        if reference is None:  # callers look before they remove
            raise AssertionError(f"no reference {key!r} to remove")
        self._diffs.append(Diff("references", key, None))
        self._count(reference.part, -1)
        return reference

    def _count(self, part: Part, change: int) -> None:
        self._counts[part.key] = self._counts.get(part.key, 0) + change
        self._sizes[part.key] = part.size

    def diffs(self, meta: Meta) -> list[Diff]:
        """All diffs, with the meta that they leave behind."""
        diffs = self._diffs
        for key, change in self._counts.items():
            if change == 0:
                continue
            use = self._state.parts.get((key,)) or PartUse(0, self._seqno)
            count = use.references + change
            if count > 0:
                diffs.append(Diff("parts", (key,), replace(use, references=count)))
                continue
            diffs.append(Diff("parts", (key,), None))
            dead = Dead(key, use.born, self._seqno, self._sizes[key])
            diffs.append(Diff("dead", (self._seqno, key), dead))
        return [*diffs, Diff("meta", (), replace(meta, references=self._made))]


_Changes = tuple[list[Diff], Any]

_TRANSITIONS: dict[type, Callable[[State, Any, Author], _Changes]] = {
    AdvanceUpper: _advance_upper,
    Apply: _apply,
    CloseSession: _close_session,
    Commit: _commit,
    Compact: _compact,
    Split: _split,
    Tidy: _tidy,
}

# Commit looks at its token first, and a session may be closed twice.
_SAY_WHEN_FENCED = (Commit, CloseSession)
