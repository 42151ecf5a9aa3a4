"""Tokens: what makes a commit happen once, over retries and restarts."""

from __future__ import annotations

from typing import Any

from strandline.errors import UsageError
from strandline.state.model import Diff, TokenWindow
from strandline.state.replay import State
from strandline.times import whole

__all__ = ["TOKEN_WINDOW", "known_token", "remember_token", "token_of"]

TOKEN_WINDOW = 64
"""Results kept per token scope."""

_SCOPE_MAX = 1_000


def token_of(token: Any) -> tuple[str, int] | None:
    """A user's token, checked; UsageError says what one is."""
    if token is None:
        return None
    pair = isinstance(token, tuple | list) and len(token) == 2
    number = whole(token[1]) if pair else None
    scoped = (
        pair
        and isinstance(token[0], str)
        and 0 < len(token[0]) <= _SCOPE_MAX
        and not any("\ud800" <= letter <= "\udfff" for letter in token[0])  # UTF-8 has none
    )
    if not scoped or number is None or not 0 <= number < 1 << 63:
        raise UsageError(
            f"token={token!r:.200}: pass (scope, number), a string of at most {_SCOPE_MAX} "
            "characters and a growing whole number"
        )
    return token[0], number


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
