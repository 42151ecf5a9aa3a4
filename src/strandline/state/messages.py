"""The way between the values of `strandline.state.model` and the messages of `strandline.proto`.

`COLLECTIONS` tells, per collection of the state, how its keys and its values are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, cast

from strandline.state import strandline_pb2 as pb
from strandline.state.model import (
    Batch,
    Dead,
    Entry,
    Hold,
    Holder,
    Interval,
    Key,
    Leaf,
    Mark,
    Meta,
    Origin,
    Part,
    PartUse,
    Receipt,
    Reference,
    Rollup,
    Session,
    TableKind,
    TableVersion,
    Tidied,
    TokenWindow,
    Value,
)

__all__ = [
    "COLLECTIONS",
    "NAMES",
    "Stored",
    "get_batch",
    "get_key",
    "get_rollup",
    "put_batch",
    "put_key",
    "put_rollup",
]

# --- parts and batches


def _put_part(message: pb.Part, part: Part) -> None:
    message.key = part.key
    message.size = part.size
    message.rows = part.rows
    message.lower = part.lower
    message.upper = part.upper
    if part.time_min is not None:
        message.time_min = part.time_min
    if part.time_max is not None:
        message.time_max = part.time_max
    message.has_diff = part.has_diff
    message.distinct = part.distinct
    message.footer_size = part.footer_size
    message.footer_crc = part.footer_crc
    message.statistics = part.statistics
    message.schema_version = part.schema_version
    message.has_end = part.has_end
    message.filter = part.filter


def _get_part(message: pb.Part) -> Part:
    return Part(
        message.key,
        message.size,
        message.rows,
        message.lower,
        message.upper,
        message.time_min if message.HasField("time_min") else None,
        message.time_max if message.HasField("time_max") else None,
        message.has_diff,
        message.distinct,
        message.footer_size,
        message.footer_crc,
        message.statistics,
        message.schema_version,
        message.has_end,
        message.filter,
    )


def put_batch(message: pb.Batch, batch: Batch) -> None:
    """Writes a batch into an empty message."""
    for part in batch.parts:
        _put_part(message.parts.add(), part)
    message.inline = batch.inline
    message.rows = batch.rows
    message.lower = batch.lower
    message.upper = batch.upper
    message.has_diff = batch.has_diff
    message.distinct = batch.distinct
    message.schema_version = batch.schema_version


def get_batch(message: pb.Batch) -> Batch:
    """The inverse of `put_batch`."""
    return Batch(
        tuple([_get_part(part) for part in message.parts]),
        message.inline,
        message.rows,
        message.lower,
        message.upper,
        message.has_diff,
        message.distinct,
        message.schema_version,
    )


# --- values: per collection, how its key and its value go in and come out


def _put_meta(item: pb.Item, meta: Meta, _: Key) -> None:
    message = item.meta
    message.format = meta.format
    if meta.upper is not None:
        message.upper = meta.upper
    if meta.since is not None:
        message.since = meta.since
    message.leaves = meta.leaves
    message.references = meta.references
    message.origin = meta.origin
    message.claim = meta.claim
    if meta.frozen is not None:
        message.frozen = meta.frozen
    message.jumped = meta.jumped
    message.since_jump = meta.since_jump
    message.ahead = meta.ahead
    message.owner = meta.owner
    message.joins = meta.joins


def _get_meta(item: pb.Item, _: Key) -> Meta:
    message = item.meta
    return Meta(
        message.format,
        message.upper if message.HasField("upper") else None,
        message.since if message.HasField("since") else None,
        message.leaves,
        message.references,
        cast("Origin", message.origin),
        message.claim,
        message.frozen if message.HasField("frozen") else None,
        message.jumped,
        message.since_jump,
        message.ahead,
        message.owner,
        message.joins,
    )


def _put_session(item: pb.Item, session: Session, _: Key) -> None:
    message = item.session
    message.count = session.count
    message.opened = session.opened
    if session.expired is not None:
        message.expired = session.expired
    if session.acknowledged is not None:
        message.acknowledged = session.acknowledged
    if session.swept is not None:
        message.swept = session.swept
    message.worker = session.worker


def _get_session(item: pb.Item, _: Key) -> Session:
    message = item.session
    expired = message.expired if message.HasField("expired") else None
    acknowledged = message.acknowledged if message.HasField("acknowledged") else None
    swept = message.swept if message.HasField("swept") else None
    return Session(message.count, message.opened, expired, acknowledged, swept, message.worker)


def _put_holder(item: pb.Item, holder: Holder, _: Key) -> None:
    message = item.holder
    message.epoch = holder.epoch
    message.session = holder.session
    message.worker = holder.worker
    message.position = holder.position
    message.SetInParent()


def _get_holder(item: pb.Item, _: Key) -> Holder:
    message = item.holder
    return Holder(message.epoch, message.session, message.worker, message.position)


def _put_hold(item: pb.Item, hold: Hold, _: Key) -> None:
    message = item.hold
    if hold.since is not None:
        message.since = hold.since
    if hold.seqno is not None:
        message.seqno = hold.seqno
    message.epoch = hold.epoch
    message.session = hold.session
    message.kind = hold.kind
    message.note = hold.note
    message.SetInParent()


def _get_hold(item: pb.Item, _: Key) -> Hold:
    message = item.hold
    since = message.since if message.HasField("since") else None
    seqno = message.seqno if message.HasField("seqno") else None
    return Hold(since, seqno, message.epoch, message.session, message.kind, message.note)


def _put_mark(item: pb.Item, mark: Mark, _: Key) -> None:
    item.mark.at = mark.at


def _get_mark(item: pb.Item, _: Key) -> Mark:
    return Mark(item.mark.at)


def _put_receipt(item: pb.Item, receipt: Receipt, _: Key) -> None:
    message = item.receipt
    message.last = receipt.last
    message.key = receipt.key
    message.size = receipt.size


def _get_receipt(item: pb.Item, _: Key) -> Receipt:
    return Receipt(item.receipt.last, item.receipt.key, item.receipt.size)


def _put_leaf(item: pb.Item, leaf: Leaf, key: Key) -> None:
    _agree(key, (leaf.interval.lower,))
    message = item.leaf
    message.id = leaf.id
    if leaf.interval.upper is not None:
        message.upper = leaf.interval.upper
    if leaf.parent is not None:
        message.parent = leaf.parent


def _get_leaf(item: pb.Item, key: Key) -> Leaf:
    message = item.leaf
    upper = message.upper if message.HasField("upper") else None
    parent = message.parent if message.HasField("parent") else None
    return Leaf(message.id, Interval(key[0], upper), parent)


def _put_reference(item: pb.Item, reference: Reference, key: Key) -> None:
    _agree(key[2:], (reference.id,))
    message = item.reference
    # An interval with two empty bounds would leave the message itself unset.
    message.interval.SetInParent()
    message.interval.lower = reference.interval.lower
    if reference.interval.upper is not None:
        message.interval.upper = reference.interval.upper
    _put_part(message.part, reference.part)
    message.time = reference.time
    message.leaf = reference.leaf
    if reference.reads_before is not None:
        message.reads_before = reference.reads_before
    if reference.rows_from is not None:
        message.rows_from = reference.rows_from


def _get_reference(item: pb.Item, key: Key) -> Reference:
    message = item.reference
    bounds = message.interval
    interval = Interval(bounds.lower, bounds.upper if bounds.HasField("upper") else None)
    return Reference(
        key[2],
        message.leaf,
        interval,
        _get_part(message.part),
        message.time,
        message.reads_before if message.HasField("reads_before") else None,
        message.rows_from if message.HasField("rows_from") else None,
    )


def _put_part_use(item: pb.Item, use: PartUse, _: Key) -> None:
    message = item.part_use
    message.references = use.references
    message.born = use.born


def _get_part_use(item: pb.Item, _: Key) -> PartUse:
    return PartUse(item.part_use.references, item.part_use.born)


def _put_dead(item: pb.Item, dead: Dead, key: Key) -> None:
    _agree(key, (dead.dead, dead.key))
    message = item.dead
    message.born = dead.born
    message.size = dead.size


def _get_dead(item: pb.Item, key: Key) -> Dead:
    return Dead(key[1], item.dead.born, key[0], item.dead.size)


def put_rollup(message: pb.Rollup, rollup: Rollup) -> None:
    """Writes a rollup's name into an empty message."""
    message.seqno = rollup.seqno
    message.key = rollup.key
    message.size = rollup.size
    message.verified = rollup.verified


