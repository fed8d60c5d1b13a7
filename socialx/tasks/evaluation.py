"""``evaluate``: runs and reference forecasts -> their scores under one protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from socialx.batch import Batch, Target
from socialx.build import Problem, build
from socialx.data.calendar import DAY_S
from socialx.data.loaders import Loader
from socialx.data.windows import ALL, PARTS
from socialx.errors import Argument, SettingsError, SocialxError
from socialx.files.forecasts import Scored, check_scored, saving
from socialx.model.forecaster import Forecaster
from socialx.options import Layers
from socialx.precision import when_memory_runs_out
from socialx.progress import Callback, listening
from socialx.scoring import ladder
from socialx.scoring.breakdown import RunningErrors
from socialx.scoring.difference import DailyErrors, difference
from socialx.scoring.evaluation import Accumulator
from socialx.scoring.evaluation import evaluate as score
from socialx.scoring.intervals import Intervals, RunningCoverage
from socialx.scoring.metrics import RunningScores
from socialx.scoring.online import evaluate_online
from socialx.scoring.references import references
from socialx.scoring.results import BY, Evaluation, ModelScores, breakdown_rows
from socialx.settings import Settings
from socialx.tasks.outputs import check_outputs, inputs_of
from socialx.tasks.period import Time, refuse_two_periods, windows_within
from socialx.tasks.trained import load_several, refuse_overflow
from socialx.tasks.training import Run, remedies, with_plan
from socialx.training import memory, probe
from socialx.training.run_folder import open_run


def evaluate(
    runs: Sequence[str | Path | Run] = (),
    data: str | Path | Mapping[str, Any] | None = None,
    *,
    part: str = "test",
    start: Time | None = None,
    end: Time | None = None,
    baselines: bool = False,
    online: bool = False,
    intervals: bool = False,
    by: Sequence[str] = (),
    compare: bool = False,
    save: str | Path | None = None,
    overwrite: bool = False,
    settings: Settings | Layers | None = None,
    progress: Callback | None = None,
    **sections: Mapping[str, Any],
) -> Evaluation:
    """MAE, RMSE, MAPE and R2 of runs, of the reference forecasts, or of both, over every window of a part.

    runs: folders, or what ``train`` returned.  data: another file than the runs' own.  part: train, validation or test;
    all is meant for a file that the runs were not trained on.  start, end: only windows whose forecast lies in this
    period, ends included; a date is its 00:00.  baselines: also score copy-last and the historical average.  online:
    also score each run with a climatology that goes on during the part, as ``Evaluation.online``.  Scores are computed
    in float32 unless ``trainer={"precision": ...}`` says otherwise.  The same pass also measures:
    intervals: how often the prediction intervals of each run hold, as ``Evaluation.coverage``.
    by: the MAE by horizon, hour, weekday, sensor or congestion, as ``Evaluation.by``.
    compare: the difference of the MAE of two runs, with its 95 % interval, as ``Evaluation.difference``.
    save: a file, .h5 or .parquet, for all forecasts of one run with the truth; overwrite: replace it.

    Raises SettingsError where there is nothing to score, the runs have different windows, or a run that is to be scored
    online was trained without a climatology; SocialxError where a run has no intervals that were asked for.
    """
    with listening(progress), ExitStack() as stack:
        check_part(part)
        _check(runs, baselines, by, compare)
        layers = Layers.of(settings, sections, data=data)
        refuse_two_periods(layers, start, end)
        _check_save(save, runs)
        check_outputs((save, None), layers=layers, runs=map(str, runs), overwrite=overwrite)
        scores: dict[str, ModelScores] = {}
        now: tuple[Problem, nn.Module, Loader] | None = None  # the run that is scored, should memory run out
        with when_memory_runs_out(lambda: now and out_of_memory(*now, part)):
            problems, trained = load_several(map(str, runs), layers)
            going_on = {name: _with_climatology(each, name) for name, each in problems.items() if online}
            problem = next(iter(problems.values()), None) or build(layers.load().in_full_precision())
            some, period = windows_within(problem.data, part, start, end)
            protocol, d = problem.protocol.with_trained(trained, period), problem.data
            loader = d.loader(part, problem.settings.loader.batch_size, some=some)
            models: dict[str, nn.Module] = references(d) if baselines else {}
            models |= {name: each.model for name, each in problems.items()}
            asked = {name: Asked(problem, part, some, by, compare and name in problems) for name in models}
            if intervals:
                for name, each in trained.items():
                    asked[name].measure(open_run(Path(name)).read_intervals(each.weights))
            if save is not None:
                (name,) = problems
                asked[name].save(stack, Path(save), name)
            for name, model in models.items():
                now = (problems[name], model, loader) if name in problems else None
                found = score(
                    model.to(problem.precision.device),
                    loader,
                    problem.precision,
                    horizon=protocol.horizon,
                    targets=len(d.targets),
                    name=f"score {name}",
                    others=asked[name].accumulators,
                )
                for each_target in found if name in problems else ():
                    refuse_overflow(name, each_target.overall.mae if each_target.overall.count else 0.0)
                scores[name] = ModelScores(dict(zip(d.targets, found, strict=True)), protocol.step_minutes)
            went_on: dict[str, ModelScores] = {}
            for name, model in going_on.items():
                now = (problems[name], model, loader)
                s, precision = problems[name].settings, problems[name].precision
                found = evaluate_online(model, d, part, s.loader.batch_size, precision, f"score {name} online", some)
                went_on[name] = ModelScores(dict(zip(d.targets, found, strict=True)), protocol.step_minutes)
        listed = ladder.published(protocol, part) if baselines else ()
        inputs = tuple(inputs_of(layers, map(str, runs)))
        return Evaluation(part, protocol, scores, listed, went_on, **measured(asked), inputs=inputs)


class Asked:
    """What is measured of one model beside its scores, in the same pass."""

    def __init__(self, problem: Problem, part: str, some: np.ndarray, by: Sequence[str], compare: bool) -> None:
        """some: the windows that are scored, as places in the part."""
        self.data, self.device, self.by = problem.data, problem.precision.device, by
        self.part, self.some = part, some
        d, sensors = self.data, len(self.data.sensors.ids)
        self.errors: RunningErrors | None = None
        self.days: DailyErrors | None = None
        self.coverage: RunningCoverage | None = None
        self.accumulators: list[Accumulator] = []
        if by:
            free_flow = torch.from_numpy(d.free_flow).to(self.device) if "congestion" in by else None
            self.errors = RunningErrors(d.horizon, sensors, d.store.step_minutes, self.device, free_flow)
            self.accumulators.append(self.errors)
        if compare:
            self.days = DailyErrors(self.issued // DAY_S, d.horizon, self.device)
            self.accumulators.append(self.days)

    @property
    def issued(self) -> np.ndarray:
        """When each scored window is issued, int64 [W] in seconds."""
        return self.data.store.seconds[self.data.forecast_rows(self.part, self.some)[0] - 1]

    def measure(self, intervals: Intervals) -> None:
        """Also measure these intervals."""
        self.coverage = RunningCoverage(intervals.of(self.data.sensors.ids, self.device), self.device)
        self.accumulators.append(self.coverage)

    def save(self, stack: ExitStack, path: Path, run: str) -> None:
        """Also write all forecasts with the truth; the file is whole when the stack ends well."""
        d, store = self.data, self.data.store
        about = Scored(
            run=run,
            dataset=store.dataset_name,
            timezone=store.timezone,
            sensors=d.sensors.ids,
            targets=d.targets,
            units=tuple(d.stores[name].unit for name in d.targets),
            step_minutes=store.step_minutes,
            history=d.history,
            horizon=d.horizon,
            issued_at=self.issued.astype("datetime64[s]"),
        )
        self.accumulators.append(Saved(stack.enter_context(saving(path, about)), len(about.issued_at)))


@dataclass
class Saved:
    """Hands every batch to a writer, without the windows that pad the last one; left: windows still to come."""

    write: Callable[[np.ndarray, np.ndarray], None]
    left: int

    def add(self, forecast: Tensor, batch: Batch, target: Target) -> None:
        """forecast [B,P,N,G] of the next batch; the device is waited for."""
        real = slice(0, self.left)
        self.left -= min(self.left, len(forecast))
        truth = torch.where(target.valid, target.values, torch.nan)
        self.write(forecast[real].float().cpu().numpy(), truth[real].cpu().numpy())


def measured(asked: Mapping[str, Asked]) -> dict[str, Any]:
    """What was asked for, as arguments of ``Evaluation``."""
    coverage, by = {}, {}
    days = [(name, each.days) for name, each in asked.items() if each.days]
    for name, each in asked.items():
        d, step_minutes = each.data, each.data.store.step_minutes
        if each.coverage:
            coverage[name] = dict(zip(d.targets, each.coverage.compute(step_minutes), strict=True))
        if each.errors:
            errors = each.errors.compute()
            by[name] = {what: breakdown_rows(errors, what, step_minutes, d.sensors.ids) for what in each.by}
    compared = difference(days[0], days[1], step_minutes) if len(days) == 2 else None
    return {"coverage": coverage, "by": by, "difference": compared}


def _check(runs: Sequence[str | Path | Run], baselines: bool, by: Sequence[str], compare: bool) -> None:
    """Raise SettingsError where nothing is to be scored, or not what is asked for."""
    if not runs and not baselines:
        file = Argument("data.path", "FILE.h5")
        options = ("name a run folder, or ", Argument("baselines", True), " with ", file, ", or both")
        raise SettingsError("evaluate", "nothing to score", options)
    if unknown := [each for each in by if each not in BY]:
        raise SettingsError(Argument("by", unknown[0]), f"not one of {', '.join(BY)}", "choose from these")
    if compare and len({str(run) for run in runs}) != 2:
        raise SettingsError(Argument("compare", True), "it compares two runs", "name two run folders")


def _check_save(path: str | Path | None, runs: Sequence[str | Path | Run]) -> None:
    """Raise an error where the forecasts are to be saved and cannot be."""
    if path is not None:
        if len(runs) != 1:
            raise SettingsError(Argument("save", path), "it takes the forecasts of one run", "name one run folder")
        check_scored(Path(path))


def _with_climatology(problem: Problem, run: str) -> Forecaster:
    """The model of a run; SettingsError where it has no climatology that could go on."""
    model = problem.model
    if not isinstance(model, Forecaster) or model.climatology is None:
        helps = ("train it with ", Argument("model.climatology", True))
        raise SettingsError(Argument("online", True), f"{run} was trained without a climatology", helps)
    return model


def check_part(part: str) -> None:
    """Raise SettingsError for a part that does not exist."""
    if part not in (*PARTS, ALL):
        raise SettingsError(Argument("part", part), f"one of {', '.join(PARTS)}, {ALL}")


def out_of_memory(problem: Problem, model: nn.Module, loader: Loader, part: str) -> SocialxError | None:
    """Give a model up whose scores did not fit, and say how smaller cuts are measured, where they can be."""
    s, device = problem.settings, problem.precision.device
    if device.type not in probe.COUNTED:
        return None

    def peak(plan: memory.Plan) -> float:
        def measure() -> float:
            cut = problem.data.loader(part, plan.windows, some=slice(plan.windows))
            sums = RunningScores(s.data.horizon, len(problem.data.targets), problem.precision.device)
            return probe.score_peak(build(with_plan(s, plan), problem.data).model, cut, problem.precision, sums)

        return probe.measured(measure)

    probe.release(model)
    asked = memory.Plan(loader.batch_size, 1, s.model.chunk)
    sensors = len(problem.data.sensors.ids)
    return probe.advice(probe.Failed(device, asked, sensors, peak, remedies(s, memory.SCORING), "a batch to score"))
