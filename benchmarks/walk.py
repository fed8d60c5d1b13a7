"""How a command runs through the package: which functions it enters, file by file, in order.

    python benchmarks/walk.py train -c examples/demo.yaml --data demo/metr_la.h5 --run-dir runs/walk --max-epochs 1
    python benchmarks/walk.py --show predict demo/run

Every function counts once, where it is first entered; neighbours of one file are one stay.  A climb is a stay in a
room that stands above the one before, in the import order of docs/architecture.md; the rooms through which a file
becomes batches count as one floor.  Left out are

- the ground floor, which is the first two lines of that order (core and settings), and what the door does: the display
  of progress and the spelling of messages;
- properties, which read a field, and functions inside functions;
- what is entered inside the loops of training and scoring: they go round by nature.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).parent.parent
PACKAGE = str(ROOT / "socialx") + os.sep
# The rooms through which a file becomes batches: steps go back and forth between them by nature.
READING = {"data", "model", "files.store", "files.sources", "dataset", "drawing", "inspection"}
LOOPS = {("training.loop", "fit"), ("scoring.scoring_pass", "run_metrics")}
OPTIMIZED = 0x1  # set in the code of functions, not in that of classes and modules
Stay = tuple[str, list[str]]


def order() -> list[set[str]]:
    """The import order of docs/architecture.md, the lowest line first."""
    text = (ROOT / "docs/architecture.md").read_text()
    block = re.search(r"```text import order\n(.*?)```", text, re.DOTALL)
    assert block, "docs/architecture.md has no import order"
    return [set(line.split()) for line in block.group(1).splitlines()]


def room(module: str) -> str:
    """The room of a module: its folder in the import order, or the module itself."""
    folder = ".".join(module.split(".")[:2])
    return folder if module.startswith("files.") else module.split(".")[0]


def rank(module: str, lines: list[set[str]]) -> int:
    """The line of a module in the import order."""
    return next(number for number, names in enumerate(lines) if room(module) in names)


def name_of(code: CodeType) -> str | None:
    """The module of a function of the package; None for anything else."""
    if not code.co_filename.startswith(PACKAGE) or not code.co_flags & OPTIMIZED or code.co_name.startswith("<"):
        return None  # other code, a class or module, a lambda or comprehension
    return code.co_filename[len(PACKAGE) : -3].replace(os.sep, ".").removesuffix(".__init__")


def is_small(module: str, code: CodeType) -> bool:
    """Whether this is a property or a function inside a function."""
    holder, _, name = code.co_qualname.rpartition(".")
    if holder.endswith("<locals>"):
        return True
    owner = getattr(sys.modules.get(f"socialx.{module}"), holder, None) if holder else None
    return isinstance(vars(owner).get(name), (property, cached_property)) if owner is not None else False


def walk(arguments: list[str]) -> list[Stay]:
    """Run a command and note where it goes."""
    sys.path.insert(0, str(ROOT))
    from typer.testing import CliRunner

    from socialx.cli import app

    for path in (ROOT / "socialx").rglob("*.py"):  # what modules do when they are imported is no part of the walk
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if module != "socialx.__main__":
            import_module(module)
    ground = order()[0] | order()[1] | {"__init__", "files", "cli.progress_bars", "cli.error_flags"}
    seen: set[CodeType] = set()
    stays: list[Stay] = []
    inside = 0

    def watch(frame: FrameType, event: str, _: Any) -> None:
        nonlocal inside
        code = frame.f_code
        if event not in ("call", "return") or (module := name_of(code)) is None:
            return
        loops = (module, code.co_qualname) in LOOPS
        if event == "return":
            inside -= loops
            return
        counts = not {module, room(module)} & ground and not is_small(module, code)
        if counts and not inside and code not in seen:
            seen.add(code)
            if not stays or stays[-1][0] != module:
                stays.append((module, []))
            stays[-1][1].append(code.co_qualname)
        inside += loops

    sys.setprofile(watch)
    done = CliRunner().invoke(app, arguments)
    sys.setprofile(None)
    if done.exit_code:
        sys.exit(done.output)
    return stays


def climbs(stays: list[Stay]) -> int:
    """How often a stay is in a room above the one before."""
    lines = order()
    ranks = [rank("data" if room(module) in READING else module, lines) for module, _ in stays]
    return sum(after > before for before, after in itertools.pairwise(ranks))


def main() -> None:
    arguments = sys.argv[1:]
    show = "--show" in arguments
    stays = walk([word for word in arguments if word != "--show"])
    if show:
        for module, functions in stays:
            print(f"{module}: {', '.join(functions)}")
    functions, files = sum(len(names) for _, names in stays), len({module for module, _ in stays})
    build = sum(module == "tasks.build" for module, _ in stays)
    print(f"{functions} functions, {len(stays)} stays in {files} files")
    print(f"{climbs(stays)} climbs, tasks/build.py entered {build}x")


if __name__ == "__main__":
    main()
