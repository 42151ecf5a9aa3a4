"""Tables of thousands of columns, or keys, work, at a cost in proportion to their number."""

import ast
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import strandline
from strandline.connect import connect
from strandline.engine import conditions
from tests.tables.helpers import QUIET

PACKAGE = Path(strandline.__file__).parent


def wide(columns: int, rows: int = 3) -> pa.Table:
    return pa.table({f"c{i}": np.arange(rows) + i for i in range(columns)})


@pytest.mark.parametrize(("columns", "keys"), [(5_000, 1), (500, 500)])
def test_thousands_of_columns_and_hundreds_of_keys_are_written_and_found(
    tmp_path: Path, columns: int, keys: int
) -> None:
    data = wide(columns)
    names = data.column_names
    with connect(str(tmp_path / "lake"), settings=QUIET) as db:
        db.create_table("wide", data.schema, row_keys=names[:keys]).append(data)
    with connect(str(tmp_path / "lake"), settings=QUIET) as db:
        table = db.table("wide")
        assert table.get(tuple(range(1, keys + 1))).to_pylist() == data.slice(1, 1).to_pylist()
        last = table.scan(columns=["c0"], where=pc.field(names[-1]) == columns + 1).to_arrow()
        assert last.to_pydict() == {"c0": [2]}


class Calls:
    """Counts the functions that are called, those of C and those of other threads included."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Self:
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _called(self, _frame: FrameType, event: str, _what: Any) -> None:
        self.count += event in {"call", "c_call"}


def calls_for(columns: int, keys: int, kind: Any) -> dict[str, int]:
    """How many calls each thing that is done with a table takes."""
    data = wide(columns)
    key = tuple(range(keys))
    found = {}
    # Where a batch becomes inline rows or a part by its size, few columns would be another case.
    settings = replace(QUIET, inline_bytes_max=0)
    with Calls() as calls, connect("memory://", settings=settings) as db:
        row_keys = data.column_names[:keys]
        works: dict[str, Callable[[], Any]] = {
            "create": lambda: db.create_table("wide", data.schema, row_keys=row_keys, kind=kind),
            "append": lambda: db["wide"].append(data),
            "append again": lambda: db["wide"].append(data),
            "get": lambda: db["wide"].get(key),
            "scan": lambda: db["wide"].scan().to_arrow(),
            "condition": lambda: db["wide"].scan(where=pc.field("c1") == 2).to_arrow(),
            "delete": lambda: db["wide"].delete(keys=[key]),
            "compact": lambda: db.compact("wide", strategy="full"),
            "get of one part": lambda: db["wide"].get(key),
        }
        for name, work in works.items():
            before = calls.count
            work()
            found[name] = calls.count - before
    return found


@pytest.mark.parametrize("kind", ["rows", "keyed"])
@pytest.mark.parametrize("share", [0, 1])
def test_four_times_the_columns_take_four_times_the_calls(kind: str, share: int) -> None:
    few, many = (calls_for(n, n if share else 1, kind) for n in (40, 160))
    for name, calls in many.items():
        assert calls <= 4.5 * few[name], name


def test_what_an_arrow_condition_needs_is_found_in_few_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = []
    tried = conditions._failure

    def counted(table: pa.Table, expression: pc.Expression) -> Exception | None:
        tries.append(table.num_columns)
        return tried(table, expression)

    monkeypatch.setattr(conditions, "_failure", counted)
    found = conditions.ArrowCondition(pc.field("c7") > pc.field("c900"), wide(1_000).schema)
    assert found.columns == ("c7", "c900")
    assert len(tries) < 50


# --- what calls do not show: lists that are made, and searched, in C


NAMES = {"names", "column_names"}
KEYS = {"keys", "row_keys", "sort_keys"}


def test_no_list_of_names_is_searched_once_per_column() -> None:
    """An Arrow schema makes its list of names anew each time that it is asked for it."""
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in slow_lines(path.read_text())
    ]
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "[n for n in names if n in table.column_names]",
        "[n for n in names if n in schema.keys]",
        "[n for n in names if all(n in table.column_names for table in tables)]",
        "for f in fields:\n    if f.name not in arrow.names:\n        pass",
        "def f():\n  known = arrow.names\n  for f in fields:\n    if f.name in known:\n      pass",
        "def f():\n  known = arrow.names\n  return [n for n in known if known.count(n) > 1]",
        "[sum(counts[:at]) for at in places]",
    ],
)
def test_a_search_per_column_is_noticed(source: str) -> None:
    assert slow_lines(source)


def slow_lines(source: str) -> list[int]:
    """The lines on which something of a loop is looked for in a list of columns' names."""
    found: set[int] = set()
    for node in ast.parse(source).body:
        found |= _slow_in(node, frozenset(), _lists_in(node))
    return sorted(found)


def _lists_in(scope: ast.AST) -> set[str]:
    """The variables that are set to a list of names."""
    return {
        target.id
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr in NAMES
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }


def _slow_in(node: ast.AST, bound: frozenset[str], lists: set[str]) -> set[int]:
    """The same below a node of the tree; `bound` are the variables of the loops around it."""
    if isinstance(node, ast.FunctionDef):
        bound, lists = frozenset(), _lists_in(node)
    loops: list[Any] = [node] if isinstance(node, ast.For) else getattr(node, "generators", [])
    # A few names of ours, written out, are not a table's columns.
    targets = [loop.target for loop in loops if not isinstance(loop.iter, ast.Tuple)]
    bound |= {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    found = {getattr(node, "lineno", 0)} if _is_slow(node, bound, lists) else set()
    for child in ast.iter_child_nodes(node):
        found |= _slow_in(child, bound, lists)
    return found


def _is_slow(node: Any, bound: frozenset[str], lists: set[str]) -> bool:
    def turns(what: ast.AST) -> bool:
        return any(isinstance(n, ast.Name) and n.id in bound for n in ast.walk(what))

    def is_list(what: ast.AST) -> bool:
        if isinstance(what, ast.Name):
            return what.id in lists
        return isinstance(what, ast.Attribute) and what.attr in NAMES | KEYS

    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        return turns(node.left) and is_list(node.comparators[0])
    if not isinstance(node, ast.Call) or not node.args or not turns(node.args[0]):
        return False
    if isinstance(node.func, ast.Attribute):
        return node.func.attr in {"count", "index"} and is_list(node.func.value)
    sums = isinstance(node.func, ast.Name) and node.func.id == "sum"
    return sums and any(isinstance(n, ast.Slice) and turns(n) for n in ast.walk(node))
