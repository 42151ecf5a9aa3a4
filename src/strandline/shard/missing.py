"""What a part that is not there means: that it was replaced meanwhile, or that it was lost."""

from __future__ import annotations

from strandline.env import Deadline
from strandline.errors import Corruption
from strandline.location import BlobMissing
from strandline.shard.look import Look
from strandline.shard.machine import Machine

__all__ = ["lost", "state_without"]


def state_without(machine: Machine, missing: BlobMissing, deadline: Deadline, of: str = "") -> Look:
    """The shard's newest state, which does not need the part; whoever reads plans anew from it.

    Corruption if it does: then nobody replaced the part before it was deleted. `of`: what the shard
    is called by who reads.
    """
    look = machine.look(deadline)
    if look.ask(lambda s: s.parts.get((missing.key,))) is not None:
        raise lost(of or machine.title, missing) from missing
    return look


def lost(of: str, missing: BlobMissing) -> Corruption:
    """The error about a part of that shard, table or commit which should be there."""
    return Corruption(
        f"the part {missing.key} of {of} is missing; restore it from a copy", object=missing.key
    )