def get_rollup(message: pb.Rollup) -> Rollup:
    """The inverse of `put_rollup`."""
    return Rollup(message.seqno, message.key, message.size, message.verified)


def _put_rollup_item(item: pb.Item, rollup: Rollup, key: Key) -> None:
    _agree(key, (rollup.seqno,))
    put_rollup(item.rollup, rollup)


def _get_rollup_item(item: pb.Item, _: Key) -> Rollup:
    return get_rollup(item.rollup)


def _put_table_version(item: pb.Item, version: TableVersion, key: Key) -> None:
    _agree(key, (version.table, version.version))
    message = item.table_version
    message.name = version.name
    message.valid_from = version.valid_from
    if version.valid_until is not None:
        message.valid_until = version.valid_until
    message.created = version.created
    message.kind = version.kind
    message.schema = version.schema
    message.row_keys.extend(version.row_keys)
    message.sort_keys.extend(version.sort_keys)
    for name, value in version.properties:
        message.properties.add(name=name, value=value)
    message.keep = version.keep
    for name, value in version.aggregate:
        message.aggregate.add(name=name, value=value)


def _get_table_version(item: pb.Item, key: Key) -> TableVersion:
    message = item.table_version
    return TableVersion(
        table=key[0],
        version=key[1],
        name=message.name,
        valid_from=message.valid_from,
        valid_until=message.valid_until if message.HasField("valid_until") else None,
        created=message.created,
        kind=cast("TableKind", message.kind),
        schema=message.schema,
        row_keys=tuple(message.row_keys),
        sort_keys=tuple(message.sort_keys),
        properties=tuple((pair.name, pair.value) for pair in message.properties),
        keep=message.keep,
        aggregate=tuple((pair.name, pair.value) for pair in message.aggregate),
    )


