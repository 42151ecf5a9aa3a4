"""The adapter that kills: what is stored when a process died before a call, and after it."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from strandline.env import RealEnv
from strandline.errors import DeadlineExceeded
from strandline.location import BlobMissing, Location, Queueing
from strandline.location.local.blob import FileBlob
from strandline.location.memory import MemoryBlob, MemoryConsensus, MemoryStore
from strandline.location.sqlite.consensus import SqliteConsensus
from strandline.testing.killing import Kill, Killer, Kind, killing

HERE = Path(__file__)


def files(root: Path) -> Location:
    env = RealEnv()
    log = root / "log.sqlite"
    return Location(FileBlob(root, env), SqliteConsensus(log, env), str(root), f"sqlite:{log}")


def every_call(location: Location) -> None:
    """One call of each kind."""
    blob, consensus = location.blob, location.consensus
    blob.put("a/put", b"put", timeout=60)
    with blob.upload("a/uploaded", timeout=60) as sink:
        sink.write(b"uploaded")
    blob.get("a/put", timeout=60)
    blob.get_range("a/put", 1, 1, timeout=60)
    blob.open("a/put", timeout=60).close()
    list(blob.list("a/", timeout=60))
    blob.delete("a/put", timeout=60)
    consensus.compare_and_set("old", 2, b"3", timeout=60)
    consensus.head("old", timeout=60)
    consensus.scan("old", 1, 9, timeout=60)
    consensus.keys(timeout=60)
    consensus.truncate("old", 2, timeout=60)


def prepare(location: Location) -> None:
    for seqno in range(2):
        assert location.consensus.compare_and_set("old", seqno, b"%d" % seqno, timeout=60)


def stored(location: Location) -> set[str]:
    """What of it happened."""
    found = {info.key for info in location.blob.list("a/", timeout=60)}
    return found | {f"record {r.seqno}" for r in location.consensus.scan("old", 1, 9, timeout=60)}


BEFORE_ALL = {"record 1", "record 2"}
UPLOADED = {*BEFORE_ALL, "a/put", "a/uploaded"}
DELETED = {*BEFORE_ALL, "a/uploaded"}
WRITTEN = {*DELETED, "record 3"}


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("put", BEFORE_ALL, {*BEFORE_ALL, "a/put"}),
        ("upload begin", {*BEFORE_ALL, "a/put"}, {*BEFORE_ALL, "a/put"}),
        ("upload write", {*BEFORE_ALL, "a/put"}, {*BEFORE_ALL, "a/put"}),
        ("upload commit", {*BEFORE_ALL, "a/put"}, UPLOADED),
        ("list", UPLOADED, UPLOADED),
        ("delete", UPLOADED, DELETED),
        ("compare_and_set", DELETED, WRITTEN),
        ("keys", WRITTEN, WRITTEN),
        ("truncate", WRITTEN, {"a/uploaded", "record 2", "record 3"}),
    ],
)
def test_what_is_stored_tells_that_a_process_died_before_a_call_or_after_it(
    tmp_path: Path, kind: Kind, before: set[str], after: set[str]
) -> None:
    for when, expected in (("before", before), ("after", after)):
        root = tmp_path / when
        prepare(files(root))
        command = [sys.executable, str(HERE), str(root), kind, when]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        assert stored(files(root)) == expected


def test_every_kind_of_call_is_counted_and_calls_that_fail_are_too() -> None:
    store, killer = MemoryStore(), Killer()
    location = Location(MemoryBlob(store, RealEnv()), MemoryConsensus(store), "", "")
    prepare(location)
    passing = killing(location, killer)
    every_call(passing)
    assert killer.calls == dict.fromkeys(get_args(Kind), 1)
    with pytest.raises(BlobMissing):
        passing.blob.get("a/put", timeout=60)
    assert killer.calls["get"] == 2
    killer.arm(None)
    assert killer.calls == {}


def test_writers_queue_up_as_they_do_without_a_killer(tmp_path: Path) -> None:
    location, killer = files(tmp_path), Killer()
    queue, other = killing(location, killer).consensus, files(tmp_path).consensus
    assert isinstance(queue, Queueing)
    with queue.turn(timeout=60):
        with pytest.raises(DeadlineExceeded):
            other.compare_and_set("old", 0, b"1", timeout=0.05)
        assert queue.compare_and_set("old", 0, b"1", timeout=60)
    assert killer.calls == {"compare_and_set": 1}
    plain = replace(location, consensus=MemoryConsensus(MemoryStore()))
    assert not isinstance(killing(plain, killer).consensus, Queueing)


def main(root: str, kind: Kind, when: str) -> None:
    killer = Killer()
    killer.arm(Kill(kind, 1, after=when == "after"))
    every_call(killing(files(Path(root)), killer))


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
