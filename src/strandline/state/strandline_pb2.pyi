from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Collection(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COLLECTION_UNSPECIFIED: _ClassVar[Collection]
    META: _ClassVar[Collection]
    SESSIONS: _ClassVar[Collection]
    LEAVES: _ClassVar[Collection]
    REFERENCES: _ClassVar[Collection]
    PARTS: _ClassVar[Collection]
    DEAD: _ClassVar[Collection]
    ROLLUPS: _ClassVar[Collection]
    TABLES: _ClassVar[Collection]
    ENTRIES: _ClassVar[Collection]
    TIDIED: _ClassVar[Collection]
    TOKENS: _ClassVar[Collection]
    HOLDS: _ClassVar[Collection]
    MARKS: _ClassVar[Collection]
    RECEIPTS: _ClassVar[Collection]
    HOLDERS: _ClassVar[Collection]
COLLECTION_UNSPECIFIED: Collection
META: Collection
SESSIONS: Collection
LEAVES: Collection
REFERENCES: Collection
PARTS: Collection
DEAD: Collection
ROLLUPS: Collection
TABLES: Collection
ENTRIES: Collection
TIDIED: Collection
TOKENS: Collection
HOLDS: Collection
MARKS: Collection
RECEIPTS: Collection
HOLDERS: Collection

class Key(_message.Message):
    __slots__ = ("text", "number", "second", "raw")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SECOND_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    text: str
    number: int
    second: int
    raw: bytes
    def __init__(self, text: _Optional[str] = ..., number: _Optional[int] = ..., second: _Optional[int] = ..., raw: _Optional[bytes] = ...) -> None: ...

class Interval(_message.Message):
    __slots__ = ("lower", "upper")
    LOWER_FIELD_NUMBER: _ClassVar[int]
    UPPER_FIELD_NUMBER: _ClassVar[int]
    lower: bytes
    upper: bytes
    def __init__(self, lower: _Optional[bytes] = ..., upper: _Optional[bytes] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("key", "size", "rows", "lower", "upper", "time_min", "time_max", "has_diff", "distinct", "footer_size", "footer_crc", "statistics", "schema_version", "has_end", "filter")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    LOWER_FIELD_NUMBER: _ClassVar[int]
    UPPER_FIELD_NUMBER: _ClassVar[int]
    TIME_MIN_FIELD_NUMBER: _ClassVar[int]
    TIME_MAX_FIELD_NUMBER: _ClassVar[int]
    HAS_DIFF_FIELD_NUMBER: _ClassVar[int]
    DISTINCT_FIELD_NUMBER: _ClassVar[int]
    FOOTER_SIZE_FIELD_NUMBER: _ClassVar[int]
    FOOTER_CRC_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    HAS_END_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    key: str
    size: int
    rows: int
    lower: bytes
    upper: bytes
    time_min: int
    time_max: int
    has_diff: bool
    distinct: bool
    footer_size: int
    footer_crc: int
    statistics: bytes
    schema_version: int
    has_end: bool
    filter: bytes
    def __init__(self, key: _Optional[str] = ..., size: _Optional[int] = ..., rows: _Optional[int] = ..., lower: _Optional[bytes] = ..., upper: _Optional[bytes] = ..., time_min: _Optional[int] = ..., time_max: _Optional[int] = ..., has_diff: _Optional[bool] = ..., distinct: _Optional[bool] = ..., footer_size: _Optional[int] = ..., footer_crc: _Optional[int] = ..., statistics: _Optional[bytes] = ..., schema_version: _Optional[int] = ..., has_end: _Optional[bool] = ..., filter: _Optional[bytes] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("parts", "inline", "rows", "lower", "upper", "has_diff", "distinct", "schema_version")
    PARTS_FIELD_NUMBER: _ClassVar[int]
    INLINE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    LOWER_FIELD_NUMBER: _ClassVar[int]
    UPPER_FIELD_NUMBER: _ClassVar[int]
    HAS_DIFF_FIELD_NUMBER: _ClassVar[int]
    DISTINCT_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    inline: bytes
    rows: int
    lower: bytes
    upper: bytes
    has_diff: bool
    distinct: bool
    schema_version: int
    def __init__(self, parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., inline: _Optional[bytes] = ..., rows: _Optional[int] = ..., lower: _Optional[bytes] = ..., upper: _Optional[bytes] = ..., has_diff: _Optional[bool] = ..., distinct: _Optional[bool] = ..., schema_version: _Optional[int] = ...) -> None: ...

class Meta(_message.Message):
    __slots__ = ("format", "upper", "since", "leaves", "references", "origin", "claim", "frozen", "jumped", "since_jump", "ahead", "owner", "joins")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    UPPER_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    JUMPED_FIELD_NUMBER: _ClassVar[int]
    SINCE_JUMP_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    JOINS_FIELD_NUMBER: _ClassVar[int]
    format: int
    upper: int
    since: int
    leaves: int
    references: int
    origin: str
    claim: str
    frozen: int
    jumped: int
    since_jump: int
    ahead: int
    owner: str
    joins: int
    def __init__(self, format: _Optional[int] = ..., upper: _Optional[int] = ..., since: _Optional[int] = ..., leaves: _Optional[int] = ..., references: _Optional[int] = ..., origin: _Optional[str] = ..., claim: _Optional[str] = ..., frozen: _Optional[int] = ..., jumped: _Optional[int] = ..., since_jump: _Optional[int] = ..., ahead: _Optional[int] = ..., owner: _Optional[str] = ..., joins: _Optional[int] = ...) -> None: ...

class Session(_message.Message):
    __slots__ = ("count", "opened", "expired", "acknowledged", "swept", "worker")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    SWEPT_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    count: int
    opened: int
    expired: int
    acknowledged: int
    swept: int
    worker: str
    def __init__(self, count: _Optional[int] = ..., opened: _Optional[int] = ..., expired: _Optional[int] = ..., acknowledged: _Optional[int] = ..., swept: _Optional[int] = ..., worker: _Optional[str] = ...) -> None: ...

class Holder(_message.Message):
    __slots__ = ("epoch", "session", "worker", "position")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    session: str
    worker: str
    position: str
    def __init__(self, epoch: _Optional[int] = ..., session: _Optional[str] = ..., worker: _Optional[str] = ..., position: _Optional[str] = ...) -> None: ...

class Hold(_message.Message):
    __slots__ = ("since", "seqno", "epoch", "session", "kind", "note")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    SEQNO_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    since: int
    seqno: int
    epoch: int
    session: str
    kind: str
    note: str
    def __init__(self, since: _Optional[int] = ..., seqno: _Optional[int] = ..., epoch: _Optional[int] = ..., session: _Optional[str] = ..., kind: _Optional[str] = ..., note: _Optional[str] = ...) -> None: ...

class Mark(_message.Message):
    __slots__ = ("at",)
    AT_FIELD_NUMBER: _ClassVar[int]
    at: int
    def __init__(self, at: _Optional[int] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("last", "key", "size")
    LAST_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    last: int
    key: str
    size: int
    def __init__(self, last: _Optional[int] = ..., key: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class Leaf(_message.Message):
    __slots__ = ("id", "upper", "parent")
    ID_FIELD_NUMBER: _ClassVar[int]
    UPPER_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    id: int
    upper: bytes
    parent: int
    def __init__(self, id: _Optional[int] = ..., upper: _Optional[bytes] = ..., parent: _Optional[int] = ...) -> None: ...

class Reference(_message.Message):
    __slots__ = ("interval", "part", "time", "leaf", "reads_before", "rows_from")
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    LEAF_FIELD_NUMBER: _ClassVar[int]
    READS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FROM_FIELD_NUMBER: _ClassVar[int]
    interval: Interval
    part: Part
    time: int
    leaf: int
    reads_before: int
    rows_from: int
    def __init__(self, interval: _Optional[_Union[Interval, _Mapping]] = ..., part: _Optional[_Union[Part, _Mapping]] = ..., time: _Optional[int] = ..., leaf: _Optional[int] = ..., reads_before: _Optional[int] = ..., rows_from: _Optional[int] = ...) -> None: ...

class PartUse(_message.Message):
    __slots__ = ("references", "born")
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    BORN_FIELD_NUMBER: _ClassVar[int]
    references: int
    born: int
    def __init__(self, references: _Optional[int] = ..., born: _Optional[int] = ...) -> None: ...

class Dead(_message.Message):
    __slots__ = ("born", "size")
    BORN_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    born: int
    size: int
    def __init__(self, born: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class Rollup(_message.Message):
    __slots__ = ("seqno", "key", "size", "verified")
    SEQNO_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    seqno: int
    key: str
    size: int
    verified: bool
    def __init__(self, seqno: _Optional[int] = ..., key: _Optional[str] = ..., size: _Optional[int] = ..., verified: _Optional[bool] = ...) -> None: ...

class TableVersion(_message.Message):
    __slots__ = ("name", "valid_from", "valid_until", "created", "kind", "schema", "row_keys", "sort_keys", "properties", "keep", "aggregate")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALID_FROM_FIELD_NUMBER: _ClassVar[int]
    VALID_UNTIL_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    ROW_KEYS_FIELD_NUMBER: _ClassVar[int]
    SORT_KEYS_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    AGGREGATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    valid_from: int
    valid_until: int
    created: int
    kind: str
    schema: bytes
    row_keys: _containers.RepeatedScalarFieldContainer[str]
    sort_keys: _containers.RepeatedScalarFieldContainer[str]
    properties: _containers.RepeatedCompositeFieldContainer[Pair]
    keep: str
    aggregate: _containers.RepeatedCompositeFieldContainer[Pair]
    def __init__(self, name: _Optional[str] = ..., valid_from: _Optional[int] = ..., valid_until: _Optional[int] = ..., created: _Optional[int] = ..., kind: _Optional[str] = ..., schema: _Optional[bytes] = ..., row_keys: _Optional[_Iterable[str]] = ..., sort_keys: _Optional[_Iterable[str]] = ..., properties: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ..., keep: _Optional[str] = ..., aggregate: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ...) -> None: ...

class Pair(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("session", "batch")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    session: str
    batch: Batch
    def __init__(self, session: _Optional[str] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("tidied_through",)
    TIDIED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    tidied_through: int
    def __init__(self, tidied_through: _Optional[int] = ...) -> None: ...

class TokenWindow(_message.Message):
    __slots__ = ("highest", "numbers", "times")
    HIGHEST_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    highest: int
    numbers: _containers.RepeatedScalarFieldContainer[int]
    times: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, highest: _Optional[int] = ..., numbers: _Optional[_Iterable[int]] = ..., times: _Optional[_Iterable[int]] = ...) -> None: ...

class Item(_message.Message):
    __slots__ = ("collection", "key", "meta", "session", "leaf", "reference", "part_use", "dead", "rollup", "table_version", "entry", "progress", "token_window", "hold", "mark", "receipt", "holder")
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    META_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    LEAF_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    PART_USE_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    ROLLUP_FIELD_NUMBER: _ClassVar[int]
    TABLE_VERSION_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_WINDOW_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    collection: Collection
    key: Key
    meta: Meta
    session: Session
    leaf: Leaf
    reference: Reference
    part_use: PartUse
    dead: Dead
    rollup: Rollup
    table_version: TableVersion
    entry: Entry
    progress: Progress
    token_window: TokenWindow
    hold: Hold
    mark: Mark
    receipt: Receipt
    holder: Holder
    def __init__(self, collection: _Optional[_Union[Collection, str]] = ..., key: _Optional[_Union[Key, _Mapping]] = ..., meta: _Optional[_Union[Meta, _Mapping]] = ..., session: _Optional[_Union[Session, _Mapping]] = ..., leaf: _Optional[_Union[Leaf, _Mapping]] = ..., reference: _Optional[_Union[Reference, _Mapping]] = ..., part_use: _Optional[_Union[PartUse, _Mapping]] = ..., dead: _Optional[_Union[Dead, _Mapping]] = ..., rollup: _Optional[_Union[Rollup, _Mapping]] = ..., table_version: _Optional[_Union[TableVersion, _Mapping]] = ..., entry: _Optional[_Union[Entry, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., token_window: _Optional[_Union[TokenWindow, _Mapping]] = ..., hold: _Optional[_Union[Hold, _Mapping]] = ..., mark: _Optional[_Union[Mark, _Mapping]] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ..., holder: _Optional[_Union[Holder, _Mapping]] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("shard", "seqno", "session", "count", "predecessor", "command", "note", "rollup", "diffs")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SEQNO_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PREDECESSOR_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    ROLLUP_FIELD_NUMBER: _ClassVar[int]
    DIFFS_FIELD_NUMBER: _ClassVar[int]
    shard: str
    seqno: int
    session: str
    count: int
    predecessor: bytes
    command: str
    note: str
    rollup: Rollup
    diffs: _containers.RepeatedCompositeFieldContainer[Item]
    def __init__(self, shard: _Optional[str] = ..., seqno: _Optional[int] = ..., session: _Optional[str] = ..., count: _Optional[int] = ..., predecessor: _Optional[bytes] = ..., command: _Optional[str] = ..., note: _Optional[str] = ..., rollup: _Optional[_Union[Rollup, _Mapping]] = ..., diffs: _Optional[_Iterable[_Union[Item, _Mapping]]] = ...) -> None: ...

class Page(_message.Message):
    __slots__ = ("collection", "key", "shard", "items")
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    collection: Collection
    key: str
    shard: str
    items: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, collection: _Optional[_Union[Collection, str]] = ..., key: _Optional[str] = ..., shard: _Optional[str] = ..., items: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PageRef(_message.Message):
    __slots__ = ("key", "first", "items", "size")
    KEY_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    key: str
    first: Key
    items: int
    size: int
    def __init__(self, key: _Optional[str] = ..., first: _Optional[_Union[Key, _Mapping]] = ..., items: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class CollectionPages(_message.Message):
    __slots__ = ("collection", "pages", "inline")
    COLLECTION_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    INLINE_FIELD_NUMBER: _ClassVar[int]
    collection: Collection
    pages: _containers.RepeatedCompositeFieldContainer[PageRef]
    inline: Page
    def __init__(self, collection: _Optional[_Union[Collection, str]] = ..., pages: _Optional[_Iterable[_Union[PageRef, _Mapping]]] = ..., inline: _Optional[_Union[Page, _Mapping]] = ...) -> None: ...

class Manifest(_message.Message):
    __slots__ = ("shard", "key", "seqno", "hash", "collections")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SEQNO_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    COLLECTIONS_FIELD_NUMBER: _ClassVar[int]
    shard: str
    key: str
    seqno: int
    hash: bytes
    collections: _containers.RepeatedCompositeFieldContainer[CollectionPages]
    def __init__(self, shard: _Optional[str] = ..., key: _Optional[str] = ..., seqno: _Optional[int] = ..., hash: _Optional[bytes] = ..., collections: _Optional[_Iterable[_Union[CollectionPages, _Mapping]]] = ...) -> None: ...

class Copies(_message.Message):
    __slots__ = ("shard", "key", "first", "last", "records")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    shard: str
    key: str
    first: int
    last: int
    records: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, shard: _Optional[str] = ..., key: _Optional[str] = ..., first: _Optional[int] = ..., last: _Optional[int] = ..., records: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Staged(_message.Message):
    __slots__ = ("database", "writes", "reads", "ids")
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    database: str
    writes: _containers.RepeatedCompositeFieldContainer[StagedWrite]
    reads: _containers.RepeatedCompositeFieldContainer[StagedRead]
    ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, database: _Optional[str] = ..., writes: _Optional[_Iterable[_Union[StagedWrite, _Mapping]]] = ..., reads: _Optional[_Iterable[_Union[StagedRead, _Mapping]]] = ..., ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Txn(_message.Message):
    __slots__ = ("txns", "ids", "begun", "writes")
    TXNS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    txns: str
    ids: _containers.RepeatedScalarFieldContainer[str]
    begun: int
    writes: _containers.RepeatedCompositeFieldContainer[StagedWrite]
    def __init__(self, txns: _Optional[str] = ..., ids: _Optional[_Iterable[str]] = ..., begun: _Optional[int] = ..., writes: _Optional[_Iterable[_Union[StagedWrite, _Mapping]]] = ...) -> None: ...

class StagedWrite(_message.Message):
    __slots__ = ("table", "batch", "affected")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    AFFECTED_FIELD_NUMBER: _ClassVar[int]
    table: str
    batch: Batch
    affected: int
    def __init__(self, table: _Optional[str] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ..., affected: _Optional[int] = ...) -> None: ...

class StagedRead(_message.Message):
    __slots__ = ("table", "since", "lower", "upper", "open")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    LOWER_FIELD_NUMBER: _ClassVar[int]
    UPPER_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    table: str
    since: int
    lower: _containers.RepeatedScalarFieldContainer[bytes]
    upper: _containers.RepeatedScalarFieldContainer[bytes]
    open: bool
    def __init__(self, table: _Optional[str] = ..., since: _Optional[int] = ..., lower: _Optional[_Iterable[bytes]] = ..., upper: _Optional[_Iterable[bytes]] = ..., open: _Optional[bool] = ...) -> None: ...
