"""The arguments and flags of a command, from the signature of the task and from the settings tree.

The signature is parsed rather than imported: most tasks import torch, which a help page can do without.
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Collection
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
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

# The headings of flags in a help, in order; a Help or a setting names its own.
HEADINGS = (
    *("Input format", "Times", "Sensors", "Windows", "Scores", "Data", "Model", "Optimisation", "Hardware"),
    *("Measurement", "Server", "Output", "Fail if", "Other"),
)
PANELS = {"data": "Data", "loader": "Hardware", "model": "Model", "pooling": "Model", "trainer": "Optimisation"}
PANELS |= {"profile": "Measurement"}  # of the settings of a section
WITH_PRESET = ("train", "profile", "doctor", "config")  # commands that take a preset
# The type on the command line; the first match counts.
TYPED = {"bool": bool, "Path": Path, "str": str, "Time": str, "int": int, "float": float}
TYPED_OF_REQUEST = {bool: bool, Path | None: Path, tuple[str, ...]: list[str]}  # of any other: str


def task_parameters(task: str) -> list[inspect.Parameter]:
    """Return the task parameters that have a Help; an empty list for an unknown task.

    The first parameter, and any without a default, is an argument and positional, and the rest are flags.  The options
    of ``ConvertOptions`` come before keyword-only parameters.
    """
    if task not in MODULES:
        return []
    arguments = _functions(MODULES[task])[task].args
    plain = [*arguments.posonlyargs, *arguments.args]
    required = len(plain) - len(arguments.defaults)
    parameters = []
    for index, (argument, default) in enumerate(zip(plain, [*[None] * required, *arguments.defaults], strict=True)):
        parameters += _parse_arg(argument, default, is_argument=index == 0 or default is None)
    if arguments.kwarg and arguments.kwarg.arg == "options":
        hints = get_type_hints(ConvertOptions)
        for field, option in options(task).items():
            kind = TYPED_OF_REQUEST.get(hints[field], str)
            parameters.append(keyword(option.name, kind, option, False if kind is bool else None))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parameters += _parse_arg(argument, default)
    return parameters


@cache
def _functions(module: str) -> dict[str, ast.FunctionDef]:
    package, _, name = module.rpartition(".")
    source = resources.files(package).joinpath(f"{name}.py").read_text(encoding="utf-8")
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


def _parse_arg(arg: ast.arg, default: ast.expr | None, is_argument: bool = False) -> list[inspect.Parameter]:
    """Return a task argument's parameter, with the Help, as a list; empty without a Help."""
    match arg.annotation:
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[hint, ast.Name(id=name)])):
            option = getattr(task_help, name)
        case ast.Subscript(
            value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[hint, ast.Call(func=ast.Name(id=name)) as call])
        ):
            named = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
            option = getattr(task_help, name)(*map(ast.literal_eval, call.args), **named)
        case _:
            return []
    names = {node.id for node in ast.walk(hint) if isinstance(node, ast.Name)}
    kind: Any = next(kind for name, kind in TYPED.items() if name in names)
    if "Sequence" in names and (is_argument or isinstance(hint, ast.Subscript)):
        kind = list[kind]
    value = inspect.Parameter.empty if default is None else ast.literal_eval(default)
    made = keyword(arg.arg, kind, option, None if value in ((), "") else value)
    return [made.replace(kind=inspect.Parameter.POSITIONAL_ONLY) if is_argument else made]


