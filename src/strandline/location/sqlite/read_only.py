"""Reading a log in SQLite without permission to write, whether or not a writer is alive."""

from __future__ import annotations

import os
import sqlite3
from urllib.parse import quote

from strandline.env import Deadline, Env
from strandline.location.failures import Refused
from strandline.location.sqlite.pool import Pool, Rows

__all__ = ["ReadOnly"]

# Two changes of a file within one tick of the kernel's clock leave it with the same time.
_TICK_MICROS = 20_000
_PAUSE_SECONDS = 0.002
# A writer closes a log within milliseconds; what stays for so many pauses does not pass.
_PASSING_PAUSES = 250

Signature = tuple[int, int, int]


class ReadOnly:
    """Runs queries on the file at `path`, of which nothing is changed.

    While a writer has the file open, its newest records are in the file with `-wal` at the end:
    SQLite reads that in mode `ro`, with the help of a third file. When the last writer has closed
    it there is only the one file, and mode `ro` wants to make the others and may not.
    """

    def __init__(self, path: str, env: Env) -> None:
        self._path = path
        self._env = env
        name = quote(path)
        # Not with readonly_shm=1: SQLite keeps one map of the third file per process, and a writer
        # in this process that came upon a map for reading only would fail.
        self._live = Pool(lambda: _connect(f"file:{name}?mode=ro"))
        self._still = Pool(lambda: _connect(f"file:{name}?mode=ro&immutable=1"))
        self._is_live = False

    def execute(self, sql: str, parameters: tuple[object, ...], deadline: Deadline) -> Rows:
        """The query's rows, as of some moment during the call."""
        if self._is_live:
            # The connection keeps a lock by which writers know not to remove the -wal file.
            try:
                return self._live.execute(sql, parameters)[0]
            except sqlite3.OperationalError as error:
                if not _may_pass(error):
                    raise
                self._is_live = False
        pauses = 0
        while True:
            try:
                rows = self._try(sql, parameters)
            except sqlite3.OperationalError as error:
                pauses += 1
                if not _may_pass(error) or pauses > _PASSING_PAUSES:
                    raise self._cannot_read(error) from error
            else:
                if rows is not None:
                    return rows
            deadline.check(f"reading {self._path}", may_have_happened=False)
            self._env.sleep(_PAUSE_SECONDS)

    def close(self) -> None:
        """Closes the connections."""
        self._live.close()
        self._still.close()

    def _try(self, sql: str, parameters: tuple[object, ...]) -> Rows | None:
        """The rows; None when the file changed meanwhile and they may be a mixture."""
        if self._has_wal():
            rows, _ = self._live.execute(sql, parameters)
            self._is_live = True
            return rows
        # SUBTLE: with immutable=1 SQLite takes no locks and looks for no -wal file. What it
        # read is the newest state only if there was no writer from before to after the read: no
        # -wal file at either end, and the file still as it was. A writer that came and went in
        # between has copied its records into the file, and so changed its time, unless the
        # file had been changed within the same tick of the clock before: so a file that was changed
        # just now is left alone for a moment. The pages that a connection keeps in memory are of
        # the file as it was when the connection was opened, hence the pool's versions.
        before = self._signature()
        if abs(self._env.now_micros() - before[2] // 1_000) < _TICK_MICROS:
            return None
        try:
            rows, _ = self._still.execute(sql, parameters, before)
        except sqlite3.Error:
            if self._is_still(before):
                raise
            return None
        return rows if self._is_still(before) else None

    def _is_still(self, before: Signature) -> bool:
        return not self._has_wal() and self._signature() == before

    def _has_wal(self) -> bool:
        return os.path.lexists(f"{self._path}-wal")

    def _signature(self) -> Signature:
        try:
            status = os.stat(self._path)
        except OSError as error:
            raise sqlite3.OperationalError(f"unable to read {self._path}") from error
        return (status.st_ino, status.st_size, status.st_mtime_ns)

    def _cannot_read(self, error: sqlite3.OperationalError) -> Exception:
        if not _may_pass(error):
            return error
        return Refused(
            f"{self._path} cannot be read ({error}): it was not closed cleanly, and without"
            " permission to write, its -wal file cannot be read; open it once with that permission"
        )


def _connect(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=0, check_same_thread=False)


def _may_pass(error: sqlite3.OperationalError) -> bool:
    """Whether a writer that opens or closes the file at this moment explains the error."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_PROTOCOL,
    )
