"""Snapshots of shards that are registered with a txns shard which is used by itself.

What is applied is read from the shard; over it goes what is committed and not applied yet. Nothing
is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from strandline.env import Deadline, retry_delays
from strandline.errors import AsOfTooOld, Corruption, DeadlineExceeded, UsageError
from strandline.ids import parse_id
from strandline.location import BlobMissing
from strandline.parts.files.inline import decode_inline
from strandline.parts.rows.consolidate import consolidated_stream
from strandline.parts.schema import DIFF
from strandline.shard.alone.shard import Shard
from strandline.shard.alone.snapshots import check_readable, rows_in, schema_of
from strandline.shard.look import Look
from strandline.shard.missing import lost
from strandline.state.model import EVERYTHING, Entry
from strandline.state.tables import newest_version, tidied_through
from strandline.txn.alone.store import LoneStore

__all__ = ["snapshot"]


@dataclass(frozen=True, slots=True)
class _Contents:
    """What makes up a snapshot: the shard's own rows as of a time, and entries at later ones."""

    applied: int
    """-1: nothing of the shard itself."""
    entries: tuple[Entry, ...]


def snapshot(
    store: LoneStore, shard_id: str, as_of: int, timeout: float | None
) -> pa.RecordBatchReader:
    """The shard's rows as of that time, each once, with `__diff`, by key; in bounded memory."""
    deadline = Deadline.of(store.env, timeout, store.settings.timeout_seconds)
    parse_id(shard_id, "s")
    # Asked for now, so that it is refused now.
    first = _look(store, shard_id, as_of, deadline)
    shard = store.shard(shard_id, deadline)

    def batches() -> Iterator[pa.RecordBatch]:
        for table in _rows(store, shard, as_of, first, deadline):
            store.check_open()
            yield from table.to_batches()

    return pa.RecordBatchReader.from_batches(schema_of(shard), batches())


def _look(store: LoneStore, shard_id: str, as_of: int, deadline: Deadline) -> _Contents:
    """What makes up the snapshot; waits until that is known."""
    delays = iter(retry_delays(store.env, first_seconds=0.005, most_seconds=0.25))
    while True:
        # SUBTLE ◆: the txns shard first, then the shard. An entry that was tidied before the first
        # look was applied before the second. And it is not a state that is known from earlier:
        # before it was registered the shard had other writers, whose appends are in no entry.
        look = store.txns.look(deadline)
        data = store.data(shard_id).look(deadline)
        store.check_committed(shard_id, data, deadline)
        contents = _contents(store, shard_id, as_of, look, data)
        if contents is not None:
            return contents
        if deadline.remaining() <= 0:
            raise DeadlineExceeded(
                f"shard {shard_id} is not known as of {as_of} in time: the upper of txns shard "
                f"{store.owner} is {look.meta.upper}, and its own is {data.meta.upper}; read at "
                "an earlier time, or wait longer with timeout=",
                may_have_happened=False,
            )
        store.env.sleep(min(next(delays), deadline.remaining()))


def _contents(
    store: LoneStore, shard_id: str, as_of: int, look: Look, data: Look
) -> _Contents | None:
    """By these looks at the txns shard and of the shard; None if they do not know that time."""
    newest = look.ask(lambda s: newest_version(s, shard_id))
    if newest is None:
        raise UsageError(
            f"shard {shard_id} was never registered with txns shard {store.owner}; register it, or "
            "read it with strandline.shard.open_shard"
        )
    upper = data.meta.upper
    tidied = look.ask(lambda s: tidied_through(s, shard_id))
    if upper is not None and upper <= tidied:
        raise Corruption(
            f"shard {shard_id} is at {upper}, but commits through {tidied} were "
            "tidied as applied: its log lost records",
            object=shard_id,
        )
    check_readable(data, as_of, shard_id)
    if upper is None or as_of < upper:
        return _Contents(as_of, ())
    known = look.meta.upper or 0
    if as_of >= (known if newest.valid_until is None else min(known, newest.valid_until)):
        return None
    entries = store.txns.overlay(look, shard_id, upper, as_of)
    if not entries:
        return _Contents(as_of, ())
    # SUBTLE: as of just before the upper of this state, whatever is applied by the time the rows
    # are read: what is applied at later times is among the entries, and counts once.
    return _Contents(upper - 1, entries)


def _rows(
    store: LoneStore, shard: Shard, as_of: int, contents: _Contents, deadline: Deadline
) -> Iterator[pa.Table]:
    while True:
        rows = _of_contents(store, shard, contents, deadline)
        try:
            first = next(rows, None)
        except (AsOfTooOld, BlobMissing) as error:
            # Nothing came out yet. What was an entry was applied, and then compacted, meanwhile.
            before = contents
            contents = _look(store, shard.id, as_of, deadline.again())
            if contents != before:
                continue
            if isinstance(error, BlobMissing):
                raise lost(f"a commit to shard {shard.id}", error) from error
            raise
        if first is not None:
            yield first
            yield from rows
        return


def _of_contents(
    store: LoneStore, shard: Shard, contents: _Contents, deadline: Deadline
) -> Iterator[pa.Table]:
    if not contents.entries:
        yield from rows_in(shard, contents.applied, EVERYTHING, deadline)
        return
    arrow = schema_of(shard)
    rows = consolidated_stream(
        _updates(shard, contents, arrow, deadline),
        arrow,
        shard.schema.keys,
        memory_bytes=store.settings.sort_memory_bytes,
        threads=store.settings.threads,
    )
    for batch in rows:
        if batch.num_rows:
            yield pa.Table.from_batches([batch])


def _updates(
    shard: Shard, contents: _Contents, arrow: pa.Schema, deadline: Deadline
) -> Iterator[pa.RecordBatch]:
    if contents.applied >= 0:
        for table in rows_in(shard, contents.applied, EVERYTHING, deadline):
            yield from table.to_batches()
    for entry in contents.entries:
        if entry.batch.inline:
            for batch in decode_inline(entry.batch.inline, shard.schema).to_batches():
                yield _with_diff(batch, arrow)
        for part in entry.batch.parts:
            columns = [*shard.schema.arrow.names, DIFF]
            found = shard.reader.batches(
                part, shard.schema, columns=columns, deadline=deadline.again()
            )
            for batch in found:
                yield _with_diff(batch, arrow)


def _with_diff(batch: pa.RecordBatch, arrow: pa.Schema) -> pa.RecordBatch:
    """The batch in the columns of a snapshot: without a `__diff`, each row came once."""
    ones = pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows)
    columns = [
        ones if name == DIFF and DIFF not in batch.schema.names else batch.column(name)
        for name in arrow.names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=arrow)
