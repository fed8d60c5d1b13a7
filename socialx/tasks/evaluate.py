"""``evaluate``: runs and reference forecasts -> their scores under one protocol."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from socialx.core.batch import Batch, Target
from socialx.core.errors import Argument, SettingsError
from socialx.core.help import END, SPLIT, START, Help, with_help
from socialx.core.notebook import names_in
from socialx.core.progress import Callback, subscribe
from socialx.data.calendar import DAY_S
from socialx.data.climatology import UNTIL_TRAINED
from socialx.files.store.time_axis import Time
from socialx.forecast.files import READ_SUFFIXES, check_scored, saving
from socialx.inspection.report import stuck_sensors
from socialx.scoring.difference import DailyErrors, difference
from socialx.scoring.drift import DailyCoverage
from socialx.scoring.intervals import RunningCoverage
from socialx.scoring.metrics import BY
from socialx.scoring.protocol import Trained
from socialx.scoring.results import Evaluation, ModelScores, published
from socialx.scoring.scoring_pass import Metric, refuse_overflow, run_metrics_per_model
from socialx.settings.layers import ConfigLayers
from socialx.settings.schema import Settings
from socialx.tasks.memory import when_memory_runs_out
from socialx.tasks.outputs import check_outputs, inputs_of
from socialx.tasks.scored_split import ScoredSplit, about, scored_split
from socialx.tasks.train import Run, names_of


@with_help
def evaluate(
    runs: Annotated[
        str | Path | Run | Sequence[str | Path | Run], Help("run folders, or files of forecasts", "[RUN]...")
    ] = (),
    data: str | Path | Mapping[str, Any] | None = None,
    *,
    baselines: Annotated[bool, Help("also score naive and the historical average, and list published results")] = False,
    climatology_days: Annotated[
        int | str | Sequence[int | str],
        Help("also score runs that know so many days before each day, or those of the training (trained)", "0,7,all"),
    ] = (),
    intervals: Annotated[bool, Help("also say how often the prediction intervals of runs hold")] = False,
    by: Annotated[
        str | Sequence[str], Help("also the MAE by horizon, hour, weekday, sensor, congestion", "WHAT,WHAT")
    ] = (),
    compare: Annotated[bool, Help("also the difference of two runs, with its 95 % interval")] = False,
    drift: Annotated[bool, Help("also say whether runs are as good as their calibration promised, by day")] = False,
    save_forecasts: Annotated[
        str | Path | None, Help("also write all forecasts with the truth, .h5 or .parquet", "FILE")
    ] = None,
    overwrite: Annotated[bool, Help("replace existing files")] = False,
    split: Annotated[str, SPLIT] = "test",
    start: Annotated[Time | None, START] = None,
    end: Annotated[Time | None, END] = None,
    settings: Settings | ConfigLayers | None = None,
    progress: Callback | None = None,
    **sections: Any,
) -> Evaluation:
    """MAE, RMSE, MAPE and R2 of runs, of the reference forecasts, or of both, over every window of a split.

    Of files of forecasts, as ``predict`` writes them, only windows that all forecast are scored.  data: another file
    than the runs' own; the split ``all`` is for one that they were not trained on.  Scores are computed in float32
    unless ``trainer={"precision": ...}`` says otherwise.  ``Evaluation`` holds what is asked for beside them.

    Raises SettingsError where there is nothing to score, the runs have different windows, or a run that is to be scored
    with known days was trained without a climatology; SocialxError where a run has no intervals that are asked for.
    """
    with subscribe(progress), ExitStack() as stack:
        names, by, known = names_of(runs), names_in(by), _days_in(climatology_days)
        _check(names, baselines, by, compare, drift, save_forecasts)
        of_runs = {"climatology_days": known, "intervals": intervals, "drift": drift}
        files = _forecast_files(names, next((name for name, asked in of_runs.items() if asked), None))
        layers = ConfigLayers.from_call(settings, {**sections, "data": data})
        check_outputs((save_forecasts, None), layers=layers, runs=names, overwrite=overwrite)
        scored = scored_split([name for name in names if name not in files], layers, split, start, end, files)
        if known:
            _check_climatologies(scored.trained)
        stack.enter_context(when_memory_runs_out(scored.experiment))
        scored.data.note_clock(by)
        models = (scored.baselines() if baselines else {}) | scored.models()
        saved = {} if save_forecasts is None else {names[0]: _saved(stack, Path(save_forecasts), names[0], scored)}
        compared = names if compare else []
        scores, beside = _in_one_pass(scored, models, by, compared, intervals, drift, saved)
        protocol = scored.protocol
        results = published(protocol, split) if baselines else ()
        known_too = scored.with_known_days(known, frozen=bool(results))
        return Evaluation(split, protocol, scores, results, known_too, **beside, inputs=tuple(inputs_of(layers, names)))


def _in_one_pass(
    scored: ScoredSplit,
    models: Mapping[str, nn.Module],
    by: Sequence[str],
    compared: Sequence[str],
    intervals: bool,
    drift: bool,
    saved: Mapping[str, Metric],
) -> tuple[dict[str, ModelScores], dict[str, Any]]:
    """The scores of the models, and the fields of ``Evaluation`` that are asked for beside them.

    compared: two runs, or none.  saved: the question that saves forecasts, by the name of its run.
    """
    data, device, minutes = scored.data, scored.device, scored.data.store.step_minutes
    runs, issued_on = scored.experiments, data.calendar.day(scored.issued)
    begun_on = data.calendar.day(scored.issued + 60 * minutes)
    scores = {name: scored.scores() for name in models}
    errors = {name: scored.errors(congestion="congestion" in by) for name in models if by}
    days = {name: DailyErrors(issued_on, data.horizon, device) for name in compared}
    inside = {name: RunningCoverage(scored.intervals(name), device) for name in runs if intervals}
    daily = {name: DailyCoverage(scored.intervals(name), begun_on, device) for name in runs if drift}
    run_metrics_per_model(
        models, scored.loader, scored.experiment.precision, scores, errors, days, inside, daily, saved
    )
    found = {name: ModelScores.of(each.compute(), scored.protocol) for name, each in scores.items()}
    for run in runs:
        for target in data.targets:
            overall = found[run].overall(target)
            refuse_overflow(run, overall.mae if overall.count else 0.0)
    divided = {name: each.compute() for name, each in errors.items()}
    covered = {name: each.compute(minutes) for name, each in inside.items()}
    return found, {
        "by": {name: {key: rows[key] for key in by} for name, rows in divided.items()},
        "coverage": {name: dict(zip(data.targets, each, strict=True)) for name, each in covered.items()},
        "difference": difference(days, minutes, _start_among(scored)) if days else None,
        "drift": {name: each.compute(_stuck_at_the_end(scored)) for name, each in daily.items()},
    }


@dataclass
class ForecastWriter:
    """Hands every batch to a writer, without the windows that pad the last one; left: windows still to come."""

    write: Callable[[np.ndarray, np.ndarray], None]
    left: int

    def update(self, forecast: Tensor, batch: Batch, target: Target) -> None:
        """forecast [B,P,N,G] of the next batch; the device is waited for."""
        real = slice(0, self.left)
        self.left -= min(self.left, len(forecast))
        truth = torch.where(target.valid, target.values, torch.nan)
        self.write(forecast[real].float().cpu().numpy(), truth[real].cpu().numpy())


def _check(
    runs: Sequence[str],
    baselines: bool,
    by: Sequence[str],
    compare: bool,
    drift: bool,
    save_forecasts: str | Path | None,
) -> None:
    """Raise SettingsError where nothing is to be scored, or not what is asked for."""
    if not runs and not baselines:
        file = Argument("data.path", "FILE.h5")
        options = f"name a run folder, or {Argument('baselines', True)} with {file}, or both"
        raise SettingsError("evaluate", "nothing to score", options)
    if unknown := [name for name in by if name not in BY]:
        raise SettingsError(Argument("by", unknown[0]), f"not one of {', '.join(BY)}", "choose from these")
    if compare and len(set(runs)) != 2:
        raise SettingsError(Argument("compare", True), "it compares two runs", "name two run folders")
    if drift and not runs:
        raise SettingsError(Argument("drift", True), "it is of runs", "name a run folder")
    if save_forecasts is not None:
        if len(runs) != 1:
            raise SettingsError(
                Argument("save_forecasts", save_forecasts), "it takes the forecasts of one run", "name one run folder"
            )
        check_scored(Path(save_forecasts))


def _forecast_files(names: Sequence[str], of_runs: str | None) -> list[str]:
    """Those of the names that are of files of forecasts; SettingsError where all are, and this argument is of runs."""
    files = [name for name in names if Path(name).suffix.lower() in READ_SUFFIXES and not Path(name).is_dir()]
    if of_runs and names and len(files) == len(names):
        raise SettingsError(Argument(of_runs, True), "it is of runs alone", "name a run folder")
    return files


def _check_climatologies(trained: Mapping[str, Trained]) -> None:
    """SettingsError where the model of a run has no climatology."""
    for run, each in trained.items():
        if not each.past_days:
            helps = f"train it with {Argument('model.climatology', True)}"
            raise SettingsError(Argument("climatology_days"), f"{run} was trained without a climatology", helps)


def _days_in(known: int | str | Sequence[int | str]) -> list[int | None]:
    """Numbers of days that are known, None: all; SettingsError for what is none."""
    several = known if isinstance(known, str) else map(str, known if isinstance(known, Iterable) else [known])
    texts = names_in(several)
    words = {"all": None, "trained": UNTIL_TRAINED}
    for text in texts:
        if text not in words and not re.fullmatch("[0-9]{1,4}", text):
            wrong = f"neither a number of days nor {' or '.join(words)}"
            raise SettingsError(Argument("climatology_days", text), wrong, "for example 0,7,all")
    return [words[text] if text in words else int(text) for text in dict.fromkeys(texts)]


def _stuck_at_the_end(scored: ScoredSplit) -> dict[str, float]:
    """Sensors that repeat one reading on the last day that is scored, and for how many hours."""
    store, last = scored.data.store, int(scored.data.forecast_rows(scored.split, scored.places)[1].max())
    rows = slice(int(np.searchsorted(store.seconds, store.seconds[last] - DAY_S, "right")), last + 1)
    return stuck_sensors(store.within(rows))


def _start_among(scored: ScoredSplit) -> str:
    """The run from which the training of another one started, by their settings; empty: there is none."""
    names = {os.path.realpath(name): name for name in scored.experiments}
    starts = (experiment.settings.trainer.init_from for experiment in scored.experiments.values())
    return next((names[path] for path in map(os.path.realpath, filter(None, starts)) if path in names), "")


def _saved(stack: ExitStack, path: Path, run: str, scored: ScoredSplit) -> ForecastWriter:
    """The question for all forecasts of a run with the truth; the file is whole when the stack ends well."""
    known = about(scored.data, scored.split, scored.places, run)
    return ForecastWriter(stack.enter_context(saving(path, known)), len(known.origin))
