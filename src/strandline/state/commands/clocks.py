"""The command that settles a doubt about clocks."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.state.commands.command import Command

__all__ = [
    "ConfirmClock",
]


@dataclass(frozen=True, slots=True)
class ConfirmClock(Command[int]):
    """An operator says that `clock` is right: what doubted it does so no more.

    Result: by which time retention goes from now on.
    """

    clock: int
