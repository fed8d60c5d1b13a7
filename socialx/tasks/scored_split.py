"""The windows to score with their models: the start of evaluate, explain and report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from socialx.core.errors import Argument, Command, Message, SettingsError, SocialxError, counted, in_short, sample
from socialx.core.progress import note
from socialx.data.calendar import DAY_S
from socialx.data.climatology import TRAINED_DAYS, PastDays
from socialx.dataset import Dataset
from socialx.dataset.loaders import Loader
from socialx.dataset.windows import ALL, SPLITS
from socialx.files.store.store import open_store
from socialx.files.store.time_axis import JITTER_S, Clock, Time, as_text
from socialx.forecast.files import Scored, read_forecasts
from socialx.scoring.adaptation import free_flow_speeds
from socialx.scoring.intervals import DailyIntervals, Intervals, RunningBrier
from socialx.scoring.metrics import RunningErrors, RunningScores
from socialx.scoring.protocol import Period, ScoringProtocol, Trained
from socialx.scoring.published_rules import RunningWindows
from socialx.scoring.references import PrecomputedModel, past_frequency, references
from socialx.scoring.results import FROZEN, ModelScores
from socialx.scoring.scoring_pass import run_metrics
from socialx.scoring.silent import Silent, draw
from socialx.settings.layers import ConfigLayers
from socialx.tasks.build import Experiment, build
from socialx.tasks.opened import Opened, open_forecasting
from socialx.training.run_folder import open_run


@dataclass(frozen=True)
class Part:
    """The windows to score: a split, and a time span within the split, None for the file's first or last row."""

    split: str
    start: Time | None = None
    end: Time | None = None


