"""The commands that train and score: config, train, evaluate, explain, profile."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from socialx.cli.app import Json, Layers, command, note
from socialx.errors import GateError, SocialxError
from socialx.options import Loaded, as_tree, flat, of_run, to_yaml, with_settings

if TYPE_CHECKING:
    from torch import nn

    from socialx.build import Data
    from socialx.settings import Settings
    from socialx.training.engine import Learner
    from socialx.training.precision import Precision
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
    *("data.path", "trainer.device", "model.impl", "model.chunk", "model.checkpointing", "profile.steps"),
    *("profile.warmup_steps", "profile.trace_steps", "download.mirror", "download.retries"),
)
RESUMABLE = (
    *(*ALWAYS, "trainer.max_epochs", "trainer.patience", "trainer.log_every_n_steps"),
    *("trainer.compile", "trainer.cuda_graph"),
)
SCORING = ("loader.batch_size", "trainer.precision", "trainer.float32_matmul_precision")
NETWORK = ("pooling.distances", "pooling.strict")  # go with the sensors, as data.path does
SCORABLE = (*ALWAYS, *SCORING, *NETWORK)


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
    precision = build.machine(s)
    d = build.data(s, precision.device)
    stamp = build.stamp(s, d, precision)
    if old and old.read_json("stamp.json").get("checksum") != stamp["checksum"]:
        raise SocialxError(f"{d.store.path}: not the data that {resume} was trained on: name that file with --data")
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


Part = Annotated[str, typer.Option("--part", metavar="train|validation|test", help="which windows")]


@command("evaluate")
@with_settings("data", "trainer.device", "model.chunk", *SCORING, *NETWORK)
def evaluate(
    layers: Layers,
    runs: Annotated[list[Path] | None, typer.Argument(metavar="[RUN]...", help="run folders")] = None,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="beside copy-last, the historical average and published results")
    ] = False,
    part: Part = "test",
    as_json: Json = False,
) -> None:
    """Score runs, the baselines, or both: MAE, RMSE, MAPE and R2 at 15, 30 and 60 minutes and over all steps.

    Runs are scored on their own data and split, in fp32 unless --precision says otherwise.

    Examples: socialx evaluate runs/demo --baselines, socialx evaluate --baselines --data metr_la.h5
    """
    from socialx import build
    from socialx.errors import SettingsError
    from socialx.progress import progress_bar
    from socialx.training import engine

    _check_part(part)
    if not runs and not baselines:
        raise SettingsError("nothing to score: name a run folder, or --baselines with --data FILE.h5, or both")
    settings, s, precision, d, trained, stamp = _to_score(layers, runs or [])
    models = {**(build.baselines(d) if baselines else {}), **trained}
    loader = d.loader(part, s.loader.batch_size)
    scores = {}
    for name, model in models.items():
        own = settings.get(name)
        advice = build.scoring_advice(own, d, model, precision, part) if own else nullcontext()
        with advice, progress_bar(f"score {name}", loader.num_windows, "windows") as bar:
            scores[name] = engine.evaluate(model.to(precision.device), loader, precision, bar)
    if as_json:
        rows = {
            name: {target: [s.as_dict() for s in row] for target, row in zip(d.targets, of_model, strict=True)}
            for name, of_model in scores.items()
        }
        typer.echo(json.dumps({"part": part, "scores": rows, "stamp": stamp}, indent=2))
        return
    from socialx.report.ladder import published
    from socialx.report.tables import print_ladder, print_scores, print_stamp

    for place, (target, unit) in enumerate(stamp["targets"].items()):
        title = f"{part} windows" if len(d.targets) == 1 else f"{target}, {part} windows"
        rows_of_target = {name: of_model[place] for name, of_model in scores.items()}
        print_scores(rows_of_target, d.store.step_minutes, unit, title)
    if baselines and (others := published(stamp, part)):
        print_ladder({name: of_model[0] for name, of_model in scores.items()}, others, d.store.step_minutes)
    print_stamp(stamp)


@command("explain")
@with_settings("data", "trainer.device", "model.chunk", *SCORING, *NETWORK)
def explain(
    layers: Layers,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder")],
    part: Part = "test",
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="draw it, with a map of who listens to whom, .png or .svg"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say where a run errs and whom its sensors listen to: MAE by horizon, hour and sensor; radii and attention.

    As in evaluate, a run is scored on its own data and split.  What is listened to is a mean over 8 batches of them.

    Example: socialx explain runs/demo --plot demo.png
    """
    from socialx import build
    from socialx.data.files import check_output
    from socialx.progress import progress_bar
    from socialx.report.explanation import plot_explanation
    from socialx.report.pictures import check_picture
    from socialx.report.tables import print_explanation, print_stamp
    from socialx.training.breakdown import as_tree, break_down

    _check_part(part)
    if plot is not None:
        check_picture(plot)
        check_output(plot, overwrite=True)
    _, s, precision, d, models, stamp = _to_score(layers, [run])
    model = models[str(run)].to(precision.device)
    loader = d.loader(part, s.loader.batch_size)
    advice = build.scoring_advice(s, d, model, precision, part)
    with advice, progress_bar(f"explain {run}", loader.num_windows, "windows") as bar:
        errors, heard = break_down(model, loader, precision, d.store.step_minutes, bar)
    target = d.targets[0]
    found = {
        **{"run": str(run), "part": part, "target": target, "unit": d.store.unit},
        **as_tree(errors, heard, d.store.sensors, d.store.step_minutes),
        "no_pooling": None if heard else _why_alone(s),
        "stamp": stamp,
    }
    if plot is not None:
        plot_explanation(found, plot)
        note(f"drew {plot}")
    if len(d.targets) > 1:
        note(f"explained: {target}, the first of the targets {', '.join(d.targets)}")
    if as_json:
        typer.echo(json.dumps(found, indent=2, allow_nan=False))
        return
    print_explanation(found)
    print_stamp(stamp)


