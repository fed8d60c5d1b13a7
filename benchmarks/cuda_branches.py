"""The lines of the package that only a CUDA device runs, and which of them no test enters on the pseudo device.

    python benchmarks/cuda_branches.py                    # about 3 minutes on one core
    python benchmarks/cuda_branches.py --all              # those that a test enters, too

A line counts where a condition around it asks for CUDA, or where it calls ``torch.cuda``.  The tests of tests/gpu run
on the device of tests/pseudo_cuda, with every line of the package traced.  What is left is what a card alone can show,
or what lacks a test.
"""

from __future__ import annotations

import ast
import atexit
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGE = str(ROOT / "socialx") + os.sep
ENTERED = "CUDA_BRANCHES"  # the environment's name of the folder that tests write to


def asks_for_cuda(test: ast.expr) -> bool:
    """Whether a condition compares with "cuda", or reads ``is_cuda``."""
    words = {node.value for node in ast.walk(test) if isinstance(node, ast.Constant)}
    return "cuda" in words or any(isinstance(node, ast.Attribute) and node.attr == "is_cuda" for node in ast.walk(test))


def is_other(test: ast.expr) -> bool:
    """Whether the condition holds where the device is no CUDA device."""
    return any(isinstance(node, ast.NotEq | ast.Not) for node in ast.walk(test))


def lines_of(source: str) -> set[int]:
    """The lines of statements that only CUDA runs."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.If) and asks_for_cuda(node.test):
            body = node.orelse if is_other(node.test) else node.body
            found |= {each.lineno for part in body for each in ast.walk(part) if isinstance(each, ast.stmt)}
        elif isinstance(node, ast.stmt) and not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.If | ast.With):
            names = {ast.unparse(each) for each in ast.walk(node) if isinstance(each, ast.Attribute)}
            if "torch.cuda" in names and not isinstance(node, ast.AnnAssign | ast.Try | ast.For):
                found.add(node.lineno)
    return found


def candidates() -> dict[str, set[int]]:
    """The lines that only CUDA runs, by file."""
    found = {str(path): lines_of(path.read_text()) for path in sorted((ROOT / "socialx").rglob("*.py"))}
    return {path: lines for path, lines in found.items() if lines}


def trace(folder: str) -> None:
    """Note every line of the package that this process enters, and write them at its end."""
    seen: dict[str, set[int]] = defaultdict(set)

    def watch(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            seen[frame.f_code.co_filename].add(frame.f_lineno)
        return watch

    def write() -> None:
        text = json.dumps({path: sorted(lines) for path, lines in seen.items()})
        (Path(folder) / f"{os.getpid()}.json").write_text(text)

    atexit.register(write)
    threading.settrace(watch)
    sys.settrace(watch)


def main() -> None:
    entered: dict[str, set[int]] = defaultdict(set)
    with tempfile.TemporaryDirectory() as folder:
        for path in sorted((ROOT / "tests/gpu").glob("test_*.py")):
            plugins = ["-p", "tests.pseudo_cuda.device", "-p", "benchmarks.cuda_branches", "-p", "no:cacheprovider"]
            command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "--timeout", "900", *plugins, str(path)]
            done = subprocess.run(
                command, cwd=ROOT, env={**os.environ, ENTERED: folder}, capture_output=True, text=True
            )
            print(f"{path.name}: {done.stdout.strip().splitlines()[-1]}", file=sys.stderr)
        for file in Path(folder).glob("*.json"):
            for name, lines in json.loads(file.read_text()).items():
                entered[name].update(lines)
    asked, missed = candidates(), 0
    for name, lines in asked.items():
        text = Path(name).read_text().splitlines()
        for line in sorted(lines):
            new = line not in entered[name]
            missed += new
            if new or "--all" in sys.argv:
                print(f"{' ' if new else '+'} {os.path.relpath(name, ROOT)}:{line}: {text[line - 1].strip()}")
    print(
        f"{sum(map(len, asked.values()))} lines that only CUDA runs, {missed} of them in no test of the pseudo device"
    )


if os.environ.get(ENTERED) and __name__ != "__main__":
    trace(os.environ[ENTERED])
if __name__ == "__main__":
    main()
