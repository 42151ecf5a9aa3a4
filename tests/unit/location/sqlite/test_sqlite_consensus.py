"""SqliteConsensus among processes, across forks and kills, for readers, and on wrong files."""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import pytest

from strandline.env import Deadline, RealEnv
from strandline.errors import Corruption, DeadlineExceeded, LocationError, UsageError
from strandline.location.consensus import Record
from strandline.location.failures import Lasting, Refused
from strandline.location.local.mounts import network_file_system
from strandline.location.sqlite.consensus import APPLICATION_ID, SqliteConsensus
from strandline.location.sqlite.turnstile import FairLock, Turnstile, VisibleLock
from strandline.testing.consensus_contract import append_until
from strandline.testing.processes import in_processes, side_by_side

T = 120.0


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite"


@pytest.fixture(name="log")
def _log(path: Path) -> Iterator[SqliteConsensus]:
    log = SqliteConsensus(path, RealEnv())
    yield log
    log.close()


def fill(log: SqliteConsensus, first: int, last: int) -> None:
    for n in range(first, last + 1):
        assert log.compare_and_set("s", n - 1, b"%d" % n, timeout=T)


def seqnos(log: SqliteConsensus) -> list[int]:
    return [record.seqno for record in log.scan("s", 0, 100_000, timeout=T)]


def in_child(function: Callable[[], object]) -> int:
    """The exit code of a fork that runs the function: 0 if it returned."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            function()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_every_commit_is_synced(log: SqliteConsensus) -> None:
    fill(log, 1, 1)
    (connection,) = log._pool._all
    assert connection.sqlite.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.sqlite.execute("PRAGMA synchronous").fetchone() == (2,)


# Several processes


def write_until(path: Path, worker: int, workers: int, total: int) -> int:
    """Appends to a log of its own, from when all are there until they made `total` records."""
    log = SqliteConsensus(path, RealEnv())
    log.compare_and_set(f"own-{worker}", 0, b"", timeout=T)
    while len(log.keys(timeout=T)) < workers:
        pass
    mine = 0
    while True:
        for _ in range(10):
            mine += 1
            assert log.compare_and_set(f"own-{worker}", mine, b"x" * 500, timeout=T)
        heads = [log.head(shard, timeout=T) for shard in log.keys(timeout=T)]
        if sum(head.seqno for head in heads if head is not None) >= total:
            log.close()
            return mine


def test_eight_processes_all_make_progress(path: Path) -> None:
    """SQLite's own waiting lets some go without anything at all, for seconds."""
    SqliteConsensus(path, RealEnv()).close()
    counts = in_processes([functools.partial(write_until, path, n, 8, 4_000) for n in range(8)])
    assert sum(counts) >= 3_900
    assert min(counts) >= 0.25 * sum(counts) / 8


def create_and_append(path: Path, worker: int) -> list[int]:
    log = SqliteConsensus(path, RealEnv())
    try:
        return append_until(log, "s", worker, 12)
    finally:
        log.close()


def test_processes_that_create_one_log_share_it(tmp_path: Path) -> None:
    for attempt in range(3):
        path = tmp_path / f"new{attempt}" / "log.sqlite"
        won = in_processes([functools.partial(create_and_append, path, n) for n in range(4)])
        assert sorted(chain(*won)) == list(range(1, 13))
        log = SqliteConsensus(path, RealEnv())
        assert seqnos(log) == list(range(1, 13))
        log.close()


def test_threads_that_create_one_log_share_it(tmp_path: Path) -> None:
    for attempt in range(10):
        path = tmp_path / f"new{attempt}" / "log.sqlite"
        won = side_by_side([functools.partial(create_and_append, path, n) for n in range(4)])
        assert sorted(chain(*won)) == list(range(1, 13))


def test_turns_come_in_the_order_of_asking() -> None:
    lock = FairLock()
    order: list[int] = []
    lock.acquire(T)

    def take(n: int) -> None:
        assert lock.acquire(T)
        order.append(n)
        lock.release()

    threads = []
    for n in range(5):
        threads.append(threading.Thread(target=take, args=(n,)))
        threads[-1].start()
        while len(lock._waiting) <= n:
            pass
    lock.release()
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]
    lock.acquire(T)
    assert lock.acquire(0.01) is False
    lock.release()
    assert lock.acquire(0.01) is True


