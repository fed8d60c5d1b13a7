"""Whether a run is still as good as its calibration promised: day by day, and sensor by sensor.

Calibration leaves half of the errors of the validation split inside of the 50 % interval of each sensor, step and
group, so half of the readings of any later day should lie there, in free flow as in congestion.  Fewer do where errors
have grown.  A sensor is worse on a day with less than 20 %, and the network where the 95 % interval over the days of a
week ends below 47 %.  Under these limits one sensor is alarmed on one of the 32 days of the validation parts of METR-LA
and PEMS-BAY: benchmarks/drift.py.
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
from socialx.scoring.difference import over_days
from socialx.scoring.intervals import ConformalIntervals

LEVEL = 0.5
LEAST_OF_SENSOR, LEAST_OF_NETWORK = 0.2, 0.47  # the share of a day, and the end of the interval over a week
WEEK = 7
ENOUGH = 1 / 3  # of the readings of the fullest day and sensor: a day of a sensor with fewer decides nothing


@dataclass(frozen=True)
class DriftDay:
    """Forecasts that begin on a day: MAE of the first target, the share of readings in their 50 % intervals, the count.

    worse: ids of the sensors that are worse on it.  Without a reading both numbers are None.
    """

    date: str
    mae: float | None
    covered: float | None
    count: int
    worse: tuple[str, ...]


@dataclass(frozen=True)
class Drift:
    """How often the 50 % intervals of a run hold, which its calibration promised for half of the readings.

    covered: the share in the last 7 days, low and high: its 95 % interval, a bootstrap over the days; None for fewer
    than 5.  since: the day from which on the network is worse; None: it is not.  sensors: id -> the day from which on
    that sensor is worse until the last one.  stuck: id -> hours for which that sensor repeats one reading on the last
    day.
    """

    days: tuple[DriftDay, ...]
    covered: float | None
    low: float | None
    high: float | None
    since: str | None
    sensors: Mapping[str, str]
    stuck: Mapping[str, float]


class DailyCoverage:
    """Readings in their 50 % intervals by day and sensor, as running sums on the device."""

    def __init__(self, intervals: ConformalIntervals, days: np.ndarray, device: torch.device) -> None:
        """intervals: of the sensors that are forecast, on the device.

        days int64 [W]: the day on which the forecast of each window begins, in the order in which a loader serves them.
        """
        self.intervals = intervals
        self.days, place = np.unique(days, return_inverse=True)
        self.place = torch.from_numpy(place).to(device)
        self.sums = torch.zeros(3, len(self.days), len(intervals.sensors), dtype=torch.float64, device=device)
        self.seen = 0

    def update(self, forecast: Tensor, batch: Batch, target: Target) -> None:
        """forecast [B,P,N,G] of the next batch; windows that pad the last one have no valid target."""
        place = self.place[self.seen : self.seen + len(forecast)]
        self.seen += len(place)
        low, high = (end[: len(place), ..., 0] for end in self.intervals.around(forecast, LEVEL))
        truth, valid = (part[: len(place), ..., 0] for part in (target.values, target.valid))
        inside = valid & (low <= truth) & (truth <= high)
        error = torch.where(valid, (forecast[: len(place), ..., 0] - truth).abs(), 0.0)
        sums = torch.stack([each.sum(dim=1, dtype=torch.float64) for each in (inside, error, valid)])  # [3,B,N]
        self.sums.index_add_(1, place, sums)

    def compute(self, stuck: Mapping[str, float]) -> Drift:
        """What they tell, from one transfer; stuck: as in ``Drift``."""
        inside, error, count = self.sums.cpu().numpy()  # [D,N]
        dates = np.array([as_text(int(day) * DAY_S)[:10] for day in self.days])
        ids = np.array(self.intervals.sensors)
        known = (count > 0) & (count >= ENOUGH * count.max())
        worse = known & (inside < LEAST_OF_SENSOR * count)
        since_of = {name: _since(dates[known[:, n]], worse[known[:, n], n]) for n, name in enumerate(ids.tolist())}
        inside, error, readings = (each.sum(axis=1) for each in (inside, error, count))
        days = tuple(
            DriftDay(
                date,
                _share(error[day], readings[day]),
                _share(inside[day], readings[day]),
                int(readings[day]),
                tuple(ids[worse[day]].tolist()),
            )
            for day, date in enumerate(dates.tolist())
        )
        weeks = [slice(max(0, end - WEEK), end) for end in range(1, len(dates) + 1)]
        ends = [over_days(inside[week], readings[week]) for week in weeks]
        since = _since(dates, np.array([high is not None and high < LEAST_OF_NETWORK for _, high in ends]))
        covered = _share(inside[-WEEK:].sum(), readings[-WEEK:].sum())
        sensors = {name: since for name, since in since_of.items() if since}
        return Drift(days, covered, *ends[-1], since, sensors, stuck)


def _share(total: float, count: float) -> float | None:
    return float(total / count) if count else None


def _since(dates: np.ndarray, worse: np.ndarray) -> str | None:
    """The first of the last days in a row that are worse; None where the last one is not."""
    last_good = np.flatnonzero(~worse)[-1:]
    first = int(last_good[0]) + 1 if len(last_good) else 0
    return str(dates[first]) if first < len(dates) else None
