"""Ids and object keys: made and parsed here, nowhere else.

An id is a one-letter prefix and lower-case hex digits: `w` a session (a *w*riter), `s` a shard,
`p` a part, `g` a page, `r` a rollup, `c` a receipt, `o` a probe of the location's clock, `d` a
database. An object's key is its path in Blob::

    w1f…/s03…/part/p9a….parquet      <session>/<shard>/<kind>/<id><suffix>
    w1f…/s03…/page/g27….page
    w1f…/s03…/rollup/00000000000000000128-r5c….rollup
    strandline.json                   the marker that makes a place a database
    milestone/s03…/00000000000000000128-7a….milestone
                                      how far the log of a shard had come

The session comes first, so that one listing finds all that a dead writer left.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, NewType

from strandline.env import Env
from strandline.errors import UsageError

__all__ = [
    "MARKER_KEY",
    "DatabaseId",
    "MilestoneKey",
    "ObjectKey",
    "PageId",
    "PartId",
    "RollupId",
    "SessionId",
    "ShardId",
    "new_database_id",
    "new_page_id",
    "new_part_id",
    "new_probe_id",
    "new_receipt_id",
    "new_rollup_id",
    "new_session_id",
    "new_shard_id",
    "parse_id",
    "session_of",
]

DatabaseId = NewType("DatabaseId", str)
SessionId = NewType("SessionId", str)
ShardId = NewType("ShardId", str)
PartId = NewType("PartId", str)
PageId = NewType("PageId", str)
RollupId = NewType("RollupId", str)

MARKER_KEY = "strandline.json"
_ID = re.compile(r"[dwspgrco][0-9a-f]{16,32}")
_KINDS: dict[str, tuple[str, str]] = {
    "part": ("p", ".parquet"),
    "page": ("g", ".page"),
    "rollup": ("r", ".rollup"),
    "receipt": ("c", ".receipt"),
    "probe": ("o", ".probe"),
}
Kind = Literal["part", "page", "rollup", "receipt", "probe"]
_SEQNO_DIGITS = 20


def new_database_id(env: Env) -> DatabaseId:
    """An id that no other call returns."""
    return DatabaseId("d" + env.token_hex(16))


def new_session_id(env: Env) -> SessionId:
    """An id that no other call returns."""
    return SessionId("w" + env.token_hex(8))


def new_shard_id(env: Env) -> ShardId:
    """An id that no other call returns."""
    return ShardId("s" + env.token_hex(8))


def new_part_id(env: Env) -> PartId:
    """An id that no other call returns. Ids of one time are neighbours in the state's pages."""
    return PartId(f"p{max(0, env.now_micros()):014x}" + env.token_hex(6))


def new_page_id(env: Env) -> PageId:
    """An id that no other call returns."""
    return PageId("g" + env.token_hex(12))


def new_rollup_id(env: Env) -> RollupId:
    """An id that no other call returns."""
    return RollupId("r" + env.token_hex(12))


def new_receipt_id(env: Env) -> str:
    """An id that no other call returns."""
    return "c" + env.token_hex(12)


def new_probe_id(env: Env) -> str:
    """An id that no other call returns."""
    return "o" + env.token_hex(12)


def parse_id(text: Any, prefix: str) -> str:
    """The id itself if it is one with that prefix, else a `UsageError`."""
    if not isinstance(text, str) or not _ID.fullmatch(text) or text[0] != prefix:
        raise UsageError(f"{text!r} is not an id: {prefix!r} followed by hex digits")
    return text


def session_of(key: str) -> SessionId | None:
    """The session that wrote the object of that key; None for a key without one."""
    session, slash, _ = key.partition("/")
    return SessionId(session) if slash else None


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """Where one object of a shard is; `str(key)` is its key in Blob, `parse` the way back."""

    session: SessionId
    shard: ShardId
    kind: Kind
    id: str
    seqno: int | None = None
    """Only of a rollup: the seqno of the state in it."""

    def __str__(self) -> str:
        name = self.id if self.seqno is None else f"{self.seqno:0{_SEQNO_DIGITS}d}-{self.id}"
        return f"{self.session}/{self.shard}/{self.kind}/{name}{_KINDS[self.kind][1]}"

    @classmethod
    def parse(cls, text: str) -> ObjectKey:
        """The inverse of `str`; `UsageError` for anything that is not an object's key."""
        pieces = text.split("/")
        if len(pieces) != 4 or pieces[2] not in _KINDS:
            raise UsageError(f"{text!r} is not the key of an object")
        session, shard, kind, name = pieces
        prefix, suffix = _KINDS[kind]
        if not name.endswith(suffix):
            raise UsageError(f"{text!r} is not the key of an object: a {kind} ends in {suffix}")
        name = name.removesuffix(suffix)
        seqno = None
        if kind == "rollup":
            digits, _, name = name.partition("-")
            if len(digits) != _SEQNO_DIGITS or not digits.isdigit():
                raise UsageError(f"{text!r} is not the key of a rollup: it has no seqno")
            seqno = int(digits)
        return cls(
            SessionId(parse_id(session, "w")),
            ShardId(parse_id(shard, "s")),
            kind,  # type: ignore[arg-type]  # checked against _KINDS above
            parse_id(name, prefix),
            seqno,
        )


_MILESTONE = re.compile(r"^milestone/([^/]+)/(\d{20})-([0-9a-f]{16})\.milestone$")


@dataclass(frozen=True, slots=True, order=True)
class MilestoneKey:
    """Where it is said that the log of a shard had come to a record; as `ObjectKey`."""

    shard: ShardId
    seqno: int
    record: str
    """The first 16 hex digits of the record's hash: another history has others in its place."""

    def __str__(self) -> str:
        return f"{self.after(self.shard, self.seqno - 1)}-{self.record}.milestone"

    @classmethod
    def parse(cls, text: str) -> MilestoneKey:
        """The inverse of `str`; `UsageError` for anything that is not a milestone's key."""
        found = _MILESTONE.match(text)
        if found is None:
            raise UsageError(f"{text!r} is not the key of a milestone")
        return cls(ShardId(parse_id(found[1], "s")), int(found[2]), found[3])

    @staticmethod
    def prefix(shard: ShardId) -> str:
        """With what the keys of a shard's milestones begin."""
        return f"milestone/{shard}/"

    @classmethod
    def after(cls, shard: ShardId, seqno: int) -> str:
        """What is before the keys of a shard's milestones after that one, and after all others."""
        return f"{cls.prefix(shard)}{seqno + 1:0{_SEQNO_DIGITS}d}"
