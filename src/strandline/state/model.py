"""What a shard's state is made of: immutable values, without I/O, clock or randomness.

A state is a fixed set of collections; each maps a key (a tuple that sorts) to one of the values
below. Commands change it only through diffs `(collection, key, after)`, so that any version of
the code can roll up what another wrote.

Times are int64; an upper or since of None is the empty frontier. Keys of rows appear here only in
their order-preserving encoding (`strandline.parts.keys`), so that nothing here depends on types.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

__all__ = [
    "COLLECTIONS",
    "EVERYTHING",
    "FORMAT",
    "L0",
    "Batch",
    "Dead",
    "Diff",
    "Entry",
    "Hold",
    "Holder",
    "Interval",
    "Key",
    "Leaf",
    "Mark",
    "Meta",
    "Origin",
    "Part",
    "PartUse",
    "Receipt",
    "Reference",
    "Rollup",
    "Session",
    "TableKind",
    "TableVersion",
    "Tidied",
    "TokenWindow",
    "Value",
]

FORMAT = 1
"""The version of every stored form; a reader refuses a newer one."""

L0 = 0
"""The leaf number of references that are not assigned to a leaf yet."""

Key = tuple[Any, ...]
TableKind = Literal["rows", "keyed", "aggregate"]
Origin = Literal["", "txns", "direct", "commits"]


class Interval(NamedTuple):
    """Encoded row keys from `lower` to before `upper`; an upper of None is the open end."""

    lower: bytes = b""
    upper: bytes | None = None

    def contains(self, key: bytes) -> bool:
        """Whether the encoded key, or any key that it is a prefix of, lies inside."""
        return self.lower <= key and (self.upper is None or key < self.upper)

    def intersect(self, other: Interval) -> Interval | None:
        """What both have, None when that is nothing."""
        lower = max(self.lower, other.lower)
        if self.upper is None or other.upper is None:
            upper = self.upper if other.upper is None else other.upper
        else:
            upper = min(self.upper, other.upper)
        return None if upper is not None and upper <= lower else Interval(lower, upper)


EVERYTHING = Interval()


@dataclass(frozen=True, slots=True)
class Part:
    """What its writer says of one immutable part; it never changes."""

    key: str
    """The object's key in Blob."""
    size: int
    """Bytes of the object."""
    rows: int
    lower: bytes
    """Encoded full key of the first row; a long one is cut, so that it may be below that."""
    upper: bytes
    """Encoded full key of the last row (included); in place of a long one a short one above it."""
    time_min: int | None = None
    time_max: int | None = None
    """Bounds of the `__time` column; None when the part has none."""
    has_diff: bool = False
    """Whether there is a `__diff` column: retractions (rows) or delete markers (keyed)."""
    distinct: bool = False
    """True: no two rows share a full key and nothing is a marker."""
    footer_size: int = 0
    """Bytes at the object's end that no page checksum covers (page index, filters, footer)."""
    footer_crc: int = 0
    """CRC-32 of those bytes."""
    statistics: bytes = b""
    """Per column minimum, maximum and null count (`strandline.parts.statistics`)."""
    schema_version: int = 0
    """The version of the table's schema that the part was written with."""
    has_end: bool = False
    """Whether there is an `__end` column: a part of history, each row with the time it ended at."""
    filter: bytes = b""
    """Of a small part, a filter over its row keys (`parts/files/filters.py`); empty: none."""

    @property
    def span(self) -> Interval:
        """An interval that holds every key of the part: the smallest, unless they are long."""
        # b"\0" after the last key makes the half-open end include it and nothing longer that
        # is not equal: no encoded full key is a proper prefix of another.
        return Interval(self.lower, self.upper + b"\0")


@dataclass(frozen=True, slots=True)
class Batch:
    """What one commit writes to one table: parts, or a few rows inline; sorted by full key."""

    parts: tuple[Part, ...] = ()
    inline: bytes = b""
    """An Arrow IPC stream of the user's columns (and `__diff` where has_diff), or nothing."""
    rows: int = 0
    """Rows in all."""
    lower: bytes = b""
    upper: bytes = b""
    """Encoded full keys of the first and last row (included) over all of it; those of parts as
    `Part` has them."""
    has_diff: bool = False
    distinct: bool = False
    schema_version: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """A commit's write to one table: durable, not yet applied. Key: (table, time, ordinal)."""

    table: str
    time: int
    ordinal: int
    """The place among the entries of that time, from 0."""
    session: str
    batch: Batch

    @property
    def place(self) -> Interval:
        """Where rows of the entry can be."""
        return Interval(self.batch.lower, self.batch.upper + b"\0")