@dataclass(frozen=True)
class ScoredSplit:
    """A split's windows in time order, with the runs and forecast files.

    indices: window indices in the split, int64 [W].  period: the windows' time range, or None for the whole
    split.  experiment: from the first run, or from the file alone.  opened: the runs by name.  recorded: forecasts
    from files, float32 [W,P,N,G], by file name.
    """

    split: str
    indices: np.ndarray
    period: Period | None
    experiment: Experiment
    opened: dict[str, Opened]
    recorded: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def data(self) -> Dataset:
        """The data set, which all runs share."""
        return self.experiment.data

    @property
    def device(self) -> torch.device:
        """The device for models and metrics."""
        return self.experiment.precision.device

    @property
    def protocol(self) -> ScoringProtocol:
        """The protocol of the scores."""
        return self.experiment.protocol.with_trained(self.trained, self.period)

    @property
    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """The first and the last forecast row of each window, int64 [W]."""
        return self.data.forecast_rows(self.split, self.indices)

    @property
    def span(self) -> tuple[int, int]:
        """The times of the first and the last forecast row, in seconds."""
        first, last = (self.data.store.seconds[rows] for rows in self.rows)
        return int(first.min()), int(last.max())

    @property
    def origins(self) -> np.ndarray:
        """The forecast origin of each window, int64 [W] in seconds."""
        return self.data.store.seconds[self.rows[0] - 1]

    @cached_property
    def loader(self) -> Loader:
        """The windows in batches."""
        return self.data.loader(self.split, self.experiment.settings.loader.batch_size, subset=self.indices)

    @property
    def experiments(self) -> dict[str, Experiment]:
        """The experiments of the runs by name."""
        return {name: opened.experiment for name, opened in self.opened.items()}

    @property
    def trained(self) -> dict[str, Trained]:
        """What is known of the training of the runs, by name, without their mean."""
        return {name: opened.trained for name, opened in self.opened.items() if not opened.parts}

    def models(self) -> dict[str, nn.Module]:
        """Return the models of runs and files by name."""
        runs = {name: experiment.model for name, experiment in self.experiments.items()}
        return runs | {name: PrecomputedModel(values) for name, values in self.recorded.items()}

    def baselines(self) -> dict[str, nn.Module]:
        """Return the baselines for the file by name, on the device."""
        return {name: model.to(self.device) for name, model in references(self.data).items()}

    def scores(self, sensors: torch.Tensor | None = None) -> RunningScores:
        """Return a metric for error sizes; sensors: the mask for counted sensors, bool [N], None for all."""
        means = [self.data.moments[name].mean for name in self.data.targets]
        return RunningScores(self.data.horizon, len(self.data.targets), self.device, means, sensors)

    def score_climatology_days(self, choices: Sequence[PastDays] = (), frozen: bool = False) -> dict[str, ModelScores]:
        """Score the runs, which lean on nothing, with N climatology days before each origin, by name.

        frozen: also score runs that read a climatology with the climatology from the end of training.
        """
        scores = {}
        for run, opened in self.opened.items():
            ended = [TRAINED_DAYS] if frozen and opened.trained.past_days else []
            for days in dict.fromkeys([*choices, *ended]):
                (window,) = days.windows
                label = "all days" if window is None else counted(window, "day")
                name = f"{run}, {FROZEN if days.until == 'trained' else label}"
                sums, experiment = self.scores(), opened.experiment
                size = experiment.settings.loader.batch_size
                loader = self.data.loader(self.split, size, subset=self.indices, days=days)
                run_metrics(opened.alone, loader, experiment.precision, sums, name=f"score {name}")
                scores[name] = ModelScores.from_scores(sums.compute(), self.protocol)
        return scores

    def score_silent(self, shares: Sequence[float]) -> dict[str, ModelScores]:
        """Score the runs while a share of the sensors is silent: over all sensors, the silent ones and the others."""
        scores = {}
        for run, experiment in self.experiments.items():
            for share in shares:
                silent = draw(len(self.data.sensors.ids), share).to(self.device)
                parts = {"": silent | True, ": silent sensors": silent, ": other sensors": ~silent}
                sums = {part: self.scores(sensors) for part, sensors in parts.items()}
                name, model = f"{run}, {100 * share:g} % silent", Silent(experiment.model, silent)
                run_metrics(model, self.loader, experiment.precision, *sums.values(), name=f"score {name}")
                for part, metric in sums.items():
                    scores[name + part] = ModelScores.from_scores(metric.compute(), self.protocol)
        return scores

    @cached_property
    def _free_flow(self) -> np.ndarray:
        """Return the free-flow speeds of the data, float32 [N,G], in file units."""
        return free_flow_speeds(self.data)

    def errors(self, congestion: bool = False) -> RunningErrors:
        """Return a metric for the breakdown of errors; congestion adds speeds below half the free-flow speed."""
        data = self.data
        free_flow = torch.from_numpy(self._free_flow).to(self.device) if congestion else None
        days = data.calendar.day(data.store.seconds[self.rows[0][:, None] + np.arange(data.horizon)])  # [W,P]
        off = np.isin(days, list(data.calendar.holidays_among(days)))
        holiday = torch.from_numpy(off).to(self.device) if off.any() else None
        return RunningErrors(data.horizon, data.sensors.ids, data.store.step_minutes, self.device, free_flow, holiday)

    def rules(self) -> RunningWindows:
        """Return the metric for the MAE under each rule that publications use."""
        starts, rows = self.loader.starts, len(self.data.store.seconds)
        borders = {"validation": int(0.7 * rows), "test": rows - int(0.2 * rows)}  # as BasicTS splits them
        return RunningWindows(len(starts), int(np.searchsorted(starts, borders.get(self.split, 0))))

    def intervals(self, run: str) -> Intervals:
        """Return the prediction intervals of a run for these sensors.  Raises SocialxError for an uncalibrated run."""
        intervals, _ = self.opened[run].intervals(int(self.origins[0]))
        if isinstance(intervals, DailyIntervals):
            return intervals
        return intervals.for_sensors(self.data.sensors.ids, self.device, self.experiments[run].protocol.targets)

    def brier(self, below: float) -> dict[str, RunningBrier]:
        """Return a metric by run for the Brier score, with the past frequency that the run can know."""
        rolling = {run: experiment.settings.model.zero_shot for run, experiment in self.experiments.items()}
        past = {run: past_frequency(self.data, below, rolls).to(self.device) for run, rolls in rolling.items()}
        return {run: RunningBrier(self.intervals(run), past[run], below, self.device) for run in rolling}


