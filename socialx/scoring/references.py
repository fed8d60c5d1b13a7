"""Baselines: training-free forecasts, which every model must beat."""

# Shape letters: B windows, T lookback steps, P horizon steps, N sensors, G targets

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from socialx.core.batch import Batch
from socialx.data.calendar import Calendar, slots_per_day
from socialx.data.climatology import WEEKDAY_DAYS, HistoricalMedians, RollingClimatology, median
from socialx.dataset import Dataset

MEANINGS = {
    "naive, zeros not masked": "repeating the last row, missing values as 0",
    "naive": "repeating the last observation",
    "historical average": "the usual value of that hour (mean for the time of the week)",
    "historical median": "the usual value of that hour (median for the time of the week)",
}
REFERENCES = ZEROS_COPIED, LAST_VALID, AVERAGE, MEDIAN = tuple(MEANINGS)


class NaiveLast(nn.Module):
    """The last observation, repeated for every horizon step.

    zeros True: repeat the last row with missing values as 0, the source of the published naive scores.  False: repeat
    each sensor's latest valid observation of any age, or else ``fallback`` [G].
    """

    fallback: Tensor

    def __init__(self, horizon: int, zeros: bool, fallback: Sequence[float]) -> None:
        super().__init__()
        self.horizon, self.zeros = horizon, zeros
        self.register_buffer("fallback", torch.tensor(list(fallback)))

    def forward(self, batch: Batch) -> Tensor:
        """Return the forecast [B,P,N,G] (P steps, G targets) in file units."""
        observed = batch.last_observed
        last = batch.last if self.zeros else torch.where(observed.isnan(), self.fallback, observed)
        return last[:, None].expand(-1, self.horizon, -1, -1)


class WeeklyProfile(nn.Module):
    """A table [7 * slots,N,G] of speeds per weekday and time of day, as a forecast."""

    table: Tensor

    def __init__(self, table: np.ndarray) -> None:
        super().__init__()
        self.slots = len(table) // 7
        self.register_buffer("table", torch.from_numpy(table))

    def forward(self, batch: Batch) -> Tensor:
        """Return the forecast [B,P,N,G] (P steps, G targets) in file units."""
        lookback = batch.inputs.shape[1]
        cell = batch.day_of_week[:, lookback:] * self.slots + batch.time_of_day[:, lookback:]  # [B,P]
        return self.table[cell]


class HistoricalAverage(WeeklyProfile):
    """The mean over valid observations per sensor, weekday and time of day, as in published tables.

    Fewer than four weeks average over working days and over weekends: a mean over two or three values errs more than a
    mean over other weekdays.  An empty slot takes the sensor mean; a silent sensor takes the mean over all sensors.
    """

    def __init__(
        self,
        rows: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]],
        shape: tuple[int, int],
        step_minutes: int,
        calendar: Calendar,
    ) -> None:
        """Average rows: values, valid [t,N,G] and seconds [t], in pieces.  shape: (N, G)."""
        slots = slots_per_day(step_minutes)
        total = np.zeros((7 * slots, *shape))
        count, days = np.zeros(total.shape, np.uint32), set[int]()
        for values, valid, seconds in rows:
            days.update(calendar.day(seconds).tolist())
            time_of_day, day_of_week = calendar.time_features(seconds, step_minutes)
            for row, cell in enumerate(day_of_week * slots + time_of_day):
                np.add(total[cell], values[row], out=total[cell], where=valid[row])
                count[cell] += valid[row]
        totals, counts = total.sum(0), count.sum(0, np.int64)  # [N,G]
        overall = totals.sum(0) / np.maximum(counts.sum(0), 1)  # [G]
        sensor_means = np.where(counts > 0, totals / np.maximum(counts, 1), overall)
        if len(days) < WEEKDAY_DAYS:
            for kind in (slice(0, 5), slice(5, 7)):
                for table in (total, count):
                    by_weekday = table.reshape(7, slots, *shape)
                    by_weekday[kind] = by_weekday[kind].sum(0, table.dtype)
        np.divide(total, count, out=total, where=count > 0)
        np.copyto(total, sensor_means, where=count == 0)
        super().__init__(total)


