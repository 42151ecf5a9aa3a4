"""Parts that one write stages before it commits them, and the session that keeps them."""

from __future__ import annotations

import weakref

from strandline.env import Deadline
from strandline.errors import Fenced, Held
from strandline.ids import SessionId
from strandline.parts.files.footer import Identity
from strandline.state.model import TableVersion
from strandline.txn.store import Store

__all__ = ["Staging"]


class Staging:
    """Of one write: keys for its parts, under a session that lives as long as this object does,
    and no longer than the write may take.
    """

    def __init__(
        self, store: Store, deadline: Deadline, token: tuple[str, int] | None = None
    ) -> None:
        self._store = store
        self._deadline = deadline
        self._token = token
        self._session: SessionId | None = None
        self._tables: set[str] = set()
        """Those that the write may write to, as far as their holders go."""

    def session(self) -> SessionId:
        """The session that stages. From the first time on it is kept alive."""
        if self._session is None:
            machine, seconds = self._store.txns.machine, self._deadline.remaining()
            # Whatever becomes of the write, and whoever forgets it.
            weakref.finalize(self, self._store.pulse.hold(machine, seconds=seconds))
            self._session = machine.live_session(self._deadline)
        return self._session

    def hand_over(self, seconds: float) -> None:
        """Leaves the session, if it was used, to whoever commits what was written under it.

        Nobody keeps it alive from now on. What else this handle has staged under it has to be
        committed within its lease, too.
        """
        machine = self._store.txns.machine
        if self._session is not None and machine.session == self._session:
            machine.hand_over(Deadline(self._store.env, seconds))

    def new_key(self, table: str) -> str:
        """A key for a part of the table. Held, Fenced: nobody shall write much for nothing."""
        if table not in self._tables:
            try:
                self._store.txns.check_holder(table, self._deadline)
            except (Held, Fenced):
                # What was committed stays committed, whoever holds the table by now: the commit
                # says so, and what is staged for it again is swept.
                if not self._is_committed():
                    raise
            self._tables.add(table)
        return self._store.new_part_key(table, self.session())

    def _is_committed(self) -> bool:
        """Whether the write's token is known, by the newest state that was seen."""
        if self._token is None:
            return False
        scope, number = self._token
        window = self._store.txns.machine.ask(lambda s: s.tokens.get((scope,)))
        return window is not None and number in dict(window.results)

    def identity(self, version: TableVersion, token: str = "") -> Identity:
        """What goes into the footers of the table's parts."""
        return self._store.identity(version, self.session(), token)
