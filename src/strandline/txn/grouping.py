"""Commits of one process that fall together: one compare-and-set, an outcome for each.

Whoever comes while a record is on its way waits for it; the next record takes everybody who waits.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strandline.env import Deadline, Env
from strandline.errors import DeadlineExceeded, LocationError, StrandlineError
from strandline.shard.machine import Machine
from strandline.state.commands import Commit, CommitGroup, CommitResult
from strandline.state.model import Key

__all__ = ["CommitQueue", "Note"]

Note = Mapping[str, Any]
"""What the log says of a commit besides its diffs, for people."""

_MEMBERS_MAX = 256
_BYTES_MAX = 1 << 20
"""Bytes of a group: a large commit does not make small ones wait, or fail, for its bytes."""

_PART_BYTES = 1024
"""What a record says of a part, about, besides its filter."""


class _Member:
    """A commit that waits, and its outcome as soon as there is one."""

    __slots__ = ("command", "deadline", "leads", "note", "note_bytes", "outcome", "signal")

    def __init__(self, command: Commit, note: Note, deadline: Deadline) -> None:
        self.command = command
        self.note = note
        self.note_bytes = len(str(note))
        self.deadline = deadline
        self.outcome: CommitResult | StrandlineError | None = None
        self.leads = False
        """Whether it is its thread's turn to write, for itself and for those that wait."""
        self.signal = threading.Lock()
        """Released once there is an outcome, or the member leads."""
        self.signal.acquire()

    @property
    def size(self) -> int:
        """Bytes that it adds to the record, about."""
        batches = [write.batch for write in self.command.writes]
        parts = [part for batch in batches for part in batch.parts]
        inline = sum(len(batch.inline) for batch in batches)
        return inline + sum(_PART_BYTES + len(part.filter) for part in parts) + self.note_bytes


class CommitQueue:
    """Gathers the commits of the threads of one process. Thread-safe.

    One thread at a time leads: it writes a record for all that wait, and then has one of those that
    came meanwhile lead. Each waits for a signal of its own, so that those whose commits are done
    go on while the next record is under way.

    `tidies` gives the keys of applied entries that a record retracts along the way, and `again`
    takes back those that were not.
    """

    def __init__(
        self,
        machine: Machine,
        env: Env,
        tidies: Callable[[], tuple[Key, ...]],
        again: Callable[[tuple[Key, ...]], None],
    ) -> None:
        self._machine = machine
        self._env = env
        self._tidies = tidies
        self._again = again
        self._waiting: list[_Member] = []
        self._led = False
        """Whether some member leads, or was told to."""
        self._guard = threading.Lock()

    def commit(self, command: Commit, note: Note, deadline: Deadline) -> CommitResult:
        """The commit's outcome, alone or with others. Its errors are those of `Commit`.

        A group is one record: if it is not known whether that was written, it is not known of
        any of its commits.
        """
        member = _Member(command, note, deadline)
        with self._guard:
            self._waiting.append(member)
            if not self._led:
                self._led = member.leads = True
        try:
            if not member.leads and not member.signal.acquire(timeout=deadline.remaining()):
                self._check_done(member)
            # Whoever is signalled without an outcome leads.
            if member.outcome is None:
                self._submit(self._next(member))
        finally:
            self._leave(member)
        if isinstance(member.outcome, StrandlineError):
            raise member.outcome
        if member.outcome is None:  # `_submit` leaves none without
            raise AssertionError("a commit without an outcome")
        return member.outcome

    def _leave(self, member: _Member) -> None:
        """The member goes, however it ended: it waits no more, and if it led, another does."""
        if member.outcome is not None and not member.leads:
            return
        with self._guard:
            if member in self._waiting:
                self._waiting.remove(member)
            if not member.leads:
                return
            self._led = bool(self._waiting)
            if self._led:
                self._waiting[0].leads = True
                self._waiting[0].signal.release()

    def _check_done(self, member: _Member) -> None:
        """The time is over: DeadlineExceeded, unless there is an outcome after all."""
        with self._guard:
            waits = member in self._waiting
        if member.outcome is not None:
            return
        raise DeadlineExceeded(
            "earlier commits of this handle did not end in time, and this one was "
            + ("not begun" if waits else "on its way with them")
            + "; pass a larger timeout= to wait longer",
            may_have_happened=not waits,
        )

    def _next(self, member: _Member) -> list[_Member]:
        """Those that go now: the member, and others that wait, in the order they came."""
        with self._guard:
            room = _BYTES_MAX - member.size
            group: list[_Member] = []
            left: list[_Member] = []
            for each in self._waiting:
                fits = each is member or (len(group) < _MEMBERS_MAX and each.size <= room)
                if fits and each is not member:
                    room -= each.size
                (group if fits else left).append(each)
            self._waiting = left
        return group

    def _submit(self, group: Sequence[_Member]) -> None:
        tidies = self._tidies()
        written = False
        outcomes: Sequence[CommitResult | StrandlineError] = ()
        try:
            outcomes = self._outcomes(group, tidies)
            written = any(isinstance(o, CommitResult) and not o.repeated for o in outcomes)
        except StrandlineError as error:
            outcomes = [error] * len(group)
        except BaseException:
            # An interrupt, or a bug: it ends the thread that it came up in. The others were not
            # interrupted; of their commits nothing is known.
            outcomes = [_interrupted() for _ in group]
            raise
        finally:
            for member, outcome in zip(group, outcomes, strict=True):
                member.outcome = outcome
                member.signal.release()
            if not written:
                self._again(tidies)  # retracting what is gone already is skipped

    def _outcomes(
        self, group: Sequence[_Member], tidies: tuple[Key, ...]
    ) -> list[CommitResult | StrandlineError]:
        """One record for all of them."""
        deadline = max((member.deadline for member in group), key=lambda each: each.at)
        commits = tuple(member.command for member in group)
        notes = [member.note for member in group]

        def note(outcomes: Sequence[CommitResult | StrandlineError]) -> str:
            done = [
                {"time": outcome.time, **said}
                for outcome, said in zip(outcomes, notes, strict=True)
                if isinstance(outcome, CommitResult) and not outcome.repeated
            ]
            return json.dumps({"commits": done}, separators=(",", ":"), ensure_ascii=False)

        command = CommitGroup(commits, tidies)
        return self._machine.submit(command, deadline, note=note)


def _interrupted() -> LocationError:
    return LocationError(
        "the thread that wrote this commit together with its own was interrupted; look whether it "
        "is there before you repeat it, or use a token",
        may_have_happened=True,
    )
