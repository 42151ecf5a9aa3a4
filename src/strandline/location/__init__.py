"""Where the bytes are: a Blob for objects and a Consensus for the log."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.closing import Closing
from strandline.location.blob import Blob, BlobExists, BlobInfo, BlobMissing
from strandline.location.consensus import Claims, Consensus, Queueing, Record

__all__ = [
    "Blob",
    "BlobExists",
    "BlobInfo",
    "BlobMissing",
    "Claims",
    "Consensus",
    "Location",
    "Queueing",
    "Record",
]


@dataclass(frozen=True, slots=True)
class Location(Closing):
    """A Blob and a Consensus together, and the URL that another process reaches them by."""

    blob: Blob
    consensus: Consensus
    url: str
    consensus_url: str
    read_only: bool = False
    txns: str = ""
    """The txns shard of the database that is there; empty: there is none."""
    own_clock: bool = False
    """Whether objects get their times from a clock that is not the machine's own."""

    def close(self) -> None:
        """Lets go of files and connections. What was opened here is useless then."""
        self.blob.close()
        self.consensus.close()
