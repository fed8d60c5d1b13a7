"""A run opened for a data file: the model, data and intervals with which every task that forecasts begins."""

# Shape letters: N sensors, G targets

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from socialx.core.errors import Argument, Message, SettingsError, SocialxError, counted
from socialx.core.progress import note
from socialx.dataset import Dataset
from socialx.forecast.forecast import Forecast
from socialx.model.forecaster import CoarserStepAdapter, MeanModel
from socialx.model.state import check_state
from socialx.scoring.adaptation import PAST_DAYS, Basis, DailyModel, Past, rounded_ratios
from socialx.scoring.intervals import LEAST_LEVEL, ConformalIntervals, DailyIntervals, Intervals, check_threshold
from socialx.scoring.protocol import Trained, network_checksum
from socialx.settings.conflicts import sensor_tables, takes_new_sensors
from socialx.settings.layers import ConfigLayers
from socialx.tasks.build import Experiment
from socialx.tasks.trained_model import (
    adapt_and_check,
    add_climatology,
    align_sensors,
    build_for_run,
    note_left_out,
    refuse_other_file,
)
from socialx.training.run_folder import TrainedRun, open_run


@dataclass(frozen=True, eq=False)
class Opened:
    """A run opened for a file; its experiment's model forecasts every window by the local day."""

    run: TrainedRun
    experiment: Experiment
    trained: Trained
    parts: Sequence[Opened] = ()  # of a mean: its runs, and the other fields are of the first

    @property
    def adapts(self) -> Past | None:
        """The past for scaling and leaning, where a zero-shot run meets another network; else None."""
        past = self.experiment.past
        return past if past is not None and past.adapts else None

    @property
    def ahead(self) -> Experiment:
        """The experiment with the horizon of the forecasts in its data, which may exceed the horizon of the model."""
        if (past := self.experiment.past) is None or not past.extends:
            return self.experiment
        return replace(self.experiment, data=replace(self.experiment.data, horizon=past.file.horizon))

    @property
    def alone(self) -> nn.Module:
        """The model at the network's pace, without leaning."""
        if self.parts:
            return MeanModel(part.alone for part in self.parts).eval()
        return self.experiment.model if self.adapts is None else DailyModel(self.adapts, leans=False)

    @property
    def at_the_end(self) -> nn.Module:
        """The model alone, scaled for the last row's day."""
        if (past := self.adapts) is None:
            return self.experiment.model
        return past.pace(past.bases([int(self.experiment.data.store.seconds[-1])])[0]).model

    def prepare(self, origins: np.ndarray) -> None:
        """Measure pace and leaning for origins int64 [W], in seconds; note if most sensors are rescaled at the first.

        Unprepared forecasts do the same, window by window.
        """
        if (past := self.adapts) is None:
            return
        past.prepare(origins.tolist())
        run, file, pace = past.run, past.file, past.pace(past.bases([int(origins[0])])[0])
        for index, name in enumerate(self.experiment.data.targets):
            ratios = rounded_ratios(pace.speeds[:, index], file, run, name)
            if 2 * (changed := int((ratios != 1).sum())) > len(ratios):
                flows = f"{pace.network[index]:.0f} {file.targets[name]}, {run.free_flow[name]:.0f} {run.targets[name]}"
                problem = f"the free-flow {name} is {flows}, in this file and in the training data"
                rescaled = f"so {counted(changed, 'sensor is', 'sensors are')} rescaled"
                note(Message("run.other-speeds", self.experiment.data.store.path, f"{problem}, {rescaled}"), True)

    def intervals(self, issued: int) -> tuple[Intervals, str]:
        """Return the prediction intervals for the file, and words for intervals from elsewhere.

        On the calibrated network and step these are the stored intervals, and the words are empty.  Elsewhere a
        zero-shot run measures the errors in the week before each local day; with too few observations the stored
        intervals are a first guess.  A mean has only measured intervals.  issued: the first origin, in seconds, for the
        words.  Raises SocialxError for an uncalibrated run, and for too few observations before a mean.
        """
        data, protocol, past = self.experiment.data, self.experiment.protocol, self.experiment.past
        if past is None or not self.parts:
            calibrated = self.run.read_intervals(self.trained.weights)
            here = network_checksum(calibrated.sensors), calibrated.protocol.step_minutes
            same = here == (protocol.network, protocol.step_minutes) and protocol.same_network(calibrated.protocol)
            if past is None or (same and not past.extends):
                flows, old = protocol.free_flow, calibrated.protocol
                ratios = [float(rounded_ratios(flows[name], protocol, old, name)) for name in data.targets]
                return calibrated.rescale(ratios), ""

        def guess(basis: Basis) -> ConformalIntervals:
            if self.parts or past.extends:
                few = f"too few readings in the {PAST_DAYS} days before a forecast for its intervals"
                raise SocialxError("run.few-readings", data.store.path, few, "use a longer file or later times")
            pace = past.pace(basis)
            pairs = zip(data.targets, pace.network.tolist(), strict=True)
            ratios = [float(rounded_ratios(speed, protocol, calibrated.protocol, name)) for name, speed in pairs]
            return calibrated.for_network(data.sensors.ids, pace.speeds, ratios, protocol)

        daily = DailyIntervals(past, self.trained.weights, guess, self.experiment.precision.device, issued)
        if daily.measured(daily.first) is None:
            daily.on(daily.first)  # raises for a mean
            words = f"{calibrated.protocol.dataset}, where {self.run.named} was calibrated, as a first guess"
            return daily, f"{words}: {data.store.path} has too few readings of the week before"
        days = counted(min(data.climatology_days(issued), PAST_DAYS), "day")
        return daily, f"the last {days} of {data.store.path} before {past.day_text(issued)}"

    def band(self, level: float | None, issued: int, below: float | None = None) -> Band | None:
        """Return the intervals with a level, a threshold or both, and note where they come from; None for neither.

        issued: the first origin, in seconds.  Raises an error for another level, and for a threshold with more targets.
        """
        if level is None and below is None:
            return None
        sensors, targets = self.experiment.data.sensors.ids, self.experiment.protocol.targets
        check_threshold(below, targets)
        intervals, words = self.intervals(issued)
        first = intervals.on(intervals.first) if isinstance(intervals, DailyIntervals) else intervals
        first.level_index(LEAST_LEVEL if level is None else level)
        if below is not None:
            first.check_quantiles()
        if words:
            note(Message("intervals.source", "", f"the intervals come from errors on {words}"), True)
        elif unknown := [name for name in sensors if name not in set(intervals.sensors)]:
            those = f"{len(unknown)} of {len(sensors)} sensors were not calibrated"
            note(Message("run.intervals-of-all", "", f"{those}, and have the intervals of all sensors", sample=unknown))
        if isinstance(intervals, ConformalIntervals):
            intervals = intervals.for_sensors(sensors, torch.device("cpu"), targets)
        return Band(intervals, level, below)


