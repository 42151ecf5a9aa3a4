"""DuckDB, wrapped: loaded at first use, shut in, and in UTC.

What runs here sees the Arrow data that it is handed and nothing else: no file, no network, no
extension, no variable of the calling program. Two instances serve a process: one that works on
one thread, whose results come in the order of its input (expressions over rows), and one that uses
all of them (statements). Two more may open files of this machine, and run no text of a user (COPY).
"""

from __future__ import annotations

import atexit
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from strandline.env import Deadline
from strandline.errors import DeadlineExceeded, StrandlineError, UsageError

__all__ = [
    "Duck",
    "Failures",
    "Token",
    "bounded",
    "busy_errors",
    "drained",
    "file_errors",
    "files",
    "instance",
    "interrupted",
    "is_usage",
    "literal",
    "on_one_thread",
    "quoted",
    "refused",
    "tokens",
    "usage_errors",
]

A = TypeVar("A")

Duck = Any
"""A connection of DuckDB. Its module is imported inside functions alone, types included."""

_instances: dict[str, Duck] = {}
_inherited: list[Duck] = []
_opening = threading.Lock()
_on_one_thread = False


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Within the block DuckDB has no threads of its own: each query runs on the one that asks.

    For the whole process, so that a program can be played again step by step.
    """
    global _on_one_thread  # noqa: PLW0603  it is of the process, as DuckDB is
    before, _on_one_thread = _on_one_thread, True
    try:
        yield
    finally:
        _on_one_thread = before


def instance(*, ordered: bool) -> Duck:
    """A new cursor on one of the instances that see no file; close it when done with it."""
    return _cursor("ordered" if ordered else "parallel")


def files(*, ordered: bool) -> Duck:
    """A new cursor on one of the instances that may open files; close it when done with it.

    `ordered`: the one that works on one thread.

    SUBTLE: nothing but what the caller put together itself may be run on it, of names by `quoted`
    and of values by `literal`: a query of a user's here could read every file of the machine.
    """
    return _cursor("ordered files" if ordered else "parallel files")


def _cursor(kind: str) -> Duck:
    if _on_one_thread:
        kind = kind.replace("parallel", "ordered")
    with _opening:
        found = _instances.get(kind)
        if found is None:
            found = _instances[kind] = _open(kind)
        return found.cursor()


def _after_fork() -> None:
    # SUBTLE: the parent's instances are here, but their threads are not, and locks of theirs may
    # be held for ever. They are neither used nor closed.
    global _opening  # noqa: PLW0603  the lock may be held by a thread of the parent
    _opening = threading.Lock()
    _inherited.extend(_instances.values())
    _instances.clear()


os.register_at_fork(after_in_child=_after_fork)


def quoted(name: str) -> str:
    """The name as an identifier in SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: object) -> str:
    """A value as SQL: None, truth, a number, text, a list, or a dict with text for keys."""
    if value is None or isinstance(value, bool):
        return str(value).lower() if value is not None else "NULL"
    if isinstance(value, int | float | Decimal):
        return repr(value) if isinstance(value, int) else f"'{value}'"
    if isinstance(value, dict):
        items = ", ".join(f"{literal(str(k))}: {literal(v)}" for k, v in value.items())
        return "{" + items + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(literal, value)) + "]"
    return "'" + str(value).replace("'", "''") + "'"


class Token(NamedTuple):
    """A word of SQL, the white space after it, and what DuckDB takes it for."""

    word: str
    gap: str
    kind: str
    """identifier, keyword, operator, numeric_const, string_const, comment or space."""

    @property
    def is_name(self) -> bool:
        """Whether it may be a name."""
        return self.kind in {"identifier", "keyword"}

    @property
    def name(self) -> str:
        """The word without the quotes of a name."""
        word = self.word
        return (
            word[1:-1].replace('""', '"') if len(word) > 1 and word[0] == word[-1] == '"' else word
        )


def tokens(text: str) -> list[Token]:
    """The words of a SQL text; joined again, words and gaps, they are the text."""
    import duckdb

    data = text.encode()
    found = duckdb.tokenize(text)
    starts = [0, *(offset for offset, _ in found[1:]), len(data)]
    result = []
    for (_, kind), start, end in zip(found, starts, starts[1:], strict=False):
        piece = data[start:end].decode()
        word = piece.strip()
        lead = piece[: len(piece) - len(piece.lstrip())]
        if lead:
            result.append(Token("", lead, "space"))
        result.append(Token(word, piece[len(lead + word) :], kind.name))
    return result


def _open(kind: str) -> Duck:
    import duckdb

    # Where DuckDB may spill; it makes the directory when it has to and removes it at the end.
    spill = os.path.join(tempfile.gettempdir(), f"strandline-sql-{os.getpid()}")  # noqa: PTH118  as text
    config: dict[str, str | bool | int | float | list[str]] = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
        "temp_directory": spill,
    }
    if kind.startswith("ordered"):
        config["threads"] = 1
    connection = duckdb.connect(":memory:", config=config)
    # ICU brings this setting along, so it is not there yet when the instance is made.
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    if not kind.endswith("files"):
        connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


