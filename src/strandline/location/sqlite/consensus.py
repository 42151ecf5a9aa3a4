"""Consensus in one SQLite file, for several processes of one machine."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal
from urllib.parse import quote

from strandline.env import Deadline, Env
from strandline.errors import Corruption, StrandlineError, UsageError
from strandline.location.consensus import Record
from strandline.location.failures import Lasting, Refused, failure
from strandline.location.local.durable import make_directories, sync_directory
from strandline.location.local.mounts import network_file_system
from strandline.location.queries import load_queries
from strandline.location.sqlite.pool import Pool, Rows
from strandline.location.sqlite.read_only import ReadOnly
from strandline.location.sqlite.turnstile import Turnstile, VisibleLock

__all__ = ["APPLICATION_ID", "FORMAT_VERSION", "SqliteConsensus"]

APPLICATION_ID = 0x53_54_52_44
"""In the file's header, by which `file` and we tell whose it is: "STRD"."""

FORMAT_VERSION = 1

_QUERIES = load_queries(__package__, "sqlite.sql")
_HEAD = _QUERIES["head"]
_APPEND = _QUERIES["append"]
_SCAN = _QUERIES["scan"]
_TRUNCATE = _QUERIES["truncate"]

_BUSY_PAUSE_SECONDS = 0.000_2
_TRUNCATE_BITE = 1_000
_PAGE_BYTES_LEAST = 512
_CHECKED = 1_024
"""Newest records that opening looks for in the index: 1 to 2 ms."""

_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
# All statements are fixed: one that suddenly makes no sense to SQLite meets a damaged schema.
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_NOTADB})
# SUBTLE: SQLITE_FULL too comes before anything has happened. With a write-ahead log, a commit
# writes its pages to the end of that log, the page that makes it valid last, and then syncs.
# SQLITE_FULL says that a page was not written whole, so that the last one is not there; what comes
# after it (the sync, the index in shared memory) fails with SQLITE_IOERR, and is unknown.
_REFUSED = frozenset(
    {
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    }
)


