"""Works through the script, or a piece of it, and ends itself with SIGKILL where it is told to.

    python -m tests.crash.worker PATH FIRST LAST [STEP KIND NTH before|after]

Does the steps FIRST to LAST, opening the database before. For each that is done it writes a line
of JSON: the step, the time of its commit if it was one, and the calls that it took by kind. The
process is killed at the NTH call of KIND in step STEP; opening is step 0 in every process.
"""

from __future__ import annotations

import json
import sys
from typing import Any, cast

import strandline as sl
from strandline.location.local.blob import FileBlob
from strandline.location.sqlite.consensus import SqliteConsensus
from strandline.testing.killing import Kill, Killer, KillingBlob, KillingConsensus, Kind
from tests.crash.script import SETTINGS, STEPS


def intercept(killer: Killer) -> None:
    """Lets every call of every database that this process opens pass the killer."""
    adapters = cast("Any", sys.modules["strandline.connect"])
    adapters.FileBlob = lambda *a, **k: KillingBlob(FileBlob(*a, **k), killer)
    adapters.SqliteConsensus = lambda *a, **k: KillingConsensus(SqliteConsensus(*a, **k), killer)


def main(arguments: list[str]) -> None:
    path, first, last = arguments[0], int(arguments[1]), int(arguments[2])
    at, kill = -1, None
    if arguments[3:]:
        step, kind, nth, when = arguments[3:]
        at, kill = int(step), Kill(cast("Kind", kind), int(nth), after=when == "after")
    killer = Killer()
    intercept(killer)
    killer.arm(kill if at == 0 else None)
    db = sl.connect(path, settings=SETTINGS)
    for number in range(first, last + 1):
        if number:
            killer.arm(kill if at == number else None)
        done = STEPS[number].do(db, ("script", number))
        if isinstance(done, sl.Database):
            db = done
        commit = done.micros if isinstance(done, sl.Commit) else None
        line = {"step": number, "commit": commit, "calls": killer.calls}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
