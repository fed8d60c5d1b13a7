"""The windows that are scored, and the runs that forecast them: what evaluate, explain and report start from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from socialx.build import Problem, build
from socialx.data.loaders import Loader
from socialx.data.windows import ALL, PARTS
from socialx.dataset import Dataset
from socialx.errors import Argument, SettingsError
from socialx.files.time_axis import JITTER_S, Time, as_text, wall_seconds
from socialx.scoring.breakdown import RunningErrors
from socialx.scoring.intervals import Intervals
from socialx.scoring.metrics import RunningScores
from socialx.scoring.protocol import Period, ScoringProtocol, Trained
from socialx.scoring.references import references
from socialx.settings_layers import Layers
from socialx.tasks.trained import load_trained
from socialx.training.run_folder import open_run


@dataclass(frozen=True)
class ScoredPart:
    """Windows of a part, in the order of time, and the runs that forecast them.

    places: of the windows in the part, int64 [W].  period: in which all of them lie, None: they are the whole part.
    problem: of the first run, and of the file alone where there is no run.
    """

    part: str
    places: np.ndarray
    period: Period | None
    problem: Problem
    problems: dict[str, Problem]
    trained: dict[str, Trained]
    loader: Loader

    @property
    def data(self) -> Dataset:
        """The file, which all runs share."""
        return self.problem.data

    @property
    def device(self) -> torch.device:
        """Where models forecast and questions add up."""
        return self.problem.precision.device

    @property
    def protocol(self) -> ScoringProtocol:
        """What the scores of these runs on these windows depend on."""
        return self.problem.protocol.with_trained(self.trained, self.period)

    @property
    def issued(self) -> np.ndarray:
        """When the forecast of each window is issued, int64 [W] in seconds."""
        return self.data.store.seconds[self.data.forecast_rows(self.part, self.places)[0] - 1]

    def models(self) -> dict[str, nn.Module]:
        """The models of the runs, by their names."""
        return {name: problem.model for name, problem in self.problems.items()}

    def baselines(self) -> dict[str, nn.Module]:
        """The reference forecasts for the file, by their names, on the device."""
        return {name: model.to(self.device) for name, model in references(self.data).items()}

    def scores(self) -> RunningScores:
        """The question how large the errors of a model are."""
        return RunningScores(self.data.horizon, len(self.data.targets), self.device)

    def errors(self, congestion: bool = False) -> RunningErrors:
        """The question where a model errs; congestion: also below half of the free-flow speed, which is measured."""
        data = self.data
        free_flow = torch.from_numpy(data.free_flow).to(self.device) if congestion else None
        return RunningErrors(data.horizon, len(data.sensors.ids), data.store.step_minutes, self.device, free_flow)

    def intervals(self, run: str) -> Intervals:
        """The prediction intervals of a run for the sensors of the file; SocialxError where it has none."""
        intervals = open_run(Path(run)).read_intervals(self.trained[run].weights)
        return intervals.of(self.data.sensors.ids, self.device)


def scored_part(
    runs: Sequence[str], layers: Layers, part: str, start: Time | None = None, end: Time | None = None
) -> ScoredPart:
    """Load these runs, or open the file alone where there is none, and choose the windows.

    Raises SettingsError for a part that does not exist, for a period without a window, and where runs have different
    windows; SocialxError as ``load_trained`` does.
    """
    if part not in (*PARTS, ALL):
        raise SettingsError(Argument("part", part), f"one of {', '.join(PARTS)}, {ALL}")
    if layers.of_call("data.days") is not None and (start is not None or end is not None):
        both = "the first days of the file are asked for too"
        raise SettingsError(Argument("end" if start is None else "start"), both, f"leave out {Argument('data.days')}")
    problems: dict[str, Problem] = {}
    trained: dict[str, Trained] = {}
    for name in runs:
        problems[name], trained[name] = load_trained(Path(name), layers, next(iter(problems.values()), None))
    problem = next(iter(problems.values()), None) or build(layers.load().in_full_precision())
    places, period = windows_within(problem.data, part, start, end)
    loader = problem.data.loader(part, problem.settings.loader.batch_size, some=places)
    return ScoredPart(part, places, period, problem, problems, trained, loader)


def windows_within(data: Dataset, part: str, start: Time | None, end: Time | None) -> tuple[np.ndarray, Period | None]:
    """The windows of a part whose forecast lies from start to end, both included, as places int64 [W] in the part.

    None: the first and the last row of the file.  Without both, all windows and no period.  Raises SettingsError for a
    time outside of the file, and where no window of the part lies in the period.
    """
    seconds = data.store.seconds
    first, last = (seconds[rows] for rows in data.forecast_rows(part))  # of each forecast
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
        none = f"no {part} window has its forecast within {as_text(begin)} .. {as_text(until)}"
        forecasts = f"forecasts of this part are of {as_text(int(first.min()))} .. {as_text(int(last.max()))}"
        more = "" if part == ALL else f"; for all of the file add {Argument('part', ALL)}"
        raise SettingsError(where, none, forecasts + more)
    return inside, Period(as_text(begin), as_text(until), len(inside))
