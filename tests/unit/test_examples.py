"""Examples in docstrings give what they show."""

from __future__ import annotations

import doctest
import importlib
import inspect
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.transaction import Transaction

SOURCES = Path(sl.__file__).parent

# These have none: what they give says nothing on two small tables, or is another each time.
UNSHOWN = {"Database.force_ack", "Database.plan_compaction"}


def examples() -> list[doctest.DocTest]:
    """Those of all modules that have some."""
    found = []
    for path in sorted(SOURCES.rglob("*.py")):
        if ">>> " in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(SOURCES.parent).with_suffix("").parts)
            module = importlib.import_module(name)
            found += [test for test in doctest.DocTestFinder().find(module) if test.examples]
    return found


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the docstring of `Database` begins with, in a database where nothing happens unasked."""
    monkeypatch.chdir(tmp_path)
    with sl.connect("memory://", settings=sl.Settings(background=False)) as db:
        names: dict[str, Any] = {"sl": sl, "db": db}
        _, *rest = doctest.DocTestParser().get_examples(sl.Database.__doc__ or "")
        for example in rest:
            exec(example.source, names)
        yield names


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_what_an_example_shows_is_what_it_gives(
    example: doctest.DocTest, tables: dict[str, Any]
) -> None:
    example.globs.update(tables)
    said: list[str] = []
    with ExitStack() as stack:
        if ".Lease." in example.name:
            example.globs["lease"] = stack.enter_context(tables["stock"].attach("worker-1"))
        if ".Transaction." in example.name:
            example.globs["tx"] = tx = tables["db"].transaction()
            stack.callback(tx.rollback)
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        results = runner.run(example, out=said.append)
    assert not results.failed, "".join(said)


@pytest.mark.parametrize("kind", [sl.Database, sl.Table, Transaction, sl.Lease])
def test_every_method_that_users_call_shows_an_example(kind: type) -> None:
    silent = {
        f"{kind.__name__}.{name}"
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and ">>> " not in (method.__doc__ or "")
    }
    # Read and written by these, which a transaction is made of.
    inside = {f"Transaction.{name}" for name in ("add", "options", "tables", "version", "view")}
    assert silent <= UNSHOWN | inside
