"""State as bytes: records of the log, pages, rollup manifests, and batches between processes.

`strandline.proto` says what is stored; here are the header, the checksum and the way between
messages and the values of `strandline.state.model`. Whatever is not exactly what was written is
refused: `UsageError` when it was written in a newer format, `Corruption` naming the object for
everything else.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from strandline.errors import Corruption, UsageError
from strandline.state import strandline_pb2 as pb
from strandline.state.commands import Read, Write
from strandline.state.messages import (
    COLLECTIONS,
    NAMES,
    get_batch,
    get_key,
    get_rollup,
    put_batch,
    put_key,
    put_rollup,
)
from strandline.state.model import FORMAT, Batch, Diff, Interval, Key, Rollup, Value
from strandline.state.pages import Page, PageRef

__all__ = [
    "Copies",
    "LogRecord",
    "Manifest",
    "decode_batch",
    "decode_page",
    "decode_receipt",
    "decode_record",
    "decode_rollup",
    "decode_staged",
    "decode_txn",
    "encode_batch",
    "encode_item",
    "encode_page",
    "encode_receipt",
    "encode_record",
    "encode_rollup",
    "encode_staged",
    "encode_txn",
    "record_hash",
    "seal_page",
]

_HEADER = struct.Struct("<4sII")
_SIGNED = struct.Struct("<4sI")
_RECORD = b"SLrc"
_PAGE = b"SLpg"
_ROLLUP = b"SLru"
_BATCH = b"SLbt"
_RECEIPT = b"SLrt"
_STAGED = b"SLst"
_TXN = b"SLtx"
_WORDS = {
    _RECORD: "record",
    _PAGE: "page of state",
    _ROLLUP: "rollup",
    _RECEIPT: "receipt",
    _STAGED: "staged transaction",
    _TXN: "uncommitted transaction",
    _BATCH: "batch",
}

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record of a shard's log. (session, count) is its id."""

    shard: str
    seqno: int
    session: str
    count: int
    predecessor: bytes
    """Hash of the record before it (`record_hash`); 32 zero bytes in the first."""
    command: str
    """The command's name, for people."""
    note: str
    rollup: Rollup | None
    """The newest rollup when it was written."""
    diffs: tuple[Diff, ...]
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Manifest:
    """A rollup: per collection its pages, as references or, while it is small, as one page."""

    shard: str
    key: str
    """The object's own key in Blob."""
    seqno: int
    hash: bytes
    """Hash of the record with that seqno."""
    pages: Mapping[str, tuple[PageRef, ...] | Page[Any]]
    """Collections that are not here are empty."""


@dataclass(frozen=True, slots=True)
class Copies:
    """A receipt: those of the records `first` to `last` that changed references, as stored."""

    shard: str
    key: str
    """The object's own key in Blob."""
    first: int
    last: int
    records: tuple[bytes, ...]


def record_hash(data: bytes) -> bytes:
    """SHA-256 of a whole encoded record: what its successor names."""
    return hashlib.sha256(data).digest()


# --- the header


def _seal(magic: bytes, payload: bytes, version: int = FORMAT) -> bytes:
    signed = _SIGNED.pack(magic, version)
    return signed + zlib.crc32(payload, zlib.crc32(signed)).to_bytes(4, "little") + payload


def _open(magic: bytes, data: bytes, object_name: str, message: type[M]) -> M:
    """The message in sealed bytes. Checksum first: a flipped bit must not look like a version."""
    what = _WORDS[magic]
    if len(data) < _HEADER.size:
        raise Corruption(
            f"{object_name} is no {what}: it has {len(data)} bytes, fewer than a header",
            object=object_name,
        )
    found, version, crc = _HEADER.unpack_from(data)
    if found != magic:
        other = _WORDS.get(found)
        raise Corruption(
            f"{object_name} is no {what}: "
            + (f"it is a {other}" if other else f"it begins with {found.hex()}"),
            object=object_name,
        )
    payload = memoryview(data)[_HEADER.size :]
    if zlib.crc32(payload, zlib.crc32(data[: _SIGNED.size])) != crc:
        raise Corruption(
            f"{object_name} is damaged: the checksum of its {len(data)} bytes does not fit",
            object=object_name,
        )
    if version > FORMAT:
        raise UsageError(
            f"{object_name} was written by a newer Strandline, format {version}; this one reads "
            f"up to format {FORMAT}: upgrade"
        )
    try:
        return message.FromString(payload.tobytes())
    except DecodeError as error:
        raise Corruption(
            f"{object_name} is no {what}: its bytes are intact but are no message ({error})",
            object=object_name,
        ) from error


def _check_key(magic: bytes, key: str, object_name: str) -> None:
    """Corruption if the object that was read under one key was stored under another."""
    if key != object_name:
        raise Corruption(
            f"{object_name} is another {_WORDS[magic]} than its key says: it was stored as {key}",
            object=object_name,
        )


