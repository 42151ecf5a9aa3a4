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
from strandline.state.commands import Read
from strandline.txn.handle import Handle

__all__ = ["Concerns", "proven"]

Concerns = Callable[[str, pa.Table], bool]
"""Whether changes of keys of a table, given as a table of the keys, matter to the commit."""

_ROWS_MAX = 1 << 62


def proven(
    handle: Handle, reads: Sequence[Read], concerns: Concerns, deadline: Deadline
) -> list[Read]:
    """The same reads, known to be unchanged up to a later time; TransactionConflict if one is not.

    A commit that is refused although nothing it was computed from has changed is granted with
    these, unless others have committed meanwhile once more.
    """
    return [_proven(handle, read, concerns, deadline) for read in reads]


def _proven(handle: Handle, read: Read, concerns: Concerns, deadline: Deadline) -> Read:
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
