"""Transactions over several shards, by themselves: what users hold.

A *txns shard* is the log of commits to any number of *data shards*, each made with
`strandline.shard.open_shard`. A commit is one record there: it is durable and readable in all of
its shards at once, at a time that the caller chooses. Anybody applies it to the data shards later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from strandline.closing import Closing
from strandline.env import Deadline, Env, RealEnv
from strandline.errors import (
    AsOfTooOld,
    Conflict,
    Fenced,
    LocationError,
    UnknownTable,
    UsageError,
)
from strandline.ids import parse_id
from strandline.location import Location
from strandline.settings import Settings
from strandline.shard.alone.shard import check_place
from strandline.shard.alone.updates import check_time
from strandline.shard.look import Look
from strandline.state.codec import decode_txn, encode_txn
from strandline.state.commands import Commit, CommitResult, CompactTxns, Write
from strandline.state.pages import TOP
from strandline.txn.alone.gathering import Gathering
from strandline.txn.alone.registering import forget_shard, register_shard
from strandline.txn.alone.snapshots import snapshot
from strandline.txn.alone.store import LoneStore

__all__ = ["Committed", "Txn", "TxnsHandle"]


class TxnsHandle(Closing):
    """Commits to several shards at once, and reads them. Made by `open`. A context manager.

    Thread-safe; not for use in a fork of the process. Times are whole numbers from 0 on that the
    callers choose; each commit, registration and forgetting takes one that is not below `upper`,
    and moves upper beyond it. (Seed `txn_management`.)
    """

    def __init__(self, store: LoneStore) -> None:
        self._store = store

    @classmethod
    def open(
        cls,
        location: Location,
        txns_id: str,
        *,
        init_time: int = 0,
        settings: Settings | None = None,
        timeout: float | None = None,
        env: Env | None = None,
    ) -> Self:
        """A handle on the txns shard with that id (`strandline.shard.new_shard_id`).

        It is made if there is none; then all its times are after `init_time`. `timeout` is in
        seconds, here and everywhere. Errors: UsageError for a shard that is something else, or that
        is not there on a read-only location; LocationError, Corruption.
        """
        check_place(location, settings)
        init_time = check_time(init_time, "init_time")
        store = LoneStore(location, txns_id, env or RealEnv(), settings or Settings())
        deadline = _deadline(store, timeout)
        try:
            store.open(init_time, deadline)
        except BaseException:
            store.close(deadline)
            raise
        return cls(store)

    @property
    def txns_id(self) -> str:
        """The txns shard's id."""
        return self._store.owner

    # --- times

    @property
    def upper(self) -> int:
        """The least time that can be committed at, as far as this process knows: it may be later.

        All commits at times before it are known, in every registered shard.
        """
        return self._store.txns.machine.state.meta.upper or 0

    @property
    def since(self) -> int:
        """What is asked about times from this one on is answered exactly, as far as is known."""
        return self._store.txns.machine.state.meta.since or 0

    def fetch_upper(self, *, timeout: float | None = None) -> int:
        """Upper, and since, anew: one request."""
        self._store.txns.look(self._deadline(timeout))
        return self.upper

    # --- shards

    def register(self, shard_id: str, time: int, *, timeout: float | None = None) -> None:
        """Registers a shard: from that time on it is written to by commits here, and only by them.

        Its own upper may not be beyond `time`. One that is registered already stays as it is; upper
        moves beyond `time` all the same. A call that ended anywhere is finished by repeating it at
        the least time possible. Errors: UpperMismatch, whose `upper` is that time; UsageError for a
        shard that is not there, is finished, or belongs to a database or another txns shard;
        LocationError.
        """
        time = check_time(time, "time")
        register_shard(self._store, shard_id, time, self._writing(timeout))

    def forget(self, shard_id: str, time: int, *, timeout: float | None = None) -> None:
        """Gives a shard back: from that time on it is written to directly again.

        What was committed to it is applied first. One that is not registered stays as it is; upper
        moves beyond `time` all the same. A call that ended anywhere is finished by repeating it at
        the least time possible. Errors: UpperMismatch, whose `upper` is that time; LocationError.
        """
        time = check_time(time, "time")
        forget_shard(self._store, shard_id, time, self._writing(timeout))

    def registered(
        self, as_of: int | None = None, *, timeout: float | None = None
    ) -> tuple[str, ...]:
        """The ids of the shards that are registered at that time (None: now), ascending.

        Waits until upper is beyond `as_of`. Errors: AsOfTooOld, which names since;
        DeadlineExceeded.
        """
        deadline = self._deadline(timeout)
        if as_of is not None:
            as_of = check_time(as_of, "as_of")
        look = self._store.txns.look(deadline) if as_of is None else self._known(as_of, deadline)
        versions = self._store.txns.tables(look, as_of)
        return tuple(sorted(version.table for version in versions))

    # --- commits

    def begin(self) -> Txn:
        """A transaction, empty as yet. Costs nothing."""
        self._check_open()
        return Txn(self.txns_id, self._store)

    def apply_le(self, time: int, *, timeout: float | None = None) -> int:
        """Applies all commits at times up to that one to their shards, whoever made them.

        Returns how many (commit, shard) there were to apply. Anybody may do it, any number of
        times, side by side. Reads do not need it; the shards' own handles see what is applied.
        Errors: LocationError; what was applied until then stays so.
        """
        time = check_time(time, "time")
        deadline = self._writing(timeout)
        look = self._store.txns.look(deadline)
        return self._store.apply(self._store.unapplied(look, time), time, deadline)

    def tidy(self, *, timeout: float | None = None) -> int:
        """Takes what is applied out of the txns shard, whoever applied it; returns how much.

        Of each commit to a shard stays that there was one, until `compact_to`. Commits tidy some
        of what this handle applied along the way.
        """
        return self._store.tidy(self._writing(timeout))

    def tidy_at(self, time: int, *, timeout: float | None = None) -> int:
        """The same; and upper moves beyond `time`. Errors: UpperMismatch, when that is taken."""
        time = check_time(time, "time")
        deadline = self._writing(timeout)
        count = self._store.tidy(deadline)
        self._store.commit(time, "tidy", deadline)
        return count

    def compact_to(self, time: int, *, timeout: float | None = None) -> int:
        """Gives up what only questions about times before that one need; returns since then.

        Since stays at the first commit that is not applied, and below upper: apply first.
        Transactions that were sent to other processes, or tried without an answer, before the new
        since are refused from then on: whether they were committed is not known any more. What is
        applied is tidied along the way. Sessions of processes that were silent for long are ended.
        Data shards are not compacted: see `strandline.shard.compact`.
        """
        time = check_time(time, "time")
        deadline = self._writing(timeout)
        self._store.tidy(deadline)
        self._store.look_out(self.registered(), deadline)
        more = True
        while more:
            since, more = self._store.txns.machine.submit(CompactTxns(time), deadline)
        return int(since)

    # --- reading

    def snapshot(
        self, shard_id: str, as_of: int, *, timeout: float | None = None
    ) -> pa.RecordBatchReader:
        """A shard's rows as of that time, each once, with `__diff`, how often it is there.

        Sorted by row keys, in bounded memory. Waits until upper is beyond `as_of`, for nothing
        else: what is committed and not applied is read from where it is, and nothing is written.
        At times from which on the shard is forgotten, its own upper has to be beyond `as_of`.
        `timeout` is for that, and then for each step of reading. Errors: UsageError for a shard
        that was never registered; AsOfTooOld, which names the shard's since; DeadlineExceeded,
        which names upper; LocationError, Corruption.
        """
        as_of = check_time(as_of, "as_of")
        self._check_open()
        return snapshot(self._store, shard_id, as_of, timeout)

    def latest_write(
        self, shard_id: str, at_or_before: int, *, timeout: float | None = None
    ) -> int | None:
        """When the latest commit to the shard was, at that time or before; None: there was none.

        Waits until upper is beyond `at_or_before`. Exact however much was applied, tidied or
        forgotten; AsOfTooOld for a time before since.
        """
        deadline = self._deadline(timeout)
        parse_id(shard_id, "s")
        at_or_before = check_time(at_or_before, "at_or_before")
        look = self._known(at_or_before, deadline)
        found = look.ask(lambda s: s.entries.floor((shard_id, at_or_before, TOP)))
        return None if found is None or found[0][0] != shard_id else int(found[0][1])

    # --- the end

    def close(self, *, timeout: float | None = None) -> None:
        """Ends the handle's sessions: what its transactions wrote and did not commit may be deleted
        from then on. The location stays open. Harmless when repeated.
        """
        deadline = _deadline(self._store, timeout)
        if not self._store.closed:
            self._store.close(deadline)

    # --- how

    def _check_open(self) -> None:
        self._store.check_open()

    def _deadline(self, timeout: float | None) -> Deadline:
        self._check_open()
        return _deadline(self._store, timeout)

    def _writing(self, timeout: float | None) -> Deadline:
        if self._store.read_only:
            raise UsageError(
                f"{self._store.location.url} was opened for reading only; open it for writing"
            )
        return self._deadline(timeout)

    def _to_write(self, timeout: float | None) -> tuple[LoneStore, Deadline]:
        return self._store, self._writing(timeout)

    def _known(self, time: int, deadline: Deadline) -> Look:
        """A look that answers exactly what is asked about that time."""
        time = check_time(time, "time")
        look = self._store.settled(time, deadline)
        since = look.meta.since
        if since is None or time < since:
            raise AsOfTooOld(
                f"what txns shard {self.txns_id} did at {time} is not known any more: its since is "
                f"{since}; ask for that time or a later one"
            )
        return look


