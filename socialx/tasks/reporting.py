"""``report``: runs -> one page with their scores, settings, learning curves, errors and a map."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from socialx.build import Problem
from socialx.data.loaders import Loader
from socialx.dataset import Dataset
from socialx.disk import replacing
from socialx.errors import SettingsError
from socialx.options import Layers, flat, own_settings
from socialx.precision import when_memory_runs_out
from socialx.progress import Callback, listening
from socialx.report.run_page import page
from socialx.report.run_report import RunRecord, RunReport
from socialx.scoring import ladder
from socialx.scoring.attention import AttentionWeights, LayerWeights
from socialx.scoring.breakdown import HOURS, WEEKDAYS, Breakdown, RunningErrors
from socialx.scoring.days import Day, Ends, RecordedForecasts, telling_days
from socialx.scoring.evaluation import run as run_over
from socialx.scoring.metrics import RunningScores
from socialx.scoring.protocol import Trained
from socialx.scoring.references import references
from socialx.scoring.results import Evaluation, ModelScores, error_rows
from socialx.settings import Settings
from socialx.tasks.evaluation import check_part, out_of_memory
from socialx.tasks.explanation import explanation_of, some_batches
from socialx.tasks.outputs import PAGE, check_outputs
from socialx.tasks.period import Time, refuse_two_periods, windows_within
from socialx.tasks.trained import load_several
from socialx.tasks.training import Run
from socialx.training.run_folder import open_run

MINUTES_AHEAD = 30  # of the forecasts that are compared with a day
LEVEL = 0.9  # of the intervals around them


def report_runs(
    runs: Sequence[str | Path | Run],
    data: str | Path | Mapping[str, Any] | None = None,
    *,
    part: str = "test",
    start: Time | None = None,
    end: Time | None = None,
    output: str | Path | None = None,
    settings: Settings | Layers | None = None,
    progress: Callback | None = None,
    **sections: Mapping[str, Any],
) -> RunReport:
    """Scores of runs and reference forecasts, settings, learning curves, and where the best run errs.

    output: write it as one HTML page, which needs no network and no other file; an older one is replaced.  The other
    arguments are those of ``evaluate``.  Every run forecasts the part once.

    Raises SettingsError where no run is named or the runs have different windows.
    """
    with listening(progress):
        check_part(part)
        if not runs:
            raise SettingsError("report", "no run", "name a run folder")
        layers = Layers.of(settings, sections, data=data)
        refuse_two_periods(layers, start, end)
        check_outputs((output, PAGE), layers=layers, runs=map(str, runs))
        passes: dict[str, _Pass] = {}
        now: tuple[Problem, nn.Module, Loader] | None = None  # the run that forecasts, should memory run out
        with when_memory_runs_out(lambda: now and out_of_memory(*now, part)):
            problems, trained = load_several(map(str, runs), layers)
            problem = next(iter(problems.values()))
            some, period = windows_within(problem.data, part, start, end)
            loader = problem.data.loader(part, problem.settings.loader.batch_size, some=some)
            shown = _Shown.of(problem.data, part, some)
            for name, model in {**references(problem.data), **{n: each.model for n, each in problems.items()}}.items():
                now = (problems[name], model, loader) if name in problems else None
                around = _intervals(name, problems[name], trained[name]) if name in problems else None
                passes[name] = _passed(name, model, problem, loader, shown, around)
        explained = [
            explanation_of(name, each, trained[name], part, passes[name].errors, passes[name].weights, period)
            for name, each in problems.items()
        ]
        best = min(explained, key=lambda each: math.inf if each.mae is None else each.mae)
        protocol = problem.protocol.with_trained(trained, period)
        scores = {name: each.scores for name, each in passes.items()}
        found = RunReport(
            evaluation=Evaluation(part, protocol, scores, ladder.published(protocol, part)),
            runs=tuple(_record(name, trained[name]) for name in problems),
            defaults=flat(Settings()),
            by_hour={name: error_rows(range(HOURS), each.errors.by_hour) for name, each in passes.items()},
            by_weekday={name: error_rows(range(WEEKDAYS), each.errors.by_weekday) for name, each in passes.items()},
            explanation=best,
            sensors=problem.data.sensors.ids,
            days=passes[best.run].days,
        )
        if output is not None:
            with replacing(Path(output)) as temporary:
                temporary.write_text(page(found), encoding="utf-8")
        return found


@dataclass(frozen=True)
class _Shown:
    """The windows whose forecasts are kept, at which step of the horizon, and the seconds of the rows they forecast."""

    step: int
    spans: list[slice]
    seconds: list[np.ndarray]

    @classmethod
    def of(cls, data: Dataset, part: str, some: np.ndarray) -> _Shown:
        """Two days of some windows of a part."""
        step = max(1, min(data.horizon, round(MINUTES_AHEAD / data.store.step_minutes)))
        rows = data.forecast_rows(part, some)[0] + step - 1
        spans = telling_days(data.target_source, rows)
        return cls(step, spans, [data.store.seconds[rows[span]] for span in spans])


@dataclass(frozen=True)
class _Pass:
    """What one pass of a model over a part gave."""

    scores: ModelScores
    errors: Breakdown
    weights: list[LayerWeights]
    days: tuple[Day, ...]


def _intervals(name: str, problem: Problem, trained: Trained) -> Ends | None:
    """The ends of the intervals of a run around its forecasts; None for a run without intervals of this level."""
    run, device = open_run(Path(name)), problem.precision.device
    if not run.intervals.exists():
        return None
    found = run.read_intervals(trained.weights).of(problem.data.sensors.ids, device)
    return partial(found.around, level=LEVEL) if found.widest >= LEVEL else None


def _passed(name: str, model: nn.Module, problem: Problem, loader: Loader, shown: _Shown, around: Ends | None) -> _Pass:
    """Forecast every window of a loader once, and add up all that is asked."""
    d, device, minutes = problem.data, problem.precision.device, problem.data.store.step_minutes
    sums = RunningScores(d.horizon, len(d.targets), device)
    errors = RunningErrors(d.horizon, len(d.sensors.ids), minutes, device)
    kept = RecordedForecasts(shown.step, shown.spans, around)
    model = model.to(device)
    weights = AttentionWeights(model)
    watch = some_batches(weights, loader)
    run_over(model, loader, problem.precision, sums, errors, kept, name=f"report {name}", watch=watch)
    days = [
        Day(shown.step * minutes, seconds, truth, forecast, (ends[0], ends[1]) if ends else None)
        for seconds, (truth, forecast, *ends) in zip(shown.seconds, kept.compute(), strict=True)
    ]
    scores = ModelScores(dict(zip(d.targets, sums.compute(), strict=True)), minutes)
    return _Pass(scores, errors.compute(), weights.compute(), tuple(days))


def _record(name: str, trained: Trained) -> RunRecord:
    """What a run folder says of its training."""
    run = open_run(Path(name))
    origins = run.read_json("origin.json") if (run.path / "origin.json").exists() else {}
    settings = flat(own_settings(run.settings).settings)
    return RunRecord(name, settings, {k: str(v) for k, v in origins.items()}, tuple(run.rows()), trained.epoch)
