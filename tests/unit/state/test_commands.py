"""Commands lie where their transitions do."""

from __future__ import annotations

from strandline.state import commands, decide
from strandline.state.commands import Command


def test_each_command_lies_in_the_module_of_its_transition() -> None:
    known = {command for command in vars(commands).values() if command in Command.__subclasses__()}
    assert known == decide._TRANSITIONS.keys()
    for command, transition in decide._TRANSITIONS.items():
        module = transition.__module__.removeprefix("strandline.state.")
        assert command.__module__ == f"strandline.state.commands.{module}", command
