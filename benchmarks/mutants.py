"""How many small faults of the package the fast tests catch: each stored fault stands alone in a copy of the tree.

    python -m benchmarks.mutants                  # the 200 faults of results/faults.json, one process a core
    python -m benchmarks.mutants --draw           # draw them anew, over all modules

First the fast tests run with coverage, which says what each test costs and which lines it runs.  For a fault then only
tests that run its line are run, those of its room first, the cheapest before dearer ones, until one fails.  One process
has the libraries in memory, and forks for each fault.
"""

import ast
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter, defaultdict
from importlib import import_module
from pathlib import Path

import coverage
import pytest

FAULTS, SEED, SECONDS = 200, 0, 20  # of CPU: what tests of a fault's room may cost, and those of other rooms again
ROOT = Path(__file__).parents[1]
STORED, FOUND = (ROOT / f"benchmarks/results/{name}.json" for name in ("faults", "mutants"))
LIBRARIES = "torch.utils.flop_counter pandas h5py pyarrow.parquet pydantic typer.testing rich.progress jinja2 yaml"
LIBRARIES += " matplotlib.figure safetensors requests hypothesis"
SWAPPED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "not": ""}
SWAPPED |= {"and": "or", "or": "and", "+": "-"}


class Record:
    """A plugin of pytest in each process of the suite: a context of coverage a test, what it costs, what fails."""

    def __init__(self) -> None:
        self.watch = coverage.Coverage(source=["socialx"], data_suffix=True, config_file=False)
        self.watch.start()
        self.failed: set[str] = set()
        self.costs: list[tuple[str, float]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        began = sum(os.times()[:4])
        self.watch.switch_context(item.nodeid)
        result = yield
        self.watch.switch_context("")
        self.costs.append((item.nodeid, sum(os.times()[:4]) - began))
        return result

    def pytest_runtest_logreport(self, report):
        self.failed.update([report.nodeid] if report.failed else [])

    def pytest_sessionfinish(self):
        self.watch.stop()
        self.watch.save()
        Path(f".costs.{os.getpid()}").write_text(json.dumps([self.costs, sorted(self.failed)]))


def pytest_configure(config) -> None:
    config.pluginmanager.register(Record())


def faults(lines: list[str]):
    """Each fault that a module may get: its first line and its last, and what stands there then."""
    messages = set()
    for node in ast.walk(ast.parse("".join(lines))):
        match node:
            case ast.Return(value=ast.expr()):
                yield node.lineno, node.end_lineno, " " * node.col_offset + "return None\n"
            case ast.AugAssign() | ast.Raise() | ast.Expr(ast.Call()) | ast.Assign([ast.Attribute() | ast.Subscript()]):
                yield node.lineno, node.end_lineno, " " * node.col_offset + "pass\n"
        if isinstance(node, ast.Raise):
            messages |= {*range(node.lineno, node.end_lineno + 1)}
    for token in tokenize.generate_tokens(iter(lines).__next__):
        (row, first), (_, last) = token.start, token.end
        number = token.type == tokenize.NUMBER
        new = repr(ast.literal_eval(token.string) + 1) if number else SWAPPED.get(token.string)
        if new is not None and row not in messages and not token.line.startswith(" not ", last):
            yield row, row, lines[row - 1][:first] + new + lines[row - 1][last:]


def draw() -> list[dict]:
    """Draw the faults: a line of the package, then what may go wrong in it."""
    draws, possible = random.Random(SEED), defaultdict(list)
    for path in sorted((ROOT / "socialx").rglob("*.py")):
        lines = path.read_text().splitlines(keepends=True)
        for first, last, new in faults(lines):
            possible[str(path.relative_to(ROOT)), first].append(("".join(lines[first - 1 : last]), new))
    chosen = [(*place, *draws.choice(possible[place])) for place in draws.sample(sorted(possible), FAULTS)]
    return [dict(zip(("file", "line", "old", "new"), each, strict=True)) for each in sorted(chosen)]


def recorded(tree: Path) -> tuple[dict[str, float], dict[str, dict[int, set[str]]]]:
    """Run the tests in a tree: seconds of each that passes, and by file and line the tests that run it."""
    command = [sys.executable, "-m", "pytest", "-n", str(os.cpu_count()), "-pbenchmarks.mutants", "--timeout=600"]
    subprocess.run(command, cwd=tree, env=os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"})
    seconds: dict[str, float] = {}
    for costs, failed in (json.loads(path.read_text()) for path in tree.glob(".costs.*")):
        seconds |= {test: cost for test, cost in costs if test not in failed}
        print("left out, since they fail without a fault:", failed, flush=True)
    entered: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for part in tree.glob(".coverage.*"):
        data = coverage.CoverageData(basename=str(part))
        data.read()
        for path in data.measured_files():
            for line, tests in data.contexts_by_lineno(path).items():
                entered[str(Path(path).relative_to(tree))][line] |= tests & seconds.keys()
    return seconds, entered


def tests_of(fault: dict, seconds: dict[str, float], entered: dict[str, dict[int, set[str]]]) -> list[str]:
    """Return tests that run the lines of a fault; of a line that only an import runs, those that run its module."""
    lines, order = entered[fault["file"]], []
    here = range(fault["line"], fault["line"] + fault["old"].count("\n"))
    tests = set().union(*(lines[n] for n in here)) or set().union(*lines.values())
    for own in (True, False):
        room = [test for test in tests if (Path(test).parts[1] in Path(fault["file"]).parts) == own]
        left = SECONDS
        for place, test in enumerate(sorted(room, key=seconds.__getitem__)):
            left -= seconds[test]
            order += [test] if left > 0 or place == 0 else []
    return order


def located(fault: dict) -> dict:
    """Return a fault with the line where its text stands now; 0 where that text is gone or stands twice."""
    path = ROOT / fault["file"]
    text = path.read_text() if path.exists() else ""
    before = "".join(text.splitlines(keepends=True)[: fault["line"] - 1])
    if text[len(before) :].startswith(fault["old"]):
        return fault
    here = text.partition(fault["old"])[0].count("\n") + 1
    return fault | {"line": here if text.count(fault["old"]) == 1 else 0}


def attempt(tree: Path, fault: dict, tests: list[str]) -> str:
    """Run tests in a copy with a fault, in a process of their own."""
    if not fault["line"] or not tests:
        return "no test" if fault["line"] else "gone"
    path = tree / fault["file"]
    text, stat = path.read_text(), path.stat()
    before = "".join(text.splitlines(keepends=True)[: fault["line"] - 1])
    path.write_text(before + fault["new"] + text[len(before) + len(fault["old"]) :])
    if not (child := os.fork()):
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.dup2(1, 2)
        os._exit(pytest.main(["-n0", "-pno:cacheprovider", "--timeout=100", "-x", "--tb=no", *tests]))
    status = os.waitpid(child, 0)[1] >> 8
    path.write_text(text)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # compiled as before
    return {0: "survived", 4: "no such test"}.get(status, "caught")


def worker(tree: Path, waiting, found) -> None:
    """Try the faults that wait, in a copy of the tree."""
    own = shutil.copytree(tree, tree.with_name(f"tree{os.getpid()}"))
    os.environ |= {"PYTHONPATH": str(own), "OMP_NUM_THREADS": "1"}
    sys.dont_write_bytecode = bool(os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1"))
    os.chdir(own)
    sys.path[:0] = [str(own)]
    del sys.modules["benchmarks"]
    for name in LIBRARIES.split():
        import_module(name)
    while (each := waiting.get()) is not None:
        found.put({**each[0], "tests": len(each[1]), "came": attempt(own, *each)})


def main() -> None:
    if "--draw" in sys.argv:
        STORED.write_text(json.dumps(draw(), indent=1) + "\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        tree = shutil.copytree(ROOT, Path(folder) / "tree", ignore=shutil.ignore_patterns(".[a-fh-z]*", ".git"))
        record, stored = recorded(tree), [*map(located, json.loads(STORED.read_text()))]
        fork, processes = multiprocessing.get_context("fork"), os.cpu_count() or 1
        waiting, found, tried = fork.Queue(), fork.Queue(), []
        for each in [*((fault, tests_of(fault, *record)) for fault in stored), *[None] * processes]:
            waiting.put(each)
        for _ in range(processes):
            fork.Process(target=worker, args=(tree, waiting, found)).start()
        for _ in stored:
            tried.append(found.get())
            print(json.dumps(tried[-1]), flush=True)
    counts = Counter(each["came"] for each in tried)
    print(dict(counts), f"{counts['caught'] / max(1, len(tried) - counts['gone']):.1%}", sep="\n")
    tried.sort(key=lambda each: (each["file"], each["line"]))
    FOUND.write_text(json.dumps({**counts, "tried": tried}, indent=1) + "\n")


if __name__ == "__main__":
    main()