def check_split(name: str) -> None:
    """Raise SettingsError unless the name is ``train``, ``validation``, ``test`` or ``all``."""
    if name not in (*SPLITS, ALL):
        choices = f"choose {', '.join(SPLITS)} or {ALL}"
        raise SettingsError("split.unknown", "", f"{Argument('split', name)} is unknown", choices)


def load_scored_split(
    runs: Sequence[str],
    layers: ConfigLayers,
    part: Part,
    files: Sequence[str] = (),
    arrays: Mapping[str, Any] | None = None,
) -> ScoredSplit:
    """Load the runs, or the data alone, and choose the windows to score.

    files: forecast files; only windows that all files forecast are scored, and a note states the fraction.  arrays: as
    files, by name, for all windows of the split.  Raises SettingsError for an unknown split, a period without windows,
    arrays of another shape, and runs with different windows; SocialxError as ``open_forecasting`` and
    ``read_forecasts`` do.
    """
    check_split(part.split)
    if layers.argument("data.days") is not None and (part.start is not None or part.end is not None):
        both = f"{Argument('end' if part.start is None else 'start')} cannot be combined with {Argument('data.days')}"
        raise SettingsError("split.with-days", "", both, f"leave out {Argument('data.days')}")
    opened: dict[str, Opened] = {}
    for name, run in {name: open_run(Path(name)) for name in runs}.items():
        first = next((one.experiment for one in opened.values()), None)
        opened[name] = open_forecasting(run, layers, first)
    experiments = [one.experiment for one in opened.values()]
    several = sorted(experiments, key=lambda one: not one.data.train_climatology_days)  # first those that read it
    alone = layers.over({"model.kind": "linear"} if arrays else {})  # fits all windows, and needs no neighbours
    experiment = next(iter(experiments), None) or build(alone.load().in_full_precision())
    experiment = replace(experiment, data=several[0].data) if several else experiment
    experiment.data.note_clock()
    _note_days(experiment, layers)
    indices, period = select_windows(experiment.data, part.split, part.start, part.end)
    scored = ScoredSplit(part.split, indices, period, experiment, opened)
    if files or arrays:
        recorded = {name: read_forecasts(Path(name), metadata(scored, name)) for name in files}
        recorded |= {name: _as_forecasts(array, scored) for name, array in (arrays or {}).items()}
        scored = _within_files(scored, recorded)
    _ = scored.loader  # reads the file: impossible readings are refused before a note
    opened.update({name: replace(one, trained=_select_seen(name, scored)) for name, one in opened.items()})
    for name, one in opened.items():
        one.prepare(scored.origins)
        if one.trained.checksum != experiment.protocol.checksum:
            _note_seen(name, scored)
    return scored


def _as_forecasts(array: Any, scored: ScoredSplit) -> np.ndarray:
    """Return a user's forecasts of the scored windows, float32 [W,P,N,G].  Raises SettingsError for another shape."""
    data, windows = scored.data, len(scored.data.starts(scored.split))
    wanted = (windows, data.horizon, len(data.sensors.ids), len(data.targets))
    try:
        values = np.asarray(array.detach().cpu() if hasattr(array, "detach") else array).astype(np.float32)
    except (TypeError, ValueError) as error:
        raise SettingsError("split.no-array", "", f"forecasts is no array of numbers ({in_short(error)})") from None
    shapes = {wanted, wanted[:-1]} if wanted[-1] == 1 else {wanted}
    if values.shape not in shapes:
        problem = f"forecasts has the shape {values.shape}, and the {scored.split} split needs {wanted}"
        remedy = "give windows x horizon x sensors x targets, in the order of socialx.open_dataset"
        raise SettingsError("split.shape", "", problem, remedy)
    return values.reshape(wanted)[scored.indices]


