"""Batches: updates that are written to parts and not in the shard yet."""

from __future__ import annotations

import base64
import json
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.closing import Closing
from strandline.env import Deadline
from strandline.errors import Corruption, SchemaMismatch, UsageError
from strandline.parts.files.write import write_parts
from strandline.parts.plain import int64s
from strandline.parts.rows.consolidate import consolidated, consolidated_stream
from strandline.parts.rows.spool import Spool
from strandline.parts.schema import DIFF, TIME, without_plain_diff
from strandline.shard.alone.shard import Shard
from strandline.shard.alone.updates import Updates, check_bound, updates_from
from strandline.state import model
from strandline.state.codec import decode_batch, encode_batch
from strandline.state.commands import Heartbeat
from strandline.state.model import FORMAT, Part
from strandline.state.plan import leaf_bounds
from strandline.state.sessions import is_open

__all__ = ["Batch", "BatchBuilder", "check_within", "write_updates"]

_IN_MEMORY_BYTES = 32 << 20
"""Updates that take no more are sorted in memory."""

_CUT_ROWS_MIN = 65_536
_THREADS_MAX = 4


@dataclass(frozen=True, slots=True)
class Batch:
    """Updates at times from `lower` to before `upper`, as parts that were written already.

    To be appended in this process or in another, as often as it has to be tried: nothing is
    written again. The handle whose builder made it has to stay open until then, because what a
    session wrote and did not append may be deleted once it has ended.
    """

    shard: str
    lower: int
    upper: int | None
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        """Updates in it."""
        return sum(part.rows for part in self.parts)

    def to_bytes(self) -> bytes:
        """A few hundred bytes for each part."""
        fields = {
            "format": FORMAT,
            "shard": self.shard,
            "lower": self.lower,
            "upper": self.upper,
            "parts": base64.b64encode(encode_batch(model.Batch(self.parts))).decode(),
        }
        return sealed(fields)

    @classmethod
    def from_bytes(cls, data: bytes) -> Batch:
        """The inverse of `to_bytes`.

        Errors: Corruption if these are not bytes of a batch; UsageError (of a newer format).
        """
        fields = unsealed(data, "batch", shard=str, lower=int, upper=int | None, parts=str)
        try:
            encoded = base64.b64decode(fields["parts"], validate=True)
        except ValueError as error:
            raise Corruption(f"these bytes are no batch: {error}", object="batch") from error
        parts = decode_batch(encoded).parts
        return cls(fields["shard"], fields["lower"], fields["upper"], parts)


def sealed(fields: dict[str, Any]) -> bytes:
    """The fields as JSON behind a checksum, for another process."""
    text = json.dumps(fields, sort_keys=True).encode()
    return f"{zlib.crc32(text):08x} ".encode() + text


