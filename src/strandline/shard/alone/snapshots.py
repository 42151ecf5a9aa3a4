"""A shard's rows as of one time: in splits, which are read anywhere, and in pieces, in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import pyarrow as pa

from strandline.env import Deadline, Env
from strandline.errors import AsOfTooOld, Corruption, UsageError
from strandline.location import BlobMissing, Location
from strandline.parts.rows.consolidate import consolidated_stream
from strandline.parts.schema import DIFF, END, TIME
from strandline.settings import Settings
from strandline.shard.alone.batches import sealed, unsealed
from strandline.shard.alone.changes import updates_of
from strandline.shard.alone.shard import Shard
from strandline.shard.look import Look
from strandline.shard.missing import state_without
from strandline.state.model import FORMAT, Interval, Reference
from strandline.state.plan import plan_read

__all__ = ["SnapshotSplit", "read_split", "rows_in", "splits_of"]

A = TypeVar("A")

_PIECE_ROWS = 262_144
"""Stored rows in a piece, about: few enough to hold several in memory."""

_AHEAD = 2
"""Pieces that are read before they are asked for."""

_SMALL = 8
"""A part of less than this share of a split is not opened to be cut: it counts where it begins."""


@dataclass(frozen=True, slots=True)
class SnapshotSplit:
    """The rows of a snapshot whose keys are in one interval: to be read by `read_split`.

    It says what is asked for, not where that is stored: however the shard is compacted meanwhile,
    it gives the same rows, as long as a hold keeps the shard's since from passing `as_of`.
    """

    shard: str
    as_of: int
    lower: bytes
    """Encoded keys, as in the state: from `lower` to before `upper`, None for no end."""
    upper: bytes | None

    @property
    def interval(self) -> Interval:
        """The keys."""
        return Interval(self.lower, self.upper)

    def to_bytes(self) -> bytes:
        """A hundred bytes or so."""
        upper = None if self.upper is None else self.upper.hex()
        fields = {"format": FORMAT, "shard": self.shard, "as_of": self.as_of}
        return sealed({**fields, "lower": self.lower.hex(), "upper": upper})

    @classmethod
    def from_bytes(cls, data: bytes) -> SnapshotSplit:
        """The inverse of `to_bytes`.

        Errors: Corruption if these are not bytes of a split; UsageError (of a newer format).
        """
        fields = unsealed(data, "split", shard=str, as_of=int, lower=str, upper=str | None)
        lower, upper = fields["lower"], fields["upper"]
        try:
            ends = bytes.fromhex(lower), None if upper is None else bytes.fromhex(upper)
        except ValueError as error:
            raise Corruption(f"these bytes are no split: {error}", object="split") from error
        return cls(fields["shard"], fields["as_of"], *ends)


def read_split(
    location: Location,
    split: SnapshotSplit,
    *,
    settings: Settings | None = None,
    timeout: float | None = None,
    env: Env | None = None,
) -> pa.RecordBatchReader:
    """The split's rows, each once, with `__diff`, how often it is there; sorted by row keys.

    In bounded memory. `timeout` is for the planning, and then for each step of reading. Errors:
    AsOfTooOld where nobody held since back; LocationError, Corruption.
    """
    given: Any = split
    if not isinstance(given, SnapshotSplit):
        raise UsageError(f"split={given!r:.200}: pass one that ReadHandle.snapshot returned")
    shard = Shard(location, split.shard, settings, env)
    deadline = shard.deadline(timeout)
    shard.describe_from(deadline)
    arrow = schema_of(shard)

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            for table in rows_in(shard, split.as_of, split.interval, deadline):
                yield from table.to_batches()
        finally:
            shard.close()

    return pa.RecordBatchReader.from_batches(arrow, batches())


def schema_of(shard: Shard) -> pa.Schema:
    """The columns of a snapshot."""
    return _plain(shard.schema.stored(diff=True))


def _plain(arrow: pa.Schema) -> pa.Schema:
    return pa.schema([field.remove_metadata() for field in arrow])


# --- splits


def splits_of(
    shard: Shard, look: Look, as_of: int, count: int, deadline: Deadline
) -> list[SnapshotSplit]:
    """Exactly `count` splits of about as many stored bytes each; some are empty if need be."""
    cuts: Sequence[bytes] = ()
    if count > 1:
        cuts = _planned(
            shard, look, deadline, lambda now: _cuts(shard, now, as_of, count, deadline)
        )
    bounds: list[bytes | None] = [b"", *cuts, None]
    splits = [SnapshotSplit(shard.id, as_of, a or b"", b) for a, b in pairwise(bounds)]
    empty = SnapshotSplit(shard.id, as_of, b"", b"")
    return splits + [empty] * (count - len(splits))


def _planned(shard: Shard, look: Look, deadline: Deadline, plan: Callable[[Look], A]) -> A:
    """What `plan`, which looks into parts, makes of a state, or of a newer one if they are gone."""
    while True:
        try:
            return plan(look)
        except BlobMissing as error:
            look = state_without(shard.machine, error, deadline)


def _cuts(shard: Shard, look: Look, as_of: int, count: int, deadline: Deadline) -> list[bytes]:
    tasks = look.ask(lambda s: plan_read(s, (), None, as_of))
    found = [r for task in tasks for r in task.references]
    total = sum(r.part.size for r in found)
    least = total // (count * _SMALL)

    def steps(reference: Reference) -> list[tuple[bytes, float]]:
        part = reference.part
        if part.size <= least:
            return [(reference.place.lower, part.size)]
        opened = shard.reader.opened(part, deadline)
        groups = opened.groups_in(reference.place)
        each = part.size / max(1, len(opened.separators))
        return [(max(opened.separators[g], reference.place.lower), each) for g in groups]

    weighed = sorted(s for each in shard.env.parallel(steps, found) for s in each)
    weight = sum(size for _, size in weighed)
    cuts: list[bytes] = []
    passed = 0.0
    for key, size in weighed:
        wanted = weight * (len(cuts) + 1) / count
        if len(cuts) < count - 1 and passed >= wanted and key > (cuts[-1] if cuts else b""):
            cuts.append(key)
        passed += size
    return cuts


# --- rows


@dataclass(frozen=True, slots=True)
class _Piece:
    """A key interval of a snapshot, and what has rows there."""

    interval: Interval
    references: tuple[Reference, ...]
    rows: int
    """Stored rows, at most."""


def rows_in(shard: Shard, as_of: int, interval: Interval, deadline: Deadline) -> Iterator[pa.Table]:
    """The rows of an interval of keys as of a time, with `__diff`, by key, in bounded memory.

    Each step has the whole of `deadline`.
    """
    deadline = deadline.again()
    look = shard.machine.look(deadline)
    pieces = _pieces(shard, look, as_of, interval, deadline)

    def read(piece: _Piece) -> Iterator[pa.Table]:
        found = _read(shard, piece, as_of, deadline)
        # One of so many rows under a few keys that it cannot be cut is not made beforehand.
        return found if piece.rows > 4 * _PIECE_ROWS else iter(list(found))

    for tables in shard.env.stream(read, pieces, ahead=_AHEAD):
        yield from tables


def _read(shard: Shard, piece: _Piece, as_of: int, deadline: Deadline) -> Iterator[pa.Table]:
    """The rows of one piece; where an object was replaced meanwhile, as they are stored now."""
    rows = _consolidated(shard, piece, as_of, deadline.again())
    try:
        first = next(rows, None)
    except BlobMissing as error:
        # Nothing came out yet: a piece is taken in whole before.
        now = deadline.again()
        look = state_without(shard.machine, error, now)
        for again in _pieces(shard, look, as_of, piece.interval, now):
            yield from _read(shard, again, as_of, deadline)
        return
    if first is not None:
        yield first
        yield from rows


def _pieces(
    shard: Shard, look: Look, as_of: int, interval: Interval, deadline: Deadline
) -> list[_Piece]:
    def plan(current: Look) -> list[_Piece]:
        check_readable(current, as_of, shard.id)
        tasks = current.ask(lambda s: plan_read(s, (), [interval], as_of))
        pieces: list[_Piece] = []
        for task in tasks:
            for inside in task.own(task.intervals):
                pieces += _cut(shard, task.references, inside, deadline)
        return pieces

    return _planned(shard, look, deadline, plan)


def check_readable(look: Look, as_of: int, shard: str) -> None:
    """AsOfTooOld if the shard does not tell any more what there was at that time."""
    since = look.meta.since
    if since is None or as_of < since:
        reached = "the empty frontier: nothing can be read any more" if since is None else since
        raise AsOfTooOld(
            f"shard {shard} cannot be read as of {as_of}: its since is {reached}; read at a later "
            "time, and hold since back where earlier ones are needed"
        )


def _cut(
    shard: Shard, references: Sequence[Reference], interval: Interval, deadline: Deadline
) -> Iterator[_Piece]:
    """The pieces of an interval, between keys where row groups begin."""
    near = [(r, both) for r in references if (both := r.place.intersect(interval))]
    rows = sum(r.part.rows for r, _ in near)
    if rows <= _PIECE_ROWS:
        if near:
            yield _Piece(interval, tuple(r for r, _ in near), rows)
        return
    steps: list[tuple[bytes, int]] = []
    for reference, place in near:
        opened = shard.reader.opened(reference.part, deadline)
        count = opened.rows_of([0])
        steps += [(opened.separators[g], count) for g in opened.groups_in(place)]
    begin, gathered = interval.lower, 0
    for key, count in sorted(steps):
        if gathered and gathered + count > _PIECE_ROWS and key > begin:
            yield _piece(near, Interval(begin, key), gathered)
            begin, gathered = key, 0
        gathered += count
    yield _piece(near, Interval(begin, interval.upper), gathered)


def _piece(near: Sequence[tuple[Reference, Interval]], interval: Interval, rows: int) -> _Piece:
    inside = tuple(r for r, place in near if place.intersect(interval))
    return _Piece(interval, inside, rows)


def _consolidated(
    shard: Shard, piece: _Piece, as_of: int, deadline: Deadline
) -> Iterator[pa.Table]:
    schema = shard.schema
    timed = schema.stored(time=True, diff=True)
    arrow = schema.stored(diff=True)
    columns = [*schema.arrow.names, TIME, DIFF, END]

    def updates() -> Iterator[pa.RecordBatch]:
        for reference in piece.references:
            place = reference.place.intersect(piece.interval)
            if place is None:
                continue
            for batch in shard.reader.batches(
                reference.part,
                schema,
                columns=columns,
                intervals=[place],
                deadline=deadline,
            ):
                for found in updates_of(batch, reference, timed, -1, as_of):
                    yield found.drop_columns([TIME])

    rows = consolidated_stream(
        updates(),
        arrow,
        schema.keys,
        memory_bytes=shard.settings.sort_memory_bytes,
        threads=shard.settings.threads,
    )
    plain = _plain(arrow)
    for batch in rows:
        if batch.num_rows:
            yield pa.Table.from_arrays(batch.columns, schema=plain)