@dataclass(frozen=True, slots=True)
class Reference:
    """The rows of one part in one key interval belong to the table.

    Key: (0, b"", id) in L0, (1, the leaf's lower bound, id) in a leaf: the references of
    neighbouring leaves are neighbours.
    """

    id: int
    """Never used again within the shard."""
    leaf: int
    interval: Interval
    part: Part
    time: int
    """Commit time of rows without a `__time`; else the greatest time in the part."""
    reads_before: int | None = None
    """Of history: reads at this time or later need nothing of it. No row is live from then on."""
    rows_from: int | None = None
    """Rows at times before this one do not count: another had appended them already."""

    @property
    def place(self) -> Interval:
        """Where rows of the reference can be: its interval, narrowed to the part's span.

        Empty intersections are never referenced.
        """
        return self.interval.intersect(self.part.span) or Interval(self.part.lower, b"")

    @property
    def time_max(self) -> int:
        """No row of the reference is later than this."""
        return self.time if self.part.time_max is None else self.part.time_max

    @property
    def time_min(self) -> int:
        """No row of the reference is earlier than this."""
        least = self.time if self.part.time_min is None else self.part.time_min
        return least if self.rows_from is None else max(least, self.rows_from)

    @property
    def is_cut(self) -> bool:
        """Whether it has rows, by their time, that do not count."""
        return self.rows_from is not None and (self.part.time_min or 0) < self.rows_from

    def is_over(self, since: int) -> bool:
        """Whether no read from `since` on sees anything of it: it is history, and ended by then."""
        return self.reads_before is not None and self.reads_before <= since

    def matters_at(self, as_of: int) -> bool:
        """Whether a read as of that time may see anything of it."""
        return self.time_min <= as_of and (self.reads_before is None or as_of < self.reads_before)


@dataclass(frozen=True, slots=True)
class Leaf:
    """An interval of row keys. Key: (lower,). The leaves cover the key space without overlap."""

    id: int
    interval: Interval
    parent: int | None
    """The leaf that it was split from."""


@dataclass(frozen=True, slots=True)
class PartUse:
    """How often a part is referenced. Key: (part key,)."""

    references: int
    born: int
    """The seqno that first referenced it."""


@dataclass(frozen=True, slots=True)
class Dead:
    """An object that nothing references since seqno `dead`. Key: (dead, object key)."""

    key: str
    born: int
    dead: int
    size: int


@dataclass(frozen=True, slots=True)
class Rollup:
    """A whole state as objects in Blob. Key: (seqno,)."""

    seqno: int
    key: str
    size: int
    verified: bool = False
    """Whether somebody read back all of it, and each page that it names, since it was written."""


@dataclass(frozen=True, slots=True)
class Session:
    """A writer's registration. Key: (session id,)."""

    count: int
    """How many records of this shard it wrote: the newest has this number. It is the counter of
    the session's lease, too: whoever sees it unchanged for long enough may have it expire."""
    opened: int
    """The seqno of its first record."""
    expired: int | None = None
    """The seqno that ended it while its owner was silent; None: it is open. A session that its
    owner closes is forgotten."""
    acknowledged: int | None = None
    """The seqno since which it is certain that the ended session's owner writes no objects any
    more: it said so, an operator did, or it was silent for long enough. They may be swept."""
    swept: int | None = None
    """When its objects were swept first, by the location's clock; they are once more later."""
    worker: str = ""
    """Whose session it is, as the worker calls itself; empty for most."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who alone may write to a table. Key: (table,)."""

    epoch: int
    """Raised by each attach, and never again what it was."""
    session: str
    """The session that attached; empty: the table was released, and anyone may write."""
    worker: str
    position: str = ""
    """Up to where the committed writes go in a log upstream, as its reader writes it."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A claim that history and objects stay. Key: (hold id,)."""

    since: int | None
    """Reads from this time on stay exact; None: it holds no time back."""
    seqno: int | None = None
    """What dies at a later seqno is not deleted; None: it holds no object back."""
    epoch: int = 1
    """Raised when another takes the hold over: who held it before can move it no more."""
    session: str = ""
    """The session with whose end it ends (a leased hold); empty: it stays until it is closed."""
    kind: str = ""
    """What for, in a word: "reader", "retention", "tag", "subscription"."""
    note: str = ""
    """A remark for people."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment on the location's clock. Key: (seqno,). What was dead at that seqno has been dead
    since then at least.
    """

    at: int
    """Microseconds, by the location's clock."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Copies of log records in Blob, so that the log may be truncated. Key: (first seqno,)."""

    last: int
    """All records from the first to this seqno that changed references are in it."""
    key: str
    """The object's key."""
    size: int


