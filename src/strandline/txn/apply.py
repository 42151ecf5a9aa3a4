"""Apply: moves entries from the txns shard into a table's data shard. Anyone may, at any time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from strandline.env import Deadline
from strandline.errors import Fenced, UpperMismatch
from strandline.parts.files.inline import decode_together
from strandline.parts.files.write import write_part
from strandline.parts.rows.sort import sort_table
from strandline.parts.schema import TIME, TableSchema
from strandline.state.commands import Apply, ApplyResult
from strandline.state.model import Entry, Part, TableVersion
from strandline.state.tables import newest_version
from strandline.txn.store import Store

__all__ = ["Applied", "apply_table"]

PARTS_MAX = 10_000
"""Parts of several commits that go into one record: 20 MB of it, about."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What an apply moved, and the leaves (lower bounds; None: L0) that got parts."""

    commits: int
    leaves: frozenset[bytes | None]


def apply_table(
    store: Store,
    table: str,
    deadline: Deadline,
    *,
    commits_max: int | None = None,
    through: int | None = None,
) -> Applied:
    """Applies what is committed to the table, in bites.

    `commits_max` bounds how many; None: all that were committed when it began. `through`: those at
    times up to that one. Idempotent, and safe beside others that do the same: a crash between any
    two steps loses nothing.
    """
    # SUBTLE ◆: txns first, then data. Entries that are gone from `look` were applied before it
    # was read, so the data shard's upper, read after it, is beyond them.
    look = store.txns.look(deadline)
    version = look.ask(lambda s: newest_version(s, table))
    if version is None:
        return Applied(0, frozenset())
    data = store.data(table)
    found = data.look(deadline)
    store.check_committed(table, found, deadline)
    upper = found.meta.upper
    moved = 0
    fenced = False
    leaves: frozenset[bytes | None] = frozenset()
    while upper is not None:
        size = store.settings.apply_backlog_commits
        if commits_max is not None:
            size = min(size, commits_max - moved)
        bite = _bite(store.txns.overlay(look, table, upper, through), size)
        if not bite:
            break
        deadline.check(f"applying commits to table {version.name!r}", may_have_happened=True)
        try:
            done = _apply_bite(store, version, bite, upper, deadline)
        except Fenced:
            # The session under which rows were gathered ended after the last look at the shard.
            # Others may have applied meanwhile; what is left is gathered anew, under the next one.
            if fenced:
                raise
            fenced = True
            upper = data.look(deadline).meta.upper
            continue
        if done is None:
            break
        upper = done.upper
        leaves |= set(done.leaves)
        moved += len({entry.time for entry in bite})
    return Applied(moved, leaves)


def _bite(entries: tuple[Entry, ...], commits: int) -> list[Entry]:
    """The first `commits` times, whole ◆: a time is applied in one record or not at all."""
    bite: list[Entry] = []
    parts = 0
    for count, (_, entries_at) in enumerate(groupby(entries, key=lambda entry: entry.time)):
        found = list(entries_at)
        parts += sum(len(entry.batch.parts) for entry in found)
        # A record that no log takes would leave all of them unapplied for ever.
        if count == commits or (count and parts > PARTS_MAX):
            break
        bite += found
    return bite


def _apply_bite(
    store: Store, version: TableVersion, bite: list[Entry], upper: int, deadline: Deadline
) -> ApplyResult | None:
    """What it did; None if the shard was finished meanwhile."""
    parts = [(entry.time, part) for entry in bite for part in entry.batch.parts]
    inline = [entry for entry in bite if entry.batch.inline]
    if inline:
        part = _gather(store, version, inline, deadline)
        parts.append((inline[-1].time, part))
    machine = store.data(version.table)
    command = Apply(upper, bite[-1].time + 1, tuple(parts), store.owner)
    try:
        result = machine.submit(command, deadline)
    except UpperMismatch as error:
        # Somebody else applied these or some of them. What was written here is referenced by
        # nobody; the sweep of this session's prefix finds it. Who finished the shard of a dropped
        # table had applied all of them.
        return None if error.upper is None else ApplyResult(error.upper)
    store.txns.to_be_tidied((e.table, e.time, e.ordinal) for e in bite)
    return result


def _gather(store: Store, version: TableVersion, inline: list[Entry], deadline: Deadline) -> Part:
    """One sorted part of the rows of many small commits, each row with its commit time."""
    schema = TableSchema.from_version(version)
    session = store.data(version.table).live_session(deadline, brief=True)
    table = decode_together(inline, schema)
    if len({entry.time for entry in inline}) == 1:
        table = table.drop_columns([TIME])  # the reference says the time
        ordered = sort_table(table, schema.keys)
    else:
        ordered = sort_table(table, schema.keys, then=(TIME,))
    return write_part(
        store.location.blob,
        store.new_part_key(version.table, session),
        ordered,
        schema,
        identity=store.identity(version, session),
        settings=store.settings,
        deadline=deadline,
    )