def _within_files(scored: ScoredSplit, recorded: dict[str, np.ndarray]) -> ScoredSplit:
    """Return the windows that all recorded forecasts hold, with these forecasts, and note the fraction."""
    whole = np.ones(len(scored.indices), bool)
    for name, values in recorded.items():
        has_forecast = np.isfinite(values).all(axis=(1, 2, 3))
        if not has_forecast.any():
            refuse_incomplete(Path(name), scored, values)
        if not has_forecast.all():
            share = f"{has_forecast.sum():,} of {len(has_forecast):,} windows of the {scored.split} split"
            which = f"{share} have a forecast of every sensor and step"
            alone = f"{which} ({has_forecast.mean():.1%}), and every model is scored on these alone"
            note(Message("split.part", name, alone))
        whole &= has_forecast
    if whole.all():
        return replace(scored, recorded=recorded)
    if not whole.any():
        nothing = "the files have no window in common"
        raise SocialxError("split.nothing-common", " and ".join(recorded), nothing, "score the files one by one")
    recorded = {name: values[whole] for name, values in recorded.items()}
    scored = replace(scored, indices=scored.indices[whole], recorded=recorded)
    begin, until = map(as_text, scored.span)
    return replace(scored, period=Period(begin, until, len(scored.indices), tuple(recorded)))


def metadata(scored: ScoredSplit, name: str) -> Scored:
    """Describe forecasts, without values, for the scored windows: sensors, units, origins; name: their run or file."""
    data = scored.data
    return Scored(
        run=name,
        dataset=data.store.dataset_name,
        timezone=data.store.timezone,
        local_zone=data.store.local_zone,
        sensors=data.sensors.ids,
        targets=data.targets,
        units=tuple(data.stores[target].unit for target in data.targets),
        step_minutes=data.store.step_minutes,
        lookback=data.lookback,
        horizon=data.horizon,
        origin=scored.origins.astype("datetime64[s]"),
    )


def refuse_incomplete(path: Path, scored: ScoredSplit, values: np.ndarray) -> None:
    """Raise SocialxError with the reason why forecasts [W,P,N,G] lack a complete window; path: their file."""
    there, data = np.isfinite(values), scored.data
    if not there.any():
        issued = data.store.seconds[data.forecast_rows(scored.split)[0] - 1]
        span = f"{data.store.clock.text(int(issued.min()))} .. {data.store.clock.text(int(issued.max()))}"
        problem = f"no forecast is in the {scored.split} split ({span})"
        raise SocialxError("split.no-forecast", path, problem, "add forecasts")
    sensors = [name for name, any_ in zip(data.sensors.ids, there.any(axis=(0, 1, 3)), strict=True) if not any_]
    steps = [str((k + 1) * data.store.step_minutes) for k, any_ in enumerate(there.any(axis=(0, 2, 3))) if not any_]
    if sensors:
        problem = f"{len(sensors)} of {len(data.sensors.ids)} sensors have no forecast"
        remedy = "add forecasts, or score data without these sensors"
        raise SocialxError("split.sensors", path, problem, remedy, sample=sensors)
    if steps:
        problem = f"{len(steps)} of {data.horizon} steps have no forecast (minutes {sample(steps)})"
        raise SocialxError("split.steps", path, problem, "add forecasts")
    raise SocialxError("split.incomplete", path, "all windows lack a forecast of some sensor or step", "add forecasts")


def _note_days(experiment: Experiment, layers: ConfigLayers) -> None:
    """Note that a run trained on the first days of a file is scored on these days."""
    store, days = experiment.data.store, experiment.settings.data.days
    if days is None or layers.argument("data.days") is not None:
        return
    whole = open_store(store.path)
    if len(whole.seconds) > len(store.seconds):
        every = math.ceil((int(whole.seconds.max() - whole.seconds.min()) + 60 * whole.step_minutes) / DAY_S)
        trained = f"as in training ({Argument('data.days', days)})"
        first = f"only the first {counted(days, 'day')} of {store.path} is scored, {trained}"
        note(Message("split.days", "", first, f"add {Argument('data.days', every)} to score all"))


