"""A shard's newest state from nothing: the newest rollup that is whole, and the log after it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from strandline.env import Deadline, Env
from strandline.errors import Corruption
from strandline.location import BlobMissing, Location
from strandline.location.consensus import Record
from strandline.shard.chain import follow, record_name, verified
from strandline.shard.patience import reading
from strandline.state.codec import LogRecord, Manifest, decode_rollup
from strandline.state.model import COLLECTIONS, Rollup
from strandline.state.pages import Page, PagedMap, Slot
from strandline.state.replay import State, initial

__all__ = ["SCAN_RECORDS", "Log", "Opened", "open_state", "replay_cost", "state_of"]

SCAN_RECORDS = 256
"""Records asked for at once."""

_log = logging.getLogger("strandline")


class Opened(NamedTuple):
    """A state and the rollups that count for it."""

    state: State
    base: Rollup | None
    """The rollup that the state's stored pages come from; None if there are none."""
    newest: Rollup | None
    """The newest rollup that the log names and that is not known to be damaged."""
    damaged: tuple[str, ...]
    """Keys of the rollups that were passed over, the newest first."""
    cost: int = 0
    """What the replay from `base` on has cost (`replay_cost`)."""


_DIFF_BYTES = 4 * 1024
"""Replaying a diff takes about as long as replaying so many bytes of a large one: 10 µs."""


def replay_cost(records: Sequence[LogRecord], size: int) -> int:
    """What it takes to replay records of `size` bytes in all, as a number of bytes."""
    return size + _DIFF_BYTES * sum(len(record.diffs) for record in records)


class Log:
    """One shard's log, read with patience."""

    def __init__(
        self, location: Location, shard: str, env: Env, title: Callable[[], str] | None = None
    ) -> None:
        self.location = location
        self.shard = shard
        self.env = env
        self.title = title or (lambda: f"shard {shard}")
        """What messages call the shard: where it is a table's, by the name that people know."""

    def head(self, deadline: Deadline) -> Record | None:
        """The newest record."""
        return reading(
            self.env,
            deadline,
            f"reading the head of the log of {self.title()}",
            lambda timeout: self.location.consensus.head(self.shard, timeout=timeout),
        )

    def scan(self, seqno: int, deadline: Deadline, limit: int = SCAN_RECORDS) -> list[Record]:
        """The records from `seqno` on, at most `limit`."""
        return reading(
            self.env,
            deadline,
            f"reading the log of {self.title()} from record {seqno}",
            lambda timeout: list(
                self.location.consensus.scan(self.shard, seqno, limit, timeout=timeout)
            ),
        )

    def get(self, key: str, deadline: Deadline) -> bytes:
        """The bytes of an object of the shard's state."""
        return reading(
            self.env,
            deadline,
            f"reading {key}",
            lambda timeout: self.location.blob.get(key, timeout=timeout),
        )


def open_state(log: Log, deadline: Deadline, *, avoid: AbstractSet[str] = frozenset()) -> Opened:
    """The newest state. Rollups that are damaged or name an object in `avoid` are passed over."""
    seen = 0
    broken: Corruption | None = None
    looked_at = 0
    while True:
        head = log.head(deadline)
        if head is None:
            return Opened(initial(), None, None, ())
        try:
            start = _usable_rollup(log, verified(log.shard, head).rollup, deadline, avoid)
            opened = _catch_up(log, start, deadline)
        except Corruption as error:
            # A listing that is not atomic can show a gap that is none, and what the head named may
            # have been retired since, with the records that would tell: look once more.
            if broken is not None and head.seqno == looked_at:
                raise
            broken, looked_at = error, head.seqno
            deadline.check(f"opening {log.title()}", may_have_happened=False)
            continue
        if opened is not None and opened.state.seqno >= head.seqno:
            return opened
        # Truncated meanwhile? Then a newer head names a newer rollup.
        if head.seqno == seen:
            raise _missing(log.shard, start if opened is None else opened, head.seqno)
        seen = head.seqno
        deadline.check(f"opening {log.title()}", may_have_happened=False)


def _missing(shard: str, reached: Opened, head: int) -> Corruption:
    missing = record_name(shard, reached.state.seqno + 1)
    where = "the beginning" if reached.base is None else f"rollup {reached.base.key}"
    text = (
        f"{missing} is missing: the log goes to record {head} and cannot be replayed from {where}"
    )
    if not reached.damaged:
        return Corruption(text, object=missing)
    newest = reached.damaged[0]
    return Corruption(f"{text}; newer rollups are damaged: {newest}", object=newest)