def test_who_had_a_turn_cannot_have_another_before_one_who_waits(path: Path) -> None:
    env = RealEnv()
    first, second = Turnstile(str(path), env), Turnstile(str(path), env)
    order: list[str] = []
    first.enter(Deadline(env, T), "test")

    def wait() -> None:
        second.enter(Deadline(env, T), "test")
        order.append("second")
        second.leave()

    thread = threading.Thread(target=wait)
    thread.start()
    probe = os.open(f"{path}-front", os.O_RDONLY)
    while True:  # until the other one is at the front
        try:
            fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            break
        fcntl.flock(probe, fcntl.LOCK_UN)
    first.leave()
    first.enter(Deadline(env, T), "test")
    order.append("first")
    first.leave()
    thread.join()
    os.close(probe)
    assert order == ["second", "first"]


@pytest.mark.parametrize("which", ["front", "lock"])
def test_a_turn_that_does_not_come_did_not_happen(
    log: SqliteConsensus, path: Path, which: str
) -> None:
    fill(log, 1, 2)
    held = os.open(f"{path}-{which}", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(DeadlineExceeded) as caught:
        log.compare_and_set("s", 2, b"3", timeout=0.02)
    assert caught.value.may_have_happened is False
    os.close(held)
    assert seqnos(log) == [1, 2]
    fill(log, 3, 3)


def test_a_file_locked_by_another_program_is_waited_for(log: SqliteConsensus, path: Path) -> None:
    fill(log, 1, 2)
    program = sqlite3.connect(path, isolation_level=None)
    program.execute("BEGIN IMMEDIATE")
    with pytest.raises(DeadlineExceeded) as caught:
        log.compare_and_set("s", 2, b"3", timeout=0.02)
    assert caught.value.may_have_happened is False
    assert seqnos(log) == [1, 2]
    program.execute("COMMIT")
    program.close()
    fill(log, 3, 3)


# Forks


def test_a_fork_opens_connections_of_its_own(log: SqliteConsensus) -> None:
    fill(log, 1, 5)
    inherited = {id(connection.sqlite) for connection in log._pool._all}

    def child() -> None:
        assert log._pool._all == []
        fill(log, 6, 10)
        assert seqnos(log) == list(range(1, 11))
        # Kept alive by nobody, an id can be used again; what counts is that they were closed.
        assert inherited

    assert in_child(child) == 0
    fill(log, 11, 15)
    assert in_child(lambda: fill(log, 16, 20)) == 0
    assert seqnos(log) == list(range(1, 21))


def test_what_a_fork_writes_outlives_the_parents_closing(path: Path) -> None:
    """The parent closes last, as it believes, and may not remove the log under its child."""
    log = SqliteConsensus(path, RealEnv())
    fill(log, 1, 5)
    closed_read, closed_write = os.pipe()
    ready_read, ready_write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            fill(log, 6, 7)
            os.write(ready_write, b"x")
            os.read(closed_read, 1)
            fill(log, 8, 9)
            code = 0
        finally:
            os._exit(code)
    os.read(ready_read, 1)
    log.close()
    os.write(closed_write, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for descriptor in (closed_read, closed_write, ready_read, ready_write):
        os.close(descriptor)
    reopened = SqliteConsensus(path, RealEnv())
    assert seqnos(reopened) == list(range(1, 10))
    reopened.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forks_beside_busy_threads_neither_hang_nor_harm(log: SqliteConsensus) -> None:
    done = threading.Event()

    def write(worker: int) -> list[int]:
        won: list[int] = []
        while not done.is_set():
            head = log.head("s", timeout=T)
            newest = head.seqno if head else 0
            if log.compare_and_set("s", newest, b"%d" % worker, timeout=T):
                won.append(newest + 1)
        return won

    def fork() -> list[int]:
        try:
            for n in range(15):
                shard = f"fork-{n}"
                call = functools.partial(log.compare_and_set, shard, 0, b"x", timeout=T)
                assert in_child(call) == 0
                assert log.head(shard, timeout=T) == Record(1, b"x")
        finally:
            done.set()
        return []

    actors: list[Callable[[], list[int]]] = [lambda: write(0), lambda: write(1), fork]
    won = side_by_side(actors)
    assert seqnos(log) == sorted(chain(*won))
    assert seqnos(log) == list(range(1, len(seqnos(log)) + 1))


# Kills

KILLED = """
import sys
from strandline.env import RealEnv
from strandline.location.sqlite.consensus import SqliteConsensus
log = SqliteConsensus(sys.argv[1], RealEnv())
shard = sys.argv[2]
head = log.head(shard, timeout=30)
n = head.seqno if head else 0
while True:
    assert log.compare_and_set(shard, n, b"%d" % (n + 1) * 50, timeout=30)
    n += 1
    sys.stdout.write(f"{n}\\n")
    sys.stdout.flush()
"""


def test_what_was_acknowledged_survives_kill_9(path: Path) -> None:
    acknowledged = {"a": 0, "b": 0}
    for attempt in range(6):
        workers = {
            shard: subprocess.Popen(
                [sys.executable, "-c", KILLED, str(path), shard], stdout=subprocess.PIPE, text=True
            )
            for shard in acknowledged
        }
        for shard, worker in workers.items():
            assert worker.stdout is not None
            for _ in range(40 + 17 * attempt):
                acknowledged[shard] = int(worker.stdout.readline())
        for worker in workers.values():
            worker.send_signal(signal.SIGKILL)
        for shard, worker in workers.items():
            rest, _ = worker.communicate()
            # The last line may be cut off; what was acknowledged ends in a new line.
            whole = rest[: rest.rfind("\n") + 1].split()
            acknowledged[shard] = max([acknowledged[shard], *map(int, whole)])
        log = SqliteConsensus(path, RealEnv())
        for shard, newest in acknowledged.items():
            records = log.scan(shard, 1, 1_000_000, timeout=T)
            assert len(records) >= newest
            assert records == [Record(n, b"%d" % n * 50) for n in range(1, len(records) + 1)]
        log.close()
    assert min(acknowledged.values()) >= 400


# Errors


class Failing:
    """A connection of which one statement fails."""

    def __init__(self, connection: sqlite3.Connection, code: int) -> None:
        self._connection = connection
        self._code = code

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql.startswith(("INSERT", "SELECT seqno")):
            error = sqlite3.OperationalError("injected")
            error.sqlite_errorcode = self._code
            raise error
        return self._connection.execute(sql, *parameters)

    def close(self) -> None:
        self._connection.close()


@pytest.mark.parametrize(
    ("code", "kind", "happened"),
    [
        (sqlite3.SQLITE_FULL, Refused, False),
        (sqlite3.SQLITE_READONLY, Refused, False),
        (sqlite3.SQLITE_CANTOPEN, Refused, False),
        (sqlite3.SQLITE_IOERR_FSYNC, Lasting, True),
        (sqlite3.SQLITE_IOERR_WRITE, Lasting, True),
        (sqlite3.SQLITE_NOMEM, Lasting, True),
    ],
)
def test_an_error_tells_whether_it_may_have_happened(
    log: SqliteConsensus, code: int, kind: type[LocationError], happened: bool
) -> None:
    fill(log, 1, 1)
    (connection,) = log._pool._all
    connection.sqlite = Failing(connection.sqlite, code)  # type: ignore[assignment]  # stands in for it
    with pytest.raises(kind, match="injected") as caught:
        log.compare_and_set("s", 1, b"2", timeout=T)
    assert type(caught.value) is kind
    assert caught.value.may_have_happened is happened
    # The handle goes on with another connection.
    fill(log, 2, 2)
    (connection,) = log._pool._all
    connection.sqlite = Failing(connection.sqlite, code)  # type: ignore[assignment]  # stands in for it
    with pytest.raises(LocationError) as caught:
        log.head("s", timeout=T)
    assert caught.value.may_have_happened is False


def test_a_full_disk_is_refused_and_leaves_the_log_as_it_was(
    log: SqliteConsensus, path: Path
) -> None:
    fill(log, 1, 3)
    (connection,) = log._pool._all
    pages = connection.sqlite.execute("PRAGMA page_count").fetchone()[0]
    connection.sqlite.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(Refused) as caught:
        log.compare_and_set("s", 3, b"x" * 1_000_000, timeout=T)
    assert caught.value.may_have_happened is False
    assert seqnos(log) == [1, 2, 3]


def test_a_log_that_was_removed_is_not_written_to(log: SqliteConsensus, path: Path) -> None:
    fill(log, 1, 3)
    path.unlink()
    with pytest.raises(Refused, match="removed or replaced"):
        log.compare_and_set("s", 3, b"4", timeout=T)
    other = SqliteConsensus(path.with_name("other.sqlite"), RealEnv())
    other.close()
    path.with_name("other.sqlite").rename(path)
    with pytest.raises(Refused, match="removed or replaced"):
        log.compare_and_set("s", 3, b"4", timeout=T)


def test_a_closed_log_says_so(path: Path) -> None:
    modes: list[Literal["w", "r"]] = ["w", "r"]
    for mode in modes:
        log = SqliteConsensus(path, RealEnv(), mode=mode)
        log.close()
        log.close()
        with pytest.raises(UsageError, match="closed"):
            log.head("s", timeout=T)


def test_many_records_are_truncated_bite_by_bite(log: SqliteConsensus) -> None:
    (connection,) = log._pool._all
    connection.sqlite.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3500)"
        " INSERT INTO record SELECT 's', i, x'00' FROM n"
    )
    assert log.truncate("s", 3_200, timeout=T) == 3_199
    assert seqnos(log) == list(range(3_200, 3_501))


