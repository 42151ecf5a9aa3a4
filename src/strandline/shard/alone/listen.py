"""Following a shard: its updates in whole times, as its upper moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from strandline.env import retry_delays
from strandline.errors import DeadlineExceeded
from strandline.parts.plain import numbers_of
from strandline.parts.schema import TIME
from strandline.shard.alone.changes import check_kept, updates_between
from strandline.shard.alone.shard import Shard
from strandline.times import TIME_MAX

__all__ = ["Listen", "ListenEvent"]

_EVENT_ROWS = 131_072
"""Updates in an event, about; those of one time are never parted."""

_POLL_FIRST_SECONDS = 0.005
_POLL_MOST_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class ListenEvent:
    """All updates at times from the last event's `progress` to before this one's."""

    updates: pa.Table
    """The shard's columns, `__time` and `__diff`; sorted by time, then row keys. May be empty."""
    progress: int | None
    """Everything at times before it was delivered; None: all there will ever be.

    Who keeps it with what was made of the updates goes on with `listen(progress - 1)`.
    """


class Listen:
    """An iterator of events. An error ends nothing: the next call goes on where it was."""

    def __init__(
        self,
        shard: Shard,
        as_of: int,
        until: int | None,
        timeout: float | None,
        check_open: Callable[[], None],
    ) -> None:
        """`check_open` raises once the handle that holds the shard's history is closed."""
        self._shard = shard
        self._check_open = check_open
        self._progress: int | None = as_of + 1
        self._until = until
        self._timeout = timeout
        self._events: Iterator[ListenEvent] = iter(())

    @property
    def progress(self) -> int | None:
        """Everything at times before it was delivered."""
        return self._progress

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ListenEvent:
        self._check_open()
        event = self._next_of_window()
        if event is None:
            if self._progress is None or (
                self._until is not None and self._progress >= self._until
            ):
                raise StopIteration
            self._events = self._window(self._wait())
            event = self._next_of_window()
        if event is None:
            raise AssertionError("a window has at least one event")
        self._progress = event.progress
        return event

    def _next_of_window(self) -> ListenEvent | None:
        try:
            return next(self._events, None)
        except BaseException:
            self._events = iter(())
            raise

    def _wait(self) -> int | None:
        """How far the updates are known beyond what was delivered."""
        deadline = self._shard.deadline(self._timeout)
        machine = self._shard.machine
        delays = iter(
            retry_delays(
                self._shard.env, first_seconds=_POLL_FIRST_SECONDS, most_seconds=_POLL_MOST_SECONDS
            )
        )
        while True:
            look = machine.look(deadline)
            upper = look.meta.upper
            self._check_open()
            check_kept(look, self._from - 1, self._shard.id)
            if upper is None or upper > self._from:
                return upper
            if deadline.remaining() <= 0:
                raise DeadlineExceeded(
                    f"no update came to shard {self._shard.id} in time: its upper is {upper}",
                    may_have_happened=False,
                )
            self._shard.env.sleep(min(next(delays), deadline.remaining()))

    @property
    def _from(self) -> int:
        return TIME_MAX if self._progress is None else self._progress

    def _window(self, upper: int | None) -> Iterator[ListenEvent]:
        """The events from what was delivered to before `upper`; the last one reaches it."""
        end = upper
        if self._until is not None:
            end = self._until if upper is None else min(upper, self._until)
        through = TIME_MAX if end is None else end - 1
        deadline = self._shard.deadline(self._timeout)
        tables = updates_between(self._shard, self._from - 1, through, deadline)
        stored = self._shard.schema.stored(time=True, diff=True)
        arrow = pa.schema([field.remove_metadata() for field in stored])
        held = arrow.empty_table()
        for table in tables:
            plain = pa.Table.from_arrays(table.columns, schema=arrow)
            held = pa.concat_tables([held, plain]) if held.num_rows else plain
            if held.num_rows >= _EVENT_ROWS:
                whole, held, progress = _whole_times(held)
                if whole.num_rows:
                    yield ListenEvent(whole, progress)
        yield ListenEvent(held, end)


def _whole_times(table: pa.Table) -> tuple[pa.Table, pa.Table, int]:
    """The rows of all times but the last, which may go on; those of the last; and that."""
    times = numbers_of(table.column(TIME).combine_chunks())
    last = int(times[-1])
    at = int(np.searchsorted(times, last, "left"))
    return table.slice(0, at), table.slice(at), last
