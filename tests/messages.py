"""Every message of the package, by its code: ``python -m tests.messages`` writes tests/messages.txt, read as a diff.

A sentence stands as it is written in the source, with the names of what it quotes in braces.
"""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from tests.commands import ROOT
from tests.test_architecture import PATHS, tree

TEXTS = ROOT / "tests/messages.txt"
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\.([a-z0-9]+(-[a-z0-9]+)*|\{.+\})")
MADE_HERE = "core.errors"  # where messages are taken apart and put together
BASES = {"SocialxError", "Message", "fall_back"}


@cache
def makers() -> set[str]:
    """The names that make a message: errors with their subclasses, messages and fallbacks."""
    names = set(BASES)
    classes = [node for module in PATHS for node in ast.walk(tree(module)) if isinstance(node, ast.ClassDef)]
    while found := {kind.name for kind in classes if {ast.unparse(base) for base in kind.bases} & names} - names:
        names |= found
    return names


def calls() -> list[tuple[str, ast.FunctionDef | None, ast.Call]]:
    """Each call that makes a message: the module, the innermost function and the call."""
    found: list[tuple[str, ast.FunctionDef | None, ast.Call]] = []

    def walk(path: str, node: ast.AST, function: ast.FunctionDef | None) -> None:
        for child in ast.iter_child_nodes(node):
            inside = child if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
            if isinstance(child, ast.Call) and ast.unparse(child.func) in makers():
                found.append((path, function, child))  # type: ignore[arg-type]
            walk(path, child, inside)  # type: ignore[arg-type]

    for module in PATHS:
        if module != MADE_HERE:
            walk(module, tree(module), None)
    return found


def text(node: ast.expr, function: ast.FunctionDef | None, line: int = 0) -> list[str]:
    """A text as a reader sees it, in each form; of a name what the function gave it last before ``line``."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return ["".join(map(_part, node.values))]
    if isinstance(node, ast.IfExp):
        return [*text(node.body, function, line), *text(node.orelse, function, line)]
    if isinstance(node, ast.Name) and function is not None:
        assigned = [
            each.value
            for each in ast.walk(function)
            if isinstance(each, ast.Assign) and each.lineno < line
            if any(ast.unparse(target) == node.id for target in each.targets)
        ]
        if assigned:
            return text(max(assigned, key=lambda value: value.lineno), None)
    return [f"{{{ast.unparse(node)}}}"]


def _part(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    assert isinstance(node, ast.FormattedValue)
    return f"{{{ast.unparse(node.value)}}}"


def code(call: ast.Call) -> str:
    """The code that a call gives its message; empty where it hands on the code of another message."""
    first = call.args[0] if call.args else call
    return text(first, None)[0] if isinstance(first, ast.Constant | ast.JoinedStr) else ""


def listing() -> str:
    """Return the list of messages: a code, and below it each sentence and what to try."""
    by_code: dict[str, list[str]] = defaultdict(list)
    for _, function, call in calls():
        if not code(call):
            continue
        problem, remedy = (
            text(call.args[place], function, call.lineno) if place < len(call.args) else [""] for place in (2, 3)
        )
        lines = by_code[code(call)]
        for line in [*problem, *(f"try: {one}" for one in remedy if one)]:
            if line and line not in lines:
                lines.append(line)
    return "".join(f"{name}: {line}\n" for name, lines in sorted(by_code.items()) for line in lines)


def main(path: Path = TEXTS) -> None:
    """Write the list."""
    path.write_text(listing())


if __name__ == "__main__":
    main()
