"""The arguments and flags of a command, from the signature of its task.

The signature is parsed, not imported: most tasks import torch, for which neither a help nor a wrong flag has to wait.
"""

from __future__ import annotations

import ast
import inspect
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from socialx import MODULES, task_help
from socialx.cli.error_flags import write
from socialx.errors import Argument
from socialx.files.convert_options import Request, options
from socialx.task_help import Help

# What is typed for a parameter that takes several types: the first of these.
TYPED = {"bool": bool, "Path": Path, "str": str, "Time": str, "int": int, "float": float}
TYPED_OF_REQUEST = {bool: bool, Path | None: Path, tuple[str, ...]: list[str]}  # of any other: str


def task_parameters(task: str) -> list[inspect.Parameter]:
    """The parameters of a task that have a help, as Typer takes them; none where there is no task of that name.

    The first one, and one without a default, is an argument, any other a flag.  The options of ``Request`` come before
    the parameters that a call must name.
    """
    if task not in MODULES:
        return []
    given = _functions(MODULES[task])[task].args
    plain = [*given.posonlyargs, *given.args]
    required = len(plain) - len(given.defaults)
    parameters = []
    for place, (each, default) in enumerate(zip(plain, [*[None] * required, *given.defaults], strict=True)):
        parameters += _parameter(task, each, default, is_argument=place == 0 or default is None)
    parameters += _of_request(task) if given.kwarg and given.kwarg.arg == "options" else []
    for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        parameters += _parameter(task, each, default)
    return parameters


def own_parameter(task: str, given: inspect.Parameter) -> inspect.Parameter:
    """The parameter that a command has beside those of its task, with a help, or as Typer takes it already."""
    kind, known = get_args(given.annotation)
    if isinstance(known, Help):
        return _typed(task, given.name, kind, given.default, known)
    return keyword(given.name, kind, known, given.default)


@cache
def _functions(module: str) -> dict[str, ast.FunctionDef]:
    package, _, name = module.rpartition(".")
    source = resources.files(package).joinpath(f"{name}.py").read_text(encoding="utf-8")
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


def _parameter(
    task: str, given: ast.arg, default: ast.expr | None, is_argument: bool = False
) -> list[inspect.Parameter]:
    """The parameter, if it has a help."""
    match given.annotation:
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[hint, ast.Name(id=name)])):
            known = getattr(task_help, name)
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[hint, ast.Call() as call])):
            known = Help(*map(ast.literal_eval, call.args))
        case _:
            return []
    names = {node.id for node in ast.walk(hint) if isinstance(node, ast.Name)}
    kind: Any = next(kind for name, kind in TYPED.items() if name in names)
    if "Sequence" in names and (is_argument or isinstance(hint, ast.Subscript)):
        kind = list[kind]
    if default is None:
        return [_typed(task, given.arg, kind, inspect.Parameter.empty, known, is_argument)]
    value = ast.literal_eval(default)
    return [_typed(task, given.arg, kind, None if value in ((), "") else value, known, is_argument)]


def _of_request(task: str) -> list[inspect.Parameter]:
    hints, parameters = get_type_hints(Request), []
    for field, option in options(task).items():
        kind = TYPED_OF_REQUEST.get(hints[field], str)
        parameters.append(_typed(task, option.name, kind, False if kind is bool else None, option))
    return parameters


def _typed(task: str, name: str, kind: Any, default: Any, known: Help, is_argument: bool = False) -> inspect.Parameter:
    """A parameter of Typer."""
    option: typer.models.ParameterInfo
    if is_argument:
        option = typer.Argument(metavar=known.metavar, help=known.help)
    else:
        shown = f" (default: {default})" if default else ""
        flag, text = write(task, Argument(name)), f"{known.help}{shown}"
        option = typer.Option(flag, metavar=known.metavar or None, help=text, show_default=False)
    return keyword(name, kind | None if default is None else kind, option, default)


def keyword(name: str, kind: Any, option: Any, default: Any = None) -> inspect.Parameter:
    """A parameter of the function that Typer calls."""
    place = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, place, default=default, annotation=Annotated[kind, option])