@dataclass(frozen=True, slots=True)
class Meta:
    """The shard's few scalars. Key: ()."""

    format: int = FORMAT
    upper: int | None = 0
    since: int | None = 0
    leaves: int = 1
    """Leaves ever made: the last id given out."""
    references: int = 0
    """References ever made: the last id given out."""
    origin: Origin = ""
    """Who adds data: a txns shard ("txns", by `Apply`) or its writers ("direct", by `Append`).
    The first one decides; the other is refused from then on. "commits": this is a txns shard that
    is used by itself, without a database."""
    claim: str = ""
    """The session that maintains the shard now; empty, or a session that is not open: nobody."""
    frozen: int | None = None
    """Of a txns shard: the last time before a clock jumped ahead that nothing vouches for. What
    goes by the passing of time, such as retention, goes by this time; None: by the latest."""
    jumped: int = 0
    """The time that it jumped to."""
    since_jump: int = 0
    """Commits since then."""
    ahead: int = 0
    """Of a txns shard whose time ran ahead of the clock, as an operator confirmed: its upper
    then. Clocks that are behind it are right; 0: none is known to be."""
    owner: str = ""
    """Of a shard that is used by itself: the txns shard that it is registered with, or about to
    be. Then that alone adds data."""
    joins: int = 0
    """How often it was given to a txns shard: the number of the last time."""


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A table from one time to another. Key: (table, version). DDL ends one and begins the next."""

    table: str
    """The id of its data shard, which is the id of the table."""
    version: int
    name: str
    valid_from: int
    valid_until: int | None
    """The time from which this version no longer holds; None: it does."""
    created: int
    """Commit time of `create_table`."""
    kind: TableKind
    schema: bytes
    """Serialised Arrow schema; each field has its column id as metadata."""
    row_keys: tuple[str, ...]
    sort_keys: tuple[str, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()
    keep: str = ""
    aggregate: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Tidied:
    """How far a table's entries have been retracted. Key: (table,)."""

    tidied_through: int
    """Greatest commit time of which an entry was tidied. A data state may be used only if its
    upper is beyond it."""


@dataclass(frozen=True, slots=True)
class TokenWindow:
    """What a token scope has committed. Key: (scope,)."""

    highest: int
    results: tuple[tuple[int, int], ...] = field(default=())
    """The last 64 (number, commit time), ascending by number."""


Value = (
    Meta
    | Session
    | Hold
    | Holder
    | Mark
    | Receipt
    | Leaf
    | Reference
    | PartUse
    | Dead
    | Rollup
    | TableVersion
    | Entry
    | Tidied
    | TokenWindow
)

COLLECTIONS: dict[str, type] = {
    "meta": Meta,
    "sessions": Session,
    "holds": Hold,
    "holders": Holder,
    "leaves": Leaf,
    "references": Reference,
    "parts": PartUse,
    "dead": Dead,
    "rollups": Rollup,
    "marks": Mark,
    "receipts": Receipt,
    "tables": TableVersion,
    "entries": Entry,
    "tidied": Tidied,
    "tokens": TokenWindow,
}


class Diff(NamedTuple):
    """One change of state: the value at `key` of `collection` afterwards; None: it is gone."""

    collection: str
    key: Key
    after: Value | None
