"""Writes the parts of docs/ that are made from the code: `make docs`.

tests/unit/test_docs.py compares them with what is there.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

from typer.main import get_command

import strandline.settings
from strandline.cli import app
from strandline.txn.properties import PROPERTIES

__all__ = ["GENERATED", "command_line", "settings"]

ROOT = Path(__file__).parent.parent / "docs"
NOTICE = "<!-- Written by `make docs`. Change the code, not this file. -->\n"

_FORMS = """\
`--url` may stand after the command as well; without it the environment's `STRANDLINE_URL` counts.

Every command takes `--output table|json|csv|arrow`: a table for people, a JSON array with one
object per line, CSV, or an Arrow IPC stream. In JSON, times are ISO 8601 in UTC, decimals are text,
bytes are base64, and what is not a number (NaN, infinity) is null. In CSV nothing between commas is
null, two quotes are an empty text, and nested values are JSON. Progress bars and notes go to
standard error.

The exit status is 0 if it worked, 1 if it failed, 2 if the request was wrong. An error is one line
that names what it is about and what to do; `--debug` before the command shows where it was raised.
"""


# --- the command line


def command_line() -> str:
    """docs/reference/cli.md."""
    program: Any = get_command(app)
    lines = [NOTICE, "# Command line", "", "`strandline [--url URL] COMMAND`", "", _FORMS]
    lines += ["| before the command | |", "|---|---|"]
    lines += [f"| {name} | {says} |" for name, says in _options(program)]
    for name, command in program.commands.items():
        lines += ["", f"## {name}", "", inspect.cleandoc(command.help or ""), ""]
        example = (command.epilog or "").removeprefix("Example:").strip()
        lines += ["```", example, "```", ""]
        rows = [*_arguments(command), *_options(command, but="url")]
        lines += ["| | |", "|---|---|", *(f"| {what} | {says} |" for what, says in rows)]
    return "\n".join(lines) + "\n"


def _arguments(command: Any) -> Iterator[tuple[str, str]]:
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            more = "…" if parameter.nargs == -1 else ""
            name = f"{parameter.metavar or parameter.name.upper()}{more}"
            choices = _choices(parameter)
            shown = f"`{name}`" if parameter.required else f"`[{name}]`"
            yield shown + (f" ({choices})" if choices else ""), _cell(parameter.help)


def _options(command: Any, but: str = "") -> Iterator[tuple[str, str]]:
    for parameter in command.params:
        if parameter.param_type_name != "option" or parameter.name in {"help", but}:
            continue
        what = ", ".join(f"`{name}`" for name in parameter.opts)
        value = _choices(parameter) or parameter.metavar
        if value is None and not parameter.is_flag:
            value = parameter.name.upper()
        what += f" {value}" if value else ""
        says = _cell(parameter.help)
        default = getattr(parameter.default, "value", parameter.default)
        if default not in (None, False, ()) and not callable(default):
            says += f" Default: `{default}`."
        yield what, says + (" Required." if parameter.required else "")


def _choices(parameter: Any) -> str:
    kind = parameter.type_descriptor.annotation
    if not (isinstance(kind, type) and issubclass(kind, StrEnum)):
        return ""
    return " \\| ".join(f"`{choice.value}`" for choice in kind)


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


# --- settings


def settings() -> str:
    """docs/reference/settings.md."""
    lines = [
        NOTICE,
        "# Settings",
        "",
        "## Of a process",
        "",
        "`strandline.connect(url, settings=strandline.Settings(...))`. Nothing of it is stored;",
        "two processes may differ.",
        "",
        "| setting | default | what it does |",
        "|---|---|---|",
        *(f"| `{name}` | `{default}` | {says} |" for name, default, says in _knobs()),
        "",
        "## Of a table",
        "",
        '`db.create_table(..., properties={...})` and `table.set(retention="30 days")`; on the',
        "command line `strandline create --property NAME=VALUE`. They are stored with the table.",
        "",
        "| property | default | what it does |",
        "|---|---|---|",
        *(f"| `{name}` | `{p.default}` | {p.says} |" for name, p in PROPERTIES.items()),
    ]
    return "\n".join(lines) + "\n"


def _knobs() -> Iterator[tuple[str, str, str]]:
    """Name, default as it is written, and docstring of each setting."""
    module = ast.parse(inspect.getsource(strandline.settings))
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    body = next(node.body for node in classes if node.name == "Settings")
    for field, says in pairwise(body):
        if not isinstance(field, ast.AnnAssign) or field.value is None:
            continue
        if not isinstance(says, ast.Expr) or not isinstance(says.value, ast.Constant):
            raise TypeError(f"the setting {ast.unparse(field.target)} has no docstring")
        default = ast.unparse(field.value)
        if default.startswith("field("):
            default = default.partition("lambda: ")[2].removesuffix(")")
        yield ast.unparse(field.target), _cell(default), _cell(str(says.value.value))


GENERATED: dict[Path, Callable[[], str]] = {
    ROOT / "reference" / "cli.md": command_line,
    ROOT / "reference" / "settings.md": settings,
}
"""Every generated file, and what its text is."""


def main() -> None:
    """Writes them all."""
    for path, text in GENERATED.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
