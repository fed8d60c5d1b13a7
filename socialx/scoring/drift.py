"""Drift: how well a run keeps the coverage promised by its calibration, by day and by sensor.

Calibration leaves half the validation errors inside the 50 % interval at each sensor, step and group.  So half the
observations on any later day should be inside too, in free flow as in congestion; larger errors lower this coverage.  A
sensor is worse on a day with coverage below 20 %. The network is worse where the 95 % confidence interval over a week
ends below 47 %. These limits alarm for one sensor on one day among the 32 validation days in METR-LA and PEMS-BAY:
benchmarks/drift.py.
"""

# Shape letters: W windows, B windows of a batch, P horizon steps, N sensors, G targets, D days

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from socialx.core.batch import Batch, Target
from socialx.data.calendar import DAY_S
from socialx.files.store.time_axis import as_text
from socialx.scoring.difference import confidence_interval
from socialx.scoring.intervals import Intervals

LEVEL = 0.5
LEAST_OF_SENSOR, LEAST_OF_NETWORK = 0.2, 0.47  # coverage on a day; upper end over a week
WEEK = 7
ENOUGH = 1 / 3  # of the fullest day and sensor: a sensor needs this many observations on a day


@dataclass(frozen=True)
class DriftDay:
    """Forecasts that begin on a day: MAE for the first target, coverage by 50 % intervals, number of observations.

    worse: ids of the worse sensors.  mae and covered are None for a day with 0 observations.
    """

    date: str
    mae: float | None
    covered: float | None
    count: int
    worse: tuple[str, ...]


@dataclass(frozen=True)
class Drift:
    """The coverage by a run's 50 % intervals, expected to be one half.

    covered: coverage over the last 7 days. low, high: 95 % confidence interval, a bootstrap over days; None for fewer
    than 5 days. since: first day in the final series of worse days, or None. sensors: id -> first day in the final
    series of worse days, for each worse sensor. stuck: id -> hours with a repeated value on the last day.
    """

    days: tuple[DriftDay, ...]
    covered: float | None
    low: float | None
    high: float | None
    since: str | None
    sensors: Mapping[str, str]
    stuck: Mapping[str, float]


class DailyCoverage:
    """Running sums over covered observations by day and sensor, on the device."""

    def __init__(self, intervals: Intervals, days: np.ndarray, device: torch.device) -> None:
        """Start at 0.  intervals: for these sensors.  days int64 [W]: first forecast day by window, in loader order."""
        self.intervals = intervals
        self.days, day_index = np.unique(days, return_inverse=True)
        self.day_index = torch.from_numpy(day_index).to(device)
        self.sums = torch.zeros(3, len(self.days), len(intervals.sensors), dtype=torch.float64, device=device)
        self.seen = 0

    def update(self, forecast: Tensor, batch: Batch, target: Target) -> None:
        """Add the next forecast [B,P,N,G] (P steps, G targets); windows that pad the last batch drop out."""
        day_index = self.day_index[self.seen : self.seen + len(forecast)]
        self.seen += len(day_index)
        low, high = (end[: len(day_index), ..., 0] for end in self.intervals.apply(forecast, LEVEL, batch.origin))
        truth, valid = (values[: len(day_index), ..., 0] for values in (target.values, target.valid))
        inside = valid & (low <= truth) & (truth <= high)
        error = torch.where(valid, (forecast[: len(day_index), ..., 0] - truth).abs(), 0.0)
        sums = torch.stack([values.sum(dim=1, dtype=torch.float64) for values in (inside, error, valid)])  # [3,B,N]
        self.sums.index_add_(1, day_index, sums)

    def compute(self, stuck: Mapping[str, float]) -> Drift:
        """Return the drift, in one transfer from the device; stuck: id -> hours with a repeated value, to be stored."""
        inside, error, count = self.sums.cpu().numpy()  # [D,N]
        dates = np.array([as_text(int(day) * DAY_S)[:10] for day in self.days])
        ids = np.array(self.intervals.sensors)
        decisive = (count > 0) & (count >= ENOUGH * count.max())
        worse = decisive & (inside < LEAST_OF_SENSOR * count)
        columns = zip(ids.tolist(), decisive.T, worse.T, strict=True)
        first_days = {name: _first_worse_day(dates[valid], flags[valid]) for name, valid, flags in columns}
        inside, error, readings = (values.sum(axis=1) for values in (inside, error, count))
        days = tuple(
            DriftDay(
                date,
                _fraction(error[day], readings[day]),
                _fraction(inside[day], readings[day]),
                int(readings[day]),
                tuple(ids[worse[day]].tolist()),
            )
            for day, date in enumerate(dates.tolist())
        )
        weeks = [slice(max(0, end - WEEK), end) for end in range(1, len(dates) + 1)]
        ends = [confidence_interval(inside[week], readings[week]) for week in weeks]
        since = _first_worse_day(dates, np.array([high is not None and high < LEAST_OF_NETWORK for _, high in ends]))
        covered = _fraction(inside[-WEEK:].sum(), readings[-WEEK:].sum())
        sensors = {name: since for name, since in first_days.items() if since}
        return Drift(days, covered, *ends[-1], since, sensors, stuck)


def _fraction(total: float, count: float) -> float | None:
    return float(total / count) if count else None


def _first_worse_day(dates: np.ndarray, worse: np.ndarray) -> str | None:
    """Return the first of the final run of worse days, None if the last day is good; dates, worse (bool): by day."""
    last_good = np.flatnonzero(~worse)[-1:]
    first = int(last_good[0]) + 1 if len(last_good) else 0
    return str(dates[first]) if first < len(dates) else None
