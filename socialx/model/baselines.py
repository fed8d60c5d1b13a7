"""What the forecaster must beat: forecasts that cost nothing, and plain models trained and scored by the same code."""

# Shape letters: B windows, T history steps, P horizon steps, N sensors, F inputs, G targets, E width

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from socialx.data.loaders import Batch
from socialx.model.scale import Scale, Scaled


class CopyLast(nn.Module):
    """The last reading, for every step of the horizon.

    zeros True copies the last row as it stands, a missing value as 0 (how the published copy-last numbers came about);
    False copies each sensor's latest valid reading, however old, and ``fallback`` [G] where there never was one.
    """

    fallback: Tensor

    def __init__(self, zeros: bool, fallback: list[float]) -> None:
        super().__init__()
        self.zeros = zeros
        self.register_buffer("fallback", torch.tensor(fallback))

    def forward(self, batch: Batch) -> Tensor:
        """Batch -> [B,P,N,G] in the file's units."""
        last = batch.last if self.zeros else torch.where(batch.carried.isnan(), self.fallback, batch.carried)
        return last[:, None].expand_as(batch.target)


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


class Linear(nn.Module):
    """One linear map from the history of a sensor to its horizon, shared by all sensors: T F -> P G."""

    def __init__(self, history: int, horizon: int, scale: Scale) -> None:
        super().__init__()
        self.scaled, self.horizon = Scaled(scale), horizon
        self.map = nn.Linear(history * len(scale.input_mean), horizon * len(scale.target_mean))

    def forward(self, batch: Batch) -> Tensor:
        """Batch -> [B,P,N,G] in the file's units."""
        return _ahead(self.map(_windows(self.scaled.inputs(batch))), self.horizon, self.scaled)


class SharedLstm(nn.Module):
    """One LSTM shared by all sensors that reads the values alone, and a direct head on its last step.

    The field's floor: 3.06 / 3.76 / 4.86 mph at 15, 30, 60 minutes of METR-LA (Torch-MTS, seed 233).
    """

    def __init__(self, horizon: int, scale: Scale, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.scaled, self.horizon = Scaled(scale), horizon
        drop = dropout if layers > 1 else 0.0
        self.lstm = nn.LSTM(len(scale.input_mean), width, layers, batch_first=True, dropout=drop)
        self.head = nn.Linear(width, horizon * len(scale.target_mean))

    def forward(self, batch: Batch) -> Tensor:
        """Batch -> [B,P,N,G] in the file's units."""
        inputs = self.scaled.inputs(batch).transpose(1, 2)  # [B,N,T,F]
        states, _ = self.lstm(inputs.flatten(0, 1))  # [B*N,T,E]
        return _ahead(self.head(states[:, -1].unflatten(0, inputs.shape[:2])), self.horizon, self.scaled)


class Stid(nn.Module):
    """Identities and a plain MLP: the model after Shao et al. 2022, "Spatial-Temporal Identity", arXiv:2208.05233.

    A quarter of the width each for the history, the sensor, the slot and the weekday of the last step; three residual
    layers; a direct head.  No sensor hears another.  Width 128 is the published size.
    """

    def __init__(
        self, sensors: int, history: int, horizon: int, slots: int, scale: Scale, width: int, dropout: float
    ) -> None:
        super().__init__()
        self.scaled, self.horizon = Scaled(scale), horizon
        part = max(1, width // 4)
        self.history = nn.Linear(history * len(scale.input_mean), part)
        self.sensor, self.slot, self.weekday = (
            nn.Embedding(sensors, part),
            nn.Embedding(slots, part),
            nn.Embedding(7, part),
        )
        for table in (self.sensor, self.slot, self.weekday):
            nn.init.xavier_uniform_(table.weight)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(4 * part, 4 * part), nn.ReLU(), nn.Dropout(dropout), nn.Linear(4 * part, 4 * part))
            for _ in range(3)
        )
        self.head = nn.Linear(4 * part, horizon * len(scale.target_mean))

    def forward(self, batch: Batch) -> Tensor:
        """Batch -> [B,P,N,G] in the file's units."""
        history = self.history(_windows(self.scaled.inputs(batch)))  # [B,N,E/4]
        now = batch.history.shape[1] - 1
        known = [
            self.sensor.weight,
            self.slot(batch.slot[:, now])[:, None],
            self.weekday(batch.weekday[:, now])[:, None],
        ]
        state = torch.cat([history, *(table.expand_as(history) for table in known)], dim=-1)
        for layer in self.layers:
            state = state + layer(state)
        return _ahead(self.head(state), self.horizon, self.scaled)


def _windows(inputs: Tensor) -> Tensor:
    """inputs [B,T,N,F] -> [B,N,T*F]."""
    return inputs.transpose(1, 2).flatten(2)


def _ahead(scaled: Tensor, horizon: int, ends: Scaled) -> Tensor:
    """scaled [B,N,P*G] -> forecast [B,P,N,G] in the file's units."""
    return ends.from_mean(scaled.unflatten(-1, (horizon, -1)).transpose(1, 2))
