"""The handle that reads a shard: as of one time, or on and on; and what keeps its history."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from strandline.closing import Closing
from strandline.env import Deadline, Env, retry_delays
from strandline.errors import AsOfTooOld, DeadlineExceeded, Fenced, UsageError
from strandline.location import Location
from strandline.settings import Settings
from strandline.shard.alone.changes import check_kept
from strandline.shard.alone.listen import Listen
from strandline.shard.alone.shard import Shard, check_name
from strandline.shard.alone.snapshots import (
    SnapshotSplit,
    check_readable,
    rows_in,
    schema_of,
    splits_of,
)
from strandline.shard.alone.updates import check_bound, check_time
from strandline.shard.look import Look
from strandline.state.commands import CloseHold, MoveHold, OpenHold, TakeHold
from strandline.state.model import EVERYTHING, Hold
from strandline.times import whole

__all__ = ["HOLDS", "ReadHandle", "ShardHold", "list_holds", "release_hold"]

_SPLITS_MAX = 100_000


class ShardHold:
    """Keeps a shard's since back under a name, until it is closed: over crashes and restarts.

    Made by `ReadHandle.hold`, and by `ReadHandle.take` in another process, which then has it alone.
    """

    def __init__(self, shard: Shard, name: str, hold: Hold) -> None:
        self._shard = shard
        self._hold = hold
        self.name = name

    @property
    def since(self) -> int | None:
        """Reads from this time on stay exact; None: it holds nothing back any more."""
        return self._hold.since

    def downgrade_since(self, new_since: int | None, *, timeout: float | None = None) -> int | None:
        """Moves it forward; an earlier time leaves it where it is. Returns where it is then.

        Fenced if another took it, or it was closed.
        """
        deadline = self._deadline(timeout)
        if new_since is not None:
            new_since = check_time(new_since, "new_since")
        self._hold = self._shard.machine.submit(
            MoveHold(self.name, self._hold.epoch, new_since), deadline
        )
        return self._hold.since

    def close(self, *, timeout: float | None = None) -> None:
        """Ends it: since may move. Harmless if it is gone; Fenced if another took it."""
        self._shard.machine.submit(CloseHold(self.name, self._hold.epoch), self._deadline(timeout))

    def _deadline(self, timeout: float | None) -> Deadline:
        if self._shard.closed:
            raise UsageError(
                f"the handles that the hold {self.name!r} was made with are closed, and it stays; "
                "open the shard again and take() it"
            )
        return self._shard.deadline(timeout)


class ReadHandle(Closing):
    """Reads one shard. Thread-safe; made by `open_shard`. A context manager.

    Where the location may be written to, the handle holds the shard's history back, from the
    shard's since when it was opened on, with a lease: if the process dies, others may go on after a
    while. It says with `downgrade_since` what it needs no more. A handle on a read-only location
    holds nothing; what it reads stays for the deletion delay.
    """

    def __init__(self, shard: Shard, deadline: Deadline) -> None:
        self._shard = shard
        self._closed = False
        self._name = ""
        self._hold = Hold(None)
        self._release: Callable[[], None] | None = None
        shard.use()
        if shard.location.read_only or shard.machine.state.meta.since is None:
            return
        self._name = f"reader-{shard.env.token_hex(8)}"
        asked = Hold(None, seqno=0, kind="reader")
        self._hold = shard.machine.submit(OpenHold(self._name, asked, leased=True), deadline)
        self._release = shard.pulse.hold(shard.machine)

    @property
    def shard_id(self) -> str:
        """The shard's id."""
        return self._shard.id

    @property
    def schema(self) -> pa.Schema:
        """The columns of the shard's rows."""
        return self._shard.schema.arrow.remove_metadata()

    @property
    def since(self) -> int | None:
        """Reads as of this time and later are exact; None: nothing can be read any more.

        What this handle holds; on a read-only location the shard's, as far as is known.
        """
        return self._hold.since if self._name else self._shard.machine.state.meta.since

    @property
    def upper(self) -> int | None:
        """The shard's upper as far as this process knows, without asking: it may be later."""
        return self._shard.machine.state.meta.upper

    def fetch_upper(self, *, timeout: float | None = None) -> int | None:
        """The shard's upper: one request."""
        deadline = self._deadline(timeout)
        return self._shard.machine.look(deadline).meta.upper

    # --- reading

    def snapshot(
        self, as_of: int, splits: int = 1, *, timeout: float | None = None
    ) -> list[SnapshotSplit]:
        """The shard's rows as of a time, in that many splits of about equal size.

        Waits until upper is beyond `as_of`. `read_split` reads each, in any process that reaches
        the location; keep this handle, or another hold, until then. Errors: AsOfTooOld, which
        names since; DeadlineExceeded, which names upper.
        """
        as_of = check_time(as_of, "as_of")
        count = whole(splits)
        if count is None or not 0 < count <= _SPLITS_MAX:
            raise UsageError(f"splits={splits!r:.200}: pass a whole number from 1 to {_SPLITS_MAX}")
        deadline = self._deadline(timeout)
        state = self._readable(as_of, deadline)
        return splits_of(self._shard, state, as_of, count, deadline)

    def read(self, as_of: int, *, timeout: float | None = None) -> pa.RecordBatchReader:
        """The whole snapshot, in this process: see `read_split`."""
        as_of = check_time(as_of, "as_of")
        deadline = self._deadline(timeout)
        self._readable(as_of, deadline)

        def batches() -> Iterator[pa.RecordBatch]:
            for table in rows_in(self._shard, as_of, EVERYTHING, deadline):
                self._check_open()
                yield from table.to_batches()

        return pa.RecordBatchReader.from_batches(schema_of(self._shard), batches())

    def listen(
        self, as_of: int, *, until: int | None = None, timeout: float | None = None
    ) -> Listen:
        """All updates at times after `as_of`, at their times, whole times at once, as they come.

        With the snapshot at `as_of` that is everything. `as_of=-1` begins at the very beginning, as
        long as since is 0. Ends when the shard is finished, or once all before `until` was
        delivered. `timeout` is for each event: DeadlineExceeded, and the next call waits again.
        Errors: AsOfTooOld, also if since passes what is delivered; LocationError, Corruption.
        """
        as_of = -1 if whole(as_of) == -1 else check_time(as_of, "as_of")
        if until is not None:
            until = check_bound(until, "until")
        deadline = self._deadline(timeout)
        look = self._shard.machine.look(deadline)
        self._check_mine(look, deadline)
        check_kept(look, as_of, self._shard.id)
        mine = self.since
        if mine is None or (as_of < mine and mine > 0):
            raise self._given_up(as_of)
        return Listen(self._shard, as_of, until, timeout, self._check_open)

    def _readable(self, as_of: int, deadline: Deadline) -> Look:
        """A look whose upper is beyond `as_of`, and whose since is not."""
        delays = iter(retry_delays(self._shard.env, first_seconds=0.005, most_seconds=0.25))
        while True:
            look = self._shard.machine.look(deadline)
            self._check_mine(look, deadline)
            check_readable(look, as_of, self._shard.id)
            mine = self.since
            if mine is None or as_of < mine:
                raise self._given_up(as_of)
            upper = look.meta.upper
            if upper is None or as_of < upper:
                return look
            if deadline.remaining() <= 0:
                raise DeadlineExceeded(
                    f"shard {self._shard.id} is not known as of {as_of} in time: its upper is "
                    f"{upper}; read at an earlier time, or wait longer with timeout=",
                    may_have_happened=False,
                )
            self._shard.env.sleep(min(next(delays), deadline.remaining()))

    def _given_up(self, as_of: int) -> AsOfTooOld:
        return AsOfTooOld(
            f"this handle cannot read as of {as_of} any more: its since is {self.since}; open the "
            "shard again if its own since is earlier"
        )

    def _check_mine(self, look: Look, deadline: Deadline) -> None:
        """Fenced if the lease ended: then nothing is held, and since may pass at any time."""
        self._check_open()
        if not self._name:
            return
        held = look.ask(lambda s: s.holds.get((self._name,)))
        if held is None and look.meta.since is not None:
            raise Fenced(
                f"the lease of this handle on shard {self._shard.id} ended, because nothing was "
                "heard of it for long; open the shard again"
            )

    # --- holding

    def downgrade_since(self, new_since: int | None, *, timeout: float | None = None) -> int | None:
        """Gives up reads before `new_since` (None: all of them). Returns this handle's since then.

        It never goes back: an earlier time leaves it where it is. What only earlier reads needed
        may be compacted away, and objects that died may be deleted: listens and splits that are
        under way go on all the same, as long as they read no earlier.
        """
        deadline = self._deadline(timeout)
        if new_since is not None:
            new_since = check_time(new_since, "new_since")
        if not self._name:
            raise UsageError(
                f"{self._shard.location.url} was opened for reading only: this handle holds nothing"
            )
        seqno = self._shard.machine.state.seqno
        self._hold = self._shard.machine.submit(
            MoveHold(self._name, self._hold.epoch, new_since, seqno), deadline
        )
        return self._hold.since

    def hold(
        self, name: str, since: int | None = None, *, timeout: float | None = None
    ) -> ShardHold:
        """Opens a hold that stays until it is closed, whatever becomes of this process.

        At `since` (None: this handle's). Errors: UsageError for a name that is taken, AsOfTooOld
        for a since that the shard has passed.
        """
        deadline = self._deadline(timeout)
        check_name(name, "name")
        if since is not None:
            since = check_time(since, "since")
        asked = Hold(self.since if since is None else since, kind="hold")
        found = self._shard.machine.submit(
            OpenHold(name, asked, leased=False, exact=since is not None),
            deadline,
        )
        return ShardHold(self._shard, name, found)

    def take(self, name: str, *, timeout: float | None = None) -> ShardHold:
        """Takes a hold over: whoever had it can move or close it no more.

        What a process does that goes on with another's work. UsageError if there is none.
        """
        deadline = self._deadline(timeout)
        check_name(name, "name")
        found = self._shard.machine.submit(TakeHold(name), deadline)
        return ShardHold(self._shard, name, found)

    # --- the end

    def expire(self, *, timeout: float | None = None) -> None:
        """Gives the handle up, and what it held. Harmless when repeated.

        The session ends with the last handle of one `open_shard`.
        """
        deadline = self._shard.deadline(timeout)
        if self._closed:
            return
        self._closed = True
        if self._release is not None:
            self._release()
        try:
            if self._name:
                command = CloseHold(self._name, self._hold.epoch)
                self._shard.machine.submit(command, deadline)
        finally:
            self._shard.let_go(deadline)

    close = expire

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this handle is closed; open the shard again")

    def _deadline(self, timeout: float | None) -> Deadline:
        self._check_open()
        return self._shard.deadline(timeout)


