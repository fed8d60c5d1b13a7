"""The windows that are scored, and what forecasts them: what evaluate, explain and report start from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import nn

from socialx.core.errors import Argument, Message, SettingsError, SocialxError, counted, sample
from socialx.core.progress import note
from socialx.data.climatology import UNTIL_TRAINED
from socialx.data.loaders import Loader
from socialx.data.windows import ALL, SPLITS
from socialx.dataset import Dataset
from socialx.files.store.store import open_store
from socialx.files.store.time_axis import JITTER_S, Time, as_text, wall_seconds
from socialx.forecast.files import Scored, read_forecasts
from socialx.scoring.free_flow import free_flow_of
from socialx.scoring.intervals import ConformalIntervals
from socialx.scoring.metrics import RunningErrors, RunningScores
from socialx.scoring.protocol import Period, ScoringProtocol, Trained
from socialx.scoring.references import PrecomputedModel, references
from socialx.scoring.results import FROZEN, ModelScores
from socialx.scoring.scoring_pass import run_metrics
from socialx.settings.layers import ConfigLayers
from socialx.tasks.build import Experiment, build
from socialx.tasks.trained_model import intervals_of, load_trained
from socialx.training.run_folder import TrainedRun, open_run


@dataclass(frozen=True)
class ScoredSplit:
    """Windows of a split, in the order of time, and the runs and files that forecast them.

    places: of the windows in the split, int64 [W].  period: in which all of them lie, None: they are the whole split.
    experiment: of the first run, and of the file alone where there is no run.  runs: as they were opened.
    recorded: what files forecast, float32 [W,P,N,G].
    """

    split: str
    places: np.ndarray
    period: Period | None
    experiment: Experiment
    runs: dict[str, TrainedRun]
    experiments: dict[str, Experiment]
    trained: dict[str, Trained]
    loader: Loader
    recorded: dict[str, np.ndarray]

    @property
    def data(self) -> Dataset:
        """The file, which all runs share."""
        return self.experiment.data

    @property
    def device(self) -> torch.device:
        """Where models forecast and questions add up."""
        return self.experiment.precision.device

    @property
    def protocol(self) -> ScoringProtocol:
        """What the scores of these runs on these windows depend on."""
        return self.experiment.protocol.with_trained(self.trained, self.period)

    @property
    def issued(self) -> np.ndarray:
        """When the forecast of each window is issued, int64 [W] in seconds."""
        return self.data.store.seconds[self.data.forecast_rows(self.split, self.places)[0] - 1]

    def models(self) -> dict[str, nn.Module]:
        """The models of the runs and of the files, by their names."""
        runs = {name: experiment.model for name, experiment in self.experiments.items()}
        return runs | {name: PrecomputedModel(values) for name, values in self.recorded.items()}

    def baselines(self) -> dict[str, nn.Module]:
        """The reference forecasts for the file, by their names, on the device."""
        return {name: model.to(self.device) for name, model in references(self.data).items()}

    def scores(self) -> RunningScores:
        """The question how large the errors of a model are."""
        means = [self.data.moments[name].mean for name in self.data.targets]
        return RunningScores(self.data.horizon, len(self.data.targets), self.device, means)

    def with_known_days(self, known: Sequence[int | None] = (), frozen: bool = False) -> dict[str, ModelScores]:
        """The scores of the runs that know so many days before each day of issue, as ``Dataset.usual``, by their names.

        frozen: also of those that read past days, with what was known when training ended.
        """
        found = {}
        for run, experiment in self.experiments.items():
            ended = [UNTIL_TRAINED] if frozen and self.trained[run].past_days else []
            for days in dict.fromkeys([*known, *ended]):
                named = {None: "all days", UNTIL_TRAINED: FROZEN}
                name = f"{run}, {named[days] if days in named else counted(days or 0, 'day')}"
                sums, size = self.scores(), experiment.settings.loader.batch_size
                loader = self.data.loader(self.split, size, subset=self.places, days=(days,))
                run_metrics(experiment.model, loader, experiment.precision, sums, name=f"score {name}")
                found[name] = ModelScores.of(sums.compute(), self.protocol)
        return found

    @cached_property
    def _free_flow(self) -> np.ndarray:
        return free_flow_of(self.data)

    def errors(self, congestion: bool = False) -> RunningErrors:
        """The question where a model errs; congestion: also below half of the free-flow speed, which is measured."""
        data = self.data
        free_flow = torch.from_numpy(self._free_flow).to(self.device) if congestion else None
        first = data.forecast_rows(self.split, self.places)[0]
        days = data.calendar.day(data.store.seconds[first[:, None] + np.arange(data.horizon)])  # [W,P]
        off = np.isin(days, list(data.calendar.holidays_among(days)))
        holiday = torch.from_numpy(off).to(self.device) if off.any() else None
        return RunningErrors(data.horizon, data.sensors.ids, data.store.step_minutes, self.device, free_flow, holiday)

    def intervals(self, run: str) -> ConformalIntervals:
        """The prediction intervals of a run for the sensors of the file; SocialxError where it has none."""
        experiment = self.experiments[run]
        intervals, _ = intervals_of(self.runs[run], self.trained[run], experiment, int(self.issued[0]))
        return intervals.of(self.data.sensors.ids, self.device, experiment.protocol.targets)


def scored_split(
    runs: Sequence[str],
    layers: ConfigLayers,
    split: str,
    start: Time | None = None,
    end: Time | None = None,
    files: Sequence[str] = (),
) -> ScoredSplit:
    """Load these runs, or open the data alone where there is none, and choose the windows.

    files: of forecasts; only windows that all of them forecast are scored, and a note says their share.  Raises
    SettingsError for a split that does not exist, for a period without a window, and where runs have different windows;
    SocialxError as ``load_trained`` and ``read_forecasts`` do.
    """
    if split not in (*SPLITS, ALL):
        raise SettingsError(Argument("split", split), f"one of {', '.join(SPLITS)}, {ALL}")
    if layers.argument("data.days") is not None and (start is not None or end is not None):
        both = "the first days of the file are asked for too"
        raise SettingsError(Argument("end" if start is None else "start"), both, f"leave out {Argument('data.days')}")
    experiments: dict[str, Experiment] = {}
    trained: dict[str, Trained] = {}
    opened = {name: open_run(Path(name)) for name in runs}
    for name, run in opened.items():
        experiments[name], trained[name] = load_trained(run, layers, next(iter(experiments.values()), None))
    several = sorted(
        experiments.values(), key=lambda each: not each.data.train_climatology_days
    )  # first those that read the climatology
    experiment = next(iter(experiments.values()), None) or build(layers.load().in_full_precision())
    experiment = replace(experiment, data=several[0].data) if several else experiment
    experiment.data.note_clock()
    _note_days(experiment, layers)
    places, period = windows_within(experiment.data, split, start, end)
    made = {name: read_forecasts(Path(name), about(experiment.data, split, places, name)) for name in files}
    whole = np.ones(len(places), bool)
    for name, values in made.items():
        of_file = np.isfinite(values).all(axis=(1, 2, 3))
        if not of_file.any():
            refuse_lacking(Path(name), experiment.data, split, values)
        if not of_file.all():
            share = f"{of_file.sum():,} of {len(of_file):,} windows of the {split} split"
            which = f"{share} have a forecast of every sensor and step"
            note(Message(name, f"{which} ({of_file.mean():.1%})", "every model is scored on these alone"))
        whole &= of_file
    if not whole.all():
        if not whole.any():
            raise SocialxError(" and ".join(files), "they forecast no window in common", "score them one by one")
        places, made = places[whole], {name: values[whole] for name, values in made.items()}
        begin, until = (experiment.data.store.seconds[rows] for rows in experiment.data.forecast_rows(split, places))
        period = Period(as_text(int(begin.min())), as_text(int(until.max())), len(places), tuple(files))
    loader = experiment.data.loader(split, experiment.settings.loader.batch_size, subset=places)
    scored = ScoredSplit(split, places, period, experiment, opened, experiments, trained, loader, made)
    for name, then in trained.items():
        if then.checksum != experiment.protocol.checksum:
            _note_seen(name, scored)
    return scored


def about(data: Dataset, split: str, places: np.ndarray, name: str) -> Scored:
    """What is known of forecasts of these windows, which a run or a file of this name makes."""
    return Scored(
        run=name,
        dataset=data.store.dataset_name,
        timezone=data.store.timezone,
        sensors=data.sensors.ids,
        targets=data.targets,
        units=tuple(data.stores[target].unit for target in data.targets),
        step_minutes=data.store.step_minutes,
        lookback=data.lookback,
        horizon=data.horizon,
        origin=data.store.seconds[data.forecast_rows(split, places)[0] - 1].astype("datetime64[s]"),
    )


def refuse_lacking(path: Path, data: Dataset, split: str, values: np.ndarray) -> None:
    """Raise SocialxError that says why these forecasts [W,P,N,G] have no whole window: what they lack everywhere."""
    there = np.isfinite(values)
    if not there.any():
        issued = data.store.seconds[data.forecast_rows(split)[0] - 1]
        span = f"{as_text(int(issued.min()))} .. {as_text(int(issued.max()))}"
        raise SocialxError(path, f"no forecast is issued at the windows of the {split} split ({span})", "add them")
    sensors = [name for name, any_ in zip(data.sensors.ids, there.any(axis=(0, 1, 3)), strict=True) if not any_]
    steps = [str((k + 1) * data.store.step_minutes) for k, any_ in enumerate(there.any(axis=(0, 2, 3))) if not any_]
    if sensors:
        found = f"{len(sensors)} of {len(data.sensors.ids)} sensors have no forecast"
        raise SocialxError(path, found, "add them, or score data without them", sample=sensors)
    if steps:
        found = f"{len(steps)} of {data.horizon} steps have no forecast (minutes {sample(steps)})"
        raise SocialxError(path, found, "add them")
    raise SocialxError(path, "no window has a forecast of every sensor and step", "add them")


def _note_days(experiment: Experiment, layers: ConfigLayers) -> None:
    """Say that a run that was trained on the first days of a file is scored on its first days too."""
    store, days = experiment.data.store, experiment.settings.data.days
    if days is None or layers.argument("data.days") is not None:
        return
    whole = open_store(store.path)
    if len(whole.seconds) > len(store.seconds):
        ends, last = (as_text(int(each.seconds.max()))[:16] for each in (store, whole))
        what = f"its rows until {ends} are scored, and those after them, until {last}, are not"
        note(Message(store.path, what, f"the run was trained with {Argument('data.days', days)}, which holds here too"))


def _note_seen(run: str, scored: ScoredSplit) -> None:
    """Say which windows a run may have seen in its training, where its file has grown since, and how to leave them."""
    now, then = scored.experiment.protocol, scored.trained[run]
    if None in (now.first_time, then.first_time, then.last_time):
        return
    step_s, times = 60 * now.step_minutes, (str(now.first_time), str(then.first_time), str(then.last_time))
    begins, first, last = (wall_seconds(time, "start", None) for time in times)
    ends, target = int(scored.data.store.seconds.max()), int(scored.issued.min()) + step_s  # the first that is scored
    if ends < first or max(begins, target) > last:
        return
    later = last + step_s
    enough = ends - later >= (now.horizon - 1) * step_s
    unseen = f"{Argument('split', ALL)} {Argument('start', as_text(later))}"
    remedy = f"score only later ones with {unseen}" if enough else "append more rows to score later ones"
    note(Message(scored.data.store.path, f"{run} may have seen its windows until {as_text(last)}", remedy))


def windows_within(data: Dataset, split: str, start: Time | None, end: Time | None) -> tuple[np.ndarray, Period | None]:
    """The windows of a split whose forecast lies from start to end, both included, as places int64 [W] in the split.

    None: the first and the last row of the file.  Without both, all windows and no period.  Raises SettingsError for a
    time outside of the file, and where no window of the split lies in the period.
    """
    seconds = data.store.seconds
    first, last = (seconds[rows] for rows in data.forecast_rows(split))  # of each forecast
    if start is None and end is None:
        return np.arange(len(first)), None
    earliest, latest = int(seconds.min()), int(seconds.max())
    begin, until = earliest, latest
    for argument, time in (("start", start), ("end", end)):
        if time is None:
            continue
        second = wall_seconds(time, argument, data.store.timezone)
        if not earliest - JITTER_S <= second <= latest + JITTER_S:
            rows = f"{data.store.path} has rows from {as_text(earliest)} to {as_text(latest)}"
            nearest = Argument(argument, as_text(earliest if second < earliest else latest))
            raise SettingsError(Argument(argument, as_text(second)), rows, f"the nearest is {nearest}")
        begin, until = (second, until) if argument == "start" else (begin, second)
    inside = np.flatnonzero((first >= begin) & (last <= until))
    if not len(inside):
        where = Argument("end", as_text(until)) if start is None else Argument("start", as_text(begin))
        none = f"no {split} window has its forecast within {as_text(begin)} .. {as_text(until)}"
        forecasts = f"forecasts of this split are of {as_text(int(first.min()))} .. {as_text(int(last.max()))}"
        more = "" if split == ALL else f"; for all of the file add {Argument('split', ALL)}"
        raise SettingsError(where, none, forecasts + more)
    return inside, Period(as_text(begin), as_text(until), len(inside))
