"""Plain models for comparison with the social forecaster, trained and scored by the same code."""

# Shape letters: B windows, T lookback steps, P horizon steps, N sensors, F inputs, G targets, E width, S sequences

from __future__ import annotations

import torch
from torch import Tensor, nn

from socialx.core.batch import Batch
from socialx.data.scaler import DataSpec, StandardScaler
from socialx.settings.schema import ModelSettings


class Linear(nn.Module):
    """Linear map from a sensor's lookback (T x F numbers) to the horizon (P x G), shared by all sensors."""

    def __init__(self, network: DataSpec) -> None:
        super().__init__()
        self.scaler, self.horizon = network.scaler(), network.horizon
        self.map = nn.Linear(network.lookback * len(network.inputs), network.horizon * len(network.targets))

    def forward(self, batch: Batch) -> Tensor:
        """Return the forecast [B,P,N,G] in file units."""
        return _denormalise(self.map(_windows(self.scaler.normalise_inputs(batch))), self.horizon, self.scaler)


class SharedLstm(nn.Module):
    """LSTM shared by all sensors, on values alone, with an output layer on the last step.

    Reference: 3.06 / 3.76 / 4.86 mph at 15, 30, 60 minutes on METR-LA (Torch-MTS, seed 233).
    """

    def __init__(self, network: DataSpec, width: int, blocks: int, dropout: float) -> None:
        super().__init__()
        self.scaler, self.horizon = network.scaler(), network.horizon
        drop = dropout if blocks > 1 else 0.0
        self.lstm = nn.LSTM(len(network.inputs), width, blocks, batch_first=True, dropout=drop)
        self.head = nn.Linear(width, network.horizon * len(network.targets))

    def forward(self, batch: Batch) -> Tensor:
        """Return the forecast [B,P,N,G] in file units."""
        inputs = self.scaler.normalise_inputs(batch).transpose(1, 2)  # [B,N,T,F]
        states, _ = self.lstm(inputs.flatten(0, 1))  # [B*N,T,E]
        return _denormalise(self.head(states[:, -1].unflatten(0, inputs.shape[:2])), self.horizon, self.scaler)


class Stid(nn.Module):
    """Embeddings and an MLP, after Shao et al. 2022, "Spatial-Temporal Identity", arXiv:2208.05233.

    Lookback, sensor, time of day and day of week at the last step get a quarter of the width each; then three residual
    layers and an output layer. Sensors are independent. The published width is 128.
    """

    def __init__(self, network: DataSpec, width: int, dropout: float) -> None:
        super().__init__()
        self.scaler, self.horizon = network.scaler(), network.horizon
        part = max(1, width // 4)
        self.lookback = nn.Linear(network.lookback * len(network.inputs), part)
        rows = (network.sensors, network.slots, 7)
        self.sensor, self.time_of_day, self.day_of_week = (nn.Embedding(count, part) for count in rows)
        for table in (self.sensor, self.time_of_day, self.day_of_week):
            nn.init.xavier_uniform_(table.weight)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(4 * part, 4 * part), nn.ReLU(), nn.Dropout(dropout), nn.Linear(4 * part, 4 * part))
            for _ in range(3)
        )
        self.head = nn.Linear(4 * part, network.horizon * len(network.targets))

    def forward(self, batch: Batch) -> Tensor:
        """Return the forecast [B,P,N,G] in file units."""
        lookback = self.lookback(_windows(self.scaler.normalise_inputs(batch)))  # [B,N,E/4]
        last_step = batch.inputs.shape[1] - 1
        embeddings = [
            self.sensor.weight,
            self.time_of_day(batch.time_of_day[:, last_step])[:, None],
            self.day_of_week(batch.day_of_week[:, last_step])[:, None],
        ]
        state = torch.cat([lookback, *(table.expand_as(lookback) for table in embeddings)], dim=-1)
        for layer in self.layers:
            state = state + layer(state)
        return _denormalise(self.head(state), self.horizon, self.scaler)


class PlainModule(nn.Module):
    """A user's module on normalised windows: x float32 [B,T,N,F], 0 where missing -> [B,P,N,G], or [B,P,N] for G = 1.

    N, T and P are the sizes of the data; training rows fit the scaler.
    """

    def __init__(self, network: DataSpec, module: nn.Module) -> None:
        super().__init__()
        self.scaler, self.module = network.scaler(), module

    def forward(self, batch: Batch) -> Tensor:
        """Return the forecast [B,P,N,G] in file units."""
        ahead = self.module(self.scaler.normalise_inputs(batch))
        return self.scaler.denormalise(ahead if ahead.ndim == 4 else ahead[..., None])


class WindowMlp(nn.Module):
    """MLP encoder: the flattened window through one hidden layer, for comparison with the shared xLSTM.

    x [S,T,E] -> [S,E], with T = lookback, and ``mlp_width`` hidden units.
    """

    def __init__(self, model: ModelSettings, lookback: int) -> None:
        super().__init__()
        width, hidden = model.width, model.mlp_width
        self.layers = nn.Sequential(nn.Linear(width * lookback, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.dropout = nn.Dropout(model.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Encode sequences x [S,T,E] (tokens) -> [S,E], as ``SharedEncoder`` does."""
        return self.dropout(self.layers(x.flatten(1)))


def _windows(inputs: Tensor) -> Tensor:
    """Flatten the lookback of each sensor into one vector: inputs [B,T,N,F] -> [B,N,T*F]."""
    return inputs.transpose(1, 2).flatten(2)


def _denormalise(normalised: Tensor, horizon: int, scaler: StandardScaler) -> Tensor:
    """Map normalised [B,N,P*G] -> forecast [B,P,N,G] in file units."""
    return scaler.denormalise(normalised.unflatten(-1, (horizon, -1)).transpose(1, 2))
