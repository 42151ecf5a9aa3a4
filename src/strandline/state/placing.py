"""The transitions of a data shard: which part holds which rows of which keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from strandline.errors import UpperMismatch, UsageError
from strandline.state.commands import (
    AdvanceUpper,
    Append,
    AppendResult,
    Apply,
    ApplyResult,
    Author,
    Changes,
    Claim,
    Clear,
    Compact,
    Describe,
    Finish,
    Output,
    Split,
)
from strandline.state.holding import RETENTION, with_since
from strandline.state.model import (
    EVERYTHING,
    L0,
    Dead,
    Diff,
    Interval,
    Key,
    Leaf,
    Meta,
    Part,
    PartUse,
    Reference,
    TableVersion,
)
from strandline.state.replay import State
from strandline.state.sessions import check_keys, check_session, is_open
from strandline.state.tokens import known_token, remember_token
from strandline.times import TIME_MAX

__all__ = [
    "advance_upper",
    "append",
    "apply",
    "claim",
    "clear",
    "compact",
    "describe",
    "finish",
    "split",
]


def apply(state: State, command: Apply, _: Author) -> Changes[ApplyResult]:
    """The transition of `Apply`."""
    meta = state.meta
    if meta.origin == "direct" and not command.owner:
        raise UsageError("the shard has writers of its own; no txns shard may feed it as well")
    if meta.upper != command.expected_upper:
        raise UpperMismatch(
            f"the shard's upper is {meta.upper}, not {command.expected_upper}: another was first",
            meta.upper,
        )
    # After the upper: who comes late, when all was applied and the shard given back, is told that.
    if meta.owner != command.owner:
        raise UsageError(
            f"the shard is registered with {meta.owner or 'no txns shard'}, and this is of "
            f"{command.owner or 'a database'}; register it there first"
        )
    if command.new_upper <= command.expected_upper:
        raise UsageError(f"apply from {command.expected_upper} to {command.new_upper}: no progress")
    for time, part in command.parts:
        if not command.expected_upper <= time < command.new_upper:
            raise UsageError(f"part {part.key} at {time} is outside of the times that are applied")
    change = _References(state)
    leaves = _place(state, change, command.parts)
    meta = replace(meta, upper=command.new_upper, origin="txns")
    if command.owner:  # its readers hold it like any other shard that is used by itself
        meta = with_since(state, meta)
    return change.diffs(meta), ApplyResult(command.new_upper, leaves)


def _place(
    state: State,
    change: _References,
    parts: Iterable[tuple[int, Part]],
    rows_from: int | None = None,
) -> tuple[bytes | None, ...]:
    """References each new part in the leaf that has all of its keys, else in L0.

    Returns the leaves' lower bounds, and None at the end if there is one in L0.
    """
    added: set[str] = set()
    leaves: set[bytes] = set()
    in_l0 = False
    for time, part in parts:
        _check_new(state, part)
        if part.key in added:
            raise UsageError(f"part {part.key} is added twice; each part has a key of its own")
        added.add(part.key)
        cut = rows_from if rows_from is not None and rows_from > (part.time_min or 0) else None
        leaf = _leaf_of(state, part.span)
        number, lower, interval = (
            (L0, b"", EVERYTHING) if leaf is None else (leaf.id, leaf.interval.lower, leaf.interval)
        )
        change.add(Reference(0, number, interval, part, time, rows_from=cut), lower)
        if leaf is None:
            in_l0 = True
        else:
            leaves.add(lower)
    places: tuple[bytes | None, ...] = tuple(sorted(leaves))
    return (*places, None) if in_l0 else places


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


def advance_upper(state: State, command: AdvanceUpper, _: Author) -> Changes[int | None]:
    """The transition of `AdvanceUpper`."""
    meta = state.meta
    if meta.upper is None or meta.upper >= command.upper:
        return [], meta.upper
    _check_direct(meta)
    after = with_since(state, replace(meta, upper=command.upper))
    return [Diff("meta", (), after)], command.upper


def append(state: State, command: Append, author: Author) -> Changes[AppendResult]:
    """The transition of `Append`."""
    # Token first: what was committed stays committed, whatever has happened since.
    if command.token is not None:
        known = known_token(state, command.token)
        if known is not None:
            return [], AppendResult(None if known == _EMPTY else known, repeated=True)
    meta = state.meta
    if meta.upper is None:
        raise UsageError("the shard is finished: its upper is the empty frontier")
    _check_direct(meta)
    check_session(state, author)
    check_keys(state, author, command.parts)
    _check_bounds(command)
    upper, lower = meta.upper, command.lower
    if lower != upper if not command.replicated else lower > upper:
        raise UpperMismatch(f"the shard's upper is {upper}, not {lower}", upper)
    if command.replicated and command.new_upper is not None and command.new_upper <= upper:
        # All of it is there already. What was written for it is garbage.
        return _garbage(state, command.parts), AppendResult(upper)
    return _appended(state, command, meta, upper), AppendResult(command.new_upper)


def _check_direct(meta: Meta) -> None:
    """UsageError if writers may not add to the shard directly."""
    if meta.owner:
        raise UsageError(
            f"the shard is registered with the txns shard {meta.owner}; commit to it there with "
            "strandline.txn.TxnsHandle, or forget it there first"
        )
    if meta.origin == "commits":
        raise UsageError("the shard is a txns shard; open it with strandline.txn.TxnsHandle")
    if meta.origin == "txns":
        raise UsageError("the shard belongs to a table, which is written through its database")


_EMPTY = -1
"""The empty frontier among the results of tokens, which are numbers."""


def _check_bounds(command: Append) -> None:
    lower, upper = command.lower, command.new_upper
    if not command.replicated and command.expected_upper != lower:
        raise UsageError(f"a batch from {lower} on cannot be appended at {command.expected_upper}")
    if upper is not None and upper < lower:
        raise UsageError(f"a batch from {lower} to before {upper} has its bounds the wrong way")
    if upper == lower and command.parts:
        raise UsageError(f"a batch from {lower} to before {upper} has no room for updates")
    for part in command.parts:
        if part.time_min is None or part.time_max is None:
            raise UsageError(f"part {part.key} does not say at which times its updates are")
        if part.time_max > TIME_MAX:
            raise UsageError(
                f"part {part.key} has an update at {part.time_max}; the greatest time is {TIME_MAX}"
            )
        if part.time_min < lower or (upper is not None and part.time_max >= upper):
            raise UsageError(
                f"part {part.key} has updates at times from {part.time_min} to {part.time_max}, "
                f"the batch is from {lower} to before {upper}"
            )


def _appended(state: State, command: Append, meta: Meta, upper: int) -> list[Diff]:
    """The diffs of an append that moves the shard's upper, or leaves it and adds nothing."""
    if command.new_upper == upper:
        return []
    newer = [(p.time_max, p) for p in command.parts if p.time_max is not None]
    kept = [(time, part) for time, part in newer if time >= upper]
    change = _References(state)
    _place(state, change, kept, rows_from=upper)
    meta = replace(meta, upper=command.new_upper, origin="direct")
    diffs = change.diffs(with_since(state, meta))
    if command.token is not None:
        result = _EMPTY if command.new_upper is None else command.new_upper
        diffs.append(remember_token(state, command.token, result))
    return diffs + _garbage(state, [part for time, part in newer if time < upper])


