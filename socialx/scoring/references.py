"""Reference forecasts: what every model must beat, computed without training."""

# Shape letters: B windows, T history steps, P horizon steps, N sensors, G targets

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from socialx.batch import Batch
from socialx.data.calendar import calendar, slots_per_day
from socialx.dataset import Dataset


class CopyLast(nn.Module):
    """The last reading, for every step of the horizon.

    zeros True copies the last row as it stands, a missing value as 0 (how the published copy-last numbers came about);
    False copies each sensor's latest valid reading, however old, and ``fallback`` [G] where there never was one.
    """

    fallback: Tensor

    def __init__(self, horizon: int, zeros: bool, fallback: Sequence[float]) -> None:
        super().__init__()
        self.horizon, self.zeros = horizon, zeros
        self.register_buffer("fallback", torch.tensor(list(fallback)))

    def forward(self, batch: Batch) -> Tensor:
        """Batch -> [B,P,N,G] in the file's units."""
        last = batch.last if self.zeros else torch.where(batch.carried.isnan(), self.fallback, batch.carried)
        return last[:, None].expand(-1, self.horizon, -1, -1)


class HistoricalAverage(nn.Module):
    """The mean of the valid readings of that sensor, weekday and slot of the day.

    values, valid [T,N,G], slot and weekday [T]: the rows that may be looked at, those of the training windows.  A
    sensor without a reading in a slot falls back to its own mean, one without any reading to the mean of all.
    """

    table: Tensor

    def __init__(
        self, values: np.ndarray, valid: np.ndarray, slot: np.ndarray, weekday: np.ndarray, slots: int
    ) -> None:
        super().__init__()
        self.slots = slots
        cell = weekday * slots + slot
        total = np.zeros((7 * slots, *values.shape[1:]))
        count = np.zeros_like(total)
        np.add.at(total, cell, np.where(valid, values, 0.0).astype(np.float64))
        np.add.at(count, cell, valid.astype(np.float64))
        overall = total.sum((0, 1)) / np.maximum(count.sum((0, 1)), 1)  # [G]
        of_sensor = np.where(count.sum(0) > 0, total.sum(0) / np.maximum(count.sum(0), 1), overall)
        table = np.where(count > 0, total / np.maximum(count, 1), of_sensor)
        self.register_buffer("table", torch.from_numpy(table))

    def forward(self, batch: Batch) -> Tensor:
        """Batch -> float64 [B,P,N,G] in the file's units."""
        history = batch.history.shape[1]
        cell = batch.weekday[:, history:] * self.slots + batch.slot[:, history:]  # [B,P]
        return self.table[cell]


def references(data: Dataset) -> dict[str, nn.Module]:
    """The reference forecasts for this data, by the name of their row."""
    values, valid, seconds = data.training_readings()
    step_minutes, horizon = data.store.step_minutes, data.horizon
    average = HistoricalAverage(values, valid, *calendar(seconds, step_minutes), slots_per_day(step_minutes))
    means = [data.moments[name].mean for name in data.targets]
    return {
        "copy-last, zeros copied": CopyLast(horizon, zeros=True, fallback=means),
        "copy-last, last valid": CopyLast(horizon, zeros=False, fallback=means),
        "historical average": average,
    }