def _open_given(magic: bytes, data: Any, what: str, message: type[M]) -> M:
    """The message in what a user gave."""
    if not isinstance(data, bytes):
        raise UsageError(f"{data!r:.200} are no bytes of {what}: pass what to_bytes returned")
    return _open(magic, data, what, message)


# --- records


def encode_record(record: LogRecord) -> bytes:
    """A record with header and checksum. Its format is always the newest."""
    message = pb.Record(
        shard=record.shard,
        seqno=record.seqno,
        session=record.session,
        count=record.count,
        predecessor=record.predecessor,
        command=record.command,
        note=record.note,
    )
    if record.rollup is not None:
        put_rollup(message.rollup, record.rollup)
    add = message.diffs.add
    for collection, key, after in record.diffs:
        how = COLLECTIONS[collection]
        item = add(collection=how.number)
        if how.key:
            put_key(item.key, how.key, key)
        if after is not None:
            how.put(item, after, key)
    return _seal(_RECORD, message.SerializeToString())


def decode_record(data: bytes, object_name: str) -> LogRecord:
    """The inverse of `encode_record`. Whether it is the right record is the caller's to check."""
    message = _open(_RECORD, data, object_name, pb.Record)
    return LogRecord(
        message.shard,
        message.seqno,
        message.session,
        message.count,
        message.predecessor,
        message.command,
        message.note,
        get_rollup(message.rollup) if message.HasField("rollup") else None,
        tuple([_diff(item, object_name) for item in message.diffs]),
        _HEADER.unpack_from(data)[1],
    )


def _diff(item: pb.Item, object_name: str) -> Diff:
    name = NAMES.get(item.collection)
    if name is None:
        raise _unknown(object_name, item.collection)
    how = COLLECTIONS[name]
    key = get_key(item.key, how.key)
    field = item.WhichOneof("value")
    if field is None:
        return Diff(name, key, None)
    if field != how.field:
        raise _foreign(object_name, name, field)
    return Diff(name, key, how.get(item, key))


def _unknown(object_name: str, collection: int) -> Corruption:
    return Corruption(
        f"{object_name} names a collection {collection} that there is not", object=object_name
    )


def _foreign(object_name: str, name: str, field: str | None) -> Corruption:
    return Corruption(
        f"{object_name} has a value of the kind {field} in the collection {name}",
        object=object_name,
    )


# --- pages


def encode_item(collection: str, key: Key, value: Value) -> bytes:
    """One item of a page, for `seal_page`."""
    how = COLLECTIONS[collection]
    item = pb.Item()
    if how.key:
        put_key(item.key, how.key, key)
    how.put(item, value, key)
    return item.SerializeToString()


def seal_page(collection: str, shard: str, key: str, items: Iterable[bytes]) -> bytes:
    """A page as an object of that key, from `encode_item`s in ascending order of their keys."""
    number = COLLECTIONS[collection].number
    message = pb.Page(collection=number, key=key, shard=shard, items=items)
    return _seal(_PAGE, message.SerializeToString())


def encode_page(collection: str, shard: str, key: str, page: Page[Any]) -> bytes:
    """A page as an object of that key."""
    items = [encode_item(collection, item, page.items[item]) for item in page.order]
    return seal_page(collection, shard, key, items)


def decode_page(collection: str, shard: str, data: bytes, object_name: str) -> Page[Any]:
    """The page of `collection` that was stored under the key `object_name`."""
    message = _open(_PAGE, data, object_name, pb.Page)
    said = (NAMES.get(message.collection), message.shard, message.key)
    if said != (collection, shard, object_name):
        raise Corruption(
            f"{object_name} is another page than its key says: {said[0]} of shard {said[1]}, "
            f"stored as {said[2]}, where {collection} of shard {shard} was expected",
            object=object_name,
        )
    return _get_page(collection, message, object_name)


def _get_page(collection: str, message: pb.Page, object_name: str) -> Page[Any]:
    how = COLLECTIONS[collection]
    fields, field, get = how.key, how.field, how.get
    items: dict[Key, Any] = {}
    try:
        for data in message.items:
            item = pb.Item.FromString(data)
            if not item.HasField(field):
                raise _foreign(object_name, collection, item.WhichOneof("value"))
            key = get_key(item.key, fields)
            items[key] = get(item, key)
    except DecodeError as error:
        raise Corruption(
            f"{object_name} has an item that is no message", object=object_name
        ) from error
    return Page(items, list(items))


# --- rollups


