"""How large the package is, and how much of it one user needs.

    python benchmarks/house.py            lines per package, tests, words, private functions, names that stand twice
    python benchmarks/house.py --entered  the share of the function lines that a user's commands enter

Two lists of commands are run: those of one user from raw files to a forecast (``USER``), then all of the README as
well.  A function counts with all its lines once it is entered.  The commands run in a temporary folder, with the
training cut to one epoch of a tiny model.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shlex
import shutil
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "socialx"
SHORT = {
    "TRAINER__MAX_EPOCHS": "1",
    "MODEL__WIDTH": "8",
    "MODEL__BLOCKS": "1",
    "MODEL__SLSTM_AT": "0",
    "LOADER__BATCH_SIZE": "256",
    "PROFILE__WARMUP_STEPS": "0",
}
EXCERPT = "--data-csv examples/data/METR-LA-excerpt.csv --meta-csv examples/data/sensor_locations.csv"
USER = f"""
convert metr-la {EXCERPT} --output-h5 user/metr_la.h5 --validate
inspect user/metr_la.h5
train --size medium --data user/metr_la.h5 --device cpu --run-dir user/run
evaluate user/run --baselines
explain user/run
predict user/run --interval 0.9
config --size medium
"""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def lines_of(paths: list[Path]) -> int:
    """All lines of some files, blank ones too."""
    return sum(len(path.read_text().splitlines()) for path in paths)


def functions_of(path: Path) -> list[Function]:
    """The functions and methods of a module that stand in no other function."""
    found: list[Function] = []
    holders: list[ast.AST] = [ast.parse(path.read_text())]
    while holders:
        for node in ast.iter_child_nodes(holders.pop()):
            if isinstance(node, Function):
                found.append(node)
            elif not isinstance(node, ast.expr):
                holders.append(node)
    return found


def first_line(function: Function) -> int:
    """The line that Python names as a function's first: that of its decorators."""
    return min([function.lineno, *(each.lineno for each in function.decorator_list)])


def called_once(paths: list[Path]) -> list[str]:
    """Private functions and methods whose name stands at one place beside their definition."""
    names: Counter[str] = Counter()
    private: list[str] = []
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Name | ast.Attribute):
                names[node.id if isinstance(node, ast.Name) else node.attr] += 1
        private += [
            f"{path.relative_to(ROOT)}:{each.name}" for each in functions_of(path) if re.match(r"_[^_]", each.name)
        ]
    defined = Counter(each.rpartition(":")[2] for each in private)
    return [each for each in private if names[name := each.rpartition(":")[2]] == 1 and defined[name] == 1]


def stand_twice(paths: list[Path]) -> list[str]:
    """Names of classes and modules that stand at two places of the package."""
    modules = Counter(path.stem for path in paths if path.stem != "__init__")
    classes = Counter(
        node.name for path in paths for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
    )
    return sorted(name for names in (modules, classes) for name, count in names.items() if count > 1)


def user_commands() -> list[list[str]]:
    """The words of each command of ``USER``."""
    return [["socialx", *shlex.split(line)] for line in USER.strip().splitlines()]


def readme_commands() -> list[list[str]]:
    """The words of each ``socialx``, ``export`` and ``cp`` line of the README, in its order."""
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [line for block in blocks for line in re.findall(r"^\$ (.+)$", block.replace("\\\n", " "), re.MULTILINE)]
    return [words for line in lines if (words := shlex.split(line))[0] in ("socialx", "export", "cp")]


def enter(lists: list[list[list[str]]]) -> list[set[tuple[str, int]]]:
    """File and first line of every function that has been entered at the end of each list of commands."""
    sys.path.insert(0, str(ROOT))
    from typer.testing import CliRunner

    from socialx.cli import app

    entered: set[CodeType] = set()
    found = []

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            entered.add(frame.f_code)

    os.environ.update({f"SOCIALX_{name}": value for name, value in SHORT.items()})
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "examples", Path(folder) / "examples")
        os.chdir(folder)
        threading.setprofile(watch)
        sys.setprofile(watch)
        for commands in lists:
            for words in commands:
                if words[0] == "export":
                    name, _, value = words[1].partition("=")
                    os.environ[name] = value
                elif words[0] == "cp":
                    shutil.copy(*words[1:])
                else:
                    done = CliRunner().invoke(app, words[1:])
                    if done.exit_code:
                        sys.exit(f"$ {shlex.join(words)}\n{done.output}")
            found.append({(code.co_filename, code.co_firstlineno) for code in tuple(entered)})
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        os.chdir(ROOT)
    return found


def share(paths: list[Path], entered: set[tuple[str, int]]) -> float:
    """The share of the function lines of some files that were entered."""
    lengths = {(str(path), first_line(each)): (each.end_lineno or 0) - first_line(each) + 1
               for path in paths for each in functions_of(path)}  # fmt: skip
    return sum(length for place, length in lengths.items() if place in entered) / max(1, sum(lengths.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entered", action="store_true", help="run the README's commands, about a minute")
    parser.add_argument("--list", action="store_true", help="name the private functions with one caller")
    options = parser.parse_args()
    paths = sorted(PACKAGE.rglob("*.py"))
    rooms: dict[str, list[Path]] = {}
    for path in paths:
        inside = path.relative_to(PACKAGE)
        rooms.setdefault(inside.parts[0] if len(inside.parts) > 1 else "(top)", []).append(path)
    entered = enter([user_commands(), readme_commands()]) if options.entered else []
    for room, files in sorted(rooms.items(), key=lambda each: -lines_of(each[1])):
        text = f"{room:12} {len(files):4} files {lines_of(files):7,} lines"
        if entered:
            text += f", {share(files, entered[0]):4.0%} of the function lines entered by one user"
        print(text)
    print(f"socialx/     {len(paths):4} files {lines_of(paths):7,} lines")
    tests = sorted((ROOT / "tests").rglob("*.py"))
    print(f"tests/       {len(tests):4} files {lines_of(tests):7,} lines")
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    print(f"README.md and docs/: {sum(len(page.read_text().split()) for page in pages):,} words")
    once = called_once(paths)
    print(f"private functions that one place calls: {len(once)}")
    print(f"names of classes and modules that stand twice: {', '.join(stand_twice(paths)) or 'none'}")
    if options.list:
        print("\n".join(once))
    for name, places in zip(("one user's", "and the README's"), entered, strict=False):
        print(f"{name} commands enter {share(paths, places):.0%} of the function lines")


if __name__ == "__main__":
    main()