def for_typer(task: str, given: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter with a Help as a Typer argument or flag; a parameter with a Typer option stays."""
    kind, info = get_args(given.annotation)
    if isinstance(info, Help):
        kind = kind | None if given.default is None else kind
        if given.kind is inspect.Parameter.POSITIONAL_ONLY:
            info = typer.Argument(metavar=info.metavar, help=info.help)
        else:
            info = _option(
                write(task, Argument(given.name)),
                help=info.help + (f" (default: {given.default})" if given.default else ""),
                metavar=info.metavar or None,
                rich_help_panel=info.panel,
            )
    return keyword(given.name, kind, info, given.default)


def keyword(name: str, kind: Any, option: Any, default: Any = None) -> inspect.Parameter:
    """Return a parameter for the function that Typer calls."""
    parameter_kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, parameter_kind, default=default, annotation=Annotated[kind, option])


def settings_parameters(command: str) -> list[inspect.Parameter]:
    """Return ``--config``, ``--set`` and a flag for each setting that a command shows, for Typer."""
    layers = _LAYERS if command in WITH_PRESET else _LAYERS[:-1]
    return layers + [_setting_parameter(key, hidden=key not in SHORT) for key in flag_keys(command)]


def take_layers(command: str, typed: dict[str, Any]) -> ConfigLayers:
    """Pop the typed settings from the values of a command, and return ConfigLayers."""
    flags = {key: typed.pop(_name(key)) for key in flag_keys(command)}
    flags = {key: value for key, value in flags.items() if value is not None}
    config, sets, preset = typed.pop("config"), typed.pop("set_"), typed.pop("preset", None)
    layers = ConfigLayers.read(config or (), os.environ, sets or (), flags, settings_here())
    return replace(layers, preset=preset)


def _name(key: str) -> str:
    return key.replace(".", "__")


def _show_all(context: typer.Context, wanted: bool) -> None:
    """Print the help with all settings, in tree order."""
    if wanted:
        hidden: list[Any] = [parameter for parameter in context.command.params if getattr(parameter, "hidden", False)]
        for parameter in hidden:
            parameter.hidden = False
        typer.echo(context.get_help())
        for parameter in hidden:
            parameter.hidden = True
        raise typer.Exit


def _option(*flags: str, words: Collection[str] = (), **options: Any) -> Any:
    """Return a Typer option that hides the default; words: what a shell completes."""
    completion = (lambda incomplete: [word for word in words if word.startswith(incomplete)]) if words else None
    return typer.Option(*flags, show_default=False, autocompletion=completion, **options)


_CONFIG_HELP, _SET_HELP = (
    "YAML or TOML settings, later over earlier",
    "any setting, for example --set trainer.max_epochs=5",
)
_PRESET_HELP = "mlp-small trains on a CPU; xlstm-large is wider than xlstm-small, for a GPU"
_LAYERS = [
    keyword("config", list[Path] | None, _option("--config", "-c", metavar="FILE", help=_CONFIG_HELP)),
    keyword(
        "set_",
        list[str] | None,
        _option("--set", metavar="KEY=VALUE", help=_SET_HELP, words=[f"{key}=" for key in KEYS]),
    ),
    keyword(
        "preset",
        str | None,
        _option("--preset", metavar="|".join(PRESETS), help=_PRESET_HELP, rich_help_panel="Model"),
    ),
]
# The flags of every command.
GENERAL = [
    keyword("verbose", bool, typer.Option("--verbose", "-v", help="print details too"), default=False),
    keyword("quiet", bool, typer.Option("--quiet", "-q", help="print errors and results alone"), default=False),
    keyword(
        "help_all",
        bool,
        typer.Option("--help-all", help="show every flag and exit", is_eager=True, callback=_show_all),
        default=False,
    ),
]


def _setting_parameter(key: str, hidden: bool) -> inspect.Parameter:
    """Return the Typer parameter for a setting by dotted key; hidden: left out of the help."""
    field, flag = KEYS[key], flag_name(key)
    unset = field.default in (None, ()) or field.default is False
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    shown: dict[str, Any] = {
        "help": f"{field.description}" + ("" if unset else f" (default: {command_text(field.default)})"),
        "rich_help_panel": extra["panel"] or PANELS[key.partition(".")[0]],
        "hidden": hidden,
    }
    if field.annotation is bool:
        return keyword(_name(key), bool | None, _option(f"{flag}/--no-{flag.removeprefix('--')}", **shown))
    option = _option(flag, metavar=metavar(key), words=setting_choices(key), **shown)
    return keyword(_name(key), str | None, option)


def setting_choices(key: str) -> list[str]:
    """Return the words that a setting accepts, such as on and off; an empty list for a number or free text."""
    annotation = KEYS[key].annotation
    if key in CHOICES:
        return list(CHOICES[key])
    return [str(word) for word in get_args(annotation)] if get_origin(annotation) is Literal else []


NOUNS = {"trainer.device": "DEVICE", "trainer.init_from": "RUN", "trainer.teacher": "RUN", "trainer.run_dir": "FOLDER"}


def metavar(key: str) -> str:
    """Return the placeholder for a setting in a help: its words, or a noun such as FILE."""
    annotation, words = KEYS[key].annotation, setting_choices(key)
    types = _types(annotation)
    nouns = ((Path, "FILE"), (float, "X"), (int, "N"))
    noun = NOUNS.get(key) or next((noun for kind, noun in nouns if kind in types), "NAME")
    return "|".join(words) or (f"{noun},{noun}" if tuple in types else noun)


def _types(annotation: Any) -> set[Any]:
    origin, inner = get_origin(annotation), get_args(annotation)
    return {origin or annotation}.union(*map(_types, inner[:1] if origin is Annotated else inner))
