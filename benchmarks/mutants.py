"""How many small faults of the package the fast tests catch: some are drawn, each stands alone in a copy of the tree.

The test files of its room that enter its function are run, the shortest first; those of all rooms where none does.
"""

import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections import defaultdict
from pathlib import Path

from benchmarks.common import RESULTS, parser, write

FAULTS, SEED, FILES, SECONDS = 100, 0, 10, "600"  # how many; the most test files of one, and the time of each
SWAPPED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "not": ""}
SWAPPED |= {"and": "or", "or": "and", "+": "-"}
TRACER = """import os, sys, threading, time
def note(frame, event, argument, seen=set(), tree=os.environ["TREE"]):
    code = frame.f_code
    if code.co_filename.startswith(tree + "/socialx/"):
        test = os.environ.get("PYTEST_CURRENT_TEST", "").split(":")[0]
        if test and (test, id(code)) not in seen:
            seen.add((test, id(code)))
            lines = [line for *_, line in code.co_lines() if line]
            print(test, time.time(), code.co_filename, min(lines), max(lines), file=open(tree + "/entered", "a"))
sys.settrace(note)
threading.settrace(note)
"""


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


def tested(tree: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    """Tests in a tree, which are stopped where one of their files takes too long."""
    command = [sys.executable, "-m", "pytest", "-n0", "-pno:cacheprovider", "--timeout=0", "-rfE", *tests]
    command = ["timeout", "-sKILL", SECONDS, *command, "-x"] if tests else command
    environment = {**os.environ, "PYTHONPATH": str(tree), "TREE": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True)


def main() -> None:
    parser(__doc__).parse_args()
    draw, times, entered, possible, found = random.Random(SEED), {}, defaultdict(list), defaultdict(list), []
    with tempfile.TemporaryDirectory() as folder:
        ignored = shutil.ignore_patterns(".*", "__pycache__")
        tree = shutil.copytree(Path(__file__).parents[1], Path(folder) / "tree", ignore=ignored)
        (tree / "sitecustomize.py").write_text(TRACER)
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+\.py)", tested(tree).stdout, re.MULTILINE)
        (tree / "sitecustomize.py").unlink()
        for test, second, path, *lines in map(str.split, (tree / "entered").read_text().splitlines()):
            if test not in failed:  # without a fault
                times.setdefault(test, []).append(float(second))
                entered[path].append((*map(int, lines), test))
        for path in sorted((tree / "socialx").rglob("*.py")):
            for first, last, new in faults(path.read_text().splitlines(keepends=True)):
                possible[path, first].append((last, new))
        for path, first in draw.sample(list(possible), FAULTS):
            last, new = draw.choice(possible[path, first])
            begins = max((begin for begin, end, _ in entered[str(path)] if begin <= first <= end), default=None)
            tests = {test for begin, _, test in entered[str(path)] if begins in (begin, None)}
            tests = {test for test in tests if Path(test).parts[1] in path.parts} or tests
            text = path.read_text()
            lines = text.splitlines(keepends=True)
            path.write_text("".join([*lines[: first - 1], new, *lines[last:]]))
            order = sorted(tests, key=lambda test: max(times[test]) - min(times[test]))[:FILES]
            by = next((test for test in order if tested(tree, test).returncode not in (0, 5)), None)
            path.write_text(text)
            place = f"{path.relative_to(tree)}:{first}"
            found.append({"at": place, "was": lines[first - 1].strip(), "is": new.strip(), "caught by": by})
            print(found[-1], flush=True)
    caught = sum(each["caught by"] is not None for each in found)
    write(RESULTS / "mutants.json", {"drawn": len(found), "caught": caught, "left out": failed, "faults": found})


if __name__ == "__main__":
    main()
