"""The commands that run training steps: config, train, profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from socialx.cli.app import Json, Layers, command, note
from socialx.errors import GateError, SocialxError
from socialx.options import Loaded, as_tree, flag_of, flat, of_run, to_yaml, with_settings
from socialx.settings import Settings, unread

if TYPE_CHECKING:
    from socialx.training.engine import Learner
    from socialx.training.runs import RunFolder


@command("config")
@with_settings("data", "loader", "model", "pooling", "trainer", "profile", "download")
def config(layers: Layers, as_json: Json = False) -> None:
    """Print every setting, its value and where the value came from."""
    loaded = layers()
    values = flat(loaded.settings)
    if as_json:
        rows = {key: {"value": value, "origin": loaded.origin[key]} for key, value in values.items()}
        typer.echo(json.dumps(rows, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("setting", "value", "origin", show_edge=False)
    for key, value in values.items():
        table.add_row(key, "" if value is None else json.dumps(value).strip('"'), loaded.origin[key])
    Console().print(table, highlight=False)


# What may differ from its settings file when a run goes on, or when it is scored: the place and the machine, how
# long it trains, how it is cut into batches.  Anything else would make it another run.
ALWAYS = (
    *("data.path", "pooling.distances", "trainer.device", "model.impl", "model.chunk", "model.checkpointing"),
    *("profile.steps", "profile.warmup_steps", "profile.trace_steps", "download.mirror", "download.retries"),
)
RESUMABLE = (
    *(*ALWAYS, "trainer.max_epochs", "trainer.patience", "trainer.log_every_n_steps"),
    *("trainer.compile", "trainer.cuda_graph"),
)


@command("train")
@with_settings("data", "loader", "model", "pooling", "trainer")
def train(
    layers: Layers,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN", help="go on with an interrupted run, with its settings")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace a run in the run folder")] = False,
) -> None:
    """Train the shared social xLSTM; the run folder holds all that repeats, continues or scores it.

    Example: socialx train --data metr_la.h5 --precision 16-mixed
    """
    from socialx import build
    from socialx.errors import SettingsError
    from socialx.training import engine, runs

    if resume and overwrite:
        raise SettingsError("--resume goes on with a run, --overwrite clears it: give one of them")
    old = runs.open_run(resume) if resume else None
    loaded = of_run(layers(old.settings), old.settings, RESUMABLE) if old else layers()
    s = loaded.settings
    _note_unread(loaded)
    precision = build.machine(s)
    d = build.data(s, precision.device)
    stamp = build.stamp(s, d, precision)
    if old:
        old.check_same(stamp, "checksum", d.store.path, "--data")
        old.check_same(stamp, "distances", s.pooling.distances, "--distances")
    loader = build.train_loader(s, d)
    learner = build.learner(s, d, build.model(s, d), precision, loader)
    run = old or runs.create_run(build.run_path(s, d), overwrite)
    progress = engine.load_progress(learner, run) if old else None
    if progress and progress.complete(s.trainer.max_epochs, s.trainer.patience):
        stopped = progress.epoch < s.trainer.max_epochs
        more = f"--patience {2 * s.trainer.patience}" if stopped else f"--max-epochs {2 * progress.epoch}"
        raise SocialxError(f"{resume}: complete after {progress.epoch} epochs: socialx train --resume {resume} {more}")
    _record_start(run, loaded, runs.environment(precision.device, precision.name), None if old else stamp)
    parameters = sum(p.numel() for p in learner.model.parameters())
    note(f"{d.store.path}: {len(d.store.sensors.ids)} sensors, {loader.num_windows:,} training windows")
    note(f"{precision.device}, precision {precision.name}, {parameters:,} parameters, run folder {run.path}")
    _note_machine(learner, s)
    if precision.device.type == "cpu" and s.model.kind == "xlstm" and s.model.width * s.model.blocks > 128:
        note("no CUDA device: on a CPU a small model is wise, for example --width 64 --blocks 2 --slstm-at 1")
    if old and loaded.origin["trainer.max_epochs"] != str(old.settings):
        note(
            f"the learning rate now ends in epoch {s.trainer.max_epochs}: -c {run.settings} alone does not repeat this"
        )
    with build.training_advice(s, d, learner, resumed=old is not None):
        progress = engine.fit(
            learner,
            loader,
            d.loader("validation", s.loader.batch_size),
            run,
            max_epochs=s.trainer.max_epochs,
            patience=s.trainer.patience,
            log_every_n_steps=s.trainer.log_every_n_steps,
            progress=progress,
        )
    if progress.interrupted:
        note(f"interrupted after {learner.steps} steps: socialx train --resume {run.path}, or score it as it is")
        typer.echo(f"socialx evaluate {run.path} --baselines")
        raise typer.Exit(130)
    typer.echo(
        f"{run.path}: best validation MAE {progress.best_mae:.4f} {d.store.unit} in epoch {progress.best_epoch + 1} of "
        f"{progress.epoch}: socialx evaluate {run.path} --baselines"
    )


def _note_unread(loaded: Loaded) -> None:
    """Say which flags of this command line have no effect."""
    ignored = unread(loaded.settings)
    if typed := [flag_of(key) for key, origin in loaded.origin.items() if key in ignored and origin == flag_of(key)]:
        note(f"this model does nothing with {', '.join(typed)}")


def _note_machine(learner: Learner, s: Settings) -> None:
    """What computes on a card, and why it is not the fastest that there is."""
    device = learner.precision.device
    if device.type != "cuda":
        return
    what: str = s.model.kind
    if what == "xlstm":
        what = f"encoder {s.model.encoder}"
        if s.model.encoder == "xlstm":
            with learner.precision.autocast():
                impl, reason = learner.model.encoder.choice(device)  # type: ignore[operator, union-attr]
            what = f"encoder {impl}{f' ({reason})' if reason else ''}"
    matmul = s.trainer.float32_matmul_precision
    products = matmul if matmul == "highest" else f"{matmul} (TF32)"
    note(f"{what}, float32 products in precision {products}")


def _record_start(run: RunFolder, loaded: Loaded, environment: dict[str, Any], stamp: dict[str, Any] | None) -> None:
    """Write down what this start of a run depends on; stamp: of a new run, None where an old one goes on."""
    origin = loaded.origin
    if stamp is not None:
        run.write_json("stamp.json", stamp)
    else:  # the run's own values keep the origin of its first start
        first = run.read_json("origin.json")
        origin = {k: first.get(k, v) if v == str(run.settings) else v for k, v in origin.items()}
    run.write_text("settings.yaml", to_yaml(loaded.settings))
    run.write_json("origin.json", origin)
    run.add_start(environment)


@command("profile")
@with_settings(
    *("data", "loader", "model", "pooling", "profile", "trainer.precision", "trainer.device", "trainer.seed"),
    *("trainer.float32_matmul_precision", "trainer.accumulate_grad_batches", "trainer.gradient_clip_val"),
    *("trainer.log_every_n_steps", "trainer.compile", "trainer.cuda_graph"),
)
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
    from socialx import build
    from socialx.data.files import check_output, replacing
    from socialx.profiling import require as requirements
    from socialx.profiling.measure import measure
    from socialx.training.runs import environment

    required = requirements.parse(require) if require is not None else []
    loaded = layers()
    s = loaded.settings
    if output is not None:
        check_output(output, overwrite=True)
    _note_unread(loaded)
    precision = build.machine(s)
    d = build.data(s, precision.device)
    loader = build.train_loader(s, d)
    learner = build.learner(s, d, build.model(s, d), precision, loader)
    _note_machine(learner, s)
    lengths = (s.profile.steps, s.profile.warmup_steps, s.trainer.log_every_n_steps, s.profile.trace_steps)
    with build.training_advice(s, d, learner):
        result = measure(learner, loader, *lengths)
    result = {
        **result,
        "environment": environment(precision.device, precision.name),
        "settings": as_tree(s),
        "origin": {key: origin for key, origin in loaded.origin.items() if origin != "default"},
    }
    text = json.dumps(result, indent=2, default=str)
    if output is not None:
        with replacing(output) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")
    if as_json:
        typer.echo(text)
    else:
        from socialx.report.tables import print_profile

        print_profile(result)
    if lines := requirements.failed(result, required):
        raise GateError("\n".join(lines))
