"""One shard as one process sees it: the compare-and-set loop around the pure state machine."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from strandline.env import Deadline, Env
from strandline.errors import (
    Corruption,
    DeadlineExceeded,
    Fenced,
    LocationError,
    StrandlineError,
    UsageError,
)
from strandline.ids import SessionId, ShardId, new_session_id, session_of
from strandline.location import Location, Queueing
from strandline.location.consensus import Record
from strandline.settings import Settings
from strandline.shard.chain import record_name
from strandline.shard.follower import Follower
from strandline.shard.look import Look
from strandline.shard.opening import Log
from strandline.shard.patience import is_final, pauses
from strandline.shard.rolling import Upkeep
from strandline.shard.rollup import Sealed, Writer
from strandline.state.codec import LogRecord, encode_record, record_hash
from strandline.state.commands import (
    Acknowledge,
    Append,
    AppendResult,
    CloseSession,
    Command,
    Commit,
    CommitGroup,
    CommitResult,
    Describe,
    Heartbeat,
    R,
    RetireRollups,
)
from strandline.state.decide import Author, Decision, decide
from strandline.state.model import Diff, Rollup
from strandline.state.replay import State, initial
from strandline.state.sessions import has_ended

__all__ = ["Machine"]

A = TypeVar("A")
Note = str | Callable[[R], str]


class Decide(Protocol):
    """As `strandline.state.decide.decide`."""

    def __call__(self, state: State, command: Command[R], author: Author, /) -> Decision[R]: ...


RECORD_BYTES_MAX = 128 * 1024 * 1024
"""A larger record of what callers write is refused before it is sent anywhere. A commit of 50,000
parts has half of it; SQLite and PostgreSQL take up to 1 GB in a row, and every process that has the
shard open reads each record whole."""

_LOSSES_WITHOUT_SLEEP = 3
_LOOK_SECONDS = 1.0
"""For how long a look at the log may keep other writers waiting."""
_log = logging.getLogger("strandline")


@dataclass(frozen=True, slots=True, eq=False)
class _Attempt:
    """A record that is about to be put, and all that is needed once its outcome is known."""

    command: Command[Any]
    record: LogRecord
    data: bytes
    digest: bytes
    result: Any


class Machine:
    """One shard seen from one process. Thread-safe; not for use in a fork of the process.

    Reading the state takes no lock across requests; commands of one machine queue up, because a
    session has at most one unsettled record per shard.
    """

    def __init__(
        self,
        location: Location,
        shard: ShardId,
        session: SessionId,
        env: Env,
        settings: Settings,
        *,
        decide: Decide = decide,
        title: Callable[[], str] | None = None,
        before_write: Callable[[Deadline], None] | None = None,
    ) -> None:
        """`before_write` is called before each command, and what it raises refuses that."""
        self.shard = shard
        self.session = session
        """Who writes here now. A session that others ended is followed by a new one."""
        self._location = location
        self._env = env
        self._settings = settings
        self._decide = decide
        self._before_write = before_write
        self._process = env.process_id()
        self._upkeep = Upkeep(settings, session)
        self._follower = Follower(Log(location, shard, env, title), env, self._upkeep)
        self._closed = False
        self._fenced = ""
        self._registered = False
        self._count = 0
        """The number of the present session's newest record, as far as this machine wrote it."""
        self._written = 0
        self._ended: frozenset[str] = frozenset()
        """Sessions of this machine that others ended."""
        self._orphans: list[SessionId] = []
        """Those of them of which the log does not say yet that nothing is written under them."""
        self._litter: dict[str, None] = {}
        """Objects of the present session that were begun, and that no record entered so far."""
        self._strewn = False
        """Whether others than this machine write objects under the present session."""
        self._wrote_at = env.monotonic()
        """When the last record of ours was known to be in the log."""
        # Held while a command is under way, requests included: the queue of this session.
        self._turn = threading.Lock()
        self._unsettled: _Attempt | None = None
        self._crowded = False
        """Whether others wrote to the log between our last look and our turn."""
        self._line = ExitStack()
        """Holds our turn at the log, if we have it."""
        # Held while a rollup is written.
        self._rolling = threading.Lock()

    # --- reading

    @property
    def state(self) -> State:
        """The newest state that is known without asking; the empty one before the first request."""
        return self._follower.newest or initial()

    @property
    def pages_read(self) -> int:
        """Pages of state fetched so far."""
        return self._follower.pages_read

    def look(self, deadline: Deadline | None = None) -> Look:
        """The newest state: one request for newer records, and more only where the log is behind.

        Everything that was committed before the call is in it. Errors: Corruption,
        LocationError.
        """
        deadline = self._by(deadline)
        state = self._follower.catch_up(deadline)
        if self._unsettled is not None:
            self._settle_in_passing(deadline)
            state = self._follower.newest or state
        return Look(state, deadline, self._follower)

    def known(self, deadline: Deadline | None = None) -> Look:
        """The newest state that is known without asking the log."""
        return Look(self.state, self._by(deadline), self._follower)

    def ask(self, function: Callable[[State], A], deadline: Deadline | None = None) -> A:
        """What `function` makes of the newest state that is known, as `Look.ask`.

        Where pages of that are not kept any more, of the newest that there is.
        """
        return self._follower.run(function, self._by(deadline), None)

    def records(
        self, from_seqno: int = 1, deadline: Deadline | None = None, *, limit: int | None = None
    ) -> list[LogRecord]:
        """The log's records from `from_seqno` on, decoded, the newest last.

        Begins later when the log was truncated. Corruption where a record is damaged or missing.
        """
        return self._follower.records(from_seqno, limit, self._by(deadline))

    # --- writing

    def submit(
        self, command: Command[R], deadline: Deadline | None = None, *, note: Note[R] = ""
    ) -> R:
        """Makes the command happen once; returns what `decide` says its result is.

        `note` is a remark for people in the record, or makes one of the result.

        A session that others ended while it was silent is followed by a new one: the caller does
        not notice, unless the command enters objects of the ended one (Fenced). A `Heartbeat` of
        an ended session is False. Fenced for good if a copy of this process, as of a machine that
        was restored from a snapshot, has written under the same session.

        Errors: what `decide` raises; LocationError, whose `may_have_happened` tells whether the
        command may yet take effect; Corruption.
        """
        deadline = self._by(deadline)
        if self._location.read_only:
            raise UsageError(
                f"{self._location.url} was opened for reading only; open it for writing"
            )
        if self._closed:
            raise UsageError("this handle is closed; open the database again")
        if self._before_write is not None:
            self._before_write(deadline)
        try:
            result = self._submit(command, note, deadline)
        except StrandlineError:
            self._acknowledge_ended(deadline)
            raise
        # A heartbeat says that somebody lives: an owner of nothing leaves it at that.
        if self._registered or not isinstance(command, Heartbeat):
            self._acknowledge_ended(deadline)
        if not self._settings.background:
            self.maybe_rollup()
        return result

    def close(self, deadline: Deadline | None = None) -> None:
        """Ends the session in this shard, if it has one here. Closing twice is harmless.

        If it may have left objects that nothing refers to, it stays known until they are swept.
        """
        if self._closed or self._env.process_id() != self._process:
            return
        self._closed = True
        known = self._registered or self._unsettled or self._orphans
        if self._location.read_only or not (known or self.is_littered):
            return
        deadline = self._by(deadline)
        self._acknowledge_ended(deadline)
        try:
            if not known:  # so that a sweep knows of what is left
                self._submit(Heartbeat(), "", deadline)
            self._submit(CloseSession(littered=self.is_littered), "", deadline)
        except Fenced:
            _log.info("session %s had been ended in shard %s", self.session, self.shard)

    # --- the session

    def live_session(self, deadline: Deadline | None = None, *, brief: bool = False) -> SessionId:
        """The session to write objects under; one that was silent shows first that it is open.

        Whoever writes objects that a later command enters has to hold the session meanwhile
        (`strandline.shard.leases`), and asks here before the first of them. `brief`: the command
        follows so soon that it is enough if the newest known state has the session open. Fenced if
        a copy of this process writes under the session, too.
        """
        deadline = self._by(deadline)
        if self._fenced:
            raise Fenced(self._fenced)
        quiet = not brief and self.quiet_seconds >= self._settings.lease_seconds / 4
        # SUBTLE: registered before its first object is written: what a session leaves that the log
        # does not know of would be found by nobody.
        if quiet or not self._registered or self._has_ended(deadline):
            self.submit(Heartbeat(), deadline)
        return self.session

    def begins(self, key: str) -> None:
        """Takes note that an object of that key is about to be written, for a command to enter."""
        if session_of(key) == self.session:
            self._litter[key] = None

    def dropped(self, key: str) -> None:
        """Takes note that such an object was deleted, because no command will enter it.

        A try to put it that was not answered may still arrive: the session stays known at its end.
        """
        if self._litter.pop(key, key) is None:
            self._strewn = True

    def lends(self) -> None:
        """Takes note that others write objects under the present session, unknown to this machine
        (tasks of a job, attempts that fail among them).
        """
        self._strewn = True

    @property
    def is_littered(self) -> bool:
        """Whether there may be objects of the present session that nothing refers to."""
        return self._strewn or bool(self._litter)

    def hand_over(self, deadline: Deadline | None = None) -> SessionId:
        """The session for another process to go on with (`adopt`); here another one follows.

        It is registered, so that objects which are written under it until then are known to be
        somebody's; but nobody keeps it alive for longer than its lease.
        """
        deadline = self._by(deadline)
        while True:
            self.submit(Heartbeat(), deadline)
            with self._in_turn(deadline):
                if self._registered and self._unsettled is None:
                    session = self.session
                    self._go_on_as(new_session_id(self._env))
                    return session

    def adopt(self, session: SessionId, deadline: Deadline | None = None) -> None:
        """Goes on under a session that another process handed over, and that nobody else has.

        One request. Errors: LocationError, Corruption; then nothing was adopted.
        """
        deadline = self._by(deadline)
        with self._in_turn(deadline):
            if self._registered or self._unsettled is not None:
                raise UsageError(f"session {self.session} is at work and cannot become {session}")
            # Whoever handed it over writes no more under it: the newest state has all its records.
            self._follower.catch_up(deadline)
            known = self._follower.run(lambda s: s.sessions.get((session,)), deadline, None)
            self._go_on_as(session)
            self._count = 0 if known is None else known.count
            # SUBTLE: who handed it over had registered it. So if it is gone from the state, it was
            # ended and swept, and its parts are gone: that is not the first record of a new one.
            self._registered = True
            self._strewn = True

    def _go_on_as(self, session: SessionId) -> None:
        with self._follower.moving:
            self._upkeep.renewed(session)
            self.session = session
            self._registered = False
            self._count = 0
            self._strewn = False
            self._litter.clear()

    @property
    def records_written(self) -> int:
        """How many records this machine wrote, under its present session and earlier ones."""
        return self._written

    @property
    def quiet_seconds(self) -> float:
        """How long ago this machine wrote its last record, or was made."""
        return self._env.monotonic() - self._wrote_at

    def _has_ended(self, deadline: Deadline) -> bool:
        author = Author(self.session, first=not self._registered)
        return self._follower.run(lambda state: has_ended(state, author), deadline, None)

    def _renew(self) -> None:
        """Goes on under a new session, because the present one has ended: it never comes back.

        SUBTLE: this is only done while nothing of the ended session is unsettled, so no record of
        it can land any more. What it left in Blob may be swept at any time from now on: rollups
        that it wrote are not named (one that is under way comes too late), and commands that
        carry its objects are refused (`_check_objects`, and `decide` where it knows the session).
        """
        session = new_session_id(self._env)
        _log.info(
            "session %s of shard %s was ended by another while it was silent; %s goes on",
            *(self.session, self.shard, session),
        )
        self._ended |= {self.session}
        self._orphans.append(self.session)
        self._go_on_as(session)

    def _acknowledge_ended(self, deadline: Deadline) -> None:
        """Says of sessions that others ended that nothing is written under them any more.

        SUBTLE: it may be that another thread is still writing an object under one; its command
        will be refused. A sweep that finds something new comes again (`upkeep/sweep.py`).
        """
        while self._orphans and not self._location.read_only:
            session = self._orphans[0]
            try:
                self._submit(Acknowledge(session), "", deadline)
            except StrandlineError as error:
                _log.info("session %s is to be acknowledged later: %s", session, error)
                return
            if session in self._orphans:
                self._orphans.remove(session)

    def _check_objects(self, command: Command[Any]) -> None:
        """Fenced if the command enters objects of a session that others ended."""
        ended = {session_of(key) for key in command.enters()} & self._ended
        if ended:
            raise Fenced(
                f"session {min(map(str, ended))}, which wrote objects of this command, was ended "
                "while its owner was silent; nothing happened, write them again"
            )

    # --- rollups

    @property
    def rollup_due(self) -> bool:
        """Whether `maybe_rollup` would write a rollup now."""
        return self._is_rollup_due()

    def _is_rollup_due(self) -> bool:
        state = self._follower.newest
        # Rollups are written by sessions of the shard that registers them.
        if state is None or not self._registered or self._closed or self._fenced:
            return False
        return self._upkeep.is_due(state)

    def maybe_rollup(self, deadline: Deadline | None = None) -> bool:
        """Writes a rollup if one is due; the next record names it. True if it did.

        A failure is logged, and the rollup is due again some records later.
        """
        if not self._is_rollup_due() or not self._rolling.acquire(blocking=False):
            return False
        try:
            # Asked again: another thread may have written one just now.
            return self._is_rollup_due() and self._roll_up(self._by(deadline))
        except StrandlineError as error:
            _log.warning("a rollup of shard %s failed and is retried later: %s", self.shard, error)
            with self._follower.moving:
                self._upkeep.failed(self.state)
            return False
        finally:
            self._rolling.release()

    def roll_up(self, deadline: Deadline | None = None) -> bool:
        """Writes a rollup of the newest state, due or not; the next record names it.

        False if another is being written here, or waits to be named. A session that is not
        registered in the shard writes none. Errors: LocationError, Corruption.
        """
        if not self._registered or not self._rolling.acquire(blocking=False):
            return False
        try:
            # SUBTLE: not asked before. If another thread sealed one since, what is noted for it
            # would be begun anew, and the state that is adopted with it would lack records.
            return self._upkeep.sealed is None and self._roll_up(self._by(deadline))
        finally:
            self._rolling.release()

    def _roll_up(self, deadline: Deadline) -> bool:
        follower = self._follower
        self._leave_retired_pages(deadline)
        with follower.moving:
            state, base, session = self.state, self._upkeep.base, self.session
            begun = self._upkeep.begin()
        writer = Writer(
            self._location.blob,
            self.shard,
            session,
            self._env,
            self._settings,
            lambda slots: follower.load(state, slots, deadline),
            deadline,
        )
        begun_as = f"{session}/rollup at {state.seqno}"
        self.begins(begun_as)
        try:
            sealed = writer.write(state, base)
        except BaseException as error:
            # Another of the same state may be written and named; this one never is.
            self.begins(f"{begun_as}, failed")
            if isinstance(error, Corruption):
                follower.avoid(error, deadline)
            raise
        # Its key stands for all of its objects, until a record names just this one.
        self.begins(sealed.rollup.key)
        self._litter.pop(begun_as, None)
        with follower.moving:
            return self._upkeep.end(sealed, begun)

    def distrust(self, key: str, why: str, deadline: Deadline | None = None) -> None:
        """Goes on from a state that does not rest on that damaged object, where there is one."""
        try:
            self._follower.avoid(Corruption(why, object=key), self._by(deadline))
        except Corruption as error:
            _log.warning("shard %s cannot be opened without %s: %s", self.shard, key, error)

    def _leave_retired_pages(self, deadline: Deadline) -> None:
        """Opens the shard anew if the rollup that the pages in memory come from is not kept.

        SUBTLE: what is stored of the state in memory was shared with that rollup, and may be gone
        or going; a rollup that names it would not be accepted (`_prepare`).
        """
        base = self._upkeep.base
        if base is None:
            return
        if not self._follower.run(lambda s: _is_kept(s, base), deadline, None):
            self._follower.reopen(deadline)

    # --- the queue

    def _by(self, deadline: Deadline | None) -> Deadline:
        if self._env.process_id() != self._process:
            # Two processes may not share a session: both would write records of one id.
            raise UsageError(
                f"this handle belongs to process {self._process} and is used in a fork of it; "
                "open the database again in this process"
            )
        return deadline or Deadline(self._env, self._settings.timeout_seconds)

    @contextmanager
    def _in_turn(self, deadline: Deadline) -> Iterator[None]:
        longest = min(deadline.remaining(), threading.TIMEOUT_MAX)
        if not self._turn.acquire(timeout=longest):
            raise DeadlineExceeded(
                f"earlier commands on {self._title()} did not end in time, and this one was "
                "not begun; pass a larger timeout= to wait longer",
                may_have_happened=False,
            )
        try:
            yield
        finally:
            self._turn.release()

    def _submit(self, command: Command[R], note: Note[R], deadline: Deadline) -> R:
        with self._in_turn(deadline):
            if self._fenced:
                raise Fenced(self._fenced)
            if self._unsettled is not None:
                self._settle_remembered(self._unsettled, deadline)
            return self._until_written(command, note, deadline)

    def _until_written(self, command: Command[R], note: Note[R], deadline: Deadline) -> R:
        """Decide, put; whoever lost looks at the newer state and decides again."""
        # A refusal, or a result without a record, stands only if it rests on a state that was
        # current after the call began.
        fresh = self._follower.newest is None
        losses = 0
        delays = pauses(self._env, deadline)
        while True:
            with self._in_line(deadline):
                state = self._follower.opened(deadline)
                try:
                    decision, attempt = self._prepare(command, note, deadline)
                except (LocationError, Corruption):
                    raise
                except StrandlineError as error:
                    if self._fenced:
                        raise
                    if isinstance(error, Fenced) and self._has_ended(deadline):
                        self._renew()
                        if isinstance(command, Heartbeat):
                            return cast("R", False)  # noqa: FBT003  # the result of a Heartbeat
                        continue
                    if fresh or self._follower.catch_up(deadline).seqno == state.seqno:
                        raise
                    fresh = True
                    continue
                if attempt is None:
                    if fresh or self._follower.catch_up(deadline).seqno == state.seqno:
                        return decision.result
                    fresh = True
                    continue
                self._check_objects(command)
                if self._write(attempt, deadline):
                    return decision.result
            fresh = False
            losses += 1
            self._crowded = True
            deadline.check(f"a command on {self._title()}", may_have_happened=False)
            if losses > _LOSSES_WITHOUT_SLEEP:
                self._env.sleep(min(next(delays), 0.05))

    @contextmanager
    def _in_line(self, deadline: Deadline) -> Iterator[None]:
        """While the log is crowded: our turn at it, and a look at what others wrote before that.

        Else whoever looks and then queues up to write would find, at its turn, that those ahead of
        it have written: of eight, seven lose each time, and the same ones again and again.
        """
        consensus = self._location.consensus
        if not self._crowded or not isinstance(consensus, Queueing):
            yield
            return
        known = self._follower.catch_up(deadline)  # what can take long is done before
        with self._line:
            self._line.enter_context(consensus.turn(timeout=deadline.remaining()))
            try:
                now = self._follower.catch_up(deadline.within(_LOOK_SECONDS))
                self._crowded = now.seqno > known.seqno
            except LocationError as error:
                _log.info("shard %s: %s", self.shard, error)
                self._line.close()  # nobody shall wait for that; without a turn it goes as well
            yield

    def _prepare(
        self, command: Command[R], note: Note[R], deadline: Deadline
    ) -> tuple[Decision[R], _Attempt | None]:
        """What is decided on the newest known state, and the record of it, if there is one."""
        # SUBTLE: a record that retires rollups names none: what it retires may be the base of the
        # sealed one, whose pages would be garbage from here on.
        nameless = isinstance(command, CloseSession | RetireRollups)

        def evaluate(
            state: State,
        ) -> tuple[State, Decision[R], int, Sealed | None, Rollup | None]:
            session = state.sessions.get((self.session,))
            if session is not None:
                self._registered = True
            author = Author(self.session, first=not self._registered)
            decision = self._decide(state, command, author)
            sealed = None if nameless else self._upkeep.sealed
            if sealed is not None and _may_be_named(sealed, state):
                newest: Rollup | None = sealed.rollup
            else:
                newest = _retained(state, decision, self._upkeep.newest)
            count = 1 if session is None else session.count + 1
            return state, decision, count, sealed, newest

        state, decision, count, sealed, newest = self._follower.run(evaluate, deadline, None)
        if not decision.diffs:
            return decision, None
        # SUBTLE: a copy of this process that goes on by itself (a machine restored from a snapshot)
        # writes under the same session. Whoever meets a record of the other one ends here; the
        # other goes on. What it wrote counts, and nothing of what this one wrote is undone. A
        # command that changes nothing, such as one whose token was committed, is answered first.
        if count > self._count + 1:
            raise self._shared(
                f"{count - 1} records of it are there, {self._count} of them written here"
            )
        diffs = decision.diffs
        if sealed is not None and newest is sealed.rollup:
            diffs = (*diffs, Diff("rollups", (newest.seqno,), newest))
        elif sealed is not None and sealed.rollup.seqno <= state.seqno:
            with self._follower.moving:
                self._upkeep.drop(sealed)
        # People read of commits; that several may be in one record shows in its note.
        name = "Commit" if isinstance(command, CommitGroup) else type(command).__name__
        record = LogRecord(
            self.shard,
            state.seqno + 1,
            self.session,
            count,
            state.hash,
            name,
            note if isinstance(note, str) else note(decision.result),
            newest,
            diffs,
        )
        data = encode_record(record)
        # SUBTLE: not what is made of it later: an apply says more of the same parts than the commit
        # that was taken, and would be refused for ever.
        given = isinstance(command, Append | Commit | CommitGroup | Describe)
        if given and len(data) > RECORD_BYTES_MAX:
            raise UsageError(
                f"{name} would be a record of {len(data)} bytes in the log, where "
                f"{RECORD_BYTES_MAX} are the most: write less at once, or less metadata"
            )
        return decision, _Attempt(command, record, data, record_hash(data), decision.result)

    # --- the slot

    def _put(self, attempt: _Attempt, deadline: Deadline) -> bool:
        return self._location.consensus.compare_and_set(
            self.shard, attempt.record.seqno - 1, attempt.data, timeout=deadline.remaining()
        )

    def _write(self, attempt: _Attempt, deadline: Deadline) -> bool:
        """Whether the record is in the log. False: it is certain that it never will be."""
        # SUBTLE: remembered before the request goes out and forgotten only once the outcome is
        # known. Whatever ends this call in between (a deadline, an interrupt from the keyboard, a
        # bug in an adapter) leaves a record behind that may land at any time; until it is settled
        # nothing else may be written by this session, because two unsettled records of one
        # session could not be told apart by its count.
        self._unsettled = attempt
        try:
            won = self._put(attempt, deadline)
        except LocationError as error:
            self._line.close()  # to find out may take long
            if error.may_have_happened:
                return self._settle(attempt, deadline)
            self._unsettled = None
            if is_final(error) or isinstance(error, DeadlineExceeded):
                raise
            self._env.sleep(min(0.05 * self._env.random(), deadline.remaining()))
            return False
        if not won:
            # Not the end: the client library below may have repeated the request by itself and
            # have met its own first try. The slot tells.
            return self._settle(attempt, deadline)
        self._won(attempt)
        return True

    def _won(self, attempt: _Attempt) -> None:
        for key in _entered(attempt):
            self._litter.pop(key, None)
        self._follower.wrote(attempt.record, attempt.digest, len(attempt.data))
        self._registered = True
        self._count = attempt.record.count
        self._written += 1
        self._wrote_at = self._env.monotonic()
        self._unsettled = None

    def _settle(self, attempt: _Attempt, deadline: Deadline) -> bool:
        """Whether the record is in the log, however its requests were answered.

        LocationError (may have happened) when that cannot be found out: in time, and then the
        record stays remembered, or ever.
        """
        try:
            return self._settled(attempt, deadline)
        except LocationError as error:
            if error.may_have_happened:
                raise
            # A look that failed says nothing of what is looked for.
            raise self._undecided() from error

    def _settled(self, attempt: _Attempt, deadline: Deadline) -> bool:
        slot = attempt.record.seqno
        delays = pauses(self._env, deadline)
        while True:
            found = self._follower.log.scan(slot, deadline)
            if found and found[0].seqno == slot:
                return self._settled_by_slot(attempt, found)
            if found:  # the log was truncated past the slot: no slot proves anything
                return self._settled_by_state(attempt, deadline)
            # SUBTLE: an empty slot decides nothing, the late request may still land. So the same
            # bytes are put until something is in the slot. To decide anew on a newer state would
            # be wrong: if both records landed, the command would happen twice.
            try:
                if self._put(attempt, deadline):
                    self._won(attempt)
                    return True
            except LocationError as error:
                _log.info("settling %s: %s", record_name(self.shard, slot), error)
            else:
                self._check_log_reaches(slot - 1, deadline)
            if deadline.remaining() <= 0.0:
                raise self._undecided()
            self._env.sleep(next(delays))

    def _title(self) -> str:
        return self._follower.log.title()

    def _undecided(self) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"whether a command on {self._title()} happened could not be found out in time; "
            "it is settled before the next command of this handle",
            may_have_happened=True,
        )

    def _check_log_reaches(self, seqno: int, deadline: Deadline) -> None:
        """A slot was taken for a compare-and-set and empty for a look: is the log behind us?"""
        head = self._follower.log.head(deadline)
        newest = 0 if head is None else head.seqno
        if newest < seqno:
            missing = record_name(self.shard, seqno)
            raise Corruption(
                f"{missing} is missing: this process has seen it, but the log ends with record "
                f"{newest}; was it restored from a backup?",
                object=missing,
            )

    def _settled_by_slot(self, attempt: _Attempt, found: Sequence[Record]) -> bool:
        """The record in the slot decides: its own bytes mean success, others' loss."""
        if found[0].data == attempt.data:
            self._won(attempt)
            self._follower.advance(found)
            return True
        self._unsettled = None
        self._follower.advance(found)
        return False

    def _shared(self, how: str) -> Fenced:
        """Ends this machine for good: another process writes under its session, too."""
        self._fenced = (
            f"session {self.session} of {self._title()} is used by another process too, a copy "
            f"of this one ({how}); open the database again"
        )
        return Fenced(self._fenced)

    def _settled_by_state(self, attempt: _Attempt, deadline: Deadline) -> bool:
        """The newest state's count of the session decides; if that is gone, the token."""
        record = attempt.record
        state = self._follower.catch_up(deadline)
        if state.seqno < record.seqno:
            missing = record_name(self.shard, state.seqno + 1)
            raise Corruption(f"{missing} is missing", object=missing)
        happened, ended = self._follower.run(lambda s: _fate(s, attempt), deadline, None)
        if happened:
            self._count = record.count
        self._unsettled = None
        # What ended was registered: `decide` refuses its next command.
        self._registered = self._registered or ended or bool(happened)
        if happened is not None:
            return happened
        if ended:
            # Whether or not this would have been its first record: an id that was ended never
            # comes back. The record cannot land any more: its slot was truncated.
            self._renew()
            why = f"the session {record.session} has ended"
        else:
            why = str(self._shared("it wrote more records since"))
        raise LocationError(
            f"whether a command on {self._title()} happened cannot be known: the log was "
            f"truncated past its record {record.seqno} and {why}; look at the data before you "
            "repeat it, or use a token next time",
            may_have_happened=True,
        )

    def _settle_remembered(self, attempt: _Attempt, deadline: Deadline) -> None:
        """Finds out about the record that an earlier call left behind, so that the next may go."""
        name = record_name(self.shard, attempt.record.seqno)
        try:
            happened = self._settle(attempt, deadline)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(
                f"an earlier command of this handle (record {attempt.record.seqno} of "
                f"{self._title()}) could not be settled in time; the one that waits for it was not "
                "begun",
                may_have_happened=False,
            ) from error
        except LocationError as error:
            # Nobody will ever know, and whoever asked for it was told so. The next may go.
            _log.warning("%s: %s", name, error)
            return
        _log.info("%s of an earlier call %s", name, "is there" if happened else "lost")

    def _settle_in_passing(self, deadline: Deadline) -> None:
        """Tries to settle what an earlier call left behind; a read does not depend on it."""
        if not self._turn.acquire(blocking=False):
            return  # whoever has the turn is at it
        try:
            if self._unsettled is not None:
                brief = deadline.within(min(1.0, deadline.remaining() / 4))
                self._settle_remembered(self._unsettled, brief)
        except StrandlineError as error:
            _log.info("shard %s: %s", self.shard, error)
        finally:
            self._turn.release()


