"""The walls of the house: who imports whom, who owns which library, and that every setting is read."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from benchmarks.walk import order, rank, room
from socialx.settings.schema import KEYS
from tests.commands import SMALL, small_file, works

REPOSITORY = Path(__file__).parents[1]
ROOT = REPOSITORY / "socialx"
OWNERS = {
    "typer": {"cli."},
    "rich": {"cli.", "drawing.", "inspection.", "scoring.", "forecast.", "profiling.", "tasks."},
    "h5py": {"files.", "inspection.report", "forecast.files"},
    "pandas": {"files.", "forecast.", "core.notebook", "scoring.results"},
    "pyarrow": {"forecast.", "files."},
    "sqlite3": {"files.sources.queries"},
    "yaml": {"settings.file"},
    "xlstm": {"model.xlstm.package"},
    "safetensors": {"tasks.export_formats", "core.sealed_tensors"},
    "pynvml": {"training.gpu_usage"},
    "matplotlib": {"drawing.", "inspection.", "scoring.", "forecast.", "profiling.", "tasks.report."},
    "jinja2": {"drawing.page"},
    "pydantic": {"settings.", "scoring.protocol", "training.run_folder", "serving."},
    "fastapi": {"serving."},
    "prometheus_client": {"serving.guard"},
    "starlette": {"serving."},
    "uvicorn": {"serving.server"},
}
PACKAGES = {path.parent.name for path in ROOT.glob("*/__init__.py")}


def named(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


PATHS = {name: path for path in sorted(ROOT.rglob("*.py")) if (name := named(path)) not in ("__init__", "files")}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(PATHS[module].read_text())


@pytest.fixture(scope="module", autouse=True)
def parsed() -> None:
    """The trees of all modules, which no single test pays for."""
    for module in PATHS:
        tree(module)


def imports(module: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module, "relative import"
            assert not node.level, "relative import"
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@cache
def inner(module: str) -> set[str]:
    """The modules of the package that this one imports."""
    names = {name.removeprefix("socialx.") for name in imports(tree(module)) if name.startswith("socialx.")}
    names = {name for name in names if not module.startswith(f"{name}.")}  # a package is loaded before what is in it
    return {name for name in names if name in PATHS and name != module}


def test_every_module_has_a_line() -> None:
    lines = order()
    names = set().union(*lines)
    assert set(map(room, PATHS)) == names
    assert sum(map(len, lines)) == len(names), "a name stands on two lines"


@pytest.mark.parametrize("module", PATHS)
def test_a_module_imports_only_downwards(module: str) -> None:
    lines = order()
    for other in inner(module):
        below = rank(other, lines) < rank(module, lines)
        assert below or room(other) == room(module), f"{module} imports {other}, which does not stand below it"


def test_no_import_circles() -> None:
    seen: set[str] = set()  # in no circle

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path, module))
        for other in inner(module) - seen:
            visit(other, (*path, module))
        seen.add(module)

    for module in PATHS:
        visit(module, ())


@pytest.mark.parametrize("library", OWNERS)
def test_a_library_has_its_owners(library: str) -> None:
    users = {m for m in PATHS if any(n.split(".")[0] == library for n in imports(tree(m)))}
    allowed = OWNERS[library]
    assert all(m in allowed or any(m.startswith(a) for a in allowed if a.endswith(".")) for m in users), users


BELOW = ("files", "data", "model", "dataset", "drawing", "inspection", "scoring", "forecast", "training", "profiling")
SECTIONS = {"model": {"ModelSettings", "PoolingSettings"}, "dataset": {"DataSettings", "LoaderSettings"}}
SECTIONS |= {"training": {"TrainerSettings"}}


@pytest.mark.parametrize("module", [m for m in PATHS if m.split(".")[0] in BELOW])
def test_a_room_reads_only_its_own_sections_of_the_settings(module: str) -> None:
    used, foreign = imports(tree(module)), {"SettingsArguments", "Settings", "Config", "ConfigLayers"}
    assert "socialx.settings.layers" not in used
    sections = {name.rpartition(".")[2] for name in used if name.startswith("socialx.settings.schema.")}
    own = SECTIONS.get(module.split(".")[0], set())
    assert not foreign & sections
    assert {name for name in sections if name.endswith("Settings")} <= own


@pytest.mark.parametrize("module", ["settings.schema", "settings.kinds"])
def test_what_a_section_is_made_of_stands_at_the_bottom(module: str) -> None:
    assert all(room(other) in ("core", "settings") for other in inner(module))


@pytest.mark.parametrize(
    "module", [m for m in PATHS if m.split(".")[0] not in ("cli", "__main__") and m != "settings.layers"]
)
def test_no_flag_below_the_command_line(module: str) -> None:
    """Flags and commands are made of ``errors.Argument`` and ``errors.Command`` by whoever shows the error."""
    docstrings = {
        node.body[0].value
        for node in ast.walk(tree(module))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            flags = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", node.value))
            assert not flags - {"--always", "--dirty", "--abbrev"}, f"{module}:{node.lineno}: {flags}"  # of git


def test_every_setting_is_read() -> None:
    rooms = [path for name in ("tasks", "cli", "training") for path in sorted((ROOT / name).rglob("*.py"))]
    source = "".join(path.read_text() for path in rooms)
    short = dict(re.findall(r"\b(\w+)(?:, \w+)? = (?:experiment\.)?(?:effective|settings)\.(\w+)\b", source))
    unread = []
    for key in KEYS:
        section, name = key.split(".")
        rooms = [room for room, sections in SECTIONS.items() if f"{section.title()}Settings" in sections]
        own = "".join(path.read_text() for module, path in PATHS.items() if module.split(".")[0] in rooms)
        if re.search(rf"\b(?:{section}|settings)\.{name}\b", own):
            continue
        holders = [
            rf"\b(?:effective|settings|learner|self)\.{section}",
            *(rf"\b{alias}" for alias, of in short.items() if of == section),
        ]
        if not any(re.search(rf"{holder}\.{name}\b", source) for holder in holders):
            unread.append(key)
    assert not unread


def test_every_setting_of_a_model_is_an_argument_of_it() -> None:
    import inspect

    from socialx.settings.kinds import MODELS

    for kind in MODELS.values():
        if not kind.social:
            assert (set(inspect.signature(kind.load()).parameters) - {"network"}) == set(kind.reads or ()), kind.name


def test_no_room_without_a_name() -> None:
    parts = {part for m in PATHS for part in m.split(".")}
    assert not {"utils", "helpers", "common", "misc", "base", "manager"} & parts


def branches(function: ast.FunctionDef) -> int:
    kinds = (ast.If, ast.For, ast.While, ast.Try, ast.IfExp, ast.comprehension, ast.BoolOp)
    return sum(isinstance(node, kinds) for node in ast.walk(function))


def statements(function: ast.FunctionDef) -> int:
    return sum(isinstance(node, ast.stmt) for node in ast.walk(function)) - 1


def test_functions_stay_readable() -> None:
    for path in PATHS:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef):
                assert statements(node) <= 55, f"{path}: {node.name}"
                assert branches(node) <= 25, f"{path}: {node.name}"


def test_nothing_unpickles() -> None:
    for path in ROOT.rglob("*.py"):
        text = path.read_text().replace("pandas.read_pickle(FILE).to_csv", "")  # an advice, never a call
        for call in re.findall(r"torch\.load\([^)]*\)", text):
            assert "weights_only=True" in call, path
        assert not re.search(
            r"pickle\.loads?\(|allow_pickle=True|read_pickle|read_hdf|shell=True|(?<![.\w])(eval|exec)\(", text
        ), path


@pytest.mark.slow
@pytest.mark.parametrize(("command", "most"), [("train", 9), ("evaluate", 10), ("predict", 12)])
def test_a_command_runs_downhill(command: str, most: int, tmp_path: Path) -> None:
    """``tasks/build.py`` is entered once per command, and few steps lead from a lower room back into a higher one.

    What is left: a run folder leads to what it is built of, data to its protocol, a part of a task to the next one, a
    file to the units that a run is compared in, the origins of a forecast to the days that it is adapted by, loaders to
    the rows that reach the weights, and the end of a training to the intervals of the best epoch.
    """
    data, run = small_file(tmp_path), tmp_path / "run"
    training = ["--data", str(data), "--run-dir", str(run), "--max-epochs", "1", *SMALL]
    if command != "train":
        works("train", *training)
    arguments = training if command == "train" else [str(run)]
    script = [sys.executable, str(REPOSITORY / "benchmarks/walk.py"), command, *arguments]
    done = subprocess.run(script, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    counted = re.search(r"(\d+) climbs, .+ entered (\d+)x", done.stdout)
    assert counted, done.stdout
    assert int(counted[1]) <= most
    assert int(counted[2]) == 1