def _put_entry(item: pb.Item, entry: Entry, key: Key) -> None:
    _agree(key, (entry.table, entry.time, entry.ordinal))
    message = item.entry
    message.session = entry.session
    put_batch(message.batch, entry.batch)


def _get_entry(item: pb.Item, key: Key) -> Entry:
    return Entry(key[0], key[1], key[2], item.entry.session, get_batch(item.entry.batch))


def _put_tidied(item: pb.Item, tidied: Tidied, _: Key) -> None:
    item.progress.tidied_through = tidied.tidied_through


def _get_tidied(item: pb.Item, _: Key) -> Tidied:
    return Tidied(item.progress.tidied_through)


def _put_token_window(item: pb.Item, window: TokenWindow, _: Key) -> None:
    message = item.token_window
    message.highest = window.highest
    message.numbers.extend([number for number, _ in window.results])
    message.times.extend([time for _, time in window.results])


def _get_token_window(item: pb.Item, _: Key) -> TokenWindow:
    message = item.token_window
    return TokenWindow(message.highest, tuple(zip(message.numbers, message.times, strict=True)))


def _agree(key: Key, said: Key) -> None:
    # What the key says is not stored in the value: were they to differ, the value would come
    # back as another one.
    if key != said:
        raise ValueError(f"the key {key!r} of a value that says {said!r}")


class Stored(NamedTuple):
    """How one collection is stored. `key`: the fields of a Key, in the tuple's order."""

    number: pb.Collection
    key: tuple[str, ...]
    field: str
    put: Callable[[pb.Item, Any, Key], None]
    get: Callable[[pb.Item, Key], Value]


COLLECTIONS: dict[str, Stored] = {
    "meta": Stored(pb.META, (), "meta", _put_meta, _get_meta),
    "sessions": Stored(pb.SESSIONS, ("text",), "session", _put_session, _get_session),
    "holds": Stored(pb.HOLDS, ("text",), "hold", _put_hold, _get_hold),
    "holders": Stored(pb.HOLDERS, ("text",), "holder", _put_holder, _get_holder),
    "leaves": Stored(pb.LEAVES, ("raw",), "leaf", _put_leaf, _get_leaf),
    "references": Stored(
        pb.REFERENCES, ("number", "raw", "second"), "reference", _put_reference, _get_reference
    ),
    "parts": Stored(pb.PARTS, ("text",), "part_use", _put_part_use, _get_part_use),
    "dead": Stored(pb.DEAD, ("number", "text"), "dead", _put_dead, _get_dead),
    "rollups": Stored(pb.ROLLUPS, ("number",), "rollup", _put_rollup_item, _get_rollup_item),
    "marks": Stored(pb.MARKS, ("number",), "mark", _put_mark, _get_mark),
    "receipts": Stored(pb.RECEIPTS, ("number",), "receipt", _put_receipt, _get_receipt),
    "tables": Stored(
        pb.TABLES, ("text", "number"), "table_version", _put_table_version, _get_table_version
    ),
    "entries": Stored(pb.ENTRIES, ("text", "number", "second"), "entry", _put_entry, _get_entry),
    "tidied": Stored(pb.TIDIED, ("text",), "progress", _put_tidied, _get_tidied),
    "tokens": Stored(pb.TOKENS, ("text",), "token_window", _put_token_window, _get_token_window),
}
NAMES: dict[int, str] = {entry.number: name for name, entry in COLLECTIONS.items()}


def put_key(message: pb.Key, fields: Sequence[str], key: Key) -> None:
    """Writes a key, whose pieces go into `fields` in order."""
    message.SetInParent()  # a key of zeros and empty strings is still a key
    for name, piece in zip(fields, key, strict=True):
        setattr(message, name, piece)


def get_key(message: pb.Key, fields: tuple[str, ...]) -> Key:
    """The inverse of `put_key`."""
    if len(fields) == 1:
        return (getattr(message, fields[0]),)
    return _pieces_of(fields)(message) if fields else ()


@cache
def _pieces_of(fields: tuple[str, ...]) -> Callable[[pb.Key], Key]:
    return attrgetter(*fields)
