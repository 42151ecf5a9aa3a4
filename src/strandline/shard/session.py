"""The session under which one process writes to one shard, as that process knows it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from strandline.env import Deadline, Env
from strandline.errors import Fenced
from strandline.ids import SessionId, new_session_id, session_of
from strandline.shard.follower import Follower
from strandline.shard.rolling import Rolling
from strandline.state.commands import Author, Command
from strandline.state.model import Session
from strandline.state.sessions import has_ended

__all__ = ["OwnSession"]

_log = logging.getLogger("strandline")


class OwnSession:
    """Who writes here now, what they wrote, and who did before.

    One that others ended is followed by a new one (`renew`). Whoever has the machine's turn changes
    it; the notes about objects may be taken on any thread.
    """

    def __init__(self, id: SessionId, env: Env, follower: Follower, rolling: Rolling) -> None:  # noqa: A002  what it is
        self.id = id
        self.is_registered = False
        """Whether the log knows it, as far as this process does."""
        self.count = 0
        """The number of its newest record, as far as this machine wrote it."""
        self.written = 0
        """Records of this machine, under this session and earlier ones."""
        self.ended: frozenset[str] = frozenset()
        """Earlier ones that others ended."""
        self.orphans: list[SessionId] = []
        """Those of them of which the log does not say yet that nothing is written under them."""
        self.fenced = ""
        """Why nothing more may be written, once that is so for good."""
        self.closed = False
        """Whether its machine was closed."""
        self._env = env
        self._follower = follower
        self._rolling = rolling
        self._litter: dict[str, None] = {}
        """Objects of the session that were begun, and that no record entered so far."""
        self._strewn = False
        """Whether others than this machine write objects under the session."""
        self._wrote_at = env.monotonic()
        """When the last record of ours was known to be in the log."""

    @property
    def author(self) -> Author:
        """Who submits a command now."""
        return Author(self.id, first=not self.is_registered)

    @property
    def quiet_seconds(self) -> float:
        """How long ago this machine wrote its last record, or was made."""
        return self._env.monotonic() - self._wrote_at

    @property
    def may_write(self) -> bool:
        """Whether it is one that the log knows, and that goes on."""
        return self.is_registered and not self.closed and not self.fenced

    def has_ended(self, deadline: Deadline) -> bool:
        """Whether it may write no more, by the newest state that is known."""
        author = self.author
        return self._follower.run(lambda state: has_ended(state, author), deadline, None)

    def check(self) -> None:
        """Fenced if nothing more may be written here."""
        if self.fenced:
            raise Fenced(self.fenced)

    # --- what it writes

    def begins(self, key: str) -> None:
        """Takes note that an object of that key is about to be written, for a command to enter."""
        if session_of(key) == self.id:
            self._litter[key] = None

    def dropped(self, key: str) -> None:
        """Takes note that such an object was deleted, because no command will enter it.

        A try to put it that was not answered may still arrive: the session stays known at its end.
        """
        if self._litter.pop(key, key) is None:
            self._strewn = True

    def entered(self, keys: Iterable[str]) -> None:
        """Takes note that a record names these objects, or that they stand for nothing any more."""
        for key in keys:
            self._litter.pop(key, None)

    def lends(self) -> None:
        """Takes note that others write objects under the session, unknown to this machine (tasks
        of a job, attempts that fail among them).
        """
        self._strewn = True

    @property
    def is_littered(self) -> bool:
        """Whether there may be objects of the session that nothing refers to."""
        return self._strewn or bool(self._litter)

    def wrote(self, count: int) -> None:
        """A record of that number is in the log."""
        self.is_registered = True
        self.count = count
        self.written += 1
        self._wrote_at = self._env.monotonic()

    def check_objects(self, command: Command[Any]) -> None:
        """Fenced if the command enters objects of a session that others ended."""
        ended = {session_of(key) for key in command.enters()} & self.ended
        if ended:
            raise Fenced(
                f"session {min(map(str, ended))}, which wrote objects of this command, was ended "
                "while its owner was silent; nothing happened, write them again"
            )

    # --- another one

    def renew(self) -> None:
        """Goes on under a new session, because the present one has ended: it never comes back.

        SUBTLE: this is only done while nothing of the ended session is unsettled, so no record of
        it can land any more. What it left in Blob may be swept at any time from now on: rollups
        that it wrote are not named (one that is under way comes too late), and commands that
        carry its objects are refused (`check_objects`, and `decide` where it knows the session).
        """
        session = new_session_id(self._env)
        _log.info(
            "session %s of shard %s was ended by another while it was silent; %s goes on",
            *(self.id, self._follower.log.shard, session),
        )
        self.ended |= {self.id}
        self.orphans.append(self.id)
        self.go_on_as(session)

    def adopt(self, session: SessionId, known: Session | None) -> None:
        """Goes on under one that another process handed over; `known`: what the log knows of it."""
        self.go_on_as(session)
        self.count = 0 if known is None else known.count
        # SUBTLE: who handed it over had registered it. So if it is gone from the state, it was
        # ended and swept, and its parts are gone: that is not the first record of a new one.
        self.is_registered = True
        self._strewn = True

    def go_on_as(self, session: SessionId) -> None:
        """Goes on under another session, of which there is no record yet."""
        with self._follower.moving:
            self._rolling.renewed(session)
            self.id = session
            self.is_registered = False
            self.count = 0
            self._strewn = False
            self._litter.clear()

    def shared(self, how: str) -> Fenced:
        """Ends this machine for good: another process writes under its session, too."""
        self.fenced = (
            f"session {self.id} of {self._follower.log.title()} is used by another process too, a "
            f"copy of this one ({how}); open the database again"
        )
        return Fenced(self.fenced)
