from __future__ import annotations

import ast
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "torchlayout"

# docs/design.md: imports point down, from a later floor to an earlier one or to the same.
FLOORS = (
    # model.count is arithmetic on a configuration: Layout.split places layers by it.
    {"", "errors", "files", "tables", "layout", "schedule", "config", "hardware", "records", "web", "model.count"},
    {"model", "data", "checkpoint", "checkpoint.find", "checkpoint.folder", "checkpoint.index", "trace", "plan"},
    {"parallel"},
    {"train", "simulate"},
    {"compare"},
    {"cli", "tensorboard_plugin", "__main__"},
)
TORCH_FREE = (
    "checkpoint.find",
    "checkpoint.folder",
    "checkpoint.index",
    "cli",
    "compare",
    "config",
    "errors",
    "files",
    "hardware",
    "layout",
    "model.count",
    "plan",
    "records",
    "schedule",
    "tables",
    "tensorboard_plugin",
    "trace",
    "web",
)

MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip("."): path
    for path in PACKAGE.rglob("*.py")
}


def unit(module: str) -> str:
    """The room of the house that a module is in."""
    return module if module in TORCH_FREE else module.split(".")[0]


def imports(module: str, *, inside_functions: bool) -> Iterator[str]:
    """The modules of this package that running a module imports; what only a type checker sees is left out."""
    waiting: list[ast.AST] = [ast.parse(MODULES[module].read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif isinstance(node, ast.Import):
            yield from (name for alias in node.names if (name := known(alias.name)) is not None)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            for alias in node.names:
                name = known(f"{node.module}.{alias.name}")
                name = known(node.module or "") if name is None else name
                if name is not None:
                    yield name
        elif inside_functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += ast.iter_child_nodes(node)


def known(name: str) -> str | None:
    inner = name.removeprefix("torchlayout").lstrip(".")
    return inner if name.split(".")[0] == "torchlayout" and inner in MODULES else None


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Nodes on a circle or above one: what is left when nodes without anything below them are taken away."""
    left = {node: edges - {node} for node, edges in graph.items()}
    while free := {node for node, edges in left.items() if not edges & left.keys()}:
        left = {node: edges for node, edges in left.items() if node not in free}
    return sorted(left)


def test_the_graph_is_drawn_from_the_whole_package() -> None:
    assert {"config.load", "layout.value", "model.count", "cli"} <= MODULES.keys()
    assert "layout.value" in set(imports("layout", inside_functions=False))
    assert "config" in set(imports("cli.config", inside_functions=True))


def test_every_room_has_a_floor() -> None:
    assert {unit(module) for module in MODULES} <= set().union(*FLOORS)


def test_imports_point_down() -> None:
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    upwards = [
        f"{module} imports {target}"
        for module in MODULES
        for target in imports(module, inside_functions=True)
        if floor[unit(target)] > floor[unit(module)]
    ]
    assert upwards == []


def test_no_room_imports_itself_through_another() -> None:
    rooms: dict[str, set[str]] = {}
    for module in MODULES:
        targets = {unit(target) for target in imports(module, inside_functions=True)}
        rooms.setdefault(unit(module), set()).update(targets)
    assert circle(rooms) == []


def test_no_module_imports_itself_through_another() -> None:
    graph = {module: set(imports(module, inside_functions=False)) for module in MODULES}
    # A package's __init__ gathers its modules; that they live in it is no import of it.
    assert circle(graph) == []


def test_a_circle_would_be_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "b", "c", "d"]
    assert circle({"a": {"b"}, "b": set(), "c": {"a", "c"}}) == []


def test_values_and_commands_load_no_torch() -> None:
    names = [f"torchlayout.{name}" for name in TORCH_FREE]
    code = f"import sys, importlib; [importlib.import_module(n) for n in {names}]; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize("module", sorted(name for name in MODULES if unit(name) in TORCH_FREE))
def test_a_torch_free_module_names_no_torch(module: str) -> None:
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not [name for name in names if name.split(".")[0] in ("torch", "torchdata")]


def test_help_takes_less_than_four_tenths_of_a_second_of_cpu() -> None:
    def cpu_seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "torchlayout", "--help"]
        subprocess.run(command, check=True, capture_output=True, timeout=60, cwd=ROOT, env=os.environ)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # The best of three: the first may compile bytecode, and others share the machine.
    assert min(cpu_seconds() for _ in range(3)) < 0.4
