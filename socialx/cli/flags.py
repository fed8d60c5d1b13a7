"""The arguments and flags of a command: those of its task, from its signature, and those of the settings that it reads.

The signature is parsed, not imported: most tasks import torch, for which neither a help nor a wrong flag has to wait.
"""

from __future__ import annotations

import ast
import inspect
import os
from functools import cache
from importlib import resources
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from socialx import MODULES
from socialx.cli.error_flags import write
from socialx.core import help as task_help
from socialx.core.errors import Argument
from socialx.core.help import Help
from socialx.files.sources.request import ConvertOptions, options
from socialx.settings.layers import PRESETS, ConfigLayers, command_text, settings_here
from socialx.settings.schema import CHOICES, KEYS, SHORT, flag_keys, flag_name

WITH_PRESET = ("train", "profile", "doctor", "config")  # commands that take a preset
LONG = ("train", "profile", "evaluate", "predict")  # whose --help shows some flags, --help-all all
# What is typed for a parameter that takes several types: the first of these.
TYPED = {"bool": bool, "Path": Path, "str": str, "Time": str, "int": int, "float": float}
TYPED_OF_REQUEST = {bool: bool, Path | None: Path, tuple[str, ...]: list[str]}  # of any other: str


def task_parameters(task: str) -> list[inspect.Parameter]:
    """The parameters of a task that have a help, as Typer takes them; none where there is no task of that name.

    The first one, and one without a default, is an argument, any other a flag.  The options of ``ConvertOptions`` come
    before the parameters that a call must name.
    """
    if task not in MODULES:
        return []
    given = _functions(MODULES[task])[task].args
    plain = [*given.posonlyargs, *given.args]
    required = len(plain) - len(given.defaults)
    parameters = []
    for place, (each, default) in enumerate(zip(plain, [*[None] * required, *given.defaults], strict=True)):
        parameters += _of_task(task, each, default, is_argument=place == 0 or default is None)
    parameters += _of_request(task) if given.kwarg and given.kwarg.arg == "options" else []
    for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        parameters += _of_task(task, each, default)
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


def _of_task(task: str, given: ast.arg, default: ast.expr | None, is_argument: bool = False) -> list[inspect.Parameter]:
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
    hints, parameters = get_type_hints(ConvertOptions), []
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


def settings_parameters(command: str) -> list[inspect.Parameter]:
    """``--config``, ``--set`` and a flag for each setting that a command shows, as Typer takes them."""
    left_out = {"preset"} if command not in WITH_PRESET else set()
    if command not in LONG:
        left_out.add("help_all")
    general = [each for each in _GENERAL if each.name not in left_out]
    return general + [_of_setting(key, hidden=command in LONG and key not in SHORT) for key in flag_keys(command)]


def layers_of(command: str, typed: dict[str, Any]) -> ConfigLayers:
    """Take what was typed for ``settings_parameters`` out of the values of a command."""
    flags = {key: typed.pop(_name(key)) for key in flag_keys(command)}
    flags = {key: value for key, value in flags.items() if value is not None}
    config, sets, preset = typed.pop("config"), typed.pop("set_"), typed.pop("preset", None)
    typed.pop("help_all", None)
    return ConfigLayers.read(config or (), os.environ, sets or (), flags, here=settings_here(), preset=preset)


def _name(key: str) -> str:
    return key.replace(".", "__")


def _show_all(context: typer.Context, wanted: bool) -> None:
    """Print the help with all settings, in the order of the tree."""
    if wanted:
        for parameter in context.command.params:
            if getattr(parameter, "hidden", False):
                parameter.hidden = False  # type: ignore[attr-defined]
        typer.echo(context.get_help())
        raise typer.Exit


_PRESET_HELP = "settings that fit together. small: an MLP, for a CPU; medium: the xLSTM; large: a wider one, for a card"
_GENERAL = [
    keyword(
        "config",
        list[Path] | None,
        typer.Option(
            "--config", "-c", metavar="FILE", help="YAML or TOML settings, later over earlier", show_default=False
        ),
    ),
    keyword(
        "set_",
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="any setting, for example --set trainer.max_epochs=5",
            show_default=False,
            autocompletion=lambda incomplete: [f"{key}=" for key in KEYS if key.startswith(incomplete)],
        ),
    ),
    keyword(
        "help_all",
        bool,
        typer.Option("--help-all", help="show all settings and exit", is_eager=True, callback=_show_all),
        default=False,
    ),
    keyword(
        "preset",
        str | None,
        typer.Option("--preset", metavar="|".join(PRESETS), help=_PRESET_HELP, show_default=False),
    ),
]


def _of_setting(key: str, hidden: bool) -> inspect.Parameter:
    field, flag, name = KEYS[key], flag_name(key), _name(key)
    default = "" if field.default is None else f" (default: {command_text(field.default)})"
    text = f"{field.description}{default}"
    if field.annotation is bool:
        both = f"{flag}/--no-{flag.removeprefix('--')}"
        return keyword(name, bool | None, typer.Option(both, help=text, show_default=False, hidden=hidden))
    choices = words_of(key)
    option = typer.Option(
        flag,
        help=text,
        metavar="|".join(choices) if choices else name_of_type(field.annotation),
        show_default=False,
        hidden=hidden,
        autocompletion=(lambda incomplete: [c for c in choices if c.startswith(incomplete)]) if choices else None,
    )
    return keyword(name, str | None, option)


def words_of(key: str) -> list[str]:
    """The words that a setting takes; none where it takes others too."""
    annotation = KEYS[key].annotation
    if key in CHOICES:
        return list(CHOICES[key])
    return [str(word) for word in get_args(annotation)] if get_origin(annotation) is Literal else []


def name_of_type(annotation: Any) -> str:
    """``int``, ``float``, ``path``, ... for a help line."""
    if get_origin(annotation) is Annotated:
        return name_of_type(get_args(annotation)[0])
    if get_origin(annotation) is tuple:
        kind = name_of_type(get_args(annotation)[0])
        return f"{kind},{kind},..."
    kinds = [a for a in get_args(annotation) if a is not NoneType] or [annotation]
    if len(kinds) == 1 and kinds[0] is not annotation:
        return name_of_type(kinds[0])
    return "|".join(getattr(kind, "__name__", str(kind)).lower().replace("str", "text") for kind in kinds)
