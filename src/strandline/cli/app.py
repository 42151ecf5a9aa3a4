"""The program itself: its options, how a command is declared, and what becomes of errors."""

from __future__ import annotations

import errno
import functools
import inspect
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer
from rich.console import Console
from typer.core import TyperGroup
from typer.exceptions import TyperException

import strandline as sl
from strandline.cli.output import note

__all__ = [
    "LONG_SECONDS",
    "Timeout",
    "Yes",
    "app",
    "called",
    "command",
    "confirm",
    "open_database",
    "say_url",
    "url_of",
]

F = TypeVar("F", bound=Callable[..., Any])

EXIT_FAILED = 1
EXIT_USAGE = 2

Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", help="Give up after that many seconds.")
]
LONG_SECONDS = 86_400.0
"""Default of commands whose work grows with the data."""
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


class _Program(TyperGroup):
    """Turns every error into one line and an exit status."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        def run() -> Any:
            return super(_Program, self).main(
                args,
                prog_name,
                complete_var,
                standalone_mode=False,
                windows_expand_args=windows_expand_args,
                **extra,
            )

        if not standalone_mode:
            return run()
        given = sys.argv[1:] if args is None else args
        sys.exit(_status(run, debug="--debug" in given))


def _status(run: Callable[[], Any], *, debug: bool) -> int:
    """The exit status of the program, after telling what went wrong."""
    try:
        result = run()
    except TyperException as error:
        message, context = error.format_message(), getattr(error, "ctx", None)
        if not message.strip():
            return error.exit_code  # no command: its help was shown
        hint = "" if context is None else f" (see {context.command_path} --help)"
        return _told(error, message.rstrip(".") + hint, error.exit_code, debug=debug)
    except sl.StrandlineError as error:
        status = EXIT_USAGE if isinstance(error, sl.UsageError) else EXIT_FAILED
        return _told(error, str(error), status, debug=debug)
    except (typer.Abort, KeyboardInterrupt) as error:
        return _told(error, "interrupted", EXIT_FAILED, debug=False)
    except OSError as error:
        if error.errno == errno.EPIPE:
            # Whoever read the output has seen enough. Nothing is left to be flushed at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_FAILED
        return _told(error, str(error), EXIT_FAILED, debug=debug)
    except Exception as error:  # noqa: BLE001  the last line of defence, which tells all it knows
        message = f"{type(error).__name__}: {error} (not expected; --debug shows where)"
        return _told(error, message, EXIT_FAILED, debug=debug)
    return result if isinstance(result, int) else 0


def _told(error: BaseException, message: str, status: int, *, debug: bool) -> int:
    if debug:
        Console(stderr=True).print_exception()
    note(f"strandline: {message}")
    return status


_NAME = "strandline"

app = typer.Typer(
    cls=_Program,
    name=_NAME,
    help="A transactional table store on object storage, for Python and Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
)


@dataclass(frozen=True)
class _Options:
    """What was said that is not the command's own."""

    url: str | None
    said: bool
    """Whether the URL stands in the command line; else it is from the environment."""


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"strandline {sl.__version__}")
        raise typer.Exit


_WHERE = "Where the database is: a directory, or a URL."


@app.callback()
def _options(
    ctx: typer.Context,
    url: Annotated[str | None, typer.Option("--url", envvar="STRANDLINE_URL", help=_WHERE)] = None,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where in the program an error was raised.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_show_version, help="Show the version and end."
        ),
    ] = False,
) -> None:
    source = ctx.get_parameter_source("url")
    ctx.obj = _Options(url, said=source is not None and source.name == "COMMANDLINE")


def command(name: str, *, example: str, panel: str, **settings: Any) -> Callable[[F], F]:
    """Declares a command of the program. The example shows in its help, and a test runs it.

    A command that takes the context is about a database, whose --url may stand after it as well.
    """
    declared = app.command(name, epilog=f"Example:  {example}", rich_help_panel=panel, **settings)

    def declare(function: F) -> F:
        declared(_with_url(function))
        return function

    return declare


def _with_url(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with an option --url; itself if it takes no context."""
    signature = inspect.signature(function, eval_str=True)
    if "ctx" not in signature.parameters:
        return function

    @functools.wraps(function)
    def run(*, ctx: typer.Context, url: str | None, **arguments: Any) -> Any:
        if url is not None:
            say_url(ctx, url)
        return function(ctx=ctx, **arguments)

    kind = Annotated[str | None, typer.Option("--url", help=_WHERE)]
    own = inspect.Parameter("url", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
    parameters = [*signature.parameters.values(), own]
    changed: Any = run
    changed.__signature__ = signature.replace(parameters=parameters)
    changed.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def say_url(ctx: typer.Context, url: str) -> None:
    """Names the database after the command; `UsageError` if the command line names another."""
    options: _Options = ctx.obj
    if options.said and options.url != url:
        raise sl.UsageError(f"which database: {options.url} or {url}? name one")
    ctx.obj = _Options(url, said=True)


def url_of(ctx: typer.Context) -> str:
    """The database that was named; `UsageError` if none was."""
    options: _Options = ctx.obj
    if not options.url:
        raise sl.UsageError("which database? pass --url URL, or set STRANDLINE_URL")
    return options.url


def confirm(question: str, *, yes: bool) -> None:
    """Asks before something is done that cannot be undone; ends the program unless told to go on.

    Only a person who can see the question can answer it: what is piped in is no answer, so without
    a terminal it is a `UsageError` that names --yes.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise sl.UsageError(f"{question} No terminal to ask at: pass --yes to say so")
    if not typer.confirm(question, err=True):
        note("strandline: not confirmed, so nothing was done")
        raise typer.Exit(EXIT_FAILED)


def called() -> str:
    """What a shell calls this program by, from where it was called: `strandline` if that finds it.

    Else the path by which it was called, or what its interpreter takes.
    """
    path = Path(sys.argv[0])
    if path.name != _NAME:
        return f"{shlex.quote(sys.executable)} -m strandline"
    found = shutil.which(_NAME)
    if found is not None and Path(found).resolve() == path.resolve():
        return _NAME
    return shlex.quote(str(path if os.sep in str(path) else path.absolute()))


@contextmanager
def open_database(
    ctx: typer.Context, *, write: bool = False, moment: object = None
) -> Iterator[sl.Database]:
    """The database that was named, which has to be there.

    Reading needs no more than permission to read. Only an `as_of` after the latest commit is made
    definite by a commit, so for one (`moment`) the database is opened to be written if it can be.
    """
    with _opened(url_of(ctx), write=write, moment=moment) as db:
        yield db


def _opened(url: str, *, write: bool, moment: object) -> sl.Database:
    if not write and moment is None:
        return _connected(url, mode="r")
    try:
        return _connected(url, mode="rw")
    except sl.LocationError:
        if write:
            raise
        return _connected(url, mode="r")


def _connected(url: str, mode: Literal["r", "rw"]) -> sl.Database:
    try:
        return sl.connect(url, mode=mode, create=False)
    except sl.UsageError as error:
        if not str(error).startswith("there is no database at"):
            raise
        # The same, in the words of this program.
        raise sl.UsageError(
            f"there is no database at {url}; make one: strandline init {url}"
        ) from error
