"""``evaluate``: runs and reference forecasts -> their scores under one protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from socialx.build import Problem, build
from socialx.data.loaders import Loader
from socialx.data.windows import ALL, PARTS
from socialx.errors import Argument, SettingsError, SocialxError
from socialx.model.forecaster import Forecaster
from socialx.options import Layers
from socialx.precision import when_memory_runs_out
from socialx.progress import Callback, listening
from socialx.scoring import ladder
from socialx.scoring.evaluation import evaluate as score
from socialx.scoring.intervals import RunningCoverage
from socialx.scoring.metrics import RunningScores
from socialx.scoring.online import evaluate_online
from socialx.scoring.protocol import Trained
from socialx.scoring.references import references
from socialx.scoring.results import Evaluation, ModelScores
from socialx.settings import Settings
from socialx.tasks.trained import load_trained, refuse_overflow
from socialx.tasks.training import Run, remedies, with_plan
from socialx.training import memory, probe
from socialx.training.run_folder import open_run


def evaluate(
    runs: Sequence[str | Path | Run] = (),
    data: str | Path | Mapping[str, Any] | None = None,
    *,
    part: str = "test",
    baselines: bool = False,
    online: bool = False,
    intervals: bool = False,
    settings: Settings | Layers | None = None,
    progress: Callback | None = None,
    **sections: Mapping[str, Any],
) -> Evaluation:
    """MAE, RMSE, MAPE and R2 of runs, of the reference forecasts, or of both, over every window of a part.

    runs: folders, or what ``train`` returned.  data: another file than the runs' own.  part: train, validation or test;
    all is meant for a file that the runs were not trained on.  baselines: also score copy-last and the historical
    average.  online: also score each run with a climatology that goes on during the part, as ``Evaluation.online``.
    intervals: also measure the prediction intervals of each run, as ``Evaluation.coverage``.  Scores are computed in
    float32 unless ``trainer={"precision": ...}`` says otherwise.

    Raises SettingsError where there is nothing to score, the runs have different windows, or a run that is to be scored
    online was trained without a climatology; SocialxError where a run has no intervals that were asked for.
    """
    with listening(progress):
        check_part(part)
        if not runs and not baselines:
            options = (
                "name a run folder, or ",
                Argument("baselines", True),
                " with ",
                Argument("data.path", "FILE.h5"),
            )
            raise SettingsError("evaluate", "nothing to score", (*options, ", or both"))
        layers = Layers.of(settings, sections, data=data)
        problems: dict[str, Problem] = {}
        trained: dict[str, Trained] = {}
        scores: dict[str, ModelScores] = {}
        now: tuple[Problem, nn.Module, Loader] | None = None  # the run that is scored, should memory run out
        with when_memory_runs_out(lambda: now and out_of_memory(*now, part)):
            for run in runs:
                first = next(iter(problems.values()), None)
                problems[str(run)], trained[str(run)] = load_trained(Path(str(run)), layers, first)
            going_on = {name: _with_climatology(each, name) for name, each in problems.items() if online}
            problem = next(iter(problems.values()), None) or build(layers.load().in_full_precision())
            protocol, d = problem.protocol.with_trained(trained), problem.data
            loader = d.loader(part, problem.settings.loader.batch_size)
            models: dict[str, nn.Module] = references(d) if baselines else {}
            covered = {name: _coverage(name, each, trained[name]) for name, each in problems.items() if intervals}
            for name, model in {**models, **{name: each.model for name, each in problems.items()}}.items():
                now = (problems[name], model, loader) if name in problems else None
                found = score(
                    model.to(problem.precision.device),
                    loader,
                    problem.precision,
                    horizon=protocol.horizon,
                    targets=len(d.targets),
                    name=f"score {name}",
                    others=[covered[name]] if name in covered else [],
                )
                for each in found if name in problems else ():
                    refuse_overflow(name, each.overall.mae if each.overall.count else 0.0)
                scores[name] = ModelScores(dict(zip(d.targets, found, strict=True)), protocol.step_minutes)
            went_on: dict[str, ModelScores] = {}
            for name, model in going_on.items():
                now = (problems[name], model, loader)
                s, precision = problems[name].settings, problems[name].precision
                found = evaluate_online(model, d, part, s.loader.batch_size, precision, f"score {name} online")
                went_on[name] = ModelScores(dict(zip(d.targets, found, strict=True)), protocol.step_minutes)
        listed = ladder.published(protocol, part) if baselines else ()
        coverage = {
            name: dict(zip(d.targets, sums.compute(protocol.step_minutes), strict=True))
            for name, sums in covered.items()
        }
        return Evaluation(part, protocol, scores, listed, went_on, coverage)


def _coverage(run: str, problem: Problem, trained: Trained) -> RunningCoverage:
    """What measures the intervals of a run on the device."""
    found, device = open_run(Path(run)).read_intervals(trained.weights), problem.precision.device
    return RunningCoverage(found.of(problem.data.sensors.ids, device), device)


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
