"""What the page of some runs shows, as data: their scores and settings, and days on which one can watch a forecast."""

# Shape letters: W windows, B windows of a batch, R rows of a day, P horizon steps, N sensors, G targets

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from socialx.core.batch import Batch, Target
from socialx.core.notebook import ResultRepr
from socialx.data.calendar import DAY_S
from socialx.data.source import RowSource
from socialx.scoring.results import Evaluation, Explanation
from socialx.training.run_folder import EpochRow

Ends = Callable[[Tensor], tuple[Tensor, Tensor]]
MORNING_S, EVENING_S = 6 * 3600, 22 * 3600  # between them a road is used
ENOUGH = 0.9  # of the rows of the fullest day: a day with fewer is not chosen


@dataclass(frozen=True, eq=False)
class Day:
    """Readings of one day, and what was forecast of each of them ``minutes_ahead`` minutes before.

    seconds int64 [R], wall time read as UTC; truth, forecast float32 [R,N] of the first target, truth NaN where there
    is no reading.  band: the lower and upper ends of an interval around the forecast, float32 [R,N] each; None: none.
    """

    minutes_ahead: int
    seconds: np.ndarray
    truth: np.ndarray
    forecast: np.ndarray
    band: tuple[np.ndarray, np.ndarray] | None = None


@dataclass(frozen=True)
class RunRecord:
    """What a run folder says of its training.

    settings, origins: by dotted key; a setting whose origin is not known has none.  best_epoch: that of the weights,
    None: no epoch had ended.
    """

    name: str
    settings: Mapping[str, Any]
    origins: Mapping[str, str]
    epochs: tuple[EpochRow, ...]
    best_epoch: int | None


@dataclass(frozen=True, eq=False, repr=False)
class RunReport(ResultRepr):
    """Runs and reference forecasts on the same windows, and where the best run errs.

    evaluation: with the errors by horizon, hour and weekday.  runs: in the order that they were named in.  defaults: of
    all settings.  explanation and days are of the run with the smallest MAE over all steps; sensors: the ids of the
    columns of the days.
    """

    evaluation: Evaluation
    runs: tuple[RunRecord, ...]
    defaults: Mapping[str, Any]
    explanation: Explanation
    sensors: tuple[str, ...]
    days: tuple[Day, ...]

    def headline(self) -> str:
        """The scores."""
        return self.evaluation.headline()

    def table(self) -> list[dict[str, Any]]:
        """The scores, a row per model."""
        return self.evaluation.table()

    @property
    def references(self) -> list[str]:
        """The names of the reference forecasts, the best first."""
        runs = {run.name for run in self.runs}
        names = [name for name in self.evaluation.distinct_models if name not in runs]
        return sorted(names, key=lambda name: self.evaluation[name].overall().mae)


def telling_days(source: RowSource, rows: np.ndarray) -> list[slice]:
    """Two days to look at: that on which readings vary most, and one in the middle of the others; one if there is one.

    rows int64 [W], ascending: the forecast row of each window of a part -> which of the windows are of these days, from
    6:00 to 22:00 where there are any.  A day varies by the standard deviation of each sensor's valid readings of the
    first target, a mean over the sensors.
    """
    local = source.calendar.local(source.seconds[rows])
    second = local % DAY_S
    used = np.flatnonzero((second >= MORNING_S) & (second <= EVENING_S))
    places = used if len(used) else np.arange(len(rows))
    day_of = local[places] // DAY_S
    days, firsts, counts = np.unique(day_of, return_index=True, return_counts=True)
    spans = [
        slice(int(places[first]), int(places[first + count - 1]) + 1)
        for _, first, count in zip(days, firsts, counts, strict=True)
        if count >= ENOUGH * counts.max()
    ]

    def variation(span: slice) -> float:
        readings = source.read(slice(int(rows[span.start]), int(rows[span.stop - 1]) + 1))
        values, valid = (part[..., 0] for part in readings)  # [R,N]
        count = np.maximum(valid.sum(axis=0), 1)
        mean = np.where(valid, values, 0).sum(axis=0, dtype=np.float64) / count
        return float(np.sqrt((np.where(valid, values - mean, 0) ** 2).sum(axis=0) / count).mean())

    spans.sort(key=variation, reverse=True)
    return [spans[0], spans[len(spans) // 2]][: len(spans)]


class ForecastRecorder:
    """Forecasts of some windows at one horizon step, kept while a model passes over a part in the order of time."""

    def __init__(self, step: int, spans: Sequence[slice], around: Ends | None = None) -> None:
        """step: of the horizon, the first one is 1.  spans: neighbouring windows of the part, by their number.

        around: the lower and the upper ends of intervals around forecasts [B,P,N,G]; None: no intervals are kept.
        """
        self.step, self.spans, self.around, self._seen = step - 1, spans, around, 0
        self._kept: list[list[Tensor]] = [[] for _ in spans]

    def update(self, forecast: Tensor, batch: Batch, target: Target) -> None:
        """forecast [B,P,N,G] in the file's units; of several targets the first one is kept."""
        first, self._seen = self._seen, self._seen + len(forecast)
        for span, kept in zip(self.spans, self._kept, strict=True):
            part = slice(max(0, span.start - first), max(0, span.stop - first))
            truth, valid = (each[part, self.step, :, 0] for each in (target.values, target.valid))
            lines = [forecast[part], *(self.around(forecast[part]) if self.around else ())]
            rows = [torch.where(valid, truth, torch.nan), *(line[:, self.step, :, 0] for line in lines)]
            kept.append(torch.stack([each.float() for each in rows]))

    def compute(self) -> list[tuple[np.ndarray, ...]]:
        """Of each span the truth, NaN where nothing is valid, the forecast, and both ends of it: float32 [R,N] each."""
        return [tuple(torch.cat(kept, dim=1).cpu().numpy()) for kept in self._kept]