def unsealed(data: Any, what: str, **kinds: Any) -> dict[str, Any]:
    """The inverse of `sealed`, for fields of these types. Corruption if it is something else."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise UsageError(f"{data!r:.200} are no bytes of a {what}: pass what to_bytes returned")
    text = bytes(data[9:])
    damaged = bytes(data[:9]) != f"{zlib.crc32(text):08x} ".encode()
    fields: dict[str, Any] = {}
    try:
        # Whole, and yet it may be something else with a checksum: a split for a batch.
        fields = {} if damaged else json.loads(text)
        newer = fields["format"] > FORMAT
        fits = newer or all(isinstance(fields[name], kind) for name, kind in kinds.items())
    except (ValueError, TypeError, LookupError, RecursionError):
        fits = False
    if not fits:
        raise Corruption(f"these bytes are no {what}, or are damaged", object=what)
    if newer:
        raise UsageError(
            f"the {what} was made by a newer Strandline, format {fields['format']}; this one reads "
            f"up to format {FORMAT}: upgrade"
        )
    return fields


class BatchBuilder(Closing):
    """Gathers updates, in bounded memory, and writes them as one batch. A context manager."""

    def __init__(self, shard: Shard, lower: int, check_open: Callable[[], None]) -> None:
        """`check_open` raises once the handle that made the builder is closed."""
        self.lower = check_bound(lower, "lower")
        self._shard = shard
        self._check_handle = check_open
        self._spool = Spool(shard.schema.stored(time=True, diff=True))
        # Whoever forgets the builder leaves no file open.
        weakref.finalize(self, self._spool.close)
        self._latest: int | None = None
        self._ended = False

    def add(self, updates: Any, *, time: int | None = None) -> None:
        """Adds updates, in the form that `compare_and_append` takes them; in any order.

        Data that is refused, wholly or from some row on, ends the builder. Errors: SchemaMismatch,
        UsageError.
        """
        self._check_open()
        try:
            self._add(updates_from(updates, self._shard.schema, time))
        except BaseException:
            self.close()
            raise

    def _add(self, updates: Updates) -> None:
        for batch in updates.batches:
            times = pc.min_max(batch.column(TIME))
            check_within(times["min"].as_py(), None, self.lower, None)
            self._latest = max(self._latest or 0, times["max"].as_py())
            self._spool.add(_with_diff(batch, self._spool.arrow))

    def finish(self, new_upper: int | None, *, timeout: float | None = None) -> Batch:
        """The batch of all updates that were added, for times before `new_upper` (None: any).

        Its parts are durable when this returns. Errors: UsageError for updates at or after
        `new_upper`, LocationError; the builder is ended either way.
        """
        self._check_open()
        deadline = self._shard.deadline(timeout)
        try:
            if new_upper is not None:
                new_upper = check_bound(new_upper, "new_upper")
                check_within(None, self._latest, self.lower, new_upper)
            updates = Updates(self._spool.arrow, self._spool.batches(), None)
            parts = write_updates(self._shard, updates, deadline)
            _register(self._shard, deadline)
        finally:
            self.close()
        return Batch(self._shard.id, self.lower, new_upper, parts)

    def close(self) -> None:
        """Lets go of what was added. Nothing of it was written."""
        self._ended = True
        self._spool.close()

    def _check_open(self) -> None:
        if self._ended:
            raise UsageError("this builder is ended; make another with batch_builder()")
        self._check_handle()


def _register(shard: Shard, deadline: Deadline) -> None:
    """Makes the session known in the shard, if it is not: else another may not append its parts."""
    machine = shard.machine
    known = machine.ask(lambda s: is_open(s.sessions.get((machine.session,))), deadline)
    if not known:
        machine.submit(Heartbeat(), deadline)


def check_within(earliest: int | None, latest: int | None, lower: int, upper: int | None) -> None:
    """UsageError unless updates between these times (None: none) lie in [`lower`, `upper`)."""
    for time in (earliest, latest):
        if time is not None and (time < lower or (upper is not None and time >= upper)):
            until = "on" if upper is None else f"to before {upper}"
            raise UsageError(f"there is an update at {time}, and the batch is from {lower} {until}")
    if upper is not None and upper < lower:
        raise UsageError(f"a batch from {lower} to before {upper} has its bounds the wrong way")


def write_updates(
    shard: Shard, updates: Updates, deadline: Deadline, *, token: str = ""
) -> tuple[Part, ...]:
    """Writes updates as sorted parts that do not overlap, in bounded memory. None for none.

    Equal rows of one time become one, with their diffs added up. Where they all cancel nothing is
    written. UsageError for a sum that 64 bits do not hold.
    """
    schema, settings = shard.schema, shard.settings
    arrow = schema.stored(time=True, diff=True)
    head, rest = _head(updates)
    few = [_with_diff(batch, arrow) for batch in head]
    rows: Any = None
    if rest is None:
        rows = without_plain_diff(consolidated(pa.Table.from_batches(few, arrow), schema.keys))
        if not rows.num_rows:
            return ()
    machine = shard.machine
    with shard.pulse.holding(machine):
        session = machine.live_session(deadline)
        cuts: Sequence[bytes] = machine.ask(leaf_bounds, deadline)
        threads = min(_THREADS_MAX, settings.threads)
        if rest is not None:
            rows = consolidated_stream(
                chain(few, (_with_diff(batch, arrow) for batch in rest)),
                arrow,
                schema.keys,
                memory_bytes=settings.sort_memory_bytes,
                threads=threads,
            )
        parts = write_parts(
            shard.location.blob,
            lambda: shard.new_part_key(session),
            rows,
            schema,
            identity=shard.identity(session, token),
            settings=settings,
            deadline=deadline,
            cuts=cuts,
            cut_rows_min=_CUT_ROWS_MIN,
            env=shard.env,
            threads=threads,
        )
    return tuple(parts)


def _with_diff(batch: pa.RecordBatch, arrow: pa.Schema) -> pa.RecordBatch:
    if DIFF in batch.schema.names:
        return batch
    ones = int64s(np.ones(batch.num_rows, dtype=np.int64))
    return pa.RecordBatch.from_arrays([*batch.columns, ones], schema=arrow)


def _head(
    updates: Updates,
) -> tuple[list[pa.RecordBatch], Iterator[pa.RecordBatch] | None]:
    """The first updates, and the rest; None if there is none."""
    held = []
    size = 0
    for batch in updates.batches:
        held.append(batch)
        size += batch.nbytes
        if size > _IN_MEMORY_BYTES:
            return held, updates.batches
    return held, None


def check_shard(batch: Batch, shard: Shard) -> None:
    """SchemaMismatch if the batch was built for another shard."""
    if batch.shard != shard.id:
        raise SchemaMismatch(
            f"the batch was built for shard {batch.shard}, and this one is {shard.id}; build it "
            "with a builder of this shard's handle"
        )
