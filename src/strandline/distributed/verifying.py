"""Verifies parts whole before an engine's own Parquet reader gets them.

Such a reader knows page checksums, which do not cover the headers of pages, and takes any Parquet
file for the one that it was told to read. So what it is given is read once by us: in this process
if it is little, else by tasks, so that not one process reads a whole table. A process remembers
which files it verified, and asks only if they were written to since.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from strandline.distributed.site import TaskRunner, for_tasks, workplace
from strandline.env import Deadline
from strandline.location import BlobMissing
from strandline.parts.files.opened import FileState
from strandline.settings import Settings
from strandline.state.model import Part
from strandline.txn.store import Store

__all__ = ["verify_parts"]

_HERE_BYTES_MAX = 512 << 20
"""What one process verifies by itself: a fraction of a second's work on a few cores."""

_TASK_BYTES = 64 << 20
"""Bytes that one task verifies, about."""

_REMEMBERED_MAX = 200_000

_verified: dict[tuple[str, str, int], FileState] = {}
"""The state of the files that this process verified, by place, key, and checksum of the footer."""


def verify_parts(store: Store, parts: Sequence[Part], run: TaskRunner, deadline: Deadline) -> None:
    """Returns if every byte of the parts of a directory is what was written.

    Raises `Corruption` naming a part that is damaged, `BlobMissing` for one that is not there.
    """
    url, env = store.location.url, store.env
    # SUBTLE: looked at before they are read. A write in between is then either seen by the one who
    # reads, or leaves the file in another state than the one that is remembered.
    states = {part.key: _state_of(url, part) for part in parts}
    due = [part for part in parts if not _is_verified(url, part, states[part.key])]
    if sum(part.size for part in due) <= _HERE_BYTES_MAX:
        env.parallel(lambda p: store.reader.verify(p, deadline), due)
    else:
        settings = for_tasks(store.settings)
        for missing in run([_Verify(url, settings, share) for share in _shares(due)]):
            if missing is not None:
                raise BlobMissing(missing)
    for part in due:
        state = states[part.key]
        if state is not None and state.is_settled(env):
            if len(_verified) >= _REMEMBERED_MAX:
                _verified.clear()
            _verified[url, part.key, part.footer_crc] = state


def _is_verified(url: str, part: Part, state: FileState | None) -> bool:
    return state is not None and _verified.get((url, part.key, part.footer_crc)) == state


def _state_of(url: str, part: Part) -> FileState | None:
    try:
        return FileState.of(os.lstat(f"{url}/{part.key}"))
    except OSError:  # whoever reads it says what is the matter
        return None


def _shares(parts: Sequence[Part]) -> list[list[Part]]:
    """The parts in groups of about as many bytes as a task shall read."""
    shares: list[list[Part]] = [[]]
    size = 0
    for part in parts:
        if shares[-1] and size + part.size > _TASK_BYTES:
            shares.append([])
            size = 0
        shares[-1].append(part)
        size += part.size
    return shares


@dataclass(frozen=True)
class _Verify:
    """Verifies some parts, as a task; gives the key of one that is missing."""

    url: str
    settings: Settings
    parts: Sequence[Part]

    def __call__(self) -> str | None:
        place = workplace(self.url, self.settings)
        for part in self.parts:
            try:
                place.reader.verify(part, place.deadline())
            except BlobMissing as error:
                return error.key
        return None