@dataclass(frozen=True, slots=True)
class Committed:
    """A transaction that is committed: durable, and readable at its time. `apply` may follow."""

    txns_id: str
    time: int
    shards: tuple[str, ...]
    """Those that it wrote to, ascending."""
    rows: int
    """Updates in all of it."""
    repeated: bool = False
    """It was committed before already, here or elsewhere; then `time` is when that was."""

    def apply(self, txns: TxnsHandle, *, timeout: float | None = None) -> int:
        """Applies what is committed to its shards through its time, earlier commits included.

        As `TxnsHandle.apply_le`; whoever does not wait for it leaves it to others.
        """
        _check_same(self.txns_id, _id_of(txns))
        store, deadline = txns._to_write(timeout)  # noqa: SLF001  two sides of one thing
        return store.apply(self.shards, self.time, deadline)


class Txn(Closing):
    """Writes that are committed together, or not at all. For one thread; a context manager.

    Made by `TxnsHandle.begin`, or from the bytes of one in another process. A transaction is
    committed at most once, however often and by whomever it is tried, also as a piece of another:
    the second commit returns what the first one did. What it wrote to the location is kept as long
    as this object and its handle are there, unless another of the handle is sent (`to_bytes`).
    """

    def __init__(self, txns_id: str, store: LoneStore | None) -> None:
        self.txns_id = txns_id
        self._store = store
        self._ids = [store.env.token_hex(16)] if store is not None else []
        self._begun: int | None = None
        """Before this time none of `_ids` was committed; None: none was at all."""
        self._rows = Gathering()
        self._unknown = False
        """Whether a try to commit it, here, ended without an answer."""
        self._ended = ""
        """Why it takes no writes any more, and what to do."""
        self._committed: Committed | None = None
        self._merged: list[Txn] = []
        """They keep their sessions alive."""

    @property
    def rows(self) -> int:
        """Updates written so far."""
        return self._rows.count

    @property
    def shards(self) -> tuple[str, ...]:
        """The shards written to so far, ascending."""
        return self._rows.shards

    # --- writing

    def write(self, shard_id: str, updates: Any, *, timeout: float | None = None) -> int:
        """Adds updates of a registered shard; returns how many.

        Rows in any form that `strandline.shard.WriteHandle` takes, without `__time`; `__diff` is 1
        where there is none. They may be more than memory holds, here and over all calls: what does
        not fit waits in a temporary file. Data that is refused in the middle of a stream ends the
        transaction. Errors: UnknownTable for a shard that is not registered; SchemaMismatch;
        UsageError.
        """
        store = self._own_store()
        deadline = _deadline(store, timeout)
        parse_id(shard_id, "s")
        if not store.is_registered(shard_id, deadline):
            raise UnknownTable(
                f"shard {shard_id} is not registered with txns shard {self.txns_id}; register it"
            )
        before = self.rows
        try:
            return self._rows.add(store.shard(shard_id, deadline), updates)
        except BaseException:
            if self.rows > before:
                self._end("a write to it was refused in the middle; write all of it anew")
            raise

    def merge(self, other: Txn, *, timeout: float | None = None) -> int:
        """Takes up all that another transaction wrote, which is then part of this one only.

        Returns its updates. Errors: UsageError for one of another txns shard; LocationError.
        """
        store = self._own_store()
        deadline = _deadline(store, timeout)
        if not isinstance(other, Txn):
            raise UsageError(f"{other!r:.200} is no transaction, and cannot be merged into one")
        _check_same(self.txns_id, other.txns_id)
        if other is self:
            raise UsageError("a transaction cannot be merged into itself; begin another")
        other._check_going_on()
        self._rows.writes += other._rows.stored(other._store or store, deadline)
        self._ids += other._ids
        if other._begun is not None:
            self._begun = min(other._begun, other._begun if self._begun is None else self._begun)
        self._unknown |= other._unknown
        self._merged.append(other)
        other._ended = "it was merged into another; commit that"
        return other.rows

    # --- to other processes

    def to_bytes(self, *, timeout: float | None = None) -> bytes:
        """All of it for another process, which commits or merges it: what is small itself, and
        where the rest is stored.

        This object is over then. What it stored, and what others of its handle have stored by then,
        is kept for `Settings.lease_seconds` (15 minutes) from then on, not longer: a later commit
        is refused (`Fenced`). Errors: LocationError.
        """
        self._check_going_on()
        store = self._store
        if store is not None:
            store.check_open()
            deadline = _deadline(store, timeout)
            parts = any(write.batch.parts for write in self._rows.stored(store, deadline))
            if self._begun is None:
                self._begun = store.txns.look(deadline).meta.upper or 0
            if parts:
                store.txns.machine.hand_over(deadline)
        data = encode_txn(self.txns_id, self._ids, self._begun or 0, self._rows.writes)
        self._end("it was made bytes for another process; commit it there")
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The inverse of `to_bytes`: to be committed, or merged into one of `TxnsHandle.begin`.

        Errors: Corruption, UsageError (of a newer format).
        """
        txns_id, ids, begun, writes = decode_txn(data)
        found = cls(txns_id, None)
        found._ids, found._begun, found._rows.writes = ids, begun, [*writes]
        return found

    # --- the end

    def commit_at(self, txns: TxnsHandle, time: int, *, timeout: float | None = None) -> Committed:
        """Commits all of it at exactly that time: durable and readable when this returns.

        Upper moves beyond `time`, of the txns shard and so of every registered shard; also when
        nothing was written. Refused, the transaction can be tried again at a later time, as it is:
        nothing is stored again. So it can after a LocationError whose `may_have_happened` is true;
        if it did happen, that is found, and it is not committed twice.

        Errors: UpperMismatch, whose `upper` is the least time possible; UnknownTable for a shard
        that was forgotten; Fenced when the session that stored its rows has ended: write them anew;
        UsageError, if nobody knows any more whether it was committed (`compact_to`).
        """
        time = check_time(time, "time")
        _check_same(self.txns_id, _id_of(txns))
        store, deadline = txns._to_write(timeout)  # noqa: SLF001  two sides of one thing
        if self._committed is not None:
            done = self._committed
            return Committed(done.txns_id, done.time, done.shards, done.rows, repeated=True)
        self._check_going_on()
        try:
            writes = self._rows.stored(store, deadline)
        except LocationError as error:
            # What it may have left are rows that nothing refers to: nothing was sent that commits.
            error.may_have_happened = self._unknown
            raise
        result = self._submit(store, writes, time, deadline)
        self._committed = Committed(
            self.txns_id, result.time, self.shards, self.rows, result.repeated
        )
        self._end("it is committed; begin another")
        return self._committed

    def _submit(
        self, store: LoneStore, writes: Sequence[Write], time: int, deadline: Deadline
    ) -> CommitResult:
        # One that was never tried, or sent anywhere, cannot have been committed before.
        begun = time if self._begun is None else self._begun
        command = Commit(
            0,
            tuple(writes),
            token=(self._ids[0], 1) if writes else None,
            at=time,
            merged=tuple(self._ids[1:]) if writes else (),
            begun=begun,
        )
        try:
            store.before_commit(self.shards, deadline)
            return store.txns.commit_at(command, operation="commit", deadline=deadline)
        except (Conflict, UsageError):
            raise
        except Fenced:
            self._end("the session that stored its rows has ended; write all of it anew")
            raise
        except LocationError as error:
            error.may_have_happened |= self._unknown
            if error.may_have_happened:
                self._begun, self._unknown = begun, True
            raise
        except BaseException:
            self._begun, self._unknown = begun, True
            raise

    def close(self) -> None:
        """Lets go of it. Unless it is committed, nothing of it ever happened. Harmless when
        repeated.
        """
        self._end(self._ended or "it is closed; begin another")

    # --- how

    def _check_going_on(self) -> None:
        if self._ended:
            raise UsageError(f"this transaction is over: {self._ended}")

    def _own_store(self) -> LoneStore:
        self._check_going_on()
        if self._store is None:
            raise UsageError(
                "this transaction came from another process; merge it into one of begin(), and "
                "write to that"
            )
        self._store.check_open()
        return self._store

    def _end(self, why: str) -> None:
        self._ended = why
        self._rows.close()
        for other in self._merged:
            other.close()


def _deadline(store: LoneStore, timeout: float | None) -> Deadline:
    return Deadline.of(store.env, timeout, store.settings.timeout_seconds)


def _id_of(txns: Any) -> str:
    if not isinstance(txns, TxnsHandle):
        raise UsageError(f"txns={txns!r:.200}: pass a handle, as TxnsHandle.open returns it")
    return txns.txns_id


def _check_same(mine: str, given: str) -> None:
    if mine != given:
        raise UsageError(
            f"the transaction is of txns shard {mine}, and this is {given}; begin one here"
        )