@dataclass(frozen=True, eq=False)
class Band:
    """The prediction intervals of a run for the sensors in a file, the requested level, and the threshold."""

    intervals: Intervals
    level: float | None
    below: float | None = None

    def add_bounds(self, forecast: Forecast, values: np.ndarray) -> Forecast:
        """Return the forecast with bounds and probabilities.  values: model output float32 [W,P,N,G], not clipped."""
        output, origins = torch.from_numpy(values), torch.from_numpy(forecast.origin.astype(np.int64))
        if self.level is not None:
            low, high = self.intervals.apply(output, self.level, origins)
            forecast = replace(forecast, interval=self.level, lower=low.numpy(), upper=high.numpy())
        if self.below is None:
            return forecast
        probability = self.intervals.probability_below(output, self.below, origins).numpy()
        return replace(forecast, below=self.below, probability=probability)


def steps_ahead(data: Dataset, ahead_s: int | None) -> int:
    """Return the steps in a horizon in seconds, at least the data's own; SettingsError for a part of a step."""
    step_s = 60 * data.store.step_minutes
    steps, rest = divmod(ahead_s or 0, step_s)
    if rest:
        near = Argument("horizon", f"{(steps + 1) * step_s // 60}min")
        parts = f"{Argument('horizon', f'{(ahead_s or 0) // 60}min')} is no multiple of the step of {step_s // 60} min"
        raise SettingsError("predict.horizon-step", "", parts, f"use {near}")
    return max(steps, data.horizon)


