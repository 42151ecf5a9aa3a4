"""One shard as one process sees it: the compare-and-set loop around the pure state machine."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol, TypeVar, cast

from strandline.env import Deadline, Env
from strandline.errors import (
    Corruption,
    DeadlineExceeded,
    Fenced,
    LocationError,
    StrandlineError,
    UsageError,
)
from strandline.ids import SessionId, ShardId, new_session_id
from strandline.location import Location, Queueing
from strandline.settings import Settings
from strandline.shard.follower import Follower
from strandline.shard.look import Look
from strandline.shard.opening import Log
from strandline.shard.patience import pauses
from strandline.shard.rolling import Rolling
from strandline.shard.rollup import Sealed
from strandline.shard.rollups import Rollups
from strandline.shard.session import OwnSession
from strandline.shard.settling import Attempt, Settling
from strandline.state.codec import LogRecord
from strandline.state.commands import (
    Acknowledge,
    CloseSession,
    Command,
    CommitGroup,
    Heartbeat,
    R,
    RetireRollups,
)
from strandline.state.decide import Author, Decision, decide
from strandline.state.model import Diff, Rollup
from strandline.state.replay import State

__all__ = ["Machine"]

A = TypeVar("A")
Note = str | Callable[[R], str]


class Decide(Protocol):
    """As `strandline.state.decide.decide`."""

    def __call__(self, state: State, command: Command[R], author: Author, /) -> Decision[R]: ...


_LOSSES_WITHOUT_SLEEP = 3
_LOOK_SECONDS = 1.0
"""For how long a look at the log may keep other writers waiting."""
_log = logging.getLogger("strandline")


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
        self._location = location
        self._env = env
        self._settings = settings
        self._decide = decide
        self._before_write = before_write
        self._process = env.process_id()
        rolling = Rolling(settings, session)
        self._follower = Follower(Log(location, shard, env, title), env, rolling)
        self.own = OwnSession(session, env, self._follower, rolling)
        """The session under which this machine writes, and what is known of it here."""
        self._settling = Settling(location.consensus, env, self._follower, self.own)
        self._rollups = Rollups(location.blob, env, settings, self._follower, rolling, self.own)
        # Held while a command is under way, requests included: the queue of this session.
        self._turn = threading.Lock()
        self._crowded = False
        """Whether others wrote to the log between our last look and our turn."""
        self._line = ExitStack()
        """Holds our turn at the log, if we have it."""

    # --- reading

    @property
    def state(self) -> State:
        """The newest state that is known without asking; the empty one before the first request."""
        return self._follower.state

    @property
    def session(self) -> SessionId:
        """Who writes here now. A session that others ended is followed by a new one."""
        return self.own.id

    @property
    def title(self) -> str:
        """What messages call the shard: where it is a table's, by the name that people know."""
        return self._follower.log.title()

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
        if self._settling.unsettled is not None:
            self._settle_in_passing(deadline)
            state = self._follower.state
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
        if self.own.closed:
            raise UsageError("this handle is closed; open the database again")
        if self._before_write is not None:
            self._before_write(deadline)
        try:
            result = self._submit(command, note, deadline)
        except StrandlineError:
            self._acknowledge_ended(deadline)
            raise
        # A heartbeat says that somebody lives: an owner of nothing leaves it at that.
        if self.own.is_registered or not isinstance(command, Heartbeat):
            self._acknowledge_ended(deadline)
        if not self._settings.background:
            self.maybe_rollup()
        return result

    def close(self, deadline: Deadline | None = None) -> None:
        """Ends the session in this shard, if it has one here. Closing twice is harmless.

        If it may have left objects that nothing refers to, it stays known until they are swept.
        """
        own = self.own
        if own.closed or self._env.process_id() != self._process:
            return
        own.closed = True
        known = own.is_registered or self._settling.unsettled or own.orphans
        if self._location.read_only or not (known or own.is_littered):
            return
        deadline = self._by(deadline)
        self._acknowledge_ended(deadline)
        try:
            if not known:  # so that a sweep knows of what is left
                self._submit(Heartbeat(), "", deadline)
            self._submit(CloseSession(littered=own.is_littered), "", deadline)
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
        own = self.own
        own.check()
        quiet = not brief and own.quiet_seconds >= self._settings.lease_seconds / 4
        # SUBTLE: registered before its first object is written: what a session leaves that the log
        # does not know of would be found by nobody.
        if quiet or not own.is_registered or own.has_ended(deadline):
            self.submit(Heartbeat(), deadline)
        return own.id

    def hand_over(self, deadline: Deadline | None = None) -> SessionId:
        """The session for another process to go on with (`adopt`); here another one follows.

        It is registered, so that objects which are written under it until then are known to be
        somebody's; but nobody keeps it alive for longer than its lease.
        """
        deadline = self._by(deadline)
        while True:
            self.submit(Heartbeat(), deadline)
            with self._in_turn(deadline):
                if self.own.is_registered and self._settling.unsettled is None:
                    session = self.own.id
                    self.own.go_on_as(new_session_id(self._env))
                    return session

    def adopt(self, session: SessionId, deadline: Deadline | None = None) -> None:
        """Goes on under a session that another process handed over, and that nobody else has.

        One request. Errors: LocationError, Corruption; then nothing was adopted.
        """
        deadline = self._by(deadline)
        with self._in_turn(deadline):
            if self.own.is_registered or self._settling.unsettled is not None:
                raise UsageError(f"session {self.session} is at work and cannot become {session}")
            # Whoever handed it over writes no more under it: the newest state has all its records.
            self._follower.catch_up(deadline)
            known = self._follower.run(lambda s: s.sessions.get((session,)), deadline, None)
            self.own.adopt(session, known)

    def _acknowledge_ended(self, deadline: Deadline) -> None:
        """Says of sessions that others ended that nothing is written under them any more.

        SUBTLE: it may be that another thread is still writing an object under one; its command
        will be refused. A sweep that finds something new comes again (`upkeep/sweep.py`).
        """
        orphans = self.own.orphans
        while orphans and not self._location.read_only:
            session = orphans[0]
            try:
                self._submit(Acknowledge(session), "", deadline)
            except StrandlineError as error:
                _log.info("session %s is to be acknowledged later: %s", session, error)
                return
            if session in orphans:
                orphans.remove(session)

    # --- rollups

    @property
    def rollup_due(self) -> bool:
        """Whether `maybe_rollup` would write a rollup now."""
        return self._rollups.is_due()

    def maybe_rollup(self) -> bool:
        """Writes a rollup if one is due; the next record names it. True if it did.

        A failure is logged, and the rollup is due again some records later.
        """
        return self._rollups.write_if_due(self._by(None))

    def roll_up(self, deadline: Deadline | None = None) -> bool:
        """Writes a rollup of the newest state, due or not; the next record names it.

        False if another is being written here, or waits to be named. A session that is not
        registered in the shard writes none. Errors: LocationError, Corruption.
        """
        return self._rollups.write(self._by(deadline))

    def distrust(self, key: str, why: str, deadline: Deadline | None = None) -> None:
        """Goes on from a state that does not rest on that damaged object, where there is one."""
        try:
            self._follower.avoid(Corruption(why, object=key), self._by(deadline))
        except Corruption as error:
            _log.warning("shard %s cannot be opened without %s: %s", self.shard, key, error)

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
        if not self._turn.acquire(timeout=deadline.remaining()):
            raise DeadlineExceeded(
                f"earlier commands on {self.title} did not end in time, and this "
                "one was not begun; pass a larger timeout= to wait longer",
                may_have_happened=False,
            )
        try:
            yield
        finally:
            self._turn.release()

    def _submit(self, command: Command[R], note: Note[R], deadline: Deadline) -> R:
        with self._in_turn(deadline):
            self.own.check()
            self._settling.settle(deadline)
            return self._until_written(command, note, deadline)

    def _settle_in_passing(self, deadline: Deadline) -> None:
        """Tries to settle what an earlier call left behind; a read does not depend on it."""
        if not self._turn.acquire(blocking=False):
            return  # whoever has the turn is at it
        try:
            self._settling.settle(deadline.within(min(1.0, deadline.remaining() / 4)))
        except StrandlineError as error:
            _log.info("shard %s: %s", self.shard, error)
        finally:
            self._turn.release()

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
                    if self.own.fenced:
                        raise
                    if isinstance(error, Fenced) and self.own.has_ended(deadline):
                        self.own.renew()
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
                self.own.check_objects(command)
                if self._settling.write(attempt, deadline, self._line.close):
                    return decision.result
            fresh = False
            losses += 1
            self._crowded = True
            deadline.check(f"a command on {self.title}", may_have_happened=False)
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
    ) -> tuple[Decision[R], Attempt | None]:
        """What is decided on the newest known state, and the record of it, if there is one."""
        # SUBTLE: a record that retires rollups names none: what it retires may be the base of the
        # sealed one, whose pages would be garbage from here on.
        own, nameless = self.own, isinstance(command, CloseSession | RetireRollups)

        def evaluate(
            state: State,
        ) -> tuple[State, Decision[R], int, Sealed | None, Rollup | None]:
            session = state.sessions.get((own.id,))
            own.is_registered |= session is not None
            decision = self._decide(state, command, own.author)
            sealed = None if nameless else self._rollups.sealed
            newest = self._rollups.choose(sealed, state, decision)
            return state, decision, 1 if session is None else session.count + 1, sealed, newest

        state, decision, count, sealed, newest = self._follower.run(evaluate, deadline, None)
        if not decision.diffs:
            return decision, None
        # SUBTLE: a copy of this process that goes on by itself (a machine restored from a snapshot)
        # writes under the same session. Whoever meets a record of the other one ends here; the
        # other goes on. What it wrote counts, and nothing of what this one wrote is undone. A
        # command that changes nothing, such as one whose token was committed, is answered first.
        if count > own.count + 1:
            raise own.shared(
                f"{count - 1} records of it are there, {own.count} of them written here"
            )
        diffs = decision.diffs
        if sealed is not None and newest is sealed.rollup:
            diffs = (*diffs, Diff("rollups", (newest.seqno,), newest))
        elif sealed is not None:
            self._rollups.missed(sealed, state)
        record = LogRecord(
            self.shard,
            state.seqno + 1,
            own.id,
            count,
            state.hash,
            # People read of commits; that several may be in one record shows in its note.
            "Commit" if isinstance(command, CommitGroup) else type(command).__name__,
            note if isinstance(note, str) else note(decision.result),
            newest,
            diffs,
        )
        return decision, Attempt.of(command, record, decision.result)
