"""What became of a record: put into its slot once, and found out however that was answered."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.env import Deadline, Env
from strandline.errors import Corruption, DeadlineExceeded, LocationError, UsageError
from strandline.location import Consensus
from strandline.location.consensus import Record
from strandline.shard.chain import record_name
from strandline.shard.follower import Follower
from strandline.shard.patience import is_final, pauses
from strandline.shard.session import OwnSession
from strandline.state.codec import LogRecord, encode_record, record_hash
from strandline.state.commands import (
    Append,
    AppendResult,
    CloseSession,
    Command,
    Commit,
    CommitGroup,
    CommitResult,
    Describe,
    R,
)
from strandline.state.model import Rollup
from strandline.state.replay import State

__all__ = ["Attempt", "Settling"]

_logger = logging.getLogger("strandline")

RECORD_BYTES_MAX = 128 * 1024 * 1024
"""A larger record of what callers write is refused before it is sent anywhere. A commit of 50,000
parts has half of it; SQLite and PostgreSQL take up to 1 GB in a row, and every process that has the
shard open reads each record whole."""


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """A record that is about to be put, and all that is needed once its outcome is known."""

    command: Command[Any]
    record: LogRecord
    data: bytes
    digest: bytes
    result: Any

    @classmethod
    def of(cls, command: Command[R], record: LogRecord, result: R) -> Attempt:
        """The record encoded; UsageError for more than a log takes."""
        data = encode_record(record)
        # SUBTLE: not what is made of it later: an apply says more of the same parts than the commit
        # that was taken, and would be refused for ever.
        given = isinstance(command, Append | Commit | CommitGroup | Describe)
        if given and len(data) > RECORD_BYTES_MAX:
            raise UsageError(
                f"{record.command} would be a record of {len(data)} bytes in the log, where "
                f"{RECORD_BYTES_MAX} are the most: write less at once, or less metadata"
            )
        return cls(command, record, data, record_hash(data), result)


class Settling:
    """Puts the records of one session, one at a time. For whoever has the machine's turn."""

    def __init__(
        self, consensus: Consensus, env: Env, follower: Follower, session: OwnSession
    ) -> None:
        self.unsettled: Attempt | None = None
        """The record of which it is not known whether it is in the log."""
        self._consensus = consensus
        self._env = env
        self._follower = follower
        self._log = follower.log
        self._session = session

    def write(self, attempt: Attempt, deadline: Deadline, give_way: Callable[[], None]) -> bool:
        """Whether the record is in the log. False: it is certain that it never will be.

        `give_way` is called where that may take long to find out.
        """
        # SUBTLE: remembered before the request goes out and forgotten only once the outcome is
        # known. Whatever ends this call in between (a deadline, an interrupt from the keyboard, a
        # bug in an adapter) leaves a record behind that may land at any time; until it is settled
        # nothing else may be written by this session, because two unsettled records of one
        # session could not be told apart by its count.
        self.unsettled = attempt
        try:
            won = self._put(attempt, deadline)
        except LocationError as error:
            give_way()
            if error.may_have_happened:
                return self._settle(attempt, deadline)
            self.unsettled = None
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

    def settle(self, deadline: Deadline) -> None:
        """Finds out about the record that an earlier call left behind, so that the next may go."""
        attempt = self.unsettled
        if attempt is None:
            return
        name = record_name(self._log.shard, attempt.record.seqno)
        try:
            happened = self._settle(attempt, deadline)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(
                f"an earlier command of this handle (record {attempt.record.seqno} of "
                f"{self._log.title()}) could not be settled in time; the one that waits for it "
                "was not begun",
                may_have_happened=False,
            ) from error
        except LocationError as error:
            # Nobody will ever know, and whoever asked for it was told so. The next may go.
            _logger.warning("%s: %s", name, error)
            return
        _logger.info("%s of an earlier call %s", name, "is there" if happened else "lost")

    def _put(self, attempt: Attempt, deadline: Deadline) -> bool:
        slot, data = attempt.record.seqno, attempt.data
        return self._consensus.compare_and_set(
            self._log.shard, slot - 1, data, timeout=deadline.remaining()
        )

    def _won(self, attempt: Attempt) -> None:
        self._session.entered(_entered(attempt))
        self._follower.wrote(attempt.record, attempt.digest, len(attempt.data))
        self._session.wrote(attempt.record.count)
        self.unsettled = None

    def _settle(self, attempt: Attempt, deadline: Deadline) -> bool:
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

    def _settled(self, attempt: Attempt, deadline: Deadline) -> bool:
        slot = attempt.record.seqno
        delays = pauses(self._env, deadline)
        while True:
            found = self._log.scan(slot, deadline)
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
                _logger.info("settling %s: %s", record_name(self._log.shard, slot), error)
            else:
                self._check_log_reaches(slot - 1, deadline)
            if deadline.remaining() <= 0.0:
                raise self._undecided()
            self._env.sleep(next(delays))

    def _undecided(self) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"whether a command on {self._log.title()} happened could not be found out in time; "
            "it is settled before the next command of this handle",
            may_have_happened=True,
        )

    def _check_log_reaches(self, seqno: int, deadline: Deadline) -> None:
        """A slot was taken for a compare-and-set and empty for a look: is the log behind us?"""
        head = self._log.head(deadline)
        newest = 0 if head is None else head.seqno
        if newest < seqno:
            missing = record_name(self._log.shard, seqno)
            raise Corruption(
                f"{missing} is missing: this process has seen it, but the log ends with record "
                f"{newest}; was it restored from a backup?",
                object=missing,
            )

    def _settled_by_slot(self, attempt: Attempt, found: Sequence[Record]) -> bool:
        """The record in the slot decides: its own bytes mean success, others' loss."""
        if found[0].data == attempt.data:
            self._won(attempt)
            self._follower.advance(found)
            return True
        self.unsettled = None
        self._follower.advance(found)
        return False

    def _settled_by_state(self, attempt: Attempt, deadline: Deadline) -> bool:
        """The newest state's count of the session decides; if that is gone, the token."""
        record = attempt.record
        state = self._follower.catch_up(deadline)
        if state.seqno < record.seqno:
            missing = record_name(self._log.shard, state.seqno + 1)
            raise Corruption(f"{missing} is missing", object=missing)
        happened, ended = self._follower.run(lambda s: _fate(s, attempt), deadline, None)
        if happened:
            self._session.count = record.count
        self.unsettled = None
        # What ended was registered: `decide` refuses its next command.
        self._session.is_registered |= ended or bool(happened)
        if happened is not None:
            return happened
        if ended:
            # Whether or not this would have been its first record: an id that was ended never
            # comes back. The record cannot land any more: its slot was truncated.
            self._session.renew()
            why = f"the session {record.session} has ended"
        else:
            why = str(self._session.shared("it wrote more records since"))
        raise LocationError(
            f"whether a command on {self._log.title()} happened cannot be known: the log was "
            f"truncated past its record {record.seqno} and {why}; look at the data before you "
            "repeat it, or use a token next time",
            may_have_happened=True,
        )


def _fate(state: State, attempt: Attempt) -> tuple[bool | None, bool]:
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


def _entered(attempt: Attempt) -> Iterator[str]:
    """The keys of the objects that a record entered; of a rollup its own stands for its pages."""
    yield from attempt.command.enters()
    yield from (d.after.key for d in attempt.record.diffs if isinstance(d.after, Rollup))
    for member, outcome in _members(attempt):
        granted = isinstance(outcome, CommitResult) and not outcome.repeated
        if isinstance(member, Commit) and granted:
            yield from (part.key for write in member.writes for part in write.batch.parts)


def _members(attempt: Attempt) -> Iterable[tuple[Command[Any], Any]]:
    """The commands of a record, each with its result."""
    command = attempt.command
    if isinstance(command, CommitGroup):
        return zip(command.commits, attempt.result, strict=True)
    return [(command, attempt.result)]


def _committed(attempt: Attempt) -> Iterator[tuple[str, int]]:
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
