"""embed -> shared encoder -> social layers -> gated fusion -> direct head.  File units in, file units out.

Up to the social layers sensor i depends on sensor i alone, and nothing but the identity tables grows with the number of
sensors.  The forecast starts from the latest valid reading: the head only learns the change.
"""

# Shape letters: B windows, T history steps, P horizon steps, N sensors, E width

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from socialx.data.loaders import Batch
from socialx.model.encoder import SharedEncoder
from socialx.model.pooling import SocialLayer


class Tokens(nn.Module):
    """One token per window, sensor and step: value and missing flag, plus who and when.

    Tables for time of day [slots,E], day of week [7,E], sensor [N,E] and step-and-sensor [N,T,E] are added; the two
    last are free of B, the two first of N.  A table that is switched off does not exist.
    """

    def __init__(
        self,
        width: int,
        sensors: int,
        history: int,
        slots: int,
        time_of_day: bool = True,
        day_of_week: bool = True,
        sensor_identity: bool = True,
        adaptive: bool = True,
    ) -> None:
        super().__init__()
        self.reading = nn.Linear(2, width)
        self.slot = _table(slots, width) if time_of_day else None
        self.weekday = _table(7, width) if day_of_week else None
        self.sensor = _table(sensors, 1, width) if sensor_identity else None
        self.adaptive = _table(sensors, history, width) if adaptive else None

    def forward(self, scaled: Tensor, valid: Tensor, slot: Tensor, weekday: Tensor) -> Tensor:
        """scaled (0 where missing), valid [B,T,N], slot and weekday [B,T] -> tokens [B,N,T,E]."""
        reading = torch.stack([scaled, (~valid).to(scaled.dtype)], dim=-1).transpose(1, 2)  # [B,N,T,2]
        tokens = self.reading(reading)  # [B,N,T,E]
        for table, key in ((self.slot, slot), (self.weekday, weekday)):
            if table is not None:
                tokens = tokens + table[key][:, None]
        for table in (self.sensor, self.adaptive):
            if table is not None:
                tokens = tokens + table
        return tokens


def _table(*shape: int) -> nn.Parameter:
    """Small against the reading's projection, so that an untrained identity does not drown the value."""
    return nn.Parameter(torch.randn(*shape) * 0.1)


class Forecaster(nn.Module):
    """The shared social xLSTM.

    encoder: SharedEncoder of width E.  tokens: Tokens of the same width.  social: layers in their order, may be empty.
    mean, std: the scaler of the training rows in the file's unit, kept in the state dict.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        tokens: Tokens,
        encoder: SharedEncoder,
        social: Sequence[SocialLayer],
        horizon: int,
        mean: float,
        std: float,
    ) -> None:
        super().__init__()
        width = tokens.reading.out_features
        self.tokens, self.encoder, self.social = tokens, encoder, nn.ModuleList(social)
        self.fusion = nn.Linear(2 * width, width) if social else None
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, horizon))
        self.register_buffer("mean", torch.tensor(float(mean)))
        self.register_buffer("std", torch.tensor(float(std)))

    def forward(self, batch: Batch) -> Tensor:
        """Batch -> forecast [B,P,N] in the file's unit; a sensor that was never observed starts from the mean."""
        history = batch.history.shape[1]
        scaled = torch.where(batch.history_valid, (batch.history - self.mean) / self.std, 0.0)  # [B,T,N]
        tokens = self.tokens(scaled, batch.history_valid, batch.slot[:, :history], batch.weekday[:, :history])
        own = self.encoder(tokens.flatten(0, 1)).unflatten(0, tokens.shape[:2])  # [B,N,E]
        state = own
        for layer in self.social:
            state = layer(state)
        if self.fusion is not None:
            gate = self.fusion(torch.cat([own, state], dim=-1)).sigmoid()
            state = gate * state + (1 - gate) * own
        change = self.head(state).transpose(1, 2)  # [B,P,N]
        start = torch.where(batch.carried.isnan(), self.mean, batch.carried)  # [B,N]
        return start[:, None] + self.std * change.to(start.dtype)