@atexit.register
def _close() -> None:
    for connection in _instances.values():
        connection.close()
    _instances.clear()


class Failures:
    """What went wrong in data that DuckDB was reading from us.

    DuckDB tells of it in words of its own; here the error itself is kept, for `told`.
    """

    def __init__(self) -> None:
        self._errors: list[BaseException] = []

    def watched(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches; an error on the way is kept."""
        with self.keeping():
            yield from batches

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """What is raised in here is kept, also what ends the thread."""
        try:
            yield
        except GeneratorExit:
            raise  # nobody wants the rest
        except BaseException as error:
            self._errors.append(error)
            raise

    @contextmanager
    def told(self, what: str) -> Iterator[None]:
        """Raises what is the matter: the error that was kept, or the user's mistake in `what`."""
        import duckdb

        try:
            yield
        except StrandlineError:  # a deadline's is an OSError, too
            raise
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            if self._errors:
                kept = self._errors.pop(0)
                if isinstance(kept, DeadlineExceeded):
                    happened = kept.may_have_happened
                    raise DeadlineExceeded(f"{what}: {kept}", may_have_happened=happened) from None
                raise kept from None
            if is_usage(error):
                raise refused(what, error) from None
            raise


def bounded(function: Callable[[], A], cursors: Sequence[Duck], deadline: Deadline, what: str) -> A:
    """`function()`, whose queries run on the cursors, and end with the deadline or with Ctrl-C.

    `DeadlineExceeded` says that it was `what`. Beside it nothing else runs on the cursors.

    SUBTLE: DuckDB ends within a few ms of being told, but for one thing: what computes a single
    value, a list of a billion numbers, is not told before it has it. And on the thread that asks it
    looks for Ctrl-C between pieces of work, of which one can be a whole join: so that thread waits
    here, and another asks.
    """
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        for cursor in list(cursors):
            cursor.interrupt()

    deadline.check(what, may_have_happened=False)
    try:
        return deadline.interruptible(function, stop)
    except Exception as error:
        if stopped and _is_interrupt(error):
            raise deadline.exceeded(what, may_have_happened=False) from None
        raise


def drained(
    batches: pa.RecordBatchReader,
    cursors: Sequence[Duck],
    deadline: Callable[[], Deadline],
    what: str,
) -> Iterator[pa.RecordBatch]:
    """The batches of a query on the cursors, each `bounded` by a deadline of its own or by one."""
    while True:
        batch = bounded(lambda: next(batches, None), cursors, deadline(), what)
        if batch is None:
            return
        yield batch


def interrupted() -> Exception:
    """What DuckDB raises when it is told to stop."""
    import duckdb

    return duckdb.InterruptException("INTERRUPT Error: Interrupted!")


def _is_interrupt(error: Exception) -> bool:
    """Whether DuckDB ended because it was told to; in a stream of batches that is an OSError."""
    import duckdb

    streamed = isinstance(error, OSError | pa.ArrowException)
    return isinstance(error, duckdb.InterruptException) or (
        streamed and str(error).startswith("INTERRUPT Error")
    )


def _message_of(error: Exception) -> str:
    """The first line of what DuckDB says, without the name of the kind of error."""
    text = str(error).partition("\n")[0]
    kind, colon, rest = text.partition(": ")
    return rest if colon and kind.endswith("Error") else text


def usage_errors() -> tuple[type[Exception], ...]:
    """What DuckDB raises because of what it was asked, not because of what it is."""
    import duckdb

    return (
        duckdb.ProgrammingError,
        duckdb.DataError,
        duckdb.NotSupportedError,
        duckdb.PermissionException,
    )


def busy_errors() -> tuple[type[Exception], ...]:
    """What DuckDB raises because a connection is at something else."""
    import duckdb

    return (duckdb.ResourceInUseException,)


_USAGE = re.compile(
    r"(Binder|Conversion|Invalid Input|Mismatch Type|Not implemented|Out of Range) Error: "
)


def is_usage(error: Exception) -> bool:
    """Whether it is one of `usage_errors`, or what is left of one in a stream of Arrow batches.

    SUBTLE: that is an OSError of Arrow, which has DuckDB's text and nothing else of it.
    """
    streamed = isinstance(error, OSError) and _USAGE.match(str(error)) is not None
    return streamed or isinstance(error, usage_errors())


def file_errors() -> tuple[type[Exception], ...]:
    """What DuckDB raises because of a file or its disk."""
    import duckdb

    return (duckdb.IOException,)


def refused(what: str, error: Exception) -> UsageError:
    """The user's error for one of `usage_errors`."""
    message = _message_of(error)
    if "disabled by configuration" in message:
        message += "; rows of files are for COPY table FROM 'file'"
    return UsageError(f"{what}: {message}")