# Wrong files


@pytest.mark.parametrize("mode", ["w", "r"])
@pytest.mark.parametrize("garbage", [b"x", b"garbage" * 1_000, b"PAR1" + bytes(5_000)])
def test_a_file_that_is_no_database_is_corruption(path: Path, mode: Any, garbage: bytes) -> None:
    path.write_bytes(garbage)
    with pytest.raises(Corruption, match=r"log\.sqlite") as caught:
        SqliteConsensus(path, RealEnv(), mode=mode)
    assert caught.value.object == str(path)
    assert path.read_bytes() == garbage


@pytest.mark.parametrize("mode", ["w", "r"])
def test_the_database_of_another_program_is_refused(path: Path, mode: Any) -> None:
    for setup in ("CREATE TABLE t (x)", "PRAGMA application_id = 7", "PRAGMA user_version = 1"):
        path.unlink(missing_ok=True)
        program = sqlite3.connect(path, isolation_level=None)
        program.execute(setup)
        program.close()
        before = path.read_bytes()
        with pytest.raises(UsageError, match="another program"):
            SqliteConsensus(path, RealEnv(), mode=mode)
        assert path.read_bytes() == before


@pytest.mark.parametrize("mode", ["w", "r"])
def test_a_newer_format_is_refused(path: Path, mode: Any) -> None:
    program = sqlite3.connect(path, isolation_level=None)
    program.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    program.execute("PRAGMA user_version = 2")
    program.close()
    with pytest.raises(UsageError, match="newer version"):
        SqliteConsensus(path, RealEnv(), mode=mode)


