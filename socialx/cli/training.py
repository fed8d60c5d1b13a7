"""The commands that run training steps: config, train, profile."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from socialx.cli.app import Json, command, note, print_json
from socialx.cli.progress import Show
from socialx.errors import GateError, Message
from socialx.options import Layers, flat, with_settings


@command("config")
@with_settings("config")
def config(layers: Layers, as_json: Json = False) -> None:
    """Print every setting, its value and where the value came from."""
    loaded = layers.load()
    values = flat(loaded.settings)
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
    devices: Annotated[
        int, typer.Option("--devices", min=1, help="processes on this machine, each with a CUDA device of its own")
    ] = 1,
) -> None:
    """Train the shared social xLSTM; the run folder holds all that repeats, continues, scores or uses it.

    Example: socialx train --data metr_la.h5 --precision 16-mixed
    """
    from socialx import tasks
    from socialx.training.ranks import in_environment

    ranks = in_environment()
    if devices > 1 and ranks.world == 1:
        from socialx.training.launch import launch

        raise typer.Exit(launch(devices, sys.argv[1:]))
    run = tasks.train(settings=layers, resume=resume, overwrite=overwrite, progress=Show("train"))
    if not ranks.first:
        return
    score = f"socialx evaluate {run.path} --baselines"
    if run.interrupted:
        note(Message("", "interrupted", (ranks.resuming(run.path), ", or score it as it is")), "train")
        typer.echo(score)
        raise typer.Exit(130)
    best = run.best
    if best is not None and best.validation_mae is not None:
        mae = f"best validation MAE {best.validation_mae:.4f} {run.unit}"
        score = f"{mae} in epoch {best.epoch} of {len(run.epochs)}: {score}"
    typer.echo(f"{run.path}: {score}")


@command("profile")
@with_settings("profile")
def profile(
    layers: Layers,
    as_json: Json = False,
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="also write the JSON here")] = None,
    require: Annotated[
        str | None,
        typer.Option("--require", metavar="LIMITS", help="exit 3 unless these are met, such as 'gpu_busy>=0.8'"),
    ] = None,
) -> None:
    """Run real training steps and say where the time goes: input, transfer, step, hooks.

    On CUDA it also says how busy the device is and which kernels it ran, from a trace of a few more steps.

    Examples: socialx profile --data metr_la.h5 --steps 200,
    socialx profile --data metr_la.h5 --require 'gpu_busy>=0.8,sm_efficiency>=0.5'
    """
    from socialx import tasks
    from socialx.disk import check_output, replacing
    from socialx.profiling import require as requirements
    from socialx.report.profile import print_profile

    required = requirements.parse(require) if require is not None else []
    if output is not None:
        check_output(output, overwrite=True)
    result = tasks.profile(settings=layers, progress=Show("profile"))
    if output is not None:
        with replacing(output) as temporary:
            temporary.write_text(json.dumps(result.as_dict(), indent=2, default=str) + "\n", encoding="utf-8")
    if as_json:
        print_json(result.as_dict())
    else:
        print_profile(result)
    if failed := requirements.failed(result, required):
        raise GateError.together(failed)
