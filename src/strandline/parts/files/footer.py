"""What a part's footer says besides Parquet's own: whose it is, its bounds, where keys are.

All of it is in the footer's key-value metadata, as text:

========================  =================================================================
strandline.part           JSON: format, identity (database, table, name, session, shard,
                          token), key, schema version, kind, row and sort keys, rows, rows of
                          a row group, distinct, least and greatest time
strandline.groups         for each row group the shortest bytes that separate its encoded keys
                          from those before: above them, and not above its first key
strandline.quantiles      encoded keys of at most 256 evenly spaced rows, the first included
strandline.positions      the rows that those are
========================  =================================================================

The last three are base64 of little endian uint32 numbers (positions: int64): how many keys, the
length of each; then the keys one after the other.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

__all__ = ["FORMAT", "MAGIC", "Footer", "Identity"]

FORMAT = 1
MAGIC = b"PAR1"

_PART = b"strandline.part"
_GROUPS = b"strandline.groups"
_QUANTILES = b"strandline.quantiles"
_POSITIONS = b"strandline.positions"


@dataclass(frozen=True)
class Identity:
    """Whose a part is, so that a catalog can be made again from parts alone."""

    database: str
    table: str
    """The table's id."""
    name: str
    """The table's name when the part was written."""
    session: str
    shard: str
    token: str = ""


@dataclass(frozen=True)
class Footer:
    """The contents of a part's key-value metadata."""

    about: dict[str, Any]
    """`strandline.part`: see the table above."""
    separators: Sequence[bytes]
    quantiles: Sequence[tuple[bytes, int]]

    def to_metadata(self) -> dict[bytes, bytes]:
        """The key-value metadata to be written."""
        positions = np.array([position for _, position in self.quantiles], dtype="<i8")
        about = json.dumps({"format": FORMAT, **self.about}, ensure_ascii=True, sort_keys=True)
        return {
            _PART: about.encode(),
            _GROUPS: _packed(self.separators),
            _QUANTILES: _packed([key for key, _ in self.quantiles]),
            _POSITIONS: base64.b64encode(positions.tobytes()),
        }

    @classmethod
    def about_of(cls, metadata: dict[bytes, bytes]) -> dict[str, Any]:
        """`strandline.part`. Raises `ValueError` if it is missing, or of a newer format."""
        text = metadata.get(_PART)
        if text is None:
            raise ValueError("it is Parquet, but not a part")
        about: dict[str, Any] = json.loads(text)
        if about["format"] > FORMAT:
            raise ValueError(
                f"it has format {about['format']}, and this version reads up to {FORMAT}: "
                "upgrade strandline"
            )
        return about

    @staticmethod
    def separators_of(metadata: dict[bytes, bytes]) -> list[bytes]:
        """`strandline.groups`."""
        return _unpacked(metadata[_GROUPS])

    @staticmethod
    def quantiles_of(metadata: dict[bytes, bytes]) -> list[tuple[bytes, int]]:
        """`strandline.quantiles` with `strandline.positions`."""
        positions = np.frombuffer(base64.b64decode(metadata[_POSITIONS]), dtype="<i8")
        return list(zip(_unpacked(metadata[_QUANTILES]), positions.tolist(), strict=True))


def identity_fields(identity: Identity) -> dict[str, str]:
    """The identity as it stands in `strandline.part`."""
    return asdict(identity)


def _packed(keys: Sequence[bytes]) -> bytes:
    lengths = np.array([len(keys), *map(len, keys)], dtype="<u4")
    return base64.b64encode(lengths.tobytes() + b"".join(keys))


def _unpacked(text: bytes) -> list[bytes]:
    data = base64.b64decode(text)
    count = int.from_bytes(data[:4], "little")
    lengths = np.frombuffer(data, "<u4", count, 4).tolist()
    ends = accumulate(lengths, initial=4 + 4 * count)
    return [data[start:end] for start, end in pairwise(ends)]