def test_an_unfinished_creation_is_finished(path: Path) -> None:
    program = sqlite3.connect(path)
    program.execute("PRAGMA journal_mode = WAL")
    program.close()
    log = SqliteConsensus(path, RealEnv())
    fill(log, 1, 1)
    log.close()


def test_a_log_that_should_be_there_is_not_made_anew(path: Path) -> None:
    with pytest.raises(UsageError, match="no log"):
        SqliteConsensus(path, RealEnv(), create=False)
    with pytest.raises(UsageError, match="no log"):
        SqliteConsensus(path, RealEnv(), mode="r")
    assert not path.exists()
    path.write_bytes(b"")
    with pytest.raises(Corruption, match="cut off"):
        SqliteConsensus(path, RealEnv(), create=False)
    with pytest.raises(Corruption, match="cut off"):
        SqliteConsensus(path, RealEnv(), mode="r")
    with pytest.raises(UsageError, match="directory"):
        SqliteConsensus(path.parent, RealEnv())


def test_damage_found_while_reading_is_corruption(path: Path) -> None:
    log = SqliteConsensus(path, RealEnv())
    fill(log, 1, 300)
    log.close()
    content = bytearray(path.read_bytes())
    content[4_096:] = b"\xa5" * (len(content) - 4_096)
    path.write_bytes(content)
    with pytest.raises(Corruption, match="damaged"):
        SqliteConsensus(path, RealEnv()).scan("s", 1, 1_000, timeout=T)


