"""The handle that writes to a shard: appends, which either happen once, whole, or not at all."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.closing import Closing
from strandline.env import LONG_SECONDS, Deadline
from strandline.errors import Conflict, LocationError, StrandlineError, UsageError
from strandline.parts.schema import TIME
from strandline.shard.alone.batches import (
    Batch,
    BatchBuilder,
    check_shard,
    check_within,
    write_updates,
)
from strandline.shard.alone.compaction import ShardCompaction, Strategy, compact_shard
from strandline.shard.alone.shard import Shard
from strandline.shard.alone.updates import Updates, check_bound, updates_from
from strandline.state.commands import AdvanceUpper, Append, AppendResult, Heartbeat
from strandline.state.decide import Author, decide
from strandline.state.model import Part
from strandline.state.replay import State
from strandline.state.tokens import token_of

__all__ = ["WriteHandle"]

_log = logging.getLogger("strandline")


class WriteHandle(Closing):
    """Appends to one shard. Thread-safe; made by `open_shard`. A context manager.

    `updates`, wherever they are asked for, are rows in any form of Arrow, a pandas or Polars frame,
    a dict of columns or a list of dicts: the shard's columns, `__time`, and `__diff` (1 where there
    is none; any other number but 0, which says nothing). With `time=` all rows are at that time.
    They may be more than memory holds, if they come as a stream. None: no updates. A `Batch` is
    taken as well.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._closed = False
        # Where the data of a replicated writer begins: behind what it appended itself.
        self._mine = shard.machine.state.meta.upper
        self._release: Callable[[], None] | None = None
        self._refused_parts: dict[str, int] = {}
        """Keys of parts that no append took up, and that are not deleted yet; each with how many
        records the session had."""
        self._lock = threading.Lock()
        shard.use()

    @property
    def shard_id(self) -> str:
        """The shard's id."""
        return self._shard.id

    @property
    def schema(self) -> pa.Schema:
        """The columns of the shard's rows."""
        return self._shard.schema.arrow.remove_metadata()

    @property
    def row_keys(self) -> tuple[str, ...]:
        """The columns that the rows are sorted by."""
        return self._shard.schema.row_keys

    @property
    def upper(self) -> int | None:
        """The shard's upper as far as this process knows, without asking: it may be later.

        All updates at times before it are in the shard. None: the shard is finished.
        """
        return self._shard.machine.state.meta.upper

    def fetch_upper(self, *, timeout: float | None = None) -> int | None:
        """The shard's upper: one request."""
        deadline = self._deadline(timeout)
        return self._shard.machine.look(deadline).meta.upper

    def compare_and_append(
        self,
        updates: Any,
        expected_upper: int,
        new_upper: int | None,
        *,
        time: int | None = None,
        token: tuple[str, int] | None = None,
        timeout: float | None = None,
    ) -> AppendResult:
        """Appends updates at times from `expected_upper` to before `new_upper`, if that is upper.

        What makes the writers of one shard take turns. `token` (scope, number) makes it happen once
        however often, and by whomever, it is tried: the second time the first one's result comes
        back, `repeated`. A `new_upper` of None finishes the shard: nothing can be appended any
        more. Without updates only upper moves; equal bounds change nothing.

        Errors: UpperMismatch, which carries the current upper; UsageError for a finished shard,
        bounds the wrong way, updates at other times; SchemaMismatch; Fenced for a batch whose
        session has ended; LocationError.
        """
        deadline = self._deadline(timeout)
        if expected_upper is None:
            raise UsageError("expected_upper=None: nothing can be appended to a finished shard")
        expected_upper = check_bound(expected_upper, "expected_upper")
        return self._append(
            updates,
            lambda parts: Append(
                expected_upper, _upper(new_upper), parts, expected_upper, token=token_of(token)
            ),
            time,
            deadline,
        )

    def append(
        self,
        updates: Any,
        new_upper: int | None,
        *,
        lower: int | None = None,
        time: int | None = None,
        token: tuple[str, int] | None = None,
        timeout: float | None = None,
    ) -> AppendResult:
        """Appends updates at times from `lower` to before `new_upper`, unless another did already.

        For writers that append the same data, each whole, so that it gets there when one of them
        stops: what is below the shard's upper by then is left out. `lower`: None for where the data
        of this handle goes on, which is the shard's upper when it was opened, then each `new_upper`
        of its own; a batch says it by itself. Errors: as `compare_and_append`; UpperMismatch where
        `lower` is beyond the shard's upper, and updates would be missing in between.
        """
        deadline = self._deadline(timeout)
        start = lower
        if start is None:
            start = updates.lower if isinstance(updates, Batch) else self._mine
        if start is None:
            raise UsageError(f"shard {self._shard.id} is finished: its upper is the empty frontier")
        begin = check_bound(start, "lower")
        return self._append(
            updates,
            lambda parts: Append(
                begin, _upper(new_upper), parts, replicated=True, token=token_of(token)
            ),
            time,
            deadline,
        )

    def advance_upper(self, new_upper: int, *, timeout: float | None = None) -> int | None:
        """Moves upper to at least `new_upper`: no more updates come before it. Returns upper."""
        deadline = self._deadline(timeout)
        new_upper = check_bound(new_upper, "new_upper")
        upper = self._shard.machine.submit(AdvanceUpper(new_upper), deadline)
        self._appended(new_upper)
        return upper

    def finish(self, *, timeout: float | None = None) -> None:
        """Ends the shard for writers, as it is: its upper becomes the empty frontier.

        Harmless on a shard that is finished.
        """
        deadline = self._deadline(timeout)
        machine = self._shard.machine
        if machine.look(deadline).meta.upper is not None:
            try:
                machine.submit(Append(0, None, replicated=True), deadline)
            except UsageError:
                # Another was first: what was asked for is done.
                if machine.look(deadline).meta.upper is not None:
                    raise
        self._mine = None

    def batch_builder(self, lower: int | None = None) -> BatchBuilder:
        """A builder of a batch of updates at times from `lower` on (None: from upper, as known).

        Until the batch is appended, this handle has to stay open, here or wherever it is.
        """
        self._check_open()
        start = self.upper if lower is None else lower
        if start is None:
            raise UsageError(f"shard {self._shard.id} is finished: its upper is the empty frontier")
        if self._release is None:
            # Until the end of the handle: where its batches are by then is not known here.
            self._release = self._shard.pulse.hold(self._shard.machine)
        return BatchBuilder(self._shard, start, self._check_open)

    def compact(
        self, strategy: Strategy = "size-ratio", *, timeout: float | None = None
    ) -> ShardCompaction:
        """Merges parts, and gives up history that nobody holds: see `strandline.shard.compact`."""
        self._check_open()
        return compact_shard(self._shard, strategy, self._shard.deadline(timeout, LONG_SECONDS))

    # --- the end

    def expire(self, *, timeout: float | None = None) -> None:
        """Gives the handle up: batches that were not appended may be deleted from then on.

        The session ends with the last handle of one `open_shard`. Harmless when repeated.
        """
        deadline = self._shard.deadline(timeout)
        if self._closed:
            return
        self._closed = True
        if self._release is not None:
            self._release()
        self._end_refused(deadline)
        self._shard.let_go(deadline)
        self._clear(deadline)

    close = expire

    # --- how

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this handle is closed; open the shard again")

    def _deadline(self, timeout: float | None) -> Deadline:
        self._check_open()
        return self._shard.deadline(timeout)

    def _append(
        self,
        updates: Any,
        command: Callable[[tuple[Part, ...]], Append],
        time: int | None,
        deadline: Deadline,
    ) -> AppendResult:
        bare = command(())
        if isinstance(updates, Batch):
            if time is not None:
                raise UsageError(f"time={time!r:.200}: the updates of a batch have their times")
            check_shard(updates, self._shard)
            parts = updates.parts
        else:
            known = self._refused(bare, deadline)
            if known is not None:
                return known
            try:
                parts = self._written(updates, bare, time, deadline)
            except LocationError as error:
                # What it may have left are rows that nothing refers to: nothing was sent that
                # appends them.
                error.may_have_happened = False
                raise
        mine = () if isinstance(updates, Batch) else parts
        try:
            result = self._shard.machine.submit(command(parts), deadline)
        except StrandlineError as error:
            if mine and _is_refused(error):
                self._drop(mine)
            raise
        if mine and result.repeated:
            self._drop(mine)
        self._appended(bare.new_upper)
        self._clear(deadline)
        return result

    def _drop(self, parts: Iterable[Part]) -> None:
        """Takes note of the parts of an append that is refused, to be deleted: see `_clear`."""
        count = self._shard.machine.own.written
        with self._lock:
            self._refused_parts.update((part.key, count) for part in parts)

    def _end_refused(self, deadline: Deadline) -> None:
        """Writes the record after which what is left of refused appends may be deleted."""
        machine = self._shard.machine
        with self._lock:
            waits = any(count >= machine.own.written for count in self._refused_parts.values())
        if waits:
            try:
                machine.submit(Heartbeat(), deadline)
            except StrandlineError as error:
                _log.warning("parts of refused appends are left to a sweep: %s", error)

    def _clear(self, deadline: Deadline) -> None:
        """Deletes what refused appends wrote, in the time that is left; the rest is for later.

        Raises nothing: the caller hears what became of its append, and what is never deleted here
        is found by a sweep, once the session has ended.

        SUBTLE: not before this machine wrote another record. A copy of the process that was made
        in between, and goes on by itself, may yet append the same parts under the same session;
        once there is a record of it that the copy did not write, it is refused.
        """
        machine = self._shard.machine
        with self._lock:
            now = machine.own.written
            keys = [key for key, count in self._refused_parts.items() if count < now]
            for key in keys:
                del self._refused_parts[key]
        gone = [False] * len(keys)
        try:
            if keys and deadline.remaining() > 0.0:
                # SUBTLE: the record of the append is not there, and never will be: `submit` says so
                # only once that is settled. That is not enough where its token was found: it may
                # have been this very append that committed it; nor in a clone of the process, which
                # may append the same parts. So they have to be missing in the state that decided.
                named = machine.ask(partial(_named, keys), deadline)
                gone = self._shard.env.parallel(partial(self._gone, named, deadline), keys)
        except StrandlineError as error:
            _log.warning("parts of refused appends are deleted later: %s", error)
        finally:
            with self._lock:
                left = (key for key, is_gone in zip(keys, gone, strict=True) if not is_gone)
                self._refused_parts.update(dict.fromkeys(left, 0))

    def _gone(self, named: AbstractSet[str], deadline: Deadline, key: str) -> bool:
        """Whether there is nothing more to be done about a part."""
        if key in named:
            return True
        try:
            self._shard.location.blob.delete(key, timeout=deadline.remaining())
        except LocationError as error:
            _log.warning("%s could not be deleted and is tried again later: %s", key, error)
            return False
        self._shard.machine.own.dropped(key)
        return True

    def _appended(self, new_upper: int | None) -> None:
        if new_upper is None or self._mine is None:
            self._mine = None
        else:
            self._mine = max(self._mine, new_upper)

    def _refused(self, bare: Append, deadline: Deadline) -> AppendResult | None:
        """The result of an append that is done already; raises what one would be refused with.

        Done by its token, or by a replica. Asked before anything is written, so that an append that
        comes too late leaves nothing.
        """
        machine = self._shard.machine
        if self._shard.location.read_only:
            return None  # said by `submit`
        look = machine.look(deadline)
        nobody = Author("", first=True)
        decision = look.ask(lambda s: decide(s, bare, nobody))
        result: AppendResult = decision.result
        if not result.repeated and not _is_there(bare, look.meta.upper):
            return None
        self._appended(bare.new_upper)
        return result

    def _written(
        self, data: Any, bare: Append, time: int | None, deadline: Deadline
    ) -> tuple[Part, ...]:
        updates = _within(updates_from(data, self._shard.schema, time), bare)
        if self._shard.location.read_only:
            return ()
        upper = self._shard.machine.state.meta.upper
        if bare.replicated and upper is not None and upper > bare.lower:
            # It is there already, and upper never goes back. What comes there until the append is
            # cut off by its reference.
            updates = updates.at_or_after(upper)
        token = "" if bare.token is None else f"{bare.token[0]}:{bare.token[1]}"
        return write_updates(self._shard, updates, deadline, token=token)


def _is_refused(error: StrandlineError) -> bool:
    """Whether it is certain that nothing happened, and nothing will."""
    if isinstance(error, LocationError):
        return not error.may_have_happened
    return isinstance(error, Conflict | UsageError)


def _named(keys: Iterable[str], state: State) -> set[str]:
    """Which of these parts the state names."""
    dead = {dead.key for _, dead in state.dead.range()}
    return {key for key in keys if key in dead or state.parts.get((key,)) is not None}


def _within(updates: Updates, append: Append) -> Updates:
    """The same updates; UsageError as soon as there is one at a time that the append is not for."""

    def checked() -> Iterator[pa.RecordBatch]:
        for batch in updates.batches:
            times = pc.min_max(batch.column(TIME))
            check_within(times["min"].as_py(), times["max"].as_py(), append.lower, append.new_upper)
            yield batch

    return replace(updates, batches=checked())


def _is_there(append: Append, upper: int | None) -> bool:
    """Whether replicas have appended all of it, as far as the upper."""
    if not append.replicated or upper is None or append.new_upper is None:
        return False
    return append.new_upper <= upper


def _upper(value: int | None) -> int | None:
    return None if value is None else check_bound(value, "new_upper")
