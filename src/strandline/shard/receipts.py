"""Receipts: copies in Blob of the records that changed references, so that the log may go.

Should log and rollups be lost, the parts and these records still tell what belonged to the table.
"""

from __future__ import annotations

from itertools import count

from strandline.env import Deadline, Env
from strandline.errors import Corruption
from strandline.ids import ObjectKey, new_receipt_id
from strandline.location import Location
from strandline.shard.chain import record_name, verified
from strandline.shard.machine import Machine
from strandline.shard.opening import SCAN_RECORDS, Log
from strandline.state.codec import Copies, decode_receipt, decode_record, encode_receipt
from strandline.state.commands import KeepReceipts
from strandline.state.garbage import named_parts, touches_references
from strandline.state.model import Receipt

__all__ = ["parts_named", "write_receipt"]

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
) -> bool:
    """One receipt of the records from `first` on, up to `through` or as many as fit.

    Returns whether one was written; not if none of the records changed references. Of two that
    write one at once, the object of the one that comes late dies. Corruption where a record is
    missing: no receipt leaves one out in the middle.
    """
    copies: list[bytes] = []
    size = 0
    begin, last = first, first - 1
    while last < through and size < _BYTES_MAX:
        wanted = min(SCAN_RECORDS, through - last)
        found = log.scan(last + 1, deadline, wanted)
        if not found or found[0].seqno > through:
            break  # what is not there any more was copied before it was truncated
        if found[0].seqno != last + 1 and last >= first:
            break  # truncated meanwhile: another has copied these
        for record, expected in zip(found, count(found[0].seqno)):
            if record.seqno > through or size >= _BYTES_MAX:
                break
            if record.seqno != expected:
                missing = record_name(machine.shard, expected)
                raise Corruption(f"{missing} is missing", object=missing)
            last = record.seqno
            if touches_references(verified(machine.shard, record).diffs):
                copies.append(record.data)
                size += len(record.data)
    if not copies:
        return False
    session = machine.live_session(deadline)
    key = ObjectKey(session, machine.shard, "receipt", new_receipt_id(env))
    machine.own.begins(str(key))
    data = encode_receipt(Copies(machine.shard, str(key), begin, last, tuple(copies)))
    location.blob.put(str(key), data, timeout=deadline.remaining())
    receipt = Receipt(last, str(key), len(data))
    machine.submit(KeepReceipts(added=((begin, receipt),)), deadline)
    return True


def parts_named(data: bytes, receipt: Receipt) -> set[str]:
    """The keys of the parts that the records in a receipt say something of."""
    copies = decode_receipt(data, receipt.key)
    named: set[str] = set()
    for raw in copies.records:
        named |= named_parts(decode_record(raw, receipt.key).diffs)
    return named
