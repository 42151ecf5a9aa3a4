"""What was committed when: the records of the txns shard's log, as people want to see them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from strandline.env import Deadline
from strandline.errors import UnknownTable
from strandline.shard.chain import verified
from strandline.shard.look import Look
from strandline.shard.patience import reading
from strandline.state.codec import LogRecord
from strandline.state.model import TableVersion
from strandline.times import Commit, datetime_of
from strandline.txn.handle import limit_of
from strandline.txn.store import Store

__all__ = ["HISTORY", "commit_at", "history"]

HISTORY = pa.schema(
    [
        ("commit", pa.string()),
        ("time", pa.timestamp("us", "UTC")),
        ("operation", pa.string()),
        ("tables", pa.list_(pa.string())),
        ("rows", pa.int64()),
        ("metadata", pa.map_(pa.string(), pa.string())),
        ("session", pa.string()),
    ]
)
"""What `history` gives: newest first; `rows` are those affected, as `Commit.rows` counts them."""

_SCAN_RECORDS = 256
_PROBE_RECORDS = 16


@dataclass(frozen=True, slots=True)
class _Committed:
    """One commit, as its record tells."""

    seqno: int
    time: int
    session: str
    operation: str
    rows: dict[str, int]
    """Rows affected, by table id."""
    changed: tuple[str, ...]
    """Ids of tables that DDL made, changed or dropped."""
    metadata: dict[str, str]

    @property
    def touched(self) -> tuple[str, ...]:
        """Ids of all tables that the commit is about."""
        return tuple(dict.fromkeys([*self.rows, *self.changed]))


def history(
    store: Store, *, table: str | None, as_of: int | None, limit: Any, deadline: Deadline
) -> pa.Table:
    """The commits of the database, or of the table with that id, as a table `HISTORY`."""
    most = limit_of(limit)
    look = store.txns.look(deadline)
    rows: list[dict[str, Any]] = []
    for commit in _newest_first(store, look, deadline):
        if most is not None and len(rows) >= most:
            break
        if as_of is not None and commit.time > as_of:
            continue
        if not commit.touched or (table is not None and table not in commit.touched):
            continue
        rows.append(_row(store, look, commit, table))
    return pa.Table.from_pylist(rows, schema=HISTORY)


def commit_at(store: Store, time: int, deadline: Deadline) -> Commit:
    """The commit at that time. Its rows are None if the log keeps its record no longer."""
    look = store.txns.look(deadline)
    first, end = 1, look.seqno + 1
    # The least seqno in [first, end) from which on no commit is before `time`; times grow along
    # the log, but only the records of commits tell theirs.
    while first < end:
        middle = (first + end) // 2
        found = next(_commits_from(store, middle, end, deadline), None)
        if found is None or found.time >= time:
            end = middle
        else:
            first = found.seqno + 1
    # In the record before there may be a group that begins earlier and has this time too.
    found = next(
        (
            c
            for c in _commits_from(store, max(first - 1, 1), look.seqno + 1, deadline)
            if c.time >= time
        ),
        None,
    )
    if found is None or found.time != time:
        return Commit(time, None, ())
    names = tuple(_name(store, look, table, time) for table in found.touched)
    return Commit(time, sum(found.rows.values()), names)


def _row(store: Store, look: Look, commit: _Committed, table: str | None) -> dict[str, Any]:
    written = commit.rows if table is None else {table: commit.rows.get(table, 0)}
    return {
        "commit": Commit(commit.time).id,
        "time": datetime_of(commit.time),
        "operation": commit.operation,
        "tables": [_name(store, look, touched, commit.time) for touched in commit.touched],
        "rows": sum(written.values()),
        "metadata": list(commit.metadata.items()),
        "session": commit.session,
    }


def _name(store: Store, look: Look, table: str, time: int) -> str:
    """What the table was called at that time; of a drop, what it was called until then."""
    for moment in (time, time - 1):
        try:
            return store.txns.table_by_id(look, table, moment).name
        except UnknownTable:
            continue
    return table


def _newest_first(store: Store, look: Look, deadline: Deadline) -> Iterator[_Committed]:
    end = look.seqno + 1
    while end > 1:
        start = max(1, end - _SCAN_RECORDS)
        commits = list(_commits_from(store, start, end, deadline))
        yield from reversed(commits)
        if not commits and not any(r.seqno < end for r in _scan(store, start, 1, deadline)):
            return  # what is older was truncated
        end = start


def _commits_from(store: Store, seqno: int, end: int, deadline: Deadline) -> Iterator[_Committed]:
    """The commits among the records from `seqno` to before `end` that the log still keeps."""
    while seqno < end:
        records = _scan(store, seqno, min(_PROBE_RECORDS, end - seqno), deadline)
        for record in records:
            if record.seqno >= end:
                return
            yield from _committed(record)
        if not records:
            return
        seqno = records[-1].seqno + 1


def _scan(store: Store, seqno: int, limit: int, deadline: Deadline) -> list[LogRecord]:
    shard = store.txns.machine.shard
    found = reading(
        store.env,
        deadline,
        "reading the history of the database",
        lambda timeout: store.location.consensus.scan(shard, seqno, limit, timeout=timeout),
    )
    return [verified(shard, record) for record in found]


def _committed(record: LogRecord) -> Iterator[_Committed]:
    """What the record committed, by time; nothing if it is of another command."""
    if record.command != "Commit" or not record.note:
        return
    changed: dict[int, dict[str, None]] = {}
    for diff in record.diffs:
        if isinstance(diff.after, TableVersion):
            version = diff.after
            time = version.valid_from if version.valid_until is None else version.valid_until
            changed.setdefault(time, {})[version.table] = None
    note: dict[str, Any] = json.loads(record.note)
    for said in note["commits"]:
        yield _Committed(
            record.seqno,
            said["time"],
            record.session,
            said.get("operation", ""),
            said.get("rows", {}),
            tuple(changed.get(said["time"], ())),
            said.get("metadata", {}),
        )
