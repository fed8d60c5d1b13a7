"""The commands before and of a training: config, train."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from socialx.cli.command import Json, command, note, print_json
from socialx.cli.progress import Show
from socialx.cli.shell import write
from socialx.errors import Command, Message, SettingsError
from socialx.options import KEYS, Layers, changed, flat, some_to_yaml, with_settings


@command("config")
@with_settings("config")
def config(
    layers: Layers,
    only_changed: Annotated[
        bool, typer.Option("--changed", help="only settings whose value is not the default")
    ] = False,
    as_yaml: Annotated[bool, typer.Option("--yaml", help="print a file that -c reads")] = False,
    as_json: Json = False,
) -> None:
    """Print every setting and where its value came from.

    Example:
      socialx config -c runs/mine/settings.yaml --changed --yaml > mine.yaml
    """
    if as_yaml and as_json:
        raise SettingsError("config", "two forms of output", "choose --yaml or --json")
    loaded = layers.merged()
    keys = changed(loaded.settings) if only_changed else tuple(KEYS)
    if as_yaml:
        typer.echo(some_to_yaml(loaded.settings, keys), nl=False)
        return
    values = {key: value for key, value in flat(loaded.settings).items() if key in keys}
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
@with_settings("train")
def train(
    layers: Layers,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN", help="go on with an interrupted run, with its settings")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace a run in the run folder")] = False,
    profile_first: Annotated[
        int,
        typer.Option(
            "--profile-first",
            metavar="STEPS",
            min=0,
            show_default=False,
            help="measure so many first steps, and say where time went",
        ),
    ] = 0,
    devices: Annotated[
        int,
        typer.Option(
            "--devices",
            metavar="N",
            min=1,
            show_default=False,
            help="processes on this machine, each with a CUDA device of its own (default: 1)",
        ),
    ] = 1,
) -> None:
    """Train the shared social xLSTM.

    The run folder holds all that repeats, continues, scores or uses the training.

    Examples:
      socialx train --data metr_la.h5 --precision 16-mixed
      socialx train --resume runs/mine
    """
    from socialx import tasks
    from socialx.training.ranks import in_environment

    ranks = in_environment()
    if devices > 1 and ranks.world == 1:
        from socialx.training.launch import launch

        raise typer.Exit(launch(devices, sys.argv[1:]))
    show = Show("train")
    run = tasks.train(settings=layers, resume=resume, overwrite=overwrite, profile_first=profile_first, progress=show)
    if not ranks.first:
        return
    score = write("train", Command("evaluate", run.path, baselines=True))
    if run.interrupted:
        note(Message("", "interrupted", (ranks.resuming(run.path), ", or score it as it is")), "train")
        typer.echo(score)
        raise typer.Exit(130)
    best = run.best
    if best is not None and best.validation_mae is not None:
        mae = f"best validation MAE {best.validation_mae:.4f} {run.unit}"
        score = f"{mae} in epoch {best.epoch} of {len(run.epochs)}: {score}"
    typer.echo(f"{run.path}: {score}")
