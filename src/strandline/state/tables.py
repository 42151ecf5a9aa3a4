"""Which tables there are: what a txns shard's state says of one, by its id."""

from __future__ import annotations

from strandline.state.model import TableVersion
from strandline.state.pages import TOP
from strandline.state.replay import State

__all__ = ["called", "current_table", "newest_version"]


def newest_version(state: State, table: str) -> TableVersion | None:
    """The newest version of the table with that id, whether it holds or has ended."""
    found = state.tables.floor((table, TOP))
    return None if found is None or found[0][0] != table else found[1]


def current_table(state: State, table: str) -> TableVersion | None:
    """The newest version of the table with that id if it was not dropped."""
    version = newest_version(state, table)
    return None if version is None or version.valid_until is not None else version


def called(state: State, table: str) -> str:
    """What messages call a table: by its newest name, also after it was dropped."""
    version = newest_version(state, table)
    if state.meta.origin == "commits":
        return f"shard {table}"
    return "this table" if version is None else f"table {version.name!r}"