def open_forecasting(
    run: Path | TrainedRun,
    layers: ConfigLayers,
    first: Experiment | None = None,
    *,
    split: bool = True,
    same_missing: bool = False,
    ahead_s: int | None = None,
) -> Opened:
    """Open a run for a file, with trained weights on the device, in file units.

    first: the experiment of a run loaded before, whose data is reused. split: cut the file into splits; False takes the
    whole file and matches sensors by id. same_missing: refuse another missing-value rule, which is otherwise noted.
    ahead_s: a longer horizon in seconds, of a zero-shot run.
    SocialxError for another feature, time step or, with sensor embeddings, network, and for weights that do not fit.
    """
    run = open_run(run) if isinstance(run, Path) else run
    experiment, weights, climatology = build_for_run(run, layers, first, split)
    settings, ids, file = experiment.settings, experiment.data.sensors.ids, experiment.data.store.path
    free = takes_new_sensors(settings) and run.sensors is not None
    tied = sensor_tables(settings) and not free
    if layers.data is None and experiment.protocol.checksum != run.protocol.checksum:
        refuse_other_file(run, experiment.data.stores)
    if tied and not split:
        note_left_out(run, experiment)
    state, fits = adapt_and_check(run, experiment, weights.state, tied, same_missing)
    if not split and first is None:
        experiment.data.note_clock()
    if free:
        state = align_sensors(state, ids, run.sensors or (), run.named, file)
    if climatology:
        experiment = add_climatology(experiment, run, climatology)
    try:
        check_state(experiment.model, state)
    except ValueError as error:
        misfit = f"the weights do not fit {run.settings} ({error})"
        raise SocialxError("run.weights", run.path, misfit, "train again") from None
    experiment.model.load_state_dict(state)
    finer = experiment.data.store.step_minutes // run.protocol.step_minutes if settings.model.zero_shot else 1
    model = CoarserStepAdapter(experiment.model, finer) if finer > 1 else experiment.model
    model.to(experiment.precision.device)
    shared = {field.name: getattr(fits, field.name) for field in fields(Trained) if hasattr(fits, field.name)}
    trained = Trained(
        **shared,
        epoch=weights.epoch,
        parameters=sum(p.numel() for p in experiment.model.parameters()),
        weights=weights.fingerprint,
        past_days=getattr(experiment.model, "climatology", None) is not None,
        seen=run.seen,
    )
    past = None
    if settings.model.zero_shot:
        size, precision = settings.loader.batch_size, experiment.precision
        there = replace(experiment.protocol, horizon=steps_ahead(experiment.data, ahead_s))
        past = Past(model.eval(), experiment.data, run.protocol, there, precision, size)
    adapted = model if past is None or not (past.adapts or past.extends) else DailyModel(past).eval()
    return Opened(run, replace(experiment, past=past, model=adapted), trained)


def refuse_few(runs: Sequence[str], mean: bool) -> None:
    """Raise SettingsError for the mean of fewer than two different runs."""
    if mean and len(set(runs)) < 2:
        needs = f"{Argument('mean', True)} needs two different runs"
        raise SettingsError("mean.few", "", needs, "name another run too")


def average_runs(opened: Sequence[Opened]) -> Opened:
    """Return runs that share data as one, which forecasts their mean.  Raises SettingsError for other climatologies."""
    readers = [one for one in opened if one.trained.past_days]
    stored = {one.experiment.data.prior_climatology and one.trained.checksum for one in readers}
    if len(stored) > 1:
        differ = "the runs store climatologies of different training data"
        raise SettingsError("mean.climatologies", "", differ, "name runs that were trained on one file")
    first, data = opened[0].experiment, (readers or opened)[0].experiment.data
    model = MeanModel(one.experiment.model for one in opened).eval()
    there = replace(first.protocol, horizon=opened[0].ahead.data.horizon)
    past = Past(model, data, first.protocol, there, first.precision, first.settings.loader.batch_size)
    run = replace(opened[0].run, named=Path(f"mean of {len(opened)} runs"))
    trained = replace(opened[0].trained, past_days=bool(readers))
    return Opened(run, replace(first, data=data, model=model, past=past), trained, opened)