class HistoricalMedian(WeeklyProfile):
    """The medians of ``HistoricalMedians`` on the training rows; a silent sensor takes the median of the others.

    A time of week without any observation is 0.
    """

    def __init__(self, data: Dataset) -> None:
        medians = HistoricalMedians(data.target_source)
        table = np.concatenate([medians.table(weekday, data.training_rows.stop) for weekday in range(7)])
        others = median(table.transpose(0, 2, 1))[:, None]  # [7 S,1,G]
        super().__init__(np.nan_to_num(np.where(np.isnan(table), others, table)))


class PastFrequency(nn.Module):
    """The frequency below a threshold as the climatology weighs the days before each origin; one half without a day."""

    def __init__(self, data: Dataset, below: float) -> None:
        super().__init__()
        self.days = RollingClimatology(data.target_source, below=below)

    def forward(self, batch: Batch) -> Tensor:
        """Return the share [B,P,N,G] (P steps, G targets)."""
        times = (batch.time_of_day, batch.day_of_week)
        slots, weekdays = (part[:, batch.inputs.shape[1] :].cpu().numpy() for part in times)  # [B,P]
        days = np.broadcast_to(self.days.source.calendar.day(batch.origin.cpu().numpy())[:, None], slots.shape)
        shares, kinds = np.empty((*slots.shape, *self.days.source.shape), np.float32), np.maximum(weekdays - 4, 0)
        for day, kind in np.unique([days.ravel(), kinds.ravel()], axis=1).T.tolist():
            entries = (days == day) & (kinds == kind)
            shares[entries] = self.days.table(day, None, kind).readings[slots[entries]]
        return torch.from_numpy(np.nan_to_num(shares, nan=0.5)).to(batch.last.device)


def past_frequency(data: Dataset, below: float, rolling: bool) -> nn.Module:
    """Return how often training observations were below a threshold; rolling: from the days before each origin."""
    if rolling:
        return PastFrequency(data, below)
    rows, shape = data.training_readings(), (len(data.sensors.ids), len(data.targets))
    indicators = ((values < below, valid, seconds) for values, valid, seconds in rows)
    return HistoricalAverage(indicators, shape, data.store.step_minutes, data.calendar)


class PrecomputedModel(nn.Module):
    """Precomputed forecasts, such as from a file, in place of a model: for the windows in a pass, in window order."""

    def __init__(self, values: np.ndarray) -> None:
        """Store the forecasts: values float32 [W,P,N,G] (windows, steps, sensors, targets) in file units."""
        super().__init__()
        self.values, self.following = torch.from_numpy(values), 0

    def forward(self, batch: Batch) -> Tensor:
        """Return the next B forecasts [B,P,N,G]; windows that pad the last batch get the first forecasts again."""
        indices = torch.arange(self.following, self.following + len(batch.last))
        self.following = min(self.following + len(indices), len(self.values)) % len(self.values)
        return self.values[indices % len(self.values)].to(batch.last.device)


def references(data: Dataset) -> dict[str, nn.Module]:
    """Return the baselines for the data, fitted on the training rows, by name in score tables, such as ``naive``."""
    horizon, shape = data.horizon, (len(data.sensors.ids), len(data.targets))
    average = HistoricalAverage(data.training_readings(), shape, data.store.step_minutes, data.calendar)
    means = [data.moments[name].mean for name in data.targets]
    return {
        ZEROS_COPIED: NaiveLast(horizon, zeros=True, fallback=means),
        LAST_VALID: NaiveLast(horizon, zeros=False, fallback=means),
        AVERAGE: average,
        MEDIAN: HistoricalMedian(data),
    }
