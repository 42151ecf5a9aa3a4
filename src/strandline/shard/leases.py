"""Leases without clocks: who holds something shows that it lives, who looks sees who is silent.

A session's lease is the count of its records in the shard's state. `Pulse` writes one now and then
for an owner that holds something. `Lookout` proposes the end of a session whose count did not
change for the lease time on the looker's own monotonic clock; the state machine refuses that if
the count changed meanwhile. No two machines' clocks are ever compared.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from strandline.env import Deadline, Env, Worker
from strandline.errors import StrandlineError
from strandline.settings import Settings
from strandline.shard.machine import Machine
from strandline.shard.notebook import Notebook, Observation
from strandline.state.commands import Acknowledge, Expire, Heartbeat
from strandline.state.replay import State
from strandline.state.sessions import is_open

__all__ = ["Lookout", "Pulse", "credit"]

_log = logging.getLogger("strandline")


# --- who looks


def credit(
    observations: Mapping[str, Observation],
    counts: Mapping[str, int],
    asked: float,
    answered: float,
    lease: float,
    *,
    patience: float | None = None,
) -> tuple[dict[str, Observation], dict[str, int]]:
    """What is known of these sessions after one look, and those that were silent for `patience`.

    `counts` are what the look found, asked for and answered at these times of one clock; `patience`
    is the lease if it is not given.
    """
    patience = lease if patience is None else patience
    known: dict[str, Observation] = {}
    silent: dict[str, int] = {}
    for session, count in counts.items():
        before = observations.get(session)
        seconds = 0.0
        if before is not None and before.count == count:
            # SUBTLE: the count is known to have stood still from the end of the one look to the
            # begin of the next. Of that, a quarter of the lease counts at most: while nobody was
            # answered, its owner was not heard either. So an outage, or cron runs far apart, cost
            # an owner that is alive no more than one of the four beats that it has.
            passed = max(0.0, asked - before.looked)
            seconds = before.seconds + min(passed, lease / 4)
        known[session] = Observation(count, seconds, answered)
        if seconds >= patience:
            silent[session] = count
    return known, silent


class Lookout:
    """Ends sessions that are silent, shard by shard, and acknowledges the end of those that stay
    silent. Thread-safe.

    What it saw is kept in the notebook as well, so that a job that runs now and then goes on where
    the one before it ended.
    """

    def __init__(self, env: Env, settings: Settings, notebook: Notebook) -> None:
        self._env = env
        self._lease = settings.lease_seconds
        self._patience = settings.lease_seconds + settings.grace_seconds
        self._notebook = notebook
        self._seen: dict[str, dict[str, Observation]] = {}
        self._lock = threading.Lock()

    def look(self, machine: Machine, deadline: Deadline) -> list[str]:
        """Looks at a shard's sessions once; those that it ended. One request, if none is silent.

        Errors: LocationError, Corruption; then nothing was seen.
        """
        asked = self._env.monotonic()
        look = machine.look(deadline)
        answered = self._env.monotonic()
        counts, ended_counts = look.ask(_sessions)
        counts.pop(machine.session, None)
        with self._lock:
            seen = self._seen.get(machine.shard)
            if seen is None:
                seen = self._notebook.read(machine.shard)
            known, silent = credit(seen, counts, asked, answered, self._lease)
            # What an open one was credited counts on when it has ended: it is one silence.
            rest, quiet = credit(
                seen, ended_counts, asked, answered, self._lease, patience=self._patience
            )
            seen = self._seen[machine.shard] = {**known, **rest}
        ended = [
            session
            for session, count in silent.items()
            if machine.submit(Expire(session, count), deadline)
        ]
        for session in ended:
            _log.info("session %s of shard %s was silent and is ended", session, machine.shard)
        for session, count in quiet.items():
            if machine.submit(Acknowledge(session, count), deadline):
                _log.info("session %s of shard %s stayed silent", session, machine.shard)
        with self._lock:
            self._notebook.write(machine.shard, seen)
        return ended


def _sessions(state: State) -> tuple[dict[str, int], dict[str, int]]:
    """The counts of the open sessions, and of those that ended and are not acknowledged."""
    found: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for (name,), session in state.sessions.range():
        if session.acknowledged is None:
            found[0 if is_open(session) else 1][name] = session.count
    return found


# --- who lives


@dataclass(frozen=True, slots=True)
class _Held:
    machine: Machine
    until: float


class Pulse:
    """Writes heartbeats for machines of one process whose owner holds something. Thread-safe.

    Objects that no command entered yet and leased holds are held; a handle that holds nothing
    costs no request, however long it stays open.
    """

    def __init__(self, env: Env, settings: Settings) -> None:
        self._env = env
        self._settings = settings
        # Half of what a lookout credits at most, so that no quarter passes without a record.
        self._every = settings.lease_seconds / 8
        self._held: dict[int, _Held] = {}
        self._made = 0
        self._ticking = False
        self._closed = False
        self._worker: Worker | None = None
        self._lock = threading.Lock()

    def hold(self, machine: Machine, *, seconds: float = float("inf")) -> Callable[[], None]:
        """Keeps the machine's session alive until the returned function is called, or for so long.

        That function may be called twice.
        """
        with self._lock:
            self._made += 1
            number = self._made
            self._held[number] = _Held(machine, self._env.monotonic() + seconds)
            if not self._ticking and not self._closed and self._settings.background:
                self._ticking = True
                if self._worker is None:
                    self._worker = self._env.start_worker("strandline-pulse", self.tick)
                self._worker.wake(after=self._every)
        return partial(self._release, number)

    @contextmanager
    def holding(self, machine: Machine) -> Iterator[None]:
        """Keeps the machine's session alive meanwhile."""
        release = self.hold(machine)
        try:
            yield
        finally:
            release()

    def tick(self) -> None:
        """Writes the heartbeats that are due. With `Settings.background`, a worker calls it."""
        for machine in self._machines():
            if machine.own.quiet_seconds < self._every:
                continue
            try:
                machine.submit(Heartbeat())
            except StrandlineError as error:
                _log.warning("a heartbeat in shard %s failed: %s", machine.shard, error)
        with self._lock:
            self._ticking = bool(self._held) and not self._closed and self._worker is not None
            if self._ticking and self._worker is not None:
                self._worker.wake(after=self._every)

    def close(self) -> None:
        """Ends the worker. What is held is from here on not kept alive."""
        with self._lock:
            self._closed = True
            worker = self._worker
        if worker is not None:
            worker.stop()

    def _machines(self) -> list[Machine]:
        now = self._env.monotonic()
        machines: dict[int, Machine] = {}
        for number, held in list(self._held.items()):
            if held.until <= now:
                self._release(number)
            else:
                machines[id(held.machine)] = held.machine
        return list(machines.values())

    def _release(self, number: int) -> None:
        # SUBTLE: without the lock. A finalizer may call this on any thread at any point, also
        # where that thread has the lock; a dict loses one key at once.
        self._held.pop(number, None)