def encode_rollup(manifest: Manifest) -> bytes:
    """A manifest as an object."""
    message = pb.Manifest(
        shard=manifest.shard, key=manifest.key, seqno=manifest.seqno, hash=manifest.hash
    )
    for name, pages in manifest.pages.items():
        how = COLLECTIONS[name]
        stored = message.collections.add(collection=how.number)
        if isinstance(pages, Page):
            stored.inline.collection = how.number
            stored.inline.items.extend(
                [encode_item(name, key, pages.items[key]) for key in pages.order]
            )
            continue
        for ref in pages:
            page = stored.pages.add(key=ref.key, items=ref.items, size=ref.size)
            if ref.first:
                put_key(page.first, how.key, ref.first)
    return _seal(_ROLLUP, message.SerializeToString())


def decode_rollup(data: bytes, object_name: str) -> Manifest:
    """The manifest that was stored under the key `object_name`."""
    message = _open(_ROLLUP, data, object_name, pb.Manifest)
    _check_key(_ROLLUP, message.key, object_name)
    pages: dict[str, tuple[PageRef, ...] | Page[Any]] = {}
    for stored in message.collections:
        name = NAMES.get(stored.collection)
        if name is None:
            raise _unknown(object_name, stored.collection)
        if stored.HasField("inline"):
            pages[name] = _get_page(name, stored.inline, object_name)
        else:
            fields = COLLECTIONS[name].key
            pages[name] = tuple(
                PageRef(
                    page.key,
                    get_key(page.first, fields) if page.HasField("first") else (),
                    page.items,
                    page.size,
                )
                for page in stored.pages
            )
    return Manifest(message.shard, message.key, message.seqno, message.hash, pages)


# --- receipts


def encode_receipt(copies: Copies) -> bytes:
    """A receipt as an object."""
    message = pb.Copies(
        shard=copies.shard,
        key=copies.key,
        first=copies.first,
        last=copies.last,
        records=copies.records,
    )
    return _seal(_RECEIPT, message.SerializeToString())


def decode_receipt(data: bytes, object_name: str) -> Copies:
    """The receipt that was stored under the key `object_name`."""
    message = _open(_RECEIPT, data, object_name, pb.Copies)
    _check_key(_RECEIPT, message.key, object_name)
    records = tuple(message.records)
    return Copies(message.shard, message.key, message.first, message.last, records)


# --- batches


def encode_batch(batch: Batch) -> bytes:
    """A batch for another process."""
    message = pb.Batch()
    put_batch(message, batch)
    return _seal(_BATCH, message.SerializeToString())


def decode_batch(data: bytes, object_name: str = "a batch from another process") -> Batch:
    """The inverse of `encode_batch`."""
    return get_batch(_open(_BATCH, data, object_name, pb.Batch))


# --- staged transactions


def encode_staged(
    database: str, writes: Sequence[Write], reads: Sequence[Read], ids: Sequence[str]
) -> bytes:
    """A staged transaction for another process."""
    message = pb.Staged(database=database, ids=ids)
    for write in writes:
        added = message.writes.add(table=write.table, affected=write.affected)
        put_batch(added.batch, write.batch)
    for read in reads:
        intervals = sorted(read.intervals)
        message.reads.add(
            table=read.table,
            since=read.since,
            lower=[lower for lower, _ in intervals],
            upper=[upper or b"" for _, upper in intervals],
            open=bool(intervals) and intervals[-1].upper is None,
        )
    return _seal(_STAGED, message.SerializeToString())


def decode_staged(data: bytes) -> tuple[str, list[Write], list[Read], list[str]]:
    """The inverse of `encode_staged`."""
    message = _open_given(_STAGED, data, "a staged transaction", pb.Staged)
    writes = [
        Write(
            write.table,
            get_batch(write.batch),
            write.affected if write.HasField("affected") else None,
        )
        for write in message.writes
    ]
    reads = []
    for read in message.reads:
        uppers: list[bytes | None] = list(read.upper)
        if read.open:
            uppers[-1] = None
        intervals = tuple(map(Interval, read.lower, uppers))
        reads.append(Read(read.table, read.since, intervals))
    return message.database, writes, reads, list(message.ids)


# --- uncommitted transactions of a txns shard that is used by itself


def encode_txn(txns: str, ids: Sequence[str], begun: int, writes: Sequence[Write]) -> bytes:
    """An uncommitted transaction for another process. `ids`: its own first."""
    message = pb.Txn(txns=txns, ids=ids, begun=begun)
    for write in writes:
        put_batch(message.writes.add(table=write.table).batch, write.batch)
    return _seal(_TXN, message.SerializeToString())


def decode_txn(data: bytes) -> tuple[str, list[str], int, list[Write]]:
    """The inverse of `encode_txn`."""
    message = _open_given(_TXN, data, "an uncommitted transaction", pb.Txn)
    writes = [Write(write.table, get_batch(write.batch)) for write in message.writes]
    return message.txns, list(message.ids), message.begun, writes