@pytest.mark.parametrize("mode", ["w", "r"])
def test_an_index_without_the_newest_records_is_found_when_opening(path: Path, mode: Any) -> None:
    log = SqliteConsensus(path, RealEnv())
    fill(log, 1, 20)
    log.close()
    whole = path.read_bytes()
    index = 2 * 4_096  # SQLite's third page
    for cell in range(20):
        # A cell begins with two lengths and three types; then come shard, seqno and row.
        at = int.from_bytes(whole[index + 8 + 2 * cell : index + 10 + 2 * cell], "big")
        content = bytearray(whole)
        content[index + at + 5] ^= 1  # another shard
        path.write_bytes(content)
        os.utime(path, (1e9, 1e9))
        with pytest.raises(Corruption, match="damaged"):
            SqliteConsensus(path, RealEnv(), mode=mode)
        for companion in path.parent.glob(f"{path.name}-*"):
            companion.unlink()


def test_a_network_file_system_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
        "2 1 0:1 / /srv rw - nfs4 host:/x rw\n"
        "3 2 8:2 / /srv/local rw shared:1 - xfs /dev/sdb rw\n"
        "4 1 0:2 / /with\\040space rw - fuse.sshfs host: rw\n"
        "5 1 0:3 / /covered rw - cifs //host rw\n"
        "6 1 8:3 / /covered rw - ext4 /dev/sdc rw\n"
    )
    kinds = {
        "/srv/x/log.sqlite": "nfs4",
        "/srv": "nfs4",
        "/srvx/log.sqlite": None,
        "/srv/local/log.sqlite": None,
        "/with space/log.sqlite": "fuse.sshfs",
        "/covered/log.sqlite": None,
        "/log.sqlite": None,
    }
    for path, kind in kinds.items():
        assert network_file_system(path, str(mounts)) == kind, path
    assert network_file_system("/srv", str(tmp_path / "none")) is None
    monkeypatch.setattr("strandline.location.sqlite.consensus.network_file_system", lambda _: "nfs")
    with pytest.raises(UsageError, match="network file system"):
        SqliteConsensus(tmp_path / "log.sqlite", RealEnv())


# Reading only


def files(path: Path) -> dict[str, tuple[int, int]]:
    """Size and time of what is in the directory. The -shm file is shared memory, not a store."""
    return {
        file.name: (file.stat().st_size, 0 if "-shm" in file.name else file.stat().st_mtime_ns)
        for file in path.parent.iterdir()
    }


def test_a_reader_follows_a_living_writer(log: SqliteConsensus, path: Path) -> None:
    fill(log, 1, 3)
    reader = SqliteConsensus(path, RealEnv(), mode="r")
    for n in range(4, 60):
        fill(log, n, n)
        assert reader.head("s", timeout=T) == Record(n, b"%d" % n)
        assert len(reader.scan("s", 1, 1_000, timeout=T)) == n
    assert list(reader.keys(timeout=T)) == ["s"]
    log.truncate("s", 50, timeout=T)
    assert seqnos(reader) == list(range(50, 60))
    for call in (
        functools.partial(reader.compare_and_set, "s", 59, b"x", timeout=T),
        functools.partial(reader.truncate, "s", 59, timeout=T),
    ):
        with pytest.raises(UsageError, match="reading only"):
            call()
    reader.close()


def test_a_reader_sees_writers_come_and_go(path: Path) -> None:
    SqliteConsensus(path, RealEnv()).close()
    reader = SqliteConsensus(path, RealEnv(), mode="r")
    for n in range(1, 6):
        writer = SqliteConsensus(path, RealEnv())
        fill(writer, n, n)
        writer.close()
        assert reader.head("s", timeout=T) == Record(n, b"%d" % n)
    writer = SqliteConsensus(path, RealEnv())
    fill(writer, 6, 6)
    assert reader.head("s", timeout=T) == Record(6, b"6")
    writer.close()
    assert reader.head("s", timeout=T) == Record(6, b"6")
    writer = SqliteConsensus(path, RealEnv())
    fill(writer, 7, 7)
    assert reader.head("s", timeout=T) == Record(7, b"7")
    reader.close()
    writer.close()


