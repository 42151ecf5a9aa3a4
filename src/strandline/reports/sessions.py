"""Sessions as operators see them: who is there, what they left; and forcing their end."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from strandline.env import Deadline
from strandline.errors import UsageError
from strandline.state.commands import Acknowledge, Expire
from strandline.state.model import Holder
from strandline.state.sessions import stage_of
from strandline.times import datetime_of
from strandline.txn.store import Store
from strandline.upkeep.sweep import Registered, all_machines, listed_of, needed_of, registered

__all__ = ["SESSIONS", "force_ack", "sessions"]

_MOMENT = pa.timestamp("us", "UTC")

SESSIONS = pa.schema(
    [
        ("table", pa.string()),
        ("session", pa.string()),
        ("worker", pa.string()),
        ("state", pa.string()),
        ("records", pa.int64()),
        ("holds", pa.list_(pa.string())),
        ("opened", _MOMENT),
        ("last_commit", _MOMENT),
        ("uncommitted_objects", pa.int64()),
        ("uncommitted_bytes", pa.int64()),
        ("shard", pa.string()),
    ]
)


@dataclass(slots=True)
class _Times:
    """What the log of the txns shard, as far as it is kept, tells of times."""

    last: dict[str, int] = field(default_factory=dict)
    """Per session the time of its last commit."""
    seqnos: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)

    def at(self, seqno: int) -> int | None:
        """The time of the last commit up to that record; None if that is not known any more."""
        index = bisect_right(self.seqnos, seqno)
        return self.times[index - 1] if index else None


def sessions(store: Store, deadline: Deadline) -> pa.Table:
    """One row per session that a shard knows, as `SESSIONS`."""
    txns = store.txns
    look = txns.look(deadline)
    names = {version.table: version.name for version in txns.tables(look)}
    holders = _holders(store, deadline)
    times = _times(store, deadline)
    found = [
        each for machine in all_machines(store, deadline) for each in registered(machine, deadline)
    ]
    listed = listed_of(store, [each.name for each in found], deadline)
    needed, _ = needed_of(store, [key for keys in listed.values() for key in keys], deadline)
    rows = []
    for each in found:
        left = [info.size for key, info in listed[each.name].items() if str(key) not in needed]
        central = each.machine is txns.machine
        rows.append(
            {
                "table": names.get(each.machine.shard),
                "session": each.name,
                "worker": _worker(each, holders) or None,
                "state": stage_of(each.session).value,
                "records": each.session.count,
                "holds": sorted(
                    names.get(table, table)
                    for table, holder in holders.items()
                    if holder.session == each.name
                ),
                "opened": _moment(times.at(each.session.opened) if central else None),
                "last_commit": _moment(times.last.get(each.name)),
                "uncommitted_objects": len(left),
                "uncommitted_bytes": sum(left),
                "shard": each.machine.shard,
            }
        )
    return pa.Table.from_pylist(rows, schema=SESSIONS)


def force_ack(
    store: Store, session: str | None, worker: str | None, deadline: Deadline
) -> list[str]:
    """Ends sessions, where they are open, and says that their owners write no objects any more."""
    if (session is None) == (worker is None):
        raise UsageError("pass session= for one session, or worker= for all of a worker")
    store.check_writable()
    holders = _holders(store, deadline)
    found = [
        each
        for machine in all_machines(store, deadline)
        for each in registered(machine, deadline)
        if (each.name == session if worker is None else _worker(each, holders) == worker)
    ]
    if not found:
        who = f"session {session!r}" if worker is None else f"session of worker {worker!r}"
        raise UsageError(f"there is no {who}; `strandline sessions` lists those that there are")
    done = []
    for each in found:
        if each.name == each.machine.session:
            raise UsageError(f"session {each.name} is this handle's own; close it instead")
        if each.session.expired is None:
            # Refused if it wrote something since it was looked at: its owner lives.
            command = Expire(each.name, each.session.count)
            if not each.machine.submit(command, deadline):
                raise UsageError(
                    f"session {each.name} is at work: it wrote a record just now; stop its owner "
                    "first, or attach the table to take it over"
                )
        if each.machine.submit(Acknowledge(each.name), deadline):
            done.append(each.name)
    return done


def _holders(store: Store, deadline: Deadline) -> dict[str, Holder]:
    """Who holds each table, by its id."""
    look = store.txns.look(deadline)
    found = look.ask(lambda s: [(key[0], h) for key, h in s.holders.range() if h.session])
    return dict(found)


def _worker(each: Registered, holders: Mapping[str, Holder]) -> str:
    """What the session's owner calls itself."""
    held = [holder.worker for holder in holders.values() if holder.session == each.name]
    return held[0] if held else each.session.worker


def _times(store: Store, deadline: Deadline) -> _Times:
    times = _Times()
    for record in store.txns.machine.records(deadline=deadline):
        commits = _commits(record.note)
        if commits:
            last = max(commits)
            times.last[record.session] = last
            times.seqnos.append(record.seqno)
            times.times.append(last)
    return times


def _commits(note: str) -> list[int]:
    """The times of the commits that a record tells of."""
    try:
        said: Any = json.loads(note)
        return [commit["time"] for commit in said["commits"]]
    except (ValueError, TypeError, LookupError):
        return []


def _moment(time: int | None) -> Any:
    return None if time is None else datetime_of(time)