def _select_seen(run: str, scored: ScoredSplit) -> Trained:
    """Keep the scored rows that a run's teacher, ancestor or further data has seen, with a note on each."""
    trained, protocol = scored.trained[run], scored.experiment.protocol
    spans = (rows if rows.network is None else rows.within(protocol, *scored.span) for rows in trained.seen[1:])
    seen = [rows for rows in spans if rows is not None]
    for rows in seen:
        if rows.last_time is not None:
            _tell_seen(run, scored.data, Clock().seconds(rows.last_time, "start"), f", through {rows.source}")
    return replace(trained, seen=tuple(seen))


def _note_seen(run: str, scored: ScoredSplit) -> None:
    """Note which windows a run may have seen in training, in a file that has grown, and how to exclude seen windows."""
    file, trained = scored.experiment.protocol, scored.trained[run]
    if None in (file.first_time, trained.first_time, trained.last_time):
        return
    step_s, times = (60 * file.step_minutes, (str(file.first_time), str(trained.first_time), str(trained.last_time)))
    begins, first, last = (Clock().seconds(time, "start") for time in times)
    ends, target = int(scored.data.store.seconds.max()), int(scored.origins.min()) + step_s  # the first that is scored
    if ends < first or max(begins, target) > last:
        return
    _tell_seen(run, scored.data, last)


def _tell_seen(run: str, data: Dataset, last: int, through: str = "") -> None:
    """Note that a run may have seen the windows until ``last``, in file seconds, and how to exclude these."""
    clock, step_s = data.store.clock, 60 * data.store.step_minutes
    enough = int(data.store.seconds.max()) - last >= data.horizon * step_s
    unseen = Command("", split=ALL, start=clock.text(last + step_s))
    remedy = f"score only later ones with {unseen}" if enough else "append more rows to score later ones"
    seen = f"{run} may have seen its windows until {clock.text(last)}{through}"
    note(Message("split.seen", data.store.path, seen, remedy))


def select_windows(data: Dataset, split: str, start: Time | None, end: Time | None) -> tuple[np.ndarray, Period | None]:
    """Return the windows of a split with forecasts between start and end, as indices int64 [W], and the period.

    None for start or end means the first or last row of the file; without both, all windows are returned and the period
    is None.  Raises SettingsError for a time outside the file, and for a period without windows.
    """
    seconds, shown = data.store.seconds, data.store.clock.text
    first, last = (seconds[rows] for rows in data.forecast_rows(split))  # of each forecast
    if start is None and end is None:
        return np.arange(len(first)), None
    earliest, latest = int(seconds.min()), int(seconds.max())
    begin, until = earliest, latest
    for argument, time in (("start", start), ("end", end)):
        if time is None:
            continue
        second = data.store.clock.seconds(time, argument)
        if not earliest - JITTER_S <= second <= latest + JITTER_S:
            rows = f"{data.store.path} has rows from {shown(earliest)} to {shown(latest)}, without"
            nearest = Argument(argument, shown(earliest if second < earliest else latest))
            raise SettingsError(
                "split.period", "", f"{rows} {Argument(argument, shown(second))}", f"use {nearest}, the nearest"
            )
        begin, until = (second, until) if argument == "start" else (begin, second)
    inside = np.flatnonzero((first >= begin) & (last <= until))
    if not len(inside):
        problem = f"the {split} split has no forecast within {shown(begin)} .. {shown(until)}"
        forecasts = f"choose times within {shown(int(first.min()))} .. {shown(int(last.max()))}"
        more = "" if split == ALL else f", or add {Argument('split', ALL)}"
        raise SettingsError("split.empty-period", "", problem, forecasts + more)
    return inside, Period(as_text(begin), as_text(until), len(inside))
