"""The arguments and flags of a command, from the signature of the task and from the settings tree.

The signature is parsed rather than imported: most tasks import torch, which a help page can do without.
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Iterable
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

WITH_PRESET = ("train", "profile", "doctor", "config")  # commands that take a preset
# The type on the command line; the first match counts.
TYPED = {"bool": bool, "Path": Path, "str": str, "Time": str, "int": int, "float": float}
TYPED_OF_REQUEST = {bool: bool, Path | None: Path, tuple[str, ...]: list[str]}  # of any other: str


def task_parameters(task: str) -> list[inspect.Parameter]:
    """Return the task parameters that have a Help, for Typer; an empty list for an unknown task.

    The first parameter, and any without a default, is an argument, and the rest are flags.  The options of
    ``ConvertOptions`` come before keyword-only parameters.
    """
    if task not in MODULES:
        return []
    arguments = _functions(MODULES[task])[task].args
    plain = [*arguments.posonlyargs, *arguments.args]
    required = len(plain) - len(arguments.defaults)
    parameters = []
    for index, (argument, default) in enumerate(zip(plain, [*[None] * required, *arguments.defaults], strict=True)):
        parameters += _parse_arg(task, argument, default, is_argument=index == 0 or default is None)
    parameters += _request_parameters(task) if arguments.kwarg and arguments.kwarg.arg == "options" else []
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parameters += _parse_arg(task, argument, default)
    return parameters


def extra_parameter(task: str, given: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter that a command adds to its task, from a Help or a Typer option."""
    kind, option = get_args(given.annotation)
    if isinstance(option, Help):
        return _parameter(task, given.name, kind, given.default, option)
    return keyword(given.name, kind, option, given.default)


@cache
def _functions(module: str) -> dict[str, ast.FunctionDef]:
    package, _, name = module.rpartition(".")
    source = resources.files(package).joinpath(f"{name}.py").read_text(encoding="utf-8")
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


def _parse_arg(task: str, arg: ast.arg, default: ast.expr | None, is_argument: bool = False) -> list[inspect.Parameter]:
    """Return the Typer parameter of a task argument as a list; empty without a Help. task: for the flag names."""
    match arg.annotation:
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[hint, ast.Name(id=name)])):
            option = getattr(task_help, name)
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[hint, ast.Call() as call])):
            option = Help(*map(ast.literal_eval, call.args))
        case _:
            return []
    names = {node.id for node in ast.walk(hint) if isinstance(node, ast.Name)}
    kind: Any = next(kind for name, kind in TYPED.items() if name in names)
    if "Sequence" in names and (is_argument or isinstance(hint, ast.Subscript)):
        kind = list[kind]
    if default is None:
        return [_parameter(task, arg.arg, kind, inspect.Parameter.empty, option, is_argument)]
    value = ast.literal_eval(default)
    return [_parameter(task, arg.arg, kind, None if value in ((), "") else value, option, is_argument)]


def _request_parameters(task: str) -> list[inspect.Parameter]:
    hints, parameters = get_type_hints(ConvertOptions), []
    for field, option in options(task).items():
        kind = TYPED_OF_REQUEST.get(hints[field], str)
        parameters.append(_parameter(task, option.name, kind, False if kind is bool else None, option))
    return parameters


def _parameter(task: str, name: str, kind: Any, default: Any, info: Help, argument: bool = False) -> inspect.Parameter:
    """Return a Typer parameter."""
    parameter: typer.models.ParameterInfo
    if argument:
        parameter = typer.Argument(metavar=info.metavar, help=info.help)
    else:
        flag, text = write(task, Argument(name)), info.help + (f" (default: {default})" if default else "")
        parameter = typer.Option(flag, metavar=info.metavar or None, help=text, show_default=False)
    return keyword(name, kind | None if default is None else kind, parameter, default)


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


_PRESET_HELP = "mlp-small trains on a CPU; xlstm-large is wider than xlstm-small, for a GPU"
_LAYERS = [
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
        "preset", str | None, typer.Option("--preset", metavar="|".join(PRESETS), help=_PRESET_HELP, show_default=False)
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

# The headings of flags in a help, in order, with the parameters below them: by name, by "command.name" where another
# command has a parameter of that name elsewhere, or by the section of a setting.  Any other one is below "Other".
HEADINGS = {
    "Input format": "data_csv ids channel decimal quantity name units missing drop query "
    "table time_column sensor_column predict.meta_csv predict.timezone predict.resample",
    "Times": "first_time freq time_format timezone local_zone round_times resample at predict.start predict.end every",
    "Sensors": "meta_csv sensors without_positions",
    "Windows": "split start end",
    "Scores": "baselines climatology_days silent intervals by compare drift",
    "Data": "data",
    "Model": "preset model pooling trainer__init_from",
    "Optimisation": "trainer",
    "Hardware": "devices loader trainer__precision trainer__device trainer__threads trainer__compile "
    "trainer__cuda_graph",
    "Measurement": "profile profile.compare",
    "Server": "follow host port token_file allow_origin queue timeout max_body",
    "Output": "output save_scores save_forecasts plot geojson html trace tuned card format folder interval backup "
    "rewrite dry_run yaml only_changed as_json overwrite trainer__run_dir trainer__loggers",
    "Fail if": "fail_above fail_unless fail_on fail_slower validate",
}
_HEADING = {name: heading for heading, names in HEADINGS.items() for name in names.split()}


def group_flags(command: str, parameters: Iterable[Any], context: Any) -> dict[str, list[tuple[str, str]]]:
    """Return the help lines of a command by heading, arguments first; hidden flags are skipped."""
    lines: dict[str, list[tuple[str, str]]] = {heading: [] for heading in ("Arguments", *HEADINGS, "Other")}
    for parameter in parameters:
        name = parameter.name
        heading = next(filter(None, map(_HEADING.get, (f"{command}.{name}", name, name.partition("__")[0]))), "Other")
        if record := parameter.get_help_record(context):
            lines["Arguments" if parameter.param_type_name == "argument" else heading].append(record)
    return {heading: records for heading, records in lines.items() if records}


def _setting_parameter(key: str, hidden: bool) -> inspect.Parameter:
    """Return the Typer parameter for a setting by dotted key; hidden: left out of the help."""
    field, flag, name = KEYS[key], flag_name(key), _name(key)
    unset = field.default in (None, ()) or field.default is False
    text = f"{field.description}" + ("" if unset else f" (default: {command_text(field.default)})")
    if field.annotation is bool:
        both = f"{flag}/--no-{flag.removeprefix('--')}"
        return keyword(name, bool | None, typer.Option(both, help=text, show_default=False, hidden=hidden))
    choices = setting_choices(key)
    option = typer.Option(
        flag,
        help=text,
        metavar=metavar(key),
        show_default=False,
        hidden=hidden,
        autocompletion=(lambda incomplete: [c for c in choices if c.startswith(incomplete)]) if choices else None,
    )
    return keyword(name, str | None, option)


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
    """Return the types in an annotation."""
    origin, inner = get_origin(annotation), get_args(annotation)
    return {origin or annotation}.union(*map(_types, inner[:1] if origin is Annotated else inner))