def _may_be_named(sealed: Sealed, state: State) -> bool:
    """Whether the record after `state` may name that rollup.

    SUBTLE: the state that the record is decided on says so, and nothing else. What this process
    knows besides may be newer: another thread's look moves it at any time. The compare-and-set
    sees to it that nothing comes between that state and the record.

    None may have been named since the state that the rollup holds. After a newer one, the log's
    head would name an older one, before which, or with which, the log may have been truncated; one
    of the same seqno would lose its place to it, and be found by nobody. And the one that it shares
    pages with has to be kept, because its pages may be gone.
    """
    # What is newer than the state was written by another thread, and the record will lose.
    if sealed.rollup.seqno > state.seqno or _newest(state) != _newest(sealed.state):
        return False
    return sealed.base is None or _is_kept(state, sealed.base)


def _newest(state: State) -> str | None:
    """The key of the newest rollup that was named."""
    found = state.rollups.floor((state.seqno,))
    return None if found is None else found[1].key


def _is_kept(state: State, rollup: Rollup) -> bool:
    """Whether exactly that rollup is one of the state's: another may be of the same seqno."""
    found = state.rollups.get((rollup.seqno,))
    return found is not None and found.key == rollup.key


def _retained(state: State, decision: Decision[Any], newest: Rollup | None) -> Rollup | None:
    """The rollup for a record to name: the newest that this process trusts, if it is kept.

    SUBTLE: a process that could not read a newer one goes on naming an older one, or none. Should
    others have read the newer ones back, retired that and truncated the log, whoever opened the
    shard from its head would meet a rollup that is gone, or none, and no record before it. So it
    names the newest that is kept; the log is there from the oldest of those on. Who names none
    because it trusts none cannot know whether the log is still there from its beginning.
    """
    gone = {diff.key for diff in decision.diffs if diff.collection == "rollups" and not diff.after}
    if newest is not None and (newest.seqno,) not in gone and _is_kept(state, newest):
        return newest
    kept = [rollup for key, rollup in state.rollups.range() if key not in gone]
    return kept[-1] if kept else None


