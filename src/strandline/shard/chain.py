"""Following a log: every record is checked against the one before it, then replayed."""

from __future__ import annotations

from collections.abc import Iterable

from strandline.errors import Corruption
from strandline.location.consensus import Record
from strandline.state.codec import LogRecord, decode_record, record_hash
from strandline.state.model import Diff
from strandline.state.pages import PagesNeeded
from strandline.state.replay import State, replay

__all__ = ["follow", "record_name", "verified"]


def record_name(shard: str, seqno: int) -> str:
    """What messages call a record."""
    return f"record {seqno} of shard {shard}"


def verified(shard: str, record: Record) -> LogRecord:
    """The decoded record, if it says itself that it is the one at its place in this shard's log."""
    name = record_name(shard, record.seqno)
    log = decode_record(record.data, name)
    if log.shard != shard:
        raise Corruption(f"{name} belongs to shard {log.shard}", object=name)
    if log.seqno != record.seqno:
        raise Corruption(
            f"{name} has the wrong seqno: it was written as record {log.seqno}", object=name
        )
    return log


def follow(state: State, shard: str, found: Iterable[Record]) -> tuple[State, list[LogRecord]]:
    """The state after `found`, the records right after `state`, and those records decoded.

    Raises Corruption where the chain breaks: a record is missing, has the wrong seqno, names
    another predecessor, was counted wrong by its session, or cannot be decoded.
    """
    records: list[LogRecord] = []
    diffs: list[Diff] = []
    counts: dict[str, int] = {}
    seqno, digest = state.seqno, state.hash
    for record in found:
        name = record_name(shard, record.seqno)
        if record.seqno != seqno + 1:
            missing = record_name(shard, seqno + 1)
            raise Corruption(
                f"{missing} is missing: the log goes on with record {record.seqno}", object=missing
            )
        log = verified(shard, record)
        if log.predecessor != digest:
            raise Corruption(
                f"{name} continues another history: it names a predecessor with hash "
                f"{log.predecessor.hex()}, but record {seqno} has hash {digest.hex()}; the log "
                "was forked, or restored from elsewhere",
                object=name,
            )
        _check_count(state, counts, log, name)
        seqno, digest = record.seqno, record_hash(record.data)
        records.append(log)
        diffs += log.diffs
    # A later value of a key replaces an earlier one, so all records are replayed at once: each
    # page is copied once, not once per record.
    return replay(state, seqno, digest, diffs), records


def _check_count(state: State, counts: dict[str, int], log: LogRecord, name: str) -> None:
    """(session, count) is a record's id: per session the counts have no gaps and no repeats."""
    before = counts.get(log.session)
    if before is None:
        try:
            session = state.sessions.get((log.session,))
        except PagesNeeded:
            before = log.count - 1  # following a log needs no page; nothing is known to compare
        else:
            before = 0 if session is None else session.count
    if log.count != before + 1:
        raise Corruption(
            f"{name} is number {log.count} of session {log.session}, which had written {before} "
            "before it",
            object=name,
        )
    counts[log.session] = log.count
    for collection, key, after in log.diffs:
        if collection == "sessions" and after is None:
            counts[key[0]] = 0
