"""Whether what a commit was computed from is still as it was, by a look at the tables themselves.

The state of a txns shard knows of recent commits only, and of a large one only its bounds. Where it
has to say no for want of knowledge, this reads the changes since, exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa

from strandline.changes.differences import Difference, Wanted
from strandline.changes.spans import Asked, spans_after
from strandline.env import Deadline
from strandline.errors import AsOfTooOld, TransactionConflict
from strandline.location import BlobMissing
from strandline.parts.typed import typed
from strandline.state.commands import Read, TableChange, Write
from strandline.state.model import TableVersion
from strandline.times import Commit
from strandline.txn.handle import Handle
from strandline.write.commit import WriteOptions, commit_writes

__all__ = ["Concerns", "commit_proven", "proven"]

Concerns = Callable[[str, pa.Table], bool]
"""Whether changes of keys of a table, given as a table of the keys, matter to the commit."""

_PROOFS_MAX = 8
"""How often a commit that was refused for want of knowledge is proven and tried again."""

_ROWS_MAX = 1 << 62


def commit_proven(
    handle: Handle,
    writes: Sequence[tuple[TableVersion, Write]],
    options: WriteOptions,
    changes: Sequence[TableChange],
    reads: Sequence[Read],
    concerns: Concerns,
) -> Commit:
    """The commit, if what was read is unchanged, by the state or else by the tables.

    One that is refused although nothing that it was computed from has changed is granted with
    reads that are known to be unchanged up to a later time, unless others have committed meanwhile
    once more.
    """
    for _ in range(_PROOFS_MAX):
        try:
            return commit_writes(handle, writes, options, changes, reads)
        except TransactionConflict:
            before = reads
            reads = [proven(handle, read, concerns, options.deadline) for read in reads]
            if reads == before:
                raise
    return commit_writes(handle, writes, options, changes, reads)


def proven(handle: Handle, read: Read, concerns: Concerns, deadline: Deadline) -> Read:
    """The same read, known to be unchanged up to a later time; else TransactionConflict."""
    store = handle.store
    asked = Asked(read.table, read.intervals)
    latest = store.txns.latest(store.txns.look(deadline))
    after = read.since - 1
    while after < latest:
        deadline.check("looking for what changed since it was read", may_have_happened=False)
        try:
            spans = spans_after(
                store, [asked], after, until=latest, rows_max=_ROWS_MAX, deadline=deadline
            )
        except AsOfTooOld as error:
            raise TransactionConflict(
                f"whether others changed what was read cannot be known any more: {error}"
            ) from error
        for span in spans.spans:
            schema = typed(span.version)[0]
            wanted = Wanted(span.version, schema.keys)
            # Where no time is left, the first request says so.
            difference = Difference(handle, wanted, spans, span, deadline.not_before(0.001))
            try:
                for changed in difference.tables():
                    if changed.num_rows and concerns(read.table, changed.select(schema.keys)):
                        raise TransactionConflict(
                            f"table {span.version.name!r} was changed by another commit where it "
                            "was read; nothing was written, try again"
                        )
            except BlobMissing:
                break  # compacted since it was planned: look again
        else:
            if spans.through <= after:
                break
            after = spans.through
    return replace(read, since=after + 1)
