"""The commands before and of a training: config, train."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from socialx.cli.command import Devices, Json, command, note, print_json
from socialx.cli.error_flags import write
from socialx.cli.progress_bars import Show
from socialx.errors import Command, Message, SettingsError
from socialx.settings_file import as_yaml
from socialx.settings_layers import Layers, changed, flat


@command("config")
def config(
    layers: Layers,
    only_changed: Annotated[
        bool, typer.Option("--changed", help="only settings whose value is not the default")
    ] = False,
    yaml: Annotated[bool, typer.Option("--yaml", help="print a file that -c reads")] = False,
    as_json: Json = False,
) -> None:
    """Print every setting and where its value came from.

    Example:
      socialx config -c runs/mine/settings.yaml --changed --yaml > mine.yaml
    """
    if yaml and as_json:
        raise SettingsError("config", "two forms of output", "choose --yaml or --json")
    loaded = layers.merged()
    values = changed(loaded.settings) if only_changed else flat(loaded.settings)
    if yaml:
        typer.echo(as_yaml(values), nl=False)
        return
    if as_json:
        print_json({key: {"value": value, "origin": loaded.origin[key]} for key, value in values.items()})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("setting", "value", "origin", show_edge=False)
    for key, value in values.items():
        table.add_row(key, "" if value is None else json.dumps(value).strip('"'), loaded.origin[key])
    Console().print(table, highlight=False)


@command("train")
def train(layers: Layers, devices: Devices = 1, **arguments: Any) -> None:
    """Train the shared social model: an xLSTM as encoder, or an MLP.

    The run folder holds all that repeats, continues, scores or uses the training.

    Examples:
      socialx train --data metr_la.h5 --size small
      socialx train --resume runs/mine
    """
    import socialx
    from socialx.training.process_group import in_environment

    if devices > 1 and in_environment().world == 1:
        from socialx.training.launch import launch

        raise typer.Exit(launch(devices, sys.argv[1:]))
    run = socialx.train(settings=layers, progress=Show("train"), **arguments)
    group = in_environment()
    if not group.first:
        return
    score = write("train", Command("evaluate", run.path, baselines=True))
    if run.interrupted:
        note(Message("", "interrupted", f"{group.resuming(run.path)}, or score it as it is"), "train")
        typer.echo(score)
        raise typer.Exit(130)
    best = run.best
    if best is not None and best.validation_mae is not None:
        from socialx.views.terminal import of_unit

        mae = f"best validation MAE {best.validation_mae:.4f}{of_unit(run.unit)}"
        score = f"{mae} in epoch {best.epoch} of {len(run.epochs)}: {score}"
    typer.echo(f"{run.path}: {score}")
