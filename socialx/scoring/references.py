"""Reference forecasts: what every model must beat, computed without training."""

# Shape letters: B windows, T lookback steps, P horizon steps, N sensors, G targets

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from socialx.core.batch import Batch
from socialx.data.calendar import Calendar, slots_per_day
from socialx.dataset import Dataset

ZEROS_COPIED, LAST_VALID, AVERAGE = REFERENCES = (
    "naive, zeros copied",
    "naive",
    "historical average",
)


class NaiveLast(nn.Module):
    """The last reading, for every step of the horizon.

    zeros True copies the last row as it stands, a missing value as 0 (how the published naive numbers came about);
    False copies each sensor's latest valid reading, however old, and ``fallback`` [G] where there never was one.
    """

    fallback: Tensor

    def __init__(self, horizon: int, zeros: bool, fallback: Sequence[float]) -> None:
        super().__init__()
        self.horizon, self.zeros = horizon, zeros
        self.register_buffer("fallback", torch.tensor(list(fallback)))

    def forward(self, batch: Batch) -> Tensor:
        """Batch -> [B,P,N,G] in the file's units."""
        last = (
            batch.last if self.zeros else torch.where(batch.last_observed.isnan(), self.fallback, batch.last_observed)
        )
        return last[:, None].expand(-1, self.horizon, -1, -1)


class HistoricalAverage(nn.Module):
    """The mean of the valid readings of that sensor, weekday and slot of the day.

    A sensor without a reading in a slot falls back to its own mean, one without any reading to the mean of all.
    """

    table: Tensor

    def __init__(
        self,
        rows: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]],
        shape: tuple[int, int],
        step_minutes: int,
        calendar: Calendar,
    ) -> None:
        """rows: values, valid [t,N,G] and seconds [t] of what may be looked at, in pieces.  shape: (N, G)."""
        super().__init__()
        self.slots = slots_per_day(step_minutes)
        total = np.zeros((7 * self.slots, *shape))
        count = np.zeros(total.shape, np.uint32)
        for values, valid, seconds in rows:
            time_of_day, day_of_week = calendar.time_features(seconds, step_minutes)
            for row, cell in enumerate(day_of_week * self.slots + time_of_day):
                np.add(total[cell], values[row], out=total[cell], where=valid[row])
                count[cell] += valid[row]
        totals, counts = total.sum(0), count.sum(0, np.int64)  # [N,G]
        overall = totals.sum(0) / np.maximum(counts.sum(0), 1)  # [G]
        of_sensor = np.where(counts > 0, totals / np.maximum(counts, 1), overall)
        np.divide(total, count, out=total, where=count > 0)
        np.copyto(total, of_sensor, where=count == 0)
        self.register_buffer("table", torch.from_numpy(total))

    def forward(self, batch: Batch) -> Tensor:
        """Batch -> float64 [B,P,N,G] in the file's units."""
        lookback = batch.inputs.shape[1]
        cell = batch.day_of_week[:, lookback:] * self.slots + batch.time_of_day[:, lookback:]  # [B,P]
        return self.table[cell]


class PrecomputedModel(nn.Module):
    """Forecasts that were made before, of the windows of a pass in their order."""

    def __init__(self, values: np.ndarray) -> None:
        """values: float32 [W,P,N,G] in the file's units."""
        super().__init__()
        self.values, self.following = torch.from_numpy(values), 0

    def forward(self, batch: Batch) -> Tensor:
        """The next B forecasts [B,P,N,G]; windows that pad the last batch get those of the first ones."""
        places = torch.arange(self.following, self.following + len(batch.last))
        self.following = min(self.following + len(places), len(self.values)) % len(self.values)
        return self.values[places % len(self.values)].to(batch.last.device)


def references(data: Dataset) -> dict[str, nn.Module]:
    """The reference forecasts for this data, by the name of their row."""
    horizon, shape = data.horizon, (len(data.sensors.ids), len(data.targets))
    average = HistoricalAverage(data.training_readings(), shape, data.store.step_minutes, data.calendar)
    means = [data.moments[name].mean for name in data.targets]
    return {
        ZEROS_COPIED: NaiveLast(horizon, zeros=True, fallback=means),
        LAST_VALID: NaiveLast(horizon, zeros=False, fallback=means),
        AVERAGE: average,
    }
