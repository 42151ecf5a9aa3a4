"""Tokens: what makes a commit happen once, over retries and restarts."""

from __future__ import annotations

from strandline.errors import UsageError
from strandline.state.model import Diff, TokenWindow
from strandline.state.replay import State

__all__ = ["TOKEN_WINDOW", "known_token", "remember_token"]

TOKEN_WINDOW = 64
"""Results kept per token scope."""


def known_token(state: State, token: tuple[str, int]) -> int | None:
    """The commit time of the token; None if it is new. Everything else is refused."""
    scope, number = token
    window = state.tokens.get((scope,))
    if window is None or number > window.highest:
        return None
    for known, time in window.results:
        if known == number:
            return time
    # ◆ A number that was passed and is not in the window is neither success nor new.
    raise UsageError(
        f"token ({scope!r}, {number}) was passed: the scope is at {window.highest} and keeps the "
        f"results of its last {TOKEN_WINDOW} commits; numbers of one scope have to grow"
    )


def remember_token(state: State, token: tuple[str, int], time: int) -> Diff:
    """The diff that makes the token's result known."""
    scope, number = token
    window = state.tokens.get((scope,))
    before = () if window is None else window.results
    return Diff("tokens", (scope,), TokenWindow(number, (*before, (number, time))[-TOKEN_WINDOW:]))