def _catch_up(log: Log, start: Opened, deadline: Deadline) -> Opened | None:
    """The state with all newer records; None when the log begins only after the next one."""
    state, base, newest, damaged, cost = start
    while True:
        found = log.scan(state.seqno + 1, deadline)
        if found and found[0].seqno > state.seqno + 1:
            return None
        state, records = follow(state, log.shard, found)
        cost += replay_cost(records, sum(len(record.data) for record in found))
        for record in records:
            named = record.rollup
            if named is not None and named.key not in damaged:
                newest = named if newest is None or named.seqno > newest.seqno else newest
        if len(found) < SCAN_RECORDS:
            return Opened(state, base, newest, damaged, cost)


def _usable_rollup(
    log: Log, newest: Rollup | None, deadline: Deadline, avoid: AbstractSet[str]
) -> Opened:
    """The newest rollup that can be read, or the empty state when there is none at all."""
    rollup = newest
    damaged: list[Rollup] = []
    while rollup is not None:
        try:
            state = _load(log, rollup, deadline, avoid)
        except (Corruption, BlobMissing) as error:
            damaged.append(rollup)
            before = _rollup_before(log, damaged, deadline, error)
            _log.warning(
                "rollup %s of shard %s cannot be used (%s); falling back to %s and replay",
                rollup.key,
                log.shard,
                error,
                "the beginning of the log" if before is None else before.key,
            )
            rollup = before
        else:
            return Opened(state, rollup, rollup, _keys(damaged))
    return Opened(initial(), None, None, _keys(damaged))


def _keys(rollups: Sequence[Rollup]) -> tuple[str, ...]:
    return tuple(rollup.key for rollup in rollups)


def _rollup_before(
    log: Log, damaged: Sequence[Rollup], deadline: Deadline, error: Exception
) -> Rollup | None:
    """The rollup before these: the newest that there was when the last one's last record was
    written; or another before the first one.
    """
    rollup = damaged[-1]
    found = log.scan(rollup.seqno, deadline, limit=1)
    if not found or found[0].seqno != rollup.seqno:
        # SUBTLE: whoever wrote that record may have named an older one than there was, because it
        # had read the newer one badly; and others have retired the older one since.
        other = _newest_named(log, damaged, deadline)
        if other is not None:
            return other
        raise Corruption(
            f"rollup {rollup.key} cannot be used ({error}), and the log was truncated past the "
            "record that names the one before it",
            object=rollup.key,
        ) from error
    before = verified(log.shard, found[0]).rollup
    if before is not None and before.seqno >= rollup.seqno:
        raise Corruption(
            f"{record_name(log.shard, rollup.seqno)} names the later rollup {before.key}",
            object=before.key,
        )
    return before


def _newest_named(log: Log, damaged: Sequence[Rollup], deadline: Deadline) -> Rollup | None:
    """The newest rollup that what is left of the log names, up to the first damaged one's seqno."""
    end = damaged[0].seqno
    passed = set(_keys(damaged))
    newest: Rollup | None = None
    seqno = 1
    while seqno <= end:
        found = log.scan(seqno, deadline)
        for record in found:
            named = verified(log.shard, record).rollup if record.seqno <= end else None
            if named is None or named.key in passed or named.seqno >= end:
                continue
            if newest is None or named.seqno > newest.seqno:
                newest = named
        if not found:
            break
        seqno = found[-1].seqno + 1
    return newest


def _load(log: Log, rollup: Rollup, deadline: Deadline, avoid: AbstractSet[str]) -> State:
    manifest = decode_rollup(log.get(rollup.key, deadline), rollup.key)
    if (manifest.shard, manifest.seqno) != (log.shard, rollup.seqno):
        raise Corruption(
            f"{rollup.key} is of shard {manifest.shard} at {manifest.seqno}, not of {log.shard} "
            f"at {rollup.seqno}",
            object=rollup.key,
        )
    for pages in manifest.pages.values():
        for ref in () if isinstance(pages, Page) else pages:
            if ref.key in avoid:
                raise Corruption(f"its page {ref.key} is damaged", object=ref.key)
    return state_of(manifest)


def state_of(manifest: Manifest) -> State:
    """The state that a rollup holds, with none but its inline pages loaded."""
    maps: dict[str, PagedMap[Any]] = {}
    for name in COLLECTIONS:
        pages = manifest.pages.get(name, ())
        if isinstance(pages, Page):
            maps[name] = PagedMap((Slot((), pages, None),))
        else:
            maps[name] = PagedMap.stored(pages)
    return State(manifest.seqno, manifest.hash, maps)