def describe(state: State, command: Describe, _: Author) -> Changes[TableVersion]:
    """The transition of `Describe`."""
    version = command.version
    known = state.tables.get((version.table, 1))
    if known is not None:
        return [], known
    if state.meta.origin == "txns":
        raise UsageError("the shard belongs to a table, whose database describes it")
    _check_direct(state.meta)
    described = replace(version, version=1, valid_from=0, valid_until=None, created=0)
    return [Diff("tables", (version.table, 1), described)], described


def claim(state: State, command: Claim, author: Author) -> Changes[bool]:
    """The transition of `Claim`."""
    meta = state.meta
    mine = meta.claim == author.session
    if command.release:
        return ([Diff("meta", (), replace(meta, claim=""))] if mine else []), False
    if mine:
        return [], True
    if meta.claim and is_open(state.sessions.get((meta.claim,))):
        return [], False
    return [Diff("meta", (), replace(meta, claim=author.session))], True


def finish(state: State, _: Finish, __: Author) -> Changes[bool]:
    """The transition of `Finish`."""
    meta = state.meta
    if meta.upper is None and meta.since is None:
        return [], True
    others = [key[0] for key, _ in state.holds.range() if key[0] != RETENTION]
    if others:
        raise UsageError(f"the shard is still held by {', '.join(others)}; close these holds first")
    diffs = [Diff("holds", key, None) for key, _ in state.holds.range()]
    diffs.append(Diff("meta", (), replace(meta, upper=None, since=None, claim="")))
    return diffs, True


def clear(state: State, command: Clear, _: Author) -> Changes[int]:
    """The transition of `Clear`."""
    meta = state.meta
    if meta.upper is not None or meta.since is not None or next(state.holds.range(), None):
        raise UsageError("only a shard that is finished, and that nobody holds, may be cleared")
    change = _References(state)
    keys = [key for key in dict.fromkeys(command.references) if state.references.get(key)]
    for key in keys:
        change.remove(key)
    return (change.diffs(meta) if keys else []), len(keys)


def compact(state: State, command: Compact, author: Author) -> Changes[bool]:
    """The transition of `Compact`."""
    meta = state.meta
    inputs = [state.references.get(key) for key in command.inputs]
    if len(set(command.inputs)) < len(inputs):
        raise UsageError("a compaction names an input twice; name each reference once")
    if None in inputs or not all(_is_leaf(state, output) for output in command.outputs):
        return _discarded(state, command), False
    check_keys(state, author, (output.part for output in command.outputs if not output.moved))
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
        reference = Reference(
            0,
            output.leaf,
            interval,
            output.part,
            output.time,
            output.reads_before,
            output.rows_from,
        )
        change.add(reference, output.leaf_lower)
    return change.diffs(meta), True


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
        part == reference.part
        and reference.interval.intersect(interval) == interval
        and (reference.reads_before, reference.rows_from) == (output.reads_before, output.rows_from)
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
    return _garbage(state, [output.part for output in command.outputs if not output.moved])


def _garbage(state: State, parts: Iterable[Part]) -> list[Diff]:
    """Parts that were written for nothing, as dead objects."""
    seqno = state.seqno + 1
    # What is referenced is no garbage, whoever says so.
    written = {part.key: part for part in parts if state.parts.get((part.key,)) is None}
    return [
        Diff("dead", (seqno, key), Dead(key, seqno, seqno, part.size))
        for key, part in written.items()
    ]


def split(state: State, command: Split, _: Author) -> Changes[bool]:
    """The transition of `Split`."""
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
                moved = replace(reference, leaf=piece.id, interval=clipped)
                change.add(moved, piece.interval.lower)
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

    def add(self, reference: Reference, leaf_lower: bytes) -> None:
        """Adds a reference, which gets its id here."""
        self._made += 1
        key = (0, b"", self._made) if reference.leaf == L0 else (1, leaf_lower, self._made)
        self._diffs.append(Diff("references", key, replace(reference, id=self._made)))
        self._count(reference.part, 1)

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
