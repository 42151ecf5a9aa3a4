"""What one transaction was given to write, until it is committed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from strandline.env import Deadline
from strandline.ids import SessionId
from strandline.parts.files.batch import build_batch
from strandline.parts.rows.consolidate import consolidated_stream
from strandline.parts.rows.spool import Spool
from strandline.parts.schema import DIFF, TIME
from strandline.shard.alone.shard import Shard
from strandline.shard.alone.updates import updates_from
from strandline.state.commands import Write
from strandline.state.model import Batch
from strandline.state.plan import leaf_bounds
from strandline.txn.alone.store import LoneStore

__all__ = ["Gathering"]


class _Waiting:
    """Updates of one shard that are not stored yet, in bounded memory."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.rows = 0
        self.spool = Spool(shard.schema.stored(diff=True))
        # Whoever forgets the transaction leaves no file open.
        weakref.finalize(self, self.spool.close)

    def add(self, data: Any) -> int:
        """Adds updates in any order; how many. Refused data may have been added in part."""
        arrow = self.spool.arrow
        before = self.rows
        # They have no time before they are committed.
        for batch in updates_from(data, self.shard.schema, 0).batches:
            whole = batch.drop_columns([TIME])
            if DIFF not in whole.schema.names:
                ones = pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows)
                whole = pa.RecordBatch.from_arrays([*whole.columns, ones], schema=arrow)
            self.spool.add(whole)
            self.rows += whole.num_rows
        return self.rows - before


class Gathering:
    """Rows that wait, by shard, and batches of those that are stored. For one thread."""

    def __init__(self) -> None:
        self.writes: list[Write] = []
        """What is stored."""
        self._waiting: dict[str, _Waiting] = {}
        """Where rows go, by shard."""
        self._untried: list[_Waiting] = []
        """What was written before the last try to store it, and is not stored yet."""
        self._release: Callable[[], None] | None = None

    @property
    def count(self) -> int:
        """Updates written so far."""
        waiting = sum(each.rows for each in self._all())
        return waiting + sum(write.batch.rows for write in self.writes)

    @property
    def shards(self) -> tuple[str, ...]:
        """The shards written to so far, ascending."""
        waiting = {each.shard.id for each in self._all()}
        return tuple(sorted({write.table for write in self.writes} | waiting))

    def add(self, shard: Shard, data: Any) -> int:
        """Adds updates of a shard; how many. Refused data may have been added in part."""
        waiting = self._waiting.get(shard.id) or _Waiting(shard)
        try:
            return waiting.add(data)
        finally:
            if waiting.rows:
                self._waiting[shard.id] = waiting

    def stored(self, store: LoneStore, deadline: Deadline) -> list[Write]:
        """All of it as batches; of what waits they are made now, and parts are stored, if need be.

        What could not be stored goes on to wait: whoever tries again stores the rest.
        """
        self._untried += [self._waiting[shard_id] for shard_id in sorted(self._waiting)]
        self._waiting = {}
        while self._untried:
            waiting = self._untried[0]
            batch = self._batch(store, waiting, deadline)
            if batch.rows:
                self.writes.append(Write(waiting.shard.id, batch))
            self._untried.pop(0).spool.close()
        return self.writes

    def close(self) -> None:
        """Lets go of what waits, and of the session that stored the rest."""
        for each in self._all():
            each.spool.close()
        self._waiting, self._untried = {}, []
        if self._release is not None:
            self._release()

    def _all(self) -> list[_Waiting]:
        return [*self._untried, *self._waiting.values()]

    def _batch(self, store: LoneStore, waiting: _Waiting, deadline: Deadline) -> Batch:
        shard, settings = waiting.shard, store.settings
        arrow = waiting.spool.arrow
        rows = consolidated_stream(
            waiting.spool.batches(),
            arrow,
            shard.schema.keys,
            memory_bytes=settings.sort_memory_bytes,
            threads=settings.threads,
        )
        machine = store.txns.machine

        def session() -> SessionId:
            if self._release is None:
                self._release = store.pulse.hold(machine)
                weakref.finalize(self, self._release)
            return machine.live_session(deadline)

        return build_batch(
            pa.RecordBatchReader.from_batches(arrow, rows),
            shard.schema,
            blob=store.location.blob,
            new_key=lambda: store.new_part_key(shard.id, session()),
            identity=lambda: shard.identity(session()),
            settings=settings,
            env=store.env,
            deadline=deadline,
            diff=True,
            cuts=lambda: shard.machine.ask(leaf_bounds, deadline),
        )
