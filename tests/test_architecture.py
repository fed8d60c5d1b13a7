"""The walls of the house: who imports whom, who owns which library, and that every setting is read."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from socialx.options import KEYS

ROOT = Path(__file__).parents[1] / "socialx"
# A module imports only what stands on a line above its own, or on its own line without a circle.
LAYERS = [
    {"errors"},
    {
        *("settings", "data.geo", "training.metrics", "training.clock", "training.memory"),
        *("profiling.analysis", "profiling.require"),
    },
    {
        *("options", "progress", "data.windows", "data.files", "data.older"),
        *("model.fused", "model.conv_kernels", "profiling.trace", "profiling.collector"),
    },
    {"model.kernels"},
    {"model.kernel_layers"},
    {
        *("data.store", "data.loaders", "data.distances", "model.encoder", "model.pooling"),
        *("profiling.device", "training.precision"),
    },
    {"data.sources", "data.inspect", "model.scale", "training.checkpoint", "training.runs"},
    {"model.forecaster", "model.baselines", "model.listening"},
    {"data.variants", "data.checks", "data.download", "training.capture"},
    {"training.engine", "training.breakdown"},
    {"data.backfill", "data.kinds", "training.probe"},
    {"build"},
    {"profiling.measure", "report"},
    {"cli"},
    {"__main__"},
]
OWNERS = {
    "typer": {"cli.", "options"},
    "rich": {"cli.", "progress", "report.tables"},
    "h5py": {"data."},
    "pandas": {"data."},
    "yaml": {"options"},
    "xlstm": {"model.encoder"},
    "triton": {"model.conv_kernels", "model.kernels", "model.kernel_layers"},
    "pynvml": {"profiling.device"},
    "matplotlib": {"report.pictures", "report.explanation"},
    "pydantic": {"settings", "options"},
}


def modules() -> dict[str, ast.Module]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text())
    return found


MODULES = modules()


def imports(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level:
            raise AssertionError("relative import")
    return found


def layer(module: str) -> int | None:
    while module:
        for level, names in enumerate(LAYERS):
            if module in names:
                return level
        module = module.rpartition(".")[0]
    return None


@cache
def inner(module: str) -> set[str]:
    """The modules of the package that this one imports."""
    names = {name.removeprefix("socialx.") for name in imports(MODULES[module]) if name.startswith("socialx.")}
    names = {name for name in names if not module.startswith(f"{name}.")}  # a package is loaded before what is in it
    return {name for name in names if name in MODULES and name not in ("data", "model", "training", "profiling")}


@pytest.mark.parametrize(
    "module", [m for m in MODULES if m not in ("", "__init__", "data", "model", "training", "profiling")]
)
def test_a_module_imports_only_downwards(module: str) -> None:
    own = layer(module)
    assert own is not None, f"{module} has no line in LAYERS"
    for other in inner(module):
        level = layer(other)
        assert level is not None, f"{other} has no line in LAYERS"
        assert level <= own, f"{module} (line {own}) imports {other} (line {level})"


def test_no_import_circles() -> None:
    seen: set[str] = set()  # in no circle

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path, module))
        for other in inner(module) - seen:
            visit(other, (*path, module))
        seen.add(module)

    for module in MODULES:
        visit(module, ())


@pytest.mark.parametrize("library", OWNERS)
def test_a_library_has_its_owners(library: str) -> None:
    users = {m for m, tree in MODULES.items() if any(n.split(".")[0] == library for n in imports(tree))}
    allowed = OWNERS[library]
    assert all(m in allowed or any(m.startswith(a) for a in allowed if a.endswith(".")) for m in users), users


@pytest.mark.parametrize(
    "module", [m for m in MODULES if m.split(".")[0] in ("data", "model", "training", "profiling")]
)
def test_settings_stop_at_build(module: str) -> None:
    assert not {"socialx.settings", "socialx.options"} & imports(MODULES[module])


def test_every_setting_is_read() -> None:
    source = (ROOT / "build.py").read_text() + "".join(path.read_text() for path in sorted((ROOT / "cli").glob("*.py")))
    short = dict(re.findall(r"\b(\w) = s\.(\w+)\b", source))  # t = s.trainer
    unread = []
    for key in KEYS:
        section, name = key.split(".")
        holders = [rf"\bs\.{section}", *(rf"\b{alias}" for alias, of in short.items() if of == section)]
        if not any(re.search(rf"{holder}\.{name}\b", source) for holder in holders):
            unread.append(key)
    assert not unread


def test_training_never_imports_profiling() -> None:
    assert not [m for m in MODULES if m.startswith("training") and any("profiling" in n for n in imports(MODULES[m]))]


def test_no_room_without_a_name() -> None:
    assert not {"utils", "helpers", "common", "misc", "base", "manager"} & {
        part for m in MODULES for part in m.split(".")
    }


def test_files_and_functions_stay_readable() -> None:
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        assert len(text.splitlines()) <= 400, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                # What stays on chip between two lines cannot cross a function that is launched.
                most = 110 if any("triton.jit" in ast.unparse(d) for d in node.decorator_list) else 70
                assert (node.end_lineno or 0) - node.lineno <= most, f"{path}: {node.name}"


def test_nothing_unpickles() -> None:
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        for call in re.findall(r"torch\.load\([^)]*\)", text):
            assert "weights_only=True" in call, path
        assert not re.search(
            r"pickle\.loads?\(|allow_pickle=True|read_pickle|read_hdf|shell=True|(?<![.\w])(eval|exec)\(", text
        ), path
