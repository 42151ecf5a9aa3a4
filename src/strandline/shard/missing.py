"""What an object that is not there means: that it was replaced meanwhile, or that it was lost."""

from __future__ import annotations

from strandline.env import Deadline
from strandline.errors import Corruption
from strandline.location import BlobMissing
from strandline.shard.look import Look
from strandline.shard.machine import Machine

__all__ = ["state_without"]


def state_without(machine: Machine, missing: BlobMissing, deadline: Deadline) -> Look:
    """The shard's newest state, which does not need the object; whoever reads plans anew from it.

    Corruption if it does: then nobody replaced the object before it was deleted.
    """
    look = machine.look(deadline)
    used = look.ask(lambda s: s.parts.get((missing.key,)))
    if used is not None:
        raise Corruption(
            f"the part {missing.key} of shard {machine.shard} is missing; restore it from a copy",
            object=missing.key,
        ) from missing
    return look
