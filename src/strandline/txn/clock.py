"""The machine's clock, as far as other clocks bear it out: a wrong one may not poison the database.

docs/design/0009-clocks.md says what is compared with what, and when.
"""

from __future__ import annotations

import logging
import threading

from strandline.env import Deadline, Env
from strandline.errors import ClockSkew, DeadlineExceeded, LocationError
from strandline.location import Location
from strandline.shard.machine import Machine
from strandline.shard.probe import location_time
from strandline.state.clocks import SKEW_MICROS

__all__ = ["Clock"]

_log = logging.getLogger("strandline")

_PROBE_SECONDS = 10.0
"""What a look at the location's clock may take, at most, of the time that a commit has."""

_AGAIN_SECONDS = 60.0
"""After a look that failed, the next one is not before that."""


class Clock:
    """Times for commits of one handle. Thread-safe.

    What the location's clock showed goes on with the monotonic clock, so that the wall clock is
    checked at each commit, and the location is asked only where they are apart, or nothing but
    the log's own time is known that this one could be compared with.
    """

    def __init__(self, location: Location, machine: Machine, env: Env) -> None:
        self._location = location
        self._machine = machine
        self._env = env
        self._ahead: int | None = None
        """What the location's clock shows more than the monotonic clock, in µs."""
        self._failed_at: float | None = None
        self._looks = 0
        self._lock = threading.Lock()

    def now(self, upper: int | None, deadline: Deadline) -> tuple[int, bool]:
        """The time for a commit, and whether it agrees with a clock that is not this machine's.

        `upper` is what is known of the log. ClockSkew if the location's clock is far from it.
        """
        now = self._env.now_micros()
        if self._ahead is None and now <= (upper or 0) + SKEW_MICROS:
            return now, False  # such a clock moves time by little, whatever it is
        off = self._off(now)
        if off is None or abs(off) > SKEW_MICROS:
            off = self._looked(deadline)
        if off is not None and abs(off) > SKEW_MICROS:
            raise ClockSkew(
                f"this machine's clock is {abs(off) / 1e6:.0f} s "
                f"{'ahead of' if off > 0 else 'behind'} the clock of {self._location.url}; "
                "nothing was committed. Set the clock, and try again"
            )
        return self._env.now_micros(), off is not None and self._location.own_clock

    def measure(self, deadline: Deadline) -> None:
        """Looks at the location's clock, for commits to come."""
        self._looked(deadline)

    def _off(self, now: int) -> int | None:
        """By how much the wall clock is ahead of the location's; None if that is not known."""
        ahead = self._ahead
        return None if ahead is None else now - ahead - self._monotonic()

    def _monotonic(self) -> int:
        return int(self._env.monotonic() * 1_000_000)

    def _looked(self, deadline: Deadline) -> int | None:
        """Asks the location, or takes what another thread was told meanwhile."""
        looks = self._looks
        if not self._lock.acquire(timeout=deadline.remaining()):
            raise DeadlineExceeded(
                "the location's clock was not read in time, and nothing was committed; pass a "
                "larger timeout= to wait longer",
                may_have_happened=False,
            )
        try:
            if looks == self._looks:
                self._look(deadline)
                self._looks += 1
            return self._off(self._env.now_micros())
        finally:
            self._lock.release()

    def _look(self, deadline: Deadline) -> None:
        env, failed = self._env, self._failed_at
        if failed is not None and env.monotonic() < failed + _AGAIN_SECONDS:
            return
        try:
            brief = deadline.within(_PROBE_SECONDS)
            found = location_time(self._location, self._machine, env, brief)
        except LocationError as error:
            # Whoever commits a few rows needs the log alone; it takes note of a jump itself. What
            # the location's clock showed before goes on to count.
            _log.warning("the clock of %s was not read: %s", self._location.url, error)
            self._failed_at = env.monotonic()
        else:
            # SUBTLE: read after the answer, so that the location's clock seems earlier by what
            # the answer took, at most `_PROBE_SECONDS`: little against the skew that is refused.
            self._ahead, self._failed_at = found - self._monotonic(), None