def _fate(state: State, attempt: _Attempt) -> tuple[bool | None, bool]:
    """Whether the record is in the history of a state beyond its slot (None: it cannot be known),
    and whether the session is one that ended.

    SUBTLE: a session has one record of each number, and that is ours, if there is one. Unless a
    copy of this process writes under the same session: then more of them than were written here
    are another's, and what became of ours is not known; and one of that very number is taken for
    ours, unless a token that it commits is not known.
    """
    record, command = attempt.record, attempt.command
    session = state.sessions.get((record.session,))
    if session is not None and session.count <= record.count:
        # A txns shard that is used by itself gives tokens up along with history.
        kept = state.meta.origin != "commits"
        copied = kept and any(_known(state, token) is False for token in _committed(attempt))
        return session.count == record.count and not copied, False
    if session is None and isinstance(command, CloseSession):
        return True, True  # what was asked for, whoever did it
    found = [_known(state, token) for token in _tokens_of(command)]
    # What is asked then is whether the token is decided. If it is, deciding once more gives the
    # caller the token's own result (it may have been committed by another session), or refuses a
    # command that never happened.
    ended = session is None and (None in found or any(found))
    return (None if None in found else False), ended


def _entered(attempt: _Attempt) -> Iterator[str]:
    """The keys of the objects that a record entered; of a rollup its own stands for its pages."""
    yield from attempt.command.enters()
    yield from (d.after.key for d in attempt.record.diffs if isinstance(d.after, Rollup))
    for member, outcome in _members(attempt):
        granted = isinstance(outcome, CommitResult) and not outcome.repeated
        if isinstance(member, Commit) and granted:
            yield from (part.key for write in member.writes for part in write.batch.parts)