# --- holds as operators see them

HOLDS = pa.schema(
    [
        ("hold", pa.string()),
        ("kind", pa.string()),
        ("since", pa.int64()),
        ("seqno", pa.int64()),
        ("session", pa.string()),
        ("epoch", pa.int64()),
    ]
)
"""What `list_holds` gives."""


def list_holds(
    location: Location,
    shard_id: str,
    *,
    settings: Settings | None = None,
    timeout: float | None = None,
    env: Env | None = None,
) -> pa.Table:
    """Who holds a shard's history back, and from when: one row per hold.

    `since`: reads from then on stay exact; null where it holds nothing back any more. `seqno`: what
    died later than that record stays, for its reads. `session`: whose end ends it, null for one
    that was made by name. `release_hold` ends one. Errors: LocationError, Corruption.
    """
    shard = Shard(location, shard_id, settings, env)
    try:
        held = _holds(shard, shard.deadline(timeout))
    finally:
        shard.close()
    rows = [
        (name, hold.kind, hold.since, hold.seqno, hold.session or None, hold.epoch)
        for name, hold in held.items()
    ]
    return pa.Table.from_pylist([dict(zip(HOLDS.names, row, strict=True)) for row in rows], HOLDS)


def release_hold(
    location: Location,
    shard_id: str,
    name: str,
    *,
    settings: Settings | None = None,
    timeout: float | None = None,
    env: Env | None = None,
) -> bool:
    """Ends a hold, whoever has it: since may move. False if there is none of that name.

    For one whose owner will not come back; one that does is `Fenced`. Also of a reader that died,
    without waiting for the end of its lease. Errors: UsageError for a shard of a database;
    LocationError, Corruption.
    """
    shard = Shard(location, shard_id, settings, env)
    deadline = shard.deadline(timeout)
    check_name(name, "name")
    try:
        known = _holds(shard, deadline)
        if shard.is_of_database:
            raise UsageError(f"shard {shard.id} belongs to the database {location.url}")
        if name not in known:
            return False
        machine = shard.machine
        taken = machine.submit(TakeHold(name), deadline)
        machine.submit(CloseHold(name, taken.epoch), deadline)
        return True
    finally:
        shard.close()


def _holds(shard: Shard, deadline: Deadline) -> dict[str, Hold]:
    look = shard.machine.look(deadline)
    return look.ask(lambda s: {key[0]: hold for key, hold in s.holds.range()})
