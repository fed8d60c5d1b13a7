"""The commands that score runs: evaluate, explain."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from socialx.cli.app import Json, Layers, command, note
from socialx.cli.training import ALWAYS
from socialx.options import Loaded, of_run, with_settings

if TYPE_CHECKING:
    from torch import nn

    from socialx.build import Data
    from socialx.settings import Settings
    from socialx.training.precision import Precision
    from socialx.training.runs import RunFolder

SCORING = ("loader.batch_size", "trainer.precision", "trainer.float32_matmul_precision")
SCORABLE = (*ALWAYS, *SCORING, "pooling.strict")

Part = Annotated[str, typer.Option("--part", metavar="train|validation|test", help="which windows")]


@command("evaluate")
@with_settings("data", "pooling.distances", "pooling.strict", "trainer.device", "model.chunk", *SCORING)
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
@with_settings("data", "pooling.distances", "pooling.strict", "trainer.device", "model.chunk", *SCORING)
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
    pairs = [(name, getattr(other, name), getattr(data, name)) for name in names]
    pairs.append(("inputs", other.inputs or other.targets, data.inputs or data.targets))
    return ", ".join(f"{name} {own}, not {theirs}" for name, own, theirs in pairs if own != theirs)


def _in_fp32(loaded: Loaded, folder: RunFolder | None) -> Settings:
    """Settings for scoring: full precision, unless this command line or environment set another."""
    s, unset = loaded.settings, ("default", str(folder.settings) if folder else "")
    full = {"precision": "32-true", "float32_matmul_precision": "highest"}
    update = {name: value for name, value in full.items() if loaded.origin[f"trainer.{name}"] in unset}
    return s.model_copy(update={"trainer": s.trainer.model_copy(update=update)})