def _members(attempt: _Attempt) -> Iterable[tuple[Command[Any], Any]]:
    """The commands of a record, each with its result."""
    command = attempt.command
    if isinstance(command, CommitGroup):
        return zip(command.commits, attempt.result, strict=True)
    return [(command, attempt.result)]


def _committed(attempt: _Attempt) -> Iterator[tuple[str, int]]:
    """The tokens that a record makes known, if it lands."""
    # An append of what replicas have appended is a record of its garbage, and spends no token.
    spent = {diff.key for diff in attempt.record.diffs if diff.collection == "tokens"}
    for member, outcome in _members(attempt):
        granted = isinstance(outcome, CommitResult | AppendResult) and not outcome.repeated
        if granted and isinstance(member, Commit | Append) and member.token is not None:
            scope, _ = member.token
            if (scope,) in spent:
                yield member.token


def _tokens_of(command: Command[Any]) -> list[tuple[str, int] | None]:
    if isinstance(command, CommitGroup):
        return [member.token for member in command.commits]
    return [getattr(command, "token", None)]


def _known(state: State, token: tuple[str, int] | None) -> bool | None:
    """Whether the token was committed; None if that cannot be known."""
    if token is None:
        return None
    scope, number = token
    window = state.tokens.get((scope,))
    if window is None or number > window.highest:
        return False
    return True if number in dict(window.results) else None
