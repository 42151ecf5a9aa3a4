"""The command line: `strandline COMMAND --url URL`. A shell around the package's public names."""

from strandline.cli import (
    clock,
    databases,
    demo,
    inside,
    loading,
    reading,
    reports,
    sessions,
    upkeep,
)
from strandline.cli.app import app

__all__ = ["COMMANDS", "app", "main"]

COMMANDS = (demo, databases, loading, reading, reports, sessions, upkeep, clock, inside)
"""The modules whose commands `app` has, in the order of its help."""


def main() -> None:
    """What the program `strandline` runs."""
    app(prog_name="strandline")