def test_a_reader_changes_no_file(path: Path) -> None:
    writer = SqliteConsensus(path, RealEnv())
    fill(writer, 1, 3)
    for _ in ("with a writer", "without"):
        before = files(path)
        reader = SqliteConsensus(path, RealEnv(), mode="r")
        assert seqnos(reader) == [1, 2, 3]
        reader.close()
        assert files(path) == before
        writer.close()


def test_a_reader_beside_a_writer_that_opens_and_closes_never_goes_back(path: Path) -> None:
    SqliteConsensus(path, RealEnv()).close()

    def write() -> int:
        for n in range(1, 60):
            writer = SqliteConsensus(path, RealEnv())
            fill(writer, n, n)
            writer.close()
        return 59

    def read() -> int:
        newest = 0
        while newest < 59:
            reader = SqliteConsensus(path, RealEnv(), mode="r")
            for _ in range(3):
                found = seqnos(reader)
                assert found == list(range(1, len(found) + 1))
                assert len(found) >= newest
                newest = len(found)
            reader.close()
        return newest

    assert side_by_side([write, read]) == [59, 59]


READ_AS_NOBODY = """
import os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for name in ("", "-wal", "-shm", "-lock", "-front"):
    assert not os.access(sys.argv[1] + name, os.W_OK)
assert not os.access(os.path.dirname(sys.argv[1]), os.W_OK)
log = SqliteConsensus(sys.argv[1], RealEnv(), mode="r")
for line in sys.stdin:
    print(log.head("s", timeout=60).seqno, len(log.scan("s", 1, 1000, timeout=60)), flush=True)
"""


