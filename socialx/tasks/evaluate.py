"""``evaluate``: runs and baselines -> scores under one protocol."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from socialx.core.batch import Batch, Target
from socialx.core.errors import Argument, SettingsError
from socialx.core.help import END, SPLIT, START, Help, Output, Scores, with_help
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
from socialx.scoring.intervals import RunningBrier, RunningCoverage
from socialx.scoring.metrics import BY
from socialx.scoring.protocol import Trained
from socialx.scoring.results import Evaluation, ModelScores, published_scores
from socialx.scoring.scoring_pass import Metric, refuse_overflow, run_metrics
from socialx.scoring.silent import parse_shares
from socialx.settings.arguments import SettingsArguments
from socialx.settings.layers import ConfigLayers
from socialx.settings.schema import Settings
from socialx.tasks.memory import when_memory_runs_out
from socialx.tasks.opened import average_runs, refuse_few
from socialx.tasks.scored_split import Part, ScoredSplit, load_scored_split, metadata
from socialx.tasks.train import Run, run_names


@with_help
def evaluate(
    runs: Annotated[
        str | Path | Run | Sequence[str | Path | Run], Help("run folders, or files of forecasts", "[RUN]...")
    ] = (),
    data: str | Path | Mapping[str, Any] | None = None,
    *,
    baselines: Annotated[
        bool, Scores("also score naive, historical average and median, and list published results")
    ] = False,
    climatology_days: Annotated[
        int | str | Sequence[int | str],
        Scores("also score runs with N days in the climatology, or with the training days (train)", "N,N"),
    ] = (),
    silent: Annotated[
        float | str | Sequence[float], Scores("also score runs while these shares of the sensors are silent", "X,X")
    ] = (),
    intervals: Annotated[bool, Scores("also say how often the prediction intervals of runs hold")] = False,
    below: Annotated[
        float | None, Scores("also the Brier score of probabilities below this value, per lead time", "X")
    ] = None,
    by: Annotated[
        str | Sequence[str], Scores("also the MAE by horizon, hour, weekday, sensor, congestion", "WHAT,WHAT")
    ] = (),
    mean: Annotated[bool, Scores("also the mean of the runs' forecasts, and the deviation of their scores")] = False,
    compare: Annotated[bool, Scores("also the difference of two runs, with its 95 % interval")] = False,
    drift: Annotated[bool, Scores("also say whether runs are as good as their calibration promised, by day")] = False,
    protocols: Annotated[bool, Help("also the MAE under each rule that publications use")] = False,
    save_forecasts: Annotated[
        str | Path | None, Output("also write all forecasts with the truth, .h5 or .parquet", "FILE")
    ] = None,
    overwrite: Annotated[bool, Output("replace existing files")] = False,
    split: Annotated[str, SPLIT] = "test",
    start: Annotated[Time | None, START] = None,
    end: Annotated[Time | None, END] = None,
    forecasts: Any = None,
    settings: Settings | ConfigLayers | None = None,
    progress: Callback | None = None,
    **sections: Unpack[SettingsArguments],
) -> Evaluation:
    """Score runs, baselines, or both by MAE, RMSE, MAPE and R2 over every window of a split.

    Files of forecasts, as ``predict`` writes, are scored on the windows that all files forecast.  forecasts: an array
    or tensor of your own, [W,P,N] or [W,P,N,G] in file units, for the windows of the split in the order of
    ``open_dataset``; the result names these scores ``forecasts``.  data: a file in place of the runs' own data; combine
    new data with the split ``all``.  settings, sections: as in ``train``.  Scores are computed in float32 unless
    ``trainer={"precision": ...}`` sets another precision.

    Raises SettingsError for an empty request, for runs with different windows, for forecasts of another shape, and for
    ``climatology_days`` with a run that lacks a climatology; SocialxError for a run that lacks the requested intervals.
    """
    with subscribe(progress), ExitStack() as stack:
        request = Request(
            named=run_names(runs),
            arrays={} if forecasts is None else {"forecasts": forecasts},
            by=names_in(by),
            climatology_days=_parse_days(climatology_days),
            silent=parse_shares(silent),
            baselines=baselines,
            intervals=intervals,
            below=below,
            mean=mean,
            compare=compare,
            drift=drift,
            protocols=protocols,
            saved=None if save_forecasts is None else Path(save_forecasts),
        )
        request.check()
        layers = ConfigLayers.from_call(settings, {**sections, "data": data}, task=evaluate)
        check_outputs((save_forecasts, SCORED), others=request.named, overwrite=overwrite)
        scored = load_scored_split(request.runs, layers, Part(split, start, end), request.files, request.arrays)
        together = ""
        if mean:
            several = average_runs([*scored.opened.values()])
            scored.opened[together := str(several.run.named)] = several
        if request.climatology_days:
            _check_climatologies(scored.trained)
        stack.enter_context(when_memory_runs_out(scored.experiment))
        scored.data.note_clock(request.by)
        models = (scored.baselines() if baselines else {}) | scored.models()
        scores, beside = _score_models(scored, models, request, stack)
        results = published_scores(scored.protocol, split) if baselines else ()
        days = scored.score_climatology_days(request.climatology_days, frozen=bool(results))
        quiet = scored.score_silent(request.silent) if request.silent else {}
        return Evaluation(split, scored.protocol, scores, results, days, quiet, together, **beside)


@dataclass(frozen=True)
class Request:
    """The arguments of ``evaluate``, parsed: the models to score, and the further scores.

    named: run folders and forecast files.  arrays: forecasts by the name of the scores.  saved: a file for all
    forecasts, with a single run or the mean.
    """

    named: Sequence[str]
    arrays: Mapping[str, Any]
    by: Sequence[str]
    climatology_days: Sequence[PastDays]
    silent: Sequence[float]
    baselines: bool
    intervals: bool
    below: float | None
    mean: bool
    compare: bool
    drift: bool
    protocols: bool
    saved: Path | None

    @cached_property
    def files(self) -> list[str]:
        """The names of forecast files."""
        return [name for name in self.named if Path(name).suffix.lower() in READ_SUFFIXES and not Path(name).is_dir()]

    @property
    def runs(self) -> list[str]:
        """The names of run folders."""
        return [name for name in self.named if name not in self.files]

    @property
    def names(self) -> list[str]:
        """The names of everything to score, without baselines."""
        return [*self.named, *self.arrays]

    def check(self) -> None:
        """Raise SettingsError for an empty request or conflicting arguments."""
        if not self.names and not self.baselines:
            file = Argument("data.path", "FILE.h5")
            options = f"name a run folder, or add {Argument('baselines', True)} with {file}"
            raise SettingsError("score.nothing", "", "evaluate needs runs or baselines to score", options)
        if unknown := [name for name in self.by if name not in BY]:
            wrong = f"{Argument('by', unknown[0])} is unknown"
            raise SettingsError("score.by", "", wrong, f"choose from {', '.join(BY)}")
        if {*self.named} & {*self.arrays}:
            taken = "a run or file is called forecasts, as the scores of the array"
            raise SettingsError("score.same-name", "", taken, "rename the run or file")
        refuse_few(self.runs, self.mean)
        if self.compare and len(set(self.names)) != 2:
            raise SettingsError("score.two", "", f"{Argument('compare', True)} needs two runs", "name two run folders")
        if self.drift and not self.names:
            raise SettingsError("score.drift", "", f"{Argument('drift')} needs a trained run", "name a run folder")
        if self.saved is not None and len(self.names) != 1 and not self.mean:
            problem = f"{Argument('save_forecasts', self.saved)} needs exactly one run"
            raise SettingsError("score.one-run", "", problem, "name one run folder")
        if self.names and not self.runs:
            of_runs = ("climatology_days", "silent", "intervals", "below", "drift")
            asked = [name for name in of_runs if getattr(self, name)]
            if asked:
                problem = f"{Argument(asked[0])} needs a run, not only files of forecasts"
                raise SettingsError("score.only-files", "", problem, "name a run folder")


def _score_models(
    scored: ScoredSplit, models: Mapping[str, nn.Module], request: Request, stack: ExitStack
) -> tuple[dict[str, ModelScores], dict[str, Any]]:
    """Score the models in one pass, and return scores and the extra fields for ``Evaluation``; stack: closes files."""
    data, device, minutes = scored.data, scored.device, scored.data.store.step_minutes
    days, runs = data.calendar.day, scored.experiments
    begun_on = days(scored.origins + 60 * minutes)
    scores = {name: scored.scores() for name in models}
    errors = {name: scored.errors(congestion="congestion" in request.by) for name in models if request.by}
    compared = request.names if request.compare else ()
    daily = {name: DailyErrors(days(scored.origins), data.horizon, device) for name in compared}
    inside = {name: RunningCoverage(scored.intervals(name), device) for name in runs if request.intervals}
    brier = {} if request.below is None else scored.brier(request.below)
    drifts = {name: DailyCoverage(scored.intervals(name), begun_on, device) for name in runs if request.drift}
    rules = {name: scored.rules() for name in models if request.protocols}
    alone = list(runs)[-1:] if request.mean else request.names
    saved = {name: _writer(stack, request.saved, name, scored) for name in alone if request.saved}
    kinds: Sequence[Mapping[str, Metric]] = (scores, errors, daily, inside, brier, drifts, rules, saved)
    for name, model in models.items():
        metrics = [kind[name] for kind in kinds if name in kind]
        run_metrics(model, scored.loader, scored.experiment.precision, *metrics, name=f"score {name}")
    scored_models = {name: ModelScores.from_scores(sums.compute(), scored.protocol) for name, sums in scores.items()}
    for run, target in product(runs, data.targets):
        overall = scored_models[run].overall(target)
        refuse_overflow(run, overall.mae if overall.count else 0.0)
    by_rule = {name: windows.compute() for name, windows in rules.items()}
    divided = {name: metric.compute() for name, metric in errors.items()}
    covered = {name: metric.compute(minutes) for name, metric in inside.items()}
    return scored_models, {
        "by": {name: {key: rows[key] for key in request.by} for name, rows in divided.items()},
        "coverage": {name: dict(zip(data.targets, metric, strict=True)) for name, metric in covered.items()},
        "brier": dict(zip(brier, map(RunningBrier.compute, brier.values()), strict=True)),
        "difference": difference(daily, minutes, _find_start_run(scored)) if daily else None,
        "drift": {name: metric.compute(_stuck_on_last_day(scored)) for name, metric in drifts.items()},
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


def _check_climatologies(trained: Mapping[str, Trained]) -> None:
    """Raise SettingsError where a run lacks a climatology."""
    for run, facts in trained.items():
        if not facts.past_days:
            lacks = f"{Argument('climatology_days')} needs a climatology, which {run} lacks"
            helps = f"train the run with {Argument('model.climatology', True)}"
            raise SettingsError("score.no-climatology", "", lacks, helps)


def _parse_days(days: int | str | Sequence[int | str]) -> list[PastDays]:
    """Return days from a number or ``0,7,all``; also ``train``. Raises SettingsError for other text."""
    several = days if isinstance(days, str) else map(str, days if isinstance(days, Iterable) else [days])
    texts = names_in(several)
    words = {"all": ALL_DAYS, "train": TRAINED_DAYS}
    for text in texts:
        if text not in words and not re.fullmatch("[0-9]{1,4}", text):
            wrong = f"{Argument('climatology_days', text)} must be a number of days, {' or '.join(words)}"
            raise SettingsError("score.days", "", wrong, f"use for example {Argument('climatology_days', '0,7,all')}")
    return [words[text] if text in words else PastDays((int(text),)) for text in dict.fromkeys(texts)]


def _stuck_on_last_day(scored: ScoredSplit) -> dict[str, float]:
    """Return id -> hours for the sensors that repeat one value on the last scored day."""
    store, last = scored.data.store, int(scored.rows[1].max())
    rows = slice(int(np.searchsorted(store.seconds, store.seconds[last] - DAY_S, "right")), last + 1)
    return stuck_sensors(store.select_rows(rows))


def _find_start_run(scored: ScoredSplit) -> str:
    """Return the scored run that another scored run was fine-tuned from, by the settings, or an empty string."""
    names = {os.path.realpath(name): name for name in scored.experiments}
    starts = (experiment.settings.trainer.init_from for experiment in scored.experiments.values())
    return next((names[path] for path in map(os.path.realpath, filter(None, starts)) if path in names), "")


def _writer(stack: ExitStack, path: Path, run: str, scored: ScoredSplit) -> ForecastWriter:
    """Return the metric that saves all forecasts of a run; the file is complete when the stack ends."""
    facts = metadata(scored, run)
    return ForecastWriter(stack.enter_context(scored_writer(path, facts)), len(facts.origin))
