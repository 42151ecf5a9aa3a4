"""Receipts: copies in Blob of the records that changed references, so that the log may go.

Should log and rollups be lost, the parts and these records still tell what belonged to the table.
"""

from __future__ import annotations

from strandline.env import Deadline, Env
from strandline.ids import ObjectKey, new_receipt_id
from strandline.location import Location
from strandline.shard.chain import verified
from strandline.shard.machine import Machine
from strandline.shard.opening import SCAN_RECORDS, Log
from strandline.state.codec import Copies, encode_receipt
from strandline.state.commands import KeepReceipts
from strandline.state.garbage import touches_references
from strandline.state.model import Receipt

__all__ = ["write_receipt"]

_BYTES_MAX = 4 << 20
"""Bytes of records in one receipt, about."""


def write_receipt(
    machine: Machine,
    location: Location,
    log: Log,
    env: Env,
    *,
    first: int,
    through: int,
    deadline: Deadline,
) -> int | None:
    """One receipt of the records from `first` on, up to `through` or as many as fit.

    Returns the seqno of the last record that is covered now; None if none up to `through` changed
    references, so that nothing was written. Of two that write one at once, the object of the one
    that comes late dies.
    """
    copies: list[bytes] = []
    size = 0
    begin, last = first, first - 1
    while last < through and size < _BYTES_MAX:
        wanted = min(SCAN_RECORDS, through - last)
        found = log.scan(last + 1, deadline, wanted)
        if not found or found[0].seqno > through:
            break  # what is not there any more was copied before it was truncated
        for record in found:
            if record.seqno > through or size >= _BYTES_MAX:
                break
            last = record.seqno
            if touches_references(verified(machine.shard, record).diffs):
                copies.append(record.data)
                size += len(record.data)
    if not copies:
        return None
    session = machine.live_session(timeout=deadline.remaining())
    key = ObjectKey(session, machine.shard, "receipt", new_receipt_id(env))
    data = encode_receipt(Copies(machine.shard, str(key), begin, last, tuple(copies)))
    location.blob.put(str(key), data, timeout=deadline.remaining())
    receipt = Receipt(last, str(key), len(data))
    machine.submit(KeepReceipts(added=((begin, receipt),)), timeout=deadline.remaining())
    return last