def _why_alone(s: Settings) -> str:
    """Why a run has no social layer."""
    if s.model.kind == "xlstm":
        return "pooling.kind none: no sensor listens to another"
    return f"model.kind {s.model.kind}: a model without social pooling, no sensor listens to another"


def _check_part(part: str) -> None:
    from socialx.data.windows import PARTS
    from socialx.errors import SettingsError

    if part not in PARTS:
        raise SettingsError(f"--part {part}: one of {', '.join(PARTS)}")


class Scored(NamedTuple):
    """What is scored: the settings of each run by its name and those of the first, the models, the stamp."""

    settings: dict[str, Settings]
    first: Settings
    precision: Precision
    data: Data
    models: dict[str, nn.Module]
    stamp: dict[str, Any]


def _to_score(layers: Layers, runs: list[Path]) -> Scored:
    """Runs with their weights, once all are to be scored on the same windows; without one what the command line says.

    What each was trained on goes into the stamp.
    """
    from socialx import build
    from socialx.errors import SettingsError
    from socialx.training.runs import open_run

    folders = {str(run): open_run(run) for run in runs}
    settings = {
        name: _in_fp32(of_run(layers(folder.settings), folder.settings, SCORABLE), folder)
        for name, folder in folders.items()
    }
    s = next(iter(settings.values())) if settings else _in_fp32(layers(), None)
    for name, own in settings.items():
        if differ := _differences(s.data, own.data):
            raise SettingsError(f"{name}: other windows than {runs[0]} ({differ}): score them one by one")
    precision = build.machine(s)
    d = build.data(s, precision.device)
    stamp, models, trained = build.stamp(s, d, precision), {}, {}
    for name, folder in folders.items():
        models[name], trained[name] = build.trained(settings[name], d, folder, stamp)
    if trained:
        stamp["trained"] = trained
        stamp["scaler"] = next(iter(trained.values()))["scaler"]  # the one that the model uses
    return Scored(settings, s, precision, d, models, stamp)


def _differences(data: Any, other: Any) -> str:
    """The settings that decide what is scored and are not the same, with both values."""
    names = ("path", "targets", "days", "history", "horizon", "split")
    pairs = ((name, getattr(other, name), getattr(data, name)) for name in names)
    return ", ".join(f"{name} {own}, not {theirs}" for name, own, theirs in pairs if own != theirs)


def _in_fp32(loaded: Loaded, folder: RunFolder | None) -> Settings:
    """Settings for scoring: precision 32-true, unless this command line or environment set another."""
    s, origin = loaded.settings, loaded.origin["trainer.precision"]
    if origin not in ("default", str(folder.settings) if folder else ""):
        return s
    return s.model_copy(update={"trainer": s.trainer.model_copy(update={"precision": "32-true"})})


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
