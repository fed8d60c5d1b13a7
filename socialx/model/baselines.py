"""Forecasts that cost nothing: what a trained model must beat.  Scored by the same code as the model."""

# Shape letters: B windows, T history steps, P horizon steps, N sensors

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from socialx.data.loaders import Batch


class CopyLast(nn.Module):
    """The last reading, for every step of the horizon.

    zeros True copies the last row as it stands, a missing value as 0 (how the published copy-last numbers came about);
    False copies each sensor's latest valid reading, however old, and ``fallback`` where there never was one.
    """

    def __init__(self, zeros: bool, fallback: float) -> None:
        super().__init__()
        self.zeros, self.fallback = zeros, fallback

    def forward(self, batch: Batch) -> Tensor:
        """Batch -> [B,P,N] in the file's unit."""
        last = batch.history[:, -1] if self.zeros else batch.carried.nan_to_num(nan=self.fallback)
        return last[:, None].expand_as(batch.target)


class HistoricalAverage(nn.Module):
    """The mean of the valid readings of that sensor, weekday and slot of the day.

    values, valid [T,N], slot and weekday [T]: the rows that may be looked at, those of the training windows.  A sensor
    without a reading in a slot falls back to its own mean, one without any reading to the mean of all.
    """

    table: Tensor

    def __init__(
        self, values: np.ndarray, valid: np.ndarray, slot: np.ndarray, weekday: np.ndarray, slots: int
    ) -> None:
        super().__init__()
        self.slots = slots
        cell = weekday * slots + slot
        total = np.zeros((7 * slots, values.shape[1]))
        count = np.zeros_like(total)
        np.add.at(total, cell, np.where(valid, values, 0.0).astype(np.float64))
        np.add.at(count, cell, valid.astype(np.float64))
        overall = total.sum() / max(count.sum(), 1)
        of_sensor = np.where(count.sum(0) > 0, total.sum(0) / np.maximum(count.sum(0), 1), overall)
        table = np.where(count > 0, total / np.maximum(count, 1), of_sensor)
        self.register_buffer("table", torch.from_numpy(table))

    def forward(self, batch: Batch) -> Tensor:
        """Batch -> float64 [B,P,N] in the file's unit."""
        history = batch.history.shape[1]
        cell = batch.weekday[:, history:] * self.slots + batch.slot[:, history:]  # [B,P]
        return self.table[cell]