class SqliteConsensus:
    """The logs in the file at `path`.

    `mode` "w" reads and writes, and makes the file where it is missing unless `create` is False;
    "r" needs no permission to write and changes nothing. `timeout`, in seconds, is for opening.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        env: Env,
        *,
        mode: Literal["r", "w"] = "w",
        create: bool = True,
        timeout: float = 60.0,
    ) -> None:
        self._path = os.path.abspath(os.fspath(path))
        self._env = env
        deadline = Deadline(env, timeout)
        kind = network_file_system(self._path)
        if kind is not None:
            raise UsageError(
                f"{self._path} is on a network file system ({kind}), whose locks cannot be relied"
                " on; put the log on a local disk, or use PostgreSQL"
            )
        if os.path.isdir(self._path):
            raise UsageError(f"{self._path} is a directory, not the file of a log")
        if (mode == "r" or not create) and not os.path.exists(self._path):
            raise UsageError(f"there is no log at {self._path}")
        self._turnstile = Turnstile(self._path, env)
        self._claim = VisibleLock(f"{self._path}-way")
        self._inside = 0
        """The thread that has its `turn`."""
        self._reading = ReadOnly(self._path, env) if mode == "r" else None
        self._pool = Pool(self._connect)
        try:
            if mode == "w":
                self._prepare(deadline, create=create)
            else:
                self._is_prepared(deadline, create=False)
        except BaseException:
            self.close()
            raise
        _HANDLES.add(self)

    def head(self, shard: str, *, timeout: float) -> Record | None:
        rows = self._read(_HEAD, (shard,), timeout)
        return self._record(rows[0]) if rows else None

    def compare_and_set(self, shard: str, expected: int, data: bytes, *, timeout: float) -> bool:
        return self._change(_APPEND, (shard, expected, data), Deadline(self._env, timeout)) == 1

    def scan(self, shard: str, from_seqno: int, limit: int, *, timeout: float) -> Sequence[Record]:
        # SQLite takes a negative limit for none.
        rows = self._read(_SCAN, (shard, from_seqno, max(0, limit)), timeout)
        return [self._record(row) for row in rows]

    def truncate(self, shard: str, before_seqno: int, *, timeout: float) -> int:
        deadline = Deadline(self._env, timeout)
        removed = 0
        while True:
            count = self._change(_TRUNCATE, (shard, before_seqno, _TRUNCATE_BITE), deadline)
            removed += count
            if count < _TRUNCATE_BITE:
                return removed
            deadline.check(f"truncating {shard} in {self._path}", may_have_happened=True)

    def keys(self, *, timeout: float) -> Sequence[str]:
        return [row[0] for row in self._read(_QUERIES["keys"], (), timeout)]

    @contextmanager
    def turn(self, *, timeout: float) -> Iterator[None]:
        """The turn at the turnstile, for a look and the write that rests on it (`Queueing`)."""
        self._turnstile.enter(Deadline(self._env, timeout), f"writing to {self._path}")
        self._inside = threading.get_ident()
        try:
            yield
        finally:
            self._inside = 0
            self._turnstile.leave()

    def claim(self) -> bool:
        return self._claim.take()

    def release(self) -> None:
        self._claim.give_back()

    def claimed(self) -> bool:
        return self._claim.is_taken()

    def close(self) -> None:
        self._pool.close()
        self._turnstile.close()
        self._claim.close()
        if self._reading is not None:
            self._reading.close()

    # Calls

    def _record(self, row: tuple[Any, ...]) -> Record:
        # In SQLite each value has a type of its own, which a flipped bit changes.
        if type(row[0]) is not int or type(row[1]) is not bytes:
            raise Corruption(
                f"{self._path} is damaged: record {row[0]!r} is no bytes; restore it",
                object=self._path,
            )
        return Record._make(row)

    def _read(self, sql: str, parameters: tuple[object, ...], timeout: float) -> Rows:
        if self._reading is not None:
            return self._read_only(sql, parameters, Deadline(self._env, timeout))
        try:
            return self._pool.execute(sql, parameters)[0]
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if _code(error) not in _BUSY:
                raise self._failure(error, "reading") from error
        return self._patiently(sql, parameters, Deadline(self._env, timeout), "reading")[0]

    def _read_only(self, sql: str, parameters: tuple[object, ...], deadline: Deadline) -> Rows:
        assert self._reading is not None  # noqa: S101  for the type checker
        try:
            return self._reading.execute(sql, parameters, deadline)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._failure(error, "reading") from error

    def _change(self, sql: str, parameters: tuple[object, ...], deadline: Deadline) -> int:
        """How many rows the statement changed."""
        if self._reading is not None:
            raise UsageError(f"{self._path} was opened for reading only; open it for writing")
        if self._inside == threading.get_ident():
            return self._written(sql, parameters, deadline)
        self._turnstile.enter(deadline, f"writing to {self._path}")
        try:
            return self._written(sql, parameters, deadline)
        finally:
            self._turnstile.leave()

    def _written(self, sql: str, parameters: tuple[object, ...], deadline: Deadline) -> int:
        self._check_file()
        return self._patiently(sql, parameters, deadline, "writing to")[1]

    def _patiently(
        self, sql: str, parameters: tuple[object, ...], deadline: Deadline, doing: str
    ) -> tuple[Rows, int]:
        """Waits for those who lock the file without going through the turnstile.

        That is somebody recovering the file after a crash, or a foreign tool.
        """
        while True:
            try:
                return self._pool.execute(sql, parameters)
            except (sqlite3.Error, UnicodeDecodeError) as error:
                if _code(error) not in _BUSY:
                    raise self._failure(error, doing) from error
            deadline.check(f"{doing} {self._path}", may_have_happened=False)
            self._env.sleep(_BUSY_PAUSE_SECONDS)

    # Opening

    def _prepare(self, deadline: Deadline, *, create: bool) -> None:
        """Makes of a missing or empty file a log; of several processes, one does."""
        directory = os.path.dirname(self._path)
        try:
            make_directories(directory)
        except OSError as error:
            raise failure(error, f"making {directory}", may_have_happened=False) from error
        self._turnstile.enter(deadline, f"opening {self._path}")
        try:
            if not self._is_prepared(deadline, create=create):
                self._make(deadline)
        finally:
            self._turnstile.leave()
        self._file = self._identity_of_file()

    def _make(self, deadline: Deadline) -> None:
        # The mode is kept in the file. A crash after it leaves an empty file in that mode, which
        # the next one to open it goes on with.
        self._patiently("PRAGMA journal_mode = WAL", (), deadline, "making")
        script = [
            "BEGIN IMMEDIATE",
            f"PRAGMA application_id = {APPLICATION_ID}",
            f"PRAGMA user_version = {FORMAT_VERSION}",
            _QUERIES["create"],
            "COMMIT",
        ]
        for statement in script:
            # One thread, one after the other: all get the one idle connection.
            self._patiently(statement, (), deadline, "making")
        try:
            sync_directory(os.path.dirname(self._path))
        except OSError as error:
            raise failure(error, f"making {self._path}", may_have_happened=True) from error

    def _is_prepared(self, deadline: Deadline, *, create: bool) -> bool:
        """Whether the file is a log; an error if it is something else. An empty one is neither."""
        sql = _QUERIES["identity"]
        application, version, tables = self._opening(sql, (), deadline)[0]
        if application == 0 and version == 0 and tables == 0:
            # SQLite takes a file of a few bytes for an empty one, and would write over it.
            if not create or 0 < os.stat(self._path).st_size < _PAGE_BYTES_LEAST:
                raise Corruption(
                    f"{self._path} is not a log, or was cut off; restore it", object=self._path
                )
            return False
        if application != APPLICATION_ID:
            raise UsageError(
                f"{self._path} is the database of another program, not a log (if it was one, it is"
                " damaged: restore it)"
            )
        if version > FORMAT_VERSION:
            raise UsageError(
                f"{self._path} has format {version}, and this version of Strandline reads up to"
                f" {FORMAT_VERSION}; use a newer version (if there is none, the file is damaged)"
            )
        self._check_index(deadline)
        return True

    def _check_index(self, deadline: Deadline) -> None:
        """Corruption if the newest records are in the table, but not where they are looked for.

        SUBTLE: records and pages of SQLite have no checksums of SQLite's. What records say is
        verified by those who decode them, and a record that is missing between others shows; but
        where the newest ones are lost, the log looks as it did before they were written. Damage to
        the table cannot do that: the index still has them, and SQLite reports a row that the index
        has and the table has not. Damage to the index can, and the table shows it.
        """
        for shard, seqno in self._opening(_QUERIES["lost"], (_CHECKED,), deadline):
            raise Corruption(
                f"{self._path} is damaged: its index lacks record {seqno} of shard {shard!r}; "
                "restore it",
                object=self._path,
            )

    def _opening(self, sql: str, parameters: tuple[object, ...], deadline: Deadline) -> Rows:
        if self._reading is None:
            return self._patiently(sql, parameters, deadline, "opening")[0]
        return self._read_only(sql, parameters, deadline)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(self._path)}?mode=rwc",
            uri=True,
            isolation_level=None,
            timeout=0,
            check_same_thread=False,
        )
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")
        return connection

    def _identity_of_file(self) -> tuple[int, int]:
        # SUBTLE: never by opening the file. Whenever a process closes a file, all locks that it
        # has on it are gone (POSIX), those of SQLite's own descriptors included.
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return (0, 0)
        except OSError as error:
            raise failure(error, f"looking at {self._path}", may_have_happened=False) from error
        return (status.st_dev, status.st_ino)

    def _check_file(self) -> None:
        """What is written to a file that was removed or replaced, nobody will ever read."""
        if self._identity_of_file() != self._file:
            raise Refused(
                f"{self._path} was removed or replaced while it was in use; open it again"
            )

    def _failure(self, error: sqlite3.Error | UnicodeDecodeError, doing: str) -> StrandlineError:
        code = _code(error)
        message = f"{doing} {self._path} failed: {error}"
        too_big = code == sqlite3.SQLITE_TOOBIG
        # A value, or a word that SQLite's message quotes from the file, that is no text: Python
        # says so itself, and has no code for it.
        unreadable = isinstance(error, UnicodeDecodeError) or (
            isinstance(error, sqlite3.OperationalError) and not code
        )
        if code in _DAMAGED or unreadable or (too_big and doing != "writing to"):
            return Corruption(
                f"{self._path} is damaged or not a log ({error}); restore it", object=self._path
            )
        if code in _REFUSED:
            return Refused(f"{message}; check permissions and free space")
        if too_big:
            return UsageError(f"{message}; a record must be smaller")
        # What passes, a lock that another has, was waited for.
        return Lasting(message, may_have_happened=doing != "reading")


def _code(error: Exception) -> int:
    """SQLite's primary result code, 0 when the error is not SQLite's."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


_HANDLES: weakref.WeakSet[SqliteConsensus] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for handle in list(_HANDLES):
        handle._turnstile.abandon()  # noqa: SLF001  of this module
        handle._claim.abandon()  # noqa: SLF001  of this module
        handle._inside = 0  # noqa: SLF001  of this module


os.register_at_fork(after_in_child=_after_fork_in_child)
