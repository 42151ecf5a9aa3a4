"""Deadlines for calls below what users hold."""

from strandline.env import Deadline, Env, RealEnv

_ENV = RealEnv()


def within(seconds: float = 60.0, env: Env = _ENV) -> Deadline:
    """So many seconds from now, by that clock."""
    return Deadline(env, seconds)
