"""Which tables there are: what a txns shard's state says of one, by its id."""

from __future__ import annotations

from strandline.state.model import TableVersion
from strandline.state.pages import TOP
from strandline.state.replay import State

__all__ = ["called", "current_table", "newest_version", "tidied_through"]


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


def tidied_through(state: State, table: str) -> int:
    """Up to that time entries of the table may be gone; after it all are there. -1: all are."""
    tidied = state.tidied.get((table,))
    return -1 if tidied is None else tidied.tidied_through
