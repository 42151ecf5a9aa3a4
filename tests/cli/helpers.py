"""What the tests of the command line share."""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

CREATE = [
    "readings",
    "--schema",
    "sensor int64, at timestamp, value double",
    "--row-keys",
    "sensor",
    "--sort-keys",
    "at",
    "--split-points",
    "5,8",
]
FILE = """sensor,at,value
7,2026-11-20 10:00:00,1.5
7,2026-11-20T11:00:00Z,4.5
9,2026-11-20T12:00:00+01:00,
-3,2026-11-19,7
"""


@dataclass(frozen=True)
class Said:
    """What the program printed."""

    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def csv(self) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.text)))

    @property
    def arrow(self) -> pa.Table:
        with pa.ipc.open_stream(self.out) as reader:
            return reader.read_all()

    @property
    def error(self) -> str:
        """The one line of an error."""
        (line,) = self.err.splitlines()
        return line.removeprefix("strandline: ")


Run = Callable[..., Said]


def said_last(story: str) -> list[str]:
    """The commands that the demo names in the end."""
    return [line.strip() for line in story.splitlines() if " --url " in line]
