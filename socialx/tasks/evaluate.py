"""``evaluate``: runs and baselines -> scores under one protocol."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from socialx.core.batch import Batch, Target
from socialx.core.errors import Argument, SettingsError
from socialx.core.help import END, SPLIT, START, Help, with_help
from socialx.core.notebook import names_in
from socialx.core.outputs import check_outputs
from socialx.core.progress import Callback, subscribe
from socialx.data.calendar import DAY_S
from socialx.data.climatology import ALL_DAYS, TRAINED_DAYS, PastDays
from socialx.files.store.time_axis import Time
from socialx.forecast.files import READ_SUFFIXES, SCORED, scored_writer
from socialx.inspection.report import stuck_sensors
from socialx.scoring.difference import DailyErrors, difference
from socialx.scoring.drift import DailyCoverage
from socialx.scoring.intervals import RunningCoverage
from socialx.scoring.metrics import BY
from socialx.scoring.protocol import Trained
from socialx.scoring.results import Evaluation, ModelScores, published_scores
from socialx.scoring.scoring_pass import Metric, refuse_overflow, run_metrics_per_model
from socialx.scoring.silent import parse_shares
from socialx.settings.arguments import SettingsArguments
from socialx.settings.layers import ConfigLayers
from socialx.settings.schema import Settings
from socialx.tasks.memory import when_memory_runs_out
from socialx.tasks.scored_split import ScoredSplit, load_scored_split, metadata
from socialx.tasks.train import Run, run_names


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
        Help("also score runs with N days in the climatology, or with the training days (train)", "N,N"),
    ] = (),
    silent: Annotated[
        float | str | Sequence[float], Help("also score runs while these shares of the sensors are silent", "X,X")
    ] = (),
    intervals: Annotated[bool, Help("also say how often the prediction intervals of runs hold")] = False,
    by: Annotated[
        str | Sequence[str], Help("also the MAE by horizon, hour, weekday, sensor, congestion", "WHAT,WHAT")
    ] = (),
    compare: Annotated[bool, Help("also the difference of two runs, with its 95 % interval")] = False,
    drift: Annotated[bool, Help("also say whether runs are as good as their calibration promised, by day")] = False,
    protocols: Annotated[bool, Help("also the MAE under each rule that publications use")] = False,
    save_forecasts: Annotated[
        str | Path | None, Help("also write all forecasts with the truth, .h5 or .parquet", "FILE")
    ] = None,
    overwrite: Annotated[bool, Help("replace existing files")] = False,
    split: Annotated[str, SPLIT] = "test",
    start: Annotated[Time | None, START] = None,
    end: Annotated[Time | None, END] = None,
    settings: Settings | ConfigLayers | None = None,
    progress: Callback | None = None,
    **sections: Unpack[SettingsArguments],
) -> Evaluation:
    """Score runs, baselines, or both by MAE, RMSE, MAPE and R2 over every window of a split.

    Files of forecasts, as ``predict`` writes, are scored on the windows that all files forecast.  data: a file in place
    of the runs' own data; combine new data with the split ``all``.  settings, sections: as in ``train``.  Scores are
    computed in float32 unless ``trainer={"precision": ...}`` sets another precision.

    Raises SettingsError for an empty request, for runs with different windows, and for ``climatology_days`` with a run
    that lacks a climatology; SocialxError for a run that lacks the requested intervals.
    """
    with subscribe(progress), ExitStack() as stack:
        names, by, days = run_names(runs), names_in(by), _parse_days(climatology_days)
        shares = parse_shares(silent)
        _check_arguments(names, baselines, by, compare, drift, save_forecasts)
        run_options = {"climatology_days": days, "silent": shares, "intervals": intervals, "drift": drift}
        files = _forecast_files(names, next((name for name, asked in run_options.items() if asked), None))
        layers = ConfigLayers.from_call(settings, {**sections, "data": data})
        check_outputs((save_forecasts, SCORED), others=names, overwrite=overwrite)
        scored = load_scored_split([name for name in names if name not in files], layers, split, start, end, files)
        if days:
            _check_climatologies(scored.trained)
        stack.enter_context(when_memory_runs_out(scored.experiment))
        scored.data.note_clock(by)
        models = (scored.baselines() if baselines else {}) | scored.models()
        saved = {} if save_forecasts is None else {names[0]: _writer(stack, Path(save_forecasts), names[0], scored)}
        compared = names if compare else []
        scores, beside = _score_models(scored, models, by, compared, intervals, drift, protocols, saved)
        protocol = scored.protocol
        results = published_scores(protocol, split) if baselines else ()
        extra = scored.score_climatology_days(days, frozen=bool(results))
        beside["silent"] = scored.score_silent(shares)
        return Evaluation(split, protocol, scores, results, extra, **beside)


def _score_models(
    scored: ScoredSplit,
    models: Mapping[str, nn.Module],
    by: Sequence[str],
    compared: Sequence[str],
    intervals: bool,
    drift: bool,
    protocols: bool,
    saved: Mapping[str, Metric],
) -> tuple[dict[str, ModelScores], dict[str, Any]]:
    """Score the models in one pass, and return scores and the extra fields of ``Evaluation``.

    compared: two runs, or empty.  saved: the metric that saves forecasts, by run name.
    """
    data, device, minutes = scored.data, scored.device, scored.data.store.step_minutes
    runs, issued_on = scored.experiments, data.calendar.day(scored.origins)
    begun_on = data.calendar.day(scored.origins + 60 * minutes)
    scores = {name: scored.scores() for name in models}
    errors = {name: scored.errors(congestion="congestion" in by) for name in models if by}
    days = {name: DailyErrors(issued_on, data.horizon, device) for name in compared}
    inside = {name: RunningCoverage(scored.intervals(name), device) for name in runs if intervals}
    daily = {name: DailyCoverage(scored.intervals(name), begun_on, device) for name in runs if drift}
    rules = {name: scored.rules() for name in models if protocols}
    run_metrics_per_model(
        models, scored.loader, scored.experiment.precision, scores, errors, days, inside, daily, rules, saved
    )
    scored_models = {name: ModelScores.from_scores(sums.compute(), scored.protocol) for name, sums in scores.items()}
    for run in runs:
        for target in data.targets:
            overall = scored_models[run].overall(target)
            refuse_overflow(run, overall.mae if overall.count else 0.0)
    by_rule = {name: windows.compute() for name, windows in rules.items()}
    divided = {name: metric.compute() for name, metric in errors.items()}
    covered = {name: metric.compute(minutes) for name, metric in inside.items()}
    return scored_models, {
        "by": {name: {key: rows[key] for key in by} for name, rows in divided.items()},
        "coverage": {name: dict(zip(data.targets, metric, strict=True)) for name, metric in covered.items()},
        "difference": difference(days, minutes, _find_start_run(scored)) if days else None,
        "drift": {name: metric.compute(_stuck_on_last_day(scored)) for name, metric in daily.items()},
        "protocols": {name: mae for name, (mae, _) in by_rule.items()},
        "without_target": next((without for _, without in by_rule.values()), None),
    }


@dataclass
class ForecastWriter:
    """A metric that passes every batch to a writer, without padding.  left: the windows still to come."""

    write: Callable[[np.ndarray, np.ndarray], None]
    left: int

    def update(self, forecast: Tensor, batch: Batch, target: Target) -> None:
        """Write a forecast [B,P,N,G] with its targets; waits for the device."""
        real = slice(0, self.left)
        self.left -= min(self.left, len(forecast))
        truth = torch.where(target.valid, target.values, torch.nan)
        self.write(forecast[real].float().cpu().numpy(), truth[real].cpu().numpy())


def _check_arguments(
    runs: Sequence[str],
    baselines: bool,
    by: Sequence[str],
    compare: bool,
    drift: bool,
    save_forecasts: str | Path | None,
) -> None:
    """Raise SettingsError for an empty request or conflicting arguments."""
    if not runs and not baselines:
        file = Argument("data.path", "FILE.h5")
        options = f"name a run folder, or add {Argument('baselines', True)} with {file}"
        raise SettingsError("evaluate.nothing", "", "evaluate needs runs or baselines to score", options)
    if unknown := [name for name in by if name not in BY]:
        raise SettingsError(
            "evaluate.by", "", f"{Argument('by', unknown[0])} is unknown", f"choose from {', '.join(BY)}"
        )
    if compare and len(set(runs)) != 2:
        raise SettingsError(
            "evaluate.compare", "", f"{Argument('compare', True)} needs two runs", "name two run folders"
        )
    if drift and not runs:
        raise SettingsError("evaluate.drift", "", f"{Argument('drift')} needs a trained run", "name a run folder")
    if save_forecasts is not None and len(runs) != 1:
        problem = f"{Argument('save_forecasts', save_forecasts)} needs exactly one run"
        raise SettingsError("evaluate.one-run", "", problem, "name one run folder")


def _forecast_files(names: Sequence[str], run_option: str | None) -> list[str]:
    """Return the names of forecast files.  Raises SettingsError where ``run_option`` needs a run among the names."""
    files = [name for name in names if Path(name).suffix.lower() in READ_SUFFIXES and not Path(name).is_dir()]
    if run_option and names and len(files) == len(names):
        raise SettingsError(
            "evaluate.only-files",
            "",
            f"{Argument(run_option)} needs a run, not only files of forecasts",
            "name a run folder",
        )
    return files


def _check_climatologies(trained: Mapping[str, Trained]) -> None:
    """Raise SettingsError where a run lacks a climatology."""
    for run, facts in trained.items():
        if not facts.past_days:
            helps = f"train the run with {Argument('model.climatology', True)}"
            raise SettingsError(
                "evaluate.no-climatology",
                "",
                f"{Argument('climatology_days')} needs a climatology, which {run} lacks",
                helps,
            )


def _parse_days(days: int | str | Sequence[int | str]) -> list[PastDays]:
    """Return days from a number or ``0,7,all``; also ``train``. Raises SettingsError for other text."""
    several = days if isinstance(days, str) else map(str, days if isinstance(days, Iterable) else [days])
    texts = names_in(several)
    words = {"all": ALL_DAYS, "train": TRAINED_DAYS}
    for text in texts:
        if text not in words and not re.fullmatch("[0-9]{1,4}", text):
            wrong = f"{Argument('climatology_days', text)} must be a number of days, {' or '.join(words)}"
            raise SettingsError(
                "evaluate.days", "", wrong, f"use for example {Argument('climatology_days', '0,7,all')}"
            )
    return [words[text] if text in words else PastDays((int(text),)) for text in dict.fromkeys(texts)]


def _stuck_on_last_day(scored: ScoredSplit) -> dict[str, float]:
    """Return id -> hours for the sensors that repeat one value on the last scored day."""
    store, last = scored.data.store, int(scored.data.forecast_rows(scored.split, scored.indices)[1].max())
    rows = slice(int(np.searchsorted(store.seconds, store.seconds[last] - DAY_S, "right")), last + 1)
    return stuck_sensors(store.select_rows(rows))


def _find_start_run(scored: ScoredSplit) -> str:
    """Return the scored run that another scored run was fine-tuned from, by the settings, or an empty string."""
    names = {os.path.realpath(name): name for name in scored.experiments}
    starts = (experiment.settings.trainer.init_from for experiment in scored.experiments.values())
    return next((names[path] for path in map(os.path.realpath, filter(None, starts)) if path in names), "")


def _writer(stack: ExitStack, path: Path, run: str, scored: ScoredSplit) -> ForecastWriter:
    """Return the metric that saves all forecasts of a run; the file is complete when the stack ends."""
    facts = metadata(scored.data, scored.split, scored.indices, run)
    return ForecastWriter(stack.enter_context(scored_writer(path, facts)), len(facts.origin))
