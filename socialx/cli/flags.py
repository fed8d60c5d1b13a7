"""Flags of settings: an option of Typer for each setting that a command shows, and the layers that were typed."""

from __future__ import annotations

import inspect
import os
import typing
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal

import typer

from socialx.cli.from_signature import keyword
from socialx.settings import CHOICES, KEYS, SHORT, flag_of, shown
from socialx.settings_layers import SIZES, Layers, as_typed, settings_here

SIZED = ("train", "profile", "doctor", "config")  # commands that take a size
LONG = (
    "train",
    "profile",
    "evaluate",
    "predict",
)  # whose --help shows some flags, --help-all all


def settings_parameters(command: str) -> list[inspect.Parameter]:
    """``--config``, ``--set`` and a flag for each setting that a command shows, as Typer takes them."""
    left_out = {"size"} if command not in SIZED else set()
    if command not in LONG:
        left_out.add("help_all")
    general = [each for each in _GENERAL if each.name not in left_out]
    return general + [_parameter(key, hidden=command in LONG and key not in SHORT) for key in shown(command)]


def layers_of(command: str, typed: dict[str, Any]) -> Layers:
    """Take what was typed for ``settings_parameters`` out of the values of a command."""
    flags = {key: typed.pop(_name(key)) for key in shown(command)}
    flags = {key: value for key, value in flags.items() if value is not None}
    config, sets, size = typed.pop("config"), typed.pop("set_"), typed.pop("size", None)
    typed.pop("help_all", None)
    return Layers.read(config or (), os.environ, sets or (), flags, here=settings_here(), size=size)


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


_SIZE_HELP = "settings that fit together. small: an MLP, for a CPU; medium: the xLSTM; large: a wider one, for a card"
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
        "size",
        str | None,
        typer.Option("--size", metavar="|".join(SIZES), help=_SIZE_HELP, show_default=False),
    ),
]


def _parameter(key: str, hidden: bool) -> inspect.Parameter:
    field, flag, name = KEYS[key], flag_of(key), _name(key)
    default = "" if field.default is None else f" (default: {as_typed(field.default)})"
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
    literal = typing.get_args(annotation) if typing.get_origin(annotation) is Literal else ()
    return list(map(str, CHOICES.get(key, literal)))


def name_of_type(annotation: Any) -> str:
    """``int``, ``float``, ``path``, ... for a help line."""
    if typing.get_origin(annotation) is Annotated:
        return name_of_type(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) is tuple:
        kind = name_of_type(typing.get_args(annotation)[0])
        return f"{kind},{kind},..."
    kinds = [a for a in typing.get_args(annotation) if a is not NoneType] or [annotation]
    if len(kinds) == 1 and kinds[0] is not annotation:
        return name_of_type(kinds[0])
    return "|".join(getattr(kind, "__name__", str(kind)).lower().replace("str", "text") for kind in kinds)