@pytest.fixture(name="public")
def _public(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory that every user may read: those above pytest's own are closed to others."""
    directory = Path("/var/tmp") / f"strandline-test-{os.getpid()}"
    directory.mkdir(mode=0o755)
    yield directory
    shutil.rmtree(directory)


def read_as_nobody(path: Path) -> subprocess.Popen[str]:
    # All modules first: what is installed below root's home, nobody else may read.
    code = (
        "import encodings.idna\n"
        "from strandline.env import RealEnv\n"
        "from strandline.location.sqlite.consensus import SqliteConsensus\n" + READ_AS_NOBODY
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ask(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("?\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_without_permission_to_write_reads(public: Path) -> None:
    path = public / "log.sqlite"
    writer = SqliteConsensus(path, RealEnv())
    fill(writer, 1, 3)
    with read_as_nobody(path) as live:
        assert ask(live) == "3 3"
        fill(writer, 4, 9)
        assert ask(live) == "9 9"
        live.communicate()
    assert live.returncode == 0
    writer.close()
    assert not Path(f"{path}-wal").exists()
    with read_as_nobody(path) as still:
        assert ask(still) == "9 9"
        writer = SqliteConsensus(path, RealEnv())
        fill(writer, 10, 11)
        assert ask(still) == "11 11"
        writer.close()
        assert ask(still) == "11 11"
        still.communicate()
    assert still.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_reads_what_a_killed_writer_left(public: Path) -> None:
    path = public / "log.sqlite"
    worker = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path), "s"], stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    while int(worker.stdout.readline()) < 50:
        pass
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    assert Path(f"{path}-wal").stat().st_size > 0
    with read_as_nobody(path) as reader:
        newest, count = map(int, ask(reader).split())
        assert newest == count >= 50
        reader.communicate()
    assert reader.returncode == 0
    # Without the index of the -wal file only somebody who may make one can read it.
    Path(f"{path}-shm").unlink()
    with read_as_nobody(path) as reader:
        _, errors = reader.communicate()
    assert reader.returncode != 0
    assert "not closed cleanly" in errors
    writer = SqliteConsensus(path, RealEnv())
    assert len(seqnos(writer)) == newest
    writer.close()


def test_a_writer_without_permission_is_told_so(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def deny(name: Any, *arguments: Any, **more: Any) -> int:
        if str(name).endswith("-front"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(name, *arguments, **more)

    monkeypatch.setattr(os, "open", deny)
    with pytest.raises(Refused, match="reading only"):
        SqliteConsensus(path, RealEnv())


def test_a_writer_that_came_and_went_during_a_read_is_noticed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def append(n: int) -> None:
        writer = SqliteConsensus(path, RealEnv())
        fill(writer, n, n)
        writer.close()

    append(1)
    reader = SqliteConsensus(path, RealEnv(), mode="r")
    assert reader._reading is not None
    still = reader._reading._still
    real = still.execute
    reads: list[int] = []

    def execute(sql: str, parameters: tuple[object, ...], version: object = None) -> Any:
        answer = real(sql, parameters, version)
        reads.append(len(answer[0]))
        if len(reads) <= 2:
            append(len(reads) + 1)
        return answer

    monkeypatch.setattr(still, "execute", execute)
    assert seqnos(reader) == [1, 2, 3]
    assert reads == [1, 2, 3]
    reader.close()


def test_a_file_that_was_changed_just_now_is_left_alone_for_a_moment(path: Path) -> None:
    """Two changes within one tick of the kernel's clock look like one."""

    class Clock(RealEnv):
        micros = 0

        def now_micros(self) -> int:
            return self.micros

        def sleep(self, seconds: float) -> None:
            self.micros += int(seconds * 1_000_000)

    SqliteConsensus(path, RealEnv()).close()
    changed = path.stat().st_mtime_ns // 1_000
    clock = Clock()
    clock.micros = changed + 1_000
    SqliteConsensus(path, clock, mode="r").close()
    assert 20_000 <= clock.micros - changed < 30_000


def test_within_a_turn_only_its_own_thread_writes(path: Path, log: SqliteConsensus) -> None:
    other = SqliteConsensus(path, RealEnv())
    with log.turn(timeout=T):
        for handle in (other, log):
            with ThreadPoolExecutor(1) as pool:
                late = pool.submit(handle.compare_and_set, "s", 0, b"late", timeout=0.05)
                with pytest.raises(DeadlineExceeded) as caught:
                    late.result()
            assert not caught.value.may_have_happened
        assert log.compare_and_set("s", 0, b"mine", timeout=T)
        assert other.scan("s", 1, 10, timeout=T) == [Record(1, b"mine")]
    assert other.compare_and_set("s", 1, b"theirs", timeout=T)
    other.close()


def test_a_turn_ends_with_an_error_too(path: Path, log: SqliteConsensus) -> None:
    with pytest.raises(ZeroDivisionError), log.turn(timeout=T):
        _ = 1 // 0
    other = SqliteConsensus(path, RealEnv())
    assert other.compare_and_set("s", 0, b"theirs", timeout=T)
    other.close()


def test_who_waits_for_a_turn_too_long_is_told_so(path: Path, log: SqliteConsensus) -> None:
    other = SqliteConsensus(path, RealEnv())
    with (
        log.turn(timeout=T),
        pytest.raises(DeadlineExceeded) as caught,
        other.turn(timeout=0.05),
    ):
        raise AssertionError("two at once")
    assert not caught.value.may_have_happened
    other.close()


def test_the_right_of_way_goes_with_its_process_and_not_with_a_fork_of_it(
    path: Path, log: SqliteConsensus
) -> None:
    ready, told = os.pipe()
    child = os.fork()
    if not child:
        other = SqliteConsensus(path, RealEnv())
        os.write(told, b"y" if other.claim() else b"n")
        signal.pause()
    try:
        assert os.read(ready, 1) == b"y"
        assert log.claimed()
        assert not log.claim()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert not log.claimed()
    assert log.claim()
    # It is the parent's: a fork that closes all that it has got leaves it.
    assert in_child(log.close) == 0
    other = SqliteConsensus(path, RealEnv())
    assert other.claimed()
    seen = in_child(lambda: os._exit(0 if log.claimed() else 9))
    assert seen == 0
    log.release()
    assert not other.claimed()
    other.close()


def test_a_right_of_way_that_cannot_be_kept_is_nobodys(path: Path) -> None:
    claim = VisibleLock(str(path.parent / "missing" / "way"))
    assert not claim.take()
    assert not claim.is_taken()
    claim.give_back()
